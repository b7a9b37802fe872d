"""One party's side of a round: exchange, then local iterations (Flex-VFL, Algorithm 1; P-BCD has one iteration).

    exchange   send the embeddings of a mini-batch to the hosts; receive gradients; if labels are shared, receive Phi:
               the heads and the other parties' embeddings
    iterate    tau_k times: encode the same rows, compute the gradient with the other parties' embeddings unchanged,
               and take an optimizer step

The gradient that a party can recompute in an iteration depends on what it has:
- a host computes its loss from its present embeddings and heads;
- a party with shared labels computes its loss from its present embeddings;
- a party without labels applies the received gradient to its present embeddings.

Random choices of a network or a rule (dropout, LASER-VFL's sets of parties) are drawn once per round. So all iterations
of a round minimise the same loss, and a received gradient belongs to the same random choices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import torch
from torch import Tensor

from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import PartyLost
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.methods.schedules import flex, local_steps, real_clock
from anyparty.methods.schedules.flex import AdaptiveFlex
from anyparty.methods.schedules.local_steps import HeadCopy, LocalSteps, StaleRound
from anyparty.methods.schedules.real_clock import RealClock, RoundChannel
from anyparty.methods.schedules.schedule import PACE, LocalIterations, Schedule, TimedRound
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.methods.split import exchange
from anyparty.methods.split.exchange import ExchangePart, Gathered
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.topology import Topology
from anyparty.problem.rows import Rows

ROUND, TIME, MISSED = "round", "time", "missed"


def move_on(state: State, by: float) -> None:
    """Advance the time since training began by ``by`` time units or, with the real clock, seconds."""
    state.kept[TIME] = state.kept.get(TIME, torch.zeros((), dtype=torch.float64)) + by


@dataclass(frozen=True, kw_only=True)
class Round:
    """The procedure that one party follows in each round of a split method under a schedule."""

    split: Split
    schedule: Schedule
    clock: VirtualClock | RealClock
    local: LocalIterations
    seat: PartyContext

    @cached_property
    def round_exchange(self) -> RoundExchange:
        """The party's side of the exchange that begins a round."""
        copy = HeadCopy(self.split)
        return RoundExchange(
            split=self.split, schedule=self.schedule, clock=self.clock, local=self.local, seat=self.seat, copy=copy
        )

    def iterations(self, number: int) -> dict[str, int]:
        """Return tau_k of every party: the number of its local iterations in a round.

        The number is at least 1 for a host, because other parties wait for the host's reply. With the real clock, the
        numbers are not known before the round. The result is then 1 for every party, which means that all parties take
        part.
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
        """Run the party's side of a round; at the active party, return the loss at the start of the round.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: a party left, and the method cannot train without it.
        """
        roster, me = self.seat.roster, self.seat.me
        number, began = batch.number, self._now()
        state.kept[ROUND] = torch.tensor(number + 1)
        tau = self.iterations(number)
        if not self._needed(tau[name] for name in roster.blocks):
            self.spend(state, {}, number, began)
            return None  # the method needs parties that miss this round, so nothing is trained
        taken = rows.block.take(batch.rows) if rows.block and tau.get(me) else None
        mine = self.split.encode(state, rows, batch, taken) if taken else None
        loss = None
        if mine or me in self._topology.hosts:
            others = self._others(rows, batch, tau)
            encoded = self._now()
            got = await self.round_exchange.meet(net, state, rows, batch, mine, tau, others)
            if got.missed:
                return None
            met = self._now()
            tau[me] = await self._iterate(state, rows, batch, taken, mine, got)
            if isinstance(self.schedule, AdaptiveFlex) and roster.active not in got.without:
                flex.keep_rate(state, self.schedule, self.local, tau[me], got.rate)
            if self.round_exchange.asks:
                real_clock.note(state, tau[me], encoded - began + self._now() - met)
            if got.late:
                state.kept[MISSED] = state.kept.get(MISSED, torch.zeros((), dtype=torch.int64)) + len(got.late)
            others = [name for name in others if name not in got.late]
            self.spend(state, {name: tau[name] for name in (me, *others)}, number, began)
            loss = got.loss
        return loss

    async def finish(self, net: Channel, state: State, rows: Rows) -> None:  # noqa: ARG002
        """Wait for parties that were too late for the last rounds of an epoch, before validation."""
        began = self._now()
        await self.round_exchange.settle(net)
        if isinstance(self.clock, RealClock) and self.seat.me == self.seat.roster.active:
            move_on(state, self._now() - began)

    def _others(self, rows: Rows, batch: Batch, tau: Mapping[str, int]) -> list[str]:
        """Return the passive parties that take part in a round; at a passive party, return an empty list."""
        roster = self.seat.roster
        if self.seat.me != roster.active:
            return []
        assert rows.observed is not None
        has = dict(zip(roster.blocks, rows.observed[batch.rows].any(dim=0).tolist(), strict=True))
        has |= dict.fromkeys(self._topology.hosts, True)  # parties that host heads take part in every round
        return [name for name in tau if name != self.seat.me and tau[name] and has[name]]

    async def _iterate(
        self,
        state: State,
        rows: Rows,
        batch: Batch,
        taken: ExchangePart | None,
        mine: ExchangePart | None,
        got: ExchangeResult,
    ) -> int:
        """Make the round's local iterations, and return their number."""
        steps, now, own, t = LocalSteps(state, self.local), mine, got.own, -1
        for t in got.turns:
            if t:
                if isinstance(self.clock, RealClock):
                    await asyncio.sleep(0)  # let other parties on this thread continue
                now = self.split.encode(state, rows, batch, taken) if mine else None
                own = got.recompute(now) if got.recompute else None
            if now is not None and "encoder" in state.optimizers and (own is not None or got.received):
                self.split.backward(state, now[1], own, got.received)
                steps.step("encoder")
            steps.step("heads")
        return t + 1

    def _now(self) -> float:
        return self.clock.now() if isinstance(self.clock, RealClock) else 0.0

    def spend(self, state: State, made: Mapping[str, int], number: int, began: float) -> None:
        """Add the duration of the round to the active party's time.

        With a real clock, the duration is the time since ``began``.
        """
        if self.seat.me == self.seat.roster.active:
            clock = self.clock
            lasted = clock.now() - began if isinstance(clock, RealClock) else self.schedule.lasts(clock, made, number)
            move_on(state, lasted)


