"""The command that serves predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyparty.cli.errors import with_errors
from anyparty.cli.options import AllowCode, allowed_modules, announce_user_code


@with_errors
def serve(
    place: Annotated[
        Path, typer.Argument(metavar="HOUSE_OR_RUN", help="A federation's folder or the active party's kit, or a run.")
    ],
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free one.", min=0, max=65535)] = 8080,
    budget_ms: Annotated[
        float, typer.Option("--budget-ms", help="How long to wait for other parties, if a request does not say.")
    ] = 200.0,
    batch_ids: Annotated[int, typer.Option("--batch-ids", help="The most ids of one batch.")] = 10_000,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Tokens that are let in, one a line.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="PEM", help="The service's own.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="PEM", help="Its key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option("--client-ca", metavar="PEM", help="Whose certificates clients must show.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="PARTY=FILE", help="A party's table as it is now.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG.toml", help="A federation's settings, if they name code of your own."),
    ] = None,
    threads: Annotated[int, typer.Option(help="How many threads PyTorch may use.", min=1)] = 1,
    allow_code: AllowCode = None,
) -> None:
    """Serve predictions over HTTP at the active party, from whoever is there, until Ctrl-C.

    In Python: anyparty.serve.serve("HOUSE_OR_RUN").
    """
    from anyparty import config as settings
    from anyparty import serve as service
    from anyparty.run.runs import tables_from
    from anyparty.serve.limits import Limits, Tokens, certificates

    code, resolved = allowed_modules(allow_code), None
    if config is not None:
        resolved = settings.load(config, allow_code=code)
        announce_user_code(resolved, config.parent, typer.echo)
    service.serve(
        place, host=host, port=port, limits=Limits(budget_ms=budget_ms, batch_ids=batch_ids),
        tokens=Tokens.read(token_file), tls=certificates(tls_cert, tls_key, client_ca),
        tables=tables_from(table or []), config=resolved, threads=threads,
        say=typer.echo, allow_code=code,
    )  # fmt: skip
