"""Convert data frames and arrays of other libraries to polars, without importing these libraries."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard
from uuid import UUID

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.errors import TableError, nearest
from anyparty.tables.csv_file import check_unique

if TYPE_CHECKING:
    import pandas as pd

ID, LABEL = "id", "label"  # column names in tables that are made from arrays
_OF_POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


def is_pandas(source: object) -> TypeGuard[pd.DataFrame]:
    """Return whether a source is a pandas data frame, or an object of a subclass such as geopandas has."""
    of_pandas = any(each.__module__.split(".")[0] == "pandas" for each in type(source).__mro__)
    return of_pandas and hasattr(source, "columns")


def is_arrow(source: object) -> bool:
    """Return whether a source is a pyarrow table, or another table with Arrow's stream interface."""
    return hasattr(source, "__arrow_c_stream__") and hasattr(source, "schema")


def is_structured(source: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a source is a numpy array with named fields."""
    return isinstance(source, np.ndarray) and source.dtype.names is not None


def from_arrow(source: Any, party: str) -> pl.DataFrame:
    """Convert a pyarrow table, or another table with Arrow's stream interface, to a polars frame."""
    where = f"party {party!r}: Arrow table"
    check_unique([str(name) for name in source.schema.names], where)
    try:
        frame = pl.DataFrame(source)
    except (ValueError, TypeError, *_OF_POLARS) as error:
        raise TableError(f"{where}: polars cannot read it ({_first_line(error)}); convert its columns") from error
    return frame


def from_structured(array: NDArray[Any], party: str) -> pl.DataFrame:
    """Convert a one-dimensional numpy array with named fields [n] to a polars frame."""
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
    """Convert a pandas frame to polars. Named index levels become columns, and mixed scalar types become text."""
    where = f"party {party!r}: data frame"
    if any(name is not None for name in frame.index.names):
        # drop an index level that is also a column, as after set_index(drop=False)
        twice = [k for k, name in enumerate(frame.index.names) if name in frame.columns]
        frame = frame.droplevel(twice) if len(twice) < frame.index.nlevels else frame.reset_index(drop=True)
        frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    check_unique([str(name) for name in frame.columns], where)
    return pl.DataFrame([_from_pandas_column(frame[name], str(name), where) for name in frame.columns])


def is_array(source: object) -> bool:
    """Return whether a source is a numpy array without named fields, or a torch tensor."""
    return hasattr(source, "detach") or (isinstance(source, np.ndarray) and not is_structured(source))


def tables_of_arrays(
    arrays: Mapping[str, Any], y: Any = None, *, observed: Any = None, ids: Sequence[Any] | None = None,
    active: str | None = None, new: bool = False,
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """Convert arrays with the same n rows to the parties' tables, with the columns id, x0, x1, ...

    A party lacks a row if ``observed`` is False for the row, or if all the party's numbers in the row are NaN.  The
    active party's table also has the column label.  This table has all n rows, so that it has all labels; rows that the
    active party lacks have empty cells. The tables of the passive parties contain only their own rows.

    Args:
        arrays: for each party, numbers [n, ...], rows first; the numbers of a row are flattened in C order.
        y: the labels [n]; ``None`` or NaN for a row without a label.
        observed: [n, K] bool, True if the k-th party has the row; or a mapping or a frame with a mask [n] for each
            party. By default, all parties have all rows.
        ids: the ids of the rows; by default 0, 1, ..., n - 1.
        active: the party that has the labels; by default the first one.
        new: whether the rows are for prediction, so that a party may have none of them.

    Raises:
        TableError: an argument has a wrong type or shape, or ``observed`` has another party; the message contains the
            argument's name.
    """
    blocks = {party: _block(array, party) for party, array in arrays.items()}
    if not blocks:
        raise TableError("arrays: expected an array for at least one party, got none")
    sizes = {party: len(block) for party, block in blocks.items()}
    n = next(iter(sizes.values()))
    if set(sizes.values()) != {n}:
        raise TableError(f"arrays: expected the same number of rows for every party, got "
                         f"{', '.join(f'{party}: {size:,}' for party, size in sizes.items())}; a row of NaN says that "
                         f"the party lacks the row")  # fmt: skip
    first = next(iter(blocks)) if active is None else active
    if first not in blocks:
        raise TableError(f"active: there is no party {first!r}{nearest(first, blocks)}")
    present, labels, names = _mask(observed, n, blocks), _labels(y, n), list(range(n) if ids is None else ids)
    if len(names) != n:
        raise TableError(f"ids: expected {n:,} ids, one for each row, got {len(names):,}")
    frames = {}
    for k, (party, block) in enumerate(blocks.items()):
        rows = present[:, k] & ~np.isnan(block).all(axis=1)
        cells = np.where(rows[:, None], block, np.nan) if party == first else block[rows]
        columns = pl.from_numpy(cells, schema=[f"x{c}" for c in range(block.shape[1])]).fill_nan(None)
        frames[party] = columns.insert_column(0, _series(ID, names, "ids").filter(pl.Series(rows) | (party == first)))
        if not rows.any() and observed is not None and not new:
            raise TableError(f"observed: party {party!r} has no row; leave the party out")
    return frames if labels is None else frames | {first: frames[first].with_columns(labels)}


def _block(array: Any, party: str) -> NDArray[Any]:
    """Return a party's array as rows [n, d] of float32, or of float64 if necessary."""
    if not is_array(array):
        raise TableError(f"arrays: party {party!r}: expected a numpy array or a torch tensor, got "
                         f"{type(array).__name__}; Federation.from_tables takes data frames")  # fmt: skip
    block = _as_numpy(array)
    if block.ndim < 2 or block.size == 0:
        raise TableError(f"arrays: party {party!r}: expected rows of numbers, such as the shape (100, 8) or "
                         f"(100, 3, 32, 32), got shape {block.shape}")  # fmt: skip
    if block.dtype.kind not in "biuf":
        raise TableError(f"arrays: party {party!r}: expected numbers, got {block.dtype}")
    kept = np.float32 if block.dtype.itemsize <= (4 if block.dtype.kind == "f" else 2) else np.float64
    return np.ascontiguousarray(block.reshape(len(block), -1), dtype=kept)


def _mask(observed: Any, n: int, blocks: Mapping[str, Any]) -> NDArray[np.bool_]:
    if observed is None:
        return np.ones((n, len(blocks)), dtype=np.bool_)
    if not isinstance(observed, Mapping) and hasattr(observed, "columns"):
        observed = {str(name): observed[name] for name in observed.columns}
    if isinstance(observed, Mapping):
        for party in [*observed, *blocks]:
            if party not in observed or party not in blocks:
                lacks = f"there is no party {party!r}{nearest(party, blocks)}" if party in observed else (
                    f"expected a mask for every party, got none for {party!r}")  # fmt: skip
                raise TableError(f"observed: {lacks}")
        masks = {party: _as_numpy(observed[party]) for party in blocks}
        for party, mask in masks.items():
            if mask.dtype != np.bool_ or mask.shape != (n,):
                raise TableError(f"observed: party {party!r}: expected booleans of shape ({n},), one for each row, got "
                                 f"{mask.dtype} of shape {mask.shape}")  # fmt: skip
        return np.stack(list(masks.values()), axis=1)
    mask = _as_numpy(observed)
    if mask.dtype != np.bool_ or mask.shape != (n, len(blocks)):
        raise TableError(f"observed: expected booleans of shape ({n}, {len(blocks)}), rows x parties in the order "
                         f"{', '.join(blocks)}, got {mask.dtype} of shape {mask.shape}")  # fmt: skip
    return mask


def _labels(y: Any, n: int) -> pl.Series | None:
    if y is None:
        return None
    labels = _as_numpy(y)
    if labels.shape != (n,):
        raise TableError(f"y: expected the shape ({n},), one label for each row, got {labels.shape}")
    if labels.dtype.kind == "f":
        return pl.Series(LABEL, labels).fill_nan(None)
    return _series(LABEL, labels.tolist() if labels.dtype.kind in "OUV" else labels, "y")


def _as_numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def _from_pandas_column(column: pd.Series, name: str, where: str) -> pl.Series:
    """Convert one pandas column to a polars series, without pyarrow.

    UUIDs, long integers and mixed types in a column of objects become text.
    """
    kind = str(column.dtype)
    if kind.startswith("Sparse"):
        column = column.sparse.to_dense()
    if kind == "category":  # as text, so that 1 and "1" are one category
        text = column.map(str, na_action="ignore")
        return _series(name, _listed(text), where).cast(pl.String).cast(pl.Categorical)
    if getattr(column.dtype, "kind", "O") in "biuf" and isinstance(column.dtype, np.dtype):
        return _series(name, np.ascontiguousarray(column.to_numpy()), where)
    if getattr(column.dtype, "kind", "O") in "mM":
        return _datetimes(column, name, where)
    cells = _listed(column)
    known = [cell for cell in cells if cell is not None]
    scalars = all(isinstance(cell, str | numbers.Number | UUID) for cell in known)
    if scalars and (len({type(cell) for cell in known}) > 1 or any(map(_is_long, known))):
        cells = [None if cell is None else str(cell) for cell in cells]
    if not known:
        return pl.Series(name, cells, dtype=pl.String if kind.startswith(("str", "string")) else pl.Null)
    return _series(name, cells, where)


def _datetimes(column: pd.Series, name: str, where: str) -> pl.Series:
    """Convert a pandas column of timestamps or durations to a polars series, in UTC if it has a time zone."""
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    datetimes = _series(name, column.to_numpy(), where)
    return datetimes if zone is None else datetimes.dt.replace_time_zone("UTC")


def _listed(column: pd.Series) -> list[Any]:
    """Return the cells as Python values, ``None`` for missing cells."""
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
    """Return whether a cell is a UUID or an integer beyond 64 bits."""
    return isinstance(cell, UUID) or (isinstance(cell, int) and not -(2**63) <= cell < 2**63)
