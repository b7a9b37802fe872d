"""Read a file or a data frame into a polars frame of raw cells.

Errors contain the file's name and, if known, the line number.

A forked process cannot read tables, because polars would wait for ever. A fork copies a process without its threads. If
polars had started its threads before the fork, the child waits for threads that do not exist. Python forks by default
on Linux up to version 3.13 (``multiprocessing.Pool``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from anyparty.errors import ConfigError, TableError, some
from anyparty.tables.csv_file import UNNAMED, check_unique, without_unnamed
from anyparty.tables.file_content import FileContent, FileSettings
from anyparty.tables.file_content import named as file_named

if TYPE_CHECKING:
    import fastexcel
import csv
import io
import logging
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import zstandard
from numpy.typing import NDArray
from polars.selectors import by_name

from anyparty.core.storage import path_hint, user_path
from anyparty.tables import data_frames
from anyparty.tables.cells import INVISIBLE
from anyparty.tables.csv_file import CsvFile
from anyparty.tables.file_content import DETECT, STANDARD_INPUT, content_of
from anyparty.tables.workbook_cells import LostCells, lost_cells

if TYPE_CHECKING:
    import pandas as pd

    Source: TypeAlias = str | Path | pl.DataFrame | pl.LazyFrame | pd.DataFrame | NDArray[Any]

_THREADS = Path("/proc/self/task")
_state = {"threads before the fork": False, "forked": False}


def check_not_forked() -> None:
    """Raise an error if polars cannot work in this process.

    Raises:
        ConfigError: the process was forked after polars had started its threads.
    """
    if _state["forked"]:
        raise ConfigError("this process was forked after tables had been read, and reading or training would never "
                          "end here: start processes with multiprocessing.get_context('spawn'), or fork before the "
                          "first table is read")  # fmt: skip


def _before() -> None:
    _state["threads before the fork"] = _polars_runs()


def _in_child() -> None:
    _state["forked"] = _state["forked"] or _state["threads before the fork"]


def _polars_runs() -> bool:
    """Return True if polars has started its threads, or if this is unknown."""
    if not _THREADS.is_dir():
        return True
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # the thread may have ended
            name = (thread / "comm").read_text(encoding="utf-8").strip()
            if name.startswith("polars-") and name.removeprefix("polars-").isdecimal():
                return True
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)


def read_header(
    content: FileContent, settings: FileSettings, party: str
) -> tuple[fastexcel.ExcelReader, str, list[str]]:
    """Open a workbook, and return it with the chosen sheet and its column names; "" for a column without a name.

    Raises:
        TableError: it is not clear which sheet to read, the sheet does not exist, or a column name repeats.
    """
    import fastexcel  # noqa: PLC0415 - imported only for workbooks, which are rare

    logging.getLogger("fastexcel").setLevel(logging.ERROR)  # it would warn about each column without a type
    where = f"party {party!r}: {file_named(content.path)}"
    try:
        book = fastexcel.read_excel(content.whole())
    except fastexcel.FastExcelError as error:
        raise ValueError(str(error)) from error  # callers report a ValueError as a damaged file
    sheet = _sheet(book, settings.sheet, where, party)
    first = book.load_sheet(sheet, header_row=None, n_rows=1, dtypes="string").to_polars()
    header = ["" if name is None else name.strip() for name in first.row(0)]
    whole = book.load_sheet(sheet, header_row=None, dtypes="string").width
    header += [""] * (whole - len(header))
    check_unique([name for name in header if name], where)
    return book, sheet, header


def read_workbook(
    content: FileContent, settings: FileSettings, party: str
) -> tuple[pl.DataFrame, str, tuple[str, ...], tuple[LostCells, ...]]:
    """Read a sheet with the cells' own types; a column of several types is text.

    Returns:
        The cells, the sheet's name, remarks on columns that were left out, and the cells whose values are lost.

    Raises:
        TableError: it is not clear which sheet to read, the sheet does not exist, a column name repeats, or an unnamed
            column has cells.
    """
    book, sheet, header = read_header(content, settings, party)
    frame = book.load_sheet(sheet, header_row=None, skip_rows=1, schema_sample_rows=None).to_polars()
    lost = lost_cells(content.whole(), sheet, header)
    empty = [name for name in header[frame.width :] if name]  # columns without a stored value at the right
    header = header[: frame.width]
    frame.columns = [name or f"{UNNAMED}{place}" for place, name in enumerate(header)]
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null())).with_columns(pl.lit(None).alias(n) for n in empty)
    cells, notes = without_unnamed(frame, f"party {party!r}: {file_named(content.path)}")
    return cells, sheet, notes, lost


def _sheet(book: fastexcel.ExcelReader, wanted: str | int | None, where: str, party: str) -> str:
    names = book.sheet_names
    if isinstance(wanted, int):
        if wanted > len(names):
            raise TableError(f"{where} has no sheet {wanted}; it has {len(names)}: {_listed(names)}")
        return names[wanted - 1]
    if wanted is not None:
        if wanted not in names:
            raise TableError(f"{where} has no sheet {wanted!r}; it has {_listed(names)}")
        return wanted
    filled = [name for name in names if book.load_sheet(name, header_row=None, n_rows=1).width]
    if len(filled) > 1:
        raise TableError(f"{where} has {len(filled)} sheets with cells, {_listed(filled)}; write sheet = "
                         f"{filled[0]!r} or another in [parties.{party}]")  # fmt: skip
    if not filled:
        raise TableError(f"{where}: every sheet is empty; a table with a line of column names was expected")
    return filled[0]


def _listed(names: list[str]) -> str:
    return " and ".join(map(repr, names)) if len(names) == 2 else some(names)


_OF_POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # on some damaged files, polars panics
_DAMAGED = (OSError, EOFError, csv.Error, zlib.error, zipfile.BadZipFile, zstandard.ZstdError, RuntimeError, ValueError)
_PACKED_NAMES = {"gzip": (".gz",), "bz2": (".bz2",), "zstd": (".zst", ".zstd"), "zip": (".zip",), "": ()}
_NO_PART = re.compile(r"^[._]|^~\$|~$")  # hidden files, lock files of Office, and backups of editors
_PATTERN = frozenset("*?[")
HEADER_LINES = 20  # the number of lines in which the column names are searched if they are not in the first line


@dataclass(frozen=True)
class RawTable:
    """The cells of a file or a data frame.

    Attributes:
        name: the source's name for messages: the file's name, or "data frame".
        cells: the cells. The cells of a CSV file are text; cells of other sources keep their types.
        columns: the names of all columns, also of those that ``cells`` lacks because they are not needed.
        read_as: the recognised format, in words.
        decimal: the decimal mark of numbers in text.
        notes: sentences on what was guessed or repaired.
        format: the format of a file, such as "CSV"; "" for a data frame.
        lost: the cells of a workbook whose values are lost.
    """

    name: str
    cells: pl.DataFrame
    read_as: str
    decimal: str = "."
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    format: str = ""
    lost: tuple[LostCells, ...] = ()

    def without_effect(self, settings: FileSettings, where: str) -> tuple[str, ...]:
        """Return a sentence on each setting that has no effect on this kind of table; ``where`` begins it."""
        applies = {"CSV": {"separator", "quote", "encoding"}, "Excel": {"sheet"}}.get(self.format, set())
        return tuple(
            f"{where}: {name} = {getattr(settings, name)!r} has no effect, because this table is not "
            f"{'a workbook' if name == 'sheet' else 'a CSV file'}: remove the setting"
            for name in ("separator", "quote", "encoding", "sheet")
            if getattr(settings, name) is not None and name not in applies
        )

    def __post_init__(self) -> None:
        if not self.columns:
            object.__setattr__(self, "columns", tuple(self.cells.columns))


def read(
    source: Source, party: str, settings: FileSettings = DETECT, drop: Collection[str] = (),
    only: Collection[str] | None = None,
) -> RawTable:  # fmt: skip
    """Return the cells of a file, of a folder or pattern of files, of standard input ("-") or of a data frame.

    ``drop`` lists columns to leave out; ``only``, if given, lists the only columns to keep.  If the source is a CSV or
    Parquet file, the other columns are not kept in memory.

    Raises:
        TableError: the source is absent, unreadable, empty, malformed or not a table, or a column name repeats.
    """
    check_not_forked()
    if isinstance(source, pl.LazyFrame):
        with _lazy_frame_errors(party):
            source = source.collect()
    if isinstance(source, str | Path):
        return _from_files(user_path(source), party, settings, drop, only)
    if found := data_frames.frame_of(source, f"party {party!r}"):
        name = {"numpy structured array": "array", "Arrow table": "Arrow table"}.get(found[0], "data frame")
        return RawTable(name, found[1], found[0])
    raise TableError(
        f"party {party!r}: a table is read from a CSV, Parquet, Feather or Excel file, from a polars or pandas data "
        f"frame, from a pyarrow table or from a numpy structured array, not from {type(source).__name__}"
    )


def has_unnamed_index(source: Source) -> bool:
    """Return whether a source is a pandas frame with an unnamed index that does not count the rows from 0.

    Such an index may hold the ids, but is not read as a column.
    """
    if not data_frames.is_pandas(source) or any(source.index.names):
        return False
    return type(source.index).__name__ != "RangeIndex" or (source.index.start, source.index.step) != (0, 1)


def names(source: Source, party: str, settings: FileSettings = DETECT) -> list[str]:
    """Return the source's column names, if possible without reading its cells.

    Raises:
        TableError: the source is absent, unreadable, empty or not a table, or a column name repeats.
    """
    check_not_forked()
    if isinstance(source, pl.LazyFrame):
        with _lazy_frame_errors(party):
            return source.collect_schema().names()
    if not isinstance(source, str | Path):
        return read(source, party).cells.columns
    path = _parts(user_path(source), party)[0]
    with _read_errors(path, party) as reading:
        content = reading.open()
        if content.format == "CSV":
            return [name for name in CsvFile.of(content, settings, party).header if name]
        if content.format == "Excel":
            return [name for name in read_header(content, settings, party)[2] if name]
        if content.format == "Parquet":
            return pl.scan_parquet(content.source, glob=False).collect_schema().names()
        return list(pl.read_ipc_schema(io.BytesIO(content.whole())))


def named(source: Source) -> str:
    """Return the source's name for messages: the file name, "standard input" or "data frame"."""
    if not isinstance(source, str | Path):
        return "data frame"
    return file_named(Path(source)) if Path(source) == STANDARD_INPUT else Path(source).name


