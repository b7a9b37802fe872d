"""Options and arguments that several commands share, and functions that convert them to folders and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anyparty.config import Config
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
    """The group of all commands; it replaces ``~`` in arguments by the home folder where the shell does not.

    Shells replace ``~`` only at the start of a word, and not in ``--run=~/x``, ``--set run.folder=~/x`` or
    ``--table bank=~/x.csv``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace ``~`` in each argument, then parse the arguments."""
        return super().parse_args(ctx, [_home_expanded(word) for word in args])


def _home_expanded(word: str) -> str:
    """Replace ``~/`` by the home folder at the start of a word, or at the start of the value in ``KEY=VALUE``."""
    key, equals, value = word.partition("=") if not word.startswith("~/") else ("", "", word)
    return f"{key}{equals}{Path(value).expanduser()}" if value.startswith("~/") else word


def party_names(parties: str | None) -> list[str] | None:
    """Split the value of ``--parties``, such as ``A,B``, into names; return None if the option is not given."""
    return None if parties is None else [name.strip() for name in parties.split(",") if name.strip()]


def search_modules_in(*folders: Path) -> None:
    """Let Python search for modules in the current folder and in ``folders``, after all other places.

    Call this function only for code that the user allowed or wrote. It affects all imports: Python searches these
    folders for every module that it does not find in other places.
    """
    sys.path += [str(folder) for folder in (Path.cwd(), *folders) if str(folder) not in sys.path]


def allowed_modules(allow_code: list[str] | None) -> list[str]:
    """Return the modules given with ``--allow-code``, and let Python find them in the current folder."""
    if allow_code:
        search_modules_in()
    return allow_code or []


def announce_user_code(config: Config, folder: Path, say: Callable[[str], object]) -> None:
    """Report which user code the settings will load, and let Python find it in the current folder.

    If all code is allowed, Python also searches ``folder``, the settings file's folder. ``say`` prints a sentence.
    """
    if not config.allowed_code.everything:
        allowed_modules(list(config.allowed_code.names))
    elif config.code:
        search_modules_in(folder.absolute())
    for reference in config.code:
        say(f"The settings load your own code: {reference}{_origin(reference)}")


def announce_default_method(config: Config, path: Path, say: Callable[[str], object]) -> None:
    """Report that the default method has changed if a settings file does not name a method; ``say`` prints it."""
    if path.exists() and "method" not in config.model_fields_set:
        say(f'{path} names no method: the default is now "sum" (formerly "laser"), with its own encoder, optimizer and '
            'epochs; add [method] name = "laser" to train as before')  # fmt: skip


def _origin(reference: str) -> str:
    """Return " from FILE" for the file of the module in ``module:Name``; "" if the module is not found."""
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(reference.partition(":")[0].partition(".")[0])
        return f" from {found.origin}" if found is not None and found.origin else ""
    return ""


def folder_option(text: str) -> Path:
    """Convert an option to a folder; reject an empty text, which would mean the current folder.

    Raises:
        BadParameter: the text is empty, for example from an unset variable of a shell.
    """
    if not text.strip():
        raise typer.BadParameter("the text is empty; name a folder")
    return Path(text)


# a single argument with one of these endings is a table, not a settings file
TABLE_ENDINGS = (
    ".csv",
    ".csv.gz",
    ".parquet",
    ".tsv",
    ".xlsx",
)

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="CONFIG.toml|TABLE...",
        help="A settings file, or the parties' tables as FILE or PARTY=FILE.",
        show_default=False,
    ),
]
IdColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="COLUMN|PARTY=COLUMN",
        help="Column of ids, without a settings file; once for all tables, or once for each party.",
        show_default="searched",
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Column to predict, without a settings file.")
]


def settings_from(
    sources: Sequence[str], id: Sequence[str] | None, label: str | None, changes: Sequence[str],  # noqa: A002
    allow_code: Sequence[str] = (),
) -> tuple[Config, Path]:  # fmt: skip
    """Return the settings from a settings file or from tables, and the path of the settings file.

    If ``sources`` are tables, the path does not exist; it only gives the run its name.

    Raises:
        ConfigError: the file or the options cannot be used, or ``id`` or ``label`` is given with a settings file.
        TableError: a table cannot be read.
    """
    from anyparty import config as settings
    from anyparty.config.draft import draft_settings, ids_by_party, parties_of
    from anyparty.errors import ConfigError

    files = [text for text in sources if text.lower().endswith(".toml")]
    if len(sources) == 1 and "=" not in sources[0] and not sources[0].lower().endswith(TABLE_ENDINGS):
        files = list(sources)  # a settings file whose name does not end in .toml
    if files:
        if len(sources) > 1:
            raise ConfigError(f"{files[0]}: give one settings file, or only tables")
        if id or label is not None:
            raise ConfigError(f"{files[0]}: --id and --label are for tables without a settings file; use --set "
                              "federation.id=COLUMN or --set federation.label=COLUMN")  # fmt: skip
        return settings.load(files[0], changes, allow_code=allow_code), Path(files[0])
    tables = parties_of(sources)
    if label is None:
        raise ConfigError("name the column to predict: --label COLUMN; `anyparty init` shows the columns that may be "
                          "labels")  # fmt: skip
    draft = draft_settings(tables, id=ids_by_party(id or [], tables), label=label)
    config = settings.from_values(draft.values(), changes, source="settings", folder=Path.cwd())
    return config.allowing(allow_code), Path(_run_name(list(tables)) + ".toml")


def ids_found(config: Config) -> str:
    """Return a line with the column of ids of each party."""
    return "ids: " + ", ".join(f"{party.id or config.federation.id} ({name})" for name, party in config.parties.items())


def _run_name(parties: Sequence[str], most: int = 4) -> str:
    """Return a name for runs of the given parties, made of at most ``most`` party names.

    >>> _run_name(["bank", "shop"]), _run_name(list("abcdef"))
    ('bank-shop', 'a-b-c-d-and-2-more')
    """
    rest = len(parties) - most
    return "-".join(parties[:most]) + (f"-and-{rest}-more" if rest > 0 else "")
