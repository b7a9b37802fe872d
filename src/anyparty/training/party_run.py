"""The inputs and the result of one party's training loop, and the membership of a run.

The membership says which parties are gone, wait to rejoin, or took part.  A party that returns is a new process with
the name of the lost party.  As at the start of a run, the process sends a number that identifies its alignment, and the
stages and epochs of its checkpoints.  The active party readmits the party at the end of an epoch.  From the next epoch,
the party takes part with its own last networks.  It does not repeat the epochs that it missed.

A party counts as having taken part if it was present in at least half of the epochs and saved its part of the model.
Epochs of local stages are not counted, because parties send no messages there.  The active party always takes part.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from anyparty.config import TrainSettings
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, Roster, TensorSpec
from anyparty.errors import ConfigError, Incomplete, remark, some
from anyparty.methods.method import HasHosts, Method, PartyContext, State, hosts_of
from anyparty.metrics import constant_score, headline
from anyparty.problem.rows import Rows
from anyparty.training.callbacks import Callback
from anyparty.training.checkpoint import Checkpoints
from anyparty.training.joint import JointExecution


class Membership(Protocol):
    """The interface by which a transport reports lost parties and readmits them."""

    run: str

    def gone(self) -> dict[str, str]:
        """Return the parties that are gone, each with the reason for its absence."""

    def waiting_to_rejoin(self) -> list[str]:
        """Return the lost parties whose new process waits to rejoin the run."""

    def admit(self, name: str) -> None:
        """Readmit a party that was gone."""

    def lose(self, name: str, why: str) -> None:
        """Remove a party from the run, and send the party the reason (``why``)."""

    def stop_reason(self) -> str:
        """Return the reason why this party was asked to stop the run; "" if it was not asked."""


class StaticMembership:
    """The membership of a transport whose parties run in one process."""

    run = ""

    def gone(self) -> dict[str, str]:
        """Return an empty dictionary: in one process, no party is lost."""
        return {}

    def waiting_to_rejoin(self) -> list[str]:
        """Return an empty list: in one process, no party rejoins."""
        return []

    def admit(self, name: str) -> None:
        """Do nothing: in one process, no party rejoins."""

    def lose(self, name: str, why: str) -> None:
        """Do nothing: in one process, no party is lost."""

    def stop_reason(self) -> str:
        """Return an empty string: in one process, all parties stop together."""
        return ""


def membership_of(net: Channel) -> Membership:
    """Return the membership of a channel's transport; a ``StaticMembership`` if the transport has none."""
    membership: Membership = getattr(net, "membership", None) or StaticMembership()
    return membership


