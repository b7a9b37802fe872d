"""The bound on learning rates under which Flex-VFL is shown to converge (Flex-VFL, theorem 1).

    eta_k <= 1 / (16 tau_k max{L, L_k} wbar_k)                                                               (14)

L and L_k, the smoothness of the loss, are known of no network; where somebody has an estimate, a rate that breaks the
bound is named.  Such a rate may converge all the same: (14) is sufficient, not necessary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anyparty.errors import ConfigError, remark
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
    """Return a party's wbar_k for ``tau`` local iterations at a learning rate.

    Raises:
        ConfigError: it is beyond all bounds, as where eta mu is far above 1.
    """
    momentum = seat.optimizer.momentum if seat.optimizer.name == "sgd" else 0.0
    found = greatest(tau, momentum=momentum, pull=rate * local.mu)
    if not math.isfinite(found):
        raise ConfigError(f"schedule: with mu = {local.mu:g} and a learning rate of {rate:g} {tau} local iterations of "
                          f"{seat.me!r} have no bound; lower one of them")  # fmt: skip
    return found


def warn(seat: Seat, schedule: Schedule, clock: Clock, local: Local, parties: Sequence[str]) -> None:
    """Warn where a party's rate breaks (14) in any round that it takes part in, by ``local.smoothness``.

    Adaptive Flex-VFL's rate A_k / (tau_k wbar_k) is of the round before: where a party makes more iterations than then,
    it may break the bound though A_k <= 1 / (16 L); (20) has a factor alpha for that.
    """
    if local.smoothness is None or seat.me not in parties:
        return
    rounds = max((len(trace) for trace in clock.use.values()), default=1)
    made = [schedule.iterations(clock, parties, number)[seat.me] for number in range(rounds)]
    made = [tau for tau in made if tau] or [1]
    pairs = [(seat.optimizer.lr, max(made))]
    if isinstance(schedule, AdaptiveFlex):
        wbar = {tau: wbar_of(seat, local, tau, seat.optimizer.lr) for tau in made}
        amount = schedule.amount(seat.me)
        if amount is None:
            amount = seat.optimizer.lr * made[0] * wbar[made[0]]
        before = zip([made[0], *made], [*made, made[0]], strict=True)
        pairs = [(amount / (last * wbar[last]), tau) for last, tau in before]
    rate, tau = max(pairs, key=lambda each: each[0] * each[1] * wbar_of(seat, local, each[1], each[0]))
    wbar_k = wbar_of(seat, local, tau, rate)
    most = bound(local.smoothness, tau, wbar_k)
    if rate > most * (1 + 1e-9):
        remark(
            f"party {seat.me!r}: a learning rate of {rate:.4g} breaks the bound (14) of Flex-VFL: with {tau} local "
            f"iterations, weights up to {wbar_k:.4g} and an estimated smoothness of {local.smoothness:g} convergence "
            f"is shown up to {most:.4g}; lower the rate, or shorten the time-out"
        )
