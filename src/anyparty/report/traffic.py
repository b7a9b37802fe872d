"""The messages between parties: totals from a run's ledger, declarations, and costs by published formulas.

The formulas are those of Irureta et al. (APC-VFL), appendix E.  In the formulas, each direction counts as a round:
an embedding and its gradient are two rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anyparty.core.types import MessageSpec
from anyparty.methods.schedules.schedule import MESSAGES as SCHEDULES
from anyparty.report.elements import PageTable
from anyparty.report.recorded_runs import RecordedRun
from anyparty.training import control_messages
from anyparty.transport.ledger import Exchange, Ledger, Tally

# Totals from a ledger


@dataclass(frozen=True, kw_only=True)
class PairTraffic:
    """The messages between two parties.

    Attributes:
        one, other: the two parties.
        there: the messages from ``one`` to ``other``.
        back: the messages from ``other`` to ``one``.
    """

    one: str
    other: str
    there: Tally
    back: Tally

    @property
    def rounds(self) -> int:
        """The number of rounds; a round is one message in each direction."""
        return min(self.there.messages, self.back.messages)


def traffic_by_pair(ledger: Ledger, parties: Iterable[str]) -> list[PairTraffic]:
    """Sum the messages of each pair of parties; return the pairs that sent messages, most bytes first."""
    pairs = [
        PairTraffic(
            one=one, other=other, there=total_traffic(ledger, one, other), back=total_traffic(ledger, other, one)
        )
        for one, other in combinations(parties, 2)
    ]
    active = [pair for pair in pairs if pair.there.messages or pair.back.messages]
    return sorted(active, key=lambda pair: -(pair.there.bytes_sent + pair.back.bytes_sent))


def total_traffic(
    ledger: Ledger, sender: str | None = None, receiver: str | None = None, tag: str | None = None
) -> Tally:
    """Return the sum of the messages with this sender, receiver and tag; an argument of ``None`` matches all values."""
    matching = [
        tally
        for flow, tally in ledger.flows.items()
        if sender in {None, flow.sender} and receiver in {None, flow.receiver} and tag in {None, flow.tag}
    ]
    return Tally(sum(tally.messages for tally in matching), sum(tally.bytes_sent for tally in matching))


def traffic_by_tag(ledger: Ledger) -> dict[str, Tally]:
    """Return the sum of the messages of each tag, by tag, most bytes first."""
    tags = {flow.tag: total_traffic(ledger, tag=flow.tag) for flow in sorted(ledger.flows)}
    return dict(sorted(tags.items(), key=lambda each: -each[1].bytes_sent))


# Declarations of messages


def declared_messages(of_method: Iterable[MessageSpec]) -> dict[str, list[MessageSpec]]:
    """Return the declarations of all messages that a run may send, by tag.

    Args:
        of_method: the declarations of the run's method.

    A tag has several declarations if, for example, its message is sent in both directions.
    """
    around = [*control_messages.MESSAGES, *control_messages.PART_MESSAGES, *SCHEDULES]
    with suppress(ImportError):  # the packages for private alignment may not be installed
        from anyparty.alignment import private  # noqa: PLC0415
        from anyparty.deployment.site import alignment_cache  # noqa: PLC0415

        around += [*private.MESSAGES, *alignment_cache.MESSAGES]
    known: dict[str, list[MessageSpec]] = {}
    for message in (*around, *of_method):
        if message not in known.setdefault(message.tag, []):
            known[message.tag].append(message)
    return known


def undeclared_tags(ledger: Ledger, known: Mapping[str, Sequence[MessageSpec]]) -> list[str]:
    """Return the tags in a ledger that have no declaration; a user-defined method may send undeclared messages."""
    return sorted({flow.tag for flow in ledger.flows} - known.keys())


# Costs by published formulas

EXCHANGE_HEADERS = ("between", "and", "message", "rounds", "messages", "bytes")
FORMULA_HEADERS = ("with", "formula", "rounds by formula", "rounds sent", "bytes by formula", "bytes sent")


@dataclass(frozen=True, kw_only=True)
class FormulaComparison:
    """A passive party's rounds and bytes as a formula predicts them, beside the rounds and bytes that were sent.

    ``party`` is "" for all parties together.
    """

    party: str
    equation: str
    rounds: int
    bytes_sent: int
    sent: Sequence[Exchange]

    @property
    def cells(self) -> list[str]:
        """The table row of this comparison, as text, in the order of ``FORMULA_HEADERS``."""
        rounds, size = sum(each.rounds for each in self.sent), sum(each.bytes_sent for each in self.sent)
        return [self.party or "all", self.equation, f"{self.rounds:,}", f"{rounds:,}", f"{self.bytes_sent:,}",
                f"{size:,}"]  # fmt: skip


def method_exchanges(run: RecordedRun) -> list[Exchange]:
    """Return the message counts of the tags that the run's method declares; without declarations, of all tags."""
    own = {message.tag for message in run.declared} - {message.tag for message in SCHEDULES}
    if not own:
        return run.ledger.exchanges()
    return [each for each in run.ledger.exchanges() if each.tag in own]


