"""A suite's results: its tables, or ratios of them, and its plot."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from anyparty.experiments.missing_blocks import compare, plots, ratios
from anyparty.experiments.missing_blocks.cells import cells_of
from anyparty.experiments.suite import Page

if TYPE_CHECKING:
    from anyparty.experiments.missing_blocks.suite import Suite


def page(suite: Suite, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> Page:
    """Return a suite's results, from its records by key."""
    found = cells_of(suite, records)
    if suite.layout == "ratios":
        markdown, csv, draw = ratios.markdown(suite, found, about), ratios.as_csv(suite, found), plots.plot_ratios
    else:
        markdown, csv, draw = compare.markdown(suite, found, about), compare.as_csv(found), plots.plot
    return Page(cells=found, markdown=markdown, csv=csv, draw=partial(draw, suite, found))
