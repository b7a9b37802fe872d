"""The command ``anyparty serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyparty.cli.errors import with_errors
from anyparty.cli.options import AllowCode, allowed_modules, announce_user_code


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
            "--budget-ms", help="How long to wait for other parties if a request does not set it, in milliseconds."
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
        say=typer.echo, allow_code=code,
    )  # fmt: skip
