"""The result of an alignment (the rows that each party holds), and the plain join of tables in one process.

A plain join returns all ids, and the position of every row in every party's table. Private alignment gives each party
only the positions of its own rows, and does not reveal ids. All later code therefore uses only positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.core.display import take_rows
from anyparty.errors import AlignmentError, some
from anyparty.tables import cells
from anyparty.tables.checks import EMPTY
from anyparty.tables.ids import NORMALIZATIONS, RESEMBLANCES, Resemblance, normalized, shown
from anyparty.tables.readers import check_not_forked
from anyparty.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

RowKind = Literal["any", "active", "all"]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)


def rows_of(kind: RowKind, observed: NDArray[np.bool_], held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask [N] of the rows that the value ``kind`` of the setting ``train.rows`` selects.

    "any" selects rows that at least one party holds. "active" selects rows that the active party holds. "all" selects
    rows that every party holds.

    >>> observed, held = np.array([[True, True], [False, True]]), np.array([True, True])
    >>> {kind: rows_of(kind, observed, held).tolist() for kind in ROW_KINDS}
    {'any': [True, True], 'active': [True, True], 'all': [True, False]}

    Args:
        kind: "any", "active" or "all".
        observed: [N, K], True if party k holds row n.
        held: [N], True if the active party's table has row n, even if the row has only a label there.
    """
    if kind == "any":
        return np.ones(len(held), dtype=np.bool_)
    return held.copy() if kind == "active" else held & observed.all(axis=1)


@dataclass(frozen=True)
class Alignment:
    """The union of all parties' rows, and the position of each row at every party.

    Attributes:
        parties: all parties, in the roster's order.
        n: N, the number of rows in the union.
        position: for each party, [N] int64: the index of the party's own row for aligned row n; -1 if the party does
            not hold the row.
        ids: [N] the rows' ids, sorted as text; ``None`` after a private alignment.
        id_columns: [N, m] the m id columns, with the names and types of one party's table; ``None`` after a private
            alignment.
        blocks: a copy of ``position`` that also has -1 for rows whose cells are all empty; by default ``position``
            itself.
    """

    parties: tuple[str, ...]
    n: int
    position: dict[str, NDArray[np.int64]]
    ids: pl.Series | None = None
    blocks: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    id_columns: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        self.blocks.update(self.position | self.blocks)
        assert all(at.shape == (self.n,) and at.dtype == np.int64 for at in self.position.values())
        assert self.ids is None or len(self.ids) == self.n

    def observed(self, blocks: Sequence[str]) -> NDArray[np.bool_]:
        """Return the mask [N, K]: True if row n is held by the k-th party in the list ``blocks``.

        >>> at = {"a": np.array([0, -1]), "b": np.array([1, 0])}
        >>> Alignment(("a", "b"), 2, at).observed(["a", "b"]).tolist()
        [[True, True], [False, True]]
        """
        out = np.empty((self.n, len(blocks)), dtype=np.bool_)
        for k, party in enumerate(blocks):
            np.greater_equal(self.blocks[party], 0, out=out[:, k])
        return out

    def identities(self, rows: NDArray[np.int64]) -> pl.DataFrame | None:
        """Return the id columns [b, m] of the aligned rows with indices ``rows`` [b]; ``None`` if unknown."""
        if self.id_columns is not None:
            return take_rows(self.id_columns, rows)
        return None if self.ids is None else self.ids.gather(rows).cast(pl.String).alias("id").to_frame()

    def take(self, rows: NDArray[np.int64]) -> Alignment:
        """Return the alignment of the aligned rows with indices ``rows`` [n], in this order."""
        return Alignment(
            self.parties,
            len(rows),
            {name: at[rows] for name, at in self.position.items()},
            None if self.ids is None else self.ids.gather(rows),
            {name: at[rows] for name, at in self.blocks.items()},
            None if self.id_columns is None else take_rows(self.id_columns, rows),
        )

    def as_given(self, rows: NDArray[np.int64], first: str) -> NDArray[np.int64]:
        """Return the permutation [b] that sorts the aligned rows ``rows`` [b] as in the parties' own tables.

        Rows in the table of party ``first`` come first, in the order of that table. Rows that are only in other tables
        follow, one table after another.

        >>> at = {"a": np.array([-1, 1, 0]), "b": np.array([0, 1, -1])}
        >>> Alignment(("a", "b"), 3, at).as_given(np.array([0, 1, 2]), "a").tolist()
        [2, 1, 0]
        """
        names = sorted(self.parties, key=lambda name: name != first)
        place, owner = np.zeros_like(rows), np.full_like(rows, len(names))
        for k, name in enumerate(names):
            at = self.position[name][rows]
            new = (owner == len(names)) & (at >= 0)
            place[new], owner[new] = at[new], k
        return np.lexsort((place, owner))


