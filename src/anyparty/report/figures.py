"""Figures of what stands in a run's records: who has which rows, its curves, what crossed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from anyparty.report.contributions import Floats
from anyparty.report.ledgers import shown, total
from anyparty.report.section import named
from anyparty.report.style import ACCENT, FAINT, INK, MUTED, PAPER, SOFT, WIDTH, bare, cells, distinct, lines, styled
from anyparty.wire.ledger import Ledger, Tally

ROW = 0.24  # inches
MOST_IN_FULL = 10  # bars that have room for their number


def overlap(counted: Mapping[str, Any]) -> Figure:
    """Draw presence patterns as an UpSet plot: rows of each pattern, those with a label in full colour."""
    blocks, patterns = list(counted["blocks"]), list(counted["patterns"])
    K, P = len(blocks), len(patterns)
    with styled():
        figure = Figure(figsize=(WIDTH, 1.9 + ROW * K))
        grid = figure.add_gridspec(2, 2, height_ratios=[1.7, ROW * K + 0.1], width_ratios=[1.1, max(4.0, 0.26 * P)],
                                   hspace=0.06, wspace=0.03)  # fmt: skip
        bars, dots, sizes = (figure.add_subplot(grid[where]) for where in ((0, 1), (1, 1), (1, 0)))
        _pattern_bars(bars, patterns)
        _memberships(dots, blocks, [set(pattern["parties"]) for pattern in patterns])
        held = [counted["held"][name] for name in blocks]
        sizes.barh(range(K), held, color=SOFT, height=0.55)
        sizes.set_ylim(K - 0.5, -0.5)
        sizes.set_xlim(max([*held, 1]) * 1.5, 0)
        sizes.set_yticks(range(K), [])
        for k, rows in enumerate(held):
            _beside(sizes, rows, k, f"{rows:,}", left=True)
        bare(sizes)
        sizes.set_xlabel("rows of each party", fontsize=8, loc="right")
    return figure


def _beside(axis: Axes, x: float, y: float, text: str, *, left: bool = False) -> None:
    """Write a bar's number at its end."""
    axis.annotate(text, (x, y), xytext=(-4 if left else 4, 0), textcoords="offset points", va="center",
                  ha="right" if left else "left", fontsize=7.5, color=INK)  # fmt: skip


def _pattern_bars(axis: Axes, patterns: Sequence[Mapping[str, Any]]) -> None:
    P = len(patterns)
    rows = [pattern["rows"] for pattern in patterns]
    labelled = [pattern["labelled"] for pattern in patterns]
    known = all(count is not None for count in labelled)
    axis.bar(range(P), rows, color=SOFT if known else ACCENT, width=0.62, label="without a label" if known else "rows")
    if known:
        axis.bar(range(P), labelled, color=ACCENT, width=0.62, label="with a label")
        axis.legend(loc="upper right", reverse=True, handlelength=0.9, handleheight=0.9)
    for p, count in enumerate(rows):
        text = f"{count / 1000:.1f}k" if count >= 1000 and P > MOST_IN_FULL else f"{count:,}"
        axis.text(p, count, text, ha="center", va="bottom", fontsize=7.5, color=INK)
    axis.set_xlim(-0.6, max(P, 6) - 0.4)
    axis.set_ylim(0, max([*rows, 1]) * 1.14)
    axis.set_xticks([])
    axis.set_ylabel("rows")
    axis.spines["bottom"].set_visible(False)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    lines(axis, "y")
    axis.spines["left"].set_visible(False)


def _memberships(axis: Axes, names: Sequence[str], sets: Sequence[set[str]]) -> None:
    """Draw a column of dots for each set: full for a member."""
    K = len(names)
    for p, members in enumerate(sets):
        there = [k for k, name in enumerate(names) if name in members]
        if there:
            axis.plot([p, p], [there[0], there[-1]], color=ACCENT, linewidth=1.2, zorder=1)
        colours = [ACCENT if name in members else FAINT for name in names]
        axis.scatter([p] * K, range(K), color=colours, s=26, zorder=2, linewidths=0)
    axis.set_xlim(-0.6, max(len(sets), 6) - 0.4)
    axis.set_ylim(K - 0.5, -0.5)
    axis.yaxis.tick_right()
    axis.set_yticks(range(K), distinct(names))
    axis.tick_params(axis="y", labelcolor=INK)
    bare(axis)


