"""Figures of how good a model is: by who is asked, what each party brings, calibration, confusion, residuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from anyparty.report.contributions import Floats, Share
from anyparty.report.quality import Calibration
from anyparty.report.section import spread
from anyparty.report.style import ACCENT, FAINT, INK, MUTED, PAPER, SOFT, WIDTH, cells, distinct, lines, short, styled

if TYPE_CHECKING:
    from anyparty.report.worth import Scored

ROW = 0.24  # inches
MOST_CLASSES = 20
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": MUTED, "textcoords": "offset points"}
DASHED: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (3, 3))}


def sets(scored: Sequence[Scored], names: Sequence[str], metric: str, nobody: float, digits: int) -> Figure:
    """Draw the metric of every set of parties, with intervals, beside its members."""
    P = len(scored)
    with styled():
        figure = Figure(figsize=(WIDTH, 1.05 + 0.19 * P))
        dots, values = figure.subplots(1, 2, width_ratios=[max(0.8, 0.26 * len(names)), 4.0], sharey=True)
        for row, each in enumerate(scored):
            colours = [ACCENT if name in each.parties else FAINT for name in names]
            dots.scatter(range(len(names)), [row] * len(names), color=colours, s=20, linewidths=0)
        dots.set_xticks(range(len(names)), distinct(names, 16), rotation=45, ha="left")
        dots.xaxis.tick_top()
        dots.tick_params(axis="x", length=0, labelcolor=INK, pad=2)
        dots.set_xlim(-0.6, len(names) - 0.4)
        dots.set_yticks([])
        for spine in dots.spines.values():
            spine.set_visible(False)
        _intervals(values, [each.score for each in scored], digits)
        _nobody(values, nobody, P)
        values.set_ylim(P + 0.4, -0.6)
        values.set_xlabel(f"{metric} on test rows")
        figure.subplots_adjust(wspace=0.03)
    return figure


def _nobody(axis: Axes, value: float, row: int) -> None:
    """Mark what needs nobody, if it is a number, with its name in a row of its own: the parties' are above."""
    if math.isfinite(value):
        axis.axvline(value, zorder=0, **DASHED)
        axis.annotate("nobody", (value, row), xytext=(4, 0), ha="left", va="center", **SMALL)