def compare_with_formulas(run: RecordedRun) -> list[FormulaComparison]:
    """Return a comparison of the formulas with the sent messages, for each passive party and for all parties together.

    If other parties, such as a server or a key generator, help a pair to compute, the pair sends less than its formula
    gives.  The last item, for all parties, includes the messages of these helpers.
    """
    sent, active = method_exchanges(run), run.active
    found = [
        FormulaComparison(
            party=each["party"], equation=each["equation"], rounds=each["rounds"], bytes_sent=each["bytes_sent"],
            sent=[one for one in sent if {one.one, one.other} == {active, each["party"]}],
        )
        for each in run.published
    ]  # fmt: skip
    if not found:
        return []
    whole = FormulaComparison(
        party="", equation=found[0].equation, rounds=sum(each.rounds for each in found),
        bytes_sent=sum(each.bytes_sent for each in found), sent=sent,
    )  # fmt: skip
    return [*found, whole]


def cost_tables(run: RecordedRun) -> list[PageTable]:
    """Return the page's table of the method's messages and, if a formula covers the method, the table of its costs."""
    exchanges = [[each.one, each.other, each.tag, f"{each.rounds:,}", f"{each.messages:,}", f"{each.bytes_sent:,}"]
                 for each in method_exchanges(run)]  # fmt: skip
    tables = [
        PageTable(headers=EXCHANGE_HEADERS, rows=exchanges, text_columns=frozenset({0, 1, 2}),
                  caption="The method's own messages. Rounds count each direction."),
    ]  # fmt: skip
    if rows := [each.cells for each in compare_with_formulas(run)]:
        caption = "Costs by the formulas of Irureta et al. (APC-VFL), appendix E, beside the messages sent."
        tables.append(PageTable(headers=FORMULA_HEADERS, rows=rows, text_columns=frozenset({0, 1}), caption=caption))
    return tables


# Tables for the terminal


def render_ledger(run: RecordedRun) -> RenderableType:
    """Return tables of a run's messages by sender, receiver and tag, and by pair of parties.

    The run's status comes before the tables, unless the run is done.  Values that the records lack are listed last.
    """
    state = [] if run.status == "done" else [Text(f"{run.name}: {run.outcome}", style="red" * (run.status == "failed"))]
    messages = _ledger_tables(run) if run.ledger.flows else [Text(f"The records of {run.name} hold no message.")]
    return Group(*state, *messages, *(Text(f"Not recorded: {each}.") for each in run.missing))


def flows_table(ledger: Ledger) -> PageTable:
    """Return the table of messages by sender, receiver and tag."""
    rows = [[flow.sender, flow.receiver, flow.tag, f"{tally.messages:,}", f"{tally.bytes_sent:,}"]
            for flow, tally in sorted(ledger.flows.items())]  # fmt: skip
    return PageTable(headers=["from", "to", "message", "messages", "bytes"], rows=rows,
                     text_columns=frozenset({0, 1, 2}), caption="All messages.")  # fmt: skip


def _ledger_tables(run: RecordedRun) -> list[Table]:
    flows, whole = flows_table(run.ledger).to_terminal(f"Messages sent in {run.name}"), total_traffic(run.ledger)
    flows.add_section()
    flows.add_row("all", "", "", f"{whole.messages:,}", f"{whole.bytes_sent:,}")
    pairs = []
    for pair in traffic_by_pair(run.ledger, run.parties):
        messages, size = pair.there.messages + pair.back.messages, pair.there.bytes_sent + pair.back.bytes_sent
        pairs.append([f"{pair.one} and {pair.other}", f"{pair.rounds:,}", f"{messages:,}", f"{size:,}"])
    table = PageTable(headers=["between", "rounds", "messages", "bytes"], rows=pairs)
    return [flows, table.to_terminal("By pair of parties")]
