"""Commands that use a model or a run: `report`, `attack`, `inspect-encoder`, `impute`, `likelihood` and `serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyparty.cli.console import screen
from anyparty.cli.errors import with_errors
from anyparty.cli.options import (
    AllowCode,
    AsJson,
    Changes,
    IdColumn,
    LabelColumn,
    OutFile,
    Parties,
    RawCsv,
    RunFolder,
    Sources,
    Tables,
    allowed_modules,
    announce_user_code,
    party_names,
    settings_from,
)
from anyparty.errors import ConfigError

if TYPE_CHECKING:
    from anyparty.api.imputation import Imputation


@with_errors
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, a federation's folder, or the record.json files of several parties of one run.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER|FILE.html",
            help="Folder of the page and its figures, or one file that ends in .html.",
            show_default="RUN/report, or report",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Metric of runs and sets of parties.", show_default="accuracy or rmse"),
    ] = None,
    model: Annotated[
        bool | None,
        typer.Option(
            "--model/--no-model",
            help="Load the models and score every set of parties, if the tables can be read; or use only records.",
            show_default="--model for one run",
        ),
    ] = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages of runs; write an HTML page about the runs, and its figures as separate files.

    In Python: anyparty.report.page.write(["RUN"], "FOLDER").
    """
    from anyparty.report import page
    from anyparty.report.elements import format_score
    from anyparty.report.recorded_runs import find_runs, recorded_metric
    from anyparty.report.traffic import render_ledger

    console, code = screen(as_json=as_json), allowed_modules(allow_code)
    single = runs[0] if len(runs) == 1 and runs[0].is_dir() else None
    folder = out or (Path("report") if single is None else single / "report")
    # write the page before anything is printed, because a closed stdout stops the command
    with console.status("writing the page"):
        written = page.write(runs, folder, metric=metric, model=model, allow_code=code)
    found = find_runs(runs)
    for run in found:
        if run.evaluation is not None and (name := recorded_metric(run, metric)):
            score = format_score(name, run.evaluation["overall"][name])
            console.print(f"{run.name} ({run.method}): test {name} {score}", soft_wrap=True)
    for run in found:
        console.print(render_ledger(run))
    figures = f", its figures are in {written.parent / 'figures'}" if folder.suffix.lower() not in page.PAGES else ""
    console.print(f"\nThe page is {written}{figures}", soft_wrap=True)
    console.result(lambda: {
        "page": written,
        "runs": [{"name": run.name, "method": run.method, "status": run.status, "messages": run.ledger.rows(),
                  "formulas": run.published, "missing": run.missing} for run in found],
    })  # fmt: skip


