"""Time and memory for a million rows of four parties: reading, aligning, preparing, and an epoch of LASER-VFL."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import torch

from anyparty.api.federation import Federation
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback
from benchmarks.memory import peak_since_reset, reset_peak, resident
from benchmarks.page import Page, quick_asked, target

PARTIES, COLUMNS, ABSENT, BATCH = 4, 20, 0.3, 128
ALIGN_S, ALIGN_GIB = 20.0, 4.0
MIB, GIB = 2**20, 2**30
T = TypeVar("T")
Stage = dict[str, float]


def main(*, quick: bool) -> None:
    n = 40_000 if quick else 1_000_000
    page = Page("million_rows", f"{n:,} rows, {PARTIES} parties", quick)
    with tempfile.TemporaryDirectory(prefix="anyparty-million-") as folder:
        sizes = {kind: write_tables(Path(folder), n, kind) for kind in ("csv", "parquet")}
        runs = {kind: in_own_process(Path(folder), kind) for kind in ("csv", "parquet")}
    page.say(
        f"{n:,} rows, {PARTIES} parties with {COLUMNS} numeric columns each, {ABSENT:.0%} of each party's rows absent "
        f"and its rows in an order of its own; labels at the first. Files: {sizes['csv'] / MIB:,.0f} MiB of CSV, or "
        f"{sizes['parquet'] / MIB:,.0f} MiB of Parquet. The stages from each kind of file are one process, in turn; "
        f"*processor s* is its own work, where *s* is the clock on the wall of a machine that is shared; *peak* is its "
        f"greatest resident size during a stage, everything read before included (1 GiB = 2^30 bytes). Training is "
        f"`Federation.train`: batch {BATCH}, encoders of hidden 64, embeddings of 64, one torch thread."
    )
    stages = list(runs["csv"]["stages"])
    page.table(
        "Time and memory of each stage",
        (
            "stage",
            *(f"{kind}: {what}" for kind in runs for what in ("s", "processor s", "held before, GiB", "peak, GiB")),
        ),
        [
            [
                stage,
                *(
                    f"{run['stages'][stage][key]:.2f}"
                    for run in runs.values()
                    for key in ("seconds", "processor", "before", "peak")
                ),
            ]
            for stage in stages
        ],
    )
    rows = []
    for kind, run in runs.items():
        align, epoch, data = run["stages"]["align"], run["stages"]["train an epoch"], run["data"]["blocks"]
        growth = epoch["peak"] - epoch["before"]
        rows += [
            [f"{kind}: align, s", f"{align['seconds']:.2f}", target(align["seconds"], ALIGN_S)],
            [f"{kind}: align, peak of the process, GiB", f"{align['peak']:.2f}", target(align["peak"], ALIGN_GIB)],
            [f"{kind}: rows trained a second", f"{run['data']['rows'] / epoch['seconds']:,.0f}", ""],
            [f"{kind}: rows trained a processor second", f"{run['data']['rows'] / epoch['processor']:,.0f}", ""],
            [f"{kind}: blocks to train on, GiB", f"{data:.3f}", ""],
            [f"{kind}: growth during the epoch, GiB", f"{growth:.3f}", ""],
            [f"{kind}: growth / blocks", f"{growth / data:.2f}", target(growth / data, 0.5)],
        ]
    page.table("Against the targets", ("what", "measured", "target"), rows)
    page.say(
        "A second copy of the data would be a growth of 1.00 times the blocks. What grows is the order of the "
        "epoch's rows, 8 bytes a row at each of the four parties, which all live in this one process, beside their 80 "
        "bytes a row of numbers; the networks; and torch's workspace. (The list of rows to train on, as much again, is "
        "shared before the epoch begins.) The target of a small share is taken as a half here."
    )
    page.write()


def write_tables(folder: Path, n: int, kind: str) -> int:
    """Write the parties' files; return their size in bytes."""
    lots = np.random.default_rng(0)
    y = lots.integers(2, size=n)
    total = 0
    for k in range(PARTIES):
        own = lots.permutation(n)[: round(n * (1 - ABSENT))]
        numbers = lots.standard_normal((len(own), COLUMNS)).round(4)
        numbers[:, 0] += y[own]
        columns: dict[str, Any] = {"id": pl.Series(own).cast(pl.String).str.zfill(9)} | {
            f"c{c}": numbers[:, c] for c in range(COLUMNS)
        }
        if k == 0:
            columns["label"] = y[own]
        file, frame = folder / f"party{k}.{kind}", pl.DataFrame(columns)
        frame.write_csv(file) if kind == "csv" else frame.write_parquet(file)
        total += file.stat().st_size
    return total


def in_own_process(folder: Path, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.million_rows", "--stages", str(folder), kind]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def stages(folder: Path, kind: str) -> dict[str, Any]:
    """Run all stages in this process; return the seconds and GiB of each."""
    seen: dict[str, Stage] = {}

    def timed(name: str, work: Callable[[], T]) -> T:
        meter = Meter(seen)
        result = work()
        meter.end(name)
        return result

    files = {f"party{k}": folder / f"party{k}.{kind}" for k in range(PARTIES)}
    federation = timed("read and check", lambda: Federation.from_tables(files, id="id", label="label"))
    timed("align", lambda: federation.alignment)
    timed("overlap table", lambda: federation.overlap)
    meter = Meter(seen)
    model = federation.train(
        "laser", epochs=1, batch_size=BATCH, validation=0.0, test=0.0, watch=meter,
        optimizer=Optimizer(name="sgd", lr=0.03), parameters={"embedding": 64},
    )  # fmt: skip
    assert model.history[0]["loss"] < 0.69, "it learns"  # 0.69 is the cross-entropy of guessing
    cells = sum(table.columns.width * len(table) for table in federation.tables.values())
    return {"stages": seen, "data": {"blocks": 4 * cells / GIB, "rows": float(meter.rows)}}


class Meter(Callback):
    """A callback that records the time and memory of the preparation and of an epoch."""

    def __init__(self, seen: dict[str, Stage]) -> None:
        self.seen, self.rows = seen, 0
        self.begin()

    def begin(self) -> None:
        """Start a stage."""
        self.before, self.began, self.worked = resident(), time.perf_counter(), time.process_time()
        reset_peak()

    def end(self, name: str) -> None:
        """Record a stage's seconds and GiB."""
        self.seen[name] = {
            "seconds": time.perf_counter() - self.began,
            "processor": time.process_time() - self.worked,
            "before": self.before / GIB,
            "peak": peak_since_reset() / GIB,
        }

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:  # noqa: ARG002
        """End the preparation: all parties know their training rows."""
        self.rows = rows
        self.end("prepare")
        self.begin()

    def on_epoch_end(self, record: dict[str, Any]) -> None:  # noqa: ARG002
        """End the epoch."""
        self.end("train an epoch")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stages"]:
        torch.set_num_threads(1)  # on a busy machine, two threads would wait long for each other
        print(json.dumps(stages(Path(sys.argv[2]), sys.argv[3])))
    else:
        main(quick=quick_asked(__doc__))
