"""The bound on learning rates under which Flex-VFL is shown to converge (Flex-VFL, theorem 1).

    eta_k <= 1 / (16 tau_k max{L, L_k} wbar_k)                                                               (14)

L and L_k, the smoothness of the loss, are known of no network; where somebody has an estimate, a rate that breaks the
bound is named.  Such a rate may converge all the same: (14) is sufficient, not necessary.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from anyparty.methods.method import Seat
from anyparty.schedules.clock import Clock
from anyparty.schedules.flex import AdaptiveFlex, greatest
from anyparty.schedules.schedule import Local, Schedule


def bound(smoothness: float, tau: int, wbar: float) -> float:
    """Return the right side of (14).

    >>> bound(2.0, 5, 1.0)
    0.00625
    """
    return 1 / (16 * tau * smoothness * wbar)


def wbar_of(seat: Seat, local: Local, tau: int, rate: float) -> float:
    """Return a party's wbar_k for ``tau`` local iterations at a learning rate."""
    momentum = seat.optimizer.momentum if seat.optimizer.name == "sgd" else 0.0
    return greatest(tau, momentum=momentum, pull=rate * local.mu)


def warn(seat: Seat, schedule: Schedule, clock: Clock, local: Local, parties: Sequence[str]) -> None:
    """Warn where a party's rate breaks (14) in any round, by ``local.smoothness``; Adaptive Flex-VFL's in its first.

    Its rate is A_k / (tau_k wbar_k) in every round, so that it breaks the bound in all or in none.
    """
    if local.smoothness is None or seat.me not in parties:
        return
    adaptive = schedule if isinstance(schedule, AdaptiveFlex) else None
    rounds = 1 if adaptive else max((len(trace) for trace in clock.use.values()), default=1)
    tau = max(1, *(schedule.iterations(clock, parties, number)[seat.me] for number in range(rounds)))
    rate = seat.optimizer.lr
    wbar = wbar_of(seat, local, tau, rate)
    amount = None if adaptive is None else adaptive.amount(seat.me)
    if amount is not None:
        rate = amount / (tau * wbar)
    most = bound(local.smoothness, tau, wbar)
    if rate > most * (1 + 1e-9):
        warnings.warn(
            f"party {seat.me!r}: a learning rate of {rate:.4g} breaks the bound (14) of Flex-VFL: with {tau} local "
            f"iterations, weights up to {wbar:.4g} and an estimated smoothness of {local.smoothness:g} convergence is "
            f"shown up to {most:.4g}; lower the rate, or shorten the time-out",
            stacklevel=2,
        )
