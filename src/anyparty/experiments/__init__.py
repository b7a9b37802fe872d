"""Published experiments: the paper's settings and numbers as data, one command to run them, ours beside theirs.

    from anyparty.experiments import run
    report = run("laser-table1", datasets=["hapt"], seeds=5, jobs=2)

``suite`` is what every suite has, ``suites`` those that ship as data, ``runner`` does their runs; a folder for each
kind of suite has its settings, its runs and its tables.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from anyparty.errors import ConfigError, RunError, some
from anyparty.experiments import runner, suites
from anyparty.experiments.suite import Asked, device_in
from anyparty.run.device import device_of
from anyparty.run.record import versions
from anyparty.storage import writing

__all__ = ["Report", "run"]

QUICK = "**Made with --quick, a small part of the work: these numbers mean nothing.**"
COUNTS = r" --(seeds|jobs) \d+"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a suite's runs came to.

    Attributes:
        cells: the table's numbers.
        markdown: the table.
        folder: where records, table.md, table.csv and plots are.
        failed: by run, why.
        replaced: the command of the page that this one took the place of, where that showed other data sets or methods;
            with ``--so-far`` it makes that page again.

    """

    cells: Sequence[Any]
    markdown: str
    folder: Path
    failed: dict[str, str]
    replaced: str = ""


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
        RunError: no run could be done; a page that is there stays.

    """
    suite = suites.load(name)
    asked = Asked(datasets=datasets, methods=methods, seeds=seeds, quick=quick, device=device)
    runs = list(suite.runs(asked))
    if backend is None and not so_far:
        device_of(device, "--device")
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
    if not result.records:
        told = [f"{some(key for key, each in result.failed.items() if each == why)}: {why}"
                for why in dict.fromkeys(result.failed.values())]  # fmt: skip
        raise RunError("\n".join([f"{folder}: none of the {len(runs)} runs could be done, and no page is made", *told]))
    about = {
        "command": f"`{_command(name, asked, jobs)}`",
        "runs": f"{len(result.records)} of {len(runs)} done" + ("" if so_far else f", {len(result.failed)} failed"),
        "training time": f"{sum(record['seconds'] for record in result.records.values()) / 60:.0f} minutes in all, "
        + ("" if so_far else f"{jobs} at once, ")
        + "one thread each",
        "made": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": _versions(result.records.values()),
    }
    if len(code := sorted({record["code"] for record in result.records.values() if "code" in record})) > 1:
        about["code"] = f"the runs are of {len(code)} states of the source: {', '.join(code)}"
    if set(devices := Counter(device_in(record) for record in result.records.values())) != {"cpu"}:
        about["runs by device"] = ", ".join(f"{n} on {name}" for name, n in sorted(devices.items()))
    if result.failed:
        about["failed"] = "; ".join(f"{key} ({why})" for key, why in result.failed.items())
    page, place = suite.page(result.records, about), folder / f"{suite.prefix}table.md"
    title, _, tables = page.markdown.partition("\n")
    markdown = f"{title}\n\n{QUICK}\n{tables}" if quick else page.markdown
    replaced = _other(place, about["command"])
    for path, text in ((place, markdown), (place.with_suffix(".csv"), page.csv)):
        with writing(path) as beside:
            beside.write_text(text, encoding="utf-8")
    page.plot(folder / f"{suite.prefix}plot")
    return Report(cells=page.cells, markdown=markdown, folder=folder, failed=result.failed, replaced=replaced)


def _versions(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the versions that the runs were done with, where there are several all of them."""
    found = [record["versions"] for record in records if "versions" in record] or [versions()]
    return "; and ".join(sorted({", ".join(f"{key} {value}" for key, value in each.items()) for each in found}))


def _other(page: Path, command: str) -> str:
    """Return the command that a page is of, if it shows other data sets or methods than this one; else nothing."""
    before = re.search(r"^- command: `(.+)`$", page.read_text(encoding="utf-8") if page.exists() else "", re.MULTILINE)
    if before is None or re.sub(COUNTS, "", before[1]) == re.sub(COUNTS, "", command.strip("`")):
        return ""
    return before[1]


def _command(name: str, asked: Asked, jobs: int) -> str:
    words = ["anyparty", "bench", name]
    words += [word for each in asked.datasets or () for word in ("--dataset", each)]
    words += [word for each in asked.methods or () for word in ("--method", each)]
    words += ["--seeds", str(asked.seeds), "--jobs", str(jobs)] + (["--quick"] if asked.quick else [])
    return shlex.join(words + (["--device", asked.device] if asked.device != "cpu" else []))
