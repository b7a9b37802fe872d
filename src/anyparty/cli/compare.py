"""The commands that train many runs: comparisons of methods, sweeps over settings, and experiments of papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyparty.cli.console import Screen, screen
from anyparty.cli.errors import EXIT_ERROR, print_error, with_errors
from anyparty.cli.options import (
    AllowCode,
    AsJson,
    Changes,
    IdColumn,
    LabelColumn,
    Sources,
    announce_user_code,
    search_modules_in,
    settings_from,
)


@with_errors
def compare(
    sources: Sources,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", metavar="A,B", help="Methods; one of your own is module:name. The first is the baseline."
        ),
    ],
    id: IdColumn = None,  # noqa: A002 - the name of the option
    label: LabelColumn = None,
    changes: Changes = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds.")] = 5,
    missing: Annotated[
        str, typer.Option("--missing", metavar="P,P", help="Shares of each party's rows to remove, from 0 to below 1.")
    ] = "0,0.3,0.5",
    metric: Annotated[
        str | None, typer.Option("--metric", help="Metric of the tables.", show_default="accuracy or rmse")
    ] = None,
    tune: Annotated[
        int, typer.Option("--tune", min=0, help="Configurations to try for each method on validation rows; 0 for none.")
    ] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of parallel runs.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="Folder of the records and the page.", show_default="runs/compare-NAME beside CONFIG"
        ),
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="A joblib back end: ray or dask.")] = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Train several methods on the same rows, with the same rows missing at parties, and compare their test scores.

    Give tables, `anyparty compare bank.csv shop.csv --label default --methods laser,plug`, or a settings file.

    Finished runs are skipped, so the same command continues a comparison that was stopped.

    In Python: anyparty.compare("CONFIG.toml", ["laser", "plug"], seeds=5).
    """
    from anyparty.errors import ConfigError
    from anyparty.experiments.compare import compare as run

    console = screen(as_json=as_json)
    resolved, config = settings_from(sources, id, label, changes or [], allow_code or [])
    announce_user_code(resolved, config.parent, lambda text: console.print(text, soft_wrap=True))
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if any(":" in name for name in names):
        search_modules_in(config.parent.absolute())
    try:
        rates = [float(rate) for rate in missing.split(",")]
    except ValueError:
        raise ConfigError(f"--missing {missing}: expected numbers, such as 0,0.3,0.5") from None
    out = folder or config.parent / "runs" / f"compare-{config.stem}"
    found = run(resolved, names, seeds=seeds, missing=rates, metric=metric, tune=tune, folder=out, jobs=jobs,
                backend=backend, console=screen(stderr=True))  # fmt: skip
    console.print(found)
    console.print(f"The page is {out / 'index.html'}; scores.csv, differences.csv and plot.png are beside it.",
                  soft_wrap=True)  # fmt: skip
    console.result(lambda: {
        "metric": found.metric, "scores": found.frame(by=("missing", "present")).to_dicts(),
        "differences": found.paired().to_dicts(), "failed": found.failed, "page": out / "index.html",
    })  # fmt: skip
    if found.failed:
        raise typer.Exit(EXIT_ERROR)


