"""One run of a comparison: remove some blocks, train a method on the rest, and score the method on test rows.

A block is a party's columns of a row.  The seed alone determines the test rows.  The seed and the missing rate,
or the mechanisms, determine the blocks that are removed.  Therefore all methods with the same seed see the same rows
and the same blocks, and a higher rate removes further blocks of the same rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.api.runs import hold_out
from anyparty.artifacts.record import versions
from anyparty.config import TrainSettings
from anyparty.config.loader import changed
from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError
from anyparty.experiments.compared_methods import ComparedMethod
from anyparty.experiments.compared_missing import Label, MissingBlocks, without_blocks
from anyparty.experiments.suite import SuiteRun
from anyparty.methods.method_registry import METHODS
from anyparty.metrics import headline
from anyparty.metrics.scores import ScoreTable, score
from anyparty.problem.splits import TEST, TRAIN, VALIDATION

SETS_PER_COUNT = 8  # maximum number of scored sets of n parties, for each n


@dataclass(frozen=True, kw_only=True)
class ComparisonRun(SuiteRun):
    """The training of one method with one seed and one missing rate.

    Attributes:
        federation: the tables of all parties, before blocks are removed.
        compared: the method.
        missing: the probability with which each block is removed, or the label of the mechanisms.
        blocks: the mechanisms that remove blocks; by default each block is removed with the probability ``missing``.
        training: keyword arguments of ``Federation.train``, without the method.
        changes: settings from a search, such as ``{"optimizer.lr": 0.01}``, which replace the federation's settings.
        scored: whether to score test rows; false in a search, which reads only the scores of validation rows.
    """

    federation: Federation = field(repr=False)
    compared: ComparedMethod
    missing: Label
    blocks: MissingBlocks | None = field(default=None, repr=False)
    training: Mapping[str, Any] = field(default_factory=dict, repr=False)
    changes: Mapping[str, Any] = field(default_factory=dict)
    scored: bool = True

    @property
    def label(self) -> str:
        """A readable name of the run: the method, the missing rate and the seed."""
        name = slug(self.method)
        rate = f"{self.missing:g}" if isinstance(self.missing, float | int) else slug(self.missing)[:40]
        return f"{name}-missing{rate}-seed{self.seed}"

    @property
    def key(self) -> str:
        """The name of the run's folder: its label, and a hash of all values that determine the result."""
        values = [self.method, self.seed, self.missing, self.scored, self.changes, self.settings]
        text = json.dumps(values, sort_keys=True, default=str)
        return f"{self.label}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:  # noqa: ARG002 - the tables are in memory
        """Train and score the method; return the record with the scores and costs.

        Raises:
            AnypartyError: the run failed.
        """
        own = {key: value for key, value in self.training.items() if key in TrainSettings.model_fields}
        rest = {key: value for key, value in self.training.items() if key not in own}
        settings = {key: value for key, value in self.changes.items() if not key.startswith("method.")}
        named = {"method.name": self.compared.method} if self.compared.method in METHODS else {}
        config = changed(self.federation.config, named | settings) if settings else self.federation.config
        searched = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("train.")}
        train = TrainSettings.of(
            config.train.model_dump(exclude_unset=True) | own | searched | {"seed": self.seed}, "train"
        )
        full = replace(self.federation, config=config.model_copy(update={"train": train}))
        blocks = self.blocks or MissingBlocks.of_rate(float(self.missing))
        masked, rate = without_blocks(full, blocks, Seeds(self.seed))
        began = time.perf_counter()
        parameters = dict(self.compared.with_changes(self.changes).parameters) or None
        model = masked.train(self.compared.method, parameters=parameters, **rest)
        seconds = time.perf_counter() - began
        metric, greater = headline(model.task, train.metric)
        validation = [each["validation"][metric] for each in model.history if each.get("validation")]
        return {
            "run": {
                "method": self.method,
                "seed": self.seed,
                "missing": self.missing,
                "changes": dict(self.changes),
                "settings": self.settings,
            },
            "seconds": seconds,
            "rate": rate,
            "bytes_sent": sum(tally.bytes_sent for tally in model.ledger.flows.values()),
            "messages": sum(tally.messages for tally in model.ledger.flows.values()),
            "parameters": parameter_count(model),
            "epochs": len(model.history),
            "metric": metric,
            "validation": (max if greater else min)(validation) if validation else None,
            "versions": versions(),
            **(held_out_scores(model, full, masked) if self.scored else {}),
        }


