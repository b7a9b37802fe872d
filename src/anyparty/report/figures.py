"""Figures of a report: which party has which rows, training curves, messages, and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from anyparty.core.figure_style import (
    ACCENT,
    FAINT,
    INK,
    LONGEST,
    MUTED,
    NARROW,
    SOFT,
    WIDTH,
    ThousandsFormatter,
    distinct_labels,
    draw_cells,
    hide_frame,
    lines,
    styled,
)
from anyparty.metrics import plots
from anyparty.metrics.plots import Calibration, Threshold
from anyparty.metrics.scores import LabelledPredictions, metric_label
from anyparty.report.elements import format_bytes, format_estimate
from anyparty.report.shapley import Estimate, Floats
from anyparty.report.traffic import total_traffic
from anyparty.transport.ledger import Ledger, Tally

if TYPE_CHECKING:
    from anyparty.report.party_set_scores import PartySetScore

ROW = 0.24  # height of one row of a figure, in inches
FEWEST_ROWS = 10  # minimum number of rows of a recorded score that is drawn
MAX_FULL_NUMBERS = 10  # maximum number of bars with unabbreviated numbers
SMALL: dict[str, Any] = {"fontsize": 7.5, "color": MUTED, "textcoords": "offset points"}
DASHED: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (3, 3))}

# Figures drawn from records


def draw_overlap(counted: Mapping[str, Any]) -> Figure:
    """Draw, as an UpSet plot, how many rows each set of parties has, with labelled rows in full colour."""
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
            _annotate_bar(sizes, rows, k, f"{rows:,}", left=True)
        hide_frame(sizes)
        sizes.set_xlabel("rows of each party", fontsize=8, loc="right")
    return figure


def _annotate_bar(axis: Axes, x: float, y: float, text: str, *, left: bool = False) -> None:
    """Write ``text`` at the end of a bar, to the right or, with ``left``, to the left."""
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
        text = f"{count / 1000:.1f}k" if count >= 1000 and P > MAX_FULL_NUMBERS else f"{count:,}"
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
    """Draw a column of dots for each set of parties, with the set's members in full colour."""
    K = len(names)
    for p, members in enumerate(sets):
        present = [k for k, name in enumerate(names) if name in members]
        if present:
            axis.plot([p, p], [present[0], present[-1]], color=ACCENT, linewidth=1.2, zorder=1)
        colours = [ACCENT if name in members else FAINT for name in names]
        axis.scatter([p] * K, range(K), color=colours, s=26, zorder=2, linewidths=0)
    axis.set_xlim(-0.6, max(len(sets), 6) - 0.4)
    axis.set_ylim(K - 0.5, -0.5)
    axis.yaxis.tick_right()
    axis.set_yticks(range(K), distinct_labels(names))
    axis.tick_params(axis="y", labelcolor=INK)
    hide_frame(axis)


def draw_flows(ledger: Ledger, parties: Sequence[str], active: str) -> Figure:
    """Draw the number of bytes that each party sent to each other party: a stronger colour means more bytes."""
    K = len(parties)
    sizes = np.array(
        [[total_traffic(ledger, one, other).bytes_sent for other in parties] for one in parties], dtype=np.float64
    )
    with styled():
        size = min(WIDTH, 1.6 + 0.62 * K)
        figure = Figure(figsize=(size, 0.8 + (size - 1.4) * 0.92))
        axis = figure.subplots()
        texts = [[format_bytes(value).replace(" bytes", " B") if value else "" for value in row] for row in sizes]
        draw_cells(axis, np.sqrt(sizes / sizes.max(initial=1.0)), texts if K <= 8 else None)
        for k in range(K):
            axis.plot([k - 0.12, k + 0.12], [k, k], color=FAINT, linewidth=1.2)
        names = [
            f"{cut} ★" if name == active else cut for name, cut in zip(parties, distinct_labels(parties), strict=True)
        ]
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


