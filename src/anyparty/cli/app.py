"""The commands."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import anyparty
from anyparty.cli.bench import bench
from anyparty.cli.doctor import doctor
from anyparty.cli.encoder import inspect_encoder
from anyparty.cli.federate import federate, party
from anyparty.cli.generative import impute, likelihood
from anyparty.cli.guard import STOPPED, say, screen, sentences
from anyparty.cli.options import (
    AllowCode,
    Parties,
    RawCsv,
    Run,
    Tables,
    allowed,
    find_modules_in,
    folder_named,
    names,
    own_code,
)
from anyparty.cli.report import report
from anyparty.cli.serve import serve
from anyparty.errors import ConfigError

app = typer.Typer(
    epilog="Start with: anyparty demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The federation's settings.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.KEY=VALUE", help="Change a setting, e.g. train.epochs=5.")
]


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
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
        Path | None,
        typer.Option(
            "--run",
            metavar="FOLDER",
            help="Where the run goes.",
            show_default="runs/NAME beside CONFIG",
            parser=folder_named,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and warnings.")] = False,
    allow_code: AllowCode = None,
) -> None:
    """Train a model on all parties' tables.

    A settings file of your own may name your own code, which is loaded; the settings in a run's folder may not.

    In Python: Federation.from_config(config.load("CONFIG.toml")).train(folder="RUN").
    """
    from anyparty import config as settings
    from anyparty.run.federation import Federation
    from anyparty.run.runs import default_folder
    from anyparty.run.simulate import check

    resolved, console = settings.load(config, changes or [], allow_code=allow_code or []), screen(quiet=quiet)
    own_code(resolved, config.parent, lambda said: console.print(said, soft_wrap=True))
    folder = run or default_folder(config, resolved)
    if not resume and config.resolve() == (folder / "config.toml").resolve():
        raise ConfigError(f"{config}: the run's own settings would take the place of this file; name another folder "
                          f"(--run)")  # fmt: skip
    try:
        check(resolved)
        federation = Federation.from_config(resolved)
        console.print(replace(federation.overlap, notes=()).render())  # they are warnings of training
        if (remarks := federation.remarks) is not None:
            console.print(remarks)
        console.print(federation.predicted(), soft_wrap=True)
        model = federation.train(folder=folder, resume=resume, progress=not quiet)
    except KeyboardInterrupt:
        say(_how_to_go_on(config, changes or [], run, folder), "yellow")
        raise typer.Exit(STOPPED) from None
    if not model.task.outputs:
        console.print("\nNo row has a label: the model knows how columns come about, and predicts nothing.")
    elif model.test_rows:
        console.print("\nOn test rows, which training never saw:")
        console.print(model.evaluate().render())
    else:
        of = f"train.test = {resolved.train.test:g} of {int(federation.labeled.sum()):,} labelled rows"
        console.print(f"\nNo rows were held out ({of}): score others with anyparty evaluate RUN --table ...",
                      soft_wrap=True)  # fmt: skip
    console.print(f"\nThe run is in {folder}", soft_wrap=True)


@app.command()
@sentences
def predict(
    run: Run,
    table: Tables = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where answers go: a .parquet or .csv file.")
    ] = None,
    parties: Parties = None,
    allow_code: AllowCode = None,
    raw_csv: RawCsv = False,
) -> None:
    """Predict every row, from the parties that have it and may take part.

    Rows are in the order of the leading party's table; those that it lacks follow, in that of the others' tables.

    In Python: anyparty.run.runs.predict_run("RUN", {"bank": "new.csv"}, ["bank"]).
    """
    from anyparty.cli import show
    from anyparty.run.runs import predict_run, tables_from

    given = tables_from(table or [])
    show.check_out(out, run, given, raw_csv=raw_csv)
    answered = predict_run(run, given, names(parties), allow_code=allowed(allow_code))
    console = screen()
    console.print(show.summary(answered))
    show.keep(answered.frame(), out, console, raw_csv=raw_csv)


@app.command()
@sentences
def evaluate(run: Run, table: Tables = None, parties: Parties = None, allow_code: AllowCode = None) -> None:
    """Score a run on its own held-out test rows, or on the labelled rows of other tables.

    In Python: anyparty.run.runs.evaluate_run("RUN").
    """
    from anyparty.run.runs import evaluate_run, tables_from

    scored = evaluate_run(run, tables_from(table or []), names(parties), allow_code=allowed(allow_code))
    screen().print(scored.render())


@app.command()
@sentences
def align(config: Settings, changes: Changes = None) -> None:
    """Show who has which rows, how columns were read, and what is predicted, without training.

    In Python: the overlap, reading and predicted() of Federation.from_config(config.load("CONFIG.toml")).
    """
    from anyparty import config as settings
    from anyparty.run.federation import Federation

    federation = Federation.from_config(settings.load(config, changes or []))
    console = screen()
    console.print(federation.overlap.render(), federation.reading, sep="\n")
    console.print(federation.predicted(), soft_wrap=True)


@app.command()
@sentences
def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show one's parameters and messages; your own is module:name."),
    ] = None,
) -> None:
    """Show all methods and what each can do.

    In Python: anyparty.METHODS, and anyparty.method("laser").can.
    """
    from anyparty.cli import show

    if name is not None and ":" in name:
        find_modules_in()
    screen().print(show.all_methods() if name is None else show.one_method(name))


@app.command()
@sentences
def demo(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where its files go.")] = Path("anyparty-demo"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds each method is trained with.")] = 5,
) -> None:
    """Train all methods on a small medical data set with gaps, and compare them.

    In Python: anyparty.demo.run("anyparty-demo").
    """
    from anyparty import demo as study

    study.run(folder, seeds=seeds, console=screen())


app.command()(bench)
app.command()(doctor)
app.command()(report)
app.command()(serve)
app.command()(impute)
app.command()(likelihood)
app.command()(inspect_encoder)
app.add_typer(federate, name="federate")
app.add_typer(party, name="party")


def _how_to_go_on(config: Path, changes: list[str], run: Path | None, folder: Path) -> str:
    """Return the command that goes on with a run that was stopped."""
    if not (folder / "record.json").exists():
        return "Stopped before training began; nothing was kept."
    words = ["anyparty", "train", str(config)]
    words += [word for change in changes for word in ("--set", change)]
    words += ["--run", str(run)] if run else []
    return f"Stopped. Go on where it was with: {shlex.join(words)} --resume"
