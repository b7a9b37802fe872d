"""FALSE-VFL's targets: time of both stages on Isolet, memory of many importance samples, and the cost of a suite.

    python -m benchmarks.latent            trains FALSE-VFL-I on Isolet in full, 20 minutes on 2 quiet cores at most
    python -m benchmarks.latent --quick    a few epochs of it, and times them out; needs ANYPARTY_DATA too

The second table compares the gradient without negligible samples with the exact one (decision 10): a few epochs of
stage 1 in turns; the last one counts, because the weights are even at first. The third measures two epochs of each
stage of every method of ``false-tables``. It estimates the processor seconds of one training and of the suite on one
core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import torch

from anyparty.api.federation import Federation
from anyparty.data import datasets
from anyparty.experiments import suites
from anyparty.experiments.missing_blocks_suite import MissingBlocksRun, MissingBlocksSuite, split_rows, train
from anyparty.experiments.suite import Selection
from anyparty.methods.false_vfl.false_vfl import FalseVFL
from anyparty.methods.method_registry import method
from anyparty.networks.encoders import MLP
from anyparty.training.callbacks import Callback
from benchmarks.memory import peak_since_reset, reset_peak, resident
from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Spread

MINUTES, GIB = 20.0, 2**30
L, BATCH, PARTIES, COLUMNS, MOST_GIB = 50, 512, 8, 77, 2.0
SEEDS = 5


def main(*, quick: bool) -> None:
    page = Page("latent", "FALSE-VFL in time and memory", quick)
    whole = suites.load("false-tables")
    assert isinstance(whole, MissingBlocksSuite)
    runs = {
        (r.dataset, r.method, r.missing): r for r in whole.runs(Selection(seeds=1)) if isinstance(r, MissingBlocksRun)
    }
    isolet = runs["isolet", "false-vfl-1", "MCAR 2"]
    torch.set_num_threads(1 if quick else 2)
    epochs = measured(isolet, 2 if quick else None)
    minutes = epochs.whole(isolet, "seconds") / 60
    extent = "two epochs of each stage, times their number" if quick else "in full"
    peak = json.loads(_own_process())["peak"]
    page.table(
        "Against the targets",
        ("what", "measured", "target"),
        [
            [f"FALSE-VFL-I on Isolet, both stages, minutes ({extent})", f"{minutes:.1f}", target(minutes, MINUTES)],
            [f"a batch of stage 1 at L = {L}, B = {BATCH}, K = {PARTIES}: peak of the process, GiB", f"{peak:.2f}",
             target(peak, MOST_GIB)],
        ],
    )  # fmt: skip
    page.say(
        f"Isolet: 8 parties with 77 columns each, MCAR 2, the published 300 epochs of 512 rows and 300 of 128, "
        f"{isolet.settings['parameters']['samples']} importance samples; {torch.get_num_threads()} torch thread(s). "
        f"The batch is one of eight parties with {COLUMNS} columns, widths of 128, nothing missing, all parties in one "
        f"process; its peak holds everything, torch included."
    )
    torch.set_num_threads(1)
    rounds, each = (1, 3) if quick else (5, 12)
    page.table(
        f"Stage 1 without negligible samples and with all (Isolet, MCAR 5; epoch {each} of it, {rounds} round(s))",
        ("", "s / epoch", "with all", "times as long"),
        [[name, *in_turns(runs["isolet", name, "MCAR 5"], rounds, each)] for name in ("false-vfl-1", "false-vfl-2")],
    )
    rows, hours = [], 0.0
    for dataset, missing in (("isolet", "MCAR 5"), ("hapt", "MCAR 5")):
        for name, entry in whole.datasets[dataset].methods.items():
            run = runs[dataset, name, missing]
            found = measured(run, 2)
            once = found.whole(run, "processor")
            all_of_it = once * SEEDS * len(whole.train_missing) / 3600
            hours += all_of_it
            rows.append([f"{dataset}, {entry.title}", *(f"{found.each[s]['processor']:.2f}" if s in found.each else ""
                         for s in ("pretrain", "train")), f"{once / 60:.1f}", f"{all_of_it:.1f}"])  # fmt: skip
    page.table(
        f"What false-tables costs, in processor time of one core (MCAR 5; the suite has {SEEDS} seeds and "
        f"{len(whole.train_missing)} training mechanisms)",
        ("training", "s / epoch of pretrain", "s / epoch of train", "minutes a training", "hours in the suite"),
        [*rows, ["all", "", "", "", f"{hours:.0f}"]],
    )
    page.write()


@dataclass
class Epochs(Callback):
    """Records the fastest or the ``last`` epoch of each stage, in seconds and processor seconds."""

    last: bool = False
    each: dict[str, dict[str, float]] = field(default_factory=dict)
    began: tuple[float, float] = (0.0, 0.0)

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:  # noqa: ARG002
        """Start the time of the first epoch."""
        self.began = time.perf_counter(), time.process_time()

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Record an epoch, and start the time of the next."""
        now = time.perf_counter(), time.process_time()
        took = dict(zip(("seconds", "processor"), (n - b for n, b in zip(now, self.began, strict=True)), strict=True))
        before = took if self.last else self.each.get(record["stage"], took)
        self.each[record["stage"]] = {name: min(value, before[name]) for name, value in took.items()}
        self.began = now

    def whole(self, run: MissingBlocksRun, what: str) -> float:
        """Return the estimated time of all epochs of a run."""
        of = run.settings
        named = {"pretrain": "pretrain_epochs", "pseudo": "unlabelled_epochs"}
        epochs: dict[str, int]
        epochs = {stage: of["parameters"].get(name, of["epochs"]) for stage, name in named.items()}
        epochs["train"] = of["epochs"]
        return sum(found[what] * epochs[stage] for stage, found in self.each.items())


