"""The command that shows what runs left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyparty.cli.guard import screen, sentences
from anyparty.cli.options import AllowCode, allowed


@sentences
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, the folder of a federation, or one run's record.json of several parties.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Where the page goes.", show_default="RUN/report, or report"
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="What runs and sets of parties are scored by.", show_default="accuracy or rmse"),
    ] = None,
    model: Annotated[
        bool,
        typer.Option(
            "--model/--no-model",
            help="Also load the models and score every set of parties, if the runs' tables are at hand.",
        ),
    ] = False,
    allow_code: AllowCode = None,
) -> None:
    """Show what crossed, and write a page of all that runs left: one file, with its figures beside it.

    The page is made from records alone, unless --model asks for more.

    In Python: anyparty.report.page.write(["RUN"], "FOLDER", model=True).
    """
    from anyparty.report import costs, ledgers, page, records

    console, code = screen(), allowed(allow_code)
    alone = runs[0] if len(runs) == 1 and runs[0].is_dir() else None
    folder = out or (Path("report") if alone is None else alone / "report")
    with console.status("writing the page"):  # first: whoever reads the tables may stop before their end
        written = page.write(runs, folder, metric=metric, model=model, allow_code=code)
    for run in records.find(runs):
        console.print(ledgers.render(run))
        for table in costs.tables(run):
            console.print(table)
    console.print(f"\nThe page is {written}, its figures are in {written.parent / 'figures'}",
                  soft_wrap=True)  # fmt: skip
