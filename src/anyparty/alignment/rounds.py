"""Pass each party's list of points from party to party, and find the common rows: steps 2 to 4 in ``private.py``.

In step t of a batch, the party at place i of the roster works on the list of the party at place i - t. All parties
therefore work at the same time. A party waits only for results of an earlier step, so that the parties cannot deadlock.
A party blinds one batch of one list at a time, on all cores and outside the event loop. At most two batches of each
list are in transit. At the active party, ``TokenUnion`` assigns the tokens of all lists to rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.alignment.x25519 import SIZE, Secret, SmallOrder, blind, hashed, sorting
from anyparty.core.types import Channel, Roster, TensorSpec
from anyparty.errors import MessageError

CHUNK = 1024  # the number of points that a thread blinds in one task, which takes 30 ms

BlindingProgress = Callable[[int, int], None]
"""A callback whose arguments are the number of points that this party has blinded until now, and the total number."""


def stops(roster: Roster, owner: str) -> tuple[str, ...]:
    """Return the route of a party's list: from the owner through all other parties except the active one, and back.

    >>> from anyparty.core.types import Party
    >>> four = Roster(tuple(Party(name=name) for name in "abcd"), active="b")
    >>> stops(four, "a"), stops(four, "b")
    (('a', 'c', 'd', 'a'), ('b', 'c', 'd', 'a', 'b'))
    """
    at = roster.names.index(owner)
    others = roster.names[at + 1 :] + roster.names[:at]
    return (owner, *(name for name in others if name != roster.active), owner)


@dataclass
class Rounds:
    """One party's part in converting all parties' ids to tokens.

    Each party hashes its ids to points on an elliptic curve. It blinds the points, which means that it multiplies them
    by a secret scalar, and sends them from party to party. Every other party blinds them, too. A point that all parties
    have blinded is a token. Equal ids have equal tokens.

    Attributes:
        net: the party's channel to the other parties.
        roster: the parties.
        secret: the party's secret scalars.
        ids: the party's own ids, in the secret order.
        salt: the salt of the hash.
        sizes: for each party, the number of ids that need tokens.
        batch: the number of ids in a message.
        pool: worker threads.
        progress: a callback, called each time this party has blinded a batch.
        before: for each party, the number of ids whose tokens an earlier alignment has computed and stored.
        done: the number of points that this party has blinded, in this and in earlier alignments.
    """

    net: Channel
    roster: Roster
    secret: Secret
    ids: pl.Series
    salt: str
    sizes: Mapping[str, int]
    batch: int
    pool: Executor
    progress: BlindingProgress | None = None
    before: Mapping[str, int] = field(default_factory=dict)
    done: int = 0

    async def play(self, keep: Callable[[str, bytes], None]) -> None:
        """Pass all lists from party to party until every id has a token.

        The active party calls ``keep`` in a thread, with a party's name and a batch of this party's tokens.
        """
        active, me = self.roster.active, self.net.me
        self.done = self._work(self.before)
        await self._depart(0)
        for b in range(self._batches()):
            if me == active:
                await self._depart(b + 1)  # the other parties continue while this party computes tokens
                await asyncio.to_thread(keep, me, await self._receive_own(b))
                for name in self._others():
                    tokens = await self._take(name, "align-tokens", self._count(name, b), self.secret.scalar)
                    await asyncio.to_thread(keep, name, tokens)
            else:
                await self._pass_on(b)
                await self._send(active, "align-tokens", await self._receive_own(b))
                await self._depart(b + 1)

    async def _depart(self, b: int) -> None:
        """Blind batch ``b`` of this party's list with the one-time scalar, and send it to the next party."""
        first = self._stops(self.net.me)[1]
        if first != self.net.me:
            await self._send(first, "align-ids", await self._own(b, self.secret.once))

    async def _pass_on(self, b: int) -> None:
        """Receive batch ``b`` of each other party's list, blind it, and send it to the next party."""
        for owner in self._others():
            route = self._stops(owner)
            at = route.index(self.net.me)
            points = await self._take(route[at - 1], "align-ids", self._count(owner, b), self.secret.scalar)
            await self._send(route[at + 1], "align-ids", points)

    async def _receive_own(self, b: int) -> bytes:
        """Receive back batch ``b`` of this party's list, and replace the one-time scalar by the secret scalar."""
        last = self._stops(self.net.me)[-2]
        if last == self.net.me:  # no other party is on the route
            return await self._own(b, self.secret.scalar)
        return await self._take(last, "align-ids", self._count(self.net.me, b), self.secret.rest)

    async def _own(self, b: int, scalar: bytes) -> bytes:
        """Hash batch ``b`` of this party's own ids to points, and blind the points with ``scalar``."""
        ids = self.ids.slice(b * self.batch, self.batch).to_list()
        chunks = [ids[at : at + CHUNK] for at in range(0, len(ids), CHUNK)]

        def work(chunk: list[str]) -> bytes:
            return blind(scalar, hashed(chunk, self.salt))

        return await self._on_all_cores([partial(work, chunk) for chunk in chunks])

    async def _take(self, frm: str, tag: str, count: int, scalar: bytes) -> bytes:
        """Receive ``count`` points from party ``frm``, and blind them with ``scalar``."""
        if count == 0:
            return b""
        points = (await self.net.recv(frm, tag, {"points": TensorSpec((count, SIZE), torch.uint8)}))["points"]
        raw, step = points.numpy().tobytes(), CHUNK * SIZE
        try:
            return await self._on_all_cores(
                [partial(blind, scalar, raw[at : at + step]) for at in range(0, len(raw), step)]
            )
        except SmallOrder as error:
            raise MessageError(
                f"message {tag!r} from {frm!r} to {self.net.me!r}: a point has small order, which is impossible for "
                f"an id; {frm!r} or a party before it sent a wrong point"
            ) from error

    async def _send(self, to: str, tag: str, points: bytes) -> None:
        if points:
            await self.net.send(to, tag, {"points": _tensor(points)})

    async def _on_all_cores(self, work: Sequence[Callable[[], bytes]]) -> bytes:
        loop = asyncio.get_running_loop()
        made = b"".join(await asyncio.gather(*(loop.run_in_executor(self.pool, each) for each in work)))
        self.done += len(made) // SIZE
        if self.progress is not None:
            self.progress(self.done, self._work(self.sizes) + self._work(self.before))
        return made

    def _work(self, sizes: Mapping[str, int]) -> int:
        """Return the number of points that this party must blind for lists of the given sizes."""
        return sum(sizes.values()) + (sizes.get(self.net.me, 0) if len(self._stops(self.net.me)) > 2 else 0)

    def _others(self) -> list[str]:
        """Return the names of the other parties, in the order in which this party receives their lists."""
        at = self.roster.names.index(self.net.me)
        return [*reversed(self.roster.names[:at]), *reversed(self.roster.names[at + 1 :])]

    def _stops(self, owner: str) -> tuple[str, ...]:
        return stops(self.roster, owner)

    def _batches(self) -> int:
        return -(-max(self.sizes.values()) // self.batch)

    def _count(self, owner: str, b: int) -> int:
        return max(0, min(self.batch, self.sizes[owner] - b * self.batch))


def _tensor(points: bytes) -> Tensor:
    return torch.frombuffer(bytearray(points), dtype=torch.uint8).view(-1, SIZE)


FEW = 0.01
WORDS = SIZE // 8


@dataclass(frozen=True, eq=False)
class TokenUnion:
    """The union of all parties' tokens.

    Attributes:
        n: N, the number of different tokens, which are the rows.
        rows: for each party, [n_k]: the row index of each token in the party's list, in the list's order.
        head: [N] uint64, the first 8 bytes of the row's token as a big-endian number.
        key: [N] int64, made from bytes 8 to 15 of the row's token; identifies the row.
    """

    n: int
    rows: dict[str, NDArray[np.int64]]
    head: NDArray[np.uint64]
    key: NDArray[np.int64]

    @classmethod
    def of(cls, sizes: Mapping[str, int], tokens: NDArray[np.uint8]) -> TokenUnion:
        """Create the union of all tokens, sorted by their bytes: row n has the n-th different token.

        Args:
            sizes: the number of tokens of each party.
            tokens: [sum of sizes, 32]: the tokens of all parties, in the order of ``sizes``.

        Raises:
            MessageError: a list contains the same token twice.
        """
        words = tokens.view("<u8")  # [tokens, 4]
        order = _sorting(words)
        ranked = words[order]
        first = np.ones(len(ranked), dtype=np.bool_)
        first[1:] = _differ(ranked)
        row = np.empty(len(ranked), dtype=np.int64)
        row[order] = np.cumsum(first) - 1
        rows = dict(zip(sizes, np.split(row, np.cumsum(list(sizes.values()))[:-1]), strict=True))
        n = int(first.sum())
        _check_once(rows, n)
        return cls(n, rows, ranked[first, 0].byteswap(), (ranked[first, 1] >> np.uint64(1)).astype(np.int64))

    def extended(self, more: TokenUnion) -> TokenUnion | None:
        """Return the union of this union's tokens, and after them ``more`` tokens of the same parties.

        The result is equal to the union that ``of`` makes from all tokens, but takes much less time if ``more`` is
        small. The rows of both unions must be sorted by their tokens. The result is ``None`` if different tokens have
        the same first 8 bytes, which happens in about one of a million unions.

        Raises:
            MessageError: the list of a party contains the same token twice.
        """
        if not (self.has_distinct_heads() and more.has_distinct_heads()):
            return None
        at = np.searchsorted(self.head, more.head)
        known = np.zeros(more.n, dtype=np.bool_)
        inside = at < self.n
        known[inside] = self.head[at[inside]] == more.head[inside]
        if (self.key[at[known]] != more.key[known]).any():
            return None
        fresh = ~known
        shift = np.cumsum(np.bincount(at[fresh], minlength=self.n + 1))[: self.n]
        old = np.arange(self.n) + shift  # the index of each row of this union among all rows
        new = at + np.cumsum(fresh) - fresh  # the index of each row of ``more`` among all rows
        rows = {name: np.concatenate([old[own], new[more.rows[name]]]) for name, own in self.rows.items()}
        n = self.n + int(fresh.sum())
        _check_once(rows, n)
        at, head, key = at[fresh], more.head[fresh], more.key[fresh]
        return TokenUnion(n, rows, np.insert(self.head, at, head), np.insert(self.key, at, key))

    def has_distinct_heads(self) -> bool:
        """Return whether the heads of the rows, which are sorted by their tokens, are all different."""
        return bool((self.head[1:] > self.head[:-1]).all())

    def without(self, left_out: Mapping[str, NDArray[np.int64]]) -> TokenUnion:
        """Return the union of all tokens except those at the indices ``left_out`` of the parties' lists."""
        if not any(map(len, left_out.values())):
            return self
        kept = {name: np.delete(own, left_out[name]) for name, own in self.rows.items()}
        used = np.zeros(self.n, dtype=np.bool_)
        for own in kept.values():
            used[own] = True
        index = np.cumsum(used) - 1
        rows = {name: index[own] for name, own in kept.items()}
        return TokenUnion(int(used.sum()), rows, self.head[used], self.key[used])

    def reordered(self, order: NDArray[np.int64]) -> TokenUnion:
        """Return the union with its rows in another order: row n becomes row ``order[n]``."""
        head, key = np.empty_like(self.head), np.empty_like(self.key)
        head[order], key[order] = self.head, self.key
        return TokenUnion(self.n, {name: order[own] for name, own in self.rows.items()}, head, key)

    def present(self) -> NDArray[np.bool_]:
        """Return a mask [N, parties], True if the party holds the row."""
        out = np.zeros((len(self.rows), self.n), dtype=np.bool_)
        for mask, rows in zip(out, self.rows.values(), strict=True):
            mask[rows] = True
        return np.ascontiguousarray(out.T)

    def few(self) -> list[str]:
        """Return the parties that share few rows with other parties: under 1 % of the largest possible number.

        The largest possible number is the number of ids in the party's list, or in all other lists together if this
        number is smaller.
        """
        holders = np.zeros(self.n, dtype=np.uint16)
        for rows in self.rows.values():
            holders[rows] += 1  # a party has each row at most once
        shared = holders > 1
        total = sum(map(len, self.rows.values()))
        most = {name: min(len(rows), total - len(rows)) for name, rows in self.rows.items()}
        return [name for name, rows in self.rows.items() if np.count_nonzero(shared[rows]) < FEW * most[name]]


def _check_once(rows: Mapping[str, NDArray[np.int64]], n: int) -> None:
    """Raise a ``MessageError`` if a party's list contains one of the n rows twice."""
    for name, own in rows.items():
        if not each_once(own, n):
            raise MessageError(f"the list of party {name!r} contains the same token twice; each id must occur once")


def each_once(indices: NDArray[np.int64], n: int) -> bool:
    """Return whether no index occurs twice; all indices are in 0..n-1."""
    seen = np.zeros(n, dtype=np.bool_)
    seen[indices] = True
    return int(np.count_nonzero(seen)) == len(indices)


def _sorting(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the permutation [M] that sorts M tokens by their bytes.

    The first 8 bytes are almost always sufficient; all bytes are compared only if two different tokens have the same
    first bytes.
    """
    order = sorting(words[:, 0].byteswap())
    ranked = words[order]
    if (_differ(ranked) & (ranked[1:, 0] == ranked[:-1, 0])).any():
        return np.lexsort([words[:, word].byteswap() for word in reversed(range(WORDS))])
    return order


def _differ(ranked: NDArray[np.uint64]) -> NDArray[np.bool_]:
    out = np.zeros(max(0, len(ranked) - 1), dtype=np.bool_)
    for word in range(WORDS):
        out |= ranked[1:, word] != ranked[:-1, word]
    return out
