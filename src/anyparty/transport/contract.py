"""The channel that enforces a run's contract: it sends only declared messages and validates received messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.core.types import Channel, MessageSpec, Role, Roster, Tensors, TensorSpec, check
from anyparty.errors import ExtremeMessage, MessageError, PartyLost, nearest, remark
from anyparty.transport.bounds import Bounds
from anyparty.transport.codec import check_form
from anyparty.transport.ledger import Ledger


def roles(roster: Roster, party: str) -> set[Role]:
    """Return a party's roles, as ``MessageSpec`` defines them."""
    found: set[Role] = {"any", "active" if party == roster.active else "passive"}
    if party in roster.blocks:
        found.add("block")
    if party in roster.labelers:
        found.add("host")
    return found


@dataclass
class ContractChannel:
    """A channel that sends only declared messages, validates received messages and counts sent messages.

    Attributes:
        channel: the inner channel.
        roster: the parties.
        declared: the messages that may be sent.
        lose: a function that excludes a party that sent an extreme message; its arguments are the party and the reason.
            If it is ``None``, an extreme message ends the run.
        bounds: the magnitudes of the tensors received so far, see ``transport.bounds``; ``None`` disables the bounds.
        moment: the current step of the run, for error messages; see ``at_moment``.
        training: True if the current step is a training step, not validation or prediction.
        dropped: the reasons why parties were excluded, by party.
        ledger: the ledger that counts sent messages; ``None`` if the inner channel counts them.
        me: the party at this end of the channel.

    Raises:
        MessageError: from ``send``, if the tag or direction is not declared or a tensor cannot be sent between
            processes; from ``recv``, if a tensor's name, shape or dtype differs from the expected one or a tensor holds
            NaN or infinity.
        ExtremeMessage: from ``recv``, if numbers are far beyond the sender's earlier ones.
        PartyLost: from ``recv``, instead of ``ExtremeMessage``, if the sender is excluded.
    """

    channel: Channel
    roster: Roster
    declared: Iterable[MessageSpec]
    lose: Callable[[str, str], None] | None = None
    bounds: Bounds | None = field(default_factory=Bounds)
    moment: str = ""
    training: bool = False
    dropped: dict[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    me: str = field(init=False)

    def __post_init__(self) -> None:
        self.me = self.channel.me
        self._checked: set[tuple[str, str]] = set()

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send a declared message."""
        if (to, tag) not in self._checked:
            self._check_declared(to, tag)
            self._checked.add((to, tag))
        check_form(tensors, f"message {tag!r} from {self.me!r} to {to!r}")  # also in one process, as over a network
        if self.ledger is None:
            await self.channel.send(to, tag, tensors)
        else:
            await self.ledger.send(self.channel, to, tag, tensors)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Receive and validate a message."""
        if frm in self.dropped:
            raise PartyLost(frm, self.dropped[frm])
        tensors = await self.channel.recv(frm, tag, expect)
        what = f"message {tag!r} from {frm!r} to {self.me!r}"
        check(tensors, expect, what)
        extreme = self.bounds and self.bounds.check(frm, tag, tensors, expect, training=self.training)
        if extreme is not None:
            self._refuse(frm, f"{what}{self.moment and f' at {self.moment}'}: {extreme}")
        return tensors

    def _check_declared(self, to: str, tag: str) -> None:
        if to not in self.roster.names:
            raise MessageError(f"party {self.me!r} tried to send {tag!r} to {to!r}, and there is no such party"
                               f"{nearest(to, self.roster.names)}")  # fmt: skip
        sender, receiver = roles(self.roster, self.me), roles(self.roster, to)
        for message in self.declared:
            if message.tag == tag and message.frm in sender and message.to in receiver:
                return
        raise MessageError(
            f"party {self.me!r} tried to send {tag!r} to {to!r}, which its method does not declare; "
            f"declared are {sorted({message.tag for message in self.declared})}"
        )

    def _refuse(self, frm: str, why: str) -> None:
        """Exclude the sender of an extreme message, or end the run.

        The run ends if the sender is the active party, or if there is no function ``lose`` to exclude a party.

        Raises:
            ExtremeMessage, PartyLost: always one of them.
        """
        if self.lose is None or frm == self.roster.active:
            rate = "lower the learning rate if training diverges, or " if self.training else ""
            raise ExtremeMessage(f"{why}; {rate}look for extreme values in that party's columns")
        self.dropped[frm] = why
        remark(f"party {frm!r} is dropped: {why}")
        self.lose(frm, why)
        raise PartyLost(frm, why)

    async def close(self) -> None:
        """Close the inner channel."""
        await self.channel.close()


def at_moment(net: Channel, moment: str, *, training: bool) -> None:
    """Record on a ``ContractChannel`` the current step of the run, and whether this is a training step."""
    if isinstance(net, ContractChannel):
        net.moment, net.training = moment, training


def is_dropped(net: Channel, party: str) -> bool:
    """Return True if a party was excluded because of an extreme message; such a party is not readmitted."""
    return isinstance(net, ContractChannel) and party in net.dropped
