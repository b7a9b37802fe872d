"""Read a CSV file with all cells as text; errors name the line of a mistake in the file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO

import polars as pl
from polars.selectors import by_name

from anyparty.errors import TableError, some
from anyparty.tables.csv_dialect import Dialect, decimal_mark, dialect_of
from anyparty.tables.file_content import FileContent, FileSettings, named

UNNAMED = "\0"  # the first character of the name that a column without a name gets
_BLANK, _GAP = "\0blank", "\0gap"
# for each row: whether all its cells are empty, and whether its last cell is; polars must parse all columns for them
_MARKS = (pl.all_horizontal(pl.all().is_null()).alias(_BLANK), pl.last().is_null().alias(_GAP))


@dataclass(frozen=True)
class CsvFile:
    """A CSV file and its dialect.

    Attributes:
        content: the file.
        dialect: the file's separator, quotation mark and encoding.
        party: the party's name, for messages.
    """

    content: FileContent
    dialect: Dialect
    party: str

    @classmethod
    def of(cls, content: FileContent, settings: FileSettings, party: str, *, whole: bool = False) -> CsvFile:
        """Return the file with its dialect, which ``dialect_of`` recognises."""
        return cls(content, dialect_of(content, settings, party, whole=whole), party)

    @property
    def where(self) -> str:
        """The names of the party and the file, with which each message begins."""
        return f"party {self.party!r}: {named(self.content.path)}"

    @cached_property
    def header(self) -> list[str]:
        """The column names in the first line, trimmed; "" for a column without a name.

        Raises:
            TableError: the line is empty or not usable.
        """
        with self.open() as file:
            header = [name.strip() for name in next(self._rows(file), [])]
        if not any(header):
            with self.open() as file:
                below = file.read().strip(" \r\n" + self.dialect.separator)
            problem = "begins with a blank line" if below else "is empty"
            raise TableError(f"{self.where} {problem}; a line of column names was expected first")
        marked = [name for name in header if len(name) > 1 and name[0] == name[-1] == '"']
        if marked:
            raise TableError(
                f"{self.where}: the column name {marked[0]} has its quotation marks next to a space, so that "
                "they do not enclose it; remove spaces between separators and quotation marks, in all lines"
            )
        check_unique([name for name in header if name], self.where)
        return header

    def read(self, settings: FileSettings, drop: Collection[str] = ()) -> tuple[pl.DataFrame, str, tuple[str, ...]]:
        """Read cells as text, so that errors can quote them as they are in the file.

        The columns ``drop`` are checked as the others are, but never in memory as a whole.

        Returns:
            The cells, the decimal mark, and remarks on what was guessed, repaired or left out.
        """
        names = [name or f"{UNNAMED}{place}" for place, name in enumerate(self.header)]
        try:
            whole = not set(names) & set(drop)
            rows = self._parsed(names, whole=whole)
            kept = rows.select(by_name(*(name for name in names if name not in drop)), *_MARKS)
            frame = kept.collect(engine="auto" if whole else "streaming")
        except pl.exceptions.ComputeError:  # the error of polars does not name the line
            self._check_long_rows(len(names))
            self._check_quotes()
            raise
        if self._may_be_short(frame[_GAP], len(names)):
            self._check_short_rows(len(names))
        if frame[_BLANK].any():
            frame = frame.filter(~pl.col(_BLANK))
        frame, notes = without_unnamed(frame.drop(_BLANK, _GAP), self.where)
        sample = frame if whole else rows.filter(~_MARKS[0]).head(1000).collect()
        decimal = decimal_mark(sample, self.dialect, settings)
        if decimal == "," and settings.decimal is None:
            notes += (f'{self.where}: numbers are read with a decimal comma (decimal = ","), as in its columns',)
        return frame, decimal, self.dialect.notes + notes

    def _parsed(self, names: list[str], *, whole: bool) -> pl.LazyFrame:
        """Parse the file and name its columns: at once if ``whole``, else in batches when the result is collected."""
        parse = pl.read_csv if whole else pl.scan_csv
        parsed = parse(
            self.content.source if self.dialect.data is None else self.dialect.data,
            separator=self.dialect.separator, quote_char=self.dialect.quote, infer_schema=False, glob=False,
        ).lazy()  # fmt: skip
        return parsed.rename(dict(zip(parsed.collect_schema().names(), names, strict=True)))

    def open(self) -> TextIO:
        """Open the file as decoded text."""
        data = self.content.data if self.dialect.data is None else self.dialect.data
        if data is None:
            return self.content.path.open(encoding="utf-8-sig", newline="")
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")

    def _rows(self, file: TextIO) -> Any:
        return csv.reader(file, delimiter=self.dialect.separator, quotechar=self.dialect.quote)

    def _line(self, number: int) -> str:
        return f"{self.where}, line {number + self.dialect.skipped}"

    def _may_be_short(self, gaps: pl.Series, width: int) -> bool:
        """Return whether a row of the file may have fewer cells than the ``width`` columns.

        ``gaps`` [n] marks the rows with an empty last cell.

        polars fills such a row with nulls, so that only rows with an empty last cell are examined. The line of a
        complete row with an empty last cell ends with a separator, and has as many separators as the header. If a cell
        contains a line break, the number of lines differs from the number of rows, and the result is True.
        """
        if width == 1 or not gaps.any():
            return False
        source = self.content.source if self.dialect.data is None else self.dialect.data
        lines = pl.read_csv(
            source, separator="\x1f", quote_char=None, has_header=False, infer_schema=False,
            truncate_ragged_lines=True, glob=False,
        ).to_series(0)  # fmt: skip
        if len(lines) != len(gaps) + 1:
            return True
        mark, quote = self.dialect.separator, self.dialect.quote
        ends = lines[1:].filter(gaps)  # polars reads a blank line as null
        marks = ends.str.replace_all(f"{quote}[^{quote}]*{quote}", "").str.count_matches(mark, literal=True)
        return bool((~ends.str.ends_with(mark) | (marks < width - 1)).any())

    def _check_short_rows(self, width: int) -> None:
        """Reject the first row with fewer cells than there are columns."""
        with self.open() as file:
            rows = self._rows(file)
            for cells in rows:
                if len(cells) < width and any(cell.strip() for cell in cells):
                    raise TableError(
                        f"{self._line(rows.line_num)} has {len(cells)} of {width} cells, {some(cells)}: it is cut "
                        f"short, or a separator ({self.dialect.separator!r}) is lacking; export the file again, or "
                        "correct the line"
                    )

    def _check_quotes(self) -> None:
        """Reject the first row with a quotation mark that is not closed, or that is within a cell."""
        quote = self.dialect.quote
        with self.open() as file:
            lines = list(file)
        rows = csv.reader(lines, strict=True, delimiter=self.dialect.separator, quotechar=quote)
        line = 0
        try:
            for cells in rows:
                # The csv module accepts a quotation mark within an unquoted cell, so that marks are counted here.
                if "".join(lines[line : rows.line_num]).count(quote) % 2:
                    raise csv.Error(some(cell for cell in cells if quote in cell))
                line = rows.line_num
        except csv.Error as error:
            raise TableError(
                f"{self._line(line + 1)}: a quotation mark is not closed, or stands within a cell ({error}); correct "
                "the line: put quotation marks around the whole cell, and double each one inside it"
            ) from None

    def _check_long_rows(self, width: int) -> None:
        """Reject the first row with more cells than there are columns."""
        with self.open() as file:
            rows = self._rows(file)
            for cells in rows:
                if len(cells) > width:
                    raise TableError(
                        f"{self._line(rows.line_num)} has {len(cells)} cells, where {width} are expected, "
                        f"{some(cells)}: there is a separator ({self.dialect.separator!r}) too many, or a cell with "
                        "one lacks quotation marks; correct the line"
                    )


def without_unnamed(frame: pl.DataFrame, where: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Drop unnamed columns that are empty, and an unnamed first column of row numbers; return the rest, and remarks.

    The frame's name of an unnamed column is ``UNNAMED`` and the column's place in the file.

    Raises:
        TableError: any other unnamed column has cells.
    """
    unnamed = {name: int(name[1:]) for name in frame.columns if name[:1] == UNNAMED and name[1:].isdecimal()}
    empty = [name for name in unnamed if frame[name].null_count() == frame.height]
    notes = list[str]()
    if empty:
        what = "a column" if len(empty) == 1 else f"{len(empty)} columns"
        notes.append(f"{where}: {what} without a name and without a cell: left out")
    for name, place in unnamed.items():
        column = frame[name]
        if name in empty:
            continue
        if place == 0 and _are_row_numbers(column):
            notes.append(f"{where}: the first column has no name and holds row numbers: left out")
            continue
        row = column.is_not_null().arg_true()[0]
        raise TableError(f"{where}: column {place + 1} has no name, but cells, such as {str(column[row])!r} in row "
                         f"{row + 1}; give the column a name, or remove it")  # fmt: skip
    return frame.drop(unnamed), tuple(notes)


def _are_row_numbers(column: pl.Series) -> bool:
    """Return whether the cells are 0, 1, 2 ... or 1, 2, 3 ..., as pandas and R write row names."""
    numbers = column.cast(pl.Int64, strict=False)
    first = numbers[0]
    return first in {0, 1} and bool((numbers == pl.int_range(first, first + len(column), eager=True)).all())


def check_unique(names: list[str], where: str) -> None:
    """Reject column names that occur more than once."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{where}: column names must differ, but {some(twice)} occurs more than once; rename it")
