"""The rounds of private alignment: lists of points on their way past all parties, a batch at a time.

All parties keep step: in step t of a batch, the party in place i of the roster works on the list of the party in
place i - t, so that all are busy and whoever waits, waits for an earlier step: no two wait for each other.  A party
does one thing at a time, on all cores, off the event loop; between parties there is never more than a batch or two of
each list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import polars as pl
import torch
from torch import Tensor

from anyparty.align.curve import SIZE, Secret, SmallOrder, blind, hashed
from anyparty.errors import MessageError
from anyparty.terms import Channel, Expect, Roster

CHUNK = 1024  # points that a thread takes at a time: 30 ms

Progress = Callable[[int, int], None]
"""Told how many points this party has blinded so far, and how many it will in all."""


def stops(roster: Roster, owner: str) -> tuple[str, ...]:
    """Return where a list goes: from its owner past all others but the active party, and home.

    >>> from anyparty.terms import Party
    >>> four = Roster(tuple(Party(name=name) for name in "abcd"), active="b")
    >>> stops(four, "a"), stops(four, "b")
    (('a', 'c', 'd', 'a'), ('b', 'c', 'd', 'a', 'b'))
    """
    at = roster.names.index(owner)
    others = roster.names[at + 1 :] + roster.names[:at]
    return (owner, *(name for name in others if name != roster.active), owner)


@dataclass
class Rounds:
    """One party's part in all lists' rounds.

    Attributes:
        net: its way to the others.
        roster: the parties.
        secret: its scalars.
        ids: its own, in the secret order.
        salt: of the hash.
        sizes: how many ids each party has.
        batch: ids in a message.
        pool: threads.
        progress: told of its work.
    """

    net: Channel
    roster: Roster
    secret: Secret
    ids: pl.Series
    salt: str
    sizes: Mapping[str, int]
    batch: int
    pool: Executor
    progress: Progress | None = None
    done: int = 0

    async def play(self) -> dict[str, bytes]:
        """Let all lists make their rounds; return all tokens by party, at the active party only."""
        active, me = self.roster.active, self.net.me
        lists = {name: bytearray() for name in self.roster.names}
        await self._depart(0)
        for b in range(self._batches()):
            if me == active:
                await self._depart(b + 1)  # the others go on while this party makes tokens
                lists[me] += await self._home(b)
                for name in self._others():
                    lists[name] += await self._take(name, "align-tokens", self._count(name, b), self.secret.scalar)
            else:
                await self._pass_on(b)
                await self._send(active, "align-tokens", await self._home(b))
                await self._depart(b + 1)
        return {name: bytes(tokens) for name, tokens in lists.items()}

    async def _depart(self, b: int) -> None:
        """Send a batch of one's own list on its round."""
        first = self._stops(self.net.me)[1]
        if first != self.net.me:
            await self._send(first, "align-ids", await self._own(b, self.secret.once))

    async def _pass_on(self, b: int) -> None:
        """Blind a batch of every other list, and pass it on."""
        for owner in self._others():
            route = self._stops(owner)
            at = route.index(self.net.me)
            points = await self._take(route[at - 1], "align-ids", self._count(owner, b), self.secret.scalar)
            await self._send(route[at + 1], "align-ids", points)

    async def _home(self, b: int) -> bytes:
        """Take a batch of one's own list home, and put one's secret in the place of the one-time scalar."""
        last = self._stops(self.net.me)[-2]
        if last == self.net.me:  # nobody to visit
            return await self._own(b, self.secret.scalar)
        return await self._take(last, "align-ids", self._count(self.net.me, b), self.secret.rest)

    async def _own(self, b: int, scalar: bytes) -> bytes:
        """Return a batch of one's own ids as points, blinded."""
        ids = self.ids.slice(b * self.batch, self.batch).to_list()
        chunks = [ids[at : at + CHUNK] for at in range(0, len(ids), CHUNK)]

        def work(chunk: list[str]) -> bytes:
            return blind(scalar, hashed(chunk, self.salt))

        return await self._on_all_cores([partial(work, chunk) for chunk in chunks])

    async def _take(self, frm: str, tag: str, count: int, scalar: bytes) -> bytes:
        """Receive ``count`` points and blind them."""
        if count == 0:
            return b""
        points = (await self.net.recv(frm, tag, {"points": Expect((count, SIZE), torch.uint8)}))["points"]
        raw, step = points.numpy().tobytes(), CHUNK * SIZE
        try:
            return await self._on_all_cores(
                [partial(blind, scalar, raw[at : at + step]) for at in range(0, len(raw), step)]
            )
        except SmallOrder as error:
            raise MessageError(
                f"message {tag!r} from {frm!r} to {self.net.me!r}: a point is of small order, which no id gives; "
                f"{frm!r} or a party before it sent what it should not"
            ) from error

    async def _send(self, to: str, tag: str, points: bytes) -> None:
        if points:
            await self.net.send(to, tag, {"points": _tensor(points)})

    async def _on_all_cores(self, work: Sequence[Callable[[], bytes]]) -> bytes:
        """Return what the threads make, in order."""
        loop = asyncio.get_running_loop()
        made = b"".join(await asyncio.gather(*(loop.run_in_executor(self.pool, each) for each in work)))
        self.done += len(made) // SIZE
        if self.progress is not None:
            self.progress(self.done, self._total())
        return made

    def _total(self) -> int:
        own = self.sizes[self.net.me]
        return sum(self.sizes.values()) + (own if len(self._stops(self.net.me)) > 2 else 0)

    def _others(self) -> list[str]:
        """Return the owners of the other lists, in the order of the steps in which they come here."""
        at = self.roster.names.index(self.net.me)
        return [*reversed(self.roster.names[:at]), *reversed(self.roster.names[at + 1 :])]

    def _stops(self, owner: str) -> tuple[str, ...]:
        return stops(self.roster, owner)

    def _batches(self) -> int:
        return -(-max(self.sizes.values()) // self.batch)

    def _count(self, owner: str, b: int) -> int:
        """Return how many points batch ``b`` of a list has."""
        return max(0, min(self.batch, self.sizes[owner] - b * self.batch))


def _tensor(points: bytes) -> Tensor:
    return torch.frombuffer(bytearray(points), dtype=torch.uint8).view(-1, SIZE)
