"""What stands between a party and what others send it: nothing undeclared leaves, nothing unexpected comes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from anyparty.errors import MessageError, nearest
from anyparty.terms import Channel, Declared, Expect, Role, Roster, Tensors, check
from anyparty.wire.message import check_form


def roles(roster: Roster, party: str) -> set[Role]:
    """Return the roles that a party plays: see ``Declared``."""
    held: set[Role] = {"any", "active" if party == roster.active else "passive"}
    if party in roster.blocks:
        held.add("block")
    if party in roster.labelers:
        held.add("host")
    return held


@dataclass
class Guarded:
    """A channel that holds its party to the messages that the run declares, and checks what arrives.

    Raises:
        MessageError: from ``send``, for a tag or direction that is not declared, or for tensors that could not cross
            between processes; from ``recv``, for tensors of another name, shape or dtype than expected, or with NaN
            or infinity in them.
    """

    channel: Channel
    roster: Roster
    declared: Iterable[Declared]

    def __post_init__(self) -> None:
        self._roles = {name: roles(self.roster, name) for name in self.roster.names}
        self._allowed: dict[tuple[str, str], bool] = {}

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""
        return self.channel.me

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send what is declared."""
        if (to, tag) not in self._allowed:
            self._allowed[to, tag] = any(
                message.tag == tag and message.frm in self._roles[self.me] and message.to in self._roles.get(to, set())
                for message in self.declared
            )
        if not self._allowed[to, tag]:
            if to not in self._roles:
                raise MessageError(f"party {self.me!r} tried to send {tag!r} to {to!r}, and there is no such party"
                                   f"{nearest(to, self._roles)}")  # fmt: skip
            raise MessageError(
                f"party {self.me!r} tried to send {tag!r} to {to!r}, which its method does not declare; "
                f"declared are {sorted({message.tag for message in self.declared})}"
            )
        check_form(tensors, f"message {tag!r} from {self.me!r} to {to!r}")  # in one process too, where all could cross
        await self.channel.send(to, tag, tensors)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        """Receive and check."""
        tensors = await self.channel.recv(frm, tag, expect)
        check(tensors, expect, f"message {tag!r} from {frm!r} to {self.me!r}")
        return tensors

    async def close(self) -> None:
        """Close the channel beneath."""
        await self.channel.close()
