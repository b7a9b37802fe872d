"""Draft a settings file from tables: read the tables, find the columns of ids and labels, and write TOML with comments.

draft = draft_settings({"bank": Path("bank.csv"), "shop": Path("shop.csv")}, label="default")
Path("settings.toml").write_text(draft.to_toml(Path()))
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from anyparty.errors import ConfigError, TableError, nearest, some
from anyparty.tables import readers, roles
from anyparty.tables.roles import RoleCandidates


@dataclass(frozen=True)
class SettingsDraft:
    """Draft of the settings that training needs: tables, columns of ids, and the label column.

    Attributes:
        tables: each party's file, by party.
        ids: the column of ids, by party.
        label: the column to predict.
        active: the party that holds the label.
        candidates: the columns that may hold ids or labels.
    """

    tables: Mapping[str, Path]
    ids: Mapping[str, str]
    label: str
    active: str
    candidates: RoleCandidates

    @property
    def shared_id(self) -> str | None:
        """Name of the id column if it is the same in all tables, else None."""
        return next(iter(self.ids.values())) if len(set(self.ids.values())) == 1 else None

    def values(self) -> dict[str, Any]:
        """Return the settings as nested dicts, as in a TOML file, with the absolute paths of the tables."""
        own = {} if self.shared_id else self.ids
        return {
            "federation": ({"id": self.shared_id} if self.shared_id else {})
            | {"label": self.label, "active": self.active},
            "parties": {
                party: {"table": str(path.absolute())} | ({"id": own[party]} if own else {})
                for party, path in self.tables.items()
            },
        }

    def to_toml(self, folder: Path) -> str:
        """Return the text of a settings file with comments; its paths are relative to ``folder``, the file's folder."""
        lines = ["# Settings of anyparty, written by `anyparty init`. Lines that begin with # have no effect.", ""]
        lines += ["[federation]"]
        if self.shared_id is not None:
            lines.append(_line("id", self.shared_id, "the column of ids, compared as text"))
        others = [each.column for each in self.candidates.labels if each.column != self.label]
        note = f"; other columns that may be labels: {', '.join(others[:4])}" if others else ""
        lines.append(_line("label", self.label, f"the column to predict{note}"))
        lines.append(_line("active", self.active, "the party that has the labels and leads the training"))
        for party, path in self.tables.items():
            lines += ["", tomli_w.dumps({"parties": {party: {"": ""}}}).splitlines()[0]]
            lines.append(_line("table", _relative(path, folder), "relative to this file"))
            if self.shared_id is None:
                lines.append(_line("id", self.ids[party], "the column of ids"))
            lines.append('# drop = ["name"]                   # columns to leave out')
            lines.append('# types = { postcode = "categorical" }  # correct how a column is read')
        return "\n".join(lines) + "\n" + REST


REST = """
[method]
name = "laser"                      # any of `anyparty methods`

[encoder]                           # the network of every party
hidden = [64]

[optimizer]
lr = 0.003

[train]
epochs = 50
batch_size = 128
validation = 0.15                   # share of labelled rows that choose the best epoch
test = 0.2                          # share of labelled rows that are scored at the end
seed = 0
"""


def _line(key: str, value: str, comment: str) -> str:
    return f"{tomli_w.dumps({key: value}).strip():<36}# {comment}"


def _relative(path: Path, folder: Path) -> str:
    """Return ``path`` relative to ``folder``, or as an absolute path if the two are on different drives."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.absolute().as_posix()


def parties_of(names: Sequence[str]) -> dict[str, Path]:
    """Return each party's file from arguments ``FILE`` or ``PARTY=FILE``; without ``PARTY=``, the file names the party.

    >>> parties_of(["bank.csv", "shop=new/shop-2024.csv.gz"])
    {'bank': PosixPath('bank.csv'), 'shop': PosixPath('new/shop-2024.csv.gz')}

    Raises:
        ConfigError: two files would have the same party name, or a name or a file is empty.
    """
    found: dict[str, Path] = {}
    for text in names:
        party, equals, file = text.partition("=")
        path = Path(file if equals else text)
        name = party.strip() if equals else path.name.split(".")[0]
        if not name or not str(path).strip() or path == Path():
            raise ConfigError(f"{text!r}: expected a table's file, such as bank.csv, or party=file, such as "
                              "bank=tables/bank.csv")  # fmt: skip
        if name in found:
            raise ConfigError(f"{path}: {found[name]} already belongs to party {name!r}; name the parties: "
                              f"{name}1={found[name]} {name}2={path}")  # fmt: skip
        found[name] = path
    return found


def draft_settings(
    tables: Mapping[str, Path], *, id: str | None = None, label: str | None = None,  # noqa: A002 - as in the settings
) -> SettingsDraft:  # fmt: skip
    """Read the parties' tables, and return draft settings for training on them.

    ``id`` and ``label`` name the columns of ids and labels.  The function searches the tables for a column that is not
    named.

    Raises:
        ConfigError: no column can hold the ids or the labels, or several tables have the column ``label``.
        TableError: a table cannot be read or lacks the column ``id``, or no table has the column ``label``.
    """
    columns = {party: readers.names(path, party) for party, path in tables.items()}
    if id is not None:
        for party, names in columns.items():
            if id not in names:
                raise TableError(f"party {party!r}, {tables[party]}: there is no column {id!r}{nearest(id, names)}; "
                                 "rename it in this table, or leave out --id to search for it")  # fmt: skip
    found = roles.find(tables, None if id is None else dict.fromkeys(tables, id))
    if not found.ids:
        raise ConfigError("no column looks like ids that the tables share; name it: --id COLUMN")
    active, chosen = _label(columns, found, label)
    return SettingsDraft(dict(tables), found.ids[0], chosen, active, found)


def _label(columns: Mapping[str, Sequence[str]], found: RoleCandidates, label: str | None) -> tuple[str, str]:
    """Return the active party and its label column: ``label``, or by default the best candidate."""
    if label is None:
        if not found.labels:
            raise ConfigError("no column looks like labels; name it: --label COLUMN")
        return found.labels[0].party, found.labels[0].column
    have = [party for party, names in columns.items() if label in names]
    if len(have) > 1:
        raise ConfigError(f"the tables of {some(have)} have a column {label!r}; rename it in all tables but one, or "
                          "write a settings file that drops it: anyparty init")  # fmt: skip
    if not have:
        known = sorted({name for names in columns.values() for name in names})
        raise TableError(f"no table has the label column {label!r}{nearest(label, known)}; the columns are: "
                         f"{some(known, 12)}")  # fmt: skip
    return have[0], label
