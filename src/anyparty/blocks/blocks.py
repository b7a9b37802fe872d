"""One party's part of an aligned set of rows: its own feature block, and where each row of it stands.

Absence is a mask, never a number: a party has no cell for a row that it does not hold, so there is nothing to
multiply by zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl
import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """The features of the rows that one party holds.

    Attributes:
        x: [N_k, ...] float32, the party's own rows in its own order.
        position: [N] int64, row n stands at ``x[position[n]]``; -1 where the party does not hold row n.
        gaps: [N_k, width] bool, cells that were empty and hold what they were filled with; ``None`` without any.
    """

    x: Tensor
    position: Tensor
    gaps: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.position.dtype == torch.int64
        assert self.position.ndim == 1

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of those of ``rows`` [B] that the party holds [B_k, ...], and which they are [B_k]."""
        own = self.position[rows]
        held = (own >= 0).nonzero().squeeze(1)
        if len(held) == len(rows):
            return self.x[own], held
        return self.x[own[held]], held

    def known(self, rows: Tensor, held: Tensor) -> Tensor | None:
        """Return which cells of what ``take`` returns were not empty [B_k, width]; ``None`` where none can be.

        ``rows`` [B] may be on the CPU, as those of a prediction, while ``held`` [B_k] is where the block is.
        """
        return None if self.gaps is None else ~self.gaps[self.position[rows][held]]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What one party knows of N aligned rows.

    Attributes:
        n: N, known to all.
        block: its features, if it holds columns.
        y: [N] int64 class, or float32 standardised number, at parties that hold labels; anything where not labeled.
        labeled: [N] bool, at parties that hold labels.
        observed: [N, K] bool, who has which row: at parties that host heads (they match rows), nowhere else.
        key: [N] int64 at the active party, a number that belongs to the row wherever it stands: ties are broken by it.
        ids: [N_k] String at the active party: its own ids, in the order of its block.  They go nowhere.
        names: [N] String at the active party: the rows' ids, null where it does not know one.  They go nowhere either.
        told: [N] bool at the active party, by name: of which rows each other host of heads says that it has a label.
    """

    n: int
    block: Block | None = None
    y: Tensor | None = None
    labeled: Tensor | None = None
    observed: Tensor | None = None
    key: Tensor | None = None
    ids: pl.Series | None = None
    names: pl.Series | None = None
    told: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def teaching(self) -> Tensor:
        """Which rows some host of heads has a label of [N] bool, as far as the active party knows."""
        assert self.labeled is not None
        return torch.stack([self.labeled, *self.told.values()]).any(dim=0)
