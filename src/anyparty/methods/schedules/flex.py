"""Flex-VFL and Adaptive Flex-VFL.  Castiglia, Wang, Patterson: "Flexible Vertical Federated Learning with
Heterogeneous Parties", 2022, Algorithms 1 and 2.

Round     The host receives embeddings and returns gradients or Phi. Then every party k makes tau_k local iterations on
          the same mini-batch, with the other parties' embeddings as at the start of the round       (Algorithm 1)
tau_k     as many as the time-out allows: floor(time-out / time of an iteration)
Update    theta^{t+1} = theta^t - eta_k D_k,   sum_t D_k = sum_t w_k^t g_k^t                               (6), (8)
          SGD w^t = 1; local momentum w^t = (1 - rho^{tau-t}) / (1 - rho); proximal w^t = (1 - eta mu)^{tau-1-t}
Rate      eta_k^{r+1} = A_k / (tau_k^r wbar_k^r),  wbar = max_t w^t                         (Algorithm 2, line 17)

Known differences from the paper
- The paper requires at least one iteration of every party. Here a party misses the round if its iteration does not fit
  into the time-out or if it has no row of the batch; the other parties continue. A host always makes one iteration,
  because the others wait for its gradients. If this iteration takes longer than the time-out, the round lasts until
  the iteration ends.
- A host that also has an encoder updates it together with its heads, as one block of coordinates.
- The exponent of the proximal weights is tau - 1 - t, which follows from the paper's own recursion; its displayed
  formula has tau - t + 1. These weights are below 1, although the text below (8) says w >= 1.
- By default A_k makes the rate of the first round equal to the optimizer's own learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from anyparty.errors import ConfigError
from anyparty.methods.schedules.schedule import slowest
from anyparty.methods.schedules.virtual_clock import VirtualClock


@dataclass(frozen=True, kw_only=True)
class Flex:
    """Schedule in which each party makes as many local iterations as it completes within the time-out."""

    title: ClassVar[str] = "Flex-VFL"
    timed: ClassVar[bool] = True
    fills: ClassVar[bool] = True
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:
        """Return tau_k of each party."""
        return {party: clock.fits(party, number) for party in parties}

    def lasts(self, clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
        """Return the duration of a round: one round trip plus the time-out.

        If a host's single iteration takes longer than the time-out, its duration replaces the time-out.
        """
        return clock.latency + max(clock.timeout, slowest(clock, made, number))


@dataclass(frozen=True, kw_only=True)
class AdaptiveFlex(Flex):
    """Flex-VFL with learning rates adapted to each party's speed and optimizer.

    Attributes:
        A: A_k, one value for all parties or one for each party. By default the rate of the first round is the
            optimizer's own.

    """

    A: float | Mapping[str, float] | None = None

    title: ClassVar[str] = "Adaptive Flex-VFL"
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        named = self.A if isinstance(self.A, Mapping) else {} if self.A is None else {"": self.A}
        for party, value in named.items():
            if not (value > 0 and math.isfinite(value)):
                whose = f" of party {party!r}" if party else ""
                raise ConfigError(f"schedule 'adaptive-flex': A{whose} must be a positive number, got {value}")

    def amount(self, party: str) -> float | None:
        """Return A_k of a party, ``None`` if it was not given."""
        return self.A.get(party) if isinstance(self.A, Mapping) else self.A


def weights(tau: int, *, momentum: float = 0.0, pull: float = 0.0) -> list[float]:
    """Return the weights w^0 .. w^{tau-1} of (8), for local momentum rho, a proximal term (``pull`` = eta mu) or both.

    A gradient's weight depends only on the number of iterations after it. So one sequence gives all weights: the
    displacement of the parameters by a single gradient of 1, in units of -eta, after 1, 2, ... tau iterations.

    >>> weights(3)
    [1.0, 1.0, 1.0]
    >>> weights(3, momentum=0.5)
    [1.75, 1.5, 1.0]
    >>> weights(3, pull=0.5)
    [0.25, 0.5, 1.0]
    """
    moved, speed, after = 1.0, 1.0, [1.0][:tau]
    for _ in range(tau - 1):
        speed = momentum * speed - pull * moved
        moved += speed
        after.append(moved)
    return after[::-1]


def greatest(tau: int, *, momentum: float, pull: float) -> float:
    """Return wbar, the greatest weight; 1 if the party makes no iteration."""
    return max(weights(tau, momentum=momentum, pull=pull), default=1.0)
