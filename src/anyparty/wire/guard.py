"""What stands between a party and what others send it: nothing undeclared leaves, nothing unexpected comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.errors import ExtremeMessage, MessageError, PartyLost, nearest, remark
from anyparty.terms import Channel, Declared, Expect, Role, Roster, Tensors, check
from anyparty.wire.bounds import Bounds
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

    Attributes:
        channel: the channel beneath.
        roster: the parties.
        declared: the messages that may be sent.
        lose: gives up a party that sent an extreme message, and is told why; without it such a message ends the run.
        bounds: what has arrived so far, for the bounds on numbers (``wire.bounds``); ``None`` bounds nothing.
        moment: when in the run this is, for errors: see ``at_moment``.
        training: whether a training step is being played, not validation or prediction.
        dropped: the parties that were given up, and why.

    Raises:
        MessageError: from ``send``, for a tag or direction that is not declared, or for tensors that could not cross
            between processes; from ``recv``, for tensors of another name, shape or dtype than expected, or with NaN
            or infinity in them.
        ExtremeMessage: from ``recv``, for numbers far beyond what the sender has sent before.
        PartyLost: from ``recv``, instead, if the sender is given up.
    """

    channel: Channel
    roster: Roster
    declared: Iterable[Declared]
    lose: Callable[[str, str], None] | None = None
    bounds: Bounds | None = field(default_factory=Bounds)
    moment: str = ""
    training: bool = False
    dropped: dict[str, str] = field(default_factory=dict)

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
        if frm in self.dropped:
            raise PartyLost(frm, self.dropped[frm])
        tensors = await self.channel.recv(frm, tag, expect)
        what = f"message {tag!r} from {frm!r} to {self.me!r}"
        check(tensors, expect, what)
        extreme = self.bounds and self.bounds.check(frm, tag, tensors, expect, training=self.training)
        if extreme is not None:
            self._refuse(frm, f"{what}{self.moment and f' at {self.moment}'}: {extreme}")
        return tensors

    def _refuse(self, frm: str, why: str) -> None:
        """Refuse an extreme message: give its sender up, or end the run.

        The run cannot go on without the active party.

        Raises:
            ExtremeMessage, PartyLost: one of them, always.
        """
        if self.lose is None or frm == self.roster.active:
            rate = "lower the learning rate if training diverges, or " if self.training else ""
            raise ExtremeMessage(f"{why}; {rate}look for extreme values in that party's columns")
        self.dropped[frm] = why
        remark(f"party {frm!r} is dropped: {why}")
        self.lose(frm, why)
        raise PartyLost(frm, why)

    async def close(self) -> None:
        """Close the channel beneath."""
        await self.channel.close()


def at_moment(net: Channel, moment: str, *, training: bool) -> None:
    """Set on a guarded channel when in the run this is, and whether it is a training step."""
    if isinstance(net, Guarded):
        net.moment, net.training = moment, training


def is_dropped(net: Channel, party: str) -> bool:
    """Return whether a party was given up because of an extreme message: it is not let in again."""
    return isinstance(net, Guarded) and party in net.dropped
