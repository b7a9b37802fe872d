"""A circuit breaker for each party: requests do not wait for a party that missed several requests in a row.

A party that hangs therefore delays only a few requests.  The party is probed in the background until it answers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Probe:
    """A background request to a party; an answer after ``until`` is late."""

    number: int
    until: float


@dataclass
class CircuitBreaker:
    """Count consecutive misses by party.  Times are in seconds, and all calls must use the same clock.

    Attributes:
        after: number of consecutive misses after which requests stop waiting for the party.
        every_s: pause between two probes, in seconds.
        misses: consecutive misses by party.

    """

    after: int = 3
    every_s: float = 1.0
    misses: Counter[str] = field(default_factory=Counter)
    _probes: dict[str, Probe] = field(default_factory=dict)
    _next: dict[str, float] = field(default_factory=dict)

    def waits_for(self, party: str) -> bool:
        """Check whether requests wait for a party."""
        return self.misses[party] < self.after

    def reason(self, party: str) -> str:
        """Explain why requests do not wait for a party."""
        return (f"it missed its last {self.misses[party]} requests; it is asked in the background, and takes part "
                f"again once it answers in time")  # fmt: skip

    def probe_due(self, party: str, now: float) -> bool:
        """Check whether a party can be probed again."""
        return now >= self._next.get(party, 0.0)

    def probe(self, party: str, number: int, now: float, until: float) -> None:
        """Record a probe."""
        self._probes[party] = Probe(number, until)
        self._next[party] = max(now + self.every_s, until)

    def message_arrived(self, party: str, number: int, now: float) -> None:
        """Record a message.  If the message answers a probe in time, the breaker closes."""
        probe = self._probes.get(party)
        if probe is not None and probe.number == number and now <= probe.until:
            del self._probes[party]
            self.misses[party] = self.after - 1  # one more miss opens the breaker again

    def answered(self, party: str) -> None:
        """Record that a party answered in time."""
        self.misses[party] = 0

    def missed(self, party: str) -> None:
        """Record that a party missed a deadline."""
        self.misses[party] += 1

    def reset(self, party: str) -> None:
        """Forget a party's misses, because a new process now answers for it."""
        self.misses[party] = 0
        self._probes.pop(party, None)
        self._next.pop(party, None)