def _intervals(axis: Axes, shares: Sequence[Share], digits: int, *, sign: bool = False) -> None:
    """Draw values as dots on intervals, one a row, and write them at the right."""
    for row, share in enumerate(shares):
        axis.plot([share.low, share.high], [row, row], color=SOFT, linewidth=4.0, solid_capstyle="round", zorder=1)
        axis.plot([share.value], [row], "o", color=ACCENT, markersize=4.5, zorder=2)
        said = spread(replace(share, low=math.nan), sign=sign, digits=digits)
        axis.text(1.01, row, said, transform=axis.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.spines["left"].set_visible(False)
    lines(axis, "x")


def by_size(scores: Mapping[int, Share], metric: str, nobody: float) -> Figure:
    """Draw the mean metric by how many parties are asked."""
    with styled():
        figure = Figure(figsize=(WIDTH, 2.5))
        axis = figure.subplots()
        sizes = [size for size in scores if size]
        means = [scores[size].value for size in sizes]
        axis.fill_between(sizes, [scores[s].low for s in sizes], [scores[s].high for s in sizes], color=SOFT, alpha=0.6)
        axis.plot(sizes, means, color=ACCENT, marker="o", markersize=4)
        if math.isfinite(nobody):
            axis.axhline(nobody, **DASHED)
            axis.annotate("nobody", (max(sizes), nobody), xytext=(0, 3), ha="right", **SMALL)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("parties asked")
        axis.set_ylabel(metric)
        lines(axis, "y")
        axis.spines["left"].set_visible(False)
    return figure


def shares(by_party: Mapping[str, Share], label: str, digits: int) -> Figure:
    """Draw a signed number for each party, with intervals, greatest first."""
    ordered = sorted(by_party, key=lambda name: -by_party[name].value)
    cut = dict(zip(by_party, distinct(list(by_party)), strict=True))
    with styled():
        figure = Figure(figsize=(WIDTH, 0.8 + ROW * len(ordered)))
        axis = figure.subplots()
        values = [by_party[name] for name in ordered]
        axis.axvline(0.0, color=MUTED, linewidth=0.8, zorder=0)
        _intervals(axis, values, digits, sign=True)
        axis.set_yticks(range(len(ordered)), [cut[name] for name in ordered])
        axis.tick_params(axis="y", labelcolor=INK)
        axis.set_ylim(len(ordered) - 0.4, -0.6)
        axis.set_xlabel(label)
    return figure


def runs(rows: Mapping[str, Sequence[Share]], metric: str, digits: int) -> Figure:
    """Draw the metric of runs: one with its interval; of several in a row their mean, deviation, and each faintly."""
    P = len(rows)
    with styled():
        figure = Figure(figsize=(WIDTH, 0.8 + ROW * P))
        axis = figure.subplots()
        _intervals(axis, [_over(each) for each in rows.values()], digits)
        for row, each in enumerate(rows.values()):
            if len(each) > 1:
                axis.plot([share.value for share in each], [row] * len(each), "o", color=MUTED, markersize=3, alpha=0.5)
        axis.set_yticks(range(P), distinct(list(rows), 40))
        axis.tick_params(axis="y", labelcolor=INK)
        axis.set_ylim(P - 0.4, -0.6)
        axis.set_xlabel(f"{metric} on test rows")
    return figure


def _over(shares: Sequence[Share]) -> Share:
    """Return a run's own share; of several the mean, one standard deviation to each side."""
    if len(shares) == 1:
        return shares[0]
    values = np.array([share.value for share in shares])
    mean, off = float(values.mean()), float(values.std(ddof=1))
    return Share(value=mean, low=mean - off, high=mean + off)


def calibration(found: Calibration) -> Figure:
    """Draw how often answers of some confidence are right; the dots' areas are numbers of rows."""
    with styled():
        figure = Figure(figsize=(3.4, 3.0))
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        axis.plot(found.confidence, found.right, color=ACCENT, linewidth=1.2)
        axis.scatter(found.confidence, found.right, s=10 + 90 * found.rows / found.rows.max(), color=ACCENT,
                     edgecolors=PAPER, linewidths=0.8, zorder=2)  # fmt: skip
        axis.set_xlim(0, 1.02)
        axis.set_ylim(0, 1.02)
        axis.set_aspect("equal")
        axis.set_title("calibration")
        axis.set_xlabel("probability said")
        axis.set_ylabel(short(found.share, 36))
        lines(axis, "both")
    return figure


def confusion(counts: NDArray[np.int64], classes: Sequence[str]) -> Figure:
    """Draw labels against answers, each row as shares of its label's rows."""
    C = len(classes)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(WIDTH, 1.8 + 0.42 * C)
    with styled():
        figure = Figure(figsize=(size, size * 0.86))
        axis = figure.subplots()
        cells(axis, share, [[f"{n:,}" for n in row] for row in counts] if C <= 10 else None)
        names = distinct(classes, 14)
        axis.set_xticks(range(C), names, rotation=0 if C <= 3 else 90)
        axis.set_yticks(range(C), names)
        axis.tick_params(length=0, labelcolor=INK)
        axis.set_title("confusion")
        axis.set_xlabel("answer")
        axis.set_ylabel("label")
    return figure


def residuals(errors: Floats, predicted: Floats) -> Figure:
    """Draw how far off numbers are, and against what was predicted."""
    with styled():
        figure = Figure(figsize=(WIDTH, 2.6))
        left, right = figure.subplots(1, 2)
        left.hist(errors, bins=min(40, max(8, len(errors) // 8)), color=ACCENT, rwidth=0.92)
        left.set_title("residuals")
        left.set_xlabel("predicted less true")
        left.set_ylabel("rows")
        right.scatter(predicted, errors, s=7, color=ACCENT, alpha=0.35, linewidths=0)
        right.axhline(0.0, color=MUTED, linewidth=0.8)
        right.set_title("by what was predicted")
        right.set_xlabel("predicted")
        right.set_ylabel("predicted less true")
        for axis in (left, right):
            lines(axis, "y")
            axis.spines["left"].set_visible(False)
            axis.xaxis.set_major_locator(MaxNLocator(5))
        figure.tight_layout(w_pad=2.0)
    return figure
