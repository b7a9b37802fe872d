"""The real clock, for a federation of real processes: a party makes local iterations until its time-out has passed.

A time-out is in seconds here, and starts at each party when it has what the exchange brings it; speeds and latency are
what they are.  Nobody's deadline is known to the others.  In Flex-VFL a host waits ``grace`` seconds for embeddings;
a party that is later misses the round, and the others go on.  The first round of an epoch waits for everybody, and so
does a method that needs everybody.  A run is no function of its seed any more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from anyparty.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RealClock:
    """Seconds, as they pass.

    Attributes:
        timeout: the local training period of a round, in seconds.
        grace: how many seconds a host that is ready itself waits for embeddings, in schedules that do not wait for the
            slowest; by default the time-out.
        now: returns seconds since any one moment.

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
        """How many seconds a host waits for embeddings."""
        return self.timeout if self.grace is None else self.grace

    def check(self, parties: Iterable[str]) -> None:
        """Names no party, so that none can be unknown."""

    def turns(self) -> Iterator[int]:
        """Count local iterations: one, then as long as another that takes as long as the last ends in time."""
        began = last = self.now()
        t, took = 0, 0.0
        while not t or last + took - began <= self.timeout:
            yield t
            t, took, last = t + 1, self.now() - last, self.now()
