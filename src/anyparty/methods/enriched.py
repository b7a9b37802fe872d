"""What methods share in which the active party learns enriched representations of its own rows, and predicts alone.

A teacher knows something of some rows that the active party's block does not show; a student network on the block
alone learns to resemble it (distillation); a classifier is fitted to the student's embeddings of all labelled rows.
From then on no other party is asked for anything.

Letters   B rows, B_a those that the active party holds, I width of its block, M width of an embedding, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyparty.blocks.blocks import Block, Rows
from anyparty.errors import ConfigError, Diverged
from anyparty.methods.exchange import moment
from anyparty.methods.method import Batch, Seat, Stage, State
from anyparty.nets.autoencoder import Autoencoder
from anyparty.nets.estimator import Fitted
from anyparty.nets.mlp import MLP, Factory
from anyparty.nets.objective import answers, losses
from anyparty.predictions import Predictions
from anyparty.seeds import Seeds
from anyparty.terms import Channel, Roster, Task

Distance = Literal["mse", "mae"]
Reduction = Literal["sum", "mean"]
Features = Callable[[State, Tensor], Tensor]

NOBODY = "no party that was asked and answered has this row"


def check(
    what: str, *, widths: Mapping[str, int | tuple[int, ...]], at_least_0: Mapping[str, float],
    choices: Mapping[str, tuple[str, Sequence[str]]],
) -> None:  # fmt: skip
    """Refuse parameters that are out of range.

    Raises:
        ConfigError: a width below 1, a weight that is negative or no number, or a word that is not among the choices.
    """
    for name, width in widths.items():
        if any(each < 1 for each in (width if isinstance(width, tuple) else (width,))):
            raise ConfigError(f"{what}: {name} must be at least 1, got {width}")
    for name, value in at_least_0.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{what}: {name} must be a number and not negative, got {value}")
    for name, (word, known) in choices.items():
        if word not in known:
            raise ConfigError(f"{what}: {name} is one of {', '.join(map(repr, known))}, not {word!r}")


def active_block(roster: Roster, title: str) -> int:
    """Return the active party's place among the K.

    Raises:
        ConfigError: it holds no columns.
    """
    if roster.active not in roster.blocks:
        raise ConfigError(f"{title} predicts from the active party's own columns, and {roster.active!r} has none: "
                          f"let a party with labels and columns lead (federation.active)")  # fmt: skip
    return roster.blocks.index(roster.active)


def others(roster: Roster) -> tuple[str, ...]:
    """Return the passive parties that hold columns."""
    return tuple(name for name in roster.blocks if name != roster.active)


def own(rows: Rows, roster: Roster) -> Tensor:
    """Return the rows that the active party has: [N] bool."""
    assert rows.observed is not None
    return rows.observed[:, roster.blocks.index(roster.active)]


def aligned(rows: Rows, roster: Roster) -> Tensor:
    """Return the rows that the active party and a passive one have: [N] bool."""
    assert rows.observed is not None
    passive = [k for k, name in enumerate(roster.blocks) if name != roster.active]
    return own(rows, roster) & rows.observed[:, passive].any(dim=1)


def labelled(rows: Rows, batch: Batch) -> Tensor:
    """Return those places of a batch whose label is known."""
    assert rows.labeled is not None
    return batch.rows[rows.labeled[batch.rows]]


def held(rows: Rows, batch: Batch) -> Tensor | None:
    """Return a party's own rows of a batch [B_k, I]; ``None`` if it has none of them."""
    if rows.block is None:
        return None
    x, places = rows.block.take(batch.rows)
    return x if len(places) else None


def student(seat: Seat, hidden: tuple[int, ...], activation: str) -> Factory:
    """Return what makes the student's encoder: perceptrons with the method's own widths, or the user's own network."""
    return MLP(hidden=hidden, activation=activation) if isinstance(seat.encoder, MLP) else seat.encoder


