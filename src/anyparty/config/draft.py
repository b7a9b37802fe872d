"""Draft a settings file for given tables: find the columns of ids and labels, and write TOML with comments.

    draft = draft_settings({"bank": Path("bank.csv"), "shop": Path("shop.csv")}, label="default")
    Path("settings.toml").write_text(draft.to_toml(Path()))

    found = find_roles({"bank": "bank.csv", "shop": "shop.csv"})
    found.ids[0]  # {"bank": "customer", "shop": "customer"}
    found.labels[0]  # LabelCandidate(party="bank", column="default", levels=2)

The columns found are suggestions, which the user should check before training.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import tomli_w

from anyparty.errors import ConfigError, TableError, continued, nearest, some
from anyparty.tables import cells, readers
from anyparty.tables.column_types import FEW_LEVELS

if TYPE_CHECKING:
    from anyparty.tables.readers import Source

NEARLY_UNIQUE = 0.9  # a column may hold ids if at least this share of its cells is distinct
DECIMAL = r"^[+-]?\d*\.\d+([eE][+-]?\d+)?$"
USUAL_LABELS = frozenset({"class", "default", "diagnosis", "fraud", "label", "outcome", "response", "target", "y"})
USUAL_IDS = frozenset({"id", "ids", "key", "index"})


@dataclass(frozen=True)
class LabelCandidate:
    """A column that may hold the labels, with its number of distinct cells."""

    party: str
    column: str
    levels: int


@dataclass(frozen=True)
class RoleCandidates:
    """The columns that may hold ids or labels, most likely first.

    Attributes:
        ids: candidates for the id columns; each candidate has one column for each party.
        shared: for each candidate, the mean share of the first table's ids that another table also has.
        labels: the columns that may hold labels.
    """

    ids: tuple[dict[str, str], ...]
    shared: tuple[float, ...]
    labels: tuple[LabelCandidate, ...]


def find_roles(sources: Mapping[str, Source], ids: Mapping[str, str] | None = None) -> RoleCandidates:
    """Find the columns that may hold the ids and the labels.

    Args:
        sources: each party's table, by party.
        ids: the column of ids for each party, if it is known.

    Raises:
        TableError: a table cannot be read, or has no rows.
    """
    frames = {party: readers.read(source, party).cells for party, source in sources.items()}
    for party, frame in frames.items():
        if frame.height == 0:
            raise TableError(f"party {party!r}, {sources[party]}: there are no rows; at least one was expected below "
                             "the column names")  # fmt: skip
    found = [(1.0, dict(ids))] if ids else _id_candidates(frames)
    chosen = found[0][1] if found else {}
    return RoleCandidates(
        tuple(columns for _, columns in found), tuple(share for share, _ in found), _label_candidates(frames, chosen)
    )


def _id_candidates(frames: Mapping[str, pl.DataFrame]) -> list[tuple[float, dict[str, str]]]:
    """Return candidates for the id columns, with the mean share of ids that tables have in common; best first.

    Each candidate has one column for each table.
    """
    distinct = {
        party: {column.name: ids for column in frame.iter_columns() if (ids := _distinct_ids(column)) is not None}
        for party, frame in frames.items()
    }
    first, *others = frames
    found = []
    for name, ids in distinct[first].items():
        columns, shares = {first: name}, list[float]()
        for party in others:
            best = max(((_shared(ids, other), _plain(column) == _plain(name), column)
                        for column, other in distinct[party].items()), default=None)  # fmt: skip
            if best is None or not (best[0] or best[1]):
                break
            columns[party] = best[2]
            shares.append(best[0])
        if len(columns) == len(frames):
            found.append((sum(shares) / len(shares) if shares else 1.0, columns))
    return sorted(found, key=lambda each: (-each[0], not _plain(each[1][first]).endswith(tuple(USUAL_IDS))))


def _distinct_ids(column: pl.Series) -> pl.Series | None:
    """Return a column's distinct cells as text, or ``None`` if the column cannot hold ids."""
    if not (cells.is_text(column) or column.dtype.is_integer()):
        return None
    text = cells.as_text(column)
    if not len(text) or text.null_count() or text.str.contains(DECIMAL).sum() > (1 - NEARLY_UNIQUE) * len(text):
        return None
    distinct = text.unique()
    return distinct if len(distinct) >= NEARLY_UNIQUE * len(text) else None


def _shared(ids: pl.Series, others: pl.Series) -> float:
    """Return the share of common ids in the smaller of two sets of ids."""
    return float(ids.is_in(others.implode()).sum()) / min(len(ids), len(others))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _label_candidates(frames: Mapping[str, pl.DataFrame], ids: Mapping[str, str]) -> tuple[LabelCandidate, ...]:
    """Return the columns that may hold labels: columns with few distinct cells, or with a usual name such as label.

    A column name that occurs in several tables is left out.
    """
    names = [name for frame in frames.values() for name in frame.columns]
    found = []
    for party, frame in frames.items():
        for column in frame.iter_columns():
            typed = cells.is_text(column) or cells.is_number(column) or column.dtype == pl.Boolean
            if column.name == ids.get(party) or names.count(column.name) > 1 or not typed:
                continue
            usual, levels = _plain(column.name) in USUAL_LABELS, cells.as_text(column).drop_nulls().n_unique()
            if levels < 2 or not (usual or levels <= FEW_LEVELS):
                continue
            rank = (not usual, column.name != frame.columns[-1], levels)
            found.append((rank, LabelCandidate(party, column.name, levels)))
    return tuple(candidate for _, candidate in sorted(found, key=lambda each: each[0]))


