"""The application of the command line: it collects all commands, and defines the commands that train and predict."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import anyparty
from anyparty.cli.compare import bench, compare, sweep
from anyparty.cli.console import screen
from anyparty.cli.errors import EXIT_ERROR, EXIT_STOPPED, print_error, with_errors, with_errors_at_once
from anyparty.cli.federate import federate, party
from anyparty.cli.init import init
from anyparty.cli.model_commands import attack, impute, inspect_encoder, likelihood, report, serve
from anyparty.cli.options import (
    AllowCode,
    AsJson,
    Changes,
    HomeExpandingGroup,
    IdColumn,
    LabelColumn,
    OutFile,
    Parties,
    RawCsv,
    RunFolder,
    Sources,
    Tables,
    allowed_modules,
    announce_default_method,
    announce_user_code,
    folder_option,
    ids_found,
    party_names,
    search_modules_in,
    settings_from,
)
from anyparty.errors import ConfigError

LEVEL_STYLES = {"fine": "green", "note": "yellow", "fix": "red"}

app = typer.Typer(
    cls=HomeExpandingGroup,
    epilog="Start with: anyparty demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Vertical federated learning that works when data is missing."""
    if version:
        typer.echo(f"anyparty {anyparty.__version__}")
        raise typer.Exit


@app.command()
@with_errors
def train(
    sources: Sources,
    id: IdColumn = None,  # noqa: A002 - the option is called --id
    label: LabelColumn = None,
    changes: Changes = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="FOLDER",
            help="Folder of the run.",
            show_default="runs/NAME beside CONFIG",
            parser=folder_option,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and warnings.")] = False,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on the parties' tables: `anyparty train bank.csv shop.csv --label default`, or with settings.

    `anyparty train CONFIG.toml` reads the tables' names from a settings file. If a settings file refers to user-defined
    code, the code is loaded. If the settings file is in a run's folder, its code is loaded only with --allow-code.

    In Python: Federation.from_config(config.load("CONFIG.toml")).train(folder="RUN").
    """
    from anyparty.api.federation import Federation
    from anyparty.api.runs import default_folder
    from anyparty.api.training_run import check
    from anyparty.artifacts.recorder import check_folder
    from anyparty.core.display import doing, showing_steps

    console = screen(quiet=quiet, as_json=as_json)
    resolved, config = settings_from(sources, id, label, changes or [], allow_code or [])
    announce_user_code(resolved, config.parent, lambda text: console.print(text, soft_wrap=True))
    announce_default_method(resolved, config, lambda text: console.print(text, soft_wrap=True, markup=False))
    folder = run or default_folder(config, resolved)
    if not resume and config.resolve() == (folder / "config.toml").resolve():
        raise ConfigError(f"{config}: the run's settings would overwrite this file; name another folder (--run)")
    resume_arguments = [
        *sources,
        *_options("--id", *(id or [])),
        *_options("--label", label),
        *_options("--set", *(changes or [])),
    ]
    resume_arguments += _options("--run", run)
    check_folder(folder, resume=resume)
    try:
        check(resolved)
        with showing_steps(screen(stderr=True, quiet=quiet, as_json=as_json)):
            federation = Federation.from_config(resolved)
            doing("aligning the rows")
            overlap = replace(federation.overlap, notes=())  # training shows the notes as warnings
            task = federation.predicted()
        if not config.exists():
            console.print(ids_found(resolved), soft_wrap=True)
        console.print(overlap.render())
        console.print(task, soft_wrap=True)
        model = federation.train(folder=folder, resume=resume, progress=not quiet)
    except KeyboardInterrupt:
        print_error(_resume_hint(resume_arguments, folder), "yellow")
        raise typer.Exit(EXIT_STOPPED) from None
    scored = model.evaluate() if model.task.outputs and model.test_rows else None
    if not model.task.outputs:
        console.print("\nNo row has a label: the model describes the columns, but predicts nothing.")
    elif scored is not None:
        console.print("\nScores on test rows, which were not used in training:")
        console.print(scored.render())
    else:
        of = f"train.test = {resolved.train.test:g} of {int(federation.labeled.sum()):,} labelled rows"
        console.print(f"\nNo rows were held out ({of}): score others with anyparty evaluate RUN --table ...",
                      soft_wrap=True)  # fmt: skip
    console.print(f"\nThe run is in {folder}\nNext:    anyparty report {shlex.quote(str(folder))}", soft_wrap=True)
    console.result(lambda: {
        "run": folder, "task": federation.predicted(), "overlap": federation.overlap.to_json(),
        "evaluation": scored and scored.to_json(),
    })  # fmt: skip


@app.command()
@with_errors
def predict(
    run: RunFolder,
    table: Tables = None,
    out: OutFile = None,
    parties: Parties = None,
    allow_code: AllowCode = None,
    raw_csv: RawCsv = False,
    as_json: AsJson = False,
) -> None:
    """Predict every row from the columns of the selected parties that have the row.

    The predictions are in the order of the active party's table. Predictions of rows that this table lacks follow, in
    the order of the other parties' tables.

    In Python: anyparty.api.runs.predict_run("RUN", {"bank": "new.csv"}, ["bank"]).
    """
    from anyparty.api.runs import predict_run, tables_from
    from anyparty.cli.console import (
        check_output_of_run,
        predictions_to_json,
        print_or_write,
        render_predictions,
        rows_or_file,
    )

    tables = tables_from(table or [])
    check_output_of_run(out, run, tables, raw_csv=raw_csv)
    answered = predict_run(run, tables, party_names(parties), allow_code=allowed_modules(allow_code))
    console, frame = screen(as_json=as_json), answered.frame()
    console.print(render_predictions(answered))
    print_or_write(frame, out, console, raw_csv=raw_csv)
    console.result(lambda: {**predictions_to_json(answered), **rows_or_file(frame, out)})


@app.command()
@with_errors
def evaluate(
    run: RunFolder,
    table: Tables = None,
    parties: Parties = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Score a run's model on the run's held-out test rows, or on the labelled rows of the tables given with --table.

    In Python: anyparty.api.runs.evaluate_run("RUN").
    """
    from anyparty.api.runs import evaluate_run, tables_from

    scored = evaluate_run(run, tables_from(table or []), party_names(parties), allow_code=allowed_modules(allow_code))
    console = screen(as_json=as_json)
    console.print(scored.render())
    console.result(scored.to_json)


@app.command()
@with_errors
def align(
    sources: Sources,
    id: IdColumn = None,  # noqa: A002 - the option is called --id
    label: LabelColumn = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Show how files were read, which party has which rows, the types of columns, and the task, without training.

    In Python: the files, overlap, reading and predicted() of Federation.from_config(config.load("CONFIG.toml")).
    """
    from anyparty.api.federation import Federation
    from anyparty.core.display import doing, showing_steps
    from anyparty.tables import summary

    console = screen(as_json=as_json)
    with showing_steps(screen(stderr=True, as_json=as_json)):
        doing("reading the settings")
        federation = Federation.from_config(settings_from(sources, id, label, changes or [])[0])
        doing("aligning the rows")
        overlap = federation.overlap
        doing("examining the columns")
        shown = [federation.files, overlap.render(), federation.reading]
        task = federation.predicted()
    console.print(*shown, sep="\n")
    console.print(task, soft_wrap=True)
    console.result(lambda: {
        "overlap": overlap.to_json(),
        "columns": [{"party": table.party, **vars(column)} for table in federation.tables.values()
                    for column in summary.columns(table)],
        "task": task,
    })  # fmt: skip


@app.command()
@with_errors_at_once
def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Show this method's parameters and messages. A method of your own is module:name."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show all methods and their capabilities, or one method in detail.

    In Python: anyparty.METHODS, and anyparty.method("laser").can.
    """
    from anyparty.cli.console import method_to_json, methods_to_json, render_method, render_methods

    if name is not None and ":" in name:
        search_modules_in()
    console = screen(as_json=as_json)
    console.print(render_methods() if name is None else render_method(name))
    console.result(lambda: methods_to_json() if name is None else method_to_json(name))


@app.command()
@with_errors
def settings(
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="One group, such as train or parties.NAME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show all settings of a settings file, or those of one group: type, default and meaning.

    In Python: anyparty.config.settings_reference.groups(anyparty.config.Config).
    """
    from rich.table import Table
    from rich.text import Text

    from anyparty.config import Config
    from anyparty.config.settings_reference import default_of, fields, groups, meaning, shown
    from anyparty.errors import nearest

    console, listed = screen(as_json=as_json), list(groups(Config))
    named = [(name, model) for name, model in listed if group in {None, name, name.partition(".")[0]}]
    if not named:
        raise ConfigError(f"settings: there is no group {group!r}{nearest(group, dict(listed))}")
    found = [
        {"group": name, "name": key, "type": shown(kind), "default": default_of(default),
         "meaning": meaning(model, key)}
        for name, model in named for key, kind, default in fields(model)
    ]  # fmt: skip
    for name in dict.fromkeys(name for name, _ in named):
        table = Table("setting", "type", "default", "meaning", title=Text(f"[{name}]"), title_justify="left")
        for row in found:
            if row["group"] == name:
                table.add_row(*(Text(row[key]) for key in ("name", "type", "default", "meaning")))
        console.print(table)
    console.result(lambda: {"settings": found})


@app.command()
@with_errors
def cite(
    names: Annotated[list[str] | None, typer.Argument(metavar="[METHOD...]", help="Methods or schedules.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the BibTeX entries of this package, and of the papers of methods: `anyparty cite laser apc`.

    In Python: anyparty.methods.citations.citations(["laser", "apc"]).
    """
    from anyparty.methods.citations import citations

    console, found = screen(as_json=as_json), citations(names or [])
    console.print("\n\n".join(found.values()), soft_wrap=True, markup=False, highlight=False)
    console.result(lambda: {"entries": [{"key": key, "bibtex": text} for key, text in found.items()]})


@app.command()
@with_errors
def check(
    names: Annotated[list[str], typer.Argument(metavar="MODULE:NAME...", help="Classes, functions or objects.")],
    inputs: Annotated[int, typer.Option("--inputs", min=1, help="Number of columns for an encoder's trial.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Check your own methods, encoders or missingness mechanisms for mistakes that training would not show.

    The modules are searched in the current folder and among installed packages, and are run.

    In Python: anyparty.testing.check("module:name").
    """
    from anyparty.testing import check as checked_kind

    search_modules_in()
    console = screen(as_json=as_json)
    checked = []
    for name in names:
        checked.append({"name": name, "kind": checked_kind(name, inputs=inputs)})
        console.print(f"{name}: this {checked[-1]['kind']} passes all checks.", soft_wrap=True)
    console.result(lambda: {"checked": checked})


@app.command()
@with_errors
def demo(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of its files.")] = Path("anyparty-demo"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds of each method.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Train six methods on handwritten digits, and compare them; each of four parties holds one quadrant of the images.

    In Python: anyparty.cli.demo.run("anyparty-demo").
    """
    from anyparty.cli import demo as local_demo

    console = screen(as_json=as_json)
    found = local_demo.run(folder, seeds=seeds, console=console)
    console.result(lambda: {
        "folder": folder, "verdicts": list(local_demo.verdicts(found)),
        "scores": found.frame(by=("missing", "present")).to_dicts(),
    })  # fmt: skip


@app.command()
@with_errors
def doctor(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="[PLACE]", help="A federation's folder, or a party's kit, to check as well."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and a party's kit: versions, extras, ports, certificates, clocks, disk, data sets.

    In Python: anyparty.cli.doctor.examine("PLACE").
    """
    from rich.table import Table
    from rich.text import Text

    from anyparty.cli.doctor import examine

    findings = examine(place)
    table = Table("", "check")
    for name in ("result", "what to do"):
        table.add_column(name, overflow="fold")  # wrap long paths instead of cutting them
    for each in findings:
        style = LEVEL_STYLES[each.level]
        table.add_row(Text(each.level, style=style), Text(each.check), Text(each.result), Text(each.advice))
    console, problems = screen(as_json=as_json), sum(each.level == "fix" for each in findings)
    console.print(table)
    console.print(f"{problems} to fix." if problems else "Nothing to fix.")
    console.result(lambda: {"problems": problems, "findings": [vars(each) for each in findings]})
    raise typer.Exit(EXIT_ERROR if problems else 0)


app.command()(compare)
app.command()(sweep)
app.command()(init)
app.command()(bench)
app.command()(report)
app.command()(attack)
app.command()(serve)
app.command()(impute)
app.command()(likelihood)
app.command()(inspect_encoder)
app.add_typer(federate, name="federate")
app.add_typer(party, name="party")


def _options(name: str, *values: object) -> list[str]:
    return [word for value in values if value is not None for word in (name, str(value))]


def _resume_hint(arguments: list[str], folder: Path) -> str:
    """Return a sentence with the command that resumes a stopped run, or a sentence that nothing was saved."""
    if not (folder / "record.json").exists():
        return "Stopped before training began; nothing was saved."
    return f"Stopped. Resume with: {shlex.join(['anyparty', 'train', *arguments])} --resume"