@with_errors
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The federation's settings, and those to vary.")],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of parallel runs.")] = 1,
    if_done: Annotated[
        str, typer.Option("--if-done", help="What to do with a finished run: skip, repeat or error.")
    ] = "skip",
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder of the runs.", show_default="SWEEP beside SWEEP.toml")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the frame of all runs, .parquet or .csv.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a federation with many settings: a grid, random settings, or settings that Optuna chooses.

    The same command continues a sweep that was stopped or killed: finished runs are not repeated. On a second machine
    that sees the folder, the same command shares the work.

    In Python: anyparty.experiments.sweep.sweep("SWEEP.toml", jobs=2), and anyparty.runs.frame("SWEEP/*").
    """
    from anyparty.cli.console import render_head
    from anyparty.core.display import write_frame
    from anyparty.errors import ConfigError
    from anyparty.experiments.sweep import load_sweep
    from anyparty.experiments.sweep import sweep as run

    if if_done not in {"skip", "repeat", "error"}:
        raise ConfigError(f"--if-done {if_done}: write skip, repeat or error")
    settings, _ = load_sweep(file)
    search_modules_in(settings.settings.parent.absolute())
    found = run(file, jobs=jobs, if_done=if_done, folder=folder)  # type: ignore[arg-type]
    console = screen(as_json=as_json)
    counts = found["status"].value_counts().iter_rows()
    console.print(", ".join(f"{count} runs {status}" for status, count in counts))
    columns = [name for name in found.columns if name not in {"error", "epochs", "best_epoch", "bytes_sent"}]
    score = next((name for name in columns if name.startswith("validation.")), None)
    shown = found.select(columns[:8] + ([score] if score and score not in columns[:8] else []))
    console.print(render_head(shown.sort(score) if score else shown))
    if out is not None:
        write_frame(found, out)
    place = folder or file.with_suffix("")
    console.print(f"The runs are in {place}", soft_wrap=True)
    console.result(lambda: {"folder": place, "out": out, "runs": found.to_dicts()})


QUICK_HELP = (
    "Train only briefly, to check that everything works: a tenth or a hundredth of the epochs, and two learning rates "
    "of a search. Data sets, methods and seeds stay; the numbers mean nothing."
)


@with_errors
def bench(
    suite: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUITE]",
            help="laser-table1, laser-table3, laser-fig2, flex-table3, flex-one-rate, flex-table4, flex-fig2, "
            "flex-fig4, apc-fig5, apc-table2, apc-fig6, apc-fig8, apc-kept, false-tables or false-table18.",
        ),
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Some of the suite's data sets.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="Some of the suite's methods; one of your own is module:name, in laser-... and false-..."
        ),
    ] = None,
    missing: Annotated[
        list[str] | None, typer.Option("--missing", metavar="P", help="Some of the suite's missing rates in training.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds.")] = 5,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of parallel runs.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder of the data sets; by default ANYPARTY_DATA, the cache, downloads."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder of the records.", show_default="runs/bench/SUITE")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="A joblib back end: ray or dask.")] = None,
    device: Annotated[str, typer.Option("--device", help="Device on which networks train: cpu or cuda.")] = "cpu",
    so_far: Annotated[
        bool,
        typer.Option("--so-far", help="Run nothing; write the table of the finished runs."),
    ] = False,
    shows_list: Annotated[
        bool,
        typer.Option("--list", help="Run nothing; list every table and figure of the papers, and what repeats it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and compare its numbers with the paper's.

    Finished runs are skipped, so the same command continues a suite that was stopped.
    In Python: anyparty.experiments.run("laser-table1", datasets=["hapt"]).
    """
    console = screen(as_json=as_json)
    if shows_list:
        list_published(console)
        return
    if suite is None:
        from anyparty.errors import ConfigError

        raise ConfigError("name a suite, such as `anyparty bench laser-table1`, or list all with --list")
    from anyparty.experiments import run

    if any(":" in name for name in method or ()):
        search_modules_in()
    report = run(
        suite, datasets=dataset, methods=method, seeds=seeds, jobs=jobs, quick=quick,
        missing=missing, backend=backend, device=device, data_dir=data_dir, folder=folder,
        console=screen(stderr=True), so_far=so_far,
    )  # fmt: skip
    console.print(report.markdown, soft_wrap=True)
    console.print(f"The page is {report.page}; its CSV, the plots and the records are beside it.", soft_wrap=True)
    console.result(lambda: {
        "folder": report.folder, "page": report.page, "cells": [vars(cell) for cell in report.cells],
        "failed": report.failed,
    })  # fmt: skip
    for key, why in report.failed.items():
        print_error(f"{key} failed: {why}")
    if report.failed:
        raise typer.Exit(EXIT_ERROR)


def list_published(console: Screen) -> None:
    """Print every table and figure of the papers, with the suites that repeat it, or the reason why none does."""
    from rich.table import Table

    from anyparty.experiments.published import published_entries

    entries, table = published_entries(), Table("paper", "place", "content", "suites", "outcome")
    for each in entries:
        table.add_row(each.paper, each.place, each.shows, ", ".join(each.suites), each.outcome.replace("`", ""))
    console.print(table)
    console.result(lambda: {"entries": [each.model_dump() for each in entries]})