def located(path: Path, folder: Path | None = None) -> Path:
    """Return a table's absolute path; ``folder`` is the start of a relative path, by default the current folder."""
    if path == STANDARD_INPUT:
        return path
    path = path.expanduser()
    return path.absolute() if folder is None else folder / path


def exists(path: Path) -> bool:
    """Return whether a table's file, or a file that matches its pattern, exists; True for standard input."""
    return path == STANDARD_INPUT or path.exists() or (_is_pattern(path) and bool(_matches(path)))


def header_below(source: Source, party: str, name: str, settings: FileSettings = DETECT) -> str:
    """Return a hint if a line near the start of a file, but not its first line, has the column name ``name``."""
    if not isinstance(source, str | Path):
        return ""
    with suppress(TableError, *_OF_POLARS, *_DAMAGED):
        content = content_of(_parts(user_path(source), party)[0], party)
        if content.format == "CSV":
            with CsvFile.of(content, settings, party).open() as file:
                lines = list(islice(file, HEADER_LINES))
            if found := re.search(rf"(?:^|(\W)){re.escape(name)}(?:(\W)|$)", lines[0].strip()):
                mark = found[1] or found[2]
                if mark and mark not in " \t" and (mark.isspace() or INVISIBLE.match(mark)):
                    return f"the first line has this name beside the invisible character {mark!r}: remove it there"
                return f'the first line has this name beside {mark!r}: write separator = "..." in [parties.{party}]'
            rows = [re.split(r"[,;|\t]", line) for line in lines]
        elif content.format == "Excel":
            book, sheet, _ = read_header(content, settings, party)
            rows = [list(row) for row in book.load_sheet(sheet, header_row=None, n_rows=HEADER_LINES, dtypes="string")
                    .to_polars().rows()]  # fmt: skip
        else:
            return ""
        for number, row in enumerate(rows[1:], start=2):
            if name in {str(cell).strip().strip("\"'") for cell in row}:
                return f"line {number} has this name: remove the lines above it, so that the column names come first"
    return ""


