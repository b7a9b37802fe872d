"""The commands `federate ...` and `party ...`: parties in separate processes, on one machine or on many."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from anyparty.cli.console import screen
from anyparty.cli.errors import EXIT_BEHIND, EXIT_ERROR, EXIT_STOPPED, print_error, with_errors
from anyparty.cli.options import (
    AllowCode,
    AsJson,
    Changes,
    DataFolder,
    OutFile,
    RawCsv,
    SettingsFile,
    announce_default_method,
    announce_user_code,
)

federate = typer.Typer(no_args_is_help=True, help="Parties in separate processes, with mutual TLS, over NVIDIA FLARE.")
party = typer.Typer(no_args_is_help=True, help="One party on its own machine.")

FederationFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]


@federate.command()
@with_errors
def init(
    config: SettingsFile,
    folder: FederationFolder,
    host: Annotated[
        str, typer.Option(help="Name or address of the active party's machine for the other parties.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port at the active party, the only inbound one.")] = 8002,
    requests: Annotated[
        bool, typer.Option("--requests", help="Every other party makes its own private key and sends a request.")
    ] = False,
) -> None:
    """Write a start-up kit with certificates for every party, one folder each.

    With --requests, write kits for the active party and the administrator only. Use --requests if the parties are
    different organisations, so that this machine never has the private key of another party.

    In Python: anyparty.deployment.coordinator.init("CONFIG.toml", "FOLDER").
    """
    from anyparty.deployment import coordinator as federation
    from anyparty.deployment.flare.federation_folder import read_federation

    kits = federation.init(config, folder, host=host, port=port, requests=requests)
    lines = [f"{name}: {kit}" for name, kit in kits.items()]
    lines += [f"authority: {folder / 'authority'} (rootCA.key signs certificates: keep it secret)"]
    if requests:
        for name in (each for each in read_federation(folder)["parties"] if each not in kits):
            lines += [f"{name} runs: anyparty party request {name}",
                      f"then you run: anyparty federate approve {folder} {name}.request.zip"]  # fmt: skip
    else:
        lines += ["Send every party its own folder over a private channel. No other party needs it."]
    console = screen()
    for line in lines:
        console.print(line, soft_wrap=True)


@federate.command()
@with_errors
def approve(
    folder: FederationFolder,
    request: Annotated[Path, typer.Argument(metavar="PARTY.request.zip", help="A party's request.")],
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="SHA256", help="The key's fingerprint, from the party.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Approve a party again.")] = False,
) -> None:
    """Sign a party's request for a certificate, and write the approval to send back to the party.

    In Python: anyparty.deployment.flare.federation_folder.approve("FOLDER", "PARTY.request.zip").
    """
    from anyparty.deployment.flare import federation_folder as flare

    name, approval = flare.approve(folder, request, fingerprint=fingerprint, again=again)
    console = screen()
    if fingerprint is None:
        print_error(f"The fingerprint of {name}'s key was not compared. Ask {name} for it, by telephone or in person, "
                    f"and compare it with --fingerprint before you send the approval.", "yellow")  # fmt: skip
    for line in (
        f"{name}: {approval.file}",
        f"Send this file to {name}. It holds no private key.",
        f"Give {name} the authority's fingerprint over another channel, such as telephone: {approval.fingerprint}",
        f"{name} runs: anyparty party install {name} {approval.file.name} --fingerprint ...",
    ):
        console.print(line, soft_wrap=True)


@federate.command()
@with_errors
def start(folder: FederationFolder) -> None:
    """Start all parties on this machine, each in separate processes, to try out a federation.

    Parties that run already keep running.

    In Python: anyparty.deployment.flare.federation_folder.start("FOLDER").
    """
    from anyparty.deployment.flare import federation_folder as flare

    started = flare.start(folder)
    if len(started) < len(flare.read_federation(folder)["parties"]):
        typer.echo(f"Started: {', '.join(started)}; the others run already.")
    typer.echo(f"All parties are connected. Train: anyparty federate train {folder} CONFIG.toml")


@federate.command()
@with_errors
def train(
    folder: FederationFolder,
    config: SettingsFile,
    changes: Changes = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the checkpoints that all parties have.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Train again and replace the model.")] = False,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Train with the connected parties, and wait until training has ended.

    In Python: anyparty.deployment.coordinator.train("FOLDER", "CONFIG.toml").
    """
    from anyparty import config as settings
    from anyparty.alignment.overlap import Overlap
    from anyparty.deployment import coordinator as federation
    from anyparty.metrics.evaluation import Evaluation
    from anyparty.training.callbacks import Bar, Callback, CallbackList

    class AlignmentPrinter(Callback):
        def on_run_begin(self, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
            console.print("The parties align their rows, then train.")

        def on_aligned(self, overlap: Overlap, predicted: str) -> None:
            console.print(overlap.render())
            console.print(predicted, soft_wrap=True)

    console, bar = screen(as_json=as_json), Bar()
    loaded = settings.load(config, changes or [], allow_code=allow_code or [])
    announce_user_code(loaded, config.parent, lambda text: console.print(text, soft_wrap=True))
    announce_default_method(loaded, config, lambda text: console.print(text, soft_wrap=True, markup=False))
    try:
        ended = federation.train(
            folder,
            config,
            changes or [],
            resume=resume,
            again=again,
            watch=CallbackList([AlignmentPrinter(), bar]),
            allow_code=allow_code or [],
            say=lambda sentence: print_error(sentence, ""),
        )
    except KeyboardInterrupt:
        print_error("Stopped at all parties; resume with --resume.", "yellow")
        raise typer.Exit(EXIT_STOPPED) from None
    finally:
        bar.close()
    scores = next((found for outcome in ended.outcomes.values()
                   if (found := (outcome.get("result") or {}).get("evaluation"))), None)  # fmt: skip
    for name, outcome in ended.outcomes.items():
        console.print(f"{name}: {outcome['sentence'] or 'done'}", soft_wrap=True)
    if scores and not console.as_json:
        console.print("\nScores on test rows, which were not used in training:")
        console.print(Evaluation.from_json(scores).render())
    console.print(
        f"\njob {ended.job}: {ended.status}\nNext:    anyparty report {shlex.quote(str(folder))}", soft_wrap=True
    )
    console.result(lambda: {
        "job": ended.job, "status": ended.status, "parties": _sentences(ended.outcomes), "behind": list(ended.behind),
        "evaluation": scores and scores["overall"], "scores": scores,
    })  # fmt: skip
    if ended.behind:
        print_error(f"The model's part of {', '.join(ended.behind)} lacks the last epochs (exit code {EXIT_BEHIND}).",
                    "yellow")  # fmt: skip
        raise typer.Exit(EXIT_BEHIND)


def _sentences(outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return a sentence for each party on the result of its work for a job; "done" after success."""
    return {name: str(outcome["sentence"] or "done") for name, outcome in outcomes.items()}


@federate.command()
@with_errors
def predict(
    folder: FederationFolder,
    config: SettingsFile,
    parties: Annotated[
        list[str] | None,
        typer.Option("--parties", help="Parties that may take part.", show_default="all that are connected"),
    ] = None,
    out: OutFile = None,
    raw_csv: RawCsv = False,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of the active party's table (or of the table in its setting "new") with the connected parties.

    The connected parties predict without the other parties, also rows that are new.

    In Python: anyparty.deployment.coordinator.predict("FOLDER", "CONFIG.toml").
    """
    import polars as pl

    from anyparty.cli.console import check_output, print_or_write, render_head, rows_or_file
    from anyparty.deployment import coordinator as federation

    check_output(out, raw_csv=raw_csv)
    console, silent = screen(as_json=as_json), []
    ended, file = federation.predict(
        folder, config, [n for each in parties for n in each.split(",")] if parties else None,
        say=lambda sentence: print_error(sentence, ""),
    )  # fmt: skip
    for name, outcome in ended.outcomes.items():
        console.print(f"{name}: {outcome['sentence'] or 'done'}", soft_wrap=True)
        if found := (outcome.get("result") or {}).get("silent"):
            silent = list(found)
            console.print(Text(f"Asked, but did not answer: {', '.join(silent)}.", "yellow"), soft_wrap=True)
    frame = None if file is None else pl.read_parquet(file, glob=False)
    if frame is None:
        console.print("The predictions are at the active party, in runs/ in its kit.")
    elif out is None:
        console.print(render_head(frame))
        console.print(f"All rows are in {file}", soft_wrap=True)
    else:
        print_or_write(frame, out, console, raw_csv=raw_csv)
    rows = {"out": None, "rows": None} if frame is None else rows_or_file(frame, out)
    console.result(lambda: {"parties": _sentences(ended.outcomes), "silent": silent, "file": file, **rows})


@federate.command()
@with_errors
def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for all files.")] = Path(
        "anyparty-apart"
    ),
    dataset: Annotated[str, typer.Option(help="credit, breast-cancer, or another table of numbers.")] = "credit",
    data_dir: DataFolder = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs.", show_default="3 to 12, more for smaller data sets")
    ] = None,
) -> None:
    """Train and predict on real data with four parties in separate processes; repeat this in one process and compare.

    The processes are connected by mutual TLS.

    In Python: anyparty.cli.demo_federation.run("FOLDER").
    """
    from anyparty.cli import demo_federation

    console = screen()
    result = demo_federation.run(folder, dataset=dataset, data_dir=data_dir, epochs=epochs, console=console)
    constant = f"the most frequent class has {result.most_frequent:.3f} of the rows"
    console.print(f"accuracy of held-out rows: {result.accuracy:.3f}; {constant}", soft_wrap=True)
    console.print(f"predictions: {result.answers}", soft_wrap=True)
    for name, equal in result.equal.items():
        console.print(f"{name}: weights {'equal, bit for bit' if equal else 'DIFFER'}")
    raise typer.Exit(0 if all(result.equal.values()) else EXIT_ERROR)


