"""Distillation: a student network on the active party's block learns to reproduce a teacher's embeddings.

APC-VFL uses distillation in equation (5), and VFedTrans as local representation distillation.

Notation  B rows, B_t rows that the teacher knows, I width of the block, M width of the student's embedding, M' width of
          the teacher's embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from anyparty.core.types import Roster
from anyparty.errors import AlignmentError, ConfigError, Diverged, some
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.networks.encoders import MLP, Autoencoder, Factory
from anyparty.problem.rows import Block, Rows

Distance = Literal["mse", "mae"]
Reduction = Literal["sum", "mean"]


class DistillationParameters(Protocol):
    """The parameters with which a method describes its ``DistillationLoss``."""

    @property
    def distillation(self) -> float:
        """The weight lambda of the distance to the teacher."""

    @property
    def distance(self) -> Distance:
        """The distance between the student's embedding and the teacher's."""

    @property
    def reduction(self) -> Reduction:
        """The reduction of the errors of a row to one number: "sum" or "mean"."""


def choices(method: DistillationParameters) -> dict[str, tuple[str, Sequence[str]]]:
    """Return a method's distance and reduction, each as a pair (value, allowed values), for the function ``check``."""
    return {"distance": (method.distance, ("mse", "mae")), "reduction": (method.reduction, ("sum", "mean"))}


@dataclass(frozen=True, kw_only=True)
class DistillationLoss:
    """The student's loss: reconstruction error, plus the distance to the teacher in rows that the teacher knows.

    Attributes:
        weight: lambda, the weight of the distance to the teacher.
        distance: "mse" or "mae", between the student's embedding and the teacher's.
        reduction: the "sum" over the numbers of a row, as in APC-VFL's equation (5), or their "mean".

    """

    weight: float
    distance: Distance
    reduction: Reduction

    @classmethod
    def of(cls, method: DistillationParameters) -> DistillationLoss:
        """Return the loss with the parameters that ``method`` has."""
        return cls(weight=method.distillation, distance=method.distance, reduction=method.reduction)

    def loss(self, net: Autoencoder, x: Tensor, targets: Tensor | None, held: Tensor | None) -> Tensor:
        """Return the loss of APC-VFL's equation (5), as a mean over the rows x [B, I].

        ``held`` [B_t] are the indices of the rows that the teacher knows. ``targets`` [B_t, M'], with M' <= M, are the
        teacher's embeddings of these rows.
        """
        z, back = net(x)
        total = self._reduced(back - x, "mse").sum()
        if targets is not None and held is not None and len(held) and targets.shape[1]:
            off = z[held][:, : targets.shape[1]] - targets
            total = total + self.weight * self._reduced(off, self.distance).sum()
        return total / len(x)

    def _reduced(self, off: Tensor, distance: Distance) -> Tensor:
        """Return the sum or the mean of each row's squared or absolute differences: off [B, width] -> [B]."""
        off = off**2 if distance == "mse" else off.abs()
        return off.sum(dim=1) if self.reduction == "sum" else off.mean(dim=1)

    def on(self, state: State, name: str, teacher: Block | None, rows: Rows, batch: Batch) -> Tensor:
        """Return the loss of the active party's autoencoder ``name`` on the active party's own rows of a batch.

        ``teacher`` has the embeddings that the autoencoder learns to reproduce; ``None`` if there is no teacher.
        """
        assert rows.block is not None
        x, held = rows.block.take(batch.rows)
        targets, known = (None, None) if teacher is None else teacher.take(batch.rows[held])
        return self.loss(autoencoder(state, name), x, targets, known)


