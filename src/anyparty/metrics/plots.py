"""Calibration and confusion of the test rows with an answer, and plots of scores, for users and for the report.

scikit-learn computes the confusion matrix and the scores by class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_curve, precision_recall_fscore_support, roc_curve

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
from anyparty.metrics.scores import LabelledPredictions, metric_label

BINS = 10


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The share of rows in which an event occurred, for each bin of the event's predicted probability.

    With two classes, the event is that a row has the positive class.  With more classes, the event is that the
    predicted class is correct.

    Attributes:
        confidence: for each bin that holds rows, the mean predicted probability.
        correct: for each such bin, the share of rows for which the event occurred.
        rows: for each such bin, the number of rows.
        event: description of the predicted probability, for readers of a plot.
        share_label: description of ``correct``, for readers of a plot.
    """

    confidence: NDArray[np.float64]
    correct: NDArray[np.float64]
    rows: NDArray[np.int64]
    event: str
    share_label: str

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over bins of |confidence - correct|, weighted by numbers of rows."""
        return float(np.average(np.abs(self.confidence - self.correct), weights=self.rows))


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Precision, recall and F1 of one class, and the number of its rows."""

    name: str
    precision: float
    recall: float
    f1: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The rows whose probability of the positive class is at least ``threshold``.

    Attributes:
        threshold: the least probability of a selected row.
        share: the share of the rows that are selected.
        precision: the share of the selected rows that are positive.
        recall: the share of the positive rows that are selected.
        lift: the precision divided by the share of positive rows among all rows.
        chosen: whether the model predicts the positive class for these rows.
    """

    threshold: float
    share: float
    precision: float
    recall: float
    lift: float
    chosen: bool = False


def thresholds_of(answers: LabelledPredictions, shares: Sequence[float]) -> list[Threshold]:
    """Return thresholds that select these shares of the rows, and the model's own threshold; highest first.

    The task has two classes. Rows with equal probabilities are selected together.
    """
    p, positive = answers.scores[:, 1].double().numpy(), answers.y.numpy() == 1
    w = answers.task.weights or (1.0, 1.0)
    own = w[0] / (w[0] + w[1])
    falling = np.sort(p)[::-1]
    found = {float(falling[max(1, round(share * len(p))) - 1]): False for share in shares} | {own: True}

    def at(threshold: float, chosen: bool) -> Threshold:
        selected = p >= threshold
        hits = int((selected & positive).sum())
        precision = hits / int(selected.sum()) if selected.any() else math.nan
        return Threshold(
            threshold=threshold, share=float(selected.mean()), precision=precision,
            recall=hits / int(positive.sum()) if positive.any() else math.nan,
            lift=precision / float(positive.mean()) if positive.any() else math.nan, chosen=chosen,
        )  # fmt: skip

    return [at(*each) for each in sorted(found.items(), reverse=True)]


def brier_score(answers: LabelledPredictions) -> float:
    """Return the mean squared error of the positive class's probability or, above two classes, their sum over classes.

    Brier: "Verification of forecasts expressed in terms of probability", 1950.
    """
    p, y = answers.scores.double().numpy(), answers.y.numpy()
    if answers.task.outputs == 2:
        return float(((p[:, 1] - (y == 1)) ** 2).mean())
    return float(((p - np.eye(answers.task.outputs)[y]) ** 2).sum(axis=1).mean())


def only_answered(answers: LabelledPredictions) -> LabelledPredictions:
    """Return the rows of ``answers`` that have an answer."""
    return answers.where(answers.answered)


def calibration_of(answers: LabelledPredictions) -> Calibration:
    """Return the calibration of the positive class's probability or, above two classes, of the highest probability."""
    scores, y = answers.scores.double().numpy(), answers.y.numpy()
    if answers.task.outputs == 2:
        p, correct, event = scores[:, 1], y == 1, f"the probability of {answers.task.classes[1]!r}"
        share_label = f"share that is {answers.task.classes[1]!r}"
    else:
        p, correct = scores.max(axis=1), answers.chosen.numpy() == y
        event, share_label = "the probability of the predicted class", "share that is correct"
    place = np.clip((p * BINS).astype(np.int64), 0, BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    held = rows > 0
    sums = [np.bincount(place, weights=values, minlength=BINS)[held] for values in (p, correct.astype(float))]
    return Calibration(confidence=sums[0] / rows[held], correct=sums[1] / rows[held], rows=rows[held], event=event,
                       share_label=share_label)  # fmt: skip


def confusion_counts(answers: LabelledPredictions) -> NDArray[np.int64]:
    """Return the confusion matrix [C, C]: numbers of rows by true class (first axis) and predicted class (second)."""
    labels = list(range(answers.task.outputs))
    counts: NDArray[np.int64] = confusion_matrix(answers.y.numpy(), answers.chosen.numpy(), labels=labels)
    return counts


def scores_by_class(answers: LabelledPredictions) -> list[ClassScores]:
    """Compute each class's precision, recall and F1; an undefined score is NaN."""
    labels = list(range(answers.task.outputs))
    found = precision_recall_fscore_support(
        answers.y.numpy(), answers.chosen.numpy(), labels=labels, zero_division=np.nan
    )
    return [
        ClassScores(name=name, precision=float(p), recall=float(r), f1=float(f), rows=int(n))
        for name, p, r, f, n in zip(answers.task.classes, *found, strict=True)
    ]


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
                axis.plot(x, train, color=MUTED, marker=marker, markersize=3, label="training", zorder=1,
                          linestyle=(0, (4, 1.5)))  # fmt: skip
            marked.append(held_out)
        for axis, title, values in zip(axes, ("training loss", *map(metric_label, names)), marked, strict=True):
            axis.set_title(title)
            # The x label states the best epoch, because a text inside the plot could cover a curve.
            axis.set_xlabel(label)
            axis.xaxis.set_major_locator(MaxNLocator(4, integer=label == "epoch"))
            axis.yaxis.set_major_locator(MaxNLocator(5))
            lines(axis, "y")
            axis.spines["left"].set_visible(False)
            if 0 < best_epoch <= len(history):
                _mark_best(axis, x[best_epoch - 1], float(values[best_epoch - 1]))
                axis.set_xlabel(f"{label} (best: {'' if label == 'epoch' else 'epoch '}{best_epoch})")
        handles, labels = axes[-1].get_legend_handles_labels()
        both = len(handles) > 1
        if both:
            figure.legend(handles, labels, loc="lower right", ncols=2, handlelength=1.2)
        figure.tight_layout(w_pad=2.0, rect=(0, 0.08 if both else 0, 1, 1))
    return figure


def _history_of(history: Sequence[Mapping[str, Any]], of: str, name: str) -> NDArray[np.float64]:
    return np.array([epoch.get(of, {}).get(name, np.nan) for epoch in history], dtype=np.float64)


def _epoch_positions(history: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float64], str]:
    """Return the x positions of epochs and their unit: the recorded time of a schedule, or else the epoch number."""
    for key, unit in (("time", "time units"), ("time_s", "seconds")):
        if history and all(key in epoch for epoch in history):
            return np.array([epoch[key] for epoch in history], dtype=np.float64), unit
    return np.arange(1, len(history) + 1, dtype=np.float64), "epoch"


