"""What crossed between parties, summed up, beside what was declared and what can be learnt from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anyparty.report.records import Run
from anyparty.run import agree, parts
from anyparty.schedules.schedule import MESSAGES as SCHEDULES
from anyparty.terms import Declared
from anyparty.wire.ledger import Ledger, Tally

UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What two parties sent each other.

    ``rounds`` is the smaller of the numbers of messages in both directions: how often one waited for the other.
    """

    one: str
    other: str
    there: Tally
    back: Tally

    @property
    def rounds(self) -> int:
        """How often a message went there and one came back."""
        return min(self.there.messages, self.back.messages)


def by_pair(ledger: Ledger, parties: Iterable[str]) -> list[Pair]:
    """Return each two parties' exchange, most bytes first; those that exchanged nothing are left out."""
    pairs = [
        Pair(one=one, other=other, there=total(ledger, one, other), back=total(ledger, other, one))
        for one, other in combinations(parties, 2)
    ]
    some = [pair for pair in pairs if pair.there.messages or pair.back.messages]
    return sorted(some, key=lambda pair: -(pair.there.bytes_sent + pair.back.bytes_sent))


def total(ledger: Ledger, sender: str | None = None, receiver: str | None = None, tag: str | None = None) -> Tally:
    """Return the sum of all flows that fit; ``None`` fits all."""
    fitting = [
        tally
        for flow, tally in ledger.flows.items()
        if sender in {None, flow.sender} and receiver in {None, flow.receiver} and tag in {None, flow.tag}
    ]
    return Tally(sum(tally.messages for tally in fitting), sum(tally.bytes_sent for tally in fitting))


def by_tag(ledger: Ledger) -> dict[str, Tally]:
    """Return each kind of message's sum, most bytes first."""
    tags = {flow.tag: total(ledger, tag=flow.tag) for flow in sorted(ledger.flows)}
    return dict(sorted(tags.items(), key=lambda each: -each[1].bytes_sent))


def declared(of_method: Iterable[Declared]) -> dict[str, list[Declared]]:
    """Return all messages that a run may send, by tag.

    Args:
        of_method: the messages that its method declares.

    A tag has several declarations if, for example, its message goes both ways.
    """
    around = [*agree.MESSAGES, *parts.MESSAGES, *SCHEDULES]
    with suppress(ImportError):  # private alignment is an extra
        from anyparty.align import private  # noqa: PLC0415
        from anyparty.run import kept_alignment  # noqa: PLC0415

        around += [*private.MESSAGES, *kept_alignment.MESSAGES]
    known: dict[str, list[Declared]] = {}
    for message in (*around, *of_method):
        if message not in known.setdefault(message.tag, []):
            known[message.tag].append(message)
    return known


def shown(size: float) -> str:
    """Return a number of bytes for people, in powers of a thousand.

    >>> shown(0), shown(999), shown(1_234_567)
    ('0 bytes', '999 bytes', '1.2 MB')
    """
    unit = 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:,.0f} {UNITS[unit]}" if unit == 0 or size >= 99.95 else f"{size:.1f} {UNITS[unit]}"


def render(run: Run) -> RenderableType:
    """Return a run's ledger for the terminal: by message and by pair of parties; of a run not done, how it stands."""
    said = [] if run.status == "done" else [Text(f"{run.name}: {run.outcome}", style="red" * (run.status == "failed"))]
    crossed = _tables(run) if run.ledger.flows else [Text(f"The records of {run.name} hold no message that crossed.")]
    return Group(*said, *crossed, *(Text(f"Not told: {what}.") for what in run.lacks))


def _tables(run: Run) -> list[Table]:
    flows = Table("from", "to", "message", title=Text(f"What crossed in {run.name}"), title_justify="left")
    for heading in ("messages", "bytes"):
        flows.add_column(heading, justify="right")
    for flow, tally in sorted(run.ledger.flows.items()):
        flows.add_row(Text(flow.sender), Text(flow.receiver), flow.tag, f"{tally.messages:,}", f"{tally.bytes_sent:,}")
    whole = total(run.ledger)
    flows.add_section()
    flows.add_row("all", "", "", f"{whole.messages:,}", f"{whole.bytes_sent:,}")
    pairs = Table("between", title="By pair of parties", title_justify="left")
    for heading in ("rounds", "messages", "bytes"):
        pairs.add_column(heading, justify="right")
    for pair in by_pair(run.ledger, run.parties):
        messages, size = pair.there.messages + pair.back.messages, pair.there.bytes_sent + pair.back.bytes_sent
        pairs.add_row(Text(f"{pair.one} and {pair.other}"), f"{pair.rounds:,}", f"{messages:,}", f"{size:,}")
    return [flows, pairs]


def undeclared(ledger: Ledger, known: Mapping[str, Sequence[Declared]]) -> list[str]:
    """Return the messages that crossed and that nothing here declares: of a method of the user's own."""
    return sorted({flow.tag for flow in ledger.flows} - known.keys())