def curves(history: Sequence[Mapping[str, Any]], best_epoch: int) -> Figure:
    """Draw the loss by epoch, and the metrics of training and validation rows, the best epoch marked."""
    names = sorted({name for epoch in history for name in epoch.get("validation", {})})
    x, label = _along(history)
    marker = "o" if len(history) < 3 else ""
    with styled():
        figure = Figure(figsize=(WIDTH, 2.5))
        axes = figure.subplots(1, 1 + len(names), squeeze=False)[0]
        loss = np.array([epoch.get("loss", np.nan) for epoch in history], dtype=np.float64)
        axes[0].plot(x, loss, color=MUTED, marker=marker, markersize=3)
        marked = [loss]
        for axis, name in zip(axes[1:], names, strict=True):
            train, held_out = (_scores(history, of, name) for of in ("training", "validation"))
            axis.plot(x, held_out, color=ACCENT, marker=marker, markersize=3, label="validation")
            if np.isfinite(train).any():
                axis.plot(x, train, color=MUTED, marker=marker, markersize=3, label="training", zorder=1)
            marked.append(held_out)
        for axis, title, values in zip(axes, ("training loss", *map(named, names)), marked, strict=True):
            axis.set_title(title)
            axis.set_xlabel(label)
            axis.xaxis.set_major_locator(MaxNLocator(4, integer=label == "epoch"))
            axis.yaxis.set_major_locator(MaxNLocator(5))
            lines(axis, "y")
            axis.spines["left"].set_visible(False)
            if 0 < best_epoch <= len(history):
                _mark(axis, x[best_epoch - 1], float(values[best_epoch - 1]), best_epoch)
        handles, labels = axes[-1].get_legend_handles_labels()
        both = len(handles) > 1
        if both:
            figure.legend(handles, labels, loc="lower right", ncols=2, handlelength=1.2)
        figure.tight_layout(w_pad=2.0, rect=(0, 0.08 if both else 0, 1, 1))
    return figure


def _scores(history: Sequence[Mapping[str, Any]], of: str, name: str) -> Floats:
    return np.array([epoch.get(of, {}).get(name, np.nan) for epoch in history], dtype=np.float64)


def _along(history: Sequence[Mapping[str, Any]]) -> tuple[Floats, str]:
    """Return where epochs stand: by their own time where a schedule counted it, else by number."""
    for key, unit in (("time", "time units"), ("time_s", "seconds")):
        if history and all(key in epoch for epoch in history):
            return np.array([epoch[key] for epoch in history], dtype=np.float64), unit
    return np.arange(1, len(history) + 1, dtype=np.float64), "epoch"


def _mark(axis: Axes, x: float, y: float, epoch: int) -> None:
    axis.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    axis.plot([x], [y], "o", color=ACCENT, markersize=5, markeredgecolor=PAPER, markeredgewidth=1.2)
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    late, up = x > (left + right) / 2, y > (low + high) / 2  # where the curve is not
    side: dict[str, Any] = {"xytext": (-4, 0), "ha": "right"} if late else {"xytext": (4, 0), "ha": "left"}
    axis.annotate(f"best: {epoch}", (x, 0.05 if up else 0.9), xycoords=("data", "axes fraction"),
                  textcoords="offset points", fontsize=7.5, color=INK, **side)  # fmt: skip


def flows(ledger: Ledger, parties: Sequence[str], active: str) -> Figure:
    """Draw who sent how much to whom: the fuller a cell, the more bytes."""
    K = len(parties)
    sizes = np.array([[total(ledger, one, other).bytes_sent for other in parties] for one in parties], dtype=np.float64)
    with styled():
        size = min(WIDTH, 1.6 + 0.62 * K)
        figure = Figure(figsize=(size, 0.8 + (size - 1.4) * 0.92))
        axis = figure.subplots()
        texts = [[shown(value).replace(" bytes", " B") if value else "" for value in row] for row in sizes]
        cells(axis, np.sqrt(sizes / sizes.max(initial=1.0)), texts if K <= 8 else None)
        for k in range(K):
            axis.plot([k - 0.12, k + 0.12], [k, k], color=FAINT, linewidth=1.2)
        names = [f"{cut} ★" if name == active else cut for name, cut in zip(parties, distinct(parties), strict=True)]
        axis.set_xticks(range(K), names, rotation=0 if K <= 3 and max(map(len, names)) < 10 else 45, ha="left")
        if K <= 3 and max(map(len, names)) < 10:
            axis.set_xticks(range(K), names, ha="center")
        axis.xaxis.tick_top()
        axis.set_yticks(range(K), names)
        axis.tick_params(length=0, labelcolor=INK)
        axis.set_ylabel("from")
        axis.set_xlabel("to", labelpad=8)
        axis.xaxis.set_label_position("top")
    return figure


def tags(tallies: Mapping[str, Tally]) -> Figure:
    """Draw the bytes of each kind of message."""
    with styled():
        figure = Figure(figsize=(WIDTH, 0.5 + 0.22 * len(tallies)))
        axis = figure.subplots()
        sizes = [tally.bytes_sent for tally in tallies.values()]
        axis.barh(range(len(sizes)), sizes, color=ACCENT, height=0.55)
        for row, size in enumerate(sizes):
            _beside(axis, size, row, shown(size))
        axis.set_yticks(range(len(sizes)), list(tallies))
        axis.tick_params(axis="y", labelcolor=INK)
        axis.set_ylim(len(sizes) - 0.5, -0.5)
        axis.set_xlim(0, max([*sizes, 1]) * 1.12)
        bare(axis)
    return figure
