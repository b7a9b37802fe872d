"""Read a file or a data frame into a polars frame of raw cells, with errors that name file and line."""

from __future__ import annotations

import csv
import gzip
import numbers
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias, TypeGuard
from uuid import UUID

import polars as pl

from anyparty.errors import TableError, some

if TYPE_CHECKING:
    import pandas as pd

    Source: TypeAlias = str | Path | pl.DataFrame | pl.LazyFrame | pd.DataFrame

_READABLE = (".csv", ".csv.gz", ".parquet")
_OF_POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # polars panics on some damaged Parquet files


def read(source: Source, party: str) -> tuple[str, pl.DataFrame]:
    """Read a file or a data frame.

    Returns:
        The source's name for messages, and its cells. All cells of a CSV are text; other sources keep their types.

    Raises:
        TableError: the file is absent, unreadable, empty, malformed or of an unknown kind, or a column name repeats.
    """
    if isinstance(source, pl.LazyFrame):
        with _lazy_frame_errors(party):
            source = source.collect()
    if isinstance(source, pl.DataFrame):
        return named(source), source
    if _is_pandas(source):
        return named(source), _from_pandas(source, party)
    if not isinstance(source, str | Path):
        raise TableError(
            f"party {party!r}: a table is read from a .csv, .csv.gz or .parquet file, or from a polars or pandas data "
            f"frame, not from {type(source).__name__}"
        )
    return named(source), _from_file(Path(source), party)


def has_unnamed_index(source: Source) -> bool:
    """Return whether a source is a pandas frame with an unnamed index that is not a range.

    Such an index does not become a column, although it may hold the ids.
    """
    return _is_pandas(source) and type(source.index).__name__ != "RangeIndex" and not any(source.index.names)


def _is_pandas(source: Source) -> TypeGuard[pd.DataFrame]:
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")  # a Series has no columns


def names(source: Source, party: str) -> list[str]:
    """Return the source's column names, if possible without reading its cells.

    Raises:
        TableError: as ``read``.
    """
    if isinstance(source, pl.LazyFrame):
        with _lazy_frame_errors(party):
            return source.collect_schema().names()
    if isinstance(source, str | Path) and Path(source).is_file() and Path(source).stat().st_size:
        path = Path(source)
        kind = _file_type(path)
        if kind is not None:
            with _read_errors(path, party, kind):
                return _schema(path).names() if kind == ".parquet" else _header(path, party)
    return read(source, party)[1].columns


def _schema(path: Path) -> pl.Schema:
    return pl.scan_parquet(path, glob=False).collect_schema()


def named(source: Source) -> str:
    """Return the source's name for messages: the file name, or "data frame"."""
    return Path(source).name if isinstance(source, str | Path) else "data frame"


