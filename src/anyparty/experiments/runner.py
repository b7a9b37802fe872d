"""Execute the runs of a suite in parallel: each run writes a record, finished runs are skipped, failures are listed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

import anyparty
from anyparty.core.storage import read_json, take, write_json
from anyparty.errors import AnypartyError, ConfigError, ModelError, nearest, warned
from anyparty.experiments.suite import SuiteRun

BACKENDS = ("dask", "ray")
REPLACED = "A worker stopped while some jobs were given to the executor"  # harmless: another worker gets the jobs
WARNINGS = "warned"  # the key of the warnings in a run's record


@dataclass
class SuiteResult:
    """The records of finished runs and the errors of failed runs, both by the key of the run."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run_all(
    runs: Sequence[SuiteRun],
    folder: Path,
    *,
    data_dir: Path | None = None,
    jobs: int = 1,
    backend: str | None = None,
    console: Console | None = None,
) -> SuiteResult:
    """Execute the runs that are not finished; return the records of finished runs and the errors of failed runs.

    Args:
        runs: the suite's runs.
        folder: folder of the records, which has one subfolder for each run.
        data_dir: folder of the data sets.
        jobs: number of parallel runs.
        backend: a joblib back end: "ray" or "dask" for a cluster, whose machines must all see ``folder``; by default
            processes of this machine.
        console: console for the progress bar; ``None`` shows none.

    Raises:
        ConfigError: another suite is running in this folder, or the back end is not installed.

    """
    lock = take(folder / ".lock", f"{folder}: another suite is running in this folder; wait for it, or choose another "
                                  f"folder (--folder)")  # fmt: skip
    try:
        return _run_all(runs, folder, data_dir, jobs, backend, console)
    finally:
        lock.release()


def _run_all(
    runs: Sequence[SuiteRun], folder: Path, data_dir: Path | None, jobs: int, backend: str | None,
    console: Console | None,
) -> SuiteResult:  # fmt: skip
    result, shown = finished_runs(runs, folder), set[str]()
    todo = [run for run in runs if run.key not in result.records]
    tasks = (joblib.delayed(attempt)(run, folder, data_dir) for run in todo)
    with _bar(console) as bar, joblib_backend(backend, jobs), warnings.catch_warnings():
        warnings.filterwarnings("ignore", REPLACED, UserWarning)
        line = bar.add_task("runs", total=len(runs), completed=len(result.records), failed=0, jobs=min(jobs, len(todo)))
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
        for key, record, error in parallel(tasks):
            if error is None:
                result.records[key] = record
                for sentence in record.get(WARNINGS, ()):
                    if sentence not in shown:
                        shown.add(sentence)
                        bar.console.print(Text(f"{key}: {sentence}", style="yellow"), soft_wrap=True)
            else:
                result.failed[key] = error
            bar.update(line, advance=1, failed=len(result.failed))
    return result


def attempt(run: SuiteRun, folder: Path, data_dir: Path | None) -> tuple[str, dict[str, Any], str | None]:
    """Execute a run and write its record; return the run's key, its record, and an error message or ``None``.

    An exception is returned as a message, so that it does not stop the remaining runs. Warnings are stored in the
    record, because a worker process must not write into the progress bar.
    """
    run_folder, sentences, state = folder / run.key, list[str](), source_hash()
    began = time.perf_counter()
    try:
        with warned(sentences.append):
            record = run.execute(data_dir)
        record |= {"wall_seconds": time.perf_counter() - began, "code": state}
        if sentences:
            record[WARNINGS] = sorted(set(sentences))
        write_json(run_folder / "record.json", record)
        (run_folder / "error.txt").unlink(missing_ok=True)  # remove the file of an earlier, failed attempt
    except AnypartyError as error:
        return run.key, {}, str(error)
    except Exception as error:  # an error in one run must not stop the suite's other runs
        with contextlib.suppress(OSError):  # on a full disk, this file cannot be written
            run_folder.mkdir(parents=True, exist_ok=True)
            (run_folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return run.key, {}, f"{type(error).__name__}: {error} (see {run_folder / 'error.txt'})"
    return run.key, json.loads(json.dumps(record)), None


@cache
def source_hash() -> str:
    """Return a hash of the package's source; two runs with equal hashes executed the same code."""
    digest, package = hashlib.sha256(), Path(anyparty.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def finished_runs(runs: Sequence[SuiteRun], folder: Path) -> SuiteResult:
    """Return the records of the finished runs, without executing a run."""
    return SuiteResult({run.key: record for run in runs if (record := stored_record(folder, run)) is not None})


def stored_record(folder: Path, run: SuiteRun) -> dict[str, Any] | None:
    """Return the stored record of a run, or ``None`` if it is absent or incomplete."""
    try:
        record = read_json(folder / run.key / "record.json")
    except ModelError:
        return None
    return record if run.is_complete(record) else None


def _bar(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[jobs]} at once, {task.fields[failed]} failed,", table_column=Column(overflow="fold")),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console or Console(quiet=True),
    )


@contextmanager
def joblib_backend(name: str | None, jobs: int) -> Iterator[None]:
    """Let joblib execute jobs on a back end during the body of the ``with`` statement.

    With the name ``None``, jobs are executed by processes of this machine. "dask" uses the scheduler at the address in
    the variable ``DASK_SCHEDULER_ADDRESS``, and "ray" the cluster at the address in ``RAY_ADDRESS``. If the variable is
    not set, ``jobs`` processes are started on this machine.

    Raises:
        ConfigError: the back end is unknown or not installed.
    """
    if name is None:
        with joblib.parallel_config(backend="loky"):
            yield
    elif name == "dask":
        with _dask(jobs):
            yield
    elif name == "ray":
        with _ray(jobs):
            yield
    else:
        raise ConfigError(f"no back end {name!r}{nearest(name, BACKENDS)}")


@contextmanager
def _dask(jobs: int) -> Iterator[None]:
    try:
        import dask  # noqa: PLC0415 - an extra
        from distributed import Client, LocalCluster  # noqa: PLC0415
    except ImportError:
        raise ConfigError("back end 'dask' is not installed: pip install 'anyparty[dask]'") from None
    if dask.config.get("scheduler-address", None):
        with Client(), joblib.parallel_config(backend="dask"):
            yield
        return
    with (
        LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        yield


@contextmanager
def _ray(jobs: int) -> Iterator[None]:
    try:
        import ray  # noqa: PLC0415 - not an extra: half a gigabyte
        from ray.util.joblib import register_ray  # noqa: PLC0415
    except ImportError:
        raise ConfigError("back end 'ray' is not installed: pip install ray") from None
    if not ray.is_initialized():
        ray.init(**({} if "RAY_ADDRESS" in os.environ else {"num_cpus": jobs, "include_dashboard": False}))
    register_ray()
    with joblib.parallel_config(backend="ray"):
        yield
