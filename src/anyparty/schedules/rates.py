"""Adaptive Flex-VFL's learning rates: parties say how their last round went, the active party how fast to learn.

The paper sends tau_k and wbar_k at the end of a round (Algorithm 2, line 15); here they go with the next embeddings, so
that a round is still one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyparty.errors import PartyLost
from anyparty.methods.method import State
from anyparty.schedules.flex import AdaptiveFlex, greatest
from anyparty.schedules.local import set_rate
from anyparty.schedules.schedule import PACE, RATE, Local
from anyparty.terms import Channel, Expect

PACE_EXPECT = {"pace": Expect((3,), torch.float64)}
RATE_EXPECT = {"rate": Expect((), torch.float64)}


def begin(state: State, schedule: AdaptiveFlex, local: Local, tau: int) -> Tensor:
    """Return [tau_k, wbar_k, A_k] as a party knows them: of its last round, or of its first as it is planned."""
    if PACE.tag not in state.kept:
        lr = state.seat.optimizer.lr
        wbar = _greatest(state, local, tau, lr)
        given = schedule.amount(state.seat.me)
        amount = lr * tau * wbar if given is None else given
        state.kept[PACE.tag] = torch.tensor([tau, wbar, amount], dtype=torch.float64)
    return state.kept[PACE.tag]


def rate_of(pace: Tensor) -> float:
    """Return eta_k = A_k / (tau_k wbar_k) (Algorithm 2, line 17)."""
    tau, wbar, amount = pace.tolist()
    return float(amount / (tau * wbar))


def keep(state: State, local: Local, tau: int, rate: float) -> None:
    """Note how a party's round went."""
    amount = state.kept[PACE.tag][2].item()
    state.kept[PACE.tag] = torch.tensor([tau, _greatest(state, local, tau, rate), amount], dtype=torch.float64)


def _greatest(state: State, local: Local, tau: int, rate: float) -> float:
    momentum = state.seat.optimizer.momentum if state.seat.optimizer.name == "sgd" else 0.0
    return greatest(tau, momentum=momentum, pull=rate * local.mu)


async def agree(net: Channel, state: State, others: Sequence[str]) -> float:
    """Set the party's rate and return it; at the active party, also that of the ``others`` that take part."""
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
    rate = rate_of(state.kept[PACE.tag])
    set_rate(state, rate)
    return rate
