"""Kinds of feature columns: which are numeric, which categorical, and which are no features at all."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from anyparty.errors import TableError, some
from anyparty.tables import cells

Kind: TypeAlias = Literal["numeric", "categorical"]

NUMERIC_SHARE = 0.9  # a text column with this share of numbers is a numeric column with mistakes in it
MANY_VALUES = 1000  # a text column with more values than this, and than half its rows, is no category
LARGEST = float(np.finfo(np.float32).max)  # models compute in float32


def feature(column: pl.Series, kind: Kind | None, where: str) -> pl.Series:
    """Return a feature column as its kind says, or as it looks if ``None``: numbers, or String for categories.

    Raises:
        TableError: it is of another type, has a cell that is no number where numbers are expected, an infinite number,
            or text that looks like an identifier.
    """
    where = f"{where}: column {column.name!r}"
    if not column.name:
        raise TableError(f"{where} has no name (pandas writes its index so); name it, or drop it with drop=['']")
    if not (cells.is_text(column) or cells.is_number(column)):
        raise TableError(
            f"{where} is of type {column.dtype}; expected numbers, truth values or text: drop it, or convert it first"
        )
    if kind is None:
        return _inferred(column, where)
    return cells.as_level(column) if kind == "categorical" else _numeric(column, where)


def _inferred(column: pl.Series, where: str) -> pl.Series:
    if cells.is_number(column):
        return _numeric(column, where)
    if cells.is_category(column):
        return cells.as_level(column)
    numbers, bad = cells.as_numbers(column)
    if not bad.any():
        return _finite(numbers, where)
    text = cells.as_level(column)
    known = len(text) - text.null_count()
    if bad.sum() <= (1 - NUMERIC_SHARE) * known:
        return _numeric(column, where, "Nearly all others are")
    values = text.drop_nulls().n_unique()
    if values > max(MANY_VALUES, known / 2):
        raise TableError(
            f"{where} is text with {values} different values in {known} rows, such as {some(text.drop_nulls().head(2))}"
            f": it looks like an identifier or free text; leave it out with drop, or keep it with types: categorical"
        )
    return text


def _numeric(column: pl.Series, where: str, why: str = "Numbers are expected there") -> pl.Series:
    """Return a column of numbers, null where missing; whole numbers and truth values stay as they are."""
    if column.dtype.is_integer() or column.dtype == pl.Boolean:
        return column
    if column.dtype.is_float():
        return _finite(column.fill_nan(None), where)
    numbers, bad = cells.as_numbers(column.cast(pl.String) if cells.is_category(column) else column)
    if bad.any():
        raise TableError(
            f"{where} has cells that are not numbers: {cells.cited(column, bad)}. {why}: mend them, leave them empty"
            f", or declare the column categorical with types"
        )
    return _finite(numbers, where)


def _finite(column: pl.Series, where: str) -> pl.Series:
    """Return the column if a model can compute with its numbers."""
    large = column.abs() > LARGEST
    if large.any():
        raise TableError(
            f"{where} has numbers that are infinite or too large to compute with: {cells.cited(column, large)}; "
            f"mend them, or leave them empty to have them imputed"
        )
    return column