@with_errors
def attack(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|CONFIG.toml|TABLE...",
            help="The folder of a run, a settings file, or the parties' tables as FILE or PARTY=FILE.",
            show_default=False,
        ),
    ],
    id: IdColumn = None,  # noqa: A002 - the name of the option
    label: LabelColumn = None,
    changes: Changes = None,
    attacker: Annotated[
        list[str] | None,
        typer.Option("--attacker", metavar="PARTY", help="A party that attacks.", show_default="each party, alone"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ATTACK", help="An attack to make.", show_default="all")
    ] = None,
    known: Annotated[
        int, typer.Option("--known", min=1, help="Labels of each class that an informed attacker knows.")
    ] = 10,
    auxiliary: Annotated[
        float, typer.Option("--auxiliary", help="Share of a victim's rows that an attacker on columns knows.")
    ] = 0.1,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.json", help="File of the results.", show_default="RUN/threats.json"),
    ] = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Measure what each party can infer about labels and columns from the messages that it receives.

    The messages of a training are not kept. The command therefore trains again, with the settings and tables of the
    run, and records what each party receives. Nothing of the run changes; the results are RUN/threats.json, and the
    next `anyparty report RUN` shows them.

    In Python: anyparty.threats.run("RUN").
    """
    from anyparty import threats
    from anyparty.api.federation import Federation
    from anyparty.api.runs import federation_of_run
    from anyparty.core.storage import write_json
    from anyparty.report.threats import FILE

    run, console = Path(sources[0]), screen(as_json=as_json)
    is_run = len(sources) == 1 and run.is_dir()
    if is_run and (id or label is not None or changes):
        raise ConfigError(f"{run}: the settings of a run cannot be changed by --id, --label or --set; give its "
                          f"settings file: {run / 'config.toml'}")  # fmt: skip
    if out is not None and out.suffix.lower() != ".json":
        raise ConfigError(f"--out {out}: name a file that ends in .json")
    if is_run:
        federation = federation_of_run(run)
        federation = replace(federation, config=federation.config.allowing(allowed_modules(allow_code)))
    else:
        resolved, config = settings_from(sources, id, label, changes or [], allow_code or [])
        announce_user_code(resolved, config.parent, lambda text: console.print(text, soft_wrap=True))
        federation = Federation.from_config(resolved)
    with screen(stderr=True, as_json=as_json).status("training and attacking"):
        found = threats.run(federation, attackers=attacker, attacks=only, known=known, auxiliary=auxiliary)
    file = out or (run / FILE if is_run else None)
    if file is not None:
        write_json(file, found.to_json())
    console.print(found.render())
    for each in found.strongest():
        console.print(each.sentence, soft_wrap=True)
    if file is not None:
        console.print(f"\nThe results are in {file}", soft_wrap=True)
    console.result(found.to_json)


@with_errors
def inspect_encoder(
    sources: Sources,
    id: IdColumn = None,  # noqa: A002 - the name of the option
    label: LabelColumn = None,
    changes: Changes = None,
    party: Annotated[
        str | None, typer.Option("--party", help="Party of the encoder.", show_default="the active party")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs of training.")] = 100,
    every: Annotated[int, typer.Option("--every", min=1, help="Epochs between scores.")] = 10,
    embedding: Annotated[
        int | None, typer.Option("--embedding", min=1, help="Width of the embedding.", show_default="the method's")
    ] = None,
    classifier: Annotated[str, typer.Option("--classifier", help="logistic, or a class of scikit-learn.")] = "logistic",
    metric: Annotated[
        str, typer.Option("--metric", help="A scorer of scikit-learn, e.g. accuracy or f1.")
    ] = "accuracy",
    folds: Annotated[int, typer.Option("--folds", help="Folds of the cross-validation.")] = 10,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.0, help="Accepted loss of the embeddings against the columns.")
    ] = 0.01,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File of the plot, .png or .svg.")] = Path(
        "encoder.png"
    ),
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Train one party's encoder locally, and compare a classifier on embeddings with a classifier on columns.

    The task must be classification. Nothing is sent to other parties, and test rows are not used. In Python:
    anyparty.api.encoder_inspection.inspect_encoder(config.load("CONFIG.toml"), epochs=100, every=10).
    """
    import numpy as np
    from rich.table import Table

    from anyparty.api.encoder_inspection import inspect_encoder as inspect
    from anyparty.core.figure_style import check_figure_file, save_figure
    from anyparty.report.figures import draw_encoder_check

    check_figure_file(out)
    resolved, config = settings_from(sources, id, label, changes or [], allow_code or [])
    console = screen(as_json=as_json)
    announce_user_code(resolved, config.parent, lambda text: console.print(text, soft_wrap=True))
    options: dict[str, Any] = {
        "epochs": epochs, "every": every, "classifier": classifier, "metric": metric, "folds": folds,
    }  # fmt: skip
    options |= {} if embedding is None else {"embedding": embedding}
    table = Table("epoch", title=f"{metric}, mean ± standard deviation over {folds} folds", title_justify="left")
    for heading in ("loss", "embeddings", "columns", "lost"):
        table.add_column(heading, justify="right")
    found = []
    for epoch in inspect(resolved, party, **options):
        found.append(epoch)
        embedded, raw = epoch.scores.embedded, epoch.scores.raw
        table.add_row(str(epoch.epoch), f"{epoch.loss:.4f}", f"{embedded.mean():.3f} ± {embedded.std(ddof=1):.3f}",
                      f"{raw.mean():.3f} ± {raw.std(ddof=1):.3f}", f"{epoch.scores.lost:+z.3f}")  # fmt: skip
    console.print(table)
    last = found[-1].scores
    conclusion = "as good as the columns" if last.alike(threshold) else "worse than the columns"
    console.print(
        f"After epoch {found[-1].epoch} embeddings are {conclusion}: lost {last.lost:+z.3f}, accepted {threshold:g}."
    )
    raw, embedded = (np.array([getattr(each.scores, name) for each in found]) for name in ("raw", "embedded"))
    figure = draw_encoder_check([each.epoch for each in found], [each.loss for each in found], raw, embedded, metric)
    save_figure(figure, out)
    console.print(f"The plot is {out}", soft_wrap=True)
    console.result(lambda: {
        "metric": metric,
        "epochs": [{"epoch": each.epoch, "loss": each.loss, "embeddings": each.scores.embedded.tolist(),
                    "columns": each.scores.raw.tolist(), "lost": float(each.scores.lost)} for each in found],
        "alike": last.alike(threshold), "plot": out,
    })  # fmt: skip


