"""The words that every room uses: who takes part, what is predicted, what a message is, what a channel does.

Letters, everywhere
    N  rows (ids known to at least one party)      B  rows of a batch, B_k those that party k holds
    K  parties that hold columns (feature blocks)  H  width of an embedding
    C  outputs: classes, or 1 for regression       k  a party's place among the K, in the roster's order
    observed  [N, K] bool   party k has row n      labeled  [N] bool   the label of row n is known
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from anyparty.errors import ConfigError, MessageError

MOST_LETTERS = 100

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is predicted.

    ``classes`` are the labels as text, in the order of the outputs (classification); ``mean`` and ``scale`` are those
    of the training labels (regression), which heads predict standardised.  ``weights`` are what a row of each class
    counts in training; empty is one each.
    """

    kind: Literal["classification", "regression"]
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    weights: tuple[float, ...] = ()

    @property
    def outputs(self) -> int:
        """C: one score per class, or one number."""
        return len(self.classes) if self.kind == "classification" else 1


@dataclass(frozen=True, kw_only=True)
class Party:
    """An organisation that takes part: it holds columns, or labels, or both.

    Its name is a word of lists and a folder's, too.

    Raises:
        ConfigError: a name that cannot be both.
    """

    name: str
    columns: bool = True
    labels: bool = False

    def __post_init__(self) -> None:
        odd = any(sign in "/\\,=" or not sign.isprintable() for sign in self.name)
        if odd or self.name != self.name.strip(" .") or not 0 < len(self.name.encode()) <= MOST_LETTERS:
            raise ConfigError(f"party {self.name!r}: a party's name is text of 1 to {MOST_LETTERS} bytes without "
                              f"/, \\, a comma or =, and without a blank or dot at its ends")  # fmt: skip


@dataclass(frozen=True)
class Roster:
    """The parties of a federation, in an order that all of them share."""

    parties: tuple[Party, ...]
    active: str

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The K parties that hold columns, in order."""
        return tuple(party.name for party in self.parties if party.columns)

    @cached_property
    def K(self) -> int:  # noqa: N802 - the papers' letter
        """How many parties hold columns."""
        return len(self.blocks)

    @cached_property
    def labelers(self) -> tuple[str, ...]:
        """The parties that hold labels, the active one first."""
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
class Declared:
    """A kind of message that a method may send: a party that sends anything else is stopped.

    ``frm`` and ``to`` are roles: a *block* party holds columns, a *host* holds heads and labels, the *active* party
    leads the run, a *passive* one is any other.  ``when`` says under which circumstances alone it is sent; empty: in
    every run.

    Raises:
        ConfigError: ``frm`` or ``to`` is no role.
    """

    tag: str
    frm: Role
    to: Role
    holds: str
    learns: str
    when: str = ""

    def __post_init__(self) -> None:
        for end in ("frm", "to"):
            _among(ROLES, getattr(self, end), f"message {self.tag!r}: {end}")


SEVERAL_HOSTS = 'several parties hold labels and each hosts its own head (hosting = "labelers")'  # a ``when``


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a method can do, as data: shown to users, asked by the engine, never inferred from a method's name.

    ``needs``: who must be there for a prediction, and in training if ``trains_with`` does not say otherwise.
    ``predicts_alone``: the active party answers from what it has, and no prediction asks anybody else.
    ``unlabelled``: it learns from rows without labels too.  ``without_labels``: it is of use where no row has any; then
    the task has no outputs, stages that train on labels are passed over, and predictions are refused.

    Raises:
        ConfigError: ``needs`` or ``trains_with`` is another word, or ``messages`` are no tuple of declarations.
    """

    title: str
    paper: str
    trains_on: str
    predicts_for: str
    needs: Needs
    messages: tuple[Declared, ...]
    most_parties: int | None = None
    unlabelled: bool = False
    without_labels: bool = False
    trains_with: Needs | None = None
    predicts_alone: bool = False

    def __post_init__(self) -> None:
        _among(NEEDS, self.needs, f"{self.title}: needs")
        if self.trains_with is not None:
            _among(NEEDS, self.trains_with, f"{self.title}: trains_with")
        if isinstance(self.messages, Declared):
            raise ConfigError(f"{self.title}: messages is one declaration, of {self.messages.tag!r}, where a tuple of "
                              f"them is expected: one of one has a comma, (MESSAGE,)")  # fmt: skip
        if not isinstance(self.messages, tuple | list) or not all(isinstance(one, Declared) for one in self.messages):
            raise ConfigError(f"{self.title}: expected messages to be a tuple of Declared, got {self.messages!r}")

    @property
    def gradients(self) -> tuple[Declared, ...]:
        """The messages that send a gradient back to parties with columns, from which they can infer labels."""
        return tuple(message for message in self.messages if message.tag == "gradient" and message.to != "active")

    @property
    def trains_with_all(self) -> bool:
        """Whether a row teaches only while all parties are there."""
        return (self.trains_with or self.needs) == "all"


@dataclass(frozen=True)
class Expect:
    """What a receiver is ready to take: shape and dtype of one tensor.

    ``squares`` says that its numbers grow with the square of the sender's own, as log-densities do: their bound is
    wider (``wire.bounds``).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    squares: bool = False


class Channel(Protocol):
    """One party's way to the others.  Nothing leaves a party but what stands beside an ``await`` on this."""

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send named tensors to the party ``to``; returns when they are handed over, not when they are read.

        A carrier that knows its message to be dropped, because ``to`` is gone, returns ``False``; only the ledger asks.
        """

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        """Wait for the next message ``tag`` of the party ``frm``.

        Raises:
            MessageError: what came is not what ``expect`` says.
            PartyLost: the sender left or missed the deadline.
        """

    async def close(self) -> None:
        """Say that nothing more will be sent."""


def _among(words: Sequence[str], given: object, what: str) -> None:
    if given not in words:
        raise ConfigError(f"{what} is {', '.join(map(repr, words[:-1]))} or {words[-1]!r}, not {given!r}")


def finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite: by their sum, a tenth of the time, unless finite ones overflow in it."""
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def check(tensors: Tensors, expect: Mapping[str, Expect], what: str) -> None:
    """Hold a message to what its receiver expects; a size of -1 in a shape takes any length."""
    if tensors.keys() != expect.keys():
        raise MessageError(f"{what}: expected tensors {sorted(expect)}, got {sorted(tensors)}")
    for name, want in expect.items():
        got = tensors[name]
        if got.dtype != want.dtype or not (got.shape == want.shape or fits(got.shape, want.shape)):
            raise MessageError(f"{what}: {name!r} should be {want.dtype} {list(want.shape)}, "
                               f"got {got.dtype} {list(got.shape)}")  # fmt: skip
        if got.is_floating_point() and not finite(got):
            raise MessageError(f"{what}: {name!r} holds NaN or infinity")


def fits(got: Sequence[int], want: Sequence[int]) -> bool:
    """Return whether a shape is the wanted one, where -1 stands for any length."""
    return len(got) == len(want) and all(w in (-1, g) for g, w in zip(got, want, strict=True))