@dataclass(frozen=True, kw_only=True)
class PartyAlignment:
    """One party's share of an alignment.

    Attributes:
        position: [N] int64, the index of the party's own row for each aligned row; -1 if the party does not hold it.
        observed: [N, K] bool, True if party k holds row n; ``None`` at parties without labels.
        key: [N] int64, a number that identifies the row; ``None`` at passive parties.
    """

    position: NDArray[np.int64]
    observed: Tensor | None = None
    key: Tensor | None = None


def align(tables: Sequence[Table], *, apart: bool = False, first: str | None = None) -> Alignment:
    """Join the tables by id. The aligned rows are the union of all ids, sorted as text.

    The id columns of the result have the names and types of the id columns in one table: the table of the party
    ``first``, by default the first table.

    If ``apart`` is true, as in prediction, it is not an error if the tables have no common id. Rows that have neither
    cells nor a label are then aligned too.

    >>> from anyparty.tables.table import read_table
    >>> bank = read_table(pl.DataFrame({"id": [3, 1], "age": [41, 52]}), party="bank", id="id")
    >>> shop = read_table(pl.DataFrame({"id": ["2", "3"], "sum": [9.5, 7.0]}), party="shop", id="id")
    >>> both = align([bank, shop])
    >>> both.ids.to_list(), both.position["bank"].tolist(), both.position["shop"].tolist()
    (['1', '2', '3'], [1, -1, 0], [-1, 0, 1])

    Raises:
        AlignmentError: there are no tables, two parties have the same name, or no id is known to two parties.
    """
    check_not_forked()
    if not tables:
        raise AlignmentError("there are no tables to align; give at least one party's")
    _check(tables)
    ids = [table.ids.alias("id") if apart else table.ids.alias("id").filter(table.has_content) for table in tables]
    union = pl.concat(ids).unique().sort()
    if not apart and len(tables) > 1 and len(union) == sum(map(len, ids)):
        raise AlignmentError(_no_overlap(tables))
    rows = union.to_frame().with_row_index("row")
    position = {table.party: _positions(rows, table.ids) for table in tables}
    return Alignment(
        parties=tuple(table.party for table in tables),
        n=len(union),
        position=position,
        ids=union,
        blocks={table.party: table.blocks_at(position[table.party]) for table in tables},
        id_columns=_id_columns(position, tables, first or tables[0].party),
    )