def slug(text: str) -> str:
    """Return a text with "-" in place of characters that a file's name should not have."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in text)


def held_out_scores(model: Model, full: Federation, masked: Federation) -> dict[str, Any]:
    """Score the test rows with the missing blocks of this run, and again with each number of present parties.

    Args:
        model: the trained model.
        full: the federation before blocks were removed.
        masked: the federation after blocks were removed, with which the model was trained.

    Returns:
        ``scores``: first an entry with ``present`` None, for the test rows with the run's missing blocks.  Then one
        entry for each number n of parties: the mean over sets of n parties, each scored on the test rows that all n
        parties hold.  ``rows``: the numbers of training, validation and test rows.  ``test``: a hash of the test rows'
        ids.
    """
    assert model.held_out is not None
    _, alignment, test = model.held_out
    use = masked.split(masked.config.train)
    counts = {name: int((use == code).sum()) for name, code in
              (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))}  # fmt: skip
    if not len(test):
        raise ConfigError("there are no test rows to score: train.test must be above 0")
    assert alignment.ids is not None
    ids = alignment.ids.gather(test.numpy()).to_list()
    entries: list[dict[str, Any]] = [{"present": None, **score_of(model, None)}]
    hold_out(model, full)
    assert model.held_out is not None
    rows, alignment, _ = model.held_out
    assert alignment.ids is not None
    places = torch.from_numpy(np.flatnonzero(alignment.ids.is_in(ids).to_numpy()))
    model.held_out = (rows, alignment, places)
    for count in range(len(model.roster.blocks), 0, -1):
        found = [each for parties in party_sets(model.roster.blocks, count) if (each := score_of(model, parties))]
        if found:
            entries.append({"present": count, **mean_scores(found)})
    return {"scores": entries, "rows": counts, "test": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:12]}


def party_sets(names: Sequence[str], count: int) -> Iterator[tuple[str, ...]]:
    """Yield all sets of ``count`` parties, or ``SETS_PER_COUNT`` of them, drawn with a fixed seed, if there are more.

    >>> list(party_sets(["a", "b", "c"], 2))
    [('a', 'b'), ('a', 'c'), ('b', 'c')]
    """
    if math.comb(len(names), count) <= SETS_PER_COUNT:
        yield from combinations(names, count)
        return
    rng, drawn = Seeds(0).numpy("compare", "sets", str(count)), set[tuple[int, ...]]()
    while len(drawn) < SETS_PER_COUNT:
        drawn.add(tuple(sorted(rng.choice(len(names), count, replace=False).tolist())))
    yield from (tuple(names[k] for k in each) for each in sorted(drawn))


def score_of(model: Model, parties: Sequence[str] | None) -> ScoreTable:
    """Score the labelled test rows that all of ``parties`` hold, with predictions from these parties only.

    If the method does not answer a row, the row is scored with a constant answer: the class frequencies of the labelled
    rows that are not test rows, or in a regression the mean of the training labels.

    Returns:
        The metrics by name, and ``coverage``, the share of rows that the method answered.  Empty if no row is scored.
    """
    assert model.held_out is not None
    rows, alignment, test = model.held_out
    lead = rows[model.roster.active]
    assert lead.y is not None
    assert lead.labeled is not None
    assert lead.observed is not None
    y, labeled, observed = lead.y.cpu(), lead.labeled.cpu(), lead.observed.cpu()
    wanted = test[labeled[test]]
    if parties is not None:
        places = [model.roster.blocks.index(name) for name in parties]
        wanted = wanted[observed[wanted][:, places].all(dim=1)]
    if not len(wanted):
        return {}
    predicted = replace(model, held_out=(rows, alignment, wanted)).predict(parties=parties)
    # ``at`` has the indices of the test rows, in the order of the predictions.
    at = wanted[torch.from_numpy(alignment.as_given(wanted.numpy(), model.roster.active))]
    known = labeled.clone()
    known[test] = False
    scores = torch.where(predicted.answered[:, None], predicted.scores, _constant(model, y[known]))
    filled = replace(predicted, scores=scores, by_party=None)
    return score(filled, y[at]) | {"coverage": float(predicted.answered.double().mean())}


def _constant(model: Model, y: Tensor) -> Tensor:
    if model.task.kind == "regression":
        return torch.tensor([model.task.mean], dtype=torch.float64)
    return torch.bincount(y, minlength=model.task.outputs).float() / len(y)


def mean_scores(found: Sequence[ScoreTable]) -> ScoreTable:
    """Return the mean of each metric over several score tables; values that are NaN are left out."""
    values: dict[str, NDArray[np.float64]] = {key: np.array([each[key] for each in found]) for key in found[0]}
    return {key: float(np.nanmean(each)) if not np.isnan(each).all() else math.nan for key, each in values.items()}


def parameter_count(model: Model) -> int:
    """Return the number of weights of all parties together."""
    modules = [module for member in model.members.values() for module in member.state.modules.values()]
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
