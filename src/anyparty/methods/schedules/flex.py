"""Flex-VFL and Adaptive Flex-VFL.  Castiglia, Wang, Patterson: "Flexible Vertical Federated Learning with
Heterogeneous Parties", 2022, Algorithms 1 and 2.

Notation  as in ``schedule``; r counts rounds, and g_k^t is party k's gradient at local iteration t
Round     The host receives embeddings and returns gradients, or Phi: the heads and the other parties' embeddings. Then
          every party k makes tau_k local iterations on the same mini-batch. It uses the other parties' embeddings
          from the start of the round                                                                     (Algorithm 1)
tau_k     as many as the time-out allows: floor(time-out / time of an iteration)
Update    theta^{t+1} = theta^t - eta_k D_k,   sum_t D_k = sum_t w_k^t g_k^t                               (6), (8)
          SGD w^t = 1; local momentum w^t = (1 - rho^{tau-t}) / (1 - rho); proximal w^t = (1 - eta mu)^{tau-1-t}
Rate      eta_k^{r+1} = A_k / (tau_k^r wbar_k^r),  wbar = max_t w^t                         (Algorithm 2, line 17)

Known differences from the paper
- The paper requires at least one iteration of every party. Here a party misses the round if its iteration does not fit
  into the time-out, or if it has no row of the batch. All other parties continue. A host always makes one iteration,
  because other parties wait for its gradients. If this iteration takes longer than the time-out, the round lasts until
  the iteration ends.
- A host that also has an encoder updates it together with its heads, as one block of coordinates.
- The exponent of the proximal weights is tau - 1 - t, which follows from the paper's recursion. The paper prints
  tau - t + 1. These weights are below 1, although the paper's text below (8) says w >= 1.
- By default A_k makes the rate of the first round equal to the optimizer's own learning rate.

The paper sends tau_k and wbar_k at the end of a round (Algorithm 2, line 15). Here they are sent with the next
embeddings, so that a round is still one round trip. If tau_k is not known before the first round, that round is the
dummy round of section VI: its rate is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import ConfigError, PartyLost, remark
from anyparty.methods.method import PartyContext, State
from anyparty.methods.schedules.local_steps import set_rate
from anyparty.methods.schedules.schedule import PACE, RATE, LocalIterations, Schedule, slowest
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
        """Return tau_k of each party: the number of local iterations that fit into the time-out."""
        return {party: clock.fits(party, number) for party in parties}

    def lasts(self, clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
        """Return the duration of a round: one round trip plus the time-out.

        If a host's single iteration takes longer than the time-out, the duration of this iteration replaces the
        time-out.
        """
        return clock.latency + max(clock.timeout, slowest(clock, made, number))


@dataclass(frozen=True, kw_only=True)
class AdaptiveFlex(Flex):
    """Flex-VFL with learning rates adapted to each party's speed and optimizer.

    Attributes:
        A: A_k, the factor of the learning rate A_k / (tau_k wbar_k), for all parties or for each party. By default, the
            rate of the first round is the optimizer's own rate.

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
        """Return A_k, the factor of a party's learning rate; ``None`` if it was not given."""
        return self.A.get(party) if isinstance(self.A, Mapping) else self.A


