"""Calibration, confusion matrix and scores of each class, over the test rows that have an answer.

scikit-learn computes the confusion matrix and the scores by class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from anyparty.metrics.scores import LabelledPredictions

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


def only_answered(answers: LabelledPredictions) -> LabelledPredictions:
    """Return the rows of ``answers`` that have an answer."""
    return answers.where(answers.answered)


def calibration_of(answers: LabelledPredictions) -> Calibration:
    """Return the calibration of the positive class's probability; for over two classes, of the highest probability."""
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