def measured(run: MissingBlocksRun, epochs: int | None, *, last: bool = False) -> Epochs:
    """Train a run, or ``epochs`` of each of its stages; return the times of the fastest or the ``last`` epoch."""
    if epochs is not None:
        given = run.settings["parameters"]
        parameters = {**given, **{name: epochs for name in ("pretrain_epochs", "unlabelled_epochs") if name in given}}
        run = replace(run, settings={**run.settings, "epochs": epochs, "parameters": parameters})
    rows = split_rows(run, datasets.load(run.dataset, progress=False))
    watch = Epochs(last=last)
    train(run, rows, rows.draw_train(run.missing), watch)
    return watch


def in_turns(run: MissingBlocksRun, rounds: int, epochs: int) -> list[str]:
    """Train the start of stage 1 without negligible samples and with all, in turns; return seconds and their ratio."""
    made = method(run.method)
    assert isinstance(made, FalseVFL)
    took: dict[float, list[float]] = {made.negligible: [], 0.0: []}
    for turn in range(rounds):
        for negligible in list(took)[:: 1 if turn % 2 else -1]:
            parameters = {**run.settings["parameters"], "negligible": negligible}
            watch = measured(replace(run, settings={**run.settings, "parameters": parameters}), epochs, last=True)
            took[negligible].append(watch.each["pretrain"]["processor"])
    fast, whole = took.values()
    ratio = Spread.of([w / f for w, f in zip(whole, fast, strict=True)])
    return [f"{Spread.of(fast).median:.2f}", f"{Spread.of(whole).median:.2f}", str(ratio)]


def _own_process() -> str:
    command = [sys.executable, "-m", "benchmarks.latent", "--memory"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - our own program


def memory() -> dict[str, float]:
    """Train two batches of stage 1 in this process; return its peak memory and the memory before, in GiB."""
    rng = np.random.default_rng(0)
    ids = np.arange(2 * BATCH)
    frames = {
        f"party{k}": pl.from_numpy(rng.normal(size=(2 * BATCH, COLUMNS)).astype(np.float32)).insert_column(
            0, pl.Series("id", ids)
        )
        for k in range(PARTIES)
    }
    frames["party0"] = frames["party0"].with_columns(label=pl.Series(rng.integers(0, 10, 2 * BATCH)))
    made = Federation.from_tables(frames, label="label", task="classification")
    before = resident()
    reset_peak()
    made.train(
        method("false-vfl-1", samples=L, pretrain_epochs=1, pretrain_batch_size=BATCH), encoder=MLP(hidden=(128, 128)),
        epochs=1, batch_size=BATCH, validation=0.0, test=0.0, patience=None, keep="last",
    )  # fmt: skip
    return {"peak": peak_since_reset() / GIB, "before": before / GIB}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        torch.set_num_threads(1)
        print(json.dumps(memory()))
    else:
        main(quick=quick_asked(__doc__))