def place(state: State, modules: Mapping[str, nn.Module]) -> State:
    """Put networks into a party's state, with an optimizer for each that has something to train."""
    for name, module in modules.items():
        state.modules[name] = module.to(state.seat.device)
        parameters = [p for p in module.parameters() if p.requires_grad]
        if parameters:
            state.optimizers[name] = state.seat.optimizer.build(parameters)
    return state


def fit(state: State, name: str, batch: Batch, loss: Callable[[], Tensor]) -> float:
    """Take a step of the network ``name`` down a loss; return the loss.

    Raises:
        Diverged: the loss is not a number.
    """
    optimizer = state.optimizers[name]
    optimizer.zero_grad()
    with batch.drawing(f"{name} draws", state.seat.me, device=state.seat.device):
        value = loss()
    found = value.item()
    if not math.isfinite(found):
        raise Diverged(f"party {state.seat.me!r}: the loss of {name} is {found} at {moment(batch)}: lower its learning "
                       f"rate, or look for extreme values in its columns")  # fmt: skip
    value.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return found


def autoencoder(state: State, name: str) -> Autoencoder:
    """Return a party's autoencoder by name."""
    found = state.modules[name]
    assert isinstance(found, Autoencoder)
    return found


def embed(state: State, name: str, x: Tensor) -> Tensor:
    """Return the embeddings of an autoencoder that is trained: [B, I] -> [B, H]."""
    net = autoencoder(state, name)
    net.train(False)
    with torch.no_grad():
        return net.encode(x)


# Distillation


def keep(state: State, name: str, block: Block) -> None:
    """Keep something of the rows of a block for a later stage."""
    state.kept |= {f"{name}/x": block.x, f"{name}/position": block.position}


def kept(state: State, name: str) -> Block | None:
    """Return what an earlier stage kept under a name; ``None`` if nothing."""
    return Block(state.kept[f"{name}/x"], state.kept[f"{name}/position"]) if f"{name}/x" in state.kept else None


@dataclass(frozen=True, kw_only=True)
class Distil:
    """The student's loss on a batch: reconstruction, and resemblance to the teacher where it knows the row.

    APC-VFL, equation (5), and the local representation distillation of VFedTrans.

    Attributes:
        weight: lambda.
        distance: "mse" or "mae", between the student's embedding and the teacher's.
        reduction: "sum" over the numbers of a row, as (5) is written, or their "mean".

    """

    weight: float
    distance: Distance
    reduction: Reduction

    def loss(self, net: Autoencoder, x: Tensor, targets: Tensor | None, held: Tensor | None) -> Tensor:
        """Return the mean over rows x [B, I] of (5); rows ``held`` [B_t] have targets [B_t, M'], M' <= M."""
        z, back = net(x)
        whole = self._of(back - x, "mse").sum()
        if targets is not None and held is not None and len(held):
            off = z[held][:, : targets.shape[1]] - targets
            whole = whole + self.weight * self._of(off, self.distance).sum()
        return whole / len(x)

    def _of(self, off: Tensor, distance: Distance) -> Tensor:
        """Return each row's distance: [B, D] -> [B]."""
        off = off**2 if distance == "mse" else off.abs()
        return off.sum(dim=1) if self.reduction == "sum" else off.mean(dim=1)

    def on(self, state: State, name: str, teacher: Block | None, rows: Rows, batch: Batch) -> Tensor:
        """Return the loss of autoencoder ``name`` on those rows of a batch that the active party has, one at least."""
        assert rows.block is not None
        x, held = rows.block.take(batch.rows)
        targets, known = (None, None) if teacher is None else teacher.take(batch.rows[held])
        return self.loss(autoencoder(state, name), x, targets, known)


