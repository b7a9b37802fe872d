"""Messages of the prediction service, in addition to the method's own messages.

active party                                every other connected party
  ◀── serve-hello: hashes ─────────────────   once, when a serving job begins
  ──── serve-ask: request number, rows ───▶   for every request
  ◀── the method's own messages ───────────   with the request number
  ──── serve-ask: END as request number ──▶   once, when the job ends
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import MessageError
from anyparty.serving.multiplexer import NUMBER_KEY

HELLO, ASK, END = "serve-hello", "serve-ask", -1
MAX_ROWS = 4096  # maximum number of rows in one message; larger requests are sent in chunks, one after the other
NO_ROW = -1  # replaces the number of a row that is outside the alignment or that the receiver does not hold
MESSAGES = (
    MessageSpec(
        tag=HELLO,
        frm="passive",
        to="active",
        holds="hashes of the sender's alignment, model settings, weights and version of anyparty",
        learns="whether the sender can serve this model",
    ),
    MessageSpec(
        tag=ASK,
        frm="active",
        to="passive",
        holds="for one request: the request number, the indices of the requested rows (-1 for a row that the receiver "
        "lacks), the parties that may take part, and the time limit; for other label holders also which party "
        "holds which of these rows",
        learns="which of its own rows are requested, when, and how many other rows are requested (not which ones); "
        "other label holders also which parties hold each row",
        when="the prediction service runs",
    ),
)


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """One request, as a party receives it.

    Attributes:
        number: the request's number, which increases with each request.
        rows: [B] int64, the positions of the B requested rows in the alignment.  ``NO_ROW`` for a row outside the
            alignment and, in the message to a party, for a row that this party does not hold.
        allowed: the parties whose blocks may take part.
        within_s: how long the active party waits, in seconds.
        observed: [B, K] bool, True if party k holds the row; only hosts of heads receive it.

    """

    number: int
    rows: Tensor
    allowed: tuple[str, ...]
    within_s: float
    observed: Tensor | None = None


async def send_request(channel: Channel, to: str, roster: Roster, request: RowRequest) -> None:
    """Send a request to the party ``to``; a label holder also receives ``observed``, because it may host heads."""
    observed = torch.empty(0, dtype=torch.uint8)
    if to in roster.labelers and request.observed is not None:
        observed = request.observed.flatten().byte()
    await channel.send(to, ASK, {
        NUMBER_KEY: torch.tensor([request.number]), "rows": _rows_of(to, request, roster), "observed": observed,
        "asked": torch.tensor([name in request.allowed for name in roster.blocks]),
        "within_s": torch.tensor([request.within_s], dtype=torch.float64),
    })  # fmt: skip


def _rows_of(party: str, request: RowRequest, roster: Roster) -> Tensor:
    """Return the request's row numbers [B], with ``NO_ROW`` for each row that the party does not hold."""
    if request.observed is None:
        return request.rows
    if party not in roster.blocks:
        return torch.full_like(request.rows, NO_ROW)
    return torch.where(request.observed[:, roster.blocks.index(party)], request.rows, NO_ROW)


async def send_end(channel: Channel, to: str, roster: Roster) -> None:
    """Notify a party that no further request follows."""
    end = RowRequest(number=END, rows=torch.empty(0, dtype=torch.int64), allowed=(), within_s=0.0)
    await send_request(channel, to, roster, end)


async def receive_request(channel: Channel, roster: Roster, n: int) -> RowRequest | None:
    """Wait for the next request; return ``None`` if no further request follows.

    Args:
        channel: the party's channel.
        roster: all parties.
        n: number of aligned rows.

    Raises:
        MessageError: the message is invalid or requests a row outside the alignment.

    """
    got = await channel.recv(
        roster.active,
        ASK,
        {
            NUMBER_KEY: TensorSpec((1,), torch.int64),
            "rows": TensorSpec((-1,), torch.int64),
            "observed": TensorSpec((-1,), torch.uint8),
            "asked": TensorSpec((roster.K,), torch.bool),
            "within_s": TensorSpec((1,), torch.float64),
        },
    )
    rows, number = got["rows"], int(got[NUMBER_KEY])
    if number == END:
        return None
    if len(rows) > MAX_ROWS or (rows < NO_ROW).any() or (rows >= n).any():
        raise MessageError(f"request {number} of {roster.active!r} asks for {len(rows)} rows; expected at most "
                           f"{MAX_ROWS}, each one of the {n} aligned ones")  # fmt: skip
    if len(got["observed"]) not in {0, len(rows) * roster.K}:
        raise MessageError(f"request {number} of {roster.active!r} has {len(got['observed'])} cells in 'observed'; "
                           f"expected {len(rows)} rows x {roster.K} parties")  # fmt: skip
    observed = got["observed"].bool().view(len(rows), roster.K) if len(got["observed"]) else None
    allowed = tuple(name for name, may in zip(roster.blocks, got["asked"].tolist(), strict=True) if may)
    return RowRequest(number=number, rows=rows, allowed=allowed, within_s=float(got["within_s"]), observed=observed)


def hello(hashes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Build the hello message, which is the first message of a party in a serving job, from the party's hashes."""
    return {"marks": torch.stack(list(hashes.values()))}


async def receive_hello(channel: Channel, frm: str, hashes: Mapping[str, Tensor]) -> Sequence[str]:
    """Wait for the hello message of the party ``frm``; return the names of its hashes that differ from ``hashes``."""
    got = await channel.recv(frm, HELLO, {"marks": TensorSpec((len(hashes), 32), torch.uint8)})
    differs = (got["marks"] != torch.stack(list(hashes.values()))).any(dim=1).tolist()
    return [name for name, other in zip(hashes, differs, strict=True) if other]
