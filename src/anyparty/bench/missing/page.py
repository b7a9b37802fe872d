"""A suite's results: its tables, or ratios of them, and its plot."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from anyparty.bench.missing import compare, plots, ratios
from anyparty.bench.missing.cells import cells_of
from anyparty.bench.suite import Page

if TYPE_CHECKING:
    from anyparty.bench.missing.suite import Suite


def page(suite: Suite, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> Page:
    """Return a suite's results, from its records by key."""
    found = cells_of(suite, records)
    if suite.layout == "ratios":
        markdown, csv, draw = ratios.markdown(suite, found, about), ratios.as_csv(suite, found), plots.plot_ratios
    else:
        markdown, csv, draw = compare.markdown(suite, found, about), compare.as_csv(found), plots.plot
    return Page(cells=found, markdown=markdown, csv=csv, draw=partial(draw, suite, found))
