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

import polars as pl
from joblib import Parallel, delayed, parallel_config

from anyparty.config import Config
from anyparty.demo import data
from anyparty.methods.table import METHODS, method
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

    def of(self, name: str, present: int) -> tuple[float, float]:
        """Return a method's accuracy, mean and standard deviation over seeds; NaN where it never answered."""
        values = [score.accuracy for score in self.scores if (score.method, score.present) == (name, present)]
        mean = sum(values) / len(values)
        return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))

    def above(self, present: int, name: str = "laser") -> list[tuple[str, float]]:
        """Return the methods whose mean accuracy is above that of ``name``, and by how much."""
        mine, _ = self.of(name, present)
        gaps = [(other, self.of(other, present)[0] - mine) for other in METHODS if other != name]
        return [(other, gap) for other, gap in gaps if gap > 1e-9]

    def frame(self) -> pl.DataFrame:
        """Return a row for each method, seed and number of parties present."""
        return pl.DataFrame([vars(score) for score in self.scores])


def compare(settings: Config, seeds: int, jobs: int) -> Iterator[list[Score]]:
    """Train every method with every seed, ``jobs`` at a time; yield each run's scores as it ends."""
    work = [delayed(one)(settings, name, seed) for seed in range(seeds) for name in METHODS]
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