Require = Literal["all"] | int | None


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """The attendance of the parties in a training run.

    Attributes:
        parties: all parties.
        epochs: the number of epochs in which messages were sent.
        missed: for each party, the number of those epochs that it missed; parties that missed no epoch are left out.
        why: the reason for the last absence of each party.
        gone: the parties that were absent in the last of those epochs.
        unsaved: the parties whose part of the model was not saved, each with the reason.
        unfinished: the parties that saved their part and stopped before writing all files, each with the reason.

    """

    parties: Sequence[str]
    epochs: int
    missed: Mapping[str, int]
    why: Mapping[str, str]
    gone: Collection[str]
    unsaved: Mapping[str, str]
    unfinished: Mapping[str, str]

    @classmethod
    def of(
        cls, history: Sequence[Mapping[str, Any]], quiet: Collection[str], parties: Sequence[str],
        unsaved: Mapping[str, str], unfinished: Mapping[str, str],
    ) -> Attendance:  # fmt: skip
        """Count the absences in a run's history; ``quiet`` lists the local stages, which send no messages."""
        absences: list[Mapping[str, str]] = [e.get("absent") or {} for e in history if e["stage"] not in quiet]
        missed = {name: sum(name in absent for absent in absences) for name in parties}
        return cls(
            parties=parties, epochs=len(absences), missed={name: n for name, n in missed.items() if n},
            why={name: why for absent in absences for name, why in absent.items()},
            gone=set(absences[-1]) if absences else set(), unsaved=unsaved, unfinished=unfinished,
        )  # fmt: skip

    def warnings(self) -> list[str]:
        """Return a warning for each party that missed epochs; the warning also reports an unsaved part of the model."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        for name, n in self.missed.items():
            left = name in self.unsaved
            lacks = ", and the saved model lacks its part" if left else ""
            do = f". To add that part, start {name!r} and train with --resume" if left else ""
            do += ": training then continues from the last epoch of which all parties have a checkpoint" if left else ""
            yield f"party {name!r} took no part in {n} of {self.epochs} epochs ({self.why[name]}){lacks}{do}"

    def behind(self, require: Require) -> list[str]:
        """Return the parties whose part of the model lacks the last epochs, unless ``train.require`` permits this."""
        return [name for name in self.parties if require is None and (name in self.gone or name in self.unsaved)]

    def check(self, require: Require) -> None:
        """Check that all parties present at the end saved their parts, and that enough parties took part.

        Raises:
            Incomplete: a party present at the end did not save all its files, or too few parties took part.  The
                message lists the parties, the missing parts and the next step.
        """
        problems = [*self._failed(), *self._too_few(require)]
        if problems:
            raise Incomplete("; ".join(problems))

    def _failed(self) -> Iterator[str]:
        """Yield a message for each party that trained until the end but did not save all its files."""
        for name, why in self.unsaved.items():
            if name not in self.gone:
                yield (f"party {name!r} trained until the end but did not save its part of the model ({why}). The "
                       f"other parties' parts are saved. Correct the cause at {name!r}, then train with --resume: "
                       f"it saves the missing part")  # fmt: skip
        for name, why in self.unfinished.items():
            yield (f"party {name!r} saved its part of the model but stopped before it had finished ({why}): its "
                   f"record, and its share of the test scores, may be missing. Correct the cause at {name!r}, then "
                   f"train with --resume")  # fmt: skip

    def _too_few(self, require: Require) -> Iterator[str]:
        needed = len(self.parties) if require == "all" else require or 0
        failing = [name for name in self.parties if name in self.unsaved or 2 * self.missed.get(name, 0) > self.epochs]
        took_part, required = len(self.parties) - len(failing), '"all"' if require == "all" else require
        if took_part >= needed:
            return
        those = ", ".join(
            f"{name!r} missed {self.missed.get(name, 0)} of {self.epochs} epochs"
            + (" and did not save its part of the model" if name in self.unsaved else "")
            for name in failing
        )
        yield (f"train.require = {required}, and only {took_part} of {len(self.parties)} parties took part in at least "
               f"half of the epochs and saved their part of the model: {those}. Nothing that was trained is lost. To "
               f"save a missing part, start that party and train with --resume; to make up for missed epochs, train "
               f"again with --again; to accept the model as it is, change train.require and use --resume")  # fmt: skip


def check_require(require: Require, parties: Collection[str]) -> None:
    """Check that there are enough parties for ``train.require``.

    Raises:
        ConfigError: the setting requires more parties than there are.
    """
    if isinstance(require, int) and require > len(parties):
        raise ConfigError(f'train.require = {require}: there are {len(parties)} parties; write a number from 1 to '
                          f'{len(parties)}, or "all"')  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunHooks:
    """One party's callbacks and values from outside training.

    Attributes:
        callback: the callback that follows the training.
        membership: reports the parties that are gone or wait to rejoin, and readmits them.
        welcome: at the active party, a function that prepares a party that rejoins: ``await welcome(net, name)``.
        secret: 32 bytes for the party's private random draws; if empty, all draws follow from the seed.
        on_begin: a function that is called with the party's networks and rows before the first stage.
        on_checkpoint: a function that is called after every checkpoint with the history and the best epoch's position
            in the history, counted from 1; 0 if no epoch was chosen.
        joint: the joint execution, if all parties run in this process; ``None`` for the protocol.

    """

    callback: Callback = field(default_factory=Callback)
    membership: Membership = field(default_factory=StaticMembership)
    welcome: Callable[[Channel, str], Awaitable[None]] | None = None
    secret: bytes = field(default=b"", repr=False)
    on_begin: Callable[[State, Rows], None] | None = None
    on_checkpoint: Callable[[list[dict[str, Any]], int], None] | None = None
    joint: JointExecution | None = None


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """The rule by which epochs are compared: the validation scores to compare, and which values are better.

    Attributes:
        metric: the name of the score to compare.
        greater: True if greater values of the metric are better.
        smooth: the name of the score that breaks ties, smaller values being better; empty if the metric is smooth.
        floor: the metric of the best constant answer; all values up to the floor count as the same value.

    """

    metric: str
    greater: bool = False
    smooth: str = ""
    floor: float = -math.inf

    def rank(self, value: float, smooth: float) -> tuple[float, float]:
        """Return a pair of numbers for an epoch's two scores; the pair of a better epoch is greater."""
        return (max(value, self.floor) if self.greater else -value), -smooth