@with_errors
def impute(
    run: RunFolder,
    party: Annotated[str, typer.Option("--party", help="Party whose columns are filled in, for that party alone.")],
    table: Tables = None,
    out: OutFile = None,
    parties: Parties = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples",
            min=0,
            help="Number of samples for each row, instead of the mean. Gaussian samples are moved into the range of "
            "training.",
        ),
    ] = 0,
    cells: Annotated[
        bool,
        typer.Option(
            "--cells",
            help="Fill in empty cells of numeric columns in rows that the party has, instead of rows that it lacks. "
            "Empty cells of categories, dates and texts stay empty.",
        ),
    ] = False,
    allow_code: AllowCode = None,
    raw_csv: RawCsv = False,
    as_json: AsJson = False,
) -> None:
    """Fill in a party's columns for the rows that the party lacks, with a model of the method FALSE-VFL.

    The output has all columns of the party's table, in the table's order. Columns that the model does not use are
    unchanged.

    With --cells the output also has all rows of the table, in the table's order, and can replace the table.

    Numbers are in the range of training, and whole if all numbers of the column were whole.

    In Python: anyparty.api.imputation.impute_run("RUN", "shop").table(); filled() shows which cells were imputed.
    """
    from anyparty.api.imputation import impute_run
    from anyparty.api.runs import tables_from
    from anyparty.cli.console import check_output_of_run, print_or_write, rows_or_file

    tables = tables_from(table or [])
    check_output_of_run(out, run, tables, raw_csv=raw_csv)
    code, console = allowed_modules(allow_code), screen(as_json=as_json)
    filled = impute_run(run, party, tables, party_names(parties), samples=samples, cells=cells, allow_code=code)
    frame = filled.table(samples=samples > 0)
    summary = _imputation_summary(filled)
    console.print(summary, soft_wrap=True)
    print_or_write(frame, out, console, raw_csv=raw_csv)
    masks = filled.filled().drop(filled.id, strict=False)
    counts = {mask.name: int(mask.sum()) for mask in masks.iter_columns() if mask.any()}
    console.result(lambda: {"summary": summary, "filled": counts, **rows_or_file(frame, out)})


@with_errors
def likelihood(
    run: RunFolder,
    table: Tables = None,
    out: OutFile = None,
    parties: Parties = None,
    raw_csv: RawCsv = False,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Compute each row's log-likelihood with a model of the method FALSE-VFL, lowest first.

    A row with a low log-likelihood is unlike the training rows.

    In Python: anyparty.api.imputation.log_likelihood_run("RUN").
    """
    from anyparty.api.imputation import log_likelihood_run
    from anyparty.api.runs import tables_from
    from anyparty.cli.console import check_output_of_run, print_or_write, rows_or_file

    tables = tables_from(table or [])
    check_output_of_run(out, run, tables, raw_csv=raw_csv)
    scores = log_likelihood_run(run, tables, party_names(parties), allow_code=allowed_modules(allow_code))
    console = screen(as_json=as_json)
    if scores["parties"].n_unique() > 1:
        console.print("Compare only rows of the same parties: likelihoods of others cover different columns.",
                      style="yellow")  # fmt: skip
    frame = scores.sort("log_likelihood", nulls_last=True)
    print_or_write(frame, out, console, raw_csv=raw_csv)
    console.result(lambda: rows_or_file(frame, out))


def _imputation_summary(filled: Imputation) -> str:
    n, party, columns = len(filled.mean), filled.party, f"{len(filled.prepare.kinds)} columns"
    if filled.own is None:
        text = f"{n:,} rows that {party} lacks, {columns}"
        if filled.unknown:
            text += f"; {filled.unknown:,} of them stay empty: no selected party has them"
        return text
    text = f"{filled.gaps:,} empty cells of numbers filled in, in the {n:,} rows that {party} has, {columns}"
    if filled.left:
        text += f"; {filled.left:,} empty cells of categories, dates and texts stay empty: only numbers are imputed"
    if filled.blank:
        text += f"; {filled.blank:,} rows without any cell are unchanged; without --cells they are filled in"
    return text


@with_errors
def serve(
    place: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A federation's folder, the active party's kit, or a run's folder."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
    budget_ms: Annotated[
        float,
        typer.Option(
            "--budget-ms",
            help="Milliseconds that a request waits in the service and for other parties, if it does not set them.",
        ),
    ] = 200.0,
    batch_ids: Annotated[int, typer.Option("--batch-ids", help="Maximum number of ids of one batch.")] = 10_000,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Accepted bearer tokens, one per line.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="PEM", help="TLS certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="PEM", help="Its private key (PEM).")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="PEM", help="CA bundle that client certificates must chain to."),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="PARTY=FILE", help="A party's current table.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG.toml", help="Settings of a federation whose model uses your code."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Number of PyTorch threads.", min=1)] = 1,
    admin_port: Annotated[
        int | None,
        typer.Option(
            "--admin-port", help="A second port for monitors: only /health, /ready and /metrics.", min=0, max=65535
        ),
    ] = None,
    needs_parties: Annotated[
        bool, typer.Option("--needs-parties", help="/ready has status 503 while no other party is connected.")
    ] = False,
    allow_code: AllowCode = None,
) -> None:
    """Serve predictions over HTTP at the active party, with all connected parties, until Ctrl-C.

    In Python: anyparty.serving.serve("FOLDER").
    """
    from anyparty import config as settings
    from anyparty import serving
    from anyparty.api.runs import tables_from
    from anyparty.serving.service_settings import BearerTokens, ServiceLimits, tls_files

    code, resolved = allowed_modules(allow_code), None
    if config is not None:
        resolved = settings.load(config, allow_code=code)
        announce_user_code(resolved, config.parent, typer.echo)
    serving.serve(
        place, host=host, port=port, limits=ServiceLimits(budget_ms=budget_ms, batch_ids=batch_ids),
        tokens=BearerTokens.read(token_file), tls=tls_files(tls_cert, tls_key, client_ca),
        tables=tables_from(table or []), config=resolved, threads=threads,
        say=typer.echo, allow_code=code, admin_port=admin_port, needs_parties=needs_parties,
    )  # fmt: skip