@federate.command()
@with_errors
def status(folder: FederationFolder) -> None:
    """Show the active party, the connected sites, and the state of jobs, always as JSON.

    In Python: anyparty.deployment.flare.federation_folder.status("FOLDER").
    """
    from anyparty.deployment.flare import federation_folder as flare

    screen(as_json=True).result(lambda: flare.status(folder))


@federate.command()
@with_errors
def stop(folder: FederationFolder) -> None:
    """Stop all parties of a federation that run on this machine.

    In Python: anyparty.deployment.flare.federation_folder.stop("FOLDER").
    """
    from anyparty.deployment.flare import federation_folder as flare

    flare.stop(folder)


KitFolder = Annotated[
    Path | None, typer.Argument(metavar="[KIT]", help="The party's kit.", show_default="a folder of its name")
]


@party.command("request")
@with_errors
def request_certificate(
    name: Annotated[str, typer.Argument(metavar="PARTY", help="The party's name in the federation.")],
    kit: KitFolder = None,
    again: Annotated[bool, typer.Option("--again", help="Replace a request made before, and its key.")] = False,
) -> None:
    """Make this party's private key and a request for a certificate, to send to the active party.

    In Python: anyparty.deployment.flare.federation_folder.request(Path("KIT"), "PARTY").
    """
    from anyparty.deployment.flare import federation_folder as flare

    made = flare.request(kit or Path(name), name, again=again)
    console = screen()
    for line in (
        f"{name}: {made.file}",
        "Send this file to the active party. It holds no private key; yours stays in the same folder.",
        f"Give the active party your key's fingerprint over another channel, such as telephone: {made.fingerprint}",
    ):
        console.print(line, soft_wrap=True)


