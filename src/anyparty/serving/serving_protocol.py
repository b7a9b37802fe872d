"""What the parties say to each other for the prediction service, beside their method's own messages.

active                                      every party that is there
  ◀── serve-hello: hashes ─────────────────   once, when its part begins
  ──── serve-ask: a number, rows ─────────▶   for every request
  ◀── the method's own messages ───────────   with that number
  ──── serve-ask: the number END ─────────▶   once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.errors import MessageError
from anyparty.serving.multiplexer import NUMBER
from anyparty.terms import Channel, Declared, Expect, Roster

HELLO, ASK, END = "serve-hello", "serve-ask", -1
MOST_ROWS = 4096  # of one request: more are asked for one after the other
NOWHERE = -1  # in place of a row's number: a row that the party which is asked does not have
MESSAGES = (
    Declared(tag=HELLO, frm="passive", to="active",
             holds="hashes of the alignment, the model's settings, the version and the weights that the party serves "
                   "with",
             learns="whether it can serve with these"),
    Declared(tag=ASK, frm="active", to="passive",
             holds="for one request: its number, the places of those of its rows that the receiver has (-1 for each "
                   "other row), the parties that may take part, the time there is; to other label holders also who has "
                   "which of these rows",
             learns="which of its own rows are asked for, when, and with how many that it does not have, though not "
                    "which; label holders also which parties have each of them all",
             when="the prediction service runs"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, as it reaches a party.

    Attributes:
        number: of the request, rising.
        rows: [B] int64, places among the N aligned rows; ``NOWHERE`` for a row that is none of them, and, as it reaches
            a party, for one that this party does not have.
        asked: the parties whose blocks may take part.
        within_s: the seconds that the active party waits.
        observed: [B, K] bool, who has which row; at hosts alone.

    """

    number: int
    rows: Tensor
    asked: tuple[str, ...]
    within_s: float
    observed: Tensor | None = None


async def send(net: Channel, to: str, roster: Roster, ask: Ask) -> None:
    """Ask a party for the rows that it has; those that hold labels may host heads, and are told who has the rows."""
    observed = torch.empty(0, dtype=torch.uint8)
    if to in roster.labelers and ask.observed is not None:
        observed = ask.observed.flatten().byte()
    await net.send(to, ASK, {
        NUMBER: torch.tensor([ask.number]), "rows": _own(ask, to, roster), "observed": observed,
        "asked": torch.tensor([name in ask.asked for name in roster.blocks]),
        "within_s": torch.tensor([ask.within_s], dtype=torch.float64),
    })  # fmt: skip


def _own(ask: Ask, party: str, roster: Roster) -> Tensor:
    """Return the places [B] of the rows that a party has a block of, ``NOWHERE`` for the others."""
    if ask.observed is None:
        return ask.rows
    if party not in roster.blocks:
        return torch.full_like(ask.rows, NOWHERE)
    return torch.where(ask.observed[:, roster.blocks.index(party)], ask.rows, NOWHERE)


async def end(net: Channel, to: str, roster: Roster) -> None:
    """Tell a party that nothing more will be asked."""
    await send(net, to, roster, Ask(number=END, rows=torch.empty(0, dtype=torch.int64), asked=(), within_s=0.0))


async def receive(net: Channel, roster: Roster, n: int) -> Ask | None:
    """Wait for the next request; ``None`` at the end.

    Raises:
        MessageError: it is not one, or asks for a row that is none of the N aligned ones.
    """
    got = await net.recv(roster.active, ASK, {
        NUMBER: Expect((1,), torch.int64), "rows": Expect((-1,), torch.int64), "observed": Expect((-1,), torch.uint8),
        "asked": Expect((roster.K,), torch.bool), "within_s": Expect((1,), torch.float64),
    })  # fmt: skip
    rows, number = got["rows"], int(got[NUMBER])
    if number == END:
        return None
    if len(rows) > MOST_ROWS or (rows < NOWHERE).any() or (rows >= n).any():
        raise MessageError(f"request {number} of {roster.active!r} asks for {len(rows)} rows; expected at most "
                           f"{MOST_ROWS}, each one of the {n} aligned ones")  # fmt: skip
    if len(got["observed"]) not in {0, len(rows) * roster.K}:
        raise MessageError(f"request {number} of {roster.active!r} says who has {len(got['observed'])} cells; expected "
                           f"{len(rows)} rows x {roster.K} parties")  # fmt: skip
    observed = got["observed"].bool().view(len(rows), roster.K) if len(got["observed"]) else None
    asked = tuple(name for name, may in zip(roster.blocks, got["asked"].tolist(), strict=True) if may)
    return Ask(number=number, rows=rows, asked=asked, within_s=float(got["within_s"]), observed=observed)


def hello(marks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the message with which a party begins."""
    return {"marks": torch.stack(list(marks.values()))}


async def differs(net: Channel, frm: str, marks: Mapping[str, Tensor]) -> Sequence[str]:
    """Wait for a party's hello; return what it serves with that is not as it should be."""
    got = await net.recv(frm, HELLO, {"marks": Expect((len(marks), 32), torch.uint8)})
    unlike = (got["marks"] != torch.stack(list(marks.values()))).any(dim=1).tolist()
    return [name for name, other in zip(marks, unlike, strict=True) if other]
