"""The result of an alignment: which party holds which row.

A plain join knows all positions and ids. Private alignment gives each party only the positions of its own rows, and
does not reveal ids. All later code therefore uses only positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from anyparty.core.predictions import take_rows

RowKind = Literal["any", "active", "all"]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)


def rows_of(kind: RowKind, observed: NDArray[np.bool_], held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask [N] of a kind of rows: all, those of the active party's table, or those that all parties hold.

    >>> observed, held = np.array([[True, True], [False, True]]), np.array([True, True])
    >>> {kind: rows_of(kind, observed, held).tolist() for kind in ROW_KINDS}
    {'any': [True, True], 'active': [True, True], 'all': [True, False]}

    Args:
        kind: the kind of rows, as in the setting ``train.rows``.
        observed: [N, K], True if party k holds row n.
        held: [N], True if the active party's table has row n, possibly with a label alone.
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
        position: by party, [N] int64: the index of the party's own row for aligned row n; -1 if the party does not
            hold the row.
        ids: [N] the rows' ids, sorted as text; ``None`` under private alignment.
        id_columns: [N, m] the m id columns with the names and types of one party's table; ``None`` under private
            alignment.
        blocks: as ``position``, but also -1 if all cells of the party's own row are empty; by default ``position``.
    """

    parties: tuple[str, ...]
    n: int
    position: dict[str, NDArray[np.int64]]
    ids: pl.Series | None = None
    blocks: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    id_columns: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        self.blocks.update({name: at for name, at in self.position.items() if name not in self.blocks})
        assert all(at.shape == (self.n,) and at.dtype == np.int64 for at in self.position.values())
        assert self.ids is None or len(self.ids) == self.n

    def observed(self, blocks: Sequence[str]) -> NDArray[np.bool_]:
        """Return the mask [N, K] of rows that each of the K parties ``blocks`` holds.

        >>> at = {"a": np.array([0, -1]), "b": np.array([1, 0])}
        >>> Alignment(("a", "b"), 2, at).observed(["a", "b"]).tolist()
        [[True, True], [False, True]]
        """
        out = np.empty((self.n, len(blocks)), dtype=np.bool_)
        for k, party in enumerate(blocks):
            np.greater_equal(self.blocks[party], 0, out=out[:, k])
        return out

    def identities(self, rows: NDArray[np.int64]) -> pl.DataFrame | None:
        """Return the id columns [b, m] of aligned rows [b]; ``None`` if the ids are not known."""
        if self.id_columns is not None:
            return take_rows(self.id_columns, rows)
        return None if self.ids is None else self.ids.gather(rows).cast(pl.String).alias("id").to_frame()

    def take(self, rows: NDArray[np.int64]) -> Alignment:
        """Return the alignment of only those aligned rows whose indices are ``rows`` [n], in this order."""
        return Alignment(
            self.parties,
            len(rows),
            {name: at[rows] for name, at in self.position.items()},
            None if self.ids is None else self.ids.gather(rows),
            {name: at[rows] for name, at in self.blocks.items()},
            None if self.id_columns is None else take_rows(self.id_columns, rows),
        )

    def as_given(self, rows: NDArray[np.int64], first: str) -> NDArray[np.int64]:
        """Return the permutation [b] that sorts ``rows`` [b] by the order of the tables.

        The rows of party ``first`` come first, in its table's order. Rows that it does not hold follow, party by party.

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
    """One party's view of an alignment.

    Attributes:
        position: [N] int64, the index of the party's own row for each aligned row; -1 if the party does not hold it.
        observed: [N, K] bool, True if party k holds row n. Only the active party has this mask, and sends it to label
            holders.
        key: [N] int64, a number that identifies the row; ``None`` at passive parties.
    """

    position: NDArray[np.int64]
    observed: Tensor | None = None
    key: Tensor | None = None
