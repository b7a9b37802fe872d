"""Which seeds stand behind the numbers of a table.

A seed is a draw of rows, labels and masks: methods are compared over the seeds that all of them have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.cells import Cell


def shared(cells: Iterable[Cell]) -> list[int]:
    """Return the seeds that all cells have."""
    each = [set(cell.by_seed) for cell in cells]
    return sorted(set.intersection(*each)) if each else []


def best(column: Sequence[Cell]) -> set[str]:
    """Return the methods with the highest mean over the seeds that all cells of a column have; none without any."""
    seeds = shared(column)
    means = {cell.method: cell.over(seeds) for cell in column} if seeds else {}
    most = max(means.values(), default=math.nan)
    return {method for method, mean in means.items() if mean >= most}


def differ(cells: Iterable[Cell]) -> bool:
    """Say whether some cells have other seeds than the rest."""
    return len({frozenset(cell.by_seed) for cell in cells}) > 1


def words(each: Iterable[Iterable[int]]) -> str:
    """Return how many seeds each of several has, and which they are.

    >>> words([[0, 1, 2, 4], [0]])
    '1 to 4 (0-2, 4)'
    """
    found = [set(seeds) for seeds in each]
    counts, runs = sorted({len(seeds) for seeds in found}), list[list[int]]()
    for seed in sorted(set().union(*found)):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    which = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return " to ".join(f"{count}" for count in dict.fromkeys((counts[0], counts[-1]))) + f" ({which})"
