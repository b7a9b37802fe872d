"""Who is gone, who knocks, who is let in again: what a run asks of a carrier whose parties may die and come back.

A party that comes back is another process under the same name.  It plays its part from the beginning, as at the start
of a run: it says which alignment it keeps and which checkpoints it has.  At the end of an epoch the active party lets
it in, and it takes part from the next one, with its own last networks: what it missed is not made up for.
"""

from __future__ import annotations

from typing import Protocol

from anyparty.terms import Channel


class Door(Protocol):
    """What a carrier knows of comings and goings."""

    run: str

    def gone(self) -> dict[str, str]:
        """Return who is gone, and why."""

    def knocking(self) -> list[str]:
        """Return the parties that are gone and whose new process asks to be let in."""

    def admit(self, name: str) -> None:
        """Begin anew with a party that is gone."""

    def lose(self, name: str, why: str) -> None:
        """Give a party up; it hears why."""

    def told(self) -> str:
        """Return why this party's own part was ended from outside; empty while it was not."""


class Closed:
    """The door of a carrier whose parties live and die together."""

    run = ""

    def gone(self) -> dict[str, str]:
        """Nobody."""
        return {}

    def knocking(self) -> list[str]:
        """Nobody."""
        return []

    def admit(self, name: str) -> None:
        """Nobody comes."""

    def lose(self, name: str, why: str) -> None:
        """Nobody is lost."""

    def told(self) -> str:
        """Whoever ends one ends all."""
        return ""


def door_of(net: Channel) -> Door:
    """Return a channel's door."""
    door: Door = getattr(net, "door", None) or Closed()
    return door
