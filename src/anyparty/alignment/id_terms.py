"""The part of the terms of a private alignment that describes ids: their normalization and number of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from anyparty.tables.ids import JOINT, NORMALIZATIONS, check_normalize

MOST_COLUMNS = 8  # the largest number of id columns that an error can name


@dataclass(frozen=True)
class IdTerms:
    """How a party's ids are made.

    Attributes:
        normalize: the changes of ids.
        columns: the number of id columns.
    """

    normalize: tuple[str, ...] = ()
    columns: int = 1

    @classmethod
    def of(cls, ids: pl.Series, normalize: Sequence[str]) -> IdTerms:
        """Return the terms of ids [n] after the changes ``normalize``."""
        return cls(check_normalize(normalize), 1 if not len(ids) else str(ids[0]).count(JOINT) + 1)

    def __str__(self) -> str:
        """Describe the terms as settings."""
        columns = f" and {self.columns} id columns" if self.columns > 1 else ""
        return f"id_normalize = {list(self.normalize)}{columns}"

    def text(self) -> str:
        """Return the text that enters the hash of all terms; "" for one column that is not changed."""
        return "" if self == IdTerms() else f"\n{','.join(self.normalize)}\n{self.columns}"

    def other_with(self, is_hash_of: Callable[[str], bool]) -> IdTerms | None:
        """Return the other terms whose text has a hash, to name another party's setting in an error."""
        return next((terms for terms in _every() if terms != self and is_hash_of(terms.text())), None)


def _every() -> Iterator[IdTerms]:
    for columns in range(1, MOST_COLUMNS + 1):
        for count in range(len(NORMALIZATIONS) + 1):
            for changes in combinations(NORMALIZATIONS, count):
                yield IdTerms(changes, columns)
