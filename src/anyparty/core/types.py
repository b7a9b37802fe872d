"""The types that all packages share: parties, tasks, messages, capabilities and channels.

Notation in all modules
    N  rows (ids known to at least one party)      B  rows of a batch, B_k those that party k holds
    K  parties that hold columns (feature blocks)  H  width of an embedding
    C  outputs: classes, or 1 for regression       k  index of a party among the K, in the roster's order
    observed  [N, K] bool   party k holds row n    labeled  [N] bool   the label of row n is known
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

from anyparty.errors import ConfigError, MessageError

if TYPE_CHECKING:  # importing torch takes seconds
    import torch
    from torch import Tensor

MOST_LETTERS = 100

Tensors: TypeAlias = Mapping[str, "Tensor"]
LabelType = Literal["text", "integer", "number", "boolean"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The prediction task.

    Attributes:
        kind: classification or regression.
        classes: the labels as text, in the order of the outputs (classification).
        mean: the mean of the training labels (regression). Heads predict standardized labels.
        scale: the standard deviation of the training labels (regression).
        weights: the weight of a training row of each class; if empty, every weight is 1.
        temperature: the number by which logits are divided before they become probabilities, fitted to validation rows.
        label_type: the type of the classes in the active party's table. Only the active party knows it.
    """

    kind: Literal["classification", "regression"]
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    weights: tuple[float, ...] = ()
    temperature: float = field(default=1.0, repr=False)
    label_type: LabelType = field(default="text", repr=False)

    @cached_property
    def outputs(self) -> int:
        """C, the number of outputs: one score per class, or one number."""
        return len(self.classes) if self.kind == "classification" else 1

    def label(self, c: int) -> str | float:
        """Return the class with index c, in the type that it has in the active party's table: text, int, float or bool.

        >>> Task(kind="classification", classes=("0", "1"), label_type="integer").label(1)
        1
        """
        name = self.classes[c]
        if self.label_type == "boolean":
            return name == "true"
        if self.label_type == "integer":
            return int(name)
        return float(name) if self.label_type == "number" else name


@dataclass(frozen=True, kw_only=True)
class Party:
    """An organisation that takes part and holds columns, labels, or both.

    Its name must also work in comma-separated lists and as a folder name.

    Raises:
        ConfigError: the name cannot be used in lists or as a folder name.
    """

    name: str
    columns: bool = True
    labels: bool = False

    def __post_init__(self) -> None:
        odd = any(sign in "/\\,=" or not sign.isprintable() for sign in self.name)
        if odd or self.name != self.name.strip(" .") or not 0 < len(self.name.encode()) <= MOST_LETTERS:
            raise ConfigError(f"party {self.name!r}: a party's name is text of 1 to {MOST_LETTERS} bytes without "
                              "/, \\, a comma or =, and must not begin or end with a space or a dot")  # fmt: skip


@dataclass(frozen=True)
class Roster:
    """The parties of a federation, in the same order at every party."""

    parties: tuple[Party, ...]
    active: str

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The K parties that hold columns, in order."""
        return tuple(party.name for party in self.parties if party.columns)

    @cached_property
    def K(self) -> int:  # noqa: N802 - called K in the papers
        """The number of parties that hold columns."""
        return len(self.blocks)

    @cached_property
    def labelers(self) -> tuple[str, ...]:
        """The parties that hold labels, the active party first."""
        others = (party.name for party in self.parties if party.labels and party.name != self.active)
        return (self.active, *others)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All parties, in order."""
        return tuple(party.name for party in self.parties)


Role = Literal["block", "host", "active", "passive", "any"]
Needs = Literal["all", "any"]
ROLES: tuple[Role, ...] = get_args(Role)
NEEDS: tuple[Needs, ...] = get_args(Needs)


@dataclass(frozen=True, kw_only=True)
class MessageSpec:
    """The declaration of a message that a method may send. A message without a declaration stops the run.

    Roles: a *block* party holds columns, a *host* holds heads and labels, the *active* party leads the run, and every
    other party is *passive*. *any* stands for all parties.

    Attributes:
        tag: the name of the message.
        frm: the role of the sender.
        to: the role of the receiver.
        holds: a description of the content.
        learns: a description of the information that the receiver gains.
        when: the condition under which the message is sent; empty if it is sent in every run.
        consent: True if the message shows cells of the sender's table, so that a site sends it only if its own settings
            list the message.

    Raises:
        ConfigError: ``frm`` or ``to`` is not a role.
    """

    tag: str
    frm: Role
    to: Role
    holds: str
    learns: str
    when: str = ""
    consent: bool = False

    def __post_init__(self) -> None:
        for end in ("frm", "to"):
            _among(ROLES, getattr(self, end), f"message {self.tag!r}: {end}")


