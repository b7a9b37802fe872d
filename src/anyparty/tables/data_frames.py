"""Convert data frames and arrays of other libraries to polars, without importing these libraries."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, TypeGuard
from uuid import UUID

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.errors import TableError
from anyparty.tables.csv_file import check_unique

if TYPE_CHECKING:
    import pandas as pd

_OF_POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


def is_pandas(source: object) -> TypeGuard[pd.DataFrame]:
    """Return whether a source is a pandas data frame; a series has no columns."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def is_arrow(source: object) -> bool:
    """Return whether a source is a table of pyarrow or of another library with Arrow's stream interface."""
    return hasattr(source, "__arrow_c_stream__") and hasattr(source, "schema")


def is_structured(source: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a source is a numpy array with named fields."""
    return isinstance(source, np.ndarray) and source.dtype.names is not None


def from_arrow(source: Any, party: str) -> pl.DataFrame:
    """Convert a pyarrow table."""
    where = f"party {party!r}: Arrow table"
    check_unique([str(name) for name in source.schema.names], where)
    try:
        frame = pl.DataFrame(source)
    except (ValueError, TypeError, *_OF_POLARS) as error:
        raise TableError(f"{where}: polars cannot read it ({_first_line(error)}); convert its columns") from error
    return frame


def from_structured(array: NDArray[Any], party: str) -> pl.DataFrame:
    """Convert a one-dimensional numpy array with named fields [n]."""
    where = f"party {party!r}: array"
    if array.ndim != 1:
        raise TableError(f"{where}: a structured array of shape {array.shape}; expected one dimension, of rows")
    columns = []
    for name in array.dtype.names or ():
        field = array[name]
        if field.ndim != 1:
            raise TableError(f"{where}: field {name!r} holds {field.ndim - 1}-dimensional cells; expected one value")
        cells = field.astype(str) if field.dtype.kind == "S" else np.ascontiguousarray(field)
        columns.append(_series(name, cells.tolist() if cells.dtype.kind in "OUV" else cells, where))
    return pl.DataFrame(columns)


def from_pandas(frame: pd.DataFrame, party: str) -> pl.DataFrame:
    """Convert a pandas frame. Named index levels become columns, and objects of mixed scalar types become text."""
    where = f"party {party!r}: data frame"
    if any(name is not None for name in frame.index.names):
        twice = [k for k, name in enumerate(frame.index.names) if name in frame.columns]  # by set_index(drop=False)
        frame = frame.droplevel(twice) if len(twice) < frame.index.nlevels else frame.reset_index(drop=True)
        frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    check_unique([str(name) for name in frame.columns], where)
    return pl.DataFrame([_from_pandas_column(frame[name], str(name), where) for name in frame.columns])


def _from_pandas_column(column: pd.Series, name: str, where: str) -> pl.Series:
    """Convert one column without pyarrow.

    UUIDs, long integers and mixed scalar types in a column of objects become text.
    """
    kind = str(column.dtype)
    if kind.startswith("Sparse"):
        column = column.sparse.to_dense()
    if kind == "category":  # as text, 1 and "1" are equal
        text = column.map(str, na_action="ignore")
        return _series(name, _listed(text), where).cast(pl.String).cast(pl.Categorical)
    if getattr(column.dtype, "kind", "O") in "biuf" and isinstance(column.dtype, np.dtype):
        return _series(name, np.ascontiguousarray(column.to_numpy()), where)
    if getattr(column.dtype, "kind", "O") in "mM":
        return _moments(column, name, where)
    cells = _listed(column)
    known = [cell for cell in cells if cell is not None]
    scalars = all(isinstance(cell, str | numbers.Number | UUID) for cell in known)
    if scalars and (len({type(cell) for cell in known}) > 1 or any(map(_is_long, known))):
        cells = [None if cell is None else str(cell) for cell in cells]
    if not known:
        return pl.Series(name, cells, dtype=pl.String if kind.startswith(("str", "string")) else pl.Null)
    return _series(name, cells, where)


def _moments(column: pd.Series, name: str, where: str) -> pl.Series:
    """Convert a column of timestamps or durations; those with a time zone keep it."""
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    moments = _series(name, column.to_numpy(), where)
    return moments if zone is None else moments.dt.replace_time_zone("UTC")


def _listed(column: pd.Series) -> list[Any]:
    """Return the cells as Python values, ``None`` where they are missing."""
    missing = column.isna().to_numpy(dtype=bool)
    return [None if gone else cell for cell, gone in zip(column.tolist(), missing, strict=True)]


def _series(name: str, cells: Any, where: str) -> pl.Series:
    try:
        made = pl.Series(name, cells)
    except (ValueError, TypeError, NotImplementedError, OverflowError, RuntimeError, *_OF_POLARS) as error:
        raise TableError(
            f"{where}: column {name!r} has cells that are neither numbers nor text ({_first_line(error)}); drop or "
            "convert it"
        ) from error
    if made.dtype == pl.Object:
        raise TableError(f"{where}: column {name!r} has cells that are neither numbers nor text, such as "
                         f"{type(made.drop_nulls()[0]).__name__}; drop or convert it")  # fmt: skip
    return made


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0]


def _is_long(cell: object) -> bool:
    """Return whether a cell is a UUID or an integer beyond 64 bits; such cells are read as text."""
    return isinstance(cell, UUID) or (isinstance(cell, int) and not -(2**63) <= cell < 2**63)
