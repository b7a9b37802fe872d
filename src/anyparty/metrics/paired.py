"""Differences between the scores of two methods, paired by seed, and the interval of their mean.

Both methods have the same test rows with the same seed.  The interval is Student's t interval.  The training rows of
different seeds overlap, which makes the usual interval too narrow.  Nadeau and Bengio (*Inference for the
generalization error*, 2003) therefore multiply the variance over n seeds by 1/n + test rows / training rows instead of
1/n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from anyparty.metrics.scores import METRICS

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The score of one method minus the score of another.

    Attributes:
        each: the difference for each seed that both methods have.
        better: the number of seeds for which the first method is better.
        one, other: the names of the two methods.
    """

    each: tuple[float, ...]
    better: int
    one: str = ""
    other: str = ""

    @classmethod
    def of(
        cls, metric: str, pairs: Iterable[tuple[float | None, float | None]], one: str = "", other: str = ""
    ) -> PairedDifference:
        """Compute the differences from the two scores of each seed; pairs without both scores are left out."""
        each = tuple(one - other for one, other in pairs if one is not None and other is not None)
        each = tuple(value for value in each if not math.isnan(value))
        greater = METRICS[metric].greater
        return cls(each=each, better=sum(value > 0 if greater else value < 0 for value in each), one=one, other=other)

    def against(self, reference: str) -> PairedDifference:
        """Return this difference with ``reference`` as ``other``; the signs change if the methods change places."""
        if self.one != reference:
            return self
        worse = sum(value != 0 for value in self.each) - self.better
        return replace(self, one=self.other, other=self.one, each=tuple(-value for value in self.each), better=worse)

    @property
    def mean(self) -> float:
        """The mean difference; NaN if there is no seed."""
        return math.fsum(self.each) / len(self.each) if self.each else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of the differences; NaN for fewer than two seeds."""
        n = len(self.each)
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.each) / (n - 1)) if n > 1 else math.nan

    def interval(self, overlap: float = 0.0) -> tuple[float, float]:
        """Return Student's 95 % interval of the mean; NaN for fewer than two seeds.

        ``overlap`` is the number of test rows divided by the number of training rows. It widens the interval, by the
        formula in the module's docstring. With 0, scores of different seeds count as independent.
        """
        n = len(self.each)
        if n < 2:
            return math.nan, math.nan
        half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * self.deviation * math.sqrt(1 / n + overlap)
        return self.mean - half, self.mean + half
