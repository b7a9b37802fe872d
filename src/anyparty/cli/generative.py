"""The commands for what a model of how columns come about does besides predicting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anyparty.cli.guard import sentences
from anyparty.cli.options import Parties, Run, Tables, look_for_modules_in, names

Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where they go: a .parquet or .csv file.")
]


@sentences
def impute(
    run: Run,
    party: Annotated[str, typer.Option("--party", help="Whose columns; they are for that party alone.")],
    table: Tables = None,
    out: Out = None,
    parties: Parties = None,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="So many samples of each row instead of its mean.")
    ] = 0,
    cells: Annotated[
        bool, typer.Option("--cells", help="Fill in empty cells of rows that it has, and not rows that it lacks.")
    ] = False,
) -> None:
    """Fill in a party's columns for the rows that it lacks, by a run of FALSE-VFL.

    In Python: anyparty.run.generative.impute_run("RUN", "shop").table().
    """
    from anyparty.cli import show
    from anyparty.run.generative import impute_run
    from anyparty.run.runs import tables_from

    look_for_modules_in(*run.absolute().parents[:2])
    given = tables_from(table or [])
    show.check_out(out, run, given)
    filled, console = impute_run(run, party, given, names(parties), samples=samples, cells=cells), Console()
    frame = filled.table(samples=samples > 0)
    n = len(filled.mean)
    what = (
        f"{filled.gaps:,} empty cells in the {n:,} rows that {party} has" if cells else f"{n:,} rows that {party} lacks"
    )
    console.print(f"{what}, {len(filled.prepare.kinds)} columns", markup=False)
    show.keep(frame, out, console)


@sentences
def likelihood(run: Run, table: Tables = None, out: Out = None, parties: Parties = None) -> None:
    """Say of every row how likely it is, by a run of FALSE-VFL: low is unlike the training rows, least likely first.

    In Python: anyparty.run.generative.log_likelihood_run("RUN").
    """
    from anyparty.cli import show
    from anyparty.run.generative import log_likelihood_run
    from anyparty.run.runs import tables_from

    look_for_modules_in(*run.absolute().parents[:2])
    given = tables_from(table or [])
    show.check_out(out, run, given)
    scores = log_likelihood_run(run, given, names(parties))
    show.keep(scores.sort("log_likelihood", nulls_last=True), out, Console())
