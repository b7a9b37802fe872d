"""Whom to wait for: a party that misses several requests in a row is asked in the background until it is back.

So one party that hangs costs a few requests their whole budget, and not every request.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Probe:
    """A request that a party was asked in the background: its number, and until when an answer is in time."""

    number: int
    until: float


@dataclass
class Breaker:
    """Counts what parties miss.  Times are seconds of any one clock.

    Attributes:
        after: so many requests missed in a row, and nobody waits for the party.
        every_s: the pause between two requests that it is asked in the background.
        misses: by party, in a row.

    """

    after: int = 3
    every_s: float = 1.0
    misses: Counter[str] = field(default_factory=Counter)
    _probes: dict[str, Probe] = field(default_factory=dict)
    _next: dict[str, float] = field(default_factory=dict)

    def waits(self, party: str) -> bool:
        """Say whether requests wait for a party."""
        return self.misses[party] < self.after

    def why(self, party: str) -> str:
        """Return why nobody waits."""
        return (f"it missed its last {self.misses[party]} requests; it is asked in the background, and takes part "
                f"again once it answers in time")  # fmt: skip

    def probes(self, party: str, now: float) -> bool:
        """Say whether it is time to ask a party in the background."""
        return now >= self._next.get(party, 0.0)

    def probe(self, party: str, number: int, now: float, until: float) -> None:
        """Remember that a party was asked in the background."""
        self._probes[party] = Probe(number, until)
        self._next[party] = max(now + self.every_s, until)

    def heard(self, party: str, number: int, now: float) -> None:
        """Take a message of a party: an answer in time to what it was asked in the background ends the wait."""
        probe = self._probes.get(party)
        if probe is not None and probe.number == number and now <= probe.until:
            del self._probes[party]
            self.misses[party] = self.after - 1  # one more miss, and nobody waits again

    def answered(self, party: str) -> None:
        """Take note that a party answered in time."""
        self.misses[party] = 0

    def missed(self, party: str) -> None:
        """Take note that a party missed a deadline."""
        self.misses[party] += 1

    def forget(self, party: str) -> None:
        """Begin anew with a party, as another process of its own answers."""
        self.misses[party] = 0
        self._probes.pop(party, None)
        self._next.pop(party, None)
