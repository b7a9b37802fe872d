"""Published experiments: the paper's settings and numbers as data, one command to run them, ours beside theirs.

    from anyparty.bench import run
    report = run("laser-table1", datasets=["hapt"], seeds=5, jobs=2)

``suite`` is what every suite has, ``suites`` those that ship as data, ``runner`` does their runs; a folder for each
kind of suite has its settings, its runs and its tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from anyparty.bench import runner, suites
from anyparty.bench.suite import Asked
from anyparty.errors import ConfigError
from anyparty.run.record import versions

__all__ = ["Report", "run"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a suite's runs came to.

    Attributes:
        cells: the table's numbers.
        markdown: the table.
        folder: where records, table.md, table.csv and plots are.
        failed: by run, why.

    """

    cells: Sequence[Any]
    markdown: str
    folder: Path
    failed: dict[str, str]


def run(
    name: str,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 5,
    jobs: int = 1,
    quick: bool = False,
    backend: str | None = None,
    device: str = "cpu",
    data_dir: Path | None = None,
    folder: Path | None = None,
    console: Console | None = None,
    so_far: bool = False,
) -> Report:
    """Run what is not done yet of a suite, and set ours beside the paper's.

    Args:
        name: the suite.
        datasets: some of its data sets; all without.
        methods: some of its methods.
        seeds: how many seeds, 0, 1, ...
        jobs: runs at once.
        quick: a small part of the work, to see that all of it works; its numbers mean nothing.
        backend: a joblib back end, "ray" or "dask"; processes of this machine without.
        device: where networks train, as torch names it: "cuda".
        data_dir: where data sets lie; ``ANYPARTY_DATA``, the cache and downloads without.
        folder: where records go; runs/bench/NAME without, NAME being the suite's, or of the one whose runs it shares.
        console: where progress is shown.
        so_far: run nothing: make the table of the runs that are done, also while the suite is at work.

    Raises:
        ConfigError: an unknown suite, data set, method or back end, a suite at work in the folder, or no run done yet.

    """
    suite = suites.load(name)
    asked = Asked(datasets=datasets, methods=methods, seeds=seeds, quick=quick, device=device)
    runs = list(suite.runs(asked))
    folder = folder or Path("runs") / "bench" / (f"{suite.home}-quick" if quick else suite.home)
    go = partial(runner.run_all, folder=folder, data_dir=data_dir, jobs=jobs, backend=backend, console=console)
    if so_far:
        go = partial(runner.done, folder=folder)
    result = go(runs)
    if so_far and not result.records:
        raise ConfigError(f"{folder}: none of the {len(runs)} runs is done yet; leave --so-far out to run them")
    if later := list(suite.later(result.records, asked)):
        runs, after = runs + later, go(later)
        result = runner.Result(result.records | after.records, result.failed | after.failed)
    about = {
        "command": f"`{_command(name, asked, jobs)}`",
        "runs": f"{len(result.records)} of {len(runs)} done, {len(result.failed)} failed",
        "training time": f"{sum(record['seconds'] for record in result.records.values()) / 60:.0f} minutes in all, "
        + ("" if so_far else f"{jobs} at once, ")
        + "one thread each",
        "made": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": ", ".join(f"{key} {value}" for key, value in versions().items()),
    }
    if result.failed:
        about["failed"] = "; ".join(f"{key} ({why})" for key, why in result.failed.items())
    page = suite.page(result.records, about)
    (folder / f"{suite.prefix}table.md").write_text(page.markdown, encoding="utf-8")
    (folder / f"{suite.prefix}table.csv").write_text(page.csv, encoding="utf-8")
    page.plot(folder / f"{suite.prefix}plot")
    return Report(cells=page.cells, markdown=page.markdown, folder=folder, failed=result.failed)


def _command(name: str, asked: Asked, jobs: int) -> str:
    words = ["anyparty", "bench", name]
    words += [word for each in asked.datasets or () for word in ("--dataset", each)]
    words += [word for each in asked.methods or () for word in ("--method", each)]
    words += ["--seeds", str(asked.seeds), "--jobs", str(jobs)] + (["--quick"] if asked.quick else [])
    return shlex.join(words + (["--device", asked.device] if asked.device != "cpu" else []))