def _id_columns(position: Mapping[str, NDArray[np.int64]], tables: Sequence[Table], first: str) -> pl.DataFrame | None:
    """Return the id columns [N, m] of the aligned rows, with the names and types of the table of party ``first``.

    A row's ids are taken from the table of party ``first``. If this table lacks the row, they are taken from the first
    table that has the row. A column becomes text if an id from another table would change in its type.
    """
    held = [(table.party, table.id_columns) for table in tables if table.id_columns is not None]
    if len(held) < len(tables):
        return None
    held.sort(key=lambda each: each[0] != first)
    columns, missing = held[0][1].columns, np.ones(len(position[first]), dtype=np.bool_)
    rows = []
    for party, _ in held:
        rows.append(pl.Series(np.where(missing & (position[party] >= 0), position[party], -1)))
        missing &= position[party] < 0
    made = []
    for place, name in enumerate(columns):
        found = [own.to_series(place).gather(at.set(at < 0, None)) for (_, own), at in zip(held, rows, strict=True)]
        cast = [cells.with_type(each, found[0].dtype) for each in found]
        known = [each for each in cast if each is not None]
        parts = known if len(known) == len(found) else [cells.as_text(each) for each in found]
        made.append(pl.select(pl.coalesce(*parts)).to_series().alias(name))
    return pl.DataFrame(made)


def _check(tables: Sequence[Table]) -> None:
    parties = Counter(table.party for table in tables)
    if len(parties) < len(tables):
        twice = [name for name, count in parties.items() if count > 1]
        files = [table.source for table in tables if table.party in twice]
        raise AlignmentError(f"each party needs a name of its own, but {some(twice)} names several: {some(files)}")
    if len({table.id_columns.width for table in tables if table.id_columns is not None}) > 1:
        named = {table.party: table.id_columns.columns for table in tables if table.id_columns is not None}
        listed = "; ".join(f"{party}: {some(each)}" for party, each in named.items())
        raise AlignmentError(f"the parties have different numbers of id columns ({listed}); name equally many, in the "
                             "same order, with id in [parties.NAME]")  # fmt: skip


def _positions(union: pl.DataFrame, ids: pl.Series) -> NDArray[np.int64]:
    """Return, for each id of ``union``, its index in the list ``ids`` of one party; -1 if the list lacks the id.

    ``union`` has the columns id and row (the row's index in the result).
    """
    own = pl.DataFrame({"id": ids, "at": pl.int_range(len(ids), dtype=pl.Int64, eager=True)})
    found = union.join(own, on="id", how="inner")
    position = np.full(union.height, -1, dtype=np.int64)
    position[found["row"].to_numpy()] = found["at"].to_numpy()
    return position


def _no_overlap(tables: Sequence[Table]) -> str:
    examples = "; ".join(
        f"{table.party} ({table.source}): {some(map(shown, table.ids.sort().head(2)))}" for table in tables
    )
    blank = "".join(f". {note}" for table in tables for note in table.notes if EMPTY in note)
    return (
        f"no id is known to two parties, so there is nothing to learn together. Ids look like this: {examples}. "
        f"Check that the id columns name the same things and are written the same way"
        f"{hint([table.ids.filter(table.has_content) for table in tables])}{blank}"
    )


def hint(ids_of: Sequence[pl.Series]) -> str:
    """Return a possible reason why the parties' ids differ, for the end of an error message; "" if no reason is found.

    >>> print(hint([pl.Series(["007", "x"]), pl.Series(["7", "y"])]))
    : 1 would be equal but for leading zeros; id_normalize = ["strip-zeros"] in [federation] removes this difference
    >>> hint([pl.Series(["1"]), pl.Series(["2"])])
    ''

    Args:
        ids_of: each party's ids; no id is known to two parties.
    """
    ids = pl.concat([each.alias("id") for each in ids_of])
    owner = np.repeat(np.arange(len(ids_of)), [len(each) for each in ids_of])
    own = owner[:, None] == np.arange(len(ids_of))
    best = max(nearly(ids, own, ~own), key=lambda each: each.count)
    if best.count:
        return f": {best.count:,} would be equal but for {best.difference}; {best.remedy}"
    counts = [max(resembling(ids, own, ~own, each)) for each in RESEMBLANCES]
    if count := max(counts):
        return f": {count:,} would be equal {RESEMBLANCES[counts.index(count)].difference}"
    return ""


