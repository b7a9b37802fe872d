"""Plots of scores: learning curves, the confusion matrix and the calibration curve, for users and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from anyparty.core.figure_style import (
    ACCENT,
    INK,
    MUTED,
    PAPER,
    WIDTH,
    distinct_labels,
    draw_cells,
    lines,
    shorten,
    styled,
)
from anyparty.metrics.calibration import Calibration
from anyparty.metrics.scores import metric_label


def draw_training(history: Sequence[Mapping[str, Any]], best_epoch: int) -> Figure:
    """Draw the loss, and the metrics of training and validation rows, against the epoch; mark the best epoch."""
    names = sorted({name for epoch in history for name in epoch.get("validation", {})})
    x, label = _epoch_positions(history)
    marker = "o" if len(history) < 3 else ""
    with styled():
        figure = Figure(figsize=(WIDTH, 2.5))
        axes = figure.subplots(1, 1 + len(names), squeeze=False)[0]
        loss = np.array([epoch.get("loss", np.nan) for epoch in history], dtype=np.float64)
        axes[0].plot(x, loss, color=MUTED, marker=marker, markersize=3)
        marked = [loss]
        for axis, name in zip(axes[1:], names, strict=True):
            train, held_out = (_history_of(history, of, name) for of in ("training", "validation"))
            axis.plot(x, held_out, color=ACCENT, marker=marker, markersize=3, label="validation")
            if np.isfinite(train).any():
                axis.plot(x, train, color=MUTED, marker=marker, markersize=3, label="training", zorder=1)
            marked.append(held_out)
        for axis, title, values in zip(axes, ("training loss", *map(metric_label, names)), marked, strict=True):
            axis.set_title(title)
            axis.set_xlabel(label)
            axis.xaxis.set_major_locator(MaxNLocator(4, integer=label == "epoch"))
            axis.yaxis.set_major_locator(MaxNLocator(5))
            lines(axis, "y")
            axis.spines["left"].set_visible(False)
            if 0 < best_epoch <= len(history):
                _mark_best(axis, x[best_epoch - 1], float(values[best_epoch - 1]), best_epoch)
        handles, labels = axes[-1].get_legend_handles_labels()
        both = len(handles) > 1
        if both:
            figure.legend(handles, labels, loc="lower right", ncols=2, handlelength=1.2)
        figure.tight_layout(w_pad=2.0, rect=(0, 0.08 if both else 0, 1, 1))
    return figure


def _history_of(history: Sequence[Mapping[str, Any]], of: str, name: str) -> NDArray[np.float64]:
    return np.array([epoch.get(of, {}).get(name, np.nan) for epoch in history], dtype=np.float64)


def _epoch_positions(history: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float64], str]:
    """Return epochs' positions on the x axis, and their unit: the time that a schedule recorded, or epochs from 1."""
    for key, unit in (("time", "time units"), ("time_s", "seconds")):
        if history and all(key in epoch for epoch in history):
            return np.array([epoch[key] for epoch in history], dtype=np.float64), unit
    return np.arange(1, len(history) + 1, dtype=np.float64), "epoch"


def _mark_best(axis: Axes, x: float, y: float, epoch: int) -> None:
    axis.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    axis.plot([x], [y], "o", color=ACCENT, markersize=5, markeredgecolor=PAPER, markeredgewidth=1.2)
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    late, up = x > (left + right) / 2, y > (low + high) / 2  # place the label where it does not cover the curve
    side: dict[str, Any] = {"xytext": (-4, 0), "ha": "right"} if late else {"xytext": (4, 0), "ha": "left"}
    axis.annotate(f"best: {epoch}", (x, 0.05 if up else 0.9), xycoords=("data", "axes fraction"),
                  textcoords="offset points", fontsize=7.5, color=INK, **side)  # fmt: skip


def draw_calibration(axis: Axes, found: Calibration) -> None:
    """Draw the calibration curve; a dot's area grows with the number of rows in its bin."""
    axis.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
    axis.plot(found.confidence, found.correct, color=ACCENT, linewidth=1.2)
    axis.scatter(found.confidence, found.correct, s=10 + 90 * found.rows / found.rows.max(), color=ACCENT,
                 edgecolors=PAPER, linewidths=0.8, zorder=2)  # fmt: skip
    axis.set_xlim(0, 1.02)
    axis.set_ylim(0, 1.02)
    axis.set_aspect("equal")
    axis.set_title("calibration")
    axis.set_xlabel("predicted probability")
    axis.set_ylabel(shorten(found.share_label, 36))
    lines(axis, "both")


def draw_confusion(axis: Axes, counts: NDArray[np.int64], classes: Sequence[str]) -> None:
    """Draw the confusion matrix [C, C]; a cell's colour shows its share of the rows of the true class."""
    C = len(classes)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    draw_cells(axis, share, [[f"{n:,}" for n in row] for row in counts] if C <= 10 else None)
    names = distinct_labels(classes, 14)
    axis.set_xticks(range(C), names, rotation=0 if C <= 3 else 90)
    axis.set_yticks(range(C), names)
    axis.tick_params(length=0, labelcolor=INK)
    axis.set_title("confusion")
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
