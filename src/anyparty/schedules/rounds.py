"""One party's part in a round: exchange, then local iterations (Flex-VFL, Algorithm 1; with one iteration, P-BCD).

    exchange   embeddings of a mini-batch to the hosts; back come derivatives, or Phi where labels are shared
    iterate    tau_k times: encode the same rows anew, take the gradient with everybody else's part as it was, step

What a party can take anew in an iteration depends on what it has.  A host computes its loss with its own embeddings
and heads as they are now; a party with shared labels, with its own embeddings as they are now; a party without labels
applies the derivative that it received to its embeddings as they are now.

What a network or a rule draws (dropout, LASER-VFL's sets of parties) is drawn once a round: all its iterations go down
one and the same loss, and a derivative from elsewhere is of the network that it was taken by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from anyparty.blocks.blocks import Rows
from anyparty.methods.exchange import Part
from anyparty.methods.method import Batch, Seat, State
from anyparty.methods.split import Split
from anyparty.methods.topology import Topology
from anyparty.schedules import common, rates
from anyparty.schedules.clock import Clock
from anyparty.schedules.flex import AdaptiveFlex
from anyparty.schedules.local import Steps
from anyparty.schedules.meeting import Exchanged, Meeting
from anyparty.schedules.real import RealClock
from anyparty.schedules.schedule import Local, Schedule
from anyparty.schedules.snapshot import Copy
from anyparty.terms import Channel

ROUND, TIME, MISSED = "round", "time", "missed"


def move_on(state: State, by: float) -> None:
    """Move the active party's clock on, by time units or, by the real clock, seconds."""
    state.kept[TIME] = state.kept.get(TIME, torch.zeros((), dtype=torch.float64)) + by


@dataclass(frozen=True, kw_only=True)
class Round:
    """One party's rounds of a split method under a schedule."""

    split: Split
    schedule: Schedule
    clock: Clock | RealClock
    local: Local
    seat: Seat

    @cached_property
    def meeting(self) -> Meeting:
        """The party's part in the exchanges."""
        copy = Copy(self.split)
        return Meeting(split=self.split, schedule=self.schedule, clock=self.clock, local=self.local, seat=self.seat,
                       copy=copy)  # fmt: skip

    def iterations(self, number: int) -> dict[str, int]:
        """Return tau_k of every party; the others wait for a host, so that it makes at least one.

        With the real clock nobody knows it beforehand, and all take part.
        """
        if isinstance(self.clock, RealClock):
            return dict.fromkeys(self._topology.parties, 1)
        made = self.schedule.iterations(self.clock, self._topology.parties, number)
        for host in self._topology.hosts:
            made[host] = max(1, made[host])
        return made

    @cached_property
    def _topology(self) -> Topology:
        return self.split.topology(self.seat.roster)

    @cached_property
    def _needed(self) -> Callable[[Iterable[object]], bool]:
        return all if self.split.can.trains_with_all else any

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Play the party's part in a round; return the loss at its start, at the active party.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: a party left that the method cannot do without.
        """
        roster, me = self.seat.roster, self.seat.me
        number, began = batch.number, self._now()
        state.kept[ROUND] = torch.tensor(number + 1)
        tau = self.iterations(number)
        if not self._needed(tau[name] for name in roster.blocks):
            self.spend(state, {}, number, began)
            return None  # there is nothing to train without those that miss the round
        taken = rows.block.take(batch.rows) if rows.block and tau.get(me) else None
        mine = self.split.encode(state, rows, batch, taken) if taken else None
        loss = None
        if mine or me in self._topology.hosts:
            others = self._others(rows, batch, tau)
            encoded = self._now()
            got = await self.meeting.meet(net, state, rows, batch, mine, tau, others)
            if got.missed:
                return None
            met = self._now()
            tau[me] = await self._iterate(state, rows, batch, taken, mine, got)
            if isinstance(self.schedule, AdaptiveFlex) and roster.active not in got.without:
                rates.keep(state, self.schedule, self.local, tau[me], got.rate)
            if self.meeting.asks:
                common.note(state, tau[me], encoded - began + self._now() - met)
            if got.late:
                state.kept[MISSED] = state.kept.get(MISSED, torch.zeros((), dtype=torch.int64)) + len(got.late)
            others = [name for name in others if name not in got.late]
            self.spend(state, {name: tau[name] for name in (me, *others)}, number, began)
            loss = got.loss
        return loss

    async def finish(self, net: Channel, state: State, rows: Rows) -> None:  # noqa: ARG002
        """Wait for those that were too late for the last rounds of an epoch, before all meet in validation."""
        began = self._now()
        await self.meeting.settle(net, state)
        if isinstance(self.clock, RealClock) and self.seat.me == self.seat.roster.active:
            move_on(state, self._now() - began)

    def _others(self, rows: Rows, batch: Batch, tau: Mapping[str, int]) -> list[str]:
        """Return the other parties that take part in a round, at the active party."""
        roster = self.seat.roster
        if self.seat.me != roster.active:
            return []
        assert rows.observed is not None
        has = dict(zip(roster.blocks, rows.observed[batch.rows].any(dim=0).tolist(), strict=True))
        has |= dict.fromkeys(self._topology.hosts, True)  # a host always takes part
        return [name for name in tau if name != self.seat.me and tau[name] and has[name]]

    async def _iterate(
        self, state: State, rows: Rows, batch: Batch, taken: Part | None, mine: Part | None, got: Exchanged
    ) -> int:
        """Make local iterations, the first with its gradient from the exchange; return how many they were."""
        steps, now, own, t = Steps(state, self.local), mine, got.own, -1
        for t in got.turns:
            if t:
                if isinstance(self.clock, RealClock):
                    await asyncio.sleep(0)  # whoever else is on this thread goes on, too
                now = self.split.encode(state, rows, batch, taken) if mine else None
                own = got.anew(now) if got.anew else None
            if now is not None and "encoder" in state.optimizers and (own is not None or got.theirs):
                self.split.backward(state, now[1], own, got.theirs)
                steps.step("encoder")
            steps.step("heads")
        return t + 1

    def _now(self) -> float:
        return self.clock.now() if isinstance(self.clock, RealClock) else 0.0

    def spend(self, state: State, made: Mapping[str, int], number: int, began: float) -> None:
        """Move the clock on, at the active party: by what the round lasts, or has lasted since ``began``."""
        if self.seat.me == self.seat.roster.active:
            clock = self.clock
            lasted = clock.now() - began if isinstance(clock, RealClock) else self.schedule.lasts(clock, made, number)
            move_on(state, lasted)
