"""The channel that sends only messages that the method declares, and validates received messages.

Bounds reject numbers far beyond the sender's earlier numbers. ``anyparty.core.types.check`` rejects NaN and infinity,
but a finite number such as 1e30 can also ruin a model. In training, the receiver records the maximum absolute value of
each received tensor, by sender, tag and tensor name. The bound for the next tensor with the same sender, tag and name
is:

    first message            MOST
    second to eighth         FACTOR x the largest recorded value
    later                    FACTOR x the maximum, over time, of the median of the recorded values

The bound is never below LEAST or above MOST.  Outside training steps the bound is MOST, because the numbers change
an answer but no weight, and one unusual row must not end a run.  Some numbers grow with the square of the sender's data
(``TensorSpec.squares``), such as log-densities.  FACTOR and MOST are squared for such numbers, because one outlying
cell makes them large in an honest run.

The median is taken over all messages, so a sender that raises its numbers gradually must first send more large messages
than small ones.  Gradients that shrink during training do not lower the bound.  The measurements are in
``docs/decisions/0015-bounds-on-messages.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from anyparty.core.types import ChannelWrapper, MessageSpec, Role, Roster, Tensors, TensorSpec, check
from anyparty.errors import ExtremeMessage, MessageError, PartyLost, nearest, remark
from anyparty.transport.codec import check_form
from anyparty.transport.ledger import Ledger

FACTOR = 1000.0
LEAST = 1.0  # the minimum bound; numbers below 1 do no harm
MOST = 1e8  # the maximum bound on the absolute value of a received number
FEW = 8  # the median is used if at least this number of messages is recorded
PER_DOUBLING = 4  # bins per factor of two, in the histogram from which the median is computed


@dataclass
class Magnitudes:
    """The recorded maximum absolute values of the tensors with one sender, one tag and one name."""

    factor: float = FACTOR
    most: float = MOST
    count: int = 0
    largest: float = 0.0
    median: float = 0.0
    _bins: Counter[int] = field(default_factory=Counter)

    @property
    def bound(self) -> float:
        """The maximum absolute value that the tensor in the next message may have."""
        usual = self.largest if self.count < FEW else self.median
        return min(self.most, max(LEAST, self.factor * usual)) if self.count else self.most

    def add(self, value: float) -> None:
        """Record the maximum absolute value of a received tensor, unless this value is zero."""
        if value == 0:
            return
        self.count += 1
        self.largest = max(self.largest, value)
        self._bins[math.floor(PER_DOUBLING * math.log2(value))] += 1
        if self.count >= FEW:
            self.median = max(self.median, self._middle())

    def _middle(self) -> float:
        """Return the median of the recorded values, with a relative error of about 10 %."""
        seen = 0
        for place in sorted(self._bins):
            seen += self._bins[place]
            if 2 * seen >= self.count:
                return float(2 ** ((place + 0.5) / PER_DOUBLING))
        raise AssertionError


@dataclass(frozen=True)
class ExtremeValue:
    """A tensor beyond its bound: its name, its maximum absolute value, and the bound."""

    name: str
    value: float
    bound: float

    def __str__(self) -> str:
        """Return a description of the violation for an error message."""
        return f"{self.name!r} holds {self.value:.3g}, the bound for messages of this party is {self.bound:.3g}"


@dataclass
class Bounds:
    """Magnitudes of the tensors that one party has received, by sender, tag and tensor name."""

    _sizes: dict[tuple[str, str, str], Magnitudes] = field(default_factory=dict)

    def check(
        self, frm: str, tag: str, tensors: Tensors, expect: Mapping[str, TensorSpec], *, training: bool
    ) -> ExtremeValue | None:
        """Return the first tensor of a message that is beyond its bound, or ``None`` if all tensors are within bounds.

        If ``training`` is true, the maximum absolute values of the tensors before the returned tensor are recorded.
        """
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            least, most = torch.stack(tensor.detach().aminmax()).tolist()
            value = max(-least, most)
            power = 2 if expect[name].squares else 1
            sizes = self._sizes.setdefault((frm, tag, name), Magnitudes(FACTOR**power, MOST**power))
            bound = sizes.bound if training else MOST**power
            if not value <= bound:
                return ExtremeValue(name, value, bound)
            if training:
                sizes.add(value)
        return None


@lru_cache
def roles(roster: Roster, party: str) -> frozenset[Role]:
    """Return the roles of a party in message declarations, such as "active" and "host" (see ``MessageSpec``)."""
    found: set[Role] = {"any", "active" if party == roster.active else "passive"}
    if party in roster.blocks:
        found.add("block")
    if party in roster.labelers:
        found.add("host")
    return frozenset(found)


@dataclass
class ContractChannel(ChannelWrapper):
    """A channel that sends only declared messages, validates received messages and counts sent messages.

    Attributes:
        roster: the parties.
        declared: the declarations of the messages that may be sent.
        lose: a function that excludes a party that sent an extreme message; its arguments are the party and the reason.
            If it is ``None``, an extreme message ends the run.
        bounds: the magnitudes of all received tensors, from which the bounds on numbers follow; if ``None``,
            there are no bounds.
        step: the current step of the run, whose text error messages show; ``set_step`` sets it.
        training: True if the current step is a training step, not validation or prediction.
        dropped: the reasons why parties were excluded, by party.
        ledger: the ledger that counts sent messages; ``None`` if the inner channel counts them.

    Raises:
        MessageError: from ``send``, if the tag or direction is not declared or a tensor cannot be sent between
            processes; from ``recv``, if a tensor's name, shape or dtype differs from the expected one or a tensor holds
            NaN or infinity.
        ExtremeMessage: from ``recv``, if numbers are far beyond the sender's earlier numbers.
        PartyLost: from ``recv``, instead of ``ExtremeMessage``, if the sender is excluded.
    """

    roster: Roster
    declared: Iterable[MessageSpec]
    lose: Callable[[str, str], None] | None = None
    bounds: Bounds | None = field(default_factory=Bounds)
    step: object = ""
    training: bool = False
    dropped: dict[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._checked: set[tuple[str, str]] = set()

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send a message; raise ``MessageError`` if the method does not declare it."""
        if (to, tag) not in self._checked:
            self._check_declared(to, tag)
            self._checked.add((to, tag))
        # Checked even in one process, so that a method that works there also works over a network.
        check_form(tensors, f"message {tag!r} from {self.me!r} to {to!r}")
        if self.ledger is None:
            return await self.channel.send(to, tag, tensors)
        return await self.ledger.send(self.channel, to, tag, tensors)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Receive a message, and return it after validation."""
        if frm in self.dropped:
            raise PartyLost(frm, self.dropped[frm])
        tensors = await self.channel.recv(frm, tag, expect)
        what = f"message {tag!r} from {frm!r} to {self.me!r}"
        check(tensors, expect, what)
        extreme = self.bounds and self.bounds.check(frm, tag, tensors, expect, training=self.training)
        if extreme is not None:
            self._refuse(frm, f"{what}{self.step and f' at {self.step}'}: {extreme}")
        return tensors

    def set_step(self, step: object, *, training: bool) -> None:
        """Record the current step of the run, and announce it to the inner channel."""
        self.step, self.training = step, training
        super().set_step(step, training=training)

    def is_dropped(self, party: str) -> bool:
        """Return True if a party was excluded because of an extreme message."""
        return party in self.dropped or super().is_dropped(party)

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
            ExtremeMessage: the run ends.
            PartyLost: the sender is excluded.
        """
        if self.lose is None or frm == self.roster.active:
            rate = "lower the learning rate if training diverges, or " if self.training else ""
            raise ExtremeMessage(f"{why}; {rate}look for extreme values in that party's columns")
        self.dropped[frm] = why
        remark(f"party {frm!r} is dropped: {why}")
        self.lose(frm, why)
        raise PartyLost(frm, why)