@dataclass(frozen=True)
class SettingsDraft:
    """A draft of the settings that training needs: tables, columns of ids, and the label column.

    Attributes:
        tables: for each party, its file.
        ids: for each party, its column of ids.
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
        """The name of the id column if all tables use the same name, else None."""
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
        """Return the text of a settings file in ``folder``, with comments and relative paths."""
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
name = "sum"                        # any of `anyparty methods`; encoder, optimizer and epochs depend on it

[train]
# epochs = 15                       # other settings: docs/reference/settings.md
validation = 0.15                   # share of labelled rows that are scored after every epoch
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
    """Return a mapping from party names to files, made from arguments ``FILE`` or ``PARTY=FILE``.

    Without ``PARTY=``, the party's name is the name of the file up to its first dot.

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
        if path.absolute() in {each.absolute() for each in found.values()}:
            raise ConfigError(f"{path}: this file is given twice; give each party's table once")
        if name in found:
            raise ConfigError(f"{path}: {found[name]} already belongs to party {name!r}; name the parties: "
                              f"{name}1={found[name]} {name}2={path}")  # fmt: skip
        found[name] = path
    return found


def ids_by_party(words: Sequence[str], parties: Collection[str]) -> str | dict[str, str] | None:
    """Return the id columns that options ``--id COLUMN`` or ``--id PARTY=COLUMN`` name; ``None`` without options.

    >>> ids_by_party(["bank=customer", "shop=client"], ["bank", "shop"])
    {'bank': 'customer', 'shop': 'client'}
    >>> ids_by_party(["customer"], ["bank", "shop"])
    'customer'

    Raises:
        ConfigError: a party is unknown, is named twice or is left out, or several columns have no party.
    """
    if len(words) == 1 and "=" not in words[0]:
        return words[0]
    found: dict[str, str] = {}
    for word in words:
        party, equals, column = (part.strip() for part in word.partition("="))
        if not equals or not column or party in found:
            raise ConfigError(f"--id {word}: write --id COLUMN once for all tables, or once for each party, "
                              f"{_id_options(parties)}")  # fmt: skip
        if party not in parties:
            raise ConfigError(f"--id {word}: there is no party {party!r}{nearest(party, parties)}")
        found[party] = column
    if found and (lacking := [party for party in parties if party not in found]):
        raise ConfigError(f"--id: no column for party {some(lacking)}; name one for each party: {_id_options(parties)}")
    return found or None


def _id_options(parties: Iterable[str]) -> str:
    return " ".join(f"--id {party}=COLUMN" for party in parties)


def draft_settings(
    tables: Mapping[str, Path], *, id: str | Mapping[str, str] | None = None,  # noqa: A002 - the setting is called id
    label: str | None = None,
) -> SettingsDraft:  # fmt: skip
    """Return a draft of the settings for training on the parties' tables.

    ``id`` is the name of the column of ids, one for all tables or by party, and ``label`` the name of the column of
    labels. If one is ``None``, the function looks for this column in the tables.

    Raises:
        ConfigError: no column can hold the ids or the labels, or several tables have a column with the name ``label``.
        TableError: a table cannot be read, has no rows or has no column with the name ``id``, or no table has a column
            with the name ``label``.
    """
    columns = {party: readers.names(path, party) for party, path in tables.items()}
    ids = id if id is None or isinstance(id, Mapping) else dict.fromkeys(tables, id)
    for party, column in (ids or {}).items():
        if column not in columns[party]:
            message = (
                f"party {party!r}, {tables[party]}: there is no column {column!r}{nearest(column, columns[party])}"
            )
            advice = f"name the column of each table: {_id_options(tables)}; or leave out --id to search for it"
            raise TableError(continued(continued(message, advice), readers.header_below(tables[party], party, column)))
    found = find_roles(tables, ids)
    if not found.ids:
        raise ConfigError("no column looks like ids that the tables share; name it: --id COLUMN, or, if the names "
                          f"differ, {_id_options(tables)}")  # fmt: skip
    active, chosen = _label(columns, found, label)
    return SettingsDraft(dict(tables), found.ids[0], chosen, active, found)


def _label(columns: Mapping[str, Sequence[str]], found: RoleCandidates, label: str | None) -> tuple[str, str]:
    """Return the active party and its label column, which is the likeliest candidate if ``label`` is ``None``."""
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
        raise TableError(f"no table has the label column {label!r}{nearest(label, known)}")
    return have[0], label