def draw_tags(tallies: Mapping[str, Tally]) -> Figure:
    """Draw the number of bytes sent with each message tag."""
    with styled():
        figure = Figure(figsize=(WIDTH, 0.5 + 0.22 * len(tallies)))
        axis = figure.subplots()
        sizes = [tally.bytes_sent for tally in tallies.values()]
        axis.barh(range(len(sizes)), sizes, color=ACCENT, height=0.55)
        for row, size in enumerate(sizes):
            _annotate_bar(axis, size, row, format_bytes(size))
        axis.set_yticks(range(len(sizes)), list(tallies))
        axis.tick_params(axis="y", labelcolor=INK)
        axis.set_ylim(len(sizes) - 0.5, -0.5)
        axis.set_xlim(0, max([*sizes, 1]) * 1.12)
        hide_frame(axis)
    return figure


# Figures of scores, errors and encoders


def draw_set_scores(
    scored: Sequence[PartySetScore], names: Sequence[str], metric: str, constant: float, digits: int
) -> Figure:
    """Draw the metric of every set of parties with its interval, beside the set's members."""
    P = len(scored)
    with styled():
        figure = Figure(figsize=(WIDTH, 1.05 + 0.19 * P))
        dots, values = figure.subplots(1, 2, width_ratios=[max(0.8, 0.26 * len(names)), 4.0], sharey=True)
        for row, each in enumerate(scored):
            colours = [ACCENT if name in each.parties else FAINT for name in names]
            dots.scatter(range(len(names)), [row] * len(names), color=colours, s=20, linewidths=0)
        dots.set_xticks(range(len(names)), distinct_labels(names, 16), rotation=45, ha="left")
        dots.xaxis.tick_top()
        dots.tick_params(axis="x", length=0, labelcolor=INK, pad=2)
        dots.set_xlim(-0.6, len(names) - 0.4)
        dots.set_yticks([])
        for spine in dots.spines.values():
            spine.set_visible(False)
        _intervals(values, [each.score for each in scored], digits)
        _mark_constant(values, constant, P)
        values.set_ylim(P + 0.4, -0.6)
        values.set_xlabel(f"{metric} on test rows")
        figure.subplots_adjust(wspace=0.03)
    return figure


def _mark_constant(axis: Axes, value: float, row: int) -> None:
    """Draw a line at the score of the constant prediction, with a label at the height ``row``; draw nothing for NaN."""
    if math.isfinite(value):
        axis.axvline(value, zorder=0, **DASHED)
        axis.annotate("no party", (value, row), xytext=(4, 0), ha="left", va="center", **SMALL)


