"""What a method's own messages cost: by pair of parties and tag as sent, and by the formulas of the paper that counts.

Irureta et al. (APC-VFL), appendix E.  Rounds are counted as there: each way on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from anyparty.report.records import Run
from anyparty.report.section import Grid
from anyparty.schedules.schedule import MESSAGES as SCHEDULES
from anyparty.wire.ledger import Exchange

SENT = ("between", "and", "message", "rounds", "messages", "bytes")
BESIDE = ("with", "by", "rounds by it", "rounds sent", "bytes by it", "bytes sent")


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a formula says of one passive party, or of all (``party`` is empty), and what was sent."""

    party: str
    equation: str
    rounds: int
    bytes_sent: int
    sent: Sequence[Exchange]

    @property
    def cells(self) -> list[str]:
        """The row of a table: see ``BESIDE``."""
        rounds, size = sum(each.rounds for each in self.sent), sum(each.bytes_sent for each in self.sent)
        return [self.party or "all", self.equation, f"{self.rounds:,}", f"{rounds:,}", f"{self.bytes_sent:,}",
                f"{size:,}"]  # fmt: skip


def exchanged(run: Run) -> list[Exchange]:
    """Return the method's own messages, without those around them; all of them where no record says which these are."""
    own = {message.tag for message in run.declared} - {message.tag for message in SCHEDULES}
    if not own:
        return run.ledger.exchanges()
    return [each for each in run.ledger.exchanges() if each.tag in own]


def beside(run: Run) -> list[Beside]:
    """Return formulas beside what was sent: for each passive party, and for all.

    Where other parties help two to compute (a server, a key generator), a pair sends less than the formula has: the
    last row has it all.
    """
    sent, active = exchanged(run), run.active
    found = [
        Beside(party=each["party"], equation=each["equation"], rounds=each["rounds"], bytes_sent=each["bytes_sent"],
               sent=[one for one in sent if {one.one, one.other} == {active, each["party"]}])
        for each in run.published
    ]  # fmt: skip
    if not found:
        return []
    whole = Beside(party="", equation=found[0].equation, rounds=sum(each.rounds for each in found),
                   bytes_sent=sum(each.bytes_sent for each in found), sent=sent)  # fmt: skip
    return [*found, whole]


def _rows(run: Run) -> list[list[str]]:
    return [
        [each.one, each.other, each.tag, f"{each.rounds:,}", f"{each.messages:,}", f"{each.bytes_sent:,}"]
        for each in exchanged(run)
    ]


def grids(run: Run) -> list[Grid]:
    """Return both tables for the page; a formula's only where one covers the method."""
    caption = "The method's own messages as they were sent. Rounds count each way on its own."
    made = [Grid(heads=list(SENT), rows=_rows(run), words=frozenset({0, 1, 2}), caption=caption)]
    rows = [each.cells for each in beside(run)]
    said = "By the formulas of Irureta et al. (APC-VFL), appendix E, for a run like this; and what was sent."
    return made + ([Grid(heads=list(BESIDE), rows=rows, words=frozenset({0, 1}), caption=said)] if rows else [])


def tables(run: Run) -> list[Table]:
    """Return both tables for the terminal, without one that has no rows."""
    made = [
        (SENT, 3, f"{run.method}'s own messages", _rows(run)),
        (BESIDE, 2, "By the formulas of Irureta et al., appendix E", [each.cells for each in beside(run)]),
    ]
    return [_table(heads, words, title, rows) for heads, words, title, rows in made if rows]


def _table(heads: Sequence[str], words: int, title: str, rows: Sequence[Sequence[str]]) -> Table:
    made = Table(title=Text(title), title_justify="left")
    for place, head in enumerate(heads):
        made.add_column(head, justify="left" if place < words else "right")
    for row in rows:
        made.add_row(*map(Text, row))
    return made
