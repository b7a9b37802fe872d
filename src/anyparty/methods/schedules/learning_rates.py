"""Learning rates of Adaptive Flex-VFL: parties report tau_k and wbar_k, and the active party sets their rates.

The paper sends tau_k and wbar_k at the end of a round (Algorithm 2, line 15). Here they are sent with the next
embeddings, so that a round is still one round trip. If tau_k is not known before the first round, that round is the
dummy round of section VI: its rate is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import ConfigError, PartyLost, remark
from anyparty.methods.method import PartyContext, State
from anyparty.methods.schedules.flex import AdaptiveFlex, greatest
from anyparty.methods.schedules.local_steps import set_rate
from anyparty.methods.schedules.schedule import PACE, RATE, LocalIterations, Schedule
from anyparty.methods.schedules.virtual_clock import VirtualClock

PACE_EXPECT = {"pace": TensorSpec((3,), torch.float64)}
RATE_EXPECT = {"rate": TensorSpec((), torch.float64)}


def begin(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int | None) -> Tensor:
    """Return the party's report [tau_k, wbar_k, A_k] of its last round: [3] float64.

    In the first round these are the planned values. If ``tau`` is ``None``, the number of iterations is not known, and
    A_k is 0 in the first round.
    """
    if PACE.tag not in state.kept and tau is None:
        return torch.tensor([1, 1, 0], dtype=torch.float64)
    if PACE.tag not in state.kept:
        assert tau is not None
        _first(state, schedule, local, tau)
    return state.kept[PACE.tag]


def _first(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int) -> None:
    """Store a party's first report. If A_k is not given, the party's rate at ``tau`` is the optimizer's own."""
    lr = state.seat.optimizer.lr
    wbar = wbar_of(state.seat, local, tau, lr)
    given = schedule.amount(state.seat.me)
    amount = lr * tau * wbar if given is None else given
    state.kept[PACE.tag] = torch.tensor([tau, wbar, amount], dtype=torch.float64)


def rate_of(pace: Tensor) -> float:
    """Return eta_k = A_k / (tau_k wbar_k) (Algorithm 2, line 17)."""
    tau, wbar, amount = pace.tolist()
    return float(amount / (tau * wbar))


def keep(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int, rate: float) -> None:
    """Store tau_k and wbar_k of the party's round."""
    if PACE.tag not in state.kept:
        _first(state, schedule, local, tau)
        return
    amount = state.kept[PACE.tag][2].item()
    state.kept[PACE.tag] = torch.tensor([tau, wbar_of(state.seat, local, tau, rate), amount], dtype=torch.float64)


async def agree(net: Channel, state: State, others: Sequence[str], mine: Tensor) -> float:
    """Set the party's learning rate and return it.

    The active party first sends a rate to each of the ``others`` that take part. ``mine`` is the party's own report
    [tau_k, wbar_k, A_k].
    """
    seat = state.seat
    if seat.me != seat.roster.active:
        rate = float((await net.recv(seat.roster.active, RATE.tag, RATE_EXPECT))["rate"])
        set_rate(state, rate)
        return rate
    for name in others:
        try:
            pace = (await net.recv(name, PACE.tag, PACE_EXPECT))["pace"]
        except PartyLost:
            continue  # the wait for its embeddings handles the lost party
        await net.send(name, RATE.tag, {"rate": torch.tensor(rate_of(pace), dtype=torch.float64)})
    rate = rate_of(mine)
    set_rate(state, rate)
    return rate


def bound(smoothness: float, tau: int, wbar: float) -> float:
    """Return the right-hand side of (14), an upper bound of a learning rate.

    >>> bound(2.0, 5, 1.0)
    0.00625
    """
    return 1 / (16 * tau * smoothness * wbar)


def wbar_of(seat: PartyContext, local: LocalIterations, tau: int, rate: float) -> float:
    """Return a party's wbar_k for ``tau`` local iterations at a learning rate.

    Raises:
        ConfigError: wbar_k is infinite, for example because eta mu is far above 1.
    """
    momentum = seat.optimizer.momentum if seat.optimizer.name == "sgd" else 0.0
    found = greatest(tau, momentum=momentum, pull=rate * local.mu)
    if not math.isfinite(found):
        raise ConfigError(
            f"schedule: with mu = {local.mu:g} and a learning rate of {rate:g} the weights of {tau} local iterations "
            f"of {seat.me!r} are unbounded; lower one of them"
        )
    return found


def warn(
    seat: PartyContext, schedule: Schedule, clock: VirtualClock, local: LocalIterations, parties: Sequence[str]
) -> None:
    """Warn if a party's learning rate exceeds the bound (14) in any round in which the party takes part.

    The bound uses ``local.smoothness``; without it there is no check. In Adaptive Flex-VFL, the rate
    A_k / (tau_k wbar_k) is computed from the previous round. If a party makes more iterations in the next round, the
    rate may exceed the bound although A_k <= 1 / (16 L). The factor alpha in (20) covers that case.
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
