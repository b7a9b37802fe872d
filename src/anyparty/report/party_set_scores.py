"""Scores of a run's model on its test rows, for every set of parties that may take part.

Every set is scored on the same test rows.  Rows that a set of parties cannot answer get a constant prediction: the
class shares, or the mean label, of the training rows.  The score of the empty set is the score of this constant
prediction on all test rows.  Intervals come from resamples of the test rows.  All sets use the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.api.runs import federation_of_run, hold_out, model_for_run
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.errors import PredictionError
from anyparty.methods.method import Method
from anyparty.metrics import METRICS, headline
from anyparty.metrics.scores import LabelledPredictions
from anyparty.networks.encoders import Factory
from anyparty.problem.splits import TRAIN
from anyparty.report.elements import MAX_PARTIES_LISTED, decimal_places
from anyparty.report.shapley import Estimate, Floats, ShapleyValues, percentile_interval, shapley_values
from anyparty.training.loop import predict_rows
from anyparty.transport import memory

MAX_ROWS = 5000
RESAMPLES, FEWER_RESAMPLES = 200, 40
ORDERS = 32


@dataclass(frozen=True, kw_only=True)
class ModelWithTestRows:
    """A model, its test rows, and the constant prediction for rows without an answer.

    Attributes:
        model: the model, with its held-out rows loaded.
        test_rows: [n] int64, indices of the labelled test rows, or of a random sample of them.
        held_out: number of all labelled test rows, of which ``test_rows`` may be a sample.
        y: [n], the labels of ``test_rows``, encoded as in ``Rows.y``.
        constant: [C], the constant prediction: a probability for each class, or one number in a regression.
    """

    model: Model
    test_rows: Tensor
    held_out: int
    y: Tensor
    constant: Tensor

    @property
    def rows(self) -> str:
        """A description, for readers, of the test rows that are scored."""
        if len(self.test_rows) == self.held_out:
            return f"{self.held_out:,} test rows"
        return f"{len(self.test_rows):,} of the {self.held_out:,} test rows, drawn at random"

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that hold columns."""
        return self.model.roster.blocks

    def predict(self, asked: Iterable[str]) -> Predictions:
        """Return predictions of all test rows with the columns of the parties in ``asked`` only."""
        model, (rows, _, _) = self.model, self.model.held_out or ({}, None, None)
        chosen = [name for name in self.parties if name in set(asked)]

        def part(name: str) -> Callable[[Channel], Any]:
            state, seeds = model.members[name].state, Seeds(model.seed)
            return lambda net: predict_rows(model.method, net, state, rows[name], self.test_rows, chosen, seeds)

        parts = {name: part(name) for name in model.roster.names}
        answered: Predictions = memory.play(parts)[model.roster.active]
        return answered

    def answers_for_all(self, asked: Iterable[str]) -> LabelledPredictions:
        """Return predictions of all test rows by some parties; rows without an answer get the constant prediction."""
        chosen = frozenset(asked)
        if chosen:
            answers = LabelledPredictions.of(self.predict(chosen), self.y, None)
            scores = torch.where(answers.answered.unsqueeze(1), answers.scores, self.constant)
        else:
            answers = LabelledPredictions.of(self.predict(self.parties), self.y, None)
            scores = self.constant.expand(len(self.test_rows), -1)
        return replace(answers, scores=scores, answered=torch.ones(len(scores), dtype=torch.bool))


def load_with_test_rows(
    folder: Path, *, most: int = MAX_ROWS, method: Method | None = None,
    encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
) -> ModelWithTestRows:  # fmt: skip
    """Return a run's model, together with its test rows, which are read from the run's tables.

    If there are more than ``most`` test rows, ``most`` of them are drawn at random.  ``method``, ``encoders`` and
    ``allow_code`` are passed to ``model_for_run``.

    Raises:
        ModelError: the run has no model, or its tables are absent or have changed.
        PredictionError: there are no test rows.
    """
    model = model_for_run(folder, device="cpu", method=method, encoders=encoders, allow_code=allow_code)
    federation = federation_of_run(folder)
    hold_out(model, federation)
    return with_test_rows(model, federation, most=most)


def with_test_rows(model: Model, federation: Federation, *, most: int = MAX_ROWS) -> ModelWithTestRows:
    """Return a model with its labelled test rows, or with a random sample of ``most`` rows if there are more.

    Raises:
        PredictionError: there are no labelled test rows.
    """
    assert model.held_out is not None
    rows, _, test_rows = model.held_out
    lead = rows[model.roster.active]
    assert lead.y is not None
    assert lead.labeled is not None
    labeled, y = lead.labeled.cpu(), lead.y.cpu()
    test_rows = test_rows[labeled[test_rows]]
    if not len(test_rows):
        of = f"train.test = {federation.config.train.test:g} of {int(labeled.sum()):,} labelled rows"
        raise PredictionError(f"no labelled rows were held out for the test ({of})")
    held_out = len(test_rows)
    if held_out > most:
        drawn = Seeds(model.seed).numpy("report", "rows").permutation(len(test_rows))[:most]
        test_rows = test_rows[torch.from_numpy(np.sort(drawn))]
    train = labeled & torch.from_numpy(federation.split(federation.config.train) == TRAIN)
    return ModelWithTestRows(model=model, test_rows=test_rows, held_out=held_out, y=y[test_rows],
                             constant=_constant_prediction(model, y[train]))  # fmt: skip


