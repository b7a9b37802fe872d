"""``run``: repeat a published experiment (a suite), and write a page with its results beside the paper's."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from anyparty.artifacts.record import versions
from anyparty.core.storage import writing
from anyparty.errors import ConfigError, RunError, some
from anyparty.experiments import missing_blocks_page, one_exchange_page, runner, schedules_page, suites
from anyparty.experiments.page import SuitePage
from anyparty.experiments.results import Cell, Records
from anyparty.experiments.suite import Selection, Suite, SuiteRun, training_device
from anyparty.training.loop import device_of

PAGES: Mapping[str, Any] = {
    "missing_blocks": missing_blocks_page.page,
    "one_exchange": one_exchange_page.page,
    "schedules": schedules_page.page,
}
QUICK = "**Made with --quick ({}): these numbers mean nothing.**"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a suite.

    Attributes:
        cells: the aggregated runs: one cell for each number in the tables.
        markdown: the page with the tables.
        folder: folder of the records, the page and the plots.
        failed: the error of each failed run, with the key of the run.
        page: the file of the page; its CSV and its plots are in the same folder.  Each selection of data sets, methods
            and mechanisms of missing blocks has a page of its own.

    """

    cells: Sequence[Cell]
    markdown: str
    folder: Path
    failed: dict[str, str]
    page: Path = Path("table.md")


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
    missing: Sequence[str] | None = None,
) -> Report:
    """Execute the runs of a suite that are not finished, and compare the results with the paper's.

    Args:
        name: name of the suite.
        datasets: some of the suite's data sets; by default all that are not heavy.
        methods: some of the suite's methods; by default all.  In suites of missing blocks, also your own methods:
            "module:name".
        seeds: number of seeds; the seeds are 0, 1, ...
        jobs: number of parallel runs.
        quick: train only briefly, to check that everything works; the numbers mean nothing.  The page states by how
            much the training is shortened.  Data sets, methods and seeds are not reduced.
        backend: a joblib back end, "ray" or "dask"; by default processes of this machine.
        device: device on which networks train, by its name in PyTorch, such as "cuda".
        data_dir: folder of the data sets. By default they are read from the folder in the environment variable
            ``ANYPARTY_DATA`` or from the cache, or they are downloaded.
        folder: folder of the records; by default runs/bench/NAME with the name of the suite. If the suite shows the
            runs of another suite, NAME is the name of that suite.
        console: console for the progress bar; ``None`` shows none.
        so_far: whether to execute nothing, and only write the page of the finished runs. This is possible while another
            process executes the suite.
        missing: some of the suite's mechanisms, such as "0.1", which determine the missing blocks in training; by
            default all.

    Returns:
        The aggregated results, and the files that were written.

    Raises:
        ConfigError: the suite, data set, method or back end is unknown, another suite is running in the folder, or
            ``so_far`` finds no finished run.
        RunError: all runs failed.  A page of an earlier call is kept.

    """
    suite = suites.load(name).with_own_methods([method for method in methods or () if ":" in method])
    selection = Selection(datasets=datasets, methods=methods, seeds=seeds, quick=quick, device=device, missing=missing)
    runs = list(suite.runs(selection))
    if backend is None and not so_far:
        device_of(device, "--device")
    folder = folder or Path("runs") / "bench" / (f"{suite.folder_name}-quick" if quick else suite.folder_name)

    def execute(some_runs: Sequence[SuiteRun]) -> runner.SuiteResult:
        if so_far:
            return runner.finished_runs(some_runs, folder)
        return runner.run_all(some_runs, folder, data_dir=data_dir, jobs=jobs, backend=backend, console=console)

    result = execute(runs)
    if so_far and not result.records:
        raise ConfigError(f"{folder}: none of the {len(runs)} runs is finished; leave out --so-far to run them")
    if later := list(suite.later(result.records, selection)):
        runs, after = runs + later, execute(later)
        result = runner.SuiteResult(result.records | after.records, result.failed | after.failed)
    if not result.records:
        reasons = [f"{some(key for key, each in result.failed.items() if each == why)}: {why}"
                   for why in dict.fromkeys(result.failed.values())]  # fmt: skip
        raise RunError("\n".join([f"{folder}: all {len(runs)} runs failed, and no page is written", *reasons]))
    command = _command(name, selection, jobs)
    run_facts = {"command": f"`{command}`", **_facts(result, len(runs), None if so_far else jobs)}
    page, path = render(suite, result.records, run_facts), folder / f"{suite.prefix}table{_suffix(selection)}.md"
    title, _, tables = page.markdown.partition("\n")
    markdown = f"{title}\n\n{QUICK.format(suite.quick_cuts)}\n{tables}" if quick else page.markdown
    for file, text in ((path, markdown), (path.with_suffix(".csv"), page.csv)):
        with writing(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
    page.plot(path.with_name(path.stem.replace("table", "plot", 1)))
    return Report(cells=page.cells, markdown=markdown, folder=folder, failed=result.failed, page=path)


def _facts(result: runner.SuiteResult, total: int, jobs: int | None) -> dict[str, str]:
    """Return facts about the runs, by name, for the last lines of the page.

    ``jobs`` is the number of parallel runs, or ``None`` if this call executed no run.
    """
    records: Records = result.records
    minutes = sum(record["seconds"] for record in records.values()) / 60
    at_once = "" if jobs is None else f"{jobs} at once, "
    failed = "" if jobs is None else f", {len(result.failed)} failed"
    used = [record["versions"] for record in records.values() if "versions" in record] or [versions()]
    run_facts = {
        "runs": f"{len(records)} of {total} done{failed}",
        "training time": f"{minutes:.0f} minutes in all, {at_once}one thread each",
        "made": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": "; and ".join(sorted({", ".join(f"{key} {value}" for key, value in each.items())
                                          for each in used})),
    }  # fmt: skip
    if len(code := sorted({record["code"] for record in records.values() if "code" in record})) > 1:
        run_facts["code"] = f"the runs executed {len(code)} versions of the source: {', '.join(code)}"
    if set(devices := Counter(training_device(record) for record in records.values())) != {"cpu"}:
        run_facts["runs by device"] = ", ".join(f"{n} on {name}" for name, n in sorted(devices.items()))
    if result.failed:
        run_facts["failed"] = "; ".join(f"{key} ({why})" for key, why in result.failed.items())
    return run_facts


def _suffix(selection: Selection) -> str:
    """Return a suffix for the page's file name that identifies the selected data sets, methods and mechanisms.

    The suffix is empty without a selection.
    """
    chosen = [*(selection.datasets or ()), *(selection.methods or ()), *(selection.missing or ())]
    return "".join(f"-{re.sub(r'[^0-9A-Za-z_]+', '-', each)}" for each in chosen)


def _command(name: str, selection: Selection, jobs: int) -> str:
    arguments = ["anyparty", "bench", name]
    arguments += [word for each in selection.datasets or () for word in ("--dataset", each)]
    arguments += [word for each in selection.methods or () for word in ("--method", each)]
    arguments += [word for each in selection.missing or () for word in ("--missing", each)]
    arguments += ["--seeds", str(selection.seeds), "--jobs", str(jobs)] + (["--quick"] if selection.quick else [])
    return shlex.join(arguments + (["--device", selection.device] if selection.device != "cpu" else []))


def render(suite: Suite, records: Records, run_facts: Mapping[str, str]) -> SuitePage:
    """Return the page of a suite.

    Args:
        suite: the suite.
        records: a mapping from the key of each finished run to its record.
        run_facts: facts on how the page was made, for its last lines.

    """
    found: SuitePage = PAGES[suite.kind](suite, records, run_facts)
    return found
