"""Combine a split method and a schedule into a method; the schedule determines the training steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, Roster
from anyparty.errors import ConfigError, some
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.schedules.flex import AdaptiveFlex, warn_of_rate
from anyparty.methods.schedules.real_clock import RealClock
from anyparty.methods.schedules.round import MISSED, ROUND, TIME, Round
from anyparty.methods.schedules.schedule import FITS, PACE, RATE, SNAPSHOT, TURNS, LocalIterations, Schedule, TimedRound
from anyparty.methods.schedules.vafl import IDLE, MEETINGS, VAFL, RealVaflParty, VaflParty
from anyparty.methods.schedules.virtual_clock import VirtualClock, check_names
from anyparty.methods.split.rule import GRADIENT
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.topology import Topology
from anyparty.problem.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """A split method with a schedule, its clock, and settings of local iterations."""

    split: Split
    schedule: Schedule
    clock: VirtualClock | RealClock = VirtualClock()
    local: LocalIterations = LocalIterations()

    def __post_init__(self) -> None:
        if self.schedule.at_once and self.local.labels == "shared":
            raise ConfigError(f"schedule: with {self.schedule.title} derivatives come from the active party: set "
                              "labels = 'active'")  # fmt: skip
        if self.local.smoothness is not None and (isinstance(self.clock, RealClock) or isinstance(self.schedule, VAFL)):
            why = (
                "the bound (14) is proven for Flex-VFL, not for VAFL"
                if isinstance(self.schedule, VAFL)
                else "the bound (14) needs the number of iterations of a round, which is unknown in advance with the "
                "real clock"
            )
            raise ConfigError(f"schedule: smoothness = {self.local.smoothness:g} would do nothing, because {why}: "
                              "leave it out")  # fmt: skip

    @property
    def can(self) -> Capabilities:
        """The capabilities of the split method, with the messages sent under the schedule."""
        can, shared = self.split.can, self.local.labels == "shared"
        messages = [SNAPSHOT if shared and message is GRADIENT else message for message in can.messages]
        messages += [PACE, RATE] if self.schedule.adapts else []
        messages += [FITS, TURNS] if isinstance(self.clock, RealClock) and isinstance(self.schedule, TimedRound) else []
        return replace(can, title=f"{can.title}, {self.schedule.title}", messages=tuple(messages))

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's networks and optimizers, as the split method does.

        Raises:
            ConfigError: the settings of clock, schedule or labels are not valid for these parties.
        """
        topology = self.split.topology(seat.roster)
        self._check(topology, seat.roster)
        if self.schedule.adapts and seat.optimizer.schedule != "constant":
            raise ConfigError(
                f"schedule: {self.schedule.title} sets the learning rate of every round itself, at party {seat.me!r} "
                f"too: leave out optimizer.schedule = {seat.optimizer.schedule!r}, or take 'flex'"
            )
        if isinstance(self.clock, VirtualClock):
            warn_of_rate(seat, self.schedule, self.clock, self.local, topology.parties)
        return self.split.begin(seat, seeds)

    @property
    def predictor(self) -> Split:
        """The split method, which predicts, and which a trained model saves."""
        return self.split

    def hosts(self, roster: Roster) -> tuple[str, ...]:
        """Return the hosts of the split method."""
        return self.split.hosts(roster)

    def label_users(self, roster: Roster) -> tuple[str, ...]:
        """Return the hosts; with ``labels = "shared"`` all parties with labels."""
        return roster.labelers if self.local.labels == "shared" else self.hosts(roster)

    def remarks(self, state: State, rows: Rows, training: Tensor) -> Iterator[str]:
        """Return the split method's remarks on networks that training did not reach."""
        return self.split.remarks(state, rows, training)

    def _check(self, topology: Topology, roster: Roster) -> None:
        self.clock.check(topology.parties)
        if isinstance(self.schedule, AdaptiveFlex) and isinstance(self.schedule.A, Mapping):
            check_names("schedule 'adaptive-flex': A", self.schedule.A, topology.parties)
        if topology.unread:
            raise ConfigError(f"schedule: parties exchange embeddings, and no head of {self.split.can.title} reads "
                              f"those of {some(topology.unread)}: name them in the rule's reads, or leave the "
                              f"schedule out")  # fmt: skip
        one_place = len(topology.hosts) == 1
        ticks = self.clock
        if self.schedule.timed and isinstance(ticks, VirtualClock):
            never = [name for name in roster.blocks if not ticks.ever(name)]
            if len(never) == roster.K:
                fastest = min(ticks.least(name) for name in never)
                raise ConfigError(
                    f"clock: a time-out of {ticks.timeout} is shorter than the fastest iteration, "
                    f"{fastest:.4g}: no party would ever train; set clock.timeout to that or more"
                )
            never = [name for name in never if name not in topology.hosts]
            if never and self.schedule.fills and self.split.can.trains_with_all:
                raise ConfigError(f"clock: no iteration of {some(never)} fits into a time-out of {ticks.timeout}, and "
                                  f"{self.split.can.title} needs all parties: no party would ever train; set "
                                  f"clock.timeout to {max(ticks.least(name) for name in never):.4g} "
                                  "or more")  # fmt: skip
        if (self.local.labels == "shared" or self.schedule.at_once) and not one_place:
            raise ConfigError(f"schedule: {self.schedule.title} with labels = {self.local.labels!r} needs all heads "
                              "at the active party: set hosting = 'active'")  # fmt: skip
        without = [name for name in roster.blocks if name not in roster.labelers]
        if self.local.labels == "shared" and without:
            raise ConfigError(f"schedule: labels = 'shared' needs labels at every party, and {some(without)} has no "
                              "labels: give it a label column, or use labels = 'active'")  # fmt: skip

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the split method's one stage of training, in which the schedule defines the steps."""
        stages = self.split.stages(seat)
        play: Round | VaflParty | RealVaflParty
        if isinstance(self.schedule, VAFL) and isinstance(self.clock, RealClock):
            play = RealVaflParty(split=self.split, clock=self.clock, local=self.local, seat=seat)
        elif isinstance(self.schedule, VAFL):
            assert isinstance(self.clock, VirtualClock)
            play = VaflParty(split=self.split, schedule=self.schedule, clock=self.clock, local=self.local, seat=seat)
        else:
            play = Round(split=self.split, schedule=self.schedule, clock=self.clock, local=self.local, seat=seat)
        finish = None if isinstance(play, VaflParty) else play.finish
        return tuple(replace(stage, step=play.step, finish=finish, record=self._record, joint=None) for stage in stages)

    def _record(self, state: State) -> dict[str, float]:
        """Return the entries about time that the active party adds to the record of an epoch.

        All entries count from the start of training. ``time`` is in time units of a virtual clock, ``time_s`` in
        seconds of the real clock. ``rounds`` is the number of rounds. ``missed_rounds`` counts the cases in which a
        party was too late for a round. ``idle_meetings`` counts the exchanges of VAFL that trained nothing.
        ``trace_began_anew`` counts the restarts of a trace of CPU use.
        """
        if TIME not in state.kept:
            return {}
        rounds = int(state.kept[ROUND].item())
        if isinstance(self.clock, RealClock):
            missed = {"missed_rounds": int(state.kept[MISSED].item())} if MISSED in state.kept else {}
            return {"time_s": float(state.kept[TIME].item()), "rounds": rounds, **missed}
        # Only in VAFL: each party's number of exchanges.
        met = state.kept[MEETINGS].tolist() if MEETINGS in state.kept else None
        blocks = state.seat.roster.blocks
        restarts = self.clock.restarts(rounds if met is None else dict(zip(blocks, met, strict=True)))
        record = {"time": float(state.kept[TIME].item()), "rounds": rounds}
        record |= {"idle_meetings": int(state.kept[IDLE].item())} if IDLE in state.kept else {}
        return record | ({"trace_began_anew": restarts} if restarts else {})

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of a prediction, as in the split method without a schedule."""
        return await self.split.predict(net, state, rows, batch, asked)
