"""Options that several commands share, and their conversion."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from anyparty.config import Config

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `anyparty train`.")]
SettingsFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The federation's settings.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="GROUP.KEY=VALUE", help="Change a setting, e.g. train.epochs=5.")
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="PARTY=FILE",
        help="A party's table. Parties without one are absent. Without this option, the run's own tables are used.",
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="MODULE",
        help="A module of your own that the run's settings may load. Otherwise no code that a file names is run. "
        "Modules are searched in the current folder and among installed packages.",
    ),
]
Parties = Annotated[
    str | None,
    typer.Option("--parties", metavar="A,B", help="Parties that may take part.", show_default="all with a table"),
]
OutFile = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file, .parquet or .csv.")]
RawCsv = Annotated[
    bool,
    typer.Option("--raw-csv", help="Keep text that begins like a formula in a .csv file. A spreadsheet may run it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of tables.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the data sets.", show_default="ANYPARTY_DATA, the cache, or a download"),
]


class HomeExpandingGroup(typer.core.TyperGroup):
    """The group of all commands; it replaces ``~`` by the home folder where a shell does not.

    Shells replace it only at the start of a word, and not in ``--run=~/x``, ``--set run.folder=~/x`` or
    ``--table bank=~/x.csv``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after the replacement."""
        return super().parse_args(ctx, [_home_expanded(word) for word in args])


def _home_expanded(word: str) -> str:
    """Replace ``~/`` at the start of a word or of the value after its first equals sign."""
    key, equals, value = word.partition("=") if not word.startswith("~/") else ("", "", word)
    return f"{key}{equals}{Path(value).expanduser()}" if value.startswith("~/") else word


def party_names(parties: str | None) -> list[str] | None:
    """Split the value of ``--parties``."""
    return None if parties is None else [name.strip() for name in parties.split(",") if name.strip()]


def search_modules_in(*folders: Path) -> None:
    """Let Python search modules in the current folder and in ``folders``, after all other places.

    Call this function only for code that the user named or wrote, because it affects all imports: every module that is
    missing elsewhere is searched in these folders.
    """
    sys.path += [str(folder) for folder in (Path.cwd(), *folders) if str(folder) not in sys.path]


def allowed_modules(allow_code: list[str] | None) -> list[str]:
    """Return the modules of ``--allow-code``, and let Python search them in the current folder."""
    if allow_code:
        search_modules_in()
    return allow_code or []


def announce_user_code(config: Config, folder: Path, say: Callable[[str], object]) -> None:
    """Let Python find the code that a settings file names, and report the code that will be loaded.

    The code is searched in the current folder and, if all code is allowed, also beside the settings file.
    """
    if not config.allowed_code.everything:
        allowed_modules(list(config.allowed_code.names))
    elif config.code:
        search_modules_in(folder.absolute())
    for reference in config.code:
        say(f"The settings load your own code: {reference}{_origin(reference)}")


def _origin(reference: str) -> str:
    """Return the location of a module for a message; empty if it is not found."""
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(reference.partition(":")[0].partition(".")[0])
        return f" from {found.origin}" if found is not None and found.origin else ""
    return ""


def folder_option(text: str) -> Path:
    """Convert an option to a folder; reject an empty text, which would name the current folder.

    Raises:
        BadParameter: the text is empty, for example from an unset variable of a shell.
    """
    if not text.strip():
        raise typer.BadParameter("the text is empty; name a folder")
    return Path(text)
