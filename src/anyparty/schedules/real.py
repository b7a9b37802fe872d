"""The real clock, for a federation of real processes: a party makes local iterations until its time-out has passed.

A time-out is in seconds here, and starts at each party when it has what the exchange brings it; speeds and latency are
what they are.  Nobody's deadline is known to the others, who wait for its embeddings: every party makes at least one
iteration a round, as the paper asks.  A run is no function of its seed any more.
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
        now: returns seconds since any one moment.

    """

    timeout: float = 10.0
    now: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ConfigError(f"clock: timeout must be a positive number of seconds, got {self.timeout}")

    def check(self, parties: Iterable[str]) -> None:
        """Names no party, so that none can be unknown."""

    def turns(self) -> Iterator[int]:
        """Count local iterations: one, then as long as another that takes as long as the last ends in time."""
        began = last = self.now()
        t, took = 0, 0.0
        while not t or last + took - began <= self.timeout:
            yield t
            t, took, last = t + 1, self.now() - last, self.now()
