"""Schedules in which all parties make equally many local iterations, and wait for the slowest.

Castiglia, Wang, Patterson: "Flexible Vertical Federated Learning with Heterogeneous Parties", 2022, section VII-A:
P-BCD (parallel block coordinate descent) makes one; Sync-VFL is Liu et al.'s FedBCD with the number that the slowest
(Sync-Min) or the fastest party (Sync-Max) would complete within Flex-VFL's time-out.

Time of a round: one round trip, and what the slowest party needs.  With it the published figures come out: for
ImageNet100 rounds of 6, 11 and 51 time units at latency 1, as in table III (tests/methods/schedules/test_clock.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anyparty.methods.schedules.schedule import SharedRound, TimedRound
from anyparty.methods.schedules.virtual_clock import VirtualClock


@dataclass(frozen=True, kw_only=True)
class PBCD(SharedRound):
    """One local iteration a round: what a split method does without a schedule.

    With momentum of SGD only where that is "kept": by default it begins anew in every round, which is every step here.
    """

    title: ClassVar[str] = "P-BCD"
    timed: ClassVar[bool] = False
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def iterations(self, clock: VirtualClock, parties: Sequence[str], number: int) -> dict[str, int]:  # noqa: ARG002
        """Return one for each."""
        return dict.fromkeys(parties, 1)


@dataclass(frozen=True, kw_only=True)
class SyncMin(TimedRound):
    """As many local iterations as the slowest party completes within the time-out, at least one."""

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
    """As many local iterations as the fastest party completes within the time-out, at least one."""

    title: ClassVar[str] = "Sync-Max-VFL"
    timed: ClassVar[bool] = True
    fills: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def common(self, fits: Sequence[int]) -> int:
        """Return max_k tau_k."""
        return max(1, max(fits, default=1))
