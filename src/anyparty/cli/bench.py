"""The command `bench`, which repeats experiments of papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyparty.cli.console import screen
from anyparty.cli.errors import EXIT_ERROR, print_error, with_errors
from anyparty.cli.options import AsJson, search_modules_in

QUICK_HELP = (
    "Train only briefly, to check that everything works: a tenth or a hundredth of the epochs, and two learning rates "
    "of a search. Data sets, methods and seeds stay; the numbers mean nothing."
)


@with_errors
def bench(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="laser-table1, laser-table3, laser-fig2, flex-table3, flex-one-rate, flex-table4, flex-fig2, "
            "flex-fig4, apc-fig5, apc-table2, apc-fig6, apc-fig8, apc-kept, false-tables or false-table18.",
        ),
    ],
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Some of the suite's data sets.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Some of the suite's methods; one of your own is module:name."),
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
    as_json: AsJson = False,
) -> None:
    """Run a published experiment and compare its numbers with the paper's.

    Finished runs are skipped, so the same command continues a suite that was stopped.
    In Python: anyparty.experiments.run("laser-table1", datasets=["hapt"]).
    """
    from anyparty.experiments import run

    console = screen(as_json=as_json)
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
