"""VAFL: every party steps when it is ready.  Chen, Jin, Sun, Yin: "VAFL: a Method of Vertical Asynchronous Federated
Learning", 2020, in the form that Castiglia, Wang, Patterson, 2022, section VII-A, use as a baseline.

One step of training is one exchange between the active party, which hosts all heads, and one party. With the virtual
clock, the party that is ready next encodes a mini-batch and sends the embeddings. The host fuses these embeddings with
the embeddings of the same rows that the other parties sent last, updates its heads, and returns the gradient. The party
then updates its encoder at once. All parties compute from the clock which party is next, and all other parties do
nothing.

Time of an exchange: the party's iteration plus one round trip. The active party's own embeddings are not sent, so its
exchange takes one iteration and no round trip. The time of the host's computation is not counted, because in the rounds
of the schedule P-BCD it runs in parallel with the iterations of the other parties.

Known differences from the paper
- The paper does not say what replaces an embedding that was never sent. Here, in the first epoch, all parties that have
  a row send their embeddings of it. The host stores embeddings by row.
- An epoch processes every mini-batch with one party, not with all K parties. A run therefore needs about K times as
  many epochs.
- A party also takes its turn if it has no row of the mini-batch, because the other parties cannot know whether it has
  one. Such an exchange trains nothing; the record of an epoch counts these exchanges (``idle_meetings``).

With a real clock, every party goes through the mini-batches of an epoch at its own pace: it sends the embeddings of its
next mini-batch, waits for the gradient and steps. The active party makes one exchange after the other, each with one
party, possibly itself, in the order in which the parties are ready. An epoch has as many exchanges as mini-batches,
even if one party takes part in most of them. At the end of the epoch, the active party sends an empty gradient to each
party that still waits. The epoch then ends at all parties.

A party's n-th message of an epoch belongs to the n-th mini-batch in which it has rows. The active party waits for a
message only after it has reached the same mini-batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from anyparty.core.types import Channel
from anyparty.errors import PartyLost
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.methods.schedules.local_steps import LocalSteps
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.methods.schedules.round import ROUND, TIME, move_on
from anyparty.methods.schedules.schedule import LocalIterations, SharedRound
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.methods.split import exchange
from anyparty.methods.split.exchange import ExchangePart, Gathered
from anyparty.methods.split.split_method import Split
from anyparty.problem.rows import Rows

READY, MEETINGS, SEEN, STALE, IDLE = "ready", "meetings", "seen", "embeddings", "idle"


@dataclass(frozen=True, kw_only=True)
class VAFL(SharedRound):
    """Schedule in which the heads and a party's encoder are updated whenever this party is ready."""

    title: ClassVar[str] = "VAFL"
    timed: ClassVar[bool] = False
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = True
    adapts: ClassVar[bool] = False

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:  # noqa: ARG002
        """Return 1 for every party, because a party makes a single optimizer step in an exchange."""
        return dict.fromkeys(parties, 1)


@dataclass(kw_only=True)
class VaflHost:
    """The active party's computations with the embeddings of one party, for a virtual and for a real clock."""

    split: Split
    local: LocalIterations
    seat: PartyContext

    def seen(self, state: State, rows: Rows, batch: Batch, fresh: Gathered, asked: Sequence[str]) -> Gathered:
        """Return received embeddings for the parties in ``asked``, and stored embeddings for all other parties.

        ``fresh`` has the received embeddings. The stored embeddings of a party are the embeddings that the party sent
        last.

        Raises:
            PartyLost: a party in ``asked`` left, and the method cannot train without that party.
        """
        roster, topology = self.seat.roster, self.split.topology(self.seat.roster)
        if fresh.silent and self.split.can.trains_with_all:
            raise PartyLost(fresh.silent[0], f"{self.split.can.title} cannot train without it")
        assert rows.observed is not None
        if STALE not in state.kept:
            shape = (rows.n, roster.K)
            state.kept[STALE] = torch.zeros(*shape, *topology.width, device=self.seat.device)
            state.kept[SEEN] = torch.zeros(shape, dtype=torch.bool, device=self.seat.device)
        for name, (held, h) in fresh.parts.items():
            state.kept[STALE][batch.rows[held], roster.blocks.index(name)] = h
            state.kept[SEEN][batch.rows[held], roster.blocks.index(name)] = True
        observed = rows.observed[batch.rows]
        gathered = Gathered(observed=observed & state.kept[SEEN][batch.rows])
        for k, name in enumerate(roster.blocks):
            held = gathered.observed[:, k].nonzero().squeeze(1)
            if name in fresh.parts or (len(held) and name not in asked):
                gathered.parts[name] = fresh.parts.get(name) or (held, state.kept[STALE][batch.rows[held], k])
        for name in set(asked) - gathered.parts.keys():
            gathered.observed[:, roster.blocks.index(name)] = False
        return gathered

    def learn(
        self, state: State, rows: Rows, batch: Batch, gathered: Gathered, whose: str
    ) -> tuple[float | None, Tensor | None]:
        """Make an optimizer step of the heads; return the loss, and the gradient for one party.

        ``whose`` is the name of this party. Loss and gradient are ``None`` if its embeddings did not arrive. If there
        is no row to learn from, the loss is ``None`` and the gradient is zero.

        Raises:
            Diverged: the loss is not a number.
        """
        if whose not in gathered.parts:
            return None, None
        if not self._fusible(gathered):
            return None, torch.zeros_like(gathered.parts[whose][1])
        loss, gradients = self.split.fuse(state, rows, batch, gathered)
        LocalSteps(state, self.local).step("heads")
        return loss, gradients[whose]

    def _fusible(self, gathered: Gathered) -> bool:
        """Return True if the rule can train on at least one row with the embeddings in ``gathered``."""
        return bool(self.split.plan(self.seat.roster).trains_on(gathered.observed).any())