def _intervals(axis: Axes, estimates: Sequence[Estimate], digits: int, *, sign: bool = False) -> None:
    """Draw one row for each estimate: the value with its interval, and the value as text at the right."""
    for row, estimate in enumerate(estimates):
        axis.plot(
            [estimate.low, estimate.high], [row, row], color=SOFT, linewidth=4.0, solid_capstyle="round", zorder=1
        )
        axis.plot([estimate.value], [row], "o", color=ACCENT, markersize=4.5, zorder=2)
        text = format_estimate(replace(estimate, low=math.nan), sign=sign, digits=digits)
        axis.text(1.01, row, text, transform=axis.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.spines["left"].set_visible(False)
    lines(axis, "x")


def draw_scores_by_size(
    scores: Mapping[int, Estimate], metric: str, constant: float, *, own: float = math.nan,
    sets: Sequence[tuple[int, float]] = (),
) -> Figure:  # fmt: skip
    """Draw the mean metric against the number of parties.

    Args:
        scores: for each number of parties, the mean over all sets with this number of parties.
        metric: the metric's name for readers.
        constant: the score of the constant prediction, drawn as a line unless it is NaN.
        own: the score of the active party's columns only, drawn as a line unless it is NaN.
        sets: single sets of parties, as (number of parties, score).
    """
    with styled():
        figure = Figure(figsize=(NARROW, 2.9))
        axis = figure.subplots()
        sizes = [size for size in scores if size]
        means = [scores[size].value for size in sizes]
        axis.fill_between(sizes, [scores[s].low for s in sizes], [scores[s].high for s in sizes], color=SOFT, alpha=0.6)
        if sets:
            axis.plot(*zip(*sets, strict=True), "o", color=MUTED, markersize=3, alpha=0.5)
        axis.plot(sizes, means, color=ACCENT, marker="o", markersize=5)
        _labelled_lines(axis, {"own columns only": own, "no party": constant})
        _count_axis(axis, sizes, metric)
    return figure


def draw_recorded_scores(by_count: Mapping[str, Mapping[str, Any]], metric: str, constant: float | None) -> Figure:
    """Draw recorded scores against the number of parties that have the row.

    The area of a dot grows with the number of rows that were scored.  Scores of fewer than ``FEWEST_ROWS`` rows are
    left out.
    """
    kept = {int(count): each for count, each in by_count.items()
            if each.get(metric) is not None and each["rows"] >= FEWEST_ROWS}  # fmt: skip
    with styled():
        figure = Figure(figsize=(NARROW, 2.6))
        axis = figure.subplots()
        values, rows = [each[metric] for each in kept.values()], np.array([each["rows"] for each in kept.values()])
        axis.plot(list(kept), values, color=ACCENT)
        axis.scatter(list(kept), values, s=20 + 100 * rows / max([*rows, 1]), color=ACCENT, zorder=2)
        _labelled_lines(axis, {"constant answer": math.nan if constant is None else constant})
        _count_axis(axis, list(kept), metric_label(metric))
        axis.set_xlabel("number of parties that have the row")
    return figure


def _labelled_lines(axis: Axes, values: Mapping[str, float]) -> None:
    """Draw a dashed line with a label for each value except NaN: the label is above the highest line, below others."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    highest = max(finite.values(), default=0.0)
    for place, (name, value) in enumerate(finite.items()):
        axis.axhline(value, **DASHED)
        above = value == highest and not (place and len(set(finite.values())) == 1)
        axis.annotate(name, (0.99, value), xycoords=("axes fraction", "data"), xytext=(0, 3 if above else -3),
                      ha="right", va="bottom" if above else "top", **SMALL)  # fmt: skip


def _count_axis(axis: Axes, sizes: Sequence[int], metric: str) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.margins(y=0.12)
    if sizes:
        axis.set_xlim(min(sizes) - 0.4, max(sizes) + 0.4)
    axis.set_xlabel("number of present parties")
    axis.set_ylabel(metric)
    lines(axis, "y")
    axis.spines["left"].set_visible(False)


def draw_contributions(by_party: Mapping[str, Estimate], label: str, digits: int) -> Figure:
    """Draw each party's signed value with its interval, greatest value first."""
    ordered = sorted(by_party, key=lambda name: -by_party[name].value)
    cut = dict(zip(by_party, distinct_labels(list(by_party)), strict=True))
    with styled():
        figure = Figure(figsize=(NARROW, 0.8 + ROW * len(ordered)))
        axis = figure.subplots()
        values = [by_party[name] for name in ordered]
        axis.axvline(0.0, color=MUTED, linewidth=0.8, zorder=0)
        _intervals(axis, values, digits, sign=True)
        axis.set_yticks(range(len(ordered)), [cut[name] for name in ordered])
        axis.tick_params(axis="y", labelcolor=INK)
        axis.set_ylim(len(ordered) - 0.4, -0.6)
        axis.set_xlabel(label)
    return figure


def draw_runs(
    rows: Mapping[str, Sequence[Estimate]], metric: str, digits: int, *, own: float = math.nan
) -> Figure:  # fmt: skip
    """Draw a row for each key of ``rows``: a run's metric with its interval, or mean and deviation over several runs.

    ``own`` is the score of the active party's columns only; it is drawn as a line unless it is NaN.  With short names,
    the figure is narrow enough for a telephone.
    """
    P = len(rows)
    with styled():
        width = NARROW if max(map(len, rows)) <= LONGEST else WIDTH
        figure = Figure(figsize=(width, 0.8 + ROW * P))
        axis = figure.subplots()
        _intervals(axis, [_mean_of(each) for each in rows.values()], digits)
        for row, each in enumerate(rows.values()):
            if len(each) > 1:
                axis.plot(
                    [estimate.value for estimate in each], [row] * len(each), "o", color=MUTED, markersize=3, alpha=0.5
                )
        axis.set_yticks(range(P), distinct_labels(list(rows), 40))
        axis.tick_params(axis="y", labelcolor=INK)
        axis.set_ylim(P - 0.4, -0.6)
        if math.isfinite(own):
            axis.axvline(own, zorder=0, **DASHED)
            axis.annotate("own columns only", (own, -0.6), xytext=(0, 3), ha="center", va="bottom", **SMALL)
        axis.set_xlabel(f"{metric} on test rows")
    return figure


def _mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return one run's estimate or, for several runs, their mean with one standard deviation to each side."""
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([estimate.value for estimate in estimates])
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    return Estimate(value=mean, low=mean - deviation, high=mean + deviation)


def draw_calibration(found: Calibration) -> Figure:
    """Draw the calibration curve."""
    with styled():
        figure = Figure(figsize=(3.0, 3.0))
        plots.draw_calibration(figure.subplots(), found)
    return figure


def draw_operating_curves(answers: LabelledPredictions, chosen: Threshold) -> Figure:
    """Draw the ROC curve and the precision-recall curve."""
    with styled():
        figure = Figure(figsize=(5.6, 2.9))
        left, right = figure.subplots(1, 2)
        plots.draw_operating_curves(left, right, answers, chosen)
        figure.tight_layout(w_pad=2.0)
    return figure


def draw_confusion(counts: NDArray[np.int64], classes: Sequence[str]) -> Figure:
    """Draw the confusion matrix [C, C]."""
    size = min(WIDTH, 1.8 + 0.42 * len(classes))
    with styled():
        figure = Figure(figsize=(size, size * 0.86))
        plots.draw_confusion(figure.subplots(), counts, classes)
    return figure


def draw_residuals(errors: Floats, predicted: Floats) -> Figure:
    """Draw a histogram of the errors of a regression, and the errors against the predicted numbers."""
    with styled():
        figure = Figure(figsize=(WIDTH, 2.6))
        left, right = figure.subplots(1, 2)
        left.hist(errors, bins=min(40, max(8, len(errors) // 8)), color=ACCENT, rwidth=0.92)
        left.set_title("residuals")
        left.set_xlabel("predicted - true")
        left.set_ylabel("rows")
        right.scatter(predicted, errors, s=7, color=ACCENT, alpha=0.35, linewidths=0)
        right.axhline(0.0, color=MUTED, linewidth=0.8)
        right.set_title("residuals by prediction")
        right.set_xlabel("predicted")
        right.set_ylabel("predicted - true")
        for axis in (left, right):
            lines(axis, "y")
            axis.spines["left"].set_visible(False)
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.xaxis.set_major_formatter(ThousandsFormatter())
        figure.tight_layout(w_pad=2.0)
    return figure


def draw_encoder_check(
    epochs: Sequence[int], losses: Sequence[float], raw: Floats, embedded: Floats, metric: str
) -> Figure:
    """Draw an encoder's loss, and the scores of classifiers on its embeddings and on the columns, against the epoch.

    Bands show one standard deviation over the folds of cross-validation (divisor n - 1).

    Args:
        epochs: [E], the epochs at which the embeddings were scored.
        losses: [E], reconstruction losses.
        raw: [E, folds], scores of classifiers that use the columns.
        embedded: [E, folds], scores of classifiers that use the embeddings.
        metric: the metric's name in ``METRICS``.
    """
    with styled():
        figure = Figure(figsize=(WIDTH, 2.6), layout="tight")
        left, right = figure.subplots(1, 2)
        left.plot(epochs, losses, color=ACCENT, marker="o", ms=3)
        left.set_title("reconstruction loss")
        for scores, colour, label in ((raw, MUTED, "columns"), (embedded, ACCENT, "embeddings")):
            mean, deviation = scores.mean(axis=1), scores.std(axis=1, ddof=1)
            right.plot(epochs, mean, color=colour, label=label, marker="o", ms=3)
            right.fill_between(epochs, mean - deviation, mean + deviation,
                               color=SOFT if colour == ACCENT else colour, alpha=0.25)  # fmt: skip
        right.set_title(f"{metric_label(metric)}, {raw.shape[1]} folds")
        right.legend()
        for axis in (left, right):
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            lines(axis, "y")
    return figure
