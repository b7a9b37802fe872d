"""Choose LASER-VFL's settings beyond the paper's, on validation rows: python -m benchmarks.beyond [hapt|credit].

A fifth of the training rows is held out and scored as the suite scores test rows, with none, a tenth and half of the
blocks missing. On HAPT it is a fifth of the subjects, because the official test rows are of other people. A run reads
no test row of its own seed.  On Credit, which has no official test rows, the test rows depend on the seed, so most rows
of a run are test rows of other seeds. Needs the data sets of ``laser-table1`` (ANYPARTY_DATA).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from torch import Tensor

from anyparty.config import Encoder
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.errors import Diverged
from anyparty.experiments import suites
from anyparty.experiments.missing_blocks_suite import MissingBlocksRun, MissingBlocksSuite
from anyparty.experiments.party_tables import blocks_of, draw, federation, tables
from anyparty.experiments.suite import Selection
from anyparty.methods.split.laser import Laser, order_of, running_means
from anyparty.methods.split.rule import Host, Noise
from anyparty.methods.split.split_method import Split
from anyparty.networks.heads import Heads
from anyparty.networks.optimizer import Optimizer
from benchmarks.page import Page

SEEDS, MISSING, TESTS, HELD_OUT = (0, 1), ("0.0", "0.5"), ("0.0", "0.1", "0.5"), 0.2


@dataclass(frozen=True)
class Choice:
    """Changes to the settings of LASER-VFL in the suite, by group."""

    optimizer: dict[str, Any] = field(default_factory=dict)
    encoder: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    keep: str = "last"
    distil: float = 0.0
    faithful: bool = False


@dataclass(frozen=True, kw_only=True)
class Distilled(Laser):
    """LASER-VFL with distillation: predictors of fewer parties also learn from the one of all present parties.

    The loss of a predictor is its usual loss, plus ``distil`` times the cross-entropy to the detached probabilities of
    the predictor of all present parties. The package does not have this variant.
    """

    distil: float

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return LASER-VFL's loss (7) plus the distillation loss, over the same randomly drawn sets of parties."""
        order = order_of(noise["order"], observed, host.owners)
        means = running_means(heads.products(h), order)
        outputs = heads.finish(means)  # [B, M, T, C]
        own = host.loss(outputs, y.view(-1, 1, 1).expand(outputs.shape[:3]))
        last = (observed.sum(dim=1) - 1).view(-1, 1, 1, 1).expand(-1, outputs.shape[1], 1, outputs.shape[3])
        teacher = outputs.gather(2, last).softmax(-1).detach()
        theirs = -(teacher * outputs.log_softmax(-1)).sum(-1)
        each = (self._weights(host, observed, h.dtype) * (own + self.distil * theirs)).sum(dim=2)
        return each, observed[:, host.owners]


COSINE = {"schedule": "cosine", "final": 0.0}
CHOICES: dict[str, dict[str, Choice]] = {
    "hapt": {
        "the paper's settings": Choice(faithful=True),
        "momentum .8 also at .5": Choice(),
        "cosine, lr .05": Choice(optimizer={"lr": 0.05, **COSINE}),
        "cosine, lr .03": Choice(optimizer=COSINE),
        "cosine, normalisation in the encoders": Choice(optimizer=COSINE, encoder={"norm": True}),
        "cosine, normalisation, dropout .2": Choice(optimizer=COSINE, encoder={"norm": True, "dropout": 0.2}),
        "cosine, normalisation, weight decay .001": Choice(
            optimizer={"weight_decay": 0.001, **COSINE}, encoder={"norm": True}
        ),
        "cosine, dropout .2": Choice(optimizer=COSINE, encoder={"dropout": 0.2}),
        "cosine, normalised loss": Choice(optimizer={"lr": 0.2, **COSINE}, parameters={"normalize": True}),
        "cosine, weight decay .001": Choice(optimizer={"weight_decay": 0.001, **COSINE}),
        "weights averaged over the last quarter": Choice(keep="average"),
        "cosine, normalisation, weight decay .001, averaged": Choice(
            optimizer={"weight_decay": 0.001, **COSINE}, encoder={"norm": True}, keep="average"
        ),
        "cosine, normalisation, weight decay .001, distilled .5": Choice(
            optimizer={"weight_decay": 0.001, **COSINE}, encoder={"norm": True}, distil=0.5
        ),
        "cosine, columns standardised": Choice(optimizer=COSINE, shared={"scale": True}),
    },
    "credit": {
        "the paper's settings": Choice(faithful=True),
        "lr .001, cosine": Choice(optimizer={"lr": 0.001, **COSINE}),
        "lr .0003, cosine": Choice(optimizer={"lr": 0.0003, **COSINE}),
        "lr .001, cosine, normalised loss": Choice(optimizer={"lr": 0.001, **COSINE}, parameters={"normalize": True}),
        "lr .001, cosine, normalisation": Choice(optimizer={"lr": 0.001, **COSINE}, encoder={"norm": True}),
        "lr .001, cosine, wider": Choice(
            optimizer={"lr": 0.001, **COSINE}, encoder={"hidden": [64, 64]}, shared={"embedding": 32}
        ),
        "lr .001, wider, averaged over the last quarter": Choice(
            optimizer={"lr": 0.001}, encoder={"hidden": [64, 64]}, shared={"embedding": 32}, keep="average"
        ),
        "lr .001, cosine, wider, distilled .5": Choice(
            optimizer={"lr": 0.001, **COSINE}, encoder={"hidden": [64, 64]}, shared={"embedding": 32}, distil=0.5
        ),
        "lr .001, cosine, wider, dropout .2": Choice(
            optimizer={"lr": 0.001, **COSINE}, encoder={"hidden": [64, 64], "dropout": 0.2}, shared={"embedding": 32}
        ),
    },
}


