"""The inputs and the result of one party's training loop."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anyparty.config import TrainSettings
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, Roster, TensorSpec
from anyparty.data.blocks import Rows
from anyparty.errors import remark, some
from anyparty.methods.method import Method, PartyContext, State
from anyparty.methods.schedules.scheduled import Scheduled
from anyparty.methods.split.topology import HasTopology, Topology
from anyparty.metrics import constant_score, headline
from anyparty.training.callbacks import Callback
from anyparty.training.checkpoint import Checkpoints
from anyparty.training.epoch_choice import Criterion
from anyparty.training.membership import Membership, StaticMembership


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

    """

    callback: Callback = field(default_factory=Callback)
    membership: Membership = field(default_factory=StaticMembership)
    welcome: Callable[[Channel, str], Awaitable[None]] | None = None
    secret: bytes = field(default=b"", repr=False)
    on_begin: Callable[[State, Rows], None] | None = None
    on_checkpoint: Callable[[list[dict[str, Any]], int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class PartyRun:
    """The inputs of one party's training loop.

    Attributes:
        seat: the party's context: its name, the roster, the task and the settings of its network.
        method: the method to train.
        rows: the party's own data of the aligned rows.
        settings: the training settings, the same at every party.
        agreed: by name, the groups of settings that must be the same at all parties, as text.
        validation: [n] int64, indices of the rows to validate on, at the active party.
        training: [N] bool, the rows that training may use, at the active party.
        joined: [N] bool, the rows that ``settings.rows`` selects, at the active party.
        checkpoints: the party's checkpoint folder; ``None`` keeps no checkpoints.
        resume: whether to resume from checkpoints that all parties have.
        hooks: callbacks and values from outside training.

    """

    seat: PartyContext
    method: Method
    rows: Rows
    settings: TrainSettings
    agreed: Mapping[str, str] = field(default_factory=dict)
    validation: Tensor | None = None
    training: Tensor | None = None
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
        """The comparison of epochs by their scores on the validation rows; used at the active party."""
        task, y = self.seat.task, self.rows.y
        assert task is not None
        name, greater = self.settings.metric_for(task)
        smooth = headline(task)[0]
        if name in {smooth, "loss"}:
            return Criterion(metric=name, greater=greater)
        floor = -math.inf
        if greater and y is not None and self.validation is not None:
            floor = constant_score(name, task, y.cpu()[self.validation])
        return Criterion(metric=name, greater=greater, smooth=smooth, floor=floor)


@dataclass
class TrainedParty:
    """A party's networks after training; the active party also has the history of the run."""

    state: State
    history: list[dict[str, Any]]
    best_epoch: int


def hosts_of(method: Method, roster: Roster) -> tuple[str, ...]:
    """Return the parties whose labels train a method's heads, with the active party first."""
    return tuple(method.topology(roster).hosts) if isinstance(method, HasTopology) else (roster.active,)


def warn_of_idle(method: Method, roster: Roster) -> None:
    """Warn of label holders whose labels the method does not use."""
    if roster.labelers == (roster.active,) or (isinstance(method, Scheduled) and method.local.labels == "shared"):
        return
    hosts = hosts_of(method, roster)
    idle = [name for name in roster.labelers if name not in {roster.active, *hosts}]
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
    told = {name: (await labelled_at(net, name, rows.n)).to(rows.labeled.device) for name in others}
    return replace(rows, labeled_at=told)


async def labelled_at(net: Channel, name: str, n: int) -> torch.Tensor:
    """Return the mask of labelled rows, [N] bool, received from the party ``name``, which hosts heads."""
    said = await net.recv(name, "labelled", {"labelled": TensorSpec((n,), torch.uint8)})
    return said["labelled"].bool()


def untaught(part: PartyRun, topology: Topology | None, missed: Sequence[int]) -> Iterator[str]:
    """Yield remarks on networks that were not trained; called at the active party.

    ``topology`` is the topology of a split method.  ``missed`` holds the indices k of the parties that the active
    party's own heads did not train.  The heads of another host train the parties whose embeddings that host reads, on
    the rows for which that host has labels.
    """
    roster, rows, idle, reached = part.seat.roster, part.rows, [], set()
    for host, labeled in rows.labeled_at.items():
        assert rows.observed is not None
        assert part.training is not None
        there = rows.observed[labeled & part.training.to(labeled.device)].any(dim=0).tolist()
        # a user-defined method without a topology may read the embeddings of all parties
        read = topology.reads[host] if topology else roster.blocks
        reached |= {k for k, name in enumerate(roster.blocks) if there[k] and name in read}
        if not any(there):
            idle.append(host)
    unread = topology.unread if topology else ()
    if unread:
        yield f"no head reads the embeddings of {some(unread)}, which therefore sends nothing and is not trained"
    told = {*idle, *unread}
    without = [roster.blocks[k] for k in missed if k not in reached and roster.blocks[k] not in told]
    if without:
        yield f"training reached no labelled row of {some(without)}, so that predictions ignore it"
    if idle:
        yield f"no training row has a label of {some(idle)}, so that the predictor there is untrained"
