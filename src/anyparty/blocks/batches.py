"""Which rows are worked on together: the same at every party, from the seed that all share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def mixed(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of ``rows`` [n] in random order, whatever their patterns of presence; the last may be smaller."""
    if len(rows):
        yield from torch.split(rows[torch.randperm(len(rows), generator=generator)], min(size, len(rows)))


def by_pattern(rows: Tensor, pattern: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of rows that share a pattern of presence (LASER-VFL, Algorithm 1, line 2), in random order.

    ``pattern`` [n] numbers the pattern of each of ``rows`` [n], on any device; the last batch of a pattern may be
    smaller.
    """
    pattern = pattern.cpu()  # as the permutation is
    shuffled, size = torch.randperm(len(rows), generator=generator), min(size, max(1, len(rows)))
    shuffled = shuffled[pattern[shuffled].argsort(stable=True)]
    counts = torch.unique_consecutive(pattern[shuffled], return_counts=True)[1]
    batches = [batch for group in torch.split(rows[shuffled], counts.tolist()) for batch in torch.split(group, size)]
    for b in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[b]


def patterns(observed: Tensor) -> Tensor:
    """Number the patterns of presence that occur: [n, K] bool -> [n] int64, in no meaningful order.

    >>> patterns(torch.tensor([[True, False], [True, True], [True, False]]))
    tensor([0, 1, 0])
    """
    numbers: Tensor = torch.unique(observed, dim=0, return_inverse=True)[1]
    return numbers
