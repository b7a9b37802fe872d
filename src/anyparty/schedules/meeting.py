"""The exchange at the start of a round: embeddings to the hosts, derivatives or Phi back, and what else must be agreed.

By the real clock a host of Flex-VFL goes on without a party that is late: it answers nothing to it (a derivative or
Phi of no rows), and the party, when it comes, sits the round out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.errors import PartyLost
from anyparty.methods import exchange
from anyparty.methods.exchange import Gathered, Part
from anyparty.methods.method import Batch, Seat, State
from anyparty.methods.split import Split
from anyparty.schedules import common, rates, snapshot
from anyparty.schedules.clock import Clock
from anyparty.schedules.dated import Dated
from anyparty.schedules.flex import AdaptiveFlex
from anyparty.schedules.real import RealClock
from anyparty.schedules.schedule import PACE, Local, Schedule, Timed
from anyparty.schedules.stale import Stale
from anyparty.terms import Channel, Expect

Derive = Callable[[Part | None], Tensor | None]


@dataclass(kw_only=True)
class Exchanged:
    """What a party has after the exchange.

    Attributes:
        loss: of the mini-batch, at hosts.
        own: the derivative of its own loss by its embeddings, at the start of the round.
        theirs: derivatives that it received, by the same.
        anew: how it computes ``own`` for embeddings as they are now; ``None``: it cannot.
        without: the hosts that have gone on without it.
        late: at a host, the parties without which it has gone on.
        rate: its learning rate in this round, where the active party sets it.
        turns: counts the iterations that it makes.

    """

    loss: float | None = None
    own: Tensor | None = None
    theirs: tuple[Tensor, ...] = ()
    anew: Derive | None = None
    without: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    rate: float = 0.0
    turns: Iterable[int] = ()

    @property
    def missed(self) -> bool:
        """Whether the party was too late everywhere, and sits the round out."""
        return bool(self.without) and not self.theirs and self.own is None


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One party's part in the exchanges of a split method under a schedule."""

    split: Split
    schedule: Schedule
    clock: Clock | RealClock
    local: Local
    seat: Seat
    copy: snapshot.Copy
    owed: dict[str, tuple[str | int, ...]] = field(default_factory=dict)  # by party, the last round it was too late for

    @cached_property
    def hurries(self) -> bool:
        """Whether hosts go on without a party that is late: by the real clock, where nobody waits for the slowest."""
        return isinstance(self.clock, RealClock) and self.schedule.fills and not self.split.can.trains_with_all

    @property
    def asks(self) -> bool:
        """Whether parties tell each other how fast they are, for a number of iterations that all make."""
        return isinstance(self.clock, RealClock) and isinstance(self.schedule, Timed)

    async def meet(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: Part | None, tau: Mapping[str, int],
        others: Sequence[str],
    ) -> Exchanged:  # fmt: skip
        """Exchange, and agree on learning rates or iterations where the schedule asks for it.

        ``mine`` are the party's embeddings, ``tau`` what each party has planned, and ``others``, at the active party,
        those that take part.
        """
        me, active = self.seat.me, self.seat.roster.active
        net = Dated(net, batch.moment) if self.hurries else net
        assert state.topology is not None
        await exchange.share(net, state.topology.readers[me], mine)
        pace = torch.empty(0)
        if isinstance(self.schedule, AdaptiveFlex):
            pace = rates.begin(state, self.schedule, self.local, tau[me] if isinstance(self.clock, Clock) else None)
            if me != active:
                await net.send(active, PACE.tag, {"pace": pace})
        if self.asks and isinstance(self.clock, RealClock):
            await common.say(net, state, self.clock)
        got = await self._exchange(net, state, rows, batch, mine, tau)
        in_time = [name for name in others if name not in got.late]
        if isinstance(self.schedule, AdaptiveFlex) and active not in got.without:
            got.rate = await rates.agree(net, state, in_time, pace)
        got.turns = range(tau[me])
        if isinstance(self.clock, RealClock) and isinstance(self.schedule, Timed):
            got.turns = range(await common.agree(net, state, self.schedule, self.clock, in_time))
        elif isinstance(self.clock, RealClock) and self.schedule.fills:
            got.turns = self.clock.turns()
        return got

    async def _exchange(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: Part | None, tau: Mapping[str, int]
    ) -> Exchanged:
        """Wait for what belongs to the embeddings that were sent; at a host, answer."""
        roster, me, topology = self.seat.roster, self.seat.me, state.topology
        assert topology is not None
        shared, got = self.local.labels == "shared", Exchanged()
        if me in topology.hosts:
            there, got.late = await self._gather(net, state, rows, batch, mine, [k for k in roster.blocks if tau[k]])
            loss, gradients = self.split.fuse(state, rows, batch, there)
            got.loss = loss if there.parts else None  # nobody who is in time has a row of the batch
            got.own = gradients.get(me)
            await self._answer(net, state, there, gradients, got.late)

            if there.parts:
                got.anew = self._at_host(state, rows, batch, there)
        elif shared and mine:
            seen = await self.copy.receive(net, state, rows, batch, mine)
            if seen is None:
                got.without = (roster.active,)
                return got
            derive = self.copy.loss(state, rows, batch, seen)

            def at_party(now: Part | None) -> Tensor:
                assert now is not None
                return derive(now[1])

            got.anew = at_party
            got.own = at_party(mine)
        if mine and not shared:
            readers = [host for host in topology.readers[me] if host != me]
            answers = await exchange.gradients_of(net, readers, mine[1], or_none=self.hurries)
            got.theirs = tuple(each for each in answers if len(each))
            got.without = tuple(host for host, each in zip(readers, answers, strict=True) if not len(each))
        return got

    def _at_host(self, state: State, rows: Rows, batch: Batch, there: Gathered) -> Derive:
        """Return how a host takes its loss anew: with its heads, and embeddings if it has any, as they are now."""
        assert rows.y is not None
        assert rows.labeled is not None
        y, known = rows.y[batch.rows], rows.labeled[batch.rows]
        heads = state.optimizers.get("heads")  # a user's own may have nothing to train

        @cache
        def stale() -> Stale:  # none is wanted where one iteration is all
            fusion = self.split.fusion(state)
            return Stale.of(self.split, fusion, self.seat, batch, there, y, known)

        def derive(now: Part | None) -> Tensor | None:
            if heads:
                heads.zero_grad()
            return stale().derive(None if now is None else now[1])

        return derive

    async def _gather(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: Part | None, asked: list[str]
    ) -> tuple[Gathered, tuple[str, ...]]:
        """Wait at a host for embeddings; return them, and who was too late."""
        if isinstance(net, Dated) and batch.moment[-1] != 0:
            assert isinstance(self.clock, RealClock)
            net = Dated(net.net, net.moment, within=self.clock.waits)
        there = await self.split.gather(net, state, rows, batch, mine, asked)
        if not isinstance(net, Dated):
            return there, ()
        for name in there.parts:
            self.owed.pop(name, None)
        self.owed.update(dict.fromkeys(net.late, net.moment))
        return there, tuple(net.late)

    async def settle(self, net: Channel, state: State) -> None:
        """Take, at a host, what parties have sent too late: in validation the same lane carries something else."""
        assert state.topology is not None
        expect = {"h": Expect((-1, *state.topology.width))}
        for name, moment in self.owed.items():
            try:
                await Dated(net, moment).recv(name, "embedding", expect)
            except PartyLost:
                continue
        self.owed.clear()

    async def _answer(
        self, net: Channel, state: State, there: Gathered, gradients: Mapping[str, Tensor], late: Sequence[str]
    ) -> None:
        """Send each party what belongs to its embeddings; nothing, but at once, to those that are late."""
        assert state.topology is not None
        nothing = torch.empty(0, *state.topology.width)
        if self.local.labels == "shared":
            await snapshot.send(net, self.seat, state.modules["heads"], there, nothing, late)
            return
        await exchange.share_gradients(net, {**gradients, **dict.fromkeys(late, nothing)})