def settings_of(dataset: str, missing: str, choice: Choice) -> dict[str, Any]:
    """Return the suite's settings of LASER-VFL with the changes of ``choice``."""
    runs = suites.load("laser-table1").runs(Selection(datasets=[dataset], methods=["laser"], seeds=1))
    (run,) = [
        run for run in runs
        if isinstance(run, MissingBlocksRun) and run.missing == (missing if choice.faithful else "0.0")
    ]  # fmt: skip
    made = dict(run.settings) | choice.shared | {"keep": choice.keep, "distil": choice.distil}
    for group in ("optimizer", "encoder", "parameters"):
        made[group] = {**made[group], **getattr(choice, group)}
    return made


def held_out(groups: NDArray[Any] | None, n: int, seed: int) -> NDArray[np.bool_]:
    """Return the mask of held-out training rows: [n] bool."""
    draw_from = np.random.default_rng(1000 + seed)
    if groups is None:
        return draw_from.random(n) < HELD_OUT
    names = np.unique(groups)
    return np.isin(groups, draw_from.permutation(names)[: max(1, round(HELD_OUT * len(names)))])


def score(dataset: str, missing: str, settings: Mapping[str, Any], seed: int, quick: bool) -> list[float]:
    """Train without the held-out rows; return the metric on them by missing rate in ``TESTS``, NaN if it diverged."""
    torch.set_num_threads(1)
    seeds, data = Seeds(seed), datasets.load(dataset, progress=False)
    data = data.split(seeds)
    out = held_out(data.groups_train.get("subject"), len(data.y_train), seed)
    train, valid = (blocks_of(data.X_train[rows], settings["cut"], 4) for rows in (~out, out))
    there = draw(missing, seeds, "train", train)
    made = federation(tables(train, data.y_train[~out], there.observed), scale=settings["scale"])
    try:
        parameters = {**settings["parameters"], "embedding": settings["embedding"]}
        distilled = Split(embedding=settings["embedding"],
                          rule=Distilled(distil=settings["distil"], **settings["parameters"]))  # fmt: skip
        model = made.train(
            distilled if settings["distil"] else "laser", parameters=None if settings["distil"] else parameters,
            encoder=Encoder.model_validate(settings["encoder"]).make(),
            optimizer=Optimizer(**settings["optimizer"]), seed=seed,
            epochs=2 if quick else settings["epochs"], batch_size=settings["batch_size"], balance=settings["balance"],
            validation=0.0, test=0.0, patience=None, keep=settings["keep"],
        )  # fmt: skip
    except Diverged:
        return [math.nan] * len(TESTS)
    suite = suites.load("laser-table1")
    assert isinstance(suite, MissingBlocksSuite)
    found = []
    for test in TESTS:
        seen = draw(test, seeds, "validation", valid)
        scores = model.evaluate(tables(valid, data.y_train[out], seen.observed)).clients
        found.append(100 * scores[suite.datasets[dataset].metric])
    return found


def main(dataset: str, *, only: str = "", quick: bool, jobs: int = 2) -> None:
    title = f"Beyond the paper on {dataset}: choices on validation rows"
    words = f"beyond {dataset}" + (f" --only '{only}'" if only else "")
    page = Page(f"beyond_{dataset}" + (f"_{only}" if only else ""), title, quick, words)
    choices = {name: choice for name, choice in CHOICES[dataset].items() if only in name}
    seeds = SEEDS[:1] if quick else SEEDS
    work = [(name, missing, seed) for name in choices for missing in MISSING for seed in seeds]
    found = Parallel(n_jobs=jobs)(
        delayed(score)(dataset, missing, settings_of(dataset, missing, choices[name]), seed, quick)
        for name, missing, seed in work
    )
    scores = dict(zip(work, found, strict=True))
    rows = []
    for name in choices:
        cells = [
            statistics.fmean(scores[key][place] for key in work if key[:2] == (name, missing))
            for missing in MISSING
            for place in range(len(TESTS))
        ]
        rows.append([name, *(f"{cell:.1f}" for cell in cells), f"{statistics.fmean(cells):.2f}"])
    rows.sort(key=lambda row: -math.inf if row[-1] == "nan" else float(row[-1]), reverse=True)
    page.say(
        f"LASER-VFL of `laser-table1`, {dataset}, K = 4, trained on four fifths of the training rows with seeds "
        f"{list(seeds)} and scored on the rest (of HAPT: other subjects). Columns: blocks missing in training, and "
        "among the rows scored. A run reads no test row of its own seed."
    )
    columns = ("choice", *(f"{missing} → {test}" for missing in MISSING for test in TESTS), "mean")
    page.table("Mean over seeds", columns, rows)
    page.write()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", default="hapt", choices=sorted(CHOICES))
    parser.add_argument("--only", default="", help="choices with this in their name")
    parser.add_argument("--quick", action="store_true", help="few epochs: a look, not a result")
    asked = parser.parse_args()
    main(asked.dataset, only=asked.only, quick=asked.quick)
