"""Options that several commands have, and what is made of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anyparty.config import Config

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `anyparty train` left.")]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="PARTY=FILE",
        help="A party's table; the others are absent then. Without any, the run's own tables.",
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="MODULE",
        help="A module of your own that the run's settings may load; without it no code that a file names is run. "
        "Looked for in the current folder and among installed packages.",
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


def find_modules_in(*folders: Path) -> None:
    """Let modules be found in the current folder and in ``folders``, after all others.

    Call it only for code that the user named or wrote: any module that is missing elsewhere is looked for there, too.
    """
    sys.path += [str(folder) for folder in (Path.cwd(), *folders) if str(folder) not in sys.path]


def allowed(allow_code: list[str] | None) -> list[str]:
    """Return the modules of ``--allow-code``, and let them be found in the current folder."""
    if allow_code:
        find_modules_in()
    return allow_code or []


def own_code(config: Config, folder: Path, say: Callable[[str], object]) -> None:
    """Let the code that a settings file names be found beside the file, and say what will be loaded."""
    if not config.allowed_code.everything:
        allowed(list(config.allowed_code.names))
    elif config.code:
        find_modules_in(folder.absolute())
    for reference in config.code:
        say(f"The settings load your own code: {reference}{_where(reference)}")


def _where(reference: str) -> str:
    """Return where a module lies, for a message; empty if it is not found."""
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(reference.partition(":")[0].partition(".")[0])
        return f" from {found.origin}" if found is not None and found.origin else ""
    return ""


def folder_named(text: str) -> Path:
    """Return a folder that an option names; an empty text, as an unset variable of a shell's, names the current one.

    Raises:
        BadParameter: it is empty.
    """
    if not text.strip():
        raise typer.BadParameter("name a folder; this is an empty text")
    return Path(text)
