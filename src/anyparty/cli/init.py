"""The command `init`, which writes a settings file for the user's tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anyparty.cli.console import screen
from anyparty.cli.errors import with_errors
from anyparty.cli.options import AsJson, IdColumn, LabelColumn

if TYPE_CHECKING:
    from rich.console import Console

    from anyparty.config.draft import SettingsDraft

SEARCHED = ("*.csv", "*.csv.gz", "*.tsv", "*.xlsx", "*.feather", "*.parquet")


@with_errors
def init(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE...]", help="The parties' tables, as FILE or PARTY=FILE.", show_default=False),
    ] = None,
    id: IdColumn = None,  # noqa: A002 - the option is called --id
    label: LabelColumn = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The settings file.")] = Path(
        "settings.toml"
    ),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; take the first candidates.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a settings file for your tables: find the columns of ids and labels; in a terminal, ask the user for them.

    In Python: anyparty.config.draft.draft_settings({"bank": Path("bank.csv"), "shop": Path("shop.csv")}).
    """
    from anyparty.config.draft import draft_settings, ids_by_party, parties_of
    from anyparty.errors import ConfigError

    if out.exists():
        raise ConfigError(f"{out} exists and is not overwritten; name another file: anyparty init --out FILE.toml")
    asks = not yes and not as_json and sys.stdin.isatty()
    files = parties_of(tables or _tables_in_folder(asks=asks))
    ids: str | Mapping[str, str] | None = ids_by_party(id or [], files)
    draft = draft_settings(files, id=ids, label=label)
    if asks and (ids is None or label is None):
        ids, label = _ask(draft, files, ids, label)
        draft = draft_settings(files, id=ids, label=label)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(draft.to_toml(out.parent), encoding="utf-8")
    console = screen(as_json=as_json)
    _describe(draft, out, console)
    console.result(lambda: {
        "settings": out, "tables": draft.tables, "ids": draft.ids, "label": draft.label, "active": draft.active,
        "labels": [vars(each) for each in draft.candidates.labels],
    })  # fmt: skip


def _tables_in_folder(*, asks: bool) -> list[str]:
    """Return the table files in the current folder; if ``asks`` is true, let the user confirm or replace this list.

    Raises:
        ConfigError: ``asks`` is false, and the folder has fewer than two tables.
    """
    from anyparty.errors import ConfigError

    found = sorted({str(path) for pattern in SEARCHED for path in Path().glob(pattern)})
    if asks:
        return shlex.split(typer.prompt("Tables, one for each party", default=shlex.join(found) or None))
    if len(found) < 2:
        raise ConfigError("name the parties' tables: anyparty init bank.csv shop.csv")
    return found


def _ask(
    draft: SettingsDraft, files: Mapping[str, Path], ids: str | Mapping[str, str] | None, label: str | None
) -> tuple[str | Mapping[str, str] | None, str]:
    """Ask the user for those columns of ids and labels that are ``None``, and return all of them.

    The first candidate in ``draft`` is the suggested answer.
    """
    from anyparty.config.draft import draft_settings

    if ids is None and draft.shared_id is not None:
        names = list(dict.fromkeys(columns[next(iter(files))] for columns in draft.candidates.ids))
        typer.echo(f"Columns that may be ids: {', '.join(names)}")
        ids = str(typer.prompt("Column of ids", default=draft.shared_id))
        draft = draft_settings(files, id=ids, label=label)
    if label is None:
        typer.echo("Columns that may be labels: "
                   + ", ".join(f"{each.column} ({each.party}, {each.levels} values)"
                               for each in draft.candidates.labels[:8]))  # fmt: skip
        label = typer.prompt("Column to predict", default=draft.label)
    return ids, str(label)


def _describe(draft: SettingsDraft, out: Path, console: Console) -> None:
    """Print the parties and columns in ``draft``, and the commands to run next."""
    found = draft.candidates
    parties = ", ".join(f"{name} ({path})" for name, path in draft.tables.items())
    ids = draft.shared_id or ", ".join(f"{column} ({party})" for party, column in draft.ids.items())
    others = [each.column for each in found.labels if each.column != draft.label]
    lines = [
        f"parties: {parties}",
        f"ids:     {ids}",
        f"label:   {draft.label} ({draft.active})" + (f"; other candidates: {', '.join(others[:4])}" if others else ""),
        "",
        f"The settings are in {out}. Read them, then type",
        f"    anyparty align {shlex.quote(str(out))}    # which party has which rows, and how columns are read",
        f"    anyparty train {shlex.quote(str(out))}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
