"""The real clock, for a federation of real processes: a party makes local iterations until its time-out has passed.

The time-out is in seconds. At each party, the time-out starts when the party has received the messages of the exchange.
The machines determine the speeds, and the network determines the latency. No party knows the deadline of another party.
In Flex-VFL a host waits ``grace`` seconds for embeddings. A party whose embeddings arrive later misses the round, and
the other parties continue. In the first round of an epoch, and with a method that needs all parties, the host waits for
all parties. A run with a real clock is not reproducible from its seed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from anyparty.core.types import Channel, ChannelWrapper, Tensors, TensorSpec, check
from anyparty.errors import ConfigError, MessageError, PartyLost
from anyparty.methods.method import State
from anyparty.methods.schedules.schedule import FITS, TURNS, TimedRound


@dataclass(frozen=True, kw_only=True)
class RealClock:
    """A clock of real seconds, with the time limits of a round.

    Attributes:
        timeout: the local training period of a round, in seconds.
        grace: number of seconds that a host, once ready, waits for embeddings. Only schedules that do not wait for the
            slowest party use it. The default is the time-out.
        now: function that returns the seconds since a fixed point in time.

    """

    timeout: float = 10.0
    grace: float | None = None
    now: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ConfigError(f"clock: timeout must be a positive number of seconds, got {self.timeout}")
        if self.grace is not None and not (self.grace > 0 and math.isfinite(self.grace)):
            raise ConfigError(f"clock: grace must be a positive number of seconds, got {self.grace}")

    @property
    def waits(self) -> float:
        """The number of seconds that a host waits for embeddings: ``grace``, or by default ``timeout``."""
        return self.timeout if self.grace is None else self.grace

    def check(self, parties: Iterable[str]) -> None:
        """Accept any parties: a real clock has no settings by party."""

    def turns(self) -> Iterator[int]:
        """Yield the index of each local iteration, from 0, until the time-out has passed.

        The first iteration always takes place. Another iteration follows if it is expected to end before the
        time-out. The expected duration is that of the previous iteration.
        """
        began = last = self.now()
        t, took = 0, 0.0
        while not t or last + took - began <= self.timeout:
            yield t
            t, took, last = t + 1, self.now() - last, self.now()


TOOK = "took"
UNKNOWN, SHORTEST_S = -1, 1e-6
NUMBER = TensorSpec((), torch.int64)


def note(state: State, made: int, seconds: float) -> None:
    """Store the mean duration of this party's iterations in the last round.

    If no iteration was made (``made`` is 0), the stored duration does not change.
    """
    if made:
        state.kept[TOOK] = torch.tensor(seconds / made, dtype=torch.float64)


def fits(state: State, clock: RealClock) -> int:
    """Return the number of iterations that fit into the time-out if each lasts as long as in the last round.

    The result is -1 if the party has not made an iteration yet.
    """
    if TOOK not in state.kept:
        return UNKNOWN
    return math.floor(clock.timeout / max(state.kept[TOOK].item(), SHORTEST_S))


async def say(net: Channel, state: State, clock: RealClock) -> None:
    """Report to the active party the number of this party's iterations that fit into the time-out.

    At the active party, do nothing.
    """
    seat = state.seat
    if seat.me != seat.roster.active:
        await net.send(seat.roster.active, FITS.tag, {"fits": torch.tensor(fits(state, clock))})


async def agree(net: Channel, state: State, schedule: TimedRound, clock: RealClock, others: Sequence[str]) -> int:
    """Let the active party determine the number of iterations of every party from all reports, and return this number.

    ``others`` are the passive parties that take part; only the active party uses this argument.

    Raises:
        PartyLost: the active party left.
    """
    seat = state.seat
    if seat.me != seat.roster.active:
        return int((await net.recv(seat.roster.active, TURNS.tag, {"turns": NUMBER}))["turns"])
    received, present = [fits(state, clock)], []
    for name in others:
        try:
            received.append(int((await net.recv(name, FITS.tag, {"fits": NUMBER}))["fits"]))
        except PartyLost:
            continue  # no error here: the later wait for embeddings reports that this party was lost
        present.append(name)
    turns = schedule.common([each for each in received if each != UNKNOWN])
    for name in present:
        await net.send(name, TURNS.tag, {"turns": torch.tensor(turns)})
    return turns


STEP_KEY = "moment"
WHEN = TensorSpec((2,), torch.int64)


@dataclass
class RoundChannel(ChannelWrapper):
    """A party's end of a channel in one round; every message carries the epoch and the step of its round.

    Attributes:
        step_id: (stage, epoch, step) of the round.
        within: time limit of the messages, in seconds from the first call of ``recv``; ``None`` means no limit.
        late: the parties whose messages were too late.

    """

    step_id: tuple[str | int, ...]
    within: float | None = None
    late: list[str] = field(default_factory=list)

    @cached_property
    def _until(self) -> float | None:
        return None if self.within is None else asyncio.get_running_loop().time() + self.within

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send a message of this round."""
        when = torch.tensor(self.step_id[1:], dtype=torch.int64)
        return await self.channel.send(to, tag, {**tensors, STEP_KEY: when})

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Wait for a message of this round; discard messages of earlier rounds.

        Raises:
            PartyLost: the sender left, or its message was too late.
            MessageError: the message does not match ``expect``, or belongs to a later round.
        """
        try:
            async with asyncio.timeout_at(self._until):
                return await self._recv(frm, tag, expect)
        except TimeoutError:
            self.late.append(frm)
            raise PartyLost(frm, f"its {tag!r} arrived too late for this round of {self.me!r}") from None

    async def _recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        any_rows = {
            name: replace(each, shape=(-1, *each.shape[1:])[: len(each.shape)]) for name, each in expect.items()
        }
        what = f"message {tag!r} from {frm!r} to {self.me!r}"
        while True:
            got = await self.channel.recv(frm, tag, any_rows | {STEP_KEY: WHEN})
            when = tuple(got.pop(STEP_KEY).tolist())
            if when > self.step_id[1:]:
                raise MessageError(f"{what}: it is of epoch and batch {when}, here it is {self.step_id[1:]}")
            if when == self.step_id[1:]:
                check(got, expect, what)
                return got
