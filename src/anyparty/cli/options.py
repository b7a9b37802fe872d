"""Options that several commands have, and what is made of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `anyparty train` left.")]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="PARTY=FILE",
        help="A party's table; the others are absent then. Without any, the run's own tables.",
    ),
]
Parties = Annotated[
    str | None, typer.Option("--parties", metavar="A,B", help="Who may take part; by default all that have a table.")
]
RawCsv = Annotated[
    bool,
    typer.Option("--raw-csv", help="Keep text in a .csv file that begins like a formula; a spreadsheet may run it."),
]


def names(parties: str | None) -> list[str] | None:
    """Return the names in what ``--parties`` says."""
    return None if parties is None else [name.strip() for name in parties.split(",") if name.strip()]


def look_for_modules_in(*folders: Path) -> None:
    """Let a user's own methods and encoders, ``factory = "module:name"``, stand beside the settings or where one is."""
    sys.path += [str(folder) for folder in (Path.cwd(), *folders) if str(folder) not in sys.path]


def folder_named(text: str) -> Path:
    """Return a folder that an option names; an empty text, as an unset variable of a shell's, names the current one.

    Raises:
        BadParameter: it is empty.
    """
    if not text.strip():
        raise typer.BadParameter("name a folder; this is an empty text")
    return Path(text)
