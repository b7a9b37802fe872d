"""Agree on the entries of each party's list of ids that need tokens in a private alignment.

Without stored states, all ids need tokens. If the parties have states of an earlier alignment with the same secrets
(``continued``), a list's entries need tokens only after the last one whose token the active party has. These entries
are the rest of the list after an interruption, and the new ids in a later alignment.

The stored states are used only if every party has a state of the same series, and if no list is shorter than the number
of its tokens that the active party has stored. A list can be shorter after a party has restored a backup. If the states
are not used, all parties draw new secrets.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty.alignment.alignment_state import AlignmentState, TokenLists
from anyparty.alignment.x25519 import SIZE, Secret
from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import MessageError

MESSAGES = (
    MessageSpec(
        tag="align-state",
        frm="any",
        to="any",
        holds="the random number of the series of alignments that the sender can continue, a fresh random number, and "
        "how many entries its list has, with and without new ids; from the active party also how many tokens of each "
        "list it has. Sent only if parties keep states on disk",
        learns="how many ids each party has added and removed since the last alignment of the series",
    ),
    MessageSpec(
        tag="align-left-out",
        frm="passive",
        to="active",
        holds="the positions, in the sender's stored list, of ids that the sender's table no longer has. Sent only if "
        "there are such ids",
        learns="which rows the sender no longer has, which the new alignment shows, too",
    ),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ListPlan:
    """The entries of all lists that need tokens, as one party knows them.

    Attributes:
        secret: the party's secret scalars.
        rows: [L] for each entry of the party's list, the row of its id in the party's table; -1 if the id is no longer
            there.
        lengths: the number of entries of each party's list.
        start: the number of entries of each list that have tokens.
        continued: True if an earlier alignment used the same secrets.
        tokens: the tokens so far; ``None`` at passive parties.
        left_out: by party, the indices of list entries whose ids are no longer in that party's table. The active party
            knows them for all parties, a passive party only for itself.
    """

    secret: Secret
    rows: NDArray[np.int64]
    lengths: dict[str, int]
    start: dict[str, int]
    continued: bool = False
    tokens: TokenLists | None = None
    left_out: Mapping[str, NDArray[np.int64]]

    def todo(self) -> dict[str, int]:
        """Return the number of entries of each list that need tokens."""
        return {name: length - self.start[name] for name, length in self.lengths.items()}

    def kept_tokens(self) -> NDArray[np.uint8]:
        """Return the tokens [sum of sizes, 32] of all entries whose ids their parties still have, party by party."""
        assert self.tokens is not None
        mask, begin = np.ones(len(self.tokens.points), dtype=np.bool_), 0
        for name, length in self.lengths.items():
            mask[begin + self.left_out[name]] = False
            begin += length
        return self.tokens.points if mask.all() else self.tokens.points[mask]


async def plan_alone(net: Channel, roster: Roster, sizes: Mapping[str, int], root: bytes | None) -> ListPlan:
    """Return the plan of an alignment without stored states, in which all ids of all parties need tokens."""
    secret = Secret.of(root)
    return ListPlan(
        secret=secret,
        rows=await asyncio.to_thread(secret.order, sizes[net.me]),
        lengths=dict(sizes),
        start=dict.fromkeys(sizes, 0),
        tokens=TokenLists(sizes) if net.me == roster.active else None,
        left_out=dict.fromkeys(sizes, np.empty(0, np.int64)),
    )


async def plan_with_state(
    net: Channel, roster: Roster, ids: pl.Series, sizes: Mapping[str, int], state: AlignmentState, root: bytes | None
) -> ListPlan:
    """Return the plan of an alignment with a state on each party's disk, and store hashes of this party's new ids.

    Args:
        net: the party's channel to the other parties.
        roster: the parties.
        ids: the party's ids.
        sizes: the number of ids of each party.
        state: the party's state.
        root: the root from which new secrets are derived; ``None`` draws it at random.

    Raises:
        MessageError: a party reports impossible numbers.
        StorageError: the state cannot be written.
    """
    rows = await asyncio.to_thread(state.matched, ids)
    fresh = np.ones(len(ids), dtype=np.bool_)
    fresh[rows[rows >= 0]] = False
    reports = await _exchange(net, roster, state, len(rows), int(fresh.sum()))
    for name, report in reports.items():
        report.check(name, sizes[name])
    done = dict(zip(sizes, reports[roster.active].done, strict=True))
    alike = state.series != bytes(SIZE) and len({each.series for each in reports.values()}) == 1
    continued = alike and all(0 <= done[name] <= each.stored for name, each in reports.items())
    if continued:
        secret = Secret.of(state.root, secrets.token_bytes(SIZE))
    else:
        secret = Secret.of(root)
        series = hashlib.sha256(b"".join(reports[name].nonce for name in sizes)).digest()
        await asyncio.to_thread(state.begin, series, secret.root)
        rows, fresh = np.empty(0, np.int64), np.ones(len(ids), dtype=np.bool_)
    added = np.flatnonzero(fresh)[await asyncio.to_thread(secret.order, int(fresh.sum()))]
    await asyncio.to_thread(state.extend, ids.gather(added))
    rows = np.concatenate([rows, added])
    await asyncio.to_thread(state.remember, ids, rows)
    lengths = {name: each.extended for name, each in reports.items()} if continued else dict(sizes)
    leads = net.me == roster.active
    return ListPlan(
        secret=secret,
        rows=rows,
        lengths=lengths,
        start=done if continued else dict.fromkeys(sizes, 0),
        continued=continued,
        tokens=await asyncio.to_thread(TokenLists, lengths, state) if leads else None,
        left_out=await _left_out(net, roster, sizes, lengths, np.flatnonzero(rows < 0)),
    )


@dataclass(frozen=True)
class _Report:
    """The content of the message ``align-state`` of one party."""

    series: bytes
    nonce: bytes
    stored: int
    extended: int
    done: tuple[int, ...]

    def check(self, name: str, size: int) -> None:
        if not (0 <= self.stored <= self.extended and size <= self.extended):
            raise MessageError(f"party {name!r} reports a list of {self.stored} entries, or {self.extended} with its "
                               f"new ids, for {size} ids")  # fmt: skip


async def _exchange(net: Channel, roster: Roster, state: AlignmentState, stored: int, new: int) -> dict[str, _Report]:
    """Send a report of this party's state to all other parties; return all parties' reports in the roster's order."""
    done = [state.token_count(place) if net.me == roster.active else 0 for place in range(len(roster.names))]
    own = _Report(state.series, secrets.token_bytes(SIZE), stored, stored + new, tuple(done))
    others = [name for name in roster.names if name != net.me]
    for name in others:
        await net.send(name, "align-state", {
            "series": _bytes(own.series), "nonce": _bytes(own.nonce), "done": torch.tensor(done),
            "entries": torch.tensor([own.stored, own.extended]),
        })  # fmt: skip
    expect = {
        "series": TensorSpec((SIZE,), torch.uint8),
        "nonce": TensorSpec((SIZE,), torch.uint8),
        "done": TensorSpec((len(roster.names),), torch.int64),
        "entries": TensorSpec((2,), torch.int64),
    }
    reports = dict.fromkeys(roster.names, own)
    for name in others:
        got = await net.recv(name, "align-state", expect)
        series, nonce = (got[each].numpy().tobytes() for each in ("series", "nonce"))
        stored, extended = got["entries"].tolist()
        reports[name] = _Report(series, nonce, stored, extended, tuple(got["done"].tolist()))
    return reports


async def _left_out(
    net: Channel, roster: Roster, sizes: Mapping[str, int], lengths: Mapping[str, int], own: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Report to the active party the indices ``own`` of list entries whose ids are no longer in this party's table.

    Returns:
        The indices by party: of all parties if this is the active party, otherwise only of this party.
    """
    places = {net.me: own}
    if net.me != roster.active:
        if len(own):
            await net.send(roster.active, "align-left-out", {"places": torch.from_numpy(own)})
        return places
    for name, size in sizes.items():
        count = lengths[name] - size
        if name != net.me:
            got = np.empty(0, np.int64)
            if count:
                expect = {"places": TensorSpec((count,), torch.int64)}
                got = (await net.recv(name, "align-left-out", expect))["places"].numpy()
            if len(np.unique(got)) < count or (count and not 0 <= got.min() <= got.max() < lengths[name]):
                raise MessageError(f"party {name!r} reports impossible places of ids that it left out")
            places[name] = got
    return places


def _bytes(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
