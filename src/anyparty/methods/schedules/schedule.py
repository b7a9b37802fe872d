"""The contract of a schedule: who makes how many local iterations in a round, and how long the round takes.

Letters   K parties with columns, B rows of a mini-batch, B_k those that party k has, H width of an embedding.
Symbols   tau_k   local iterations of party k in a round         Phi    embeddings and heads at the start of a round
          eta_k   its learning rate                              t      local iteration, counted from 0
          w_k^t   weight of its gradient at iteration t (8)      wbar_k the greatest of them
          rho     local momentum                                 mu     strength of the proximal term

A party here is whoever trains something: an encoder, heads, or both; a host's iteration steps both together, as one
block of coordinates.  A separate server is a party that has heads alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from anyparty.core.types import MessageSpec
from anyparty.errors import ConfigError
from anyparty.methods.schedules.virtual_clock import VirtualClock

SNAPSHOT = MessageSpec(
    tag="snapshot",
    frm="host",
    to="block",
    holds="Phi: the others' embeddings of those rows of the batch that party k has, [B_k, H] or less of each, the "
    "weights of the heads, and who takes part",
    learns="party k sees an embedding of its own rows from every other party, and the heads: whatever of a feature an "
    "embedding keeps is seen by all who have the row; no derivative crosses",
)
PACE = MessageSpec(
    tag="pace",
    frm="passive",
    to="active",
    holds="tau_k and wbar_k of the party's last round, and its A_k",
    learns="how fast the party is, its momentum and proximal term",
)
RATE = MessageSpec(
    tag="rate",
    frm="active",
    to="passive",
    holds="eta_k, the party's learning rate in this round",
    learns="nothing else",
)
FITS = MessageSpec(
    tag="fits",
    frm="passive",
    to="active",
    holds="how many local iterations like those of its last round the party completes within the time-out",
    learns="how fast the party is",
    when="Sync-VFL by the real clock",
)
TURNS = MessageSpec(
    tag="turns",
    frm="active",
    to="passive",
    holds="how many local iterations all parties make in this round",
    learns="how fast the slowest or the fastest party is",
    when="Sync-VFL by the real clock",
)
MESSAGES = (SNAPSHOT, PACE, RATE, FITS, TURNS)
"""All messages that schedules send beside those of a method, or instead of them."""


@dataclass(frozen=True, kw_only=True)
class LocalIterations:
    """How parties make local iterations, under any schedule.

    Attributes:
        labels: who has them: "active", the active party alone (and other label holders that host heads): parties go
            on with the derivative that they received, as in FedBCD; or they are "shared", the paper's case: every
            party computes its own loss.
        mu: strength of the proximal term, mu (theta^t - theta^0) beside every gradient.
        momentum: "local" begins anew in every round (of SGD; Adam remembers), as the paper asks; or it is "kept".
        smoothness: an estimate of max{L, L_k}: learning rates that break (14) by it are warned of.

    """

    labels: Literal["active", "shared"] = "active"
    mu: float = 0.0
    momentum: Literal["local", "kept"] = "local"
    smoothness: float | None = None

    def __post_init__(self) -> None:
        if self.labels not in {"active", "shared"}:
            raise ConfigError(f"schedule: labels is 'active' or 'shared', not {self.labels!r}")
        if self.momentum not in {"local", "kept"}:
            raise ConfigError(f"schedule: momentum is 'local' or 'kept', not {self.momentum!r}")
        if not (self.mu >= 0 and math.isfinite(self.mu)):
            raise ConfigError(f"schedule: mu must be a number and not negative, got {self.mu}")
        if self.smoothness is not None and not (self.smoothness > 0 and math.isfinite(self.smoothness)):
            raise ConfigError(f"schedule: smoothness must be a positive number, got {self.smoothness}")


class Schedule(Protocol):
    """Who steps when.

    Attributes:
        title: for people.
        timed: whether the clock's time-out plays a part.
        fills: whether each party makes as many iterations as it has time for, whatever the others do.
        at_once: whether parties meet one by one instead of in rounds.
        adapts: whether the active party sets learning rates.

    """

    title: ClassVar[str]
    timed: ClassVar[bool]
    fills: ClassVar[bool]
    at_once: ClassVar[bool]
    adapts: ClassVar[bool]

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:
        """Return tau_k for every party in the round ``number``; 0 takes no part."""

    def lasts(self, clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
        """Return how long the round takes in which parties make ``made`` iterations."""


def slowest(clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
    """Return how long it takes until every party has made its iterations."""
    return max((tau * clock.takes(party, number) for party, tau in made.items()), default=0.0)


class SharedRound:
    """A round that lasts until everybody is done."""

    def lasts(self, clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
        """Return one round trip and what the slowest party needs."""
        return clock.latency + slowest(clock, made, number)


class TimedRound(SharedRound):
    """A round in which all make equally many iterations, by the time-out and what parties complete within it."""

    def common(self, fits: Sequence[int]) -> int:
        """Return how many all make, of how many each would complete; 1 where nobody knows.

        Raises:
            NotImplementedError: a schedule does not say.
        """
        raise NotImplementedError

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:
        """Return the same number for each."""
        return dict.fromkeys(parties, self.common([clock.fits(party, number) for party in parties]))