@dataclass(kw_only=True)
class VaflParty(VaflHost):
    """One party's side of VAFL with a virtual clock."""

    schedule: VAFL
    clock: VirtualClock

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run the party's side of one exchange; at the active party, return the loss.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: a party left, and the method cannot train without it.
        """
        me, active = self.seat.me, self.seat.roster.active
        whose = self.advance(state, batch.number)
        first = batch.step_id[1:2] == (0,)
        mine = self.split.encode(state, rows, batch) if whose == me or first else None
        await exchange.share(net, [active], mine)
        loss: float | None = None
        own: Tensor | None = None
        if me == active:
            asked = list(self.seat.roster.blocks) if first else [whose]
            fresh = await self.split.gather(net, state, rows, batch, mine, asked)
            loss, own = self.learn(state, rows, batch, self.seen(state, rows, batch, fresh, asked), whose)
            if own is not None:
                await exchange.share_gradients(net, {whose: own})
            if loss is None:
                state.kept[IDLE] = state.kept.get(IDLE, torch.zeros((), dtype=torch.int64)) + 1
        if whose == me and mine:
            received = await exchange.gradients_of(net, [active], mine[1])
            if "encoder" in state.optimizers and (own is not None or received):
                self.split.backward(state, mine[1], own, received)
                LocalSteps(state, self.local).step("encoder")
        return loss

    def advance(self, state: State, number: int) -> str:
        """Return the party that takes part in the exchange with index ``number``; advance the clock to this exchange.

        At a party that was absent, the clock first advances through the exchanges that the party missed.
        """
        blocks = self.seat.roster.blocks
        state.kept[ROUND] = torch.tensor(number + 1)
        if READY not in state.kept:
            state.kept[MEETINGS] = torch.zeros(len(blocks), dtype=torch.int64)
            state.kept[READY] = torch.tensor([self._cycle(name, 0) for name in blocks], dtype=torch.float64)
        for _ in range(int(state.kept[MEETINGS].sum()), number):
            self._next_exchange(state)
        return self._next_exchange(state)

    def _next_exchange(self, state: State) -> str:
        """Return the party that is ready next, and advance the clock to the time at which it is ready."""
        blocks, ready = self.seat.roster.blocks, state.kept[READY].tolist()
        k = ready.index(min(ready))
        state.kept[TIME] = torch.tensor(ready[k], dtype=torch.float64)
        state.kept[MEETINGS][k] += 1
        state.kept[READY][k] = ready[k] + self._cycle(blocks[k], int(state.kept[MEETINGS][k]))
        return blocks[k]

    def _cycle(self, name: str, number: int) -> float:
        took = self.schedule.lasts(self.clock, {name: 1}, number)
        return took - self.clock.latency if name == self.seat.roster.active else took


@dataclass
class RealVaflEpoch:
    """A party's state within an epoch.

    Attributes:
        over: at a passive party, whether the active party has ended the epoch.
        batches: at the active party, the mini-batches that it has reached.
        next: for each party, the index in ``batches`` of the party's next mini-batch.
        on_the_way: for each party, the asyncio task that receives the party's next embeddings.
        ready: the parties that are ready for an exchange, in the order in which they became ready.
        gone: the parties that have left.

    """

    over: bool = False
    batches: list[Batch] = field(default_factory=list)
    next: dict[str, int] = field(default_factory=dict)
    on_the_way: dict[str, asyncio.Task[Gathered]] = field(default_factory=dict)
    ready: deque[str] = field(default_factory=deque)
    gone: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class RealVaflParty(VaflHost):
    """One party's side of VAFL with the real clock."""

    clock: RealClock
    epoch: RealVaflEpoch = field(default_factory=RealVaflEpoch)

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run the party's side of one exchange; at the active party, return the loss.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: the active party left, or the method cannot train without another party that left.
        """
        if self.seat.me != self.seat.roster.active:
            await self._visit(net, state, rows, batch)
            return None
        began = self.clock.now()
        try:
            loss = await self._receive(net, state, rows, batch)
        except BaseException:
            self._leave()
            raise
        self._spend(state, began, exchanges=1)
        return loss

    async def finish(self, net: Channel, state: State, rows: Rows) -> None:
        """End the epoch; the active party sends an empty gradient to each party that still waits for a gradient."""
        if self.seat.me == self.seat.roster.active:
            began = self.clock.now()
            try:
                for name in self.seat.roster.blocks:
                    if name != self.seat.me and self._has_next(name, rows):
                        gathered = await (
                            self.epoch.on_the_way.pop(name, None) or self._awaited(net, state, name, rows)
                        )
                        if name in gathered.parts:
                            await exchange.share_gradients(net, {name: gathered.parts[name][1][:0]})
            finally:
                self._leave()
            self._spend(state, began, exchanges=0)
        self.epoch = RealVaflEpoch()

    # Functions that run at a passive party

    async def _visit(self, net: Channel, state: State, rows: Rows, batch: Batch) -> None:
        active = self.seat.roster.active
        mine = None if self.epoch.over else self.split.encode(state, rows, batch)
        if mine is None:
            return
        await exchange.share(net, [active], mine)
        (g,) = await exchange.gradients_of(net, [active], mine[1], or_none=True)
        self.epoch.over = not len(g)
        if len(g) and "encoder" in state.optimizers:
            self.split.backward(state, mine[1], None, [g])
            LocalSteps(state, self.local).step("encoder")

    # Functions that run at the active party

    async def _receive(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        self.epoch.batches.append(batch)
        await self._look(net, state, rows)
        if not self.epoch.ready:
            return None  # no party has rows in the mini-batches that the active party has reached
        whose = self.epoch.ready.popleft()
        batch = self.epoch.batches[self.epoch.next[whose]]
        self.epoch.next[whose] += 1
        mine: ExchangePart | None = None
        if whose == self.seat.me:
            mine = self.split.encode(state, rows, batch)
            assert mine is not None
            fresh = await self.split.gather(net, state, rows, batch, mine, [whose])
        else:
            fresh = await self.epoch.on_the_way.pop(whose)
            self.epoch.gone.update(fresh.silent)
        gathered = self.seen(state, rows, batch, fresh, [whose])
        loss, own = self.learn(state, rows, batch, gathered, whose)
        if own is not None:
            await exchange.share_gradients(net, {whose: own})
        if mine is not None and own is not None and "encoder" in state.optimizers:
            self.split.backward(state, mine[1], own, [])
            LocalSteps(state, self.local).step("encoder")
        return loss

    async def _look(self, net: Channel, state: State, rows: Rows) -> None:
        """Wait until at least one party is ready for an exchange, and add the ready parties to ``epoch.ready``.

        A passive party is ready when its next embeddings have arrived. The active party is ready when it has a next
        mini-batch. The function returns at once if no party has rows of the mini-batches that the active party has
        reached.
        """
        now, me = self.epoch, self.seat.me
        for name in self.seat.roster.blocks:
            if name != me and name not in now.on_the_way and self._has_next(name, rows):
                now.on_the_way[name] = asyncio.create_task(self._awaited(net, state, name, rows))
        await asyncio.sleep(0)  # let the tasks receive messages that have arrived
        await self._await_first(0.0)
        if me in self.seat.roster.blocks and me not in now.ready and self._has_next(me, rows):
            now.ready.append(me)
        if not now.ready:
            await self._await_first(None)

    async def _await_first(self, within: float | None) -> None:
        """Wait for the first embeddings to arrive, and add their parties to ``epoch.ready``.

        The wait lasts at most ``within`` seconds; ``None`` means no limit.
        """
        now = self.epoch
        waited = {task: name for name, task in now.on_the_way.items() if name not in now.ready}
        if waited:
            done, _ = await asyncio.wait(waited, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            now.ready.extend(sorted(waited[task] for task in done))

    def _has_next(self, name: str, rows: Rows) -> bool:
        """Return True if the party has not left and has a next mini-batch; store its index in ``epoch.next``."""
        assert rows.observed is not None
        now, k = self.epoch, self.seat.roster.blocks.index(name)
        at = now.next.setdefault(name, 0)
        while at < len(now.batches) and not rows.observed[now.batches[at].rows, k].any():
            at += 1
        now.next[name] = at
        return at < len(now.batches) and name not in now.gone

    async def _awaited(self, net: Channel, state: State, name: str, rows: Rows) -> Gathered:
        """Wait for the embeddings of a party's next mini-batch.

        If the party left, its name is in ``silent`` of the result.
        """
        batch = self.epoch.batches[self.epoch.next[name]]
        return await self.split.gather(net, state, rows, batch, None, [name])

    def _leave(self) -> None:
        """Cancel all tasks that still wait for embeddings."""
        for task in self.epoch.on_the_way.values():
            task.cancel()
        self.epoch.on_the_way.clear()

    def _spend(self, state: State, began: float, *, exchanges: int) -> None:
        move_on(state, self.clock.now() - began)
        state.kept[ROUND] = state.kept.get(ROUND, torch.zeros((), dtype=torch.int64)) + exchanges
