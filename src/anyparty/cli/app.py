"""The commands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import anyparty
from anyparty.cli.guard import STOPPED, say, sentences
from anyparty.errors import UserError

app = typer.Typer(
    help="Vertical federated learning that works when data is missing.",
    epilog="Start with: anyparty demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The federation's settings.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.KEY=VALUE", help="Change a setting, e.g. train.epochs=5.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that `anyparty train` left.")]
Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="PARTY=FILE", help="A party's table; by default the run's own.")
]
Parties = Annotated[
    str | None, typer.Option("--parties", metavar="A,B", help="Who may take part; by default all that have a table.")
]


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Vertical federated learning that works when data is missing."""
    if version:
        typer.echo(f"anyparty {anyparty.__version__}")
        raise typer.Exit


@app.command()
@sentences
def train(
    config: Settings,
    changes: Changes = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="FOLDER", help="Where the run goes; by default runs/NAME beside CONFIG.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Train a model on all parties' tables (Python: Federation.train)."""
    from anyparty import config as settings
    from anyparty.run.federation import Federation
    from anyparty.run.runs import default_folder

    _look_for_modules_in(config.parent)
    resolved = settings.load(config, changes or [])
    folder = run or default_folder(config, resolved)
    try:
        federation = Federation.from_config(resolved)
        if not quiet:
            _print(federation.overlap)
        model = federation.train(folder=folder, resume=resume, progress=not quiet)
    except KeyboardInterrupt:
        say(_how_to_go_on(config, changes or [], run, folder), "yellow")
        raise typer.Exit(STOPPED) from None
    if quiet:
        return
    if resolved.train.test:
        _print(model.evaluate())
    else:
        typer.echo("No rows were held out (train.test = 0); score others: anyparty evaluate RUN --table party=file")
    typer.echo(f"The run is in {folder}")


@app.command()
@sentences
def predict(
    run: Run,
    table: Tables = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where answers go: .parquet or .csv.")
    ] = None,
    parties: Parties = None,
) -> None:
    """Predict every row from the parties that have it and may take part (Python: anyparty.run.runs.predict_run)."""
    from anyparty.cli.show import predictions_summary, write
    from anyparty.run.runs import predict_run, tables_from

    _look_for_modules_in(*run.absolute().parents[:2])
    check_suffix(out)
    answered = predict_run(run, tables_from(table or []), _names(parties))
    Console().print(predictions_summary(answered))
    frame = answered.frame()
    if out is None:
        typer.echo(str(frame.head(10)))
        typer.echo("Keep all of them with --out FILE.parquet or FILE.csv")
    else:
        write(frame, out)
        typer.echo(f"{len(frame):,} rows are in {out}")
