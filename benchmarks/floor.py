"""FALSE-VFL's lower bound of deviations, chosen on training rows: python -m benchmarks.floor [isolet|hapt] [--quick].

No paper gives this bound (the floor), but it affects the scores (docs/decisions/0012). A fifth of the training rows
(for Isolet and HAPT the rows of a fifth of the people) is held out of both stages and scored as ``false-tables`` scores
test rows, under its seven mechanisms. The suite's test rows are not read. Needs ANYPARTY_DATA.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from typing import Any

import torch
from joblib import Parallel, delayed

from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.experiments import suites
from anyparty.experiments.missing_blocks_suite import MissingBlocksRun, RunRows, score, train
from anyparty.experiments.suite import Selection
from benchmarks.beyond import held_out
from benchmarks.page import Page

FLOORS = (0.001, 0.03, 0.1, 0.2, 0.4)
MISSING = ("MCAR 2", "MAR 1")
PERSON = {"isolet": "speaker", "hapt": "subject"}


def run_of(dataset: str, missing: str, floor: float, *, quick: bool) -> MissingBlocksRun:
    """Return the suite's run of FALSE-VFL-I with another floor; a quick run has two epochs of each stage."""
    asked = Selection(datasets=[dataset], methods=["false-vfl-1"], seeds=1)
    found = suites.load("false-tables").runs(asked)
    (run,) = [each for each in found if isinstance(each, MissingBlocksRun) and each.missing == missing]
    few: dict[str, Any] = {"pretrain_epochs": 2} if quick else {}
    changed = {"parameters": {**run.settings["parameters"], "floor": floor, **few}}
    return replace(run, settings={**run.settings, **changed, **({"epochs": 2} if quick else {})})


def rows_of(run: MissingBlocksRun) -> RunRows:
    """Return the run's rows without its test rows: held-out training rows, of a fifth of the people, replace them."""
    data = datasets.load(run.dataset, progress=False)
    out = held_out(data.groups_train.get(PERSON[run.dataset]), len(data.y_train), run.seed)
    apart = replace(
        data, X_train=data.X_train[~out], y_train=data.y_train[~out], X_test=data.X_train[out],
        y_test=data.y_train[out], groups_train={}, groups_test={},
    )  # fmt: skip
    return RunRows(apart, run.parties, run.settings, Seeds(run.seed))


def accuracies(run: MissingBlocksRun) -> list[float]:
    """Train a run; return the accuracy on rows held out under every test mechanism, in %."""
    torch.set_num_threads(1)
    rows = rows_of(run)
    model = train(run, rows, rows.draw_train(run.missing))
    return [100 * score(model, rows, rows.draw_test(test)).overall["accuracy"] for test in run.tests]


def main(dataset: str, *, quick: bool, jobs: int) -> None:
    page = Page(f"floor_{dataset}", f"FALSE-VFL's floor of deviations, on training rows: {dataset}", quick,
                words=f"floor {dataset}")  # fmt: skip
    runs = [run_of(dataset, missing, floor, quick=quick) for missing in MISSING for floor in FLOORS]
    found = Parallel(n_jobs=jobs)(delayed(accuracies)(run) for run in runs)
    length = "two epochs of each stage" if quick else "both stages at their published length"
    page.say(
        f"FALSE-VFL-I of `false-tables`, {dataset}, seed 0, {length}, trained on the rows "
        "of four fifths of the training people and scored on those of the others. The suite's test rows are not read."
    )
    for missing in MISSING:
        rows = [
            [f"{run.settings['parameters']['floor']:g}", *(f"{each:.1f}" for each in scores),
             f"{statistics.fmean(scores):.1f}"]
            for run, scores in zip(runs, found, strict=True) if run.missing == missing
        ]  # fmt: skip
        page.table(f"Trained under {missing}: accuracy, %", ("floor", *runs[0].tests, "mean"), rows)
    page.write()


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dataset", nargs="?", default="isolet", choices=sorted(PERSON))
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--quick", action="store_true", help="two epochs of each stage: its numbers mean nothing")
    asked = words.parse_args()
    main(asked.dataset, quick=asked.quick, jobs=asked.jobs)
