"""Adaptive Flex-VFL's learning rates: parties say how their last round went, the active party how fast to learn.

The paper sends tau_k and wbar_k at the end of a round (Algorithm 2, line 15); here they go with the next embeddings, so
that a round is still one round trip.  Where nobody knows tau_k before the first round, it is the dummy round of section
VI: its rate is 0.
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
    """Return [tau_k, wbar_k, A_k] as a party knows them: of its last round, or of its first as it is planned.

    ``tau`` is ``None`` where that is not known; then A_k is 0 in the first round.
    """
    if PACE.tag not in state.kept and tau is None:
        return torch.tensor([1, 1, 0], dtype=torch.float64)
    if PACE.tag not in state.kept:
        assert tau is not None
        _first(state, schedule, local, tau)
    return state.kept[PACE.tag]


def _first(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int) -> None:
    """Note a party's A_k: given, or what makes its rate the optimizer's own at ``tau``."""
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
    """Note how a party's round went."""
    if PACE.tag not in state.kept:
        _first(state, schedule, local, tau)
        return
    amount = state.kept[PACE.tag][2].item()
    state.kept[PACE.tag] = torch.tensor([tau, wbar_of(state.seat, local, tau, rate), amount], dtype=torch.float64)


async def agree(net: Channel, state: State, others: Sequence[str], mine: Tensor) -> float:
    """Set the party's rate and return it; at the active party, also that of the ``others`` that take part.

    ``mine`` is the party's own pace.
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
            continue  # it is missed where its embeddings are waited for
        await net.send(name, RATE.tag, {"rate": torch.tensor(rate_of(pace), dtype=torch.float64)})
    rate = rate_of(mine)
    set_rate(state, rate)
    return rate


def bound(smoothness: float, tau: int, wbar: float) -> float:
    """Return the right side of (14).

    >>> bound(2.0, 5, 1.0)
    0.00625
    """
    return 1 / (16 * tau * smoothness * wbar)


def wbar_of(seat: PartyContext, local: LocalIterations, tau: int, rate: float) -> float:
    """Return a party's wbar_k for ``tau`` local iterations at a learning rate.

    Raises:
        ConfigError: it is beyond all bounds, as where eta mu is far above 1.
    """
    momentum = seat.optimizer.momentum if seat.optimizer.name == "sgd" else 0.0
    found = greatest(tau, momentum=momentum, pull=rate * local.mu)
    if not math.isfinite(found):
        raise ConfigError(
            f"schedule: with mu = {local.mu:g} and a learning rate of {rate:g} {tau} local iterations of "
            f"{seat.me!r} have no bound; lower one of them"
        )
    return found


def warn(
    seat: PartyContext, schedule: Schedule, clock: VirtualClock, local: LocalIterations, parties: Sequence[str]
) -> None:
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
