"""How the answers of everybody together look from close by: calibration, who is taken for whom, residuals.

Over the test rows that are answered.  scikit-learn counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from anyparty.metrics.scores import Answers
from anyparty.report.contributions import Floats

BINS = 10


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How often answers of some confidence are right.

    Attributes:
        confidence: mean probability of each bin that holds rows.
        right: share of its rows for which the answer is right.
        rows: how many it holds.
        of: what the probability is of, in words.
        share: what ``right`` is the share of.
    """

    confidence: Floats
    right: Floats
    rows: NDArray[np.int64]
    of: str
    share: str

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over rows of |confidence - right|, a bin at a time."""
        return float(np.average(np.abs(self.confidence - self.right), weights=self.rows))


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """One class's scores."""

    name: str
    precision: float
    recall: float
    f1: float
    rows: int


def answered(answers: Answers) -> Answers:
    """Keep the rows that are answered."""
    return answers.where(answers.answered)


def calibration(answers: Answers) -> Calibration:
    """Return the calibration of the positive class's probability, or with more than two classes of the chosen one's."""
    scores, y = answers.scores.double().numpy(), answers.y.numpy()
    if answers.task.outputs == 2:
        p, right, of = scores[:, 1], y == 1, f"the probability of {answers.task.classes[1]!r}"
        share = f"share that is {answers.task.classes[1]!r}"
    else:
        p, right, of = scores.max(axis=1), answers.chosen.numpy() == y, "the probability of the class that is answered"
        share = "share that is right"
    place = np.clip((p * BINS).astype(np.int64), 0, BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    held = rows > 0
    sums = [np.bincount(place, weights=values, minlength=BINS)[held] for values in (p, right.astype(float))]
    return Calibration(confidence=sums[0] / rows[held], right=sums[1] / rows[held], rows=rows[held], of=of, share=share)


def confusion(answers: Answers) -> NDArray[np.int64]:
    """Return how many rows of each class (rows) were answered with each (columns): [C, C]."""
    labels = list(range(answers.task.outputs))
    counts: NDArray[np.int64] = confusion_matrix(answers.y.numpy(), answers.chosen.numpy(), labels=labels)
    return counts


def per_class(answers: Answers) -> list[PerClass]:
    """Return each class's precision, recall and F1; NaN where one is undefined."""
    labels = list(range(answers.task.outputs))
    found = precision_recall_fscore_support(
        answers.y.numpy(), answers.chosen.numpy(), labels=labels, zero_division=np.nan
    )
    return [
        PerClass(name=name, precision=float(p), recall=float(r), f1=float(f), rows=int(n))
        for name, p, r, f, n in zip(answers.task.classes, *found, strict=True)
    ]
