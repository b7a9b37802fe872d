"""What one party brings to a training run, and what it has afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
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
class Part:
    """What one party brings to a training run.

    Attributes:
        seat: who it is.
        method: what is trained.
        rows: its part of the aligned rows.
        settings: of training, the same at every party.
        agreed: groups of settings as text, by name, that all parties must share.
        validation: [n] int64, rows to validate on, at the active party.
        training: [N] bool, rows that training may use, at the active party.
        checkpoints: its folder; ``None`` keeps nothing.
        resume: go on from the checkpoints that all parties have.
        watch: who is told of progress (at the active party).
        door: who is gone and who comes back.
        welcome: what the active party does before a party that comes back can train: ``await welcome(net, name)``.
        kept: called after every checkpoint with the history and the best epoch's place in it, as in ``Trained``.

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
    watch: Watch = field(default_factory=Watch)
    door: Door = field(default_factory=Closed)
    welcome: Callable[[Channel, str], Awaitable[None]] | None = None
    secret: bytes = field(default=b"", repr=False)
    kept: Callable[[list[dict[str, Any]], int], None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the active party."""
        return self.seat.me == self.seat.roster.active

    @property
    def seeds(self) -> Seeds:
        """The root of the run's random streams, and the party's own."""
        return Seeds(self.settings.seed, self.secret)


@dataclass
class Trained:
    """What a party has after training: its networks, and at the active party the history of the run."""

    state: State
    history: list[dict[str, Any]]
    best_epoch: int
