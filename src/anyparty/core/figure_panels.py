"""Figures of several panels, described as data: each panel has curves, and all panels share one legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anyparty.core import figure_style as style
from anyparty.core.storage import writing

PANELS_ACROSS = 3  # maximum number of panels side by side; narrower panels would be too small to read
LETTER, HANDLE = 0.075, 0.6  # width of a letter, and of the line before a name, in a legend, in inches


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve of a panel.

    Attributes:
        label: the name in the legend.
        x, y: the coordinates of the points; texts in ``x`` are categories.
        color: a colour of matplotlib, such as "C0".
        spread: the length of the error bars above and below each point; empty for none.
        band: the lower and the upper limit of a band at each point; empty for none.
        marks: further arguments of ``Axes.errorbar``.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    color: str
    spread: Sequence[float] = ()
    band: Sequence[Sequence[float]] = ()
    marks: Mapping[str, Any] = field(default_factory=lambda: {"marker": "o", "ms": 3, "capsize": 2})


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel of a figure.

    Attributes:
        title, x_label, y_label: texts at the panel.
        curves: the curves, in the order of the legend.
        level: height of a dashed line; ``None`` for none.
        ticks: the labels of the x axis by position; by default matplotlib chooses them.
        x_base: base of a logarithmic x axis; 0 for a linear axis.
        is_y_log: whether the y axis is logarithmic.
        x_end: end of an x axis that begins at 0; ``None`` for limits that matplotlib chooses.
        notes: the colour of each line of a legend inside the panel.
        tick_size: font size of the labels of the x axis; ``None`` for the size of the style.
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    level: float | None = None
    ticks: Mapping[float, str] | None = None
    x_base: int = 0
    is_y_log: bool = False
    x_end: float | None = None
    notes: Mapping[str, str] | None = None
    tick_size: float | None = None

    def draw(self, axis: Axes) -> None:
        """Draw the panel."""
        for curve in self.curves:
            axis.errorbar(curve.x, curve.y, curve.spread or None, label=curve.label, color=curve.color, **curve.marks)
            if curve.band:
                low, high = curve.band
                axis.fill_between(curve.x, low, high, color=curve.color, alpha=0.15, linewidth=0)
        if self.level is not None:
            axis.axhline(self.level, color="grey", linewidth=0.8, linestyle="--")
        axis.set_title(self.title)
        axis.set_xlabel(self.x_label)
        axis.set_ylabel(self.y_label)
        if self.x_base:
            axis.set_xscale("log", base=self.x_base)
        if self.is_y_log:
            axis.set_yscale("log")
        if self.ticks is not None:
            axis.set_xticks(list(self.ticks), list(self.ticks.values()))
        if self.x_end is not None:
            axis.set_xlim(0, self.x_end)
        if self.tick_size is not None:
            axis.tick_params(axis="x", labelsize=self.tick_size)
        if self.notes:
            handles = [axis.plot([], [], color=color)[0] for color in self.notes.values()]
            axis.legend(handles, list(self.notes), loc="lower right", fontsize=7)


@dataclass(frozen=True, kw_only=True)
class PanelFigure:
    """A figure as data.

    Attributes:
        panels: the panels, row by row.
        across: greatest number of panels side by side.
        size: width and height of a panel, in inches.
        same_y: which panels share their y scale: no panels, all panels of a row, or all panels.
        grid: axes that have grid lines.

    """

    panels: Sequence[Panel]
    across: int = PANELS_ACROSS
    size: tuple[float, float] = (4.2, 2.9)
    same_y: Literal["none", "row", "all"] = "none"
    grid: Literal["both", "y"] = "both"

    def draw(self) -> Figure:
        """Draw the panels and, below them, the legend of all panels; equal panels give equal files."""
        across = min(self.across, len(self.panels))
        rows = -(-len(self.panels) // across)
        with style.styled():
            figure = Figure(figsize=(across * self.size[0], rows * self.size[1]), layout="constrained")
            axes = list(figure.subplots(rows, across, squeeze=False, sharey=self.same_y).flat)
            for axis in axes[len(self.panels) :]:
                axis.remove()
            for place, (axis, panel) in enumerate(zip(axes, self.panels, strict=False)):
                style.lines(axis, self.grid)
                panel.draw(axis)
                if self.same_y != "none" and place % across:
                    axis.set_ylabel("")  # the first panel of the row has it
            named = {
                name: line for axis in figure.axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
            }
            if named:
                fit = int(across * self.size[0] / (LETTER * max(map(len, named)) + HANDLE))
                beside = min(max(fit, 1), len(named))
                # Number of names per row, so that the legend's rows are equally long.
                beside = math.ceil(len(named) / math.ceil(len(named) / beside))
                figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=beside)
        return figure

    def write(self, path: Path) -> None:
        """Write the figure to ``path`` with the suffixes .png and .svg, if it has panels."""
        if self.panels:
            figure = self.draw()
            for suffix, drawn in ((".png", style.png(figure)), (".svg", style.svg(figure))):
                with writing(path.with_suffix(suffix)) as unfinished:
                    unfinished.write_bytes(drawn)
