"""The contract of a method: the coroutine of each party, independent of what runs it; and checks of a user's method.

A method is frozen parameters. It has no loop over epochs, no socket and no file: ``run`` has those, and a test can
drive one party's coroutine by hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, Roster, Task
from anyparty.data.blocks import Rows
from anyparty.errors import ConfigError
from anyparty.methods.split.topology import Topology
from anyparty.networks.mlp import MLP, Factory
from anyparty.networks.optimizer import Optimizer


@dataclass(frozen=True, kw_only=True)
class PartyContext:
    """A party's place in a run: who it is, and what it brings that others need not know.

    Attributes:
        me: its name in the roster.
        roster: all parties.
        task: what is predicted, at parties that hold labels.
        inputs: width of its prepared block, 0 without columns.
        encoder: how it makes its embedding network.
        optimizer: what trains its networks.
        device: where it computes.

    """

    me: str
    roster: Roster
    task: Task | None = None
    inputs: int = 0
    encoder: Factory = MLP()
    optimizer: Optimizer = Optimizer()
    device: torch.device = torch.device("cpu")

    @cached_property
    def draws(self) -> bool:
        """Whether the encoder may draw random numbers: ours do for dropout, a user's own might."""
        return not isinstance(self.encoder, MLP) or self.encoder.dropout > 0


@dataclass
class State:
    """What a party's training changes: its networks and optimizers, by name.  All of it is saved and restored.

    ``kept`` is what one stage leaves for a later one: it stands in checkpoints, not in the trained model.  A
    split method's ``topology`` is resolved by ``begin`` from method and roster, and is never saved.
    """

    seat: PartyContext
    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)
    topology: Topology | None = None

    def train(self, mode: bool) -> None:
        """Set all networks to training or to evaluation."""
        for module in self.modules.values():
            module.train(mode)


@dataclass(frozen=True)
class Batch:
    """Rows that all parties work on at once, and the name of the moment, from which random choices draw.

    Attributes:
        rows: [B] int64, places among the N aligned rows; the same, in the same order, at every party.
        seeds: the run's root seed.
        moment: (stage, epoch, step).
        number: how many batches of the stage came before; the same at every party, also one that was away.
        share: what a step on its mean counts beside the stage's other steps: 1 where batches are mixed, and its rows by
            those of a mean batch where they are kept apart by pattern, so that an epoch's steps add up to its rows.
        held_out: [b] int64, places among the N rows of those that are for validation, in a stage of a single step,
            which may work on them too.

    """

    rows: Tensor
    seeds: Seeds
    moment: tuple[str | int, ...] = ()
    number: int = 0
    share: float = 1.0
    held_out: Tensor | None = None

    def generator(self, name: str) -> torch.Generator:
        """Return this moment's random stream ``name``, the same at every party that asks."""
        return self.seeds.torch(name, *self.moment)

    def own(self, name: str) -> torch.Generator:
        """Return this moment's random stream ``name`` of the party itself, which nobody else can draw."""
        return self.seeds.own.torch(name, *self.moment)

    def drawing(self, *name: str, device: torch.device) -> AbstractContextManager[None]:
        """Let modules that draw by themselves (dropout) draw from the party's own stream ``name`` of this moment.

        Never around an await: see ``Seeds.drawing``.
        """
        return self.seeds.own.drawing(*name, *self.moment, device=device)


Step = Callable[[Channel, State, Rows, Batch], Awaitable[float | None]]
Loss = Callable[[State, Rows, Batch], float | None]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of training that the run repeats over batches and epochs.

    Attributes:
        name: of the stage, shown with its progress.
        step: one party's part in one batch; answers the loss at the active party.
        rows: at the active party, which of its rows the stage trains on: [N] bool.
        validates: whether validation rows are scored after every epoch.
        epochs: how many it has, where they are not those of the settings; 0 is a single exchange: one step over all
            of its rows.
        batch_size: rows of a batch, where they are not those of the settings.
        optimizer: whose learning rate it follows, where that is not the seat's own.
        parties: who plays it; the others go on without waiting for its end.
        loss: each party trains for itself and nothing crosses: its own loss on validation rows, ``None`` if it holds
            none of them, by which it keeps weights and stops; no answers are scored.
        with_validation: whether it works on validation rows too, as a stage does that learns nothing from labels.
        optional: at the active party, whether it is passed over where there are none of its rows.
        remark: at the active party, what is worth saying of its rows when it ends.
        finish: one party's part after the last batch of an epoch, where steps leave something to do.
        record: what the active party's record of an epoch says besides, such as the time on a schedule's clock.
        continues: whether it goes on with what the stage before has trained: where the best weights are kept, those it
            began with stay unless validation rows say better.

    """

    name: str
    step: Step
    rows: Callable[[Rows], Tensor]
    validates: bool = True
    epochs: int | None = None
    batch_size: int | None = None
    optimizer: Optimizer | None = None
    parties: Literal["all", "active"] = "all"
    loss: Loss | None = None
    with_validation: bool = False
    optional: bool = False
    remark: Callable[[Rows], str] | None = None
    finish: Callable[[Channel, State, Rows], Awaitable[None]] | None = None
    record: Callable[[State], Mapping[str, float]] | None = None
    continues: bool = False


class Method(Protocol):
    """What a paper describes."""

    @property
    def can(self) -> Capabilities:
        """What the method can do, and what it sends."""

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's networks and optimizers.

        Raises:
            ConfigError: the method cannot serve this roster.
        """

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages of training, in order."""

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Play a party's part in predicting ``batch.rows``; the active party gets the answer.

        ``asked`` are the parties whose blocks may take part.
        """


# Checks of a user's own method, at each place where it is called


def checked_begin(method: Method, seat: PartyContext, seeds: Seeds) -> State:
    """Return a party's untrained networks and optimizers.

    Raises:
        ConfigError: ``begin`` does not return a ``State``.
    """
    state: object = method.begin(seat, seeds)
    if not hasattr(state, "modules"):
        raise ConfigError(f"{method.can.title}: expected a State from begin, got a {type(state).__name__}")
    return state  # type: ignore[return-value]


async def checked_step(
    method: Method, stage: Stage, net: Channel, state: State, rows: Rows, batch: Batch
) -> float | None:
    """Run a party's part in one batch of a stage; return the loss at the active party.

    Raises:
        ConfigError: the step is not a coroutine.
    """
    played: object = stage.step(net, state, rows, batch)
    if not inspect.isawaitable(played):
        raise ConfigError(f"{method.can.title}: the step of stage {stage.name!r} must be a coroutine, async def, as "
                          f"it waits for other parties; it gives a {type(played).__name__}")  # fmt: skip
    loss: float | None = await played
    return loss


def checked_answer(method: Method, state: State, answer: object) -> Predictions | None:
    """Return a party's answer for a batch, without a gradient; ``None`` at a party that is not active.

    Raises:
        ConfigError: the answer is of another kind, or the active party has none.
    """
    leads = state.seat.me == state.seat.roster.active
    if answer is None and not leads:
        return None
    if not isinstance(answer, Predictions):
        raise ConfigError(f"{method.can.title}: expected predict to give Predictions at the active party"
                          f"{'' if leads else ', and None elsewhere'}, got a {type(answer).__name__}")  # fmt: skip
    by_party = answer.by_party
    if not answer.scores.requires_grad and (by_party is None or not by_party.requires_grad):
        return answer
    return replace(answer, scores=answer.scores.detach(), by_party=None if by_party is None else by_party.detach())
