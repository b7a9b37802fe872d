"""Convert data frames and arrays of other libraries to polars, without importing these libraries."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
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
    return _of_module(source, "pandas") and hasattr(source, "columns")


def is_arrow(source: object) -> bool:
    """Return whether a source is a pyarrow table, or another table with Arrow's stream interface."""
    return hasattr(source, "__arrow_c_stream__") and hasattr(source, "schema") and not isinstance(source, pl.DataFrame)


def is_structured(source: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a source is a numpy array with named fields."""
    return isinstance(source, np.ndarray) and source.dtype.names is not None


def frame_of(source: Any, where: str) -> tuple[str, pl.DataFrame] | None:
    """Convert a data frame of any library to a polars frame; return the kind of source, and the frame.

    The result is ``None`` if the source is not a data frame. Errors begin with ``where`` and the kind.
    """
    if isinstance(source, pl.DataFrame):
        return "polars data frame", source
    if is_pandas(source):
        return "pandas data frame", _from_pandas(source, f"{where}: data frame")
    if is_structured(source):
        return "numpy structured array", _from_structured(source, f"{where}: array")
    if is_arrow(source):
        return "Arrow table", _from_arrow(source, f"{where}: Arrow table")
    return None


def _of_module(source: object, name: str) -> bool:
    return any(each.__module__.split(".")[0] == name for each in type(source).__mro__)


def _from_arrow(source: Any, where: str) -> pl.DataFrame:
    """Convert a pyarrow table, or another table with Arrow's stream interface, to a polars frame."""
    if hasattr(source, "read_next_batch"):
        raise TableError(f"{where}: a stream of Arrow batches can be read only once, and tables are read twice: give "
                         "its table, reader.read_all()")  # fmt: skip
    names = source.schema.names
    check_unique([str(name) for name in (names() if callable(names) else names)], where)
    try:
        frame = pl.DataFrame(source)
    except (ValueError, TypeError, *_OF_POLARS) as error:
        raise TableError(f"{where}: polars cannot read it ({_first_line(error)}); convert its columns") from error
    return frame


def _from_structured(array: NDArray[Any], where: str) -> pl.DataFrame:
    """Convert a one-dimensional numpy array with named fields [n] to a polars frame."""
    if array.ndim != 1:
        raise TableError(f"{where}: a structured array of shape {array.shape}; expected one dimension, of rows")
    columns = []
    for name in array.dtype.names or ():
        field = array[name]
        if field.ndim != 1:
            raise TableError(f"{where}: field {name!r} holds {field.ndim - 1}-dimensional cells; expected one value")
        columns.append(series_of(name, field, where))
    return pl.DataFrame(columns)


def _from_pandas(frame: pd.DataFrame, where: str) -> pl.DataFrame:
    """Convert a pandas frame to polars. Named index levels become columns, and mixed scalar types become text."""
    if any(name is not None for name in frame.index.names):
        # drop an index level that is also a column, as after set_index(drop=False)
        twice = [k for k, name in enumerate(frame.index.names) if name in frame.columns]
        frame = frame.droplevel(twice) if len(twice) < frame.index.nlevels else frame.reset_index(drop=True)
        frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    check_unique([str(name) for name in frame.columns], where)
    return pl.DataFrame([_from_pandas_column(frame[name], str(name), where) for name in frame.columns])


def is_array(source: object) -> bool:
    """Return whether a source is a numpy array without named fields, a torch tensor, or another library's array."""
    if hasattr(source, "detach") or isinstance(source, np.ndarray):
        return not is_structured(source)
    return hasattr(source, "__array__") and hasattr(source, "ndim") and not _of_module(source, "pandas")


def array_of(source: Any, where: str) -> NDArray[Any]:
    """Convert an array of any library to a numpy array. Masked numbers become NaN, and other masked cells ``None``.

    >>> array_of(np.ma.masked_array([1, 2], mask=[False, True]), "y").tolist()
    [1.0, nan]

    Raises:
        TableError: the array is sparse, nested, or cannot be converted; the message begins with ``where``.
    """
    if hasattr(source, "get_mask") and hasattr(source, "get_data"):  # torch.masked, whose mask marks the valid cells
        source = np.ma.masked_array(array_of(source.get_data(), where), ~array_of(source.get_mask(), where))
    if isinstance(source, np.ma.MaskedArray):
        if not np.ma.is_masked(source):
            return source.data
        numeric = source.dtype.kind in "biuf"
        filled: NDArray[Any] = source.data.astype(np.result_type(source.dtype, np.float32) if numeric else object)
        filled[np.ma.getmaskarray(source)] = np.nan if numeric else None
        return filled
    try:
        if not hasattr(source, "detach"):
            return np.asarray(source)
        if str(source.layout) != "torch.strided" or source.is_nested:
            kind = "nested tensor" if source.is_nested else f"tensor with layout {source.layout}"
            raise TableError(f"{where}: expected a dense tensor, got a {kind}: convert it with to_dense(), or with "
                             "to_padded_tensor() if it is nested")  # fmt: skip
        tensor = source.dequantize() if source.is_quantized else source
        small = tensor.is_floating_point() and tensor.element_size() < 4  # numpy has no bfloat16
        return np.asarray((tensor.float() if small else tensor).numpy(force=True))
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{where}: {type(source).__name__} cannot be converted to a numpy array "
                         f"({_first_line(error)}); convert it first") from error  # fmt: skip


