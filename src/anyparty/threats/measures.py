"""How good a guess is: its score, a bootstrap interval, and the score of the same guess for permuted truth.

Chance is measured, not assumed: the truth is permuted among the rows, and the same guess is scored again.  So chance
includes the gain of choosing the best assignment of names, for example the greater one of AUROC and 1 - AUROC.

Interval  2.5 % and 97.5 % percentiles of the score over resamples of the rows, with replacement.
Chance    mean and 97.5 % percentile of the score over permutations of the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyparty.threats.view import Floats

Truth = NDArray[Any]
Measure = Callable[[Truth, Floats], float]


@dataclass(frozen=True, kw_only=True)
class MeasuredGuess:
    """The score of a guess, its interval, and the score by chance.

    Attributes:
        metric: the name of the score.
        value: the score on all rows.
        low, high: the limits of its interval.
        chance: the mean score by chance.
        chance_high: a score that chance exceeds in 2.5 % of the cases.
        rows: the number of scored rows.
    """

    metric: str
    value: float
    low: float
    high: float
    chance: float
    chance_high: float
    rows: int

    @property
    def beats_chance(self) -> bool:
        """True if the whole interval is above the scores by chance."""
        return self.low > self.chance_high


def measured(
    metric: str, measure: Measure, truth: Truth, guess: Floats, rng: np.random.Generator, resamples: int
) -> MeasuredGuess:
    """Score a guess against the truth of the same n rows, with an interval and the score by chance."""
    n = len(truth)
    draws = [rng.integers(n, size=n) for _ in range(resamples)]
    scores = [measure(truth[rows], guess[rows]) for rows in draws if len(np.unique(truth[rows], axis=0)) > 1]
    by_chance = [measure(truth[rng.permutation(n)], guess) for _ in range(resamples)]
    low, high = np.quantile(scores, (0.025, 0.975)) if scores else (np.nan, np.nan)
    return MeasuredGuess(metric=metric, value=measure(truth, guess), low=float(low), high=float(high),
                         chance=float(np.mean(by_chance)), chance_high=float(np.quantile(by_chance, 0.975)),
                         rows=n)  # fmt: skip


def label_measure(classes: int, *, named: bool) -> tuple[str, Measure]:
    """Return the name of the score of guessed labels, and the function that computes it.

    Two classes: AUROC.  More classes: the share of rows with the right class.  Numbers: R², or without names the
    absolute rank correlation.
    """
    if classes == 2:
        return "AUROC", auroc if named else lambda y, guess: max(auroc(y, guess), 1 - auroc(y, guess))
    if classes:
        return "accuracy", accuracy if named else assigned_accuracy
    return ("R²", r2) if named else ("|rank correlation|", rank_correlation)


def auroc(y: Truth, guess: Floats) -> float:
    """Return the area under the ROC curve of the scores ``guess`` [n] for the classes ``y`` [n], 0 or 1."""
    from scipy.stats import rankdata  # noqa: PLC0415 - takes a second

    positive = y == 1
    ones = int(positive.sum())
    if ones in {0, len(y)}:
        return 0.5
    return float((rankdata(guess)[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))


def accuracy(y: Truth, guess: Floats) -> float:
    """Return the share of rows with the right class."""
    return float((y == guess).mean())


def assigned_accuracy(y: Truth, guess: Floats) -> float:
    """Return the share of rows with the right class, if each cluster gets the class that suits it best (one to one)."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - takes a second

    counts = np.zeros((int(max(y.max(), guess.max())) + 1,) * 2)
    np.add.at(counts, (y.astype(np.int64), guess.astype(np.int64)), 1)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(y))


def r2(y: Truth, guess: Floats) -> float:
    """Return the share of the variance of ``y`` [n] that the guess explains; negative if the mean is a better guess."""
    return float(1 - ((y - guess) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def rank_correlation(y: Truth, guess: Floats) -> float:
    """Return the absolute value of Spearman's rank correlation; 0 if the guess is constant."""
    from scipy.stats import rankdata  # noqa: PLC0415 - takes a second

    if not guess.std():
        return 0.0
    return float(abs(np.corrcoef(rankdata(y), rankdata(guess))[0, 1]))


@dataclass(frozen=True, kw_only=True)
class PreparedColumn:
    """A column of a party's table, and where it is in the party's prepared columns.

    Attributes:
        name: the column.
        at: the positions of its numbers: one for a number, one for each level of a categorical column.
    """

    name: str
    at: tuple[int, ...]

    def score(self, x: Truth, guess: Floats) -> float:
        """Return the score of a guess of prepared columns, each [n, D]: 1 if it is exact, 0 if a constant is as good.

        A number is scored by R².  A categorical column is scored by the share of right levels beyond the share of
        the most frequent level.
        """
        at = list(self.at)
        if len(at) == 1:
            return max(0.0, r2(x[:, at[0]], guess[:, at[0]])) if x[:, at[0]].std() else 0.0
        levels, best = x[:, at].argmax(axis=1), guess[:, at].argmax(axis=1)
        most = np.bincount(levels).max() / len(levels)
        return max(0.0, float(((levels == best).mean() - most) / (1 - most))) if most < 1 else 0.0


def columns_measure(columns: Sequence[PreparedColumn]) -> Measure:
    """Return the function that computes the mean score of several columns."""
    return lambda x, guess: float(np.mean([column.score(x, guess) for column in columns]))


def attributes_auroc(truth: Truth, guess: Floats) -> float:
    """Return the mean AUROC of several yes/no attributes, each [n, A]."""
    return float(np.mean([auroc(*each) for each in zip(truth.T, guess.T, strict=True)]))
