"""Distillation: a student network on the active party's block learns to resemble what a teacher says of its rows.

APC-VFL, equation (5), and the local representation distillation of VFedTrans.

Letters   B rows, B_t those that the teacher knows, I width of the block, M width of the student's embedding, M' of the
          teacher's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from anyparty.blocks.blocks import Block, Rows
from anyparty.methods import enriched
from anyparty.methods.method import Batch, State
from anyparty.nets.autoencoder import Autoencoder

Distance = Literal["mse", "mae"]
Reduction = Literal["sum", "mean"]


class Distilling(Protocol):
    """The parameters by which a method says how it distils: see ``Distil``."""

    @property
    def distillation(self) -> float:
        """The weight lambda."""

    @property
    def distance(self) -> Distance:
        """Between the student's embedding and the teacher's."""

    @property
    def reduction(self) -> Reduction:
        """Over the numbers of a row."""


def choices(method: Distilling) -> dict[str, tuple[str, Sequence[str]]]:
    """Return those of these parameters that are words, each with what it may be, for ``enriched.check``."""
    return {"distance": (method.distance, ("mse", "mae")), "reduction": (method.reduction, ("sum", "mean"))}


@dataclass(frozen=True, kw_only=True)
class Distil:
    """The student's loss on a batch: reconstruction, and resemblance to the teacher where it knows the row.

    Attributes:
        weight: lambda.
        distance: "mse" or "mae", between the student's embedding and the teacher's.
        reduction: "sum" over the numbers of a row, as (5) is written, or their "mean".

    """

    weight: float
    distance: Distance
    reduction: Reduction

    @classmethod
    def of(cls, method: Distilling) -> Distil:
        """Return the loss that a method's parameters describe."""
        return cls(weight=method.distillation, distance=method.distance, reduction=method.reduction)

    def loss(self, net: Autoencoder, x: Tensor, targets: Tensor | None, held: Tensor | None) -> Tensor:
        """Return the mean over rows x [B, I] of (5); rows ``held`` [B_t] have targets [B_t, M'], M' <= M."""
        z, back = net(x)
        whole = self._of(back - x, "mse").sum()
        if targets is not None and held is not None and len(held) and targets.shape[1]:
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
        return self.loss(enriched.autoencoder(state, name), x, targets, known)
