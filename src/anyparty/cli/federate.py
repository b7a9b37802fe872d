"""Commands for parties in their own processes, on one machine or on many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from anyparty.cli.guard import STOPPED, say, screen, sentences
from anyparty.cli.options import AllowCode, RawCsv, own_code

federate = typer.Typer(no_args_is_help=True, help="Real parties: their own processes, mutual TLS, over NVIDIA FLARE.")
party = typer.Typer(no_args_is_help=True, help="One party at its own machine.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]
Config = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The federation's settings.")]


@federate.command()
@sentences
def init(
    config: Config,
    folder: Folder,
    host: Annotated[str, typer.Option(help="How others reach the active party's machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The one inbound port, at the active party.")] = 8002,
    requests: Annotated[
        bool, typer.Option("--requests", help="Let every other party make its own private key and send a request.")
    ] = False,
) -> None:
    """Write a start-up kit with certificates for every party, one folder each to hand over.

    With --requests, write kits for the active party and the administrator only. Between organisations this is the
    better way: no private key of another party is ever on this machine.

    In Python: anyparty.run.federate.init("CONFIG.toml", "FOLDER").
    """
    from anyparty.run import federate as federation
    from anyparty.wire.flare.federation import about

    kits = federation.init(config, folder, host=host, port=port, requests=requests)
    lines = [f"{name}: {kit}" for name, kit in kits.items()]
    lines += [f"authority: {folder / 'authority'} (rootCA.key signs certificates: keep it, hand it to nobody)"]
    if requests:
        for name in (each for each in about(folder)["parties"] if each not in kits):
            lines += [f"{name} runs: anyparty party request {name}",
                      f"then you run: anyparty federate approve {folder} {name}.request.zip"]  # fmt: skip
    else:
        lines += ["Hand every party its own folder, over a way that only it can read. Nobody else needs it."]
    console = screen()
    for line in lines:
        console.print(line, soft_wrap=True)


@federate.command()
@sentences
def approve(
    folder: Folder,
    request: Annotated[Path, typer.Argument(metavar="PARTY.request.zip", help="A party's request.")],
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="SHA256", help="The key's fingerprint as the party told it.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Approve a party that was approved before.")] = False,
) -> None:
    """Sign a party's request for a certificate.

    In Python: anyparty.wire.flare.federation.approve("FOLDER", "PARTY.request.zip").
    """
    from anyparty.wire.flare import federation as flare

    name, approval = flare.approve(folder, request, fingerprint=fingerprint, again=again)
    console = screen()
    if fingerprint is None:
        say(f"The fingerprint of {name}'s key was not compared. Ask {name} for it, by telephone or in person, and "
            f"compare it with --fingerprint before you send the approval.", "yellow")  # fmt: skip
    for line in (
        f"{name}: {approval.file}",
        f"Send this file to {name}. It holds no private key.",
        f"Tell {name} the authority's fingerprint another way, such as by telephone: {approval.fingerprint}",
        f"{name} runs: anyparty party install {name} {approval.file.name} --fingerprint ...",
    ):
        console.print(line, soft_wrap=True)


@federate.command()
@sentences
def start(folder: Folder) -> None:
    """Start all parties on this machine, each in its own processes: for trying out.

    In Python: anyparty.wire.flare.federation.start("FOLDER").
    """
    from anyparty.wire.flare import federation as flare

    flare.start(folder)
    typer.echo(f"All parties are connected. Train: anyparty federate train {folder} CONFIG.toml")


@federate.command()
@sentences
def train(
    folder: Folder,
    config: Config,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="GROUP.KEY=VALUE", help="Change a setting.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoints that all parties have.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Train anew, in place of the model that is there.")] = False,
    allow_code: AllowCode = None,
) -> None:
    """Train with the parties that are connected, and wait for the end.

    In Python: anyparty.run.federate.train("FOLDER", "CONFIG.toml").
    """
    from anyparty import config as settings
    from anyparty.align.overlap import Overlap
    from anyparty.run import federate as federation
    from anyparty.run.progress import Bar
    from anyparty.run.watch import All, Watch

    class Shown(Watch):
        def on_run_begin(self, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
            console.print("The parties find out who has which row, then train.")

        def on_aligned(self, overlap: Overlap, predicted: str) -> None:
            console.print(overlap.render())
            console.print(predicted, soft_wrap=True)

    console, bar = screen(), Bar()
    loaded = settings.load(config, changes or [], allow_code=allow_code or [])
    own_code(loaded, config.parent, lambda said: console.print(said, soft_wrap=True))
    try:
        ended = federation.train(
            folder, config, changes or [], resume=resume, again=again, watch=All([Shown(), bar]),
            allow_code=allow_code or [],
        )  # fmt: skip
    except KeyboardInterrupt:
        say("Stopped at all parties; go on with --resume.", "yellow")
        raise typer.Exit(STOPPED) from None
    finally:
        bar.close()
    for name, outcome in ended.outcomes.items():
        sentence = outcome["sentence"] or "done"
        console.print(f"{name}: {sentence}", soft_wrap=True)
        scores = ((outcome.get("result") or {}).get("evaluation") or {}).get("overall")
        if scores:
            console.print_json(json.dumps(scores))
    console.print(f"job {ended.job}: {ended.status}")


@federate.command()
@sentences
def predict(
    folder: Folder,
    config: Config,
    parties: Annotated[
        list[str] | None, typer.Option("--parties", help="Whose blocks may take part; all that are connected.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where answers go: a .parquet or .csv file.")
    ] = None,
    raw_csv: RawCsv = False,
) -> None:
    """Predict the rows of the leading party's table (or of its "new" one) with the parties that are connected.

    In Python: anyparty.run.federate.predict("FOLDER", "CONFIG.toml").
    """
    import polars as pl

    from anyparty.cli import show
    from anyparty.run import federate as federation

    show.check_kind(out, raw_csv=raw_csv)
    console = screen()
    with console.status("predicting"):
        ended, file = federation.predict(
            folder, config, [n for each in parties for n in each.split(",")] if parties else None
        )
    for name, outcome in ended.outcomes.items():
        console.print(f"{name}: {outcome['sentence'] or 'done'}", soft_wrap=True)
        if silent := (outcome.get("result") or {}).get("silent"):
            console.print(Text(f"Asked, but did not answer: {', '.join(silent)}.", "yellow"), soft_wrap=True)
    if file is None:
        console.print("The answers are in the leading party's own folder, runs/ in its kit.")
    elif out is None:
        console.print(pl.read_parquet(file, glob=False).head(10))
        console.print(f"All rows are in {file}", soft_wrap=True)
    else:
        show.keep(pl.read_parquet(file, glob=False), out, console, raw_csv=raw_csv)


@federate.command()
@sentences
def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where all of it goes: a new folder.")] = Path(
        "anyparty-apart"
    ),
    dataset: Annotated[str, typer.Option(help="credit, breast-cancer, or another table of numbers.")] = "credit",
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Where data sets lie; without: in ANYPARTY_DATA, the cache, or fetched."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs; without: 3 to 12, the more, the fewer rows there are.")
    ] = None,
) -> None:
    """Show parties apart: four processes with mutual TLS on real data, trained, asked, and held against one process.

    In Python: anyparty.demo.apart.demo("FOLDER").
    """
    from anyparty.demo import apart

    console = screen()
    shown = apart.demo(folder, dataset=dataset, data_dir=data_dir, epochs=epochs, console=console)
    alone = f"the most frequent class has {shown.most_frequent:.3f} of the rows"
    console.print(f"accuracy of held-out rows: {shown.accuracy:.3f}, where {alone}", soft_wrap=True)
    console.print(f"predictions: {shown.answers}", soft_wrap=True)
    for name, equal in shown.equal.items():
        console.print(f"{name}: weights {'equal, bit for bit' if equal else 'DIFFER'}")
    raise typer.Exit(0 if all(shown.equal.values()) else 1)


@federate.command()
@sentences
def status(folder: Folder) -> None:
    """Show who leads, which sites are connected to it, and how the jobs stand.

    In Python: anyparty.wire.flare.federation.status("FOLDER").
    """
    from anyparty.wire.flare import federation as flare

    screen().print_json(json.dumps(flare.status(folder), default=str))


@federate.command()
@sentences
def stop(folder: Folder) -> None:
    """Stop all parties on this machine.

    In Python: anyparty.wire.flare.federation.stop("FOLDER").
    """
    from anyparty.wire.flare import federation as flare

    flare.stop(folder)


Kit = Annotated[Path | None, typer.Argument(metavar="[KIT]", help="The party's kit; by default a folder of its name.")]


@party.command("request")
@sentences
def request_certificate(
    name: Annotated[str, typer.Argument(metavar="PARTY", help="The party's name in the federation.")],
    kit: Kit = None,
    again: Annotated[bool, typer.Option("--again", help="Replace a request made before, and its key.")] = False,
) -> None:
    """Make this party's private key and a request for a certificate, to send to the leading party.

    In Python: anyparty.wire.flare.federation.request(Path("KIT"), "PARTY").
    """
    from anyparty.wire.flare import federation as flare

    made = flare.request(kit or Path(name), name, again=again)
    console = screen()
    for line in (
        f"{name}: {made.file}",
        "Send this file to the leading party. It holds no private key; yours stays in the same folder.",
        f"Tell the leading party your key's fingerprint another way, such as by telephone: {made.fingerprint}",
    ):
        console.print(line, soft_wrap=True)


@party.command("install")
@sentences
def install_kit(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The folder of 'anyparty party request'.")],
    approval: Annotated[Path, typer.Argument(metavar="PARTY.approved.zip", help="From the leading party.")],
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint", metavar="SHA256", help="The authority's fingerprint as the leading party told it."
        ),
    ] = None,
) -> None:
    """Make this party's start-up kit from its own key and the leading party's approval.

    In Python: anyparty.wire.flare.federation.install(Path("KIT"), Path("PARTY.approved.zip")).
    """
    from anyparty.wire.flare import federation as flare

    found = flare.install(kit, approval, fingerprint=fingerprint)
    if fingerprint is None:
        say(f"The authority's fingerprint was not compared. Ask the leading party for it, by telephone or in person, "
            f"before you start this kit. It is {found}", "yellow")  # fmt: skip
    own = kit / "local" / "anyparty.toml"
    screen().print(f"The kit is in {kit}. Name the table in {own}, then start it: anyparty party start {kit}",
                   soft_wrap=True)  # fmt: skip


@party.command("start")
@sentences
def start_party(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The party's own start-up kit.")],
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the active party's machine.")
    ] = 600.0,
) -> None:
    """Take part in a federation from this machine, until Ctrl-C.

    In Python: anyparty.wire.flare.federation.run_site("KIT").
    """
    from anyparty.wire.flare import federation as flare

    raise typer.Exit(flare.run_site(kit, wait, lambda sentence: say(sentence, "")))