# The classifier, and prediction by the active party alone


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How enriched rows become answers.

    Attributes:
        title: of the method.
        features: the embeddings that are classified, from the active party's block [B, I] -> [B, M].
        classifier: "logistic" ("ridge" for numbers), a class of scikit-learn's, or "head": a network.
        settings: the estimator's own.
        head_hidden: hidden widths of the head.

    """

    title: str
    features: Features
    classifier: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    head_hidden: tuple[int, ...] = ()

    def module(self, task: Task, inputs: int, seeds: Seeds) -> nn.Module:
        """Return a fresh classifier of embeddings of a width.

        Raises:
            ConfigError: scikit-learn has no such estimator, or not with such settings.
        """
        if self.classifier == "head":
            return MLP(hidden=self.head_hidden)(inputs, task.outputs)
        name = "ridge" if self.classifier == "logistic" and task.kind == "regression" else self.classifier
        return Fitted(name, task, inputs, self.settings, seeds.number("classifier"))

    def stage(self, rows: Callable[[Rows], Tensor]) -> Stage:
        """Return the stage that fits it: epochs for a head, one step for an estimator."""
        epochs = None if self.classifier == "head" else 0
        return Stage(name="classify", step=self.step, rows=rows, epochs=epochs, parties="active")

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Fit the classifier to the labelled rows of a batch."""
        assert rows.block is not None
        assert rows.y is not None
        assert state.seat.task is not None
        places = labelled(rows, batch)
        x, held = rows.block.take(places)
        return self.learn(state, self.features(state, x), rows.y[places[held]], batch)

    def learn(self, state: State, u: Tensor, y: Tensor, batch: Batch) -> float | None:
        """Fit the classifier to embeddings u [B, M] and labels y [B], if there are any; return the loss."""
        if not len(y):
            return 0.0
        task, module = state.seat.task, state.modules["classifier"]
        assert task is not None
        if isinstance(module, Fitted):
            module.fit(u, y)
            return losses(task, module(u), y).mean().item()
        return fit(state, "classifier", batch, lambda: losses(task, module(u), y).mean())

    def alone(self, state: State, rows: Rows, batch: Batch, asked: Sequence[str]) -> Predictions:
        """Return the active party's answers from its own block."""
        assert rows.block is not None
        seat, B = state.seat, len(batch.rows)
        x, held = rows.block.take(batch.rows)
        if seat.me not in asked:
            x, held = x[:0], held[:0]
        u = self.features(state, x)
        took = torch.zeros(B, seat.roster.K, dtype=torch.bool)
        took[held.cpu(), seat.roster.blocks.index(seat.me)] = True
        why = f"{self.title} predicts from the block of {seat.me!r}, which "
        why += "does not have this row" if seat.me in asked else "was not asked"
        return self.answer(state, rows, batch, asked, held=held, u=u, took_part=took, why=why)

    def answer(
        self, state: State, rows: Rows, batch: Batch, asked: Sequence[str], *,
        held: Tensor, u: Tensor, took_part: Tensor, why: str, silent: Sequence[str] = (),
    ) -> Predictions:  # fmt: skip
        """Return answers for the rows ``held`` [n] of a batch, from features u [n, M], and why others have none."""
        task, blocks = state.seat.task, state.seat.roster.blocks
        assert task is not None
        assert rows.observed is not None
        scores = torch.full((len(batch.rows), task.outputs), torch.nan, device=u.device)
        with torch.no_grad():
            scores[held] = answers(task, state.modules["classifier"](u))
        there = rows.observed[batch.rows].cpu() & torch.tensor([name in asked for name in blocks])
        known, answered = there.any(dim=1).tolist(), ~torch.isnan(scores).any(dim=1).cpu()
        lacking = (~answered).nonzero().squeeze(1).tolist()
        return Predictions(
            task=task, blocks=blocks, scores=scores.cpu(), took_part=took_part.cpu(),
            asked=torch.tensor([name in asked for name in blocks]), silent=tuple(silent), predictor=self.title,
            reasons={n: why if known[n] else NOBODY for n in lacking},
        )  # fmt: skip
