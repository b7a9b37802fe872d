"""The commands for what a model of how columns come about does besides predicting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anyparty.cli.guard import screen, sentences
from anyparty.cli.options import AllowCode, Parties, RawCsv, Run, Tables, allowed, names

if TYPE_CHECKING:
    from anyparty.run.generative import Imputation

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
        int,
        typer.Option(
            "--samples",
            min=0,
            help="So many samples of each row instead of its mean: Gaussian ones, which may leave the observed range.",
        ),
    ] = 0,
    cells: Annotated[
        bool,
        typer.Option(
            "--cells",
            help="Fill in empty cells of numbers, in rows that it has, and not rows that it lacks; empty cells of "
            "categories stay empty.",
        ),
    ] = False,
    allow_code: AllowCode = None,
    raw_csv: RawCsv = False,
) -> None:
    """Fill in a party's columns for the rows that it lacks, by a run of FALSE-VFL.

    The file has all columns of the party's table, in its order; those that the model does not use are as they were.

    With --cells it has all rows of the table, in its order, too: it can stand in for the table.

    In Python: anyparty.run.generative.impute_run("RUN", "shop").table().
    """
    from anyparty.cli import show
    from anyparty.run.generative import impute_run
    from anyparty.run.runs import tables_from

    given = tables_from(table or [])
    show.check_out(out, run, given, raw_csv=raw_csv)
    code, console = allowed(allow_code), screen()
    filled = impute_run(run, party, given, names(parties), samples=samples, cells=cells, allow_code=code)
    frame = filled.table(samples=samples > 0)
    console.print(_told(filled), soft_wrap=True)
    show.keep(frame, out, console, raw_csv=raw_csv)


@sentences
def likelihood(
    run: Run,
    table: Tables = None,
    out: Out = None,
    parties: Parties = None,
    raw_csv: RawCsv = False,
    allow_code: AllowCode = None,
) -> None:
    """Say of every row how likely it is, by a run of FALSE-VFL: low is unlike the training rows, least likely first.

    In Python: anyparty.run.generative.log_likelihood_run("RUN").
    """
    from anyparty.cli import show
    from anyparty.run.generative import log_likelihood_run
    from anyparty.run.runs import tables_from

    given = tables_from(table or [])
    show.check_out(out, run, given, raw_csv=raw_csv)
    scores = log_likelihood_run(run, given, names(parties), allow_code=allowed(allow_code))
    console = screen()
    if scores["parties"].n_unique() > 1:
        console.print("compare rows of the same parties: others are measured over other columns", style="yellow")
    show.keep(scores.sort("log_likelihood", nulls_last=True), out, console, raw_csv=raw_csv)


def _told(filled: Imputation) -> str:
    """Return what was filled in, and what was not."""
    n, party, columns = len(filled.mean), filled.party, f"{len(filled.prepare.kinds)} columns"
    if filled.own is None:
        said = f"{n:,} rows that {party} lacks, {columns}"
        return said + (
            f"; {filled.unknown:,} of them stay empty: nobody who was asked has them" if filled.unknown else ""
        )
    said = f"{filled.gaps:,} empty cells of numbers filled in, in the {n:,} rows that {party} has, {columns}"
    if filled.left:
        said += f"; {filled.left:,} empty cells of categories stay empty: there a missing cell is a level of its own"
    if filled.blank:
        said += f"; {filled.blank:,} rows without any cell stay as they are: without --cells they are filled in"
    return said