SEVERAL_HOSTS = 'several parties hold labels and each hosts its own head (hosting = "labelers")'  # for MessageSpec.when


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The capabilities of a method, which users read and the training engine checks.

    Attributes:
        title: the method's name for users.
        paper: the publication that describes the method.
        trains_on: the rows that the method trains on, as text.
        predicts_for: the rows that the method predicts, as text.
        needs: "all" if a prediction needs all parties, "any" if one party suffices. The same holds for training, unless
            ``trains_with`` is set.
        messages: the declarations of the method's messages.
        most_parties: the largest number of parties that the method supports; ``None`` without a limit.
        unlabelled: True if the method also learns from rows without labels.
        without_labels: True if the method is useful without any label. The task then has no outputs, stages that train
            on labels are skipped, and predictions are refused.
        trains_with: "all" if training needs all parties, "any" if one party suffices; ``None`` if ``needs`` also
            applies to training.
        predicts_alone: True if the active party predicts alone, without messages.

    Raises:
        ConfigError: ``needs`` or ``trains_with`` is unknown, or ``messages`` is not a tuple of declarations.
    """

    title: str
    paper: str
    trains_on: str
    predicts_for: str
    needs: Needs
    messages: tuple[MessageSpec, ...]
    most_parties: int | None = None
    unlabelled: bool = False
    without_labels: bool = False
    trains_with: Needs | None = None
    predicts_alone: bool = False

    def __post_init__(self) -> None:
        _among(NEEDS, self.needs, f"{self.title}: needs")
        if self.trains_with is not None:
            _among(NEEDS, self.trains_with, f"{self.title}: trains_with")
        if isinstance(self.messages, MessageSpec):
            raise ConfigError(
                f"{self.title}: messages is one declaration, of {self.messages.tag!r}; expected a tuple of "
                f"declarations: a tuple of one has a comma, (MESSAGE,)"
            )
        if not isinstance(self.messages, tuple | list) or not all(
            isinstance(one, MessageSpec) for one in self.messages
        ):
            raise ConfigError(f"{self.title}: expected messages to be a tuple of MessageSpec, got {self.messages!r}")

    @property
    def gradients(self) -> tuple[MessageSpec, ...]:
        """The messages that give gradients or residuals to passive parties, from which labels can be inferred."""
        tags = ("gradient", "residual")
        return tuple(message for message in self.messages if message.tag in tags and message.to != "active")

    @property
    def trains_with_all(self) -> bool:
        """True if training needs all parties."""
        return (self.trains_with or self.needs) == "all"


@cache
def _float32() -> torch.dtype:
    import torch  # noqa: PLC0415 - torch takes seconds to import

    return torch.float32


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of one tensor that a receiver expects.

    ``squares`` is True for numbers that grow with the square of the sender's data, such as log-densities. For such
    numbers, the limit for extreme values is larger.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = field(default_factory=_float32)
    squares: bool = False


class Channel(Protocol):
    """One party's connection to the other parties.

    Data leaves a party only through an awaited call of a channel.

    Attributes:
        me: the party at this end of the channel.
    """

    me: str

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send named tensors to the party ``to``, and return when the channel has accepted them.

        The result is ``False`` if the message is dropped because ``to`` has left. Only the ledger uses this result.
        """

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Wait for the next message with the given tag from the party ``frm``.

        Raises:
            MessageError: the message does not match ``expect``.
            PartyLost: the sender left or missed the deadline.
        """

    async def close(self) -> None:
        """Announce that this party sends no more messages."""

    def set_step(self, step: object, *, training: bool) -> None:  # noqa: ARG002
        """Announce the step of the run to which the next messages belong.

        Args:
            step: the step, whose text describes it in error messages; empty outside all steps.
            training: True in a training step, False in validation and prediction.
        """
        return  # without this line, mypy requires that every channel defines the method

    def is_dropped(self, party: str) -> bool:  # noqa: ARG002
        """Return True if this channel excluded a party for its messages; such a party is not readmitted."""
        return False


@dataclass
class ChannelWrapper(Channel):
    """A channel that forwards every call to an inner channel.

    A subclass overrides the calls that it changes: to count, delay, lose, record, validate or forge messages.

    Attributes:
        channel: the inner channel.
        me: the party at this end of the channel.
    """

    channel: Channel
    me: str = field(init=False)

    def __post_init__(self) -> None:
        self.me = self.channel.me

    @property
    def membership(self) -> Any:
        """The membership of the inner channel's transport; ``None`` if the transport has none."""
        return getattr(self.channel, "membership", None)

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send a message through the inner channel."""
        return await self.channel.send(to, tag, tensors)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Receive a message from the inner channel."""
        return await self.channel.recv(frm, tag, expect)

    async def close(self) -> None:
        """Close the inner channel."""
        await self.channel.close()

    def set_step(self, step: object, *, training: bool) -> None:
        """Announce the step of the run to the inner channel."""
        self.channel.set_step(step, training=training)

    def is_dropped(self, party: str) -> bool:
        """Return True if the inner channel excluded a party for its messages."""
        return self.channel.is_dropped(party)


def _among(allowed: Sequence[str], value: object, name: str) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, not {value!r}")


def finite(tensor: Tensor) -> bool:
    """Return True if all numbers of a tensor are finite."""
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())


def check(tensors: Tensors, expect: Mapping[str, TensorSpec], where: str) -> None:
    """Check a message against the receiver's expectation; -1 in an expected shape matches any length.

    ``where`` is the description of the message in errors.

    Raises:
        MessageError: names, dtypes or shapes differ, or a tensor holds NaN or infinity.
    """
    if tensors.keys() != expect.keys():
        raise MessageError(f"{where}: expected tensors {sorted(expect)}, got {sorted(tensors)}")
    for name, want in expect.items():
        got = tensors[name]
        if got.dtype != want.dtype or not (got.shape == want.shape or fits(got.shape, want.shape)):
            raise MessageError(f"{where}: {name!r} should be {want.dtype} {list(want.shape)}, "
                               f"got {got.dtype} {list(got.shape)}")  # fmt: skip
        if got.is_floating_point() and not finite(got):
            raise MessageError(f"{where}: {name!r} holds NaN or infinity")


def fits(got: Sequence[int], want: Sequence[int]) -> bool:
    """Return True if the shape ``got`` matches the shape ``want``, in which -1 matches any length."""
    return len(got) == len(want) and all(w in (-1, g) for g, w in zip(got, want, strict=True))


def of_python(value: Any) -> Any:
    """Convert NumPy numbers to Python numbers, also inside lists, tuples and mappings."""
    if isinstance(value, Mapping):
        return {key: of_python(each) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(map(of_python, value))
    return value.item() if isinstance(value, np.generic) else value