def _constant_prediction(model: Model, y: Tensor) -> Tensor:
    """Return the class shares of the training labels, or their mean in a regression: [C]."""
    if model.task.kind == "regression":
        return (y.double().mean() * model.task.scale + model.task.mean).view(1)
    counts = torch.bincount(y, minlength=model.task.outputs).float()
    return counts / counts.sum()


@dataclass(frozen=True, kw_only=True)
class PartySetScore:
    """The score of a set of parties, with a 95 % interval from resampled test rows."""

    parties: tuple[str, ...]
    score: Estimate


@dataclass
class PartySetScores:
    """The values of one metric for sets of parties; the values of a set are computed when they are first needed.

    Attributes:
        tested: the model and its test rows.
        metric: the metric's name in ``METRICS``.
        resamples: [R, n] int64, indices of the test rows in each resample.
        computed: a cache of values by set of parties: [1 + R], the metric on all test rows, then on each resample.
    """

    tested: ModelWithTestRows
    metric: str
    resamples: NDArray[np.int64]
    computed: dict[frozenset[str], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, tested: ModelWithTestRows, metric: str | None = None) -> PartySetScores:
        """Return an object without computed scores: choose the metric, and draw the resamples of the test rows.

        Raises:
            ConfigError: the metric does not fit the task.
        """
        task = tested.model.task
        name = metric or ("accuracy" if task.kind == "classification" else "rmse")
        headline(task, name)
        count = RESAMPLES if len(tested.parties) <= MAX_PARTIES_LISTED else FEWER_RESAMPLES
        n = len(tested.test_rows)
        draws = Seeds(tested.model.seed).numpy("report", "resamples").integers(n, size=(count, n))
        return cls(tested=tested, metric=name, resamples=draws)

    @property
    def all_parties(self) -> frozenset[str]:
        """The set of all parties."""
        return frozenset(self.tested.parties)

    @property
    def decimals(self) -> int:
        """The number of decimals to show; it depends on the size of the score of all parties."""
        return decimal_places(
            self.metric, float(self.values(self.all_parties)[0]) or float(self.values(frozenset())[0])
        )

    @property
    def is_greater_better(self) -> bool:
        """True if greater values of the metric are better."""
        return METRICS[self.metric].greater

    def values(self, members: frozenset[str]) -> Floats:
        """Return a set's values of the metric, [1 + R]: on all test rows, then on each resample of these rows."""
        if members not in self.computed:
            answers, metric = self.tested.answers_for_all(members), METRICS[self.metric].of
            whole = [metric(answers)]
            drawn = [metric(answers.where(torch.from_numpy(rows))) for rows in self.resamples]
            self.computed[members] = np.array(whole + drawn)
        return self.computed[members]

    def score(self, members: Iterable[str]) -> PartySetScore:
        """Return a set's score on all test rows, with the score's 95 % interval over resamples of these rows."""
        chosen = frozenset(members)
        parties = tuple(name for name in self.tested.parties if name in chosen)
        return PartySetScore(parties=parties, score=percentile_interval(self.values(chosen)))

    def own_columns(self) -> Estimate | None:
        """Return the score of the active party's columns alone; ``None`` if the active party has no columns."""
        active = self.tested.model.roster.active
        return self.score({active}).score if active in self.tested.parties else None

    def every_set(self) -> list[PartySetScore]:
        """Return the scores of all sets with at least one party, in the order of their size, smallest first."""
        parties = self.tested.parties
        sets = chain.from_iterable(combinations(parties, size) for size in range(1, len(parties) + 1))
        return [self.score(members) for members in sets]

    def shapley(self) -> ShapleyValues:
        """Return each party's Shapley value; a positive value is an improvement, even if a lower metric is better."""
        sign = 1.0 if self.is_greater_better else -1.0
        rng = Seeds(self.tested.model.seed).numpy("report", "orders")
        return shapley_values(self.tested.parties, lambda members: sign * self.values(members), rng=rng, orders=ORDERS)

    def loss_without(self) -> dict[str, Estimate]:
        """Return, for each party, how much worse the metric gets if only that party is absent."""
        sign = 1.0 if self.is_greater_better else -1.0
        whole = self.values(self.all_parties)
        return {
            name: percentile_interval(sign * (whole - self.values(self.all_parties - {name})))
            for name in self.tested.parties
        }

    def by_size(self) -> dict[int, Estimate]:
        """Return the mean score of the sets in ``computed`` by number of parties, with the interval of the mean."""
        sizes: dict[int, list[Floats]] = {}
        for members, values in self.computed.items():
            sizes.setdefault(len(members), []).append(values)
        return {size: percentile_interval(np.mean(sizes[size], axis=0)) for size in sorted(sizes)}
