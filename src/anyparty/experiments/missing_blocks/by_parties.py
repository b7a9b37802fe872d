"""Tables whose columns are numbers of parties: the metric, and the CPU seconds of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyparty.experiments.missing_blocks import seeds
from anyparty.experiments.missing_blocks.cells import Cell, shown

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.suite import Suite


def against_parties(suite: Suite, dataset: str, mine: Sequence[Cell]) -> list[str]:
    """Return a table of the metric against the number of parties for each pair of mechanisms, and one of the time."""
    entry, several, lines = suite.datasets[dataset], suite.parties_of(dataset), list[str]()
    first, heads = "|---|" + "---|" * len(several), " | ".join(f"K = {k}" for k in several)
    for missing, test in [(missing, test) for missing in suite.train_missing for test in suite.test_missing]:
        at = {(c.method, c.parties): c for c in mine if (c.missing, c.test) == (missing, test)}
        there = [(method, of.title) for method, of in entry.methods.items() if any(name == method for name, _ in at)]
        if not there:
            continue
        best = {k: seeds.best([c for c in at.values() if c.parties == k]) for k in several}
        uneven = seeds.differ(at.values())
        lines += [f"## {dataset}, missing {missing} → {test}: {entry.unit}", ""]
        lines += [f"| method | {heads} | seeds |", first + "---|"] if uneven else [f"| method | {heads} |", first]
        for method, title in there:
            row = [shown(at.get((method, k)), best[k]) for k in several]
            row += [seeds.words(c.by_seed for c in at.values() if c.method == method)] if uneven else []
            lines.append(f"| {title} | {' | '.join(row)} |")
        lines += [
            "",
            f"CPU seconds of a training epoch, {dataset}, missing {missing}:",
            "",
            f"| method | {heads} |",
            first,
        ]
        for method, title in there:
            took = " | ".join(f"{at[method, k].epoch:.2f}" if (method, k) in at else "" for k in several)
            lines.append(f"| {title} | {took} |")
        lines.append("")
    return lines