def series_of(name: str, values: Any, where: str) -> pl.Series:
    """Convert a column [n] of any library, or a list, to a polars series; masked cells and NaN objects become null.

    Raises:
        TableError: cells are neither numbers nor text; the message begins with ``where``.
    """
    if isinstance(values, pl.Series):
        return values.alias(name)
    if _of_module(values, "pandas"):
        from pandas import Series  # noqa: PLC0415 - the caller has imported pandas

        return _from_pandas_column(Series(values), name, where)
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        raise TableError(f"{where}: expected a list or a one-dimensional array, got {type(values).__name__}")
    if not is_array(values):
        arrow = hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__")
        return _series(name, values, where) if arrow else _of_cells(name, list(values), where)
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    array = values.data if isinstance(values, np.ma.MaskedArray) else array_of(values, where)
    if array.dtype.kind == "S":
        array = _decoded(array, name, where)
    made = (
        _of_cells(name, array.tolist(), where) if array.dtype.kind in "OUV"
        else _series(name, np.ascontiguousarray(array), where)
    )  # fmt: skip
    return made if masked is None else made.set(pl.Series(masked), None)


def _decoded(array: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    try:
        return array.astype(str)
    except UnicodeDecodeError as error:
        raise TableError(f"{where}: column {name!r} has bytes that are not ASCII text; decode it first") from error


def _of_cells(name: str, cells: list[Any], where: str) -> pl.Series:
    """Convert a list of Python values to a series. UUIDs, long integers and mixed types become text."""
    if not set(map(type, cells)) <= {str, NoneType}:
        cells = [None if _is_missing(cell) else cell for cell in cells]
    types = set(map(type, cells)) - {NoneType}
    if len(types) > 1:
        cells = [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]
        types = set(map(type, cells)) - {NoneType}
    known = [cell for cell in cells if cell is not None] if types != {str} else []
    if types == {int, float} and all(abs(cell) < 2**53 for cell in known):
        cells = [None if cell is None else float(cell) for cell in cells]
    elif all(isinstance(cell, str | numbers.Number | UUID) for cell in known) and (
        len(types) > 1 or any(map(_is_long, known))
    ):
        cells = [None if cell is None else str(cell) for cell in cells]
    return _series(name, cells, where) if types else pl.Series(name, cells, dtype=pl.Null)


def _is_missing(cell: Any) -> bool:
    """Return whether a Python value stands for a missing cell: ``None``, NaN, pandas' NA and NaT, numpy's masked."""
    if cell is None or cell is np.ma.masked or type(cell).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(cell, float | np.generic) and bool(cell != cell)  # noqa: PLR0124 - only NaN and NaT differ from themselves


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
    present, labels = _mask(observed, n, blocks), _labels(y, n)
    names = pl.int_range(n, dtype=pl.Int64, eager=True).alias(ID) if ids is None else series_of(ID, ids, "ids")
    if len(names) != n:
        raise TableError(f"ids: expected {n:,} ids, one for each row, got {len(names):,}")
    frames = {}
    for k, (party, block) in enumerate(blocks.items()):
        rows = present[:, k] & ~np.isnan(block).all(axis=1)
        cells = np.where(rows[:, None], block, np.nan) if party == first else block[rows]
        columns = pl.from_numpy(cells, schema=[f"x{c}" for c in range(block.shape[1])]).fill_nan(None)
        frames[party] = columns.insert_column(0, names.filter(pl.Series(rows) | (party == first)))
        if not rows.any() and observed is not None and not new:
            raise TableError(f"observed: party {party!r} has no row; leave the party out")
    return frames if labels is None else frames | {first: frames[first].with_columns(labels)}


def _block(array: Any, party: str) -> NDArray[Any]:
    """Return a party's array as rows [n, d] of float32, or of float64 if necessary."""
    if not is_array(array):
        raise TableError(f"arrays: party {party!r}: expected a numpy array or a torch tensor, got "
                         f"{type(array).__name__}; Federation.from_tables takes data frames")  # fmt: skip
    block = array_of(array, f"arrays: party {party!r}")
    if block.ndim < 2 or block.size == 0:
        raise TableError(f"arrays: party {party!r}: expected rows of numbers, such as the shape (100, 8) or "
                         f"(100, 3, 32, 32), got shape {block.shape}")  # fmt: skip
    if block.dtype.kind not in "biuf":
        raise TableError(f"arrays: party {party!r}: expected numbers, got {block.dtype}")
    kept = np.float32 if block.dtype.itemsize <= (4 if block.dtype.kind == "f" else 2) else np.float64
    return np.ascontiguousarray(block.reshape(len(block), -1), dtype=kept)


def _whole_mask(observed: Any) -> NDArray[Any]:
    """Return ``observed`` as an array; refuse masked cells, which are neither true nor false."""
    if np.ma.is_masked(observed):
        raise TableError("observed: masked cells do not say whether a party has the row: write True or False there")
    return array_of(observed, "observed")


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
        masks = {party: _whole_mask(observed[party]) for party in blocks}
        for party, mask in masks.items():
            if mask.dtype != np.bool_ or mask.shape != (n,):
                raise TableError(f"observed: party {party!r}: expected booleans of shape ({n},), one for each row, got "
                                 f"{mask.dtype} of shape {mask.shape}")  # fmt: skip
        return np.stack(list(masks.values()), axis=1)
    mask = _whole_mask(observed)
    if mask.dtype != np.bool_ or mask.shape != (n, len(blocks)):
        raise TableError(f"observed: expected booleans of shape ({n}, {len(blocks)}), rows x parties in the order "
                         f"{', '.join(blocks)}, got {mask.dtype} of shape {mask.shape}")  # fmt: skip
    return mask


def _labels(y: Any, n: int) -> pl.Series | None:
    if y is None:
        return None
    shape = tuple(y.shape) if hasattr(y, "shape") else ()
    labels = series_of(LABEL, y, "y") if len(shape) < 2 else None
    if labels is None or len(labels) != n:
        raise TableError(f"y: expected the shape ({n},), one label for each row, got "
                         f"{shape if labels is None else (len(labels),)}")  # fmt: skip
    return labels


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
    cells = _of_cells(name, _listed(column), where)
    return cells.cast(pl.String) if cells.dtype == pl.Null and kind.startswith(("str", "string")) else cells


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