@party.command("install")
@with_errors
def install_kit(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The folder made by 'anyparty party request'.")],
    approval: Annotated[Path, typer.Argument(metavar="PARTY.approved.zip", help="The active party's approval.")],
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="SHA256", help="The authority's fingerprint, from the active party."),
    ] = None,
) -> None:
    """Make this party's start-up kit from its own key and the active party's approval.

    In Python: anyparty.deployment.flare.federation_folder.install(Path("KIT"), Path("PARTY.approved.zip")).
    """
    from anyparty.deployment.flare import federation_folder as flare

    found = flare.install(kit, approval, fingerprint=fingerprint)
    if fingerprint is None:
        print_error(f"The authority's fingerprint was not compared. Ask the active party for it, by telephone or in "
                    f"person, before you start this kit. It is {found}", "yellow")  # fmt: skip
    own = kit / "local" / "anyparty.toml"
    screen().print(f"The kit is in {kit}. Name the table in {own}, then start it: anyparty party start {kit}",
                   soft_wrap=True)  # fmt: skip


@party.command("start")
@with_errors
def start_party(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The party's own start-up kit.")],
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time to wait for the active party's machine.")
    ] = 600.0,
) -> None:
    """Join a federation as the party of a kit, and take part until Ctrl-C.

    In Python: anyparty.deployment.flare.federation_folder.run_site("KIT").
    """
    from anyparty.deployment.flare import federation_folder as flare

    raise typer.Exit(flare.run_site(kit, wait, lambda sentence: print_error(sentence, "")))