Derive = Callable[[ExchangePart | None], Tensor | None]


@dataclass(kw_only=True)
class ExchangeResult:
    """A party's results of the exchange that begins a round.

    Attributes:
        loss: at a host, the loss of the mini-batch.
        own: the gradient of the party's own loss with respect to its embeddings, at the start of the round.
        received: the gradients that other hosts sent, with respect to this party's embeddings.
        recompute: function that recomputes ``own`` from the current embeddings; ``None`` if the party cannot recompute
            it.
        without: the hosts that continued without this party.
        late: at a host, the parties that were too late for the round.
        rate: the party's learning rate in this round, if the active party sets it.
        turns: an iterable of the indices, from 0, of the local iterations that the party makes.

    """

    loss: float | None = None
    own: Tensor | None = None
    received: tuple[Tensor, ...] = ()
    recompute: Derive | None = None
    without: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    rate: float = 0.0
    turns: Iterable[int] = ()

    @property
    def missed(self) -> bool:
        """True if the party was too late for every host and skips the round."""
        return bool(self.without) and not self.received and self.own is None


@dataclass(frozen=True, kw_only=True)
class RoundExchange:
    """The procedure by which one party exchanges messages with other parties at the start of each round."""

    split: Split
    schedule: Schedule
    clock: VirtualClock | RealClock
    local: LocalIterations
    seat: PartyContext
    copy: local_steps.HeadCopy
    # For each party whose embeddings were too late: the last round that the party missed.
    owed: dict[str, tuple[str | int, ...]] = field(default_factory=dict)

    @cached_property
    def hurries(self) -> bool:
        """True if hosts continue a round without late parties.

        Three conditions must hold: the clock is a real clock, the schedule lets no party wait for the slowest party,
        and the method can train without some parties.
        """
        return isinstance(self.clock, RealClock) and self.schedule.fills and not self.split.can.trains_with_all

    @property
    def asks(self) -> bool:
        """True if parties report their speed, to agree on one number of iterations for all parties."""
        return isinstance(self.clock, RealClock) and isinstance(self.schedule, TimedRound)

    async def meet(
        self,
        net: Channel,
        state: State,
        rows: Rows,
        batch: Batch,
        mine: ExchangePart | None,
        tau: Mapping[str, int],
        others: Sequence[str],
    ) -> ExchangeResult:
        """Exchange the messages of a round; agree on learning rates or iterations if the schedule requires it.

        ``mine`` are the party's embeddings, and ``tau`` is the planned number of iterations of each party. ``others``
        are the passive parties that take part; the list is empty at a passive party.
        """
        me, active = self.seat.me, self.seat.roster.active
        net = RoundChannel(net, batch.step_id) if self.hurries else net
        await exchange.share(net, self.split.topology(self.seat.roster).readers[me], mine)
        pace = torch.empty(0)
        if isinstance(self.schedule, AdaptiveFlex):
            pace = flex.begin_round(
                state, self.schedule, self.local, tau[me] if isinstance(self.clock, VirtualClock) else None
            )
            if me != active:
                await net.send(active, PACE.tag, {"pace": pace})
        if self.asks and isinstance(self.clock, RealClock):
            await real_clock.say(net, state, self.clock)
        got = await self._exchange(net, state, rows, batch, mine, tau)
        in_time = [name for name in others if name not in got.late]
        if isinstance(self.schedule, AdaptiveFlex) and active not in got.without:
            got.rate = await flex.agree_on_rate(net, state, in_time, pace)
        got.turns = range(tau[me])
        if isinstance(self.clock, RealClock) and isinstance(self.schedule, TimedRound):
            got.turns = range(await real_clock.agree(net, state, self.schedule, self.clock, in_time))
        elif isinstance(self.clock, RealClock) and self.schedule.fills:
            got.turns = self.clock.turns()
        return got

    async def _exchange(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: ExchangePart | None, tau: Mapping[str, int]
    ) -> ExchangeResult:
        """Wait for the replies to the party's embeddings; a host first receives embeddings and replies to them."""
        roster, me, topology = self.seat.roster, self.seat.me, self.split.topology(self.seat.roster)
        shared, got = self.local.labels == "shared", ExchangeResult()
        if me in topology.hosts:
            gathered, got.late = await self._gather(net, state, rows, batch, mine, [k for k in roster.blocks if tau[k]])
            loss, gradients = self.split.fuse(state, rows, batch, gathered)
            got.loss = loss if gathered.parts else None  # no loss if the embeddings of all parties are late
            got.own = gradients.get(me)
            await self._answer(net, state, gathered, gradients, got.late)

            if gathered.parts:
                got.recompute = self._at_host(state, rows, batch, gathered)
        elif shared and mine:
            seen = await self.copy.receive(net, state, rows, batch, mine)
            if seen is None:
                got.without = (roster.active,)
                return got
            derive = self.copy.loss(state, rows, batch, seen)

            def at_party(now: ExchangePart | None) -> Tensor:
                assert now is not None
                return derive(now[1])

            got.recompute = at_party
            got.own = at_party(mine)
        if mine and not shared:
            readers = [host for host in topology.readers[me] if host != me]
            answers = await exchange.gradients_of(net, readers, mine[1], or_none=self.hurries)
            got.received = tuple(each for each in answers if len(each))
            got.without = tuple(host for host, each in zip(readers, answers, strict=True) if not len(each))
        return got

    def _at_host(self, state: State, rows: Rows, batch: Batch, gathered: Gathered) -> Derive:
        """Return a function that recomputes a host's gradient from the host's current heads and embeddings."""
        heads = state.optimizers.get("heads")  # ``None`` if a user's heads have no parameters

        @cache
        def stale() -> StaleRound:  # called only in rounds of several iterations
            return StaleRound.of(self.split, state, rows, batch, gathered)

        def derive(now: ExchangePart | None) -> Tensor | None:
            if heads:
                heads.zero_grad()
            return stale().derive(None if now is None else now[1])

        return derive

    async def _gather(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: ExchangePart | None, asked: list[str]
    ) -> tuple[Gathered, tuple[str, ...]]:
        """Wait at a host for embeddings of parties in ``asked``; return the embeddings and the late parties."""
        if isinstance(net, RoundChannel) and batch.step_id[-1] != 0:
            assert isinstance(self.clock, RealClock)
            net = RoundChannel(net.channel, net.step_id, within=self.clock.waits)
        gathered = await self.split.gather(net, state, rows, batch, mine, asked)
        if not isinstance(net, RoundChannel):
            return gathered, ()
        for name in gathered.parts:
            self.owed.pop(name, None)
        self.owed.update(dict.fromkeys(net.late, net.step_id))
        return gathered, tuple(net.late)

    async def settle(self, net: Channel) -> None:
        """Receive and discard embeddings that were too late for a round, so that validation does not receive them."""
        expect = {"h": TensorSpec((-1, *self.split.topology(self.seat.roster).width))}
        for name, step_id in self.owed.items():
            try:
                await RoundChannel(net, step_id).recv(name, "embedding", expect)
            except PartyLost:
                continue
        self.owed.clear()

    async def _answer(
        self, net: Channel, state: State, gathered: Gathered, gradients: Mapping[str, Tensor], late: Sequence[str]
    ) -> None:
        """Send each party the reply to its embeddings; a late party gets an empty reply."""
        nothing = torch.empty(0, *self.split.topology(self.seat.roster).width)
        if self.local.labels == "shared":
            await local_steps.send(net, self.seat, state.modules["heads"], gathered, nothing, late)
            return
        await exchange.share_gradients(net, {**gradients, **dict.fromkeys(late, nothing)})