def weights(tau: int, *, momentum: float = 0.0, pull: float = 0.0) -> list[float]:
    """Return the weights w^0 .. w^{tau-1} of equation (8), for local momentum, a proximal term (``pull``) or both.

    ``momentum`` is rho, and ``pull`` is eta mu. The weight of a gradient depends only on the number of iterations after
    it. If the first gradient is 1 and all later gradients are 0, the change of the parameters after 1, 2, ... tau
    iterations, divided by -eta, is therefore w^{tau-1}, ..., w^0.

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
    """Return wbar, the greatest weight of a gradient in a round of ``tau`` local iterations; 1 if ``tau`` is 0."""
    return max(weights(tau, momentum=momentum, pull=pull), default=1.0)


PACE_EXPECT = {"pace": TensorSpec((3,), torch.float64)}
RATE_EXPECT = {"rate": TensorSpec((), torch.float64)}


def begin_round(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int | None) -> Tensor:
    """Return the party's report [tau_k, wbar_k, A_k] of its last round: [3] float64.

    In the first round, the report has the values that are planned for this round. If ``tau`` is ``None``, the number of
    iterations is not known before the first round. The report of the first round is then [1, 1, 0], which makes the
    learning rate 0.
    """
    if PACE.tag not in state.kept and tau is None:
        return torch.tensor([1, 1, 0], dtype=torch.float64)
    if PACE.tag not in state.kept:
        assert tau is not None
        _first(state, schedule, local, tau)
    return state.kept[PACE.tag]


def _first(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int) -> None:
    """Store a party's first report; if A_k is not given, choose it so that the first rate is the optimizer's own."""
    lr = state.seat.optimizer.lr
    wbar = wbar_of(state.seat, local, tau, lr)
    given = schedule.amount(state.seat.me)
    amount = lr * tau * wbar if given is None else given
    state.kept[PACE.tag] = torch.tensor([tau, wbar, amount], dtype=torch.float64)


def rate_of(pace: Tensor) -> float:
    """Return the learning rate eta_k = A_k / (tau_k wbar_k) for a party's report ``pace`` (Algorithm 2, line 17)."""
    tau, wbar, amount = pace.tolist()
    return float(amount / (tau * wbar))


def keep_rate(state: State, schedule: AdaptiveFlex, local: LocalIterations, tau: int, rate: float) -> None:
    """Store tau_k and wbar_k of the round that ended, for the party's next report."""
    if PACE.tag not in state.kept:
        _first(state, schedule, local, tau)
        return
    amount = state.kept[PACE.tag][2].item()
    state.kept[PACE.tag] = torch.tensor([tau, wbar_of(state.seat, local, tau, rate), amount], dtype=torch.float64)


async def agree_on_rate(net: Channel, state: State, others: Sequence[str], mine: Tensor) -> float:
    """Set the party's learning rate and return it.

    A passive party receives its rate from the active party. The active party first sends a rate to each party in
    ``others``, the passive parties that take part in the round. ``mine`` is the party's own report
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
            continue  # no error here: the later wait for embeddings reports that this party was lost
        await net.send(name, RATE.tag, {"rate": torch.tensor(rate_of(pace), dtype=torch.float64)})
    rate = rate_of(mine)
    set_rate(state, rate)
    return rate


def rate_bound(smoothness: float, tau: int, wbar: float) -> float:
    """Return the right-hand side of the paper's bound (14), the highest learning rate with proven convergence.

    >>> rate_bound(2.0, 5, 1.0)
    0.00625
    """
    return 1 / (16 * tau * smoothness * wbar)


def wbar_of(seat: PartyContext, local: LocalIterations, tau: int, rate: float) -> float:
    """Return wbar_k, a party's greatest weight of a gradient, for ``tau`` local iterations at a learning rate.

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


def warn_of_rate(
    seat: PartyContext, schedule: Schedule, clock: VirtualClock, local: LocalIterations, parties: Sequence[str]
) -> None:
    """Warn if a party's learning rate exceeds the bound (14) in any round in which the party takes part.

    The bound uses ``local.smoothness``. If no smoothness is given, nothing is checked. In Adaptive Flex-VFL, the rate
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
    most = rate_bound(local.smoothness, tau, wbar_k)
    if rate > most * (1 + 1e-9):
        remark(
            f"party {seat.me!r}: a learning rate of {rate:.4g} breaks the bound (14) of Flex-VFL: with {tau} local "
            f"iterations, weights up to {wbar_k:.4g} and an estimated smoothness of {local.smoothness:g} convergence "
            f"is shown up to {most:.4g}; lower the rate, or shorten the time-out"
        )