@dataclass(frozen=True, kw_only=True)
class PartyRun:
    """The inputs of one party's training loop.

    Attributes:
        seat: the party's context: its name, the roster, the task and the settings of its network.
        method: the method to train.
        rows: the party's own data of the aligned rows.
        settings: the training settings, the same at every party.
        agreed: the groups of settings that must be the same at all parties, as text by name.
        validation: [n] int64, indices of the rows to validate on; only the active party uses them.
        training: [N] bool, the rows that training may use; only the active party uses them.
        joined: [N] bool, the rows that ``settings.rows`` selects, at the active party.
        checkpoints: the party's checkpoint folder; if ``None``, no checkpoints are kept.
        resume: whether to resume from checkpoints that all parties have.
        hooks: callbacks and values from outside training.

    """

    seat: PartyContext
    method: Method
    rows: Rows
    settings: TrainSettings
    validation: Tensor
    training: Tensor
    agreed: Mapping[str, str] = field(default_factory=dict)
    joined: Tensor | None = None
    checkpoints: Checkpoints | None = None
    resume: bool = False
    hooks: RunHooks = field(default_factory=RunHooks)

    @cached_property
    def leads(self) -> bool:
        """True if this is the active party."""
        return self.seat.me == self.seat.roster.active

    @cached_property
    def seeds(self) -> Seeds:
        """The source of the run's shared random streams and of the party's private random streams."""
        return Seeds(self.settings.seed, self.hooks.secret)

    @cached_property
    def criterion(self) -> Criterion:
        """The rule by which the active party compares epochs."""
        task, y = self.seat.task, self.rows.y
        assert task is not None
        name, greater = headline(task, self.settings.metric)
        smooth = headline(task)[0]
        if name in {smooth, "loss"}:
            return Criterion(metric=name, greater=greater)
        floor = -math.inf
        if greater and y is not None and self.leads:
            floor = constant_score(name, task, y.cpu()[self.validation])
        return Criterion(metric=name, greater=greater, smooth=smooth, floor=floor)


@dataclass
class TrainedParty:
    """A party's networks after training; the active party also has the history of the run."""

    state: State
    history: list[dict[str, Any]]
    best_epoch: int


def warn_of_idle(method: Method, roster: Roster) -> None:
    """Warn of label holders whose labels the method does not use."""
    users = method.label_users(roster) if isinstance(method, HasHosts) else (roster.active,)
    idle = [name for name in roster.labelers if name not in users]
    if idle:
        remark(
            f"the labels of party {some(idle)} are not used: only those of the active party {roster.active!r} are, "
            "unless a split method with heads for parties has hosting = 'labelers'"
        )


async def share_labelled(net: Channel, method: Method, roster: Roster, rows: Rows) -> Rows:
    """If this party hosts heads, send its mask of labelled rows to the active party, which receives all masks.

    The result is ``rows``.  At the active party, it has the masks of the other hosts in ``Rows.labeled_at``.

    Raises:
        PartyLost: a host left, or did not answer in time.
        MessageError: a received mask does not match its declaration.
    """
    hosts = hosts_of(method, roster)
    if hosts == (roster.active,):
        return rows
    others = [name for name in hosts if name != roster.active]
    if net.me in others:
        assert rows.labeled is not None
        await net.send(roster.active, "labelled", {"labelled": rows.labeled.byte()})
    if net.me != roster.active or not others:
        return rows
    assert rows.labeled is not None
    labelled = {name: (await labelled_at(net, name, rows.n)).to(rows.labeled.device) for name in others}
    return replace(rows, labeled_at=labelled)


async def labelled_at(net: Channel, name: str, n: int) -> torch.Tensor:
    """Receive a host's mask of labelled rows, and return this mask: [N] bool."""
    message = await net.recv(name, "labelled", {"labelled": TensorSpec((n,), torch.uint8)})
    return message["labelled"].bool()
