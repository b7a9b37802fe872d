"""A suite's results: its tables, or ratios of them, and its plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.bench import suite as base
from anyparty.bench.missing import compare, plots, ratios
from anyparty.bench.missing.cells import Cell, cells_of

if TYPE_CHECKING:
    from anyparty.bench.missing.suite import Suite


@dataclass(frozen=True, kw_only=True)
class Page(base.Page):
    """The tables of a suite, and its plot."""

    suite: Suite
    cells: Sequence[Cell]

    def plot(self, path: Path) -> None:
        """Draw the metric against missingness at test or the number of parties; PNG and SVG."""
        if self.cells:
            plots.plot(self.suite, self.cells, path)


def page(suite: Suite, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> Page:
    """Return a suite's results, from its records by key."""
    found = cells_of(suite, records)
    tables = ratios.markdown if suite.layout == "ratios" else compare.markdown
    return Page(suite=suite, cells=found, markdown=tables(suite, found, about), csv=compare.as_csv(found))
