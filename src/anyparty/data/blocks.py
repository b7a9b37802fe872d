"""One party's share of the aligned rows: its feature block, and the position of each row in it.

Absence is stored as a mask, never as a number. A party has no cells for a row that it does not hold, so that no zeros
are computed in their place.
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
        position: [N] int64, aligned row n is ``x[position[n]]``; -1 if the party does not hold row n.
        gaps: [N_k, width] bool, True for cells that were empty and have been imputed; ``None`` if no cell was empty.
    """

    x: Tensor
    position: Tensor
    gaps: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.position.dtype == torch.int64
        assert self.position.ndim == 1

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [B_k, ...] of the party's rows among ``rows`` [B], and their places [B_k] in ``rows``."""
        own = self.position[rows]
        held = (own >= 0).nonzero().squeeze(1)
        if len(held) == len(rows):
            return self.x[own], held
        return self.x[own[held]], held

    def known(self, rows: Tensor, held: Tensor) -> Tensor | None:
        """Return the mask [B_k, width] of cells from ``take`` that were not empty; ``None`` if the block has no gaps.

        ``rows`` [B] may be on the CPU, as in prediction; ``held`` [B_k] is on the block's device.
        """
        return None if self.gaps is None else ~self.gaps[self.position[rows][held]]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One party's data for N aligned rows.

    Attributes:
        n: N, known to all parties.
        block: the party's features, if it holds columns.
        y: [N] int64 class, or float32 standardized number, at parties that hold labels; arbitrary for unlabelled rows.
        labeled: [N] bool, at parties that hold labels.
        observed: [N, K] bool, True if party k holds row n; only at parties that host heads, because they match rows.
        key: [N] int64 at the active party, a number that identifies the row in any order; it breaks ties.
        ids: [N_k] String at the active party: its own ids, in the order of its block. They never leave the party.
        names: [N] String at the active party: the rows' ids, null if it does not know the id. They never leave the
            party.
        labeled_at: by host of heads, [N] bool at the active party: the rows for which that host reports a label.
    """

    n: int
    block: Block | None = None
    y: Tensor | None = None
    labeled: Tensor | None = None
    observed: Tensor | None = None
    key: Tensor | None = None
    ids: pl.Series | None = None
    names: pl.Series | None = None
    labeled_at: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def teaching(self) -> Tensor:
        """[N] bool: rows for which at least one host of heads has a label, as far as the active party knows."""
        assert self.labeled is not None
        return torch.stack([self.labeled, *self.labeled_at.values()]).any(dim=0)
