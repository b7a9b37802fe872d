"""The inputs and the result of one party's training loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.config import TrainSettings
from anyparty.methods.method import Method, Seat, State
from anyparty.run.checkpoint import Checkpoints
from anyparty.run.door import Closed, Door
from anyparty.run.watch import Watch
from anyparty.seeds import Seeds
from anyparty.terms import Channel


@dataclass(frozen=True, kw_only=True)
class RunHooks:
    """One party's callbacks and values that training passes through unchanged.

    Attributes:
        callback: is called as training proceeds.
        membership: which parties are gone, and which wait to rejoin.
        welcome: at the active party, ``await welcome(net, name)`` sets up a party that rejoins.
        secret: 32 bytes for the party's private random draws; if empty, all draws follow from the seed.
        on_checkpoint: is called after every checkpoint with the history and the best epoch's place in it (from 0).

    """

    callback: Watch = field(default_factory=Watch)
    membership: Door = field(default_factory=Closed)
    welcome: Callable[[Channel, str], Awaitable[None]] | None = None
    secret: bytes = field(default=b"", repr=False)
    on_checkpoint: Callable[[list[dict[str, Any]], int], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """The inputs of one party's training loop.

    Attributes:
        seat: the party's place in the federation.
        method: the method to train.
        rows: the party's part of the aligned rows.
        settings: the training settings, the same at every party.
        agreed: groups of settings as text, by name, that all parties must share.
        validation: [n] int64, the rows to validate on, at the active party.
        training: [N] bool, the rows that training may use, at the active party.
        checkpoints: the party's checkpoint folder; ``None`` keeps no checkpoints.
        resume: whether to resume from checkpoints that all parties have.
        hooks: callbacks and values from outside training.

    """

    seat: Seat
    method: Method
    rows: Rows
    settings: TrainSettings
    agreed: Mapping[str, str] = field(default_factory=dict)
    validation: Tensor | None = None
    training: Tensor | None = None
    checkpoints: Checkpoints | None = None
    resume: bool = False
    hooks: RunHooks = field(default_factory=RunHooks)

    @cached_property
    def leads(self) -> bool:
        """Whether this is the active party."""
        return self.seat.me == self.seat.roster.active

    @cached_property
    def seeds(self) -> Seeds:
        """The root of the run's random streams and of the party's own."""
        return Seeds(self.settings.seed, self.hooks.secret)

    @cached_property
    def metric(self) -> tuple[str, bool]:
        """The metric that selects the best epoch, and whether greater is better; at the active party."""
        assert self.seat.task is not None
        return self.settings.metric_for(self.seat.task)


@dataclass
class Trained:
    """A party's networks after training, and at the active party the history of the run."""

    state: State
    history: list[dict[str, Any]]
    best_epoch: int
