"""The command that looks for what is wrong before anything is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from anyparty.cli.guard import TO_MEND, screen, sentences

STYLES = {"fine": "green", "note": "yellow", "mend": "red"}


@sentences
def doctor(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="[PLACE]", help="A federation's folder, or a party's kit, to look at as well."),
    ] = None,
) -> None:
    """Look at this machine, and at a party's kit: versions, extras, ports, certificates, clocks, disk, data sets.

    In Python: anyparty.doctor.examine("PLACE").
    """
    from rich.table import Table

    from anyparty.doctor import examine

    findings = examine(place)
    table = Table("", "looked at")
    for name in ("found", "what to do"):
        table.add_column(name, overflow="fold")  # a path is of no use without its end
    for each in findings:
        table.add_row(Text(each.level, style=STYLES[each.level]), Text(each.what), Text(each.said), Text(each.do))
    screen().print(table)
    bad = sum(each.level == "mend" for each in findings)
    typer.echo(f"{bad} to mend." if bad else "Nothing to mend.")
    raise typer.Exit(TO_MEND if bad else 0)
