"""A virtual clock: the durations of iterations and messages are data, in time units.

No code in this file waits. A simulation adds up the time that rounds would have taken, so its result is reproducible.
Speeds are constant, or follow a trace of CPU use: if a share c of a machine's CPU is in use, an iteration takes
(1 - c)^-1 times as long (Flex-VFL, sections VII-D and VII-F).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.errors import ConfigError, nearest, some

EXACT = 1e-9  # relative tolerance for rounding errors, so that 20 / (20 / 15) counts as 15
MOST = 10**12  # upper limit of the number of local iterations in a round


@dataclass(frozen=True, kw_only=True)
class VirtualClock:
    """A clock that simulates the durations of iterations, messages and rounds, in time units.

    Attributes:
        iteration: duration of one local iteration: a number for all parties, or a number for each party (default 1).
        latency: duration of one round trip between a passive party and the active party.
        timeout: duration of a round's local training, for schedules with a time-out.
        use: a trace for each party: the share of the party's CPU that other programs use in each round, [0, 1). After
            the last sample, a trace starts again with the first.

    """

    iteration: float | Mapping[str, float] = 1.0
    latency: float = 1.0
    timeout: float = 10.0
    use: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("latency", self.latency), ("timeout", self.timeout), *self._iterations()):
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"clock: {name} must be a positive number of time units, got {value}")
        for party, trace in self.use.items():
            if not len(trace) or not all(0 <= c < 1 for c in trace):
                raise ConfigError(f"clock: use of party {party!r} must be at least one share in [0, 1): 0.25 is a "
                                  f"quarter of its CPU")  # fmt: skip

    def _iterations(self) -> list[tuple[str, float]]:
        if isinstance(self.iteration, Mapping):
            return [(f"iteration of party {party!r}", value) for party, value in self.iteration.items()]
        return [("iteration", self.iteration)]

    def check(self, parties: Iterable[str]) -> None:
        """Raise an error if a setting contains the name of a party that is not in ``parties``.

        Raises:
            ConfigError: a name is unknown; the message contains the name and the most similar known name.
        """
        check_names("clock", [*(self.iteration if isinstance(self.iteration, Mapping) else ()), *self.use], parties)

    def takes(self, party: str, number: int) -> float:
        """Return the duration of a party's local iteration in its round ``number``, counted from 0."""
        times = self._known[party][0]
        return times[number % len(times)]

    def fits(self, party: str, number: int) -> int:
        """Return the number of local iterations, perhaps 0, that a party completes within the time-out."""
        fits = self._known[party][1]
        return fits[number % len(fits)]

    @cached_property
    def _known(self) -> ClockSamples:
        """A cache of each party's iteration durations, and of its numbers of iterations within the time-out."""
        return ClockSamples(self)

    def ever(self, party: str) -> bool:
        """Return whether an iteration of a party fits into the time-out in any round."""
        return any(self._known[party][1])

    def least(self, party: str) -> float:
        """Return the duration of a party's fastest iteration in any round."""
        return min(self._known[party][0])

    def restarts(self, rounds: int | Mapping[str, int]) -> int:
        """Return how often traces of CPU use have restarted after ``rounds`` rounds: the maximum over all traces.

        ``rounds`` is one number for all parties, or a number for each party. A trace of a single sample never restarts.
        """
        made = {party: rounds if isinstance(rounds, int) else rounds.get(party, 0) for party in self.use}
        return max((max(made[k] - 1, 0) // len(trace) for k, trace in self.use.items() if len(trace) > 1), default=0)


class ClockSamples(dict[str, tuple[tuple[float, ...], tuple[int, ...]]]):
    """A cache from a party to (durations, counts), each with one value for each sample of the party's trace.

    A duration is the time of one local iteration. A count is the number of iterations that fit into the time-out.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

    def __missing__(self, party: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Compute the entry of a party at its first use."""
        clock = self.clock
        own = clock.iteration.get(party, 1.0) if isinstance(clock.iteration, Mapping) else clock.iteration
        times = tuple(own / (1 - share) for share in clock.use.get(party, (0.0,)))
        if clock.timeout > MOST * min(times):
            raise ConfigError(f"clock: party {party!r} would make more than {MOST:,} iterations of {min(times):g} in "
                              f"timeout = {clock.timeout:g}; lower it, or let iterations last")  # fmt: skip
        self[party] = times, tuple(math.floor(clock.timeout / each * (1 + EXACT)) for each in times)
        return self[party]


def check_names(what: str, named: Iterable[str], parties: Iterable[str]) -> None:
    """Raise an error if a name in ``named`` is not in ``parties``; ``what`` begins the message.

    Raises:
        ConfigError: a name is unknown; the message contains the name and the most similar known name.
    """
    known = list(parties)
    for name in named:
        if name not in known:
            raise ConfigError(f"{what}: there is no party {name!r} that trains anything{nearest(name, known)}")


def trace_of(path: Path | str) -> dict[str, tuple[float, ...]]:
    """Read CPU use by round from a CSV file with a column of shares in [0, 1) for each party.

    Raises:
        ConfigError: the file does not exist, a column is not numeric, or a cell is empty.
    """
    try:
        frame = pl.read_csv(path, glob=False).cast(pl.Float64)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f"clock.trace: {path} cannot be read ({str(error).splitlines()[0]}); write a CSV file with "
                          f"a column of CPU use, [0, 1), for each party") from None  # fmt: skip
    empty = [name for name in frame.columns if frame[name].null_count()]
    if empty:
        raise ConfigError(f"clock.trace: {path} has empty cells in column {some(empty)}: write a share for every "
                          f"round, or take the column out for a machine that is idle")  # fmt: skip
    return {name: tuple(frame[name].to_list()) for name in frame.columns}


def machines(
    cpu: NDArray[np.float32], parties: Iterable[str], seeds: Seeds, *, average: bool = False
) -> dict[str, tuple[float, ...]]:
    """Draw a machine for each party at random, and return the CPU use of each party's machine.

    Args:
        cpu: [machines, samples], in per cent.
        parties: the parties that get a machine.
        seeds: the source of random numbers; the draw uses the stream "machines".
        average: whether a machine's mean CPU use holds for all rounds (Flex-VFL, section VII-D). If not, each of the
            machine's samples is for one round (section VII-F).

    """
    names, shares = list(parties), cpu.astype(np.float64) / 100
    drawn = seeds.numpy("machines").choice(len(shares), len(names), replace=False)
    if average:
        return {name: (float(shares[m].mean()),) for name, m in zip(names, drawn, strict=True)}
    return {name: tuple(shares[m].tolist()) for name, m in zip(names, drawn, strict=True)}


def google_trace(
    parties: Iterable[str], seeds: Seeds, *, average: bool = False, data_dir: Path | None = None
) -> dict[str, tuple[float, ...]]:
    """Return the CPU use of one machine in Google's cluster for each party: a value every five minutes for 23 hours.

    Raises:
        TableError: the data set "google-cluster" is missing; the message says where to get it.
    """
    usage = datasets.load("google-cluster", data_dir=data_dir, progress=False).X_train  # [1600 machines, 276 times, 2]
    return machines(usage[:, :, 0], parties, seeds, average=average)