@contextmanager
def _lazy_frame_errors(party: str) -> Iterator[None]:
    """Convert polars errors about a lazy frame to :class:`TableError`."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TableError(f"party {party!r}: the lazy frame cannot be collected: {reason}; correct its query") from error


def _is_pattern(path: Path) -> bool:
    return bool(_PATTERN & set(str(path)))


def _matches(pattern: Path) -> list[Path]:
    """Return the files that match a pattern such as "part-*.csv"."""
    absolute = pattern.absolute()
    return [path for path in Path(absolute.anchor).glob(str(absolute.relative_to(absolute.anchor))) if path.is_file()]


def _parts(path: Path, party: str) -> list[Path]:
    """Return the files of a table in the order of their names."""
    if path == STANDARD_INPUT or path.is_file():
        return [path]
    if path.is_dir():
        found = [each for each in path.iterdir() if each.is_file() and not _NO_PART.search(each.name)]
        if not found:
            inner = next((f"; it has folders, whose files the pattern {path / '*' / '*'} names"
                          for each in path.iterdir() if each.is_dir()), "")  # fmt: skip
            raise TableError(f"party {party!r}: the folder {path} has no files; expected the parts of one table{inner}")
        return sorted(found)
    if _is_pattern(path) and not path.exists():
        found = _matches(path)
        if not found:
            raise TableError(f"party {party!r}: no file matches {path}; check the pattern (looked from {Path.cwd()})")
        return sorted(found)
    if path.exists():
        raise TableError(f"party {party!r}: {path} is neither a file nor a folder; name a table's file")
    hint = f"; {why}" if (why := path_hint(path)) else ""
    if any(ord(letter) < 32 for letter in str(path)):
        hint = r"; the path has control characters: in a settings file, write / or single quotes, 'C:\new\t.csv'"
    raise TableError(f"party {party!r}: there is no file {path}; check the path (looked from {Path.cwd()}){hint}")


def _from_files(
    path: Path, party: str, settings: FileSettings, drop: Collection[str], only: Collection[str] | None
) -> RawTable:  # fmt: skip
    files = _parts(path, party)
    parts = [_from_file(each, party, settings, drop, only) for each in files]
    first, *others = parts
    if not others:
        return replace(first, name=named(path))
    for file, part in zip(files[1:], others, strict=True):
        if unlike := sorted(set(part.columns) ^ set(first.columns)):
            raise TableError(f"party {party!r}: {file} has other columns than {files[0]}: {some(unlike)}; all files "
                             "are read as parts of one table")  # fmt: skip
    try:
        whole = pl.concat([part.cells.select(by_name(first.cells.columns)) for part in parts], how="vertical_relaxed")
    except _OF_POLARS as error:
        raise TableError(f"party {party!r}: the parts of {path} have columns of different types: {error}") from error
    decimal = "," if {part.decimal for part in parts} == {","} else "."
    read_as = f"{len(files)} parts: {'; '.join(dict.fromkeys(part.read_as for part in parts))}"
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    lost = tuple(each for part in parts for each in part.lost)
    return RawTable(named(path), whole, read_as, decimal, tuple(notes), first.columns, first.format, lost)


def _from_file(
    path: Path, party: str, settings: FileSettings, drop: Collection[str], only: Collection[str] | None
) -> RawTable:  # fmt: skip
    with _read_errors(path, party) as reading:
        content = reading.open()
        packed = f"{content.format} compressed with {content.packing}" if content.packing else content.format
        notes: tuple[str, ...] = ()
        if content.packing and not path.name.lower().endswith(_PACKED_NAMES[content.packing]):
            note = f"{file_named(path)} is compressed with {content.packing}, although its name does not say so"
            notes = (f"party {party!r}: {note}",)
        if content.format == "CSV":
            return _from_csv(content, packed, notes, party, settings, drop, only)
        if content.format == "Excel":
            cells, sheet, more, lost = read_workbook(content, settings, party)
            read_as = f"{packed}, sheet {sheet!r}"
            return RawTable(named(path), cells, read_as, notes=notes + more, format=content.format, lost=lost)
        if content.format == "Parquet":
            rows = pl.scan_parquet(content.source, glob=False)
            columns = rows.collect_schema().names()
            left_out = _unneeded(columns, drop, only)
            cells = rows.select(by_name(*(name for name in columns if name not in left_out))).collect()
            return RawTable(named(path), cells, packed, notes=notes, columns=tuple(columns))
        cells = pl.read_ipc(io.BytesIO(content.whole()))
        check_unique(cells.columns, f"party {party!r}: {file_named(path)}")
        return RawTable(named(path), cells, packed, notes=notes)


def _unneeded(columns: Sequence[str], drop: Collection[str], only: Collection[str] | None) -> Collection[str]:
    return drop if only is None else {name for name in columns if name and (name in drop or name not in only)}


def _from_csv(
    content: FileContent, packed: str, notes: tuple[str, ...], party: str, settings: FileSettings,
    drop: Collection[str], only: Collection[str] | None,
) -> RawTable:  # fmt: skip
    file = CsvFile.of(content, settings, party)
    try:
        cells, decimal, more = file.read(settings, _unneeded(file.header, drop, only))
    except (UnicodeDecodeError, pl.exceptions.ComputeError) as error:
        if not isinstance(error, UnicodeDecodeError) and "invalid utf-8" not in str(error):
            raise
        # only the first bytes were UTF-8: recognise the encoding from the whole file
        file = CsvFile.of(content, settings, party, whole=True)
        cells, decimal, more = file.read(settings, _unneeded(file.header, drop, only))
    read_as = f"{packed}, {file.dialect}" + (", decimal ','" if decimal == "," else "")
    columns = tuple(name for name in file.header if name)
    return RawTable(named(content.path), cells, read_as, decimal, notes + more, columns, content.format)


@dataclass
class _Reading:
    """A file that is being read; its format, known after ``open``, is used in error messages."""

    path: Path
    party: str
    content: FileContent | None = None

    def open(self) -> FileContent:
        """Recognise the file's format, decompress the file, and return its content."""
        self.content = content_of(self.path, self.party)
        return self.content


@contextmanager
def _read_errors(path: Path, party: str) -> Iterator[_Reading]:
    """Convert all errors of reading a file to :class:`TableError`."""
    reading = _Reading(path, party)
    try:
        yield reading
    except TableError:
        raise
    except (*_DAMAGED, *_OF_POLARS) as error:
        reason = str(error).strip().split("\n")[0]
        kind = "" if reading.content is None else f" as {reading.content.format}"
        raise TableError(
            f"party {party!r}: {file_named(path)} cannot be read{kind}: {reason}; export it again"
        ) from error