@contextmanager
def _lazy_frame_errors(party: str) -> Iterator[None]:
    """Convert polars errors about a lazy frame to :class:`TableError`."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TableError(f"party {party!r}: the lazy frame cannot be collected: {reason}; correct its query") from error


def _from_file(path: Path, party: str) -> pl.DataFrame:
    kind = _file_type(path)
    if path.is_dir():
        raise TableError(f"party {party!r}: {path} is a folder; name one .csv, .csv.gz or .parquet file in it")
    if not path.exists():
        raise TableError(f"party {party!r}: there is no file {path}; check the path (looked from {Path.cwd()})")
    if kind is None:
        raise TableError(f"party {party!r}: {path} is not a .csv, .csv.gz or .parquet file; convert it to one of them")
    if path.stat().st_size == 0:
        raise TableError(f"party {party!r}: {path} is empty; a table with a line of column names was expected")
    with _read_errors(path, party, kind):
        return pl.read_parquet(path, glob=False) if kind == ".parquet" else _from_csv(path, party)


def _file_type(path: Path) -> str | None:
    return next((end for end in _READABLE if path.name.lower().endswith(end)), None)


@contextmanager
def _read_errors(path: Path, party: str, kind: str) -> Iterator[None]:
    """Convert all errors of a reader to :class:`TableError`."""
    try:
        yield
    except (OSError, EOFError, csv.Error, zlib.error, UnicodeDecodeError, *_OF_POLARS) as error:
        reason = str(error).strip().split("\n")[0]
        if isinstance(error, UnicodeDecodeError) or "invalid utf-8" in reason:
            raise TableError(f"party {party!r}: {path} is not UTF-8 text; save it as UTF-8") from error
        raise TableError(f"party {party!r}: {path} cannot be read as {kind}: {reason}; export it again") from error


def _from_csv(path: Path, party: str) -> pl.DataFrame:
    """Read a CSV file with all cells as text.

    Types are inferred later from whole columns, so that errors can quote the cells as they are in the file.
    """
    header = _header(path, party)
    try:
        frame = pl.read_csv(path, infer_schema=False, glob=False)
    except pl.exceptions.ComputeError:  # polars does not name the line
        _check_long_rows(path, party, len(header))
        _check_quotes(path, party)
        raise
    frame.columns = header
    if _may_be_short(path, frame):
        _check_short_rows(path, party, len(header))
    blank_lines = frame.to_series(0).null_count() > 0
    return frame.filter(~pl.all_horizontal(pl.all().is_null())) if blank_lines else frame


def _may_be_short(path: Path, frame: pl.DataFrame) -> bool:
    """Return whether a row of the file may have fewer cells than there are columns.

    polars fills such a row with nulls, so that only rows with an empty last cell are examined. The line of a complete
    row with an empty last cell ends with a comma, and has as many commas as the header. If a cell contains a line
    break, the number of lines differs from the number of rows, and the result is True.
    """
    gaps = frame.to_series(frame.width - 1).is_null()
    if frame.width == 1 or not gaps.any():
        return False
    lines = pl.read_csv(
        path, separator="\x1f", quote_char=None, has_header=False, infer_schema=False, truncate_ragged_lines=True,
        glob=False,
    ).to_series(0)  # fmt: skip
    if len(lines) != len(gaps) + 1:
        return True
    ends = lines[1:].filter(gaps)  # a blank line is null
    commas = ends.str.replace_all('"[^"]*"', "").str.count_matches(",", literal=True)
    return bool((~ends.str.ends_with(",") | (commas < frame.width - 1)).any())


def _check_short_rows(path: Path, party: str, width: int) -> None:
    """Reject the first row with fewer cells than there are columns."""
    with _open(path) as file:
        rows = csv.reader(file)
        for cells in rows:
            if len(cells) < width and any(cell.strip() for cell in cells):
                if (mark := _other_separator(path)) is not None:
                    raise TableError(f"party {party!r}: {path} seems to be separated by {mark!r}; save it with commas")
                raise TableError(
                    f"party {party!r}: {path}, line {rows.line_num} has {len(cells)} of {width} cells, {some(cells)}: "
                    f"it is cut short, or a comma is lacking; export the file again, or correct the line"
                )


def _check_quotes(path: Path, party: str) -> None:
    """Reject the first row with a quotation mark that is not closed, or that is within a cell."""
    with _open(path) as file:
        lines = list(file)
    rows, line = csv.reader(lines, strict=True), 0
    try:
        for cells in rows:
            if "".join(lines[line : rows.line_num]).count('"') % 2:  # csv accepts a quote in an unquoted cell
                raise csv.Error(some(cell for cell in cells if '"' in cell))
            line = rows.line_num
    except csv.Error as error:
        raise TableError(
            f"party {party!r}: {path}, line {line + 1}: a quotation mark is not closed, or stands within a cell "
            f"({error}); correct the line: put quotation marks around the whole cell, and double each one inside it"
        ) from None


def _check_long_rows(path: Path, party: str, width: int) -> None:
    """Reject the first row with more cells than there are columns."""
    with _open(path) as file:
        rows = csv.reader(file)
        for cells in rows:
            if len(cells) > width:
                raise TableError(
                    f"party {party!r}: {path}, line {rows.line_num} has {len(cells)} cells, where {width} are "
                    f"expected, {some(cells)}: there is a comma too many, or a cell with one lacks quotation marks; "
                    f"correct the line"
                )


def _other_separator(path: Path) -> str | None:
    """Return a separator other than the comma that splits the first two lines into equally many cells, or ``None``."""
    with _open(path) as file:
        lines = [file.readline(), file.readline()]
    return next((mark for mark in ";\t|" if 0 < lines[0].count(mark) == lines[1].count(mark)), None)


def _header(path: Path, party: str) -> list[str]:
    """Read and check the column names in the first line."""
    with _open(path) as file:
        first = file.readline()
    if first.endswith("\r") and first.count('"') % 2 == 0:  # otherwise the CR is inside a quoted name
        raise TableError(
            f"party {party!r}: the lines of {path} end in bare carriage returns (CR); save it with LF or CRLF"
        )
    with _open(path) as file:
        header = [name.strip() for name in next(csv.reader(file), [])]
    if not any(header):
        with _open(path) as file:
            below = file.read().strip(" \r\n,")
        problem = "begins with a blank line" if below else "is empty"
        raise TableError(f"party {party!r}: {path} {problem}; a line of column names was expected first")
    if any("\0" in name for name in header):
        raise TableError(f"party {party!r}: {path} is not UTF-8 text but looks like UTF-16; save it as UTF-8")
    marked = [name for name in header if len(name) > 1 and name[0] == name[-1] == '"']
    if marked:
        raise TableError(
            f"party {party!r}: {path}: the column name {marked[0]} has its quotation marks next to a space, so that "
            "they do not enclose it; remove spaces between commas and quotation marks, in all lines"
        )
    _check_unique(header, f"party {party!r}: {path}")
    if len(header) == 1 and (marks := [mark for mark in ";\t|" if mark in header[0]]):
        raise TableError(f"party {party!r}: {path} seems to be separated by {marks[0]!r}; save it with commas")
    return header


def _open(path: Path) -> TextIO:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _from_pandas(frame: pd.DataFrame, party: str) -> pl.DataFrame:
    """Convert a pandas frame. Named index levels become columns, and objects of mixed scalar types become text."""
    where = f"party {party!r}: data frame"
    if any(name is not None for name in frame.index.names):
        twice = [k for k, name in enumerate(frame.index.names) if name in frame.columns]  # by set_index(drop=False)
        frame = frame.droplevel(twice) if len(twice) < frame.index.nlevels else frame.reset_index(drop=True)
        frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    _check_unique([str(name) for name in frame.columns], where)
    try:
        return pl.DataFrame([_from_pandas_column(frame[name], str(name), where) for name in frame.columns])
    except ImportError as error:
        raise TableError(f"{where}: reading it needs pyarrow: pip install 'anyparty[pandas]'") from error


def _from_pandas_column(column: pd.Series, name: str, where: str) -> pl.Series:
    """Convert one column. UUIDs, long integers and mixed scalar types in a column of objects become text."""
    if str(column.dtype).startswith("Sparse"):
        column = column.sparse.to_dense()
    if column.dtype == object:
        known = column[column.notna()]
        scalars = all(isinstance(cell, str | numbers.Number | UUID) for cell in known)
        if scalars and (len({type(cell) for cell in known}) > 1 or any(map(_is_long, known))):
            column = column.map(str, na_action="ignore")
    if str(column.dtype) == "category":  # polars drops categories that are numbers; as text, 1 and "1" are equal
        column = column.map(str, na_action="ignore").astype("category")
    try:
        return pl.Series(name, pl.from_pandas(column))
    except (ValueError, TypeError, NotImplementedError, OverflowError, *_OF_POLARS) as error:
        reason = str(error).split("\n")[0]
        raise TableError(
            f"{where}: column {name!r} has cells that are neither numbers nor text ({reason}); drop or convert it"
        ) from error


def _is_long(cell: object) -> bool:
    """Return whether a cell is a UUID or an integer beyond 64 bits; such cells are read as text."""
    return isinstance(cell, UUID) or (isinstance(cell, int) and not -(2**63) <= cell < 2**63)


def _check_unique(names: list[str], where: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{where}: column names must differ, but {some(twice)} occurs more than once; rename it")
