"""Draw batches of rows, which are the same at every party, because all parties share the seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.core.seeds import Seeds


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
