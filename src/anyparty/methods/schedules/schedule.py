"""The interface of a schedule: the number of local iterations of each party in a round, and the duration of the round.

Notation  K parties with columns, B rows of a mini-batch, B_k those that party k has, H width of an embedding.
Symbols   tau_k   number of local iterations of k in a round;    Phi    embeddings and heads at the start of a round;
          eta_k   learning rate of party k;                      t      local iteration, counted from 0;
          w_k^t   weight of k's gradient at iteration t;         wbar_k the greatest w_k^t of a round;
          rho     local momentum;                                mu     strength of the proximal term.

The parties of a schedule are those that train an encoder, heads, or both. An iteration of a host steps its encoder and
its heads together, as one block of coordinates. A separate server is a party that has only heads.

The paper, whose equation (8) defines w_k^t, is Castiglia, Wang, Patterson: "Flexible Vertical Federated Learning with
Heterogeneous Parties", 2022. Section VII-A describes P-BCD (parallel block coordinate descent), in which a round has
one iteration, and Sync-VFL, which is Liu et al.'s FedBCD. A round of Sync-VFL has as many iterations as the slowest
(Sync-Min) or the fastest party (Sync-Max) would complete within Flex-VFL's time-out.

Time of a round: one round trip plus the time that the slowest party needs. This reproduces published figures, such as
rounds of 6, 11 and 51 time units for ImageNet100 at latency 1 in table III (tests/methods/schedules/test_clock.py).
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
    holds="Phi: every other party's embeddings of those rows of the batch that party k has, at most [B_k, H] from "
    "each; the weights of the heads; and which parties take part",
    learns="party k sees the heads, and every other party's embeddings of the rows that party k has: no raw feature, "
    "but everything that these embeddings retain of it",
)
PACE = MessageSpec(
    tag="pace",
    frm="passive",
    to="active",
    holds="tau_k and wbar_k of the sender's last round, and the sender's A_k",
    learns="how fast the sender is, and its momentum and proximal term",
)
RATE = MessageSpec(
    tag="rate",
    frm="active",
    to="passive",
    holds="eta_k, the receiver's learning rate in this round",
    learns="nothing else",
)
FITS = MessageSpec(
    tag="fits",
    frm="passive",
    to="active",
    holds="how many local iterations the sender can complete within the time-out, estimated from its last round",
    learns="how fast the sender is",
    when="Sync-VFL runs by the real clock",
)
TURNS = MessageSpec(
    tag="turns",
    frm="active",
    to="passive",
    holds="how many local iterations all parties make in this round",
    learns="how fast the slowest or the fastest party is",
    when="Sync-VFL runs by the real clock",
)
MESSAGES = (SNAPSHOT, PACE, RATE, FITS, TURNS)
"""The messages that schedules send in addition to a method's messages, or instead of them."""


@dataclass(frozen=True, kw_only=True)
class LocalIterations:
    """Settings of the parties' local iterations, under any schedule.

    Attributes:
        labels: the parties that use labels in local iterations. With "active", only the parties with heads use labels;
            all other parties use the gradient that they received at the start of the round, as in FedBCD. With
            "shared", every party has labels (column ``label`` in ``[parties.NAME]``) and computes its own loss, as in
            the paper.
        mu: μ, the strength of the proximal term μ (θ^t - θ^0), which is added to every gradient. The term is 0 in the
            first iteration of a round. It has no effect in ``p-bcd`` and ``vafl``, whose rounds have one iteration.
        momentum: "local" resets SGD's momentum in every round, as in the paper (Adam's state is not reset); "kept"
            never resets the momentum.
        smoothness: an estimate of max{L, L_k}, the smoothness of the loss. A warning is given if a learning rate
            exceeds the paper's bound (14) for this smoothness. The bound is checked only with the virtual clock, and
            never for ``vafl``.

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
    """The interface of a schedule.

    Attributes:
        title: name shown to users.
        timed: whether the schedule uses the clock's time-out.
        fills: whether each party makes as many iterations as it has time for, independently of the other parties.
        at_once: whether the active party exchanges messages with one party at a time, not with all parties in rounds.
        adapts: whether the active party sets learning rates.

    """

    title: ClassVar[str]
    timed: ClassVar[bool]
    fills: ClassVar[bool]
    at_once: ClassVar[bool]
    adapts: ClassVar[bool]

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:
        """Return tau_k of each party in a round; a party with tau_k = 0 does not take part in the round."""

    def lasts(self, clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
        """Return the duration of a round in time units; ``made`` has each party's number of iterations."""


def slowest(clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
    """Return the time that the slowest party needs; ``made`` has each party's number of iterations."""
    return max((tau * clock.takes(party, number) for party, tau in made.items()), default=0.0)


class SharedRound:
    """A schedule whose rounds last until all parties have made their iterations."""

    def lasts(self, clock: VirtualClock, made: Mapping[str, int], number: int) -> float:
        """Return the duration of a round: one round trip plus the time that the slowest party needs."""
        return clock.latency + slowest(clock, made, number)


class TimedRound(SharedRound):
    """A schedule in which all parties make the same number of iterations, which is derived from the time-out."""

    def common(self, fits: Sequence[int]) -> int:
        """Return the number of iterations that all parties make; 1 if ``fits`` is empty.

        ``fits`` has, for each party, the number of iterations that it would complete within the time-out.

        Raises:
            NotImplementedError: the subclass does not define this function.
        """
        raise NotImplementedError

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:
        """Return the number of iterations of each party: the result of ``common`` for all parties."""
        return dict.fromkeys(parties, self.common([clock.fits(party, number) for party in parties]))


@dataclass(frozen=True, kw_only=True)
class PBCD(SharedRound):
    """Schedule with one local iteration per round, as in a split method without a schedule.

    By default, SGD's momentum has no effect, because it is reset in every round, and a round has a single step. The
    momentum has an effect with the setting momentum = "kept".
    """

    title: ClassVar[str] = "P-BCD"
    timed: ClassVar[bool] = False
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:  # noqa: ARG002
        """Return the number of local iterations of each party in a round: always 1."""
        return dict.fromkeys(parties, 1)


@dataclass(frozen=True, kw_only=True)
class SyncMin(TimedRound):
    """Schedule with as many local iterations as the slowest party completes within the time-out, at least one."""

    title: ClassVar[str] = "Sync-Min-VFL"
    timed: ClassVar[bool] = True
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def common(self, fits: Sequence[int]) -> int:
        """Return the smallest number in ``fits``, at least 1."""
        return max(1, min(fits, default=1))


@dataclass(frozen=True, kw_only=True)
class SyncMax(TimedRound):
    """Schedule with as many local iterations as the fastest party completes within the time-out, at least one."""

    title: ClassVar[str] = "Sync-Max-VFL"
    timed: ClassVar[bool] = True
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def common(self, fits: Sequence[int]) -> int:
        """Return the greatest number in ``fits``, at least 1."""
        return max(1, max(fits, default=1))
