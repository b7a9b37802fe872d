"""The membership of a run: which parties are gone, which wait to rejoin, and their readmission.

A party that returns is another process under the same name.  It starts from the beginning, as at the start of a run,
and sends the number of its alignment and the moments of its checkpoints.  The active party readmits it at the end of an
epoch.  It takes part from the next one with its own last networks, and does not repeat the epochs that it missed.
"""

from __future__ import annotations

from typing import Protocol

from anyparty.core.types import Channel


class Membership(Protocol):
    """The membership, as the transport knows it."""

    run: str

    def gone(self) -> dict[str, str]:
        """Return the parties that are gone, and why."""

    def waiting_to_rejoin(self) -> list[str]:
        """Return the parties that are gone and whose new process waits to rejoin."""

    def admit(self, name: str) -> None:
        """Readmit a party that was gone."""

    def lose(self, name: str, why: str) -> None:
        """Drop a party, and send it the reason."""

    def told(self) -> str:
        """Return why this party's own part was ended from outside; empty if it was not."""


class StaticMembership:
    """The membership of a transport whose parties run in one process."""

    run = ""

    def gone(self) -> dict[str, str]:
        """Return no party."""
        return {}

    def waiting_to_rejoin(self) -> list[str]:
        """Return no party."""
        return []

    def admit(self, name: str) -> None:
        """Do nothing."""

    def lose(self, name: str, why: str) -> None:
        """Do nothing."""

    def told(self) -> str:
        """Return an empty text: one party's end is the end of all."""
        return ""


def door_of(net: Channel) -> Membership:
    """Return the membership of a channel."""
    door: Membership = getattr(net, "door", None) or StaticMembership()
    return door
