"""The demo's comparison: every method, trained with several seeds, scored on the same rows with 3, 2, 1 parties there.

A seed draws the gaps, which of the training rows validate, first weights and batches; the test rows stay the same.  One
draw of gaps would say more about that draw than about the methods: by it alone, ranks change from draw to draw.
With 2 of the 3 parties present an accuracy is the mean over the three pairs, with 1 over the three parties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray

from anyparty.config import Config
from anyparty.demo import data
from anyparty.methods.table import SPLIT, method
from anyparty.run.federation import Federation
from anyparty.run.model import Model


@dataclass(frozen=True, kw_only=True)
class Score:
    """A method's test accuracy with ``present`` parties there, over the rows answered; NaN where none was."""

    method: str
    seed: int
    present: int
    accuracy: float
    coverage: float


@dataclass(frozen=True)
class Study:
    """All scores, and what they come to."""

    scores: tuple[Score, ...]
    rows: int

    @property
    def counts(self) -> list[int]:
        """How many parties were present, most first."""
        return sorted({score.present for score in self.scores}, reverse=True)

    @property
    def seeds(self) -> int:
        """How many seeds each method was trained with."""
        return len({score.seed for score in self.scores})

    def accuracies(self, name: str, present: int) -> NDArray[np.float64]:
        """Return a method's accuracies, a number a seed; NaN where it never answered."""
        return np.array([score.accuracy for score in self.scores if (score.method, score.present) == (name, present)])

    def of(self, name: str, present: int) -> tuple[float, float]:
        """Return the mean of a method's accuracies, and their standard deviation."""
        values = self.accuracies(name, present)
        return float(values.mean()), _spread(values)

    def above(self, present: int, name: str = "laser") -> list[tuple[str, float, float]]:
        """Return the methods whose mean accuracy is above that of ``name``: by how much, and its standard error.

        The error is that of differences between two methods under the same seed, which draws the same gaps for both.
        """
        mine = self.accuracies(name, present)
        gaps = {other: self.accuracies(other, present) - mine for other in SPLIT if other != name}
        return [
            (other, float(gap.mean()), _spread(gap) / math.sqrt(len(gap)))
            for other, gap in gaps.items()
            if gap.mean() > 1e-9
        ]

    def frame(self) -> pl.DataFrame:
        """Return a row for each method, seed and number of parties present."""
        return pl.DataFrame([vars(score) for score in self.scores])


def _spread(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def compare(settings: Config, seeds: int, jobs: int) -> Iterator[list[Score]]:
    """Train every method with every seed, ``jobs`` at a time; yield each run's scores as it ends."""
    work = [delayed(one)(settings, name, seed) for seed in range(seeds) for name in SPLIT]
    with parallel_config(backend="loky", inner_max_num_threads=1):  # the networks are tiny: threads would wait
        yield from Parallel(n_jobs=jobs, return_as="generator")(work)


def one(settings: Config, name: str, seed: int) -> list[Score]:
    """Train one method with one seed on the gaps that it draws; score it on the test rows."""
    federation = Federation.from_config(settings, data.training(seed))
    shared = {"embedding": settings.method.parameters["embedding"]}  # what else is set may be one method's own
    model = federation.train(name, parameters=shared, seed=seed)
    return [_score(model, name, seed, present) for present in range(len(data.PARTIES), 0, -1)]


def _score(model: Model, name: str, seed: int, present: int) -> Score:
    tests = data.tests()
    each = [model.evaluate(tests, parties).overall for parties in combinations(tests, present)]
    answered = [scores["accuracy"] for scores in each if scores["coverage"] > 0]
    return Score(
        method=name,
        seed=seed,
        present=present,
        accuracy=sum(answered) / len(answered) if answered else math.nan,
        coverage=sum(scores["coverage"] for scores in each) / len(each),
    )


def title(name: str) -> str:
    """Return a method's name as its paper writes it."""
    return method(name).can.title
