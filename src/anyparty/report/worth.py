"""How good a run's model is on its test rows, for every set of parties that may be asked.

A set of parties is asked for all test rows.  A row that it cannot answer counts with the answer that needs nobody: the
shares of the classes, or the mean label, among training rows.  So every set is scored on the same rows, and nobody's
score is that answer's.  Intervals come from resampling test rows, the same for all sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.blocks.splits import TRAIN
from anyparty.errors import PredictionError
from anyparty.methods.method import Method
from anyparty.metrics import METRICS, headline
from anyparty.metrics.scores import Answers
from anyparty.nets.mlp import Factory
from anyparty.predictions import Predictions
from anyparty.report.contributions import Floats, Shapley, Share, interval, shapley
from anyparty.report.section import MOST_LISTED, decimals
from anyparty.run.federation import Federation
from anyparty.run.model import Model
from anyparty.run.predict import predict_rows
from anyparty.run.runs import federation_of_run, hold_out, model_for_run
from anyparty.seeds import Seeds
from anyparty.terms import Channel
from anyparty.wire import inproc

MOST_ROWS = 5000
RESAMPLES, FEWER_RESAMPLES = 200, 40
ORDERS = 32


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A model beside its test rows, and what needs nobody.

    Attributes:
        model: with its test rows at hand.
        wanted: [n] int64, the test rows that have a label, or some of them.
        held_out: how many of them there are.
        y: [n], their labels as in ``Rows``.
        prior: [C], the answer that needs nobody.
    """

    model: Model
    wanted: Tensor
    held_out: int
    y: Tensor
    prior: Tensor

    @property
    def rows(self) -> str:
        """Which rows are scored, in words."""
        if len(self.wanted) == self.held_out:
            return f"{self.held_out:,} test rows"
        return f"{len(self.wanted):,} of the {self.held_out:,} test rows, drawn at random"

    @property
    def parties(self) -> tuple[str, ...]:
        """Those that hold columns."""
        return self.model.roster.blocks

    def predict(self, asked: Iterable[str]) -> Predictions:
        """Return the answers of these parties to all test rows."""
        model, (rows, _, _) = self.model, self.model.held_out or ({}, None, None)
        chosen = [name for name in self.parties if name in set(asked)]

        def part(name: str) -> Callable[[Channel], Any]:
            state, seeds = model.members[name].state, Seeds(model.seed)
            return lambda net: predict_rows(model.method, net, state, rows[name], self.wanted, chosen, seeds)

        parts = {name: part(name) for name in model.roster.names}
        answered: Predictions = inproc.play(parts)[model.roster.active]
        return answered

    def filled(self, asked: Iterable[str]) -> Answers:
        """Return the answers of these parties beside the labels, with nobody's answer where there is none."""
        chosen = frozenset(asked)
        if chosen:
            answers = Answers.of(self.predict(chosen), self.y, None)
            scores = torch.where(answers.answered.unsqueeze(1), answers.scores, self.prior)
        else:
            everybody = Answers.of(self.predict(self.parties), self.y, None)
            answers, scores = everybody, self.prior.expand(len(self.wanted), -1)
        return replace(answers, scores=scores, answered=torch.ones(len(scores), dtype=torch.bool))


def reopened(
    folder: Any, *, most: int = MOST_ROWS, method: Method | None = None,
    encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
) -> Tested:  # fmt: skip
    """Load a run's model, and read its test rows again.

    ``method``, ``encoders`` and ``allow_code`` are as in ``model_for_run``.

    Raises:
        ModelError: the run has no model, or its tables are not at hand or not what they were.
        PredictionError: there are no test rows.
    """
    model = model_for_run(folder, device="cpu", method=method, encoders=encoders, allow_code=allow_code)
    federation = federation_of_run(folder)
    hold_out(model, federation)
    return with_test_rows(model, federation, most=most)