def resembling(
    ids: pl.Series, own: NDArray[np.bool_], others: NDArray[np.bool_], alike: Resemblance, *, whole: bool = False
) -> list[int]:  # fmt: skip
    """Return, for each party, how many of its ids look like another party's id.

    Texts that several ids of one party share do not count, because they do not identify a row. If ``whole`` is true,
    one of the two ids must be the text that they share; A-17 and B-17 may belong to different people. The other
    arguments are those of ``nearly``.
    """
    every, counts = tuple(NORMALIZATIONS), list[int]()
    keys = normalized(alike.key(ids), every)
    same = (keys == normalized(ids, every)).fill_null(value=False) | (not whole)
    for k in range(own.shape[1]):
        held, local = pl.Series(~others[:, k]), pl.Series(own[:, k])
        mine = pl.DataFrame({"key": keys, "same": same}).filter(held).with_columns(local=local.filter(held))
        mine = mine.filter(pl.col("key").is_unique() & pl.col("local")).drop_nulls()
        remote = keys.filter(~held).drop_nulls().unique()
        certain = keys.filter(~held & same).drop_nulls().unique()
        found = mine["key"].is_in(certain.implode()) | (mine["same"] & mine["key"].is_in(remote.implode()))
        counts.append(int(found.sum()))
    return counts


@dataclass(frozen=True)
class NearMatch:
    """A report on changes that would make some of a party's ids equal to other parties' ids.

    Attributes:
        count: the number of the party's ids that would become equal.
        changes: the changes, such as "strip-zeros", in the form of the setting ``id_normalize``; () if ``count`` is 0.
    """

    count: int = 0
    changes: tuple[str, ...] = ()

    @property
    def difference(self) -> str:
        """The differences between ids that the changes remove, in words."""
        return " and ".join(NORMALIZATIONS[name].difference for name in self.changes)

    @property
    def remedy(self) -> str:
        """A sentence that recommends the setting ``id_normalize``, to remove the differences."""
        named = ", ".join(f'"{name}"' for name in self.changes)
        return f"id_normalize = [{named}] in [federation] removes this difference"


def nearly(ids: pl.Series, own: NDArray[np.bool_], others: NDArray[np.bool_]) -> list[NearMatch]:
    """Find, for each party, how to rewrite ids (without leading zeros, for example) so that more of its ids match.

    The rewritten ids are compared with the rewritten ids of other parties. A rewriting that adds no match is left out.

    Args:
        ids: [N], the distinct ids of all parties.
        own: [N, K] bool, True if party k is the only party that has the id.
        others: [N, K] bool, True if party k does not have the id.
    """
    every = tuple(NORMALIZATIONS)
    most = _equal(ids, own, others, every)
    if not any(most):
        return [NearMatch()] * own.shape[1]
    single = {name: _equal(ids, own, others, (name,)) for name in every}
    found = []
    for k, count in enumerate(most):
        alone = max(every, key=lambda name: single[name][k])
        if single[alone][k] >= count:
            found.append(NearMatch(single[alone][k], (alone,) if single[alone][k] else ()))
            continue
        changes = every
        for name in every:
            fewer = tuple(each for each in changes if each != name)
            if _equal(ids, own[:, [k]], others[:, [k]], fewer)[0] == count:
                changes = fewer
        found.append(NearMatch(count, changes))
    return found


def _equal(ids: pl.Series, own: NDArray[np.bool_], others: NDArray[np.bool_], changes: Sequence[str]) -> list[int]:
    """Return, for each party, how many of its ids equal another party's id after the ``changes``."""
    changed = normalized(ids, changes)
    alike = changed.is_duplicated().arg_true().to_numpy()
    if not len(alike):
        return [0] * own.shape[1]
    changed = changed.gather(alike)
    counts = []
    for k in range(own.shape[1]):
        local, remote = (changed.filter(pl.Series(of[alike, k])) for of in (own, others))
        counts.append(int(local.unique().is_in(remote.unique().implode()).sum()))
    return counts
