"""Schedules in which all parties make the same number of local iterations, and wait for the slowest.

Castiglia, Wang, Patterson: "Flexible Vertical Federated Learning with Heterogeneous Parties", 2022, section VII-A:
P-BCD (parallel block coordinate descent) makes one iteration. Sync-VFL is Liu et al.'s FedBCD. Its number of iterations
is the number that the slowest (Sync-Min) or the fastest party (Sync-Max) would complete within Flex-VFL's time-out.

Time of a round: one round trip plus the time that the slowest party needs. This reproduces published figures, such as
rounds of 6, 11 and 51 time units for ImageNet100 at latency 1 in table III (tests/methods/schedules/test_clock.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anyparty.methods.schedules.schedule import SharedRound, TimedRound
from anyparty.methods.schedules.virtual_clock import VirtualClock


@dataclass(frozen=True, kw_only=True)
class PBCD(SharedRound):
    """One local iteration a round, as in a split method without a schedule.

    SGD's momentum has an effect only with momentum = "kept". By default momentum is reset in every round, and a round
    of P-BCD is a single step.
    """

    title: ClassVar[str] = "P-BCD"
    timed: ClassVar[bool] = False
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:  # noqa: ARG002
        """Return 1 for every party."""
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
        """Return min_k tau_k."""
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
        """Return max_k tau_k."""
        return max(1, max(fits, default=1))