def check(
    what: str, *, widths: Mapping[str, int | tuple[int, ...]], at_least_0: Mapping[str, float],
    choices: Mapping[str, tuple[str, Sequence[str]]],
) -> None:  # fmt: skip
    """Raise an error if a parameter is out of range.

    Raises:
        ConfigError: a value in ``widths`` is below 1, a value in ``at_least_0`` is negative or not a number, or a text
            in ``choices`` is not one of its allowed values. The message begins with ``what``.
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
    """Return the active party's index among the K parties.

    Raises:
        ConfigError: the active party holds no columns.
    """
    if roster.active not in roster.blocks:
        raise ConfigError(f"{title} predicts from the active party's own columns, and {roster.active!r} has none: "
                          f"let a party with labels and columns lead (federation.active)")  # fmt: skip
    return roster.blocks.index(roster.active)


def others(roster: Roster) -> tuple[str, ...]:
    """Return the passive parties that hold columns."""
    return tuple(name for name in roster.blocks if name != roster.active)


def own(rows: Rows, roster: Roster) -> Tensor:
    """Return a mask [N] of the rows that the active party has."""
    assert rows.observed is not None
    return rows.observed[:, roster.blocks.index(roster.active)]


def aligned(rows: Rows, roster: Roster) -> Tensor:
    """Return a mask [N] of the rows that the active party and at least one passive party have."""
    assert rows.observed is not None
    passive = [k for k, name in enumerate(roster.blocks) if name != roster.active]
    return own(rows, roster) & rows.observed[:, passive].any(dim=1)


def some_aligned(rows: Rows, roster: Roster, title: str) -> Tensor:
    """Return a mask [N] of the aligned rows, and check that at least one row is aligned.

    Raises:
        AlignmentError: no row is aligned.
    """
    found = aligned(rows, roster)
    if not found.any():
        raise AlignmentError(f"{title}: no row is aligned: {roster.active!r} shares no row with a passive party, so "
                             "it has nothing to learn from them; see the overlap table")  # fmt: skip
    return found


def labelled_own(rows: Rows, roster: Roster) -> Tensor:
    """Return a mask [N] of the labelled rows that the active party has."""
    assert rows.labeled is not None
    return rows.labeled & own(rows, roster)


def labelled(rows: Rows, batch: Batch) -> Tensor:
    """Return the indices, among the N rows, of those rows of a batch whose label is known."""
    assert rows.labeled is not None
    return batch.rows[rows.labeled[batch.rows]]


def held(rows: Rows, batch: Batch) -> Tensor | None:
    """Return a party's own rows of a batch [B_k, I]; ``None`` if the party has none of the batch's rows."""
    if rows.block is None:
        return None
    x, places = rows.block.take(batch.rows)
    return x if len(places) else None


def student(seat: PartyContext, hidden: tuple[int, ...], activation: str) -> Factory:
    """Return the factory of the student's encoder.

    If the party's encoder is a perceptron, the student's is a perceptron, too. It has the hidden widths ``hidden``, and
    the dropout and normalisation of the party's encoder. In all other cases, the party's factory is returned.
    """
    own = seat.encoder
    return replace(own, hidden=hidden, activation=activation) if isinstance(own, MLP) else own


def idle_encoder(seat: PartyContext, title: str) -> str:
    """Return a remark on settings of the active party's perceptron that had no effect.

    The remark is empty if all settings without effect have their default values.
    """
    own, usual = seat.encoder, MLP()
    if not isinstance(own, MLP):
        return ""
    idle = [f"encoder.{name}" for name in ("hidden", "activation") if getattr(own, name) != getattr(usual, name)]
    sentence = (f"{some(idle)} of {seat.me!r} did nothing: with {title} the method's student_hidden and activation "
                "define "
            "its networks")  # fmt: skip
    return sentence if idle else ""


def place(state: State, modules: Mapping[str, nn.Module]) -> State:
    """Add networks to a party's state, and an optimizer for each trainable network; return the state."""
    for name, module in modules.items():
        state.modules[name] = module.to(state.seat.device)
        parameters = [p for p in module.parameters() if p.requires_grad]
        if parameters:
            state.optimizers[name] = state.seat.optimizer.build(parameters)
    return state


def fit(state: State, name: str, batch: Batch, loss: Callable[[], Tensor]) -> float:
    """Make an optimizer step of one network on the loss that ``loss`` computes; return the value of the loss.

    Raises:
        Diverged: the loss is not a number.
    """
    optimizer = state.optimizers[name]
    optimizer.zero_grad()
    draws = batch.drawing(f"{name} draws", state.seat.me, device=state.seat.device)
    with draws if state.seat.draws else nullcontext():
        value = loss()
    found = value.item()
    if not math.isfinite(found):
        raise Diverged(f"party {state.seat.me!r}: the loss of {name} is {found} at {batch}: lower its learning "
                       f"rate, or look for extreme values in its columns")  # fmt: skip
    (batch.share * value).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return found


def autoencoder(state: State, name: str) -> Autoencoder:
    """Return the party's autoencoder that has the given name."""
    found = state.modules[name]
    assert isinstance(found, Autoencoder)
    return found


def embed(state: State, name: str, x: Tensor) -> Tensor:
    """Return the embeddings that a trained autoencoder computes from rows x: [B, I] -> [B, M]."""
    net = autoencoder(state, name)
    net.train(False)
    with torch.no_grad():
        return net.encode(x)


def embedded(state: State, name: str, rows: Rows, places: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the party's n rows among ``places``, as positions in ``places`` [n], and their embeddings [n, M]."""
    if rows.block is None:
        return None
    x, held = rows.block.take(places)
    return held, embed(state, name, x)


# Results that one stage of training stores for a later stage


def keep(state: State, name: str, block: Block) -> None:
    """Store a block under a name, for a later stage."""
    state.kept |= {f"{name}/x": block.x, f"{name}/position": block.position}


def kept(state: State, name: str) -> Block | None:
    """Return the block that an earlier stage stored under a name; ``None`` if no block has this name."""
    return Block(state.kept[f"{name}/x"], state.kept[f"{name}/position"]) if f"{name}/x" in state.kept else None
