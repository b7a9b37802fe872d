"""Find the columns of several tables that may hold the ids and the labels, from names and cells.

    found = roles.find({"bank": "bank.csv", "shop": "shop.csv"})
    found.ids[0]     # {"bank": "customer", "shop": "customer"}
    found.labels[0]  # LabelCandidate(party="bank", column="default", levels=2)

The candidates are suggestions for a person.  Training uses only the columns that the settings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from anyparty.tables import cells, readers
from anyparty.tables.column_types import FEW_LEVELS

if TYPE_CHECKING:
    from anyparty.tables.readers import Source

NEARLY_UNIQUE = 0.9  # smallest share of distinct cells in a column of ids; a few repeated ids may be mistakes
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
    """The columns that may hold ids or labels, best candidates first.

    Attributes:
        ids: for each candidate, the column of ids by party.
        shared: for each candidate in ``ids``, the mean share of ids that the first table shares with another table.
        labels: the columns that may hold labels.
    """

    ids: tuple[dict[str, str], ...]
    shared: tuple[float, ...]
    labels: tuple[LabelCandidate, ...]


def find(sources: Mapping[str, Source], ids: Mapping[str, str] | None = None) -> RoleCandidates:
    """Find the columns that may hold the ids and the labels.

    Args:
        sources: each party's table, by party.
        ids: the column of ids by party, if it is known.

    Raises:
        TableError: a table cannot be read.
    """
    frames = {party: readers.read(source, party).cells for party, source in sources.items()}
    found = [(1.0, dict(ids))] if ids else _id_candidates(frames)
    chosen = found[0][1] if found else {}
    return RoleCandidates(
        tuple(columns for _, columns in found), tuple(share for share, _ in found), _label_candidates(frames, chosen)
    )


def _id_candidates(frames: Mapping[str, pl.DataFrame]) -> list[tuple[float, dict[str, str]]]:
    """Return candidates for the id columns of all tables, each with its mean share of common ids, best first.

    Each column of the first table gives at most one candidate.
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
    """Return the number of common ids, as a share of the smaller table."""
    return float(ids.is_in(others.implode()).sum()) / min(len(ids), len(others))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _label_candidates(frames: Mapping[str, pl.DataFrame], ids: Mapping[str, str]) -> tuple[LabelCandidate, ...]:
    """Return columns with few distinct cells or a usual name of labels, if only one table has a column of this name."""
    names = [name for frame in frames.values() for name in frame.columns]
    found = []
    for party, frame in frames.items():
        for column in frame.iter_columns():
            if column.name == ids.get(party) or names.count(column.name) > 1:
                continue
            usual, levels = _plain(column.name) in USUAL_LABELS, cells.as_text(column).drop_nulls().n_unique()
            if levels < 2 or not (usual or levels <= FEW_LEVELS):
                continue
            rank = (not usual, column.name != frame.columns[-1], levels)
            found.append((rank, LabelCandidate(party, column.name, levels)))
    return tuple(candidate for _, candidate in sorted(found, key=lambda each: each[0]))
