"""Running a suite: independent runs in parallel, one record each, what is done is skipped, what fails is named."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

import anyparty
from anyparty.errors import AnypartyError, ModelError, warned
from anyparty.experiments.cluster import cluster
from anyparty.experiments.suite import Run
from anyparty.storage import read_json, take, write_json

REPLACED = "A worker stopped while some jobs were given to the executor"  # joblib's; its job goes to another
WARNED = "warned"  # in a record: sentences


@dataclass
class Result:
    """What became of a suite's runs: records by key, errors by key."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run_all(
    runs: Sequence[Run],
    folder: Path,
    *,
    data_dir: Path | None = None,
    jobs: int = 1,
    backend: str | None = None,
    console: Console | None = None,
) -> Result:
    """Run what is not done yet; return all records.

    Args:
        runs: the suite's runs.
        folder: where records go, one folder each.
        data_dir: where data sets lie.
        jobs: how many runs at once.
        backend: a joblib back end: processes of this machine by default, "ray" or "dask" for a cluster's; there
            ``folder`` must be one that all of its machines see.
        console: where progress is shown; ``None`` shows none.

    Raises:
        ConfigError: another suite is at work in this folder, or the back end is not installed.

    """
    lock = take(folder / ".lock", f"{folder}: another suite is at work here; wait for it, or name another folder "
                                  f"(--folder)")  # fmt: skip
    try:
        return _run_all(runs, folder, data_dir, jobs, backend, console)
    finally:
        lock.release()


def _run_all(
    runs: Sequence[Run], folder: Path, data_dir: Path | None, jobs: int, backend: str | None, console: Console | None
) -> Result:
    result, said = done(runs, folder), set[str]()
    todo = [run for run in runs if run.key not in result.records]
    tasks = (joblib.delayed(attempt)(run, folder, data_dir) for run in todo)
    with _bar(console) as bar, cluster(backend, jobs), warnings.catch_warnings():
        warnings.filterwarnings("ignore", REPLACED, UserWarning)
        line = bar.add_task("runs", total=len(runs), completed=len(result.records), failed=0, jobs=min(jobs, len(todo)))
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
        for key, record, error in parallel(tasks):
            if error is None:
                result.records[key] = record
                for sentence in record.get(WARNED, ()):
                    if sentence not in said:
                        said.add(sentence)
                        bar.console.print(Text(f"{key}: {sentence}", style="yellow"), soft_wrap=True)
            else:
                result.failed[key] = error
            bar.update(line, advance=1, failed=len(result.failed))
    return result


def attempt(run: Run, folder: Path, data_dir: Path | None) -> tuple[str, dict[str, Any], str | None]:
    """Execute a run and write its record; an error becomes a sentence, so that it does not stop the others.

    What was warned of stands in the record: this may be a process of its own, which should not write into a bar.
    """
    home, said, state = folder / run.key, list[str](), code()
    began = time.perf_counter()
    try:
        with warned(said.append):
            record = run.execute(data_dir)
        record |= {"wall_seconds": time.perf_counter() - began, "code": state}
        if said:
            record[WARNED] = sorted(set(said))
        write_json(home / "record.json", record)
        (home / "error.txt").unlink(missing_ok=True)  # of an earlier attempt
    except AnypartyError as error:
        return run.key, {}, str(error)
    except Exception as error:  # a run must not take the suite with it
        with contextlib.suppress(OSError):  # the disk may be what is wrong
            home.mkdir(parents=True, exist_ok=True)
            (home / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return run.key, {}, f"{type(error).__name__}: {error} (see {home / 'error.txt'})"
    return run.key, json.loads(json.dumps(record)), None


@cache
def code() -> str:
    """Return what stands for the package's source, as it is now: two runs of one are of the same code."""
    digest, home = hashlib.sha256(), Path(anyparty.__file__).parent
    for path in sorted(home.rglob("*.py")):
        digest.update(str(path.relative_to(home)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def done(runs: Sequence[Run], folder: Path) -> Result:
    """Return the records of the runs that are done, without running any."""
    return Result({run.key: record for run in runs if (record := finished(folder, run)) is not None})


def finished(folder: Path, run: Run) -> dict[str, Any] | None:
    """Return a run's record if it is there and whole."""
    try:
        record = read_json(folder / run.key / "record.json")
    except ModelError:
        return None
    return record if run.whole(record) else None


def _bar(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[jobs]} at once, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console or Console(quiet=True),
    )