def with_test_rows(model: Model, federation: Federation, *, most: int = MOST_ROWS) -> Tested:
    """Return a model that has its test rows at hand; of more than ``most`` of them, a random part.

    Raises:
        PredictionError: there are none.
    """
    assert model.held_out is not None
    rows, _, wanted = model.held_out
    lead = rows[model.roster.active]
    assert lead.y is not None
    assert lead.labeled is not None
    labeled, y = lead.labeled.cpu(), lead.y.cpu()
    wanted = wanted[labeled[wanted]]
    if not len(wanted):
        of = f"train.test = {federation.config.train.test:g} of {int(labeled.sum()):,} labelled rows"
        raise PredictionError(f"no labelled rows were held out for the test ({of})")
    held_out = len(wanted)
    if held_out > most:
        lots = Seeds(model.seed).numpy("report", "rows").permutation(len(wanted))[:most]
        wanted = wanted[torch.from_numpy(np.sort(lots))]
    train = labeled & torch.from_numpy(federation.split(federation.config.train) == TRAIN)
    return Tested(model=model, wanted=wanted, held_out=held_out, y=y[wanted], prior=_prior(model, y[train]))


def _prior(model: Model, y: Tensor) -> Tensor:
    """Return the answer that needs nobody, from training labels: shares of classes, or their mean."""
    if model.task.kind == "regression":
        return (y.double().mean() * model.task.scale + model.task.mean).view(1)
    counts = torch.bincount(y, minlength=model.task.outputs).float()
    return counts / counts.sum()


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A set of parties: its score, with an interval, and the share of rows that it answers itself."""

    parties: tuple[str, ...]
    score: Share


@dataclass
class Worth:
    """The metric of every set of parties that was asked for, kept.

    Attributes:
        of: model and test rows.
        metric: a name in ``METRICS``.
        resamples: [R, n] int64, rows of each resample.
        kept: by set of parties, [1 + R].
    """

    of: Tested
    metric: str
    resamples: NDArray[np.int64]
    kept: dict[frozenset[str], Floats] = field(default_factory=dict)

    @classmethod
    def begin(cls, of: Tested, metric: str | None = None) -> Worth:
        """Draw the resamples.

        Raises:
            ConfigError: the metric does not fit the task.
        """
        task = of.model.task
        name = metric or ("accuracy" if task.kind == "classification" else "rmse")
        headline(task, name)
        count = RESAMPLES if len(of.parties) <= MOST_LISTED else FEWER_RESAMPLES
        n = len(of.wanted)
        draws = Seeds(of.model.seed).numpy("report", "resamples").integers(n, size=(count, n))
        return cls(of=of, metric=name, resamples=draws)

    @property
    def decimals(self) -> int:
        """How many decimals show its scores: those of everybody's, or where that has no error, of nobody's."""
        return decimals(self.metric, float(self(frozenset(self.of.parties))[0]) or float(self(frozenset())[0]))

    @property
    def greater(self) -> bool:
        """Whether more of the metric is better."""
        return METRICS[self.metric].greater

    def __call__(self, members: frozenset[str]) -> Floats:
        """Return v(S), [1 + R]."""
        if members not in self.kept:
            answers, metric = self.of.filled(members), METRICS[self.metric].of
            whole = [metric(answers)]
            drawn = [metric(answers.where(torch.from_numpy(rows))) for rows in self.resamples]
            self.kept[members] = np.array(whole + drawn)
        return self.kept[members]

    def score(self, members: Iterable[str]) -> Scored:
        """Return a set's score with its interval."""
        those = frozenset(members)
        named = tuple(name for name in self.of.parties if name in those)
        return Scored(parties=named, score=interval(self(those)))

    def every_set(self) -> list[Scored]:
        """Return all sets' scores, small sets first."""
        parties = self.of.parties
        sets = chain.from_iterable(combinations(parties, size) for size in range(1, len(parties) + 1))
        return [self.score(members) for members in sets]

    def shapley(self) -> Shapley:
        """Return what each party brings: a gain is an improvement, also where less of the metric is better."""
        sign = 1.0 if self.greater else -1.0
        rng = Seeds(self.of.model.seed).numpy("report", "orders")
        return shapley(self.of.parties, lambda members: sign * self(members), rng=rng, orders=ORDERS)

    def absence(self) -> dict[str, Share]:
        """Return how much worse the metric gets when one party alone is absent."""
        sign = 1.0 if self.greater else -1.0
        whole = frozenset(self.of.parties)
        return {name: interval(sign * (self(whole) - self(whole - {name}))) for name in self.of.parties}

    def by_size(self) -> dict[int, Share]:
        """Return the mean score of the sets of each size that were asked for, with the interval of that mean."""
        sizes: dict[int, list[Floats]] = {}
        for members, values in self.kept.items():
            sizes.setdefault(len(members), []).append(values)
        return {size: interval(np.mean(sizes[size], axis=0)) for size in sorted(sizes)}
