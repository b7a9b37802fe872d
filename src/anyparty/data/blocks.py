"""One party's share of the aligned rows, and batches of rows.

A batch is the same at every party, because all parties share the seed. Absence is stored as a mask, never as a number.
A party has no cells for a row that it does not hold, so that no zeros are computed in their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.core.seeds import Seeds


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


def mixed(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of ``rows`` [n] in random order, whatever their patterns of presence.

    The last batch may be smaller.
    """
    if len(rows):
        yield from torch.split(rows[torch.randperm(len(rows), generator=generator)], min(size, len(rows)))


def by_pattern(rows: Tensor, pattern: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches in random order; all rows of a batch have the same pattern of presence.

    This is line 2 of LASER-VFL's Algorithm 1. ``pattern`` [n] is the number of each row's pattern, on any device. The
    last batch of a pattern may be smaller.
    """
    pattern = pattern.cpu()  # the permutation is on the CPU
    shuffled, size = torch.randperm(len(rows), generator=generator), min(size, max(1, len(rows)))
    shuffled = shuffled[pattern[shuffled].argsort(stable=True)]
    counts = torch.unique_consecutive(pattern[shuffled], return_counts=True)[1]
    batches = [batch for group in torch.split(rows[shuffled], counts.tolist()) for batch in torch.split(group, size)]
    for b in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[b]


def patterns(observed: Tensor) -> Tensor:
    """Return the number of each row's pattern of presence: [n, K] bool -> [n] int64, numbered in an arbitrary order.

    >>> patterns(torch.tensor([[True, False], [True, True], [True, False]]))
    tensor([0, 1, 0])
    """
    numbers: Tensor = torch.unique(observed, dim=0, return_inverse=True)[1]
    return numbers


TRAIN, VALIDATION, TEST = 0, 1, 2
FEWEST = 4  # the fewest usable rows of which every share has one: two rows for training, one of each share


def _rows_of(share: float, n: int) -> int:
    """Return the number of rows of a share of n rows: at least one for a share above 0 of ``FEWEST`` rows or more."""
    return max(round(share * n), int(share > 0 and n >= FEWEST))


def split(usable: NDArray[np.bool_], validation: float, test: float, seeds: Seeds) -> NDArray[np.int8]:
    """Assign random shares of the usable rows to validation and test, and return each row's use [N] int8.

    All other rows are for training. A share above 0 has at least one row, unless fewer than ``FEWEST`` rows are usable:
    without a row, the metric, the patience or the test scores would be left out. Rows without a label, and rows that no
    party holds, are not usable for validation or test. A method may still learn from them.

    >>> split(np.ones(10, dtype=bool), 0.2, 0.3, Seeds(0)).tolist().count(TEST)
    3
    """
    use = np.full(len(usable), TRAIN, dtype=np.int8)
    rows = seeds.numpy("split").permutation(np.flatnonzero(usable))
    tests, validations = (_rows_of(share, len(rows)) for share in (test, validation))
    use[rows[:tests]] = TEST
    use[rows[tests : tests + validations]] = VALIDATION
    return use
