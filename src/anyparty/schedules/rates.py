"""Adaptive Flex-VFL's learning rates: parties say how their last round went, the active party how fast to learn.

The paper sends tau_k and wbar_k at the end of a round (Algorithm 2, line 15); here they go with the next embeddings, so
that a round is still one round trip.  Where nobody knows tau_k before the first round, it is the dummy round of section
VI: its rate is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyparty.errors import PartyLost
from anyparty.methods.method import State
from anyparty.schedules.bound import wbar_of
from anyparty.schedules.flex import AdaptiveFlex
from anyparty.schedules.local import set_rate
from anyparty.schedules.schedule import PACE, RATE, Local
from anyparty.terms import Channel, Expect

PACE_EXPECT = {"pace": Expect((3,), torch.float64)}
RATE_EXPECT = {"rate": Expect((), torch.float64)}


def begin(state: State, schedule: AdaptiveFlex, local: Local, tau: int | None) -> Tensor:
    """Return [tau_k, wbar_k, A_k] as a party knows them: of its last round, or of its first as it is planned.

    ``tau`` is ``None`` where that is not known; then A_k is 0 in the first round.
    """
    if PACE.tag not in state.kept and tau is None:
        return torch.tensor([1, 1, 0], dtype=torch.float64)
    if PACE.tag not in state.kept:
        assert tau is not None
        _first(state, schedule, local, tau)
    return state.kept[PACE.tag]


def _first(state: State, schedule: AdaptiveFlex, local: Local, tau: int) -> None:
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


def keep(state: State, schedule: AdaptiveFlex, local: Local, tau: int, rate: float) -> None:
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
