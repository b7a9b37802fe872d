"""The membership of a run: the parties that are gone or wait to rejoin, and their readmission.

A party that returns is a new process with the name of the party.  As at the start of a run, the process sends the
number of its alignment and the stages and epochs of its checkpoints.  The active party readmits the party at the end of
an epoch.  The party takes part from the next epoch with its own last networks, and does not repeat the epochs that it
missed.
"""

from __future__ import annotations

from typing import Protocol

from anyparty.core.types import Channel


class Membership(Protocol):
    """The membership interface of a transport."""

    run: str

    def gone(self) -> dict[str, str]:
        """Return the parties that are gone, with the reasons."""

    def waiting_to_rejoin(self) -> list[str]:
        """Return the lost parties that have a new process waiting to rejoin."""

    def admit(self, name: str) -> None:
        """Readmit a party that was gone."""

    def lose(self, name: str, why: str) -> None:
        """Drop a party, and send it the reason."""

    def stop_reason(self) -> str:
        """Return the reason why the run was stopped from outside at this party; otherwise an empty string."""


class StaticMembership:
    """The membership of a transport whose parties run in one process."""

    run = ""

    def gone(self) -> dict[str, str]:
        """Return an empty dictionary."""
        return {}

    def waiting_to_rejoin(self) -> list[str]:
        """Return an empty list."""
        return []

    def admit(self, name: str) -> None:
        """Do nothing."""

    def lose(self, name: str, why: str) -> None:
        """Do nothing."""

    def stop_reason(self) -> str:
        """Return an empty string: in one process, all parties stop together."""
        return ""


def door_of(net: Channel) -> Membership:
    """Return the membership of a channel."""
    door: Membership = getattr(net, "door", None) or StaticMembership()
    return door
