"""The settings of a command: a settings file, or tables with the options --id and --label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anyparty.config import Config

TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet", ".tsv", ".xlsx")  # one such file alone is a table

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="CONFIG.toml|TABLE...",
        help="A settings file, or the parties' tables as FILE or PARTY=FILE.",
        show_default=False,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Column of ids, without a settings file.", show_default="searched"),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Column to predict, without a settings file.")
]


def settings_from(
    sources: Sequence[str], id: str | None, label: str | None, changes: Sequence[str], allow_code: Sequence[str] = ()  # noqa: A002
) -> tuple[Config, Path]:  # fmt: skip
    """Return the settings, and the path of their file; without a file, a path in the current folder that names the run.

    Raises:
        ConfigError: the file or the options cannot be used, or options are given beside a settings file.
        TableError: a table cannot be read.
    """
    from anyparty import config as settings
    from anyparty.config.draft import draft_settings, parties_of
    from anyparty.errors import ConfigError

    files = [text for text in sources if text.lower().endswith(".toml")]
    if len(sources) == 1 and "=" not in sources[0] and not sources[0].lower().endswith(TABLE_ENDINGS):
        files = list(sources)  # any other name of a settings file
    if files:
        if len(sources) > 1:
            raise ConfigError(f"{files[0]}: give one settings file, or only tables")
        if id is not None or label is not None:
            raise ConfigError(f"{files[0]}: --id and --label are for tables without a settings file; use --set "
                              "federation.id=COLUMN or --set federation.label=COLUMN")  # fmt: skip
        return settings.load(files[0], changes, allow_code=allow_code), Path(files[0])
    tables = parties_of(sources)
    if label is None:
        raise ConfigError("name the column to predict: --label COLUMN; `anyparty init` shows the columns that may be "
                          "labels")  # fmt: skip
    draft = draft_settings(tables, id=id, label=label)
    config = settings.from_values(draft.values(), changes, source="settings", folder=Path.cwd())
    return config.allowing(allow_code), Path(_run_name(list(tables)) + ".toml")


def _run_name(parties: Sequence[str], most: int = 4) -> str:
    """Return a name for runs of these parties.

    >>> _run_name(["bank", "shop"]), _run_name(list("abcdef"))
    ('bank-shop', 'a-b-c-d-and-2-more')
    """
    rest = len(parties) - most
    return "-".join(parties[:most]) + (f"-and-{rest}-more" if rest > 0 else "")