def _mark_best(axis: Axes, x: float, y: float) -> None:
    axis.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    axis.plot([x], [y], "o", color=ACCENT, markersize=5, markeredgecolor=PAPER, markeredgewidth=1.2)


def draw_calibration(axis: Axes, found: Calibration) -> None:
    """Draw the calibration curve; a dot's area grows with the number of rows in its bin."""
    axis.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
    axis.plot(found.confidence, found.correct, color=ACCENT, linewidth=1.2)
    axis.scatter(found.confidence, found.correct, s=10 + 90 * found.rows / found.rows.max(), color=ACCENT,
                 edgecolors=PAPER, linewidths=0.8, zorder=2)  # fmt: skip
    axis.set_xlim(-0.04, 1.04)  # room for the dots at 0 and 1
    axis.set_ylim(-0.04, 1.04)
    axis.set_aspect("equal")
    axis.set_title("calibration")
    axis.set_xlabel("predicted probability")
    axis.set_ylabel(shorten(found.share_label, 36))
    lines(axis, "both")


def draw_operating_curves(roc: Axes, precision_recall: Axes, answers: LabelledPredictions, chosen: Threshold) -> None:
    """Draw the ROC curve and the precision-recall curve of two classes; a dot marks the model's own threshold."""
    p, positive = answers.scores[:, 1].double().numpy(), answers.y.numpy() == 1
    false_rate, true_rate, _ = roc_curve(positive, p)
    precision, recall, _ = precision_recall_curve(positive, p)
    negatives = (~positive).sum()
    false_alarms = float((~positive & (p >= chosen.threshold)).sum() / negatives)
    for axis, x, y, dot in (
        (roc, false_rate, true_rate, (false_alarms, chosen.recall)),
        (precision_recall, recall, precision, (chosen.recall, chosen.precision)),
    ):
        axis.plot(x, y, color=ACCENT, linewidth=1.2)
        axis.plot(*([each] for each in dot), "o", color=ACCENT, markersize=5, markeredgecolor=PAPER)
        axis.set_xlim(-0.04, 1.04)
        axis.set_ylim(-0.04, 1.04)
        axis.set_aspect("equal")
        lines(axis, "both")
    guess: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (3, 3))}
    roc.plot([0, 1], [0, 1], **guess)
    precision_recall.axhline(float(positive.mean()), **guess)
    roc.set(title="ROC", xlabel="false positive rate", ylabel="true positive rate (recall)")
    precision_recall.set(title="precision and recall", xlabel="recall", ylabel="precision")


def draw_confusion(axis: Axes, counts: NDArray[np.int64], classes: Sequence[str]) -> None:
    """Draw the confusion matrix [C, C]; a cell's colour shows its share of all rows of its true class."""
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
