"""VAFL by the real clock: parties exchange with the active party in the order in which they are ready.

Every party goes through the mini-batches of an epoch at its own pace: it sends the embeddings of its next mini-batch,
waits for the gradient and steps. In each of its steps the active party exchanges with one party, possibly itself, in
the order of readiness. An epoch has as many exchanges as mini-batches, however they are divided among the parties. At
the end of the epoch the active party sends an empty gradient to the parties that still wait, and all parties leave the
epoch together.

A party's n-th message of an epoch belongs to the n-th mini-batch in which it has rows. The active party waits for a
message only after it has reached the same mini-batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import torch

from anyparty.core.types import Channel
from anyparty.data.blocks import Rows
from anyparty.methods.method import Batch, State
from anyparty.methods.schedules.local_steps import LocalSteps
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.methods.schedules.round import ROUND, move_on
from anyparty.methods.schedules.vafl import VaflHost
from anyparty.methods.split import exchange
from anyparty.methods.split.exchange import ExchangePart, Gathered


@dataclass
class RealVaflEpoch:
    """A party's state within an epoch.

    Attributes:
        over: at a passive party, whether the active party has ended the epoch.
        batches: at the active party, the mini-batches that it has reached.
        next: for each party, the place of its next mini-batch in ``batches``.
        on_the_way: for each party, the task that receives its next embeddings.
        ready: the parties that are ready, in the order in which they became ready.
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
    """One party's part in VAFL by the real clock."""

    clock: RealClock
    epoch: RealVaflEpoch = field(default_factory=RealVaflEpoch)

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run the party's part in one exchange; at the active party, return the loss.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: the active party left, or a party without which the method cannot train.
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
        self._spend(state, began, meetings=1)
        return loss

    async def finish(self, net: Channel, state: State, rows: Rows) -> None:
        """End the epoch: the active party sends an empty gradient to the parties that still wait."""
        if self.seat.me == self.seat.roster.active:
            began = self.clock.now()
            try:
                for name in self.seat.roster.blocks:
                    if name != self.seat.me and self._has_next(name, rows):
                        there = await (self.epoch.on_the_way.pop(name, None) or self._awaited(net, state, name, rows))
                        if name in there.parts:
                            await exchange.share_gradients(net, {name: there.parts[name][1][:0]})
            finally:
                self._leave()
            self._spend(state, began, meetings=0)
        self.epoch = RealVaflEpoch()

    # A passive party

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

    # The active party

    async def _receive(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        self.epoch.batches.append(batch)
        await self._look(net, state, rows)
        if not self.epoch.ready:
            return None  # no party has rows of the mini-batches reached so far
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
        there = self.seen(state, rows, batch, fresh, [whose])
        loss, own = self.learn(state, rows, batch, there, whose)
        if own is not None:
            await exchange.share_gradients(net, {whose: own})
        if mine is not None and own is not None and "encoder" in state.optimizers:
            self.split.backward(state, mine[1], own, [])
            LocalSteps(state, self.local).step("encoder")
        return loss

    async def _look(self, net: Channel, state: State, rows: Rows) -> None:
        """Wait until at least one party is ready, and add parties to ``epoch.ready`` in the order of readiness.

        A party is ready when its next embeddings have arrived. The active party is ready when it has a next mini-batch.
        No wait takes place if no party has rows of the mini-batches that the active party has reached.
        """
        now, me = self.epoch, self.seat.me
        for name in self.seat.roster.blocks:
            if name != me and name not in now.on_the_way and self._has_next(name, rows):
                now.on_the_way[name] = asyncio.create_task(self._awaited(net, state, name, rows))
        await asyncio.sleep(0)  # let the tasks receive messages that have arrived
        await self._came(0.0)
        if me in self.seat.roster.blocks and me not in now.ready and self._has_next(me, rows):
            now.ready.append(me)
        if not now.ready:
            await self._came(None)

    async def _came(self, within: float | None) -> None:
        """Wait at most ``within`` seconds for the first embeddings, and add their parties to ``epoch.ready``.

        ``None`` means no limit.
        """
        now = self.epoch
        waited = {task: name for name, task in now.on_the_way.items() if name not in now.ready}
        if waited:
            done, _ = await asyncio.wait(waited, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            now.ready.extend(sorted(waited[task] for task in done))

    def _has_next(self, name: str, rows: Rows) -> bool:
        """Advance ``epoch.next`` to the next mini-batch in which a party has rows.

        Return whether the active party has reached this mini-batch and the party has not left.
        """
        assert rows.observed is not None
        now, k = self.epoch, self.seat.roster.blocks.index(name)
        at = now.next.setdefault(name, 0)
        while at < len(now.batches) and not rows.observed[now.batches[at].rows, k].any():
            at += 1
        now.next[name] = at
        return at < len(now.batches) and name not in now.gone

    async def _awaited(self, net: Channel, state: State, name: str, rows: Rows) -> Gathered:
        """Wait for the embeddings of a party's next mini-batch; if the party left, the result's ``silent`` names it."""
        batch = self.epoch.batches[self.epoch.next[name]]
        return await self.split.gather(net, state, rows, batch, None, [name])

    def _leave(self) -> None:
        """Cancel all pending receipts."""
        for task in self.epoch.on_the_way.values():
            task.cancel()
        self.epoch.on_the_way.clear()

    def _spend(self, state: State, began: float, *, meetings: int) -> None:
        move_on(state, self.clock.now() - began)
        state.kept[ROUND] = state.kept.get(ROUND, torch.zeros((), dtype=torch.int64)) + meetings
