"""Recognise the dialect of a CSV file, and read all its cells as text. Errors give the line number of a mistake.

The dialect is the encoding, the separator, the quotation mark, the line ends and the decimal mark.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TextIO

import polars as pl
from charset_normalizer import from_bytes
from polars.selectors import by_name

from anyparty.errors import TableError, some
from anyparty.tables.file_content import FileContent, FileSettings, named, utf_16

SEPARATORS = (",", ";", "\t", "|")
SAMPLE = 50  # the number of lines from which the separator is recognised
# The letters of Western European languages.
_WESTERN = re.compile(r"[À-ÏÑ-ÖØ-ÜßA-Za-zà-ïñ-öø-üÿŒœŠšŽž]")
_MARKS = frozenset("“”„‘’‚–—…•€£¥§°²³¹µ½¼¾«»©®™ªº¿¡´·±%‰×\xa0")
_SEP_LINE = re.compile(r'"?sep=(.)"?\s*$', re.IGNORECASE)
_COMMA = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?$"  # a number with a decimal comma
_CJK = ("cp932", "shift_jis", "gb18030", "gb2312", "gbk", "big5", "euc_jp", "cp949", "euc_kr", "johab", "big5hkscs")


@dataclass(frozen=True)
class Dialect:
    """The way in which a CSV file is written.

    Attributes:
        separator: the character between cells.
        quote: the quotation mark.
        encoding: the encoding of the file.
        data: the text as UTF-8; ``None`` if the file is UTF-8 and can be read from its path.
        skipped: the number of lines before the column names that are not part of ``data``.
        notes: sentences on what was guessed or repaired.
    """

    separator: str
    quote: str
    encoding: str
    data: bytes | None
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Describe the dialect, such as "separator ';', utf-16"."""
        parts = [f"separator {'tab' if self.separator == chr(9) else repr(self.separator)}"]
        parts += [f"quote {self.quote!r}"] if self.quote != '"' else []
        return ", ".join([*parts, f"encoding {self.encoding}"])


def dialect_of(content: FileContent, settings: FileSettings, party: str, *, whole: bool = False) -> Dialect:
    """Recognise the dialect of a CSV file; values in ``settings`` replace recognised values.

    Args:
        content: the file.
        settings: the user's settings.
        party: the party's name, for messages.
        whole: whether to look for the encoding in the whole file, not only in its first bytes.

    Raises:
        TableError: the encoding cannot be recognised, or a setting does not fit the file.
    """
    where = f"party {party!r}: {named(content.path)}"
    notes = list[str]()
    encoding, data = _encoding(content, settings, party, notes, whole=whole)
    if encoding != "utf-8" or settings.encoding is not None:
        data = _as_utf_8(content, encoding, settings, party)
    head = content.head if data is None else data
    if b"\r" in head and b"\n" not in head:
        data = (content.whole() if data is None else data).replace(b"\r", b"\n")
        notes.append(f"{where}: the lines end in bare carriage returns (CR), as old Macintosh programs write them")
        head = data
    text = _text(head)
    skipped, separator = 0, settings.separator
    if line := _SEP_LINE.match(text.partition("\n")[0].rstrip("\r")):
        skipped, separator = 1, separator or line.group(1)
        data = (content.whole() if data is None else data).partition(b"\n")[2]
        text = text.partition("\n")[2]
        notes.append(f"{where}: the first line 'sep={line.group(1)}' is read as the separator, not as column names")
    elif separator is not None and separator not in text.partition("\n")[0] and _separator(text) is not None:
        raise TableError(f"{where}: separator = {separator!r} does not occur in the first line, which seems to be "
                         f"separated by {_separator(text)!r}; correct or remove the setting")  # fmt: skip
    separator = separator or _separator(text) or ","
    return Dialect(separator, settings.quote or _quote(text, separator), encoding, data, skipped, tuple(notes))


def _encoding(
    content: FileContent, settings: FileSettings, party: str, notes: list[str], *, whole: bool
) -> tuple[str, bytes | None]:
    """Return the file's encoding, and its bytes if they had to be read."""
    if settings.encoding is not None:
        name = codecs.lookup(settings.encoding).name
        return name, content.data
    if (found := utf_16(content.head)) is not None:
        return found, content.data
    data = content.whole() if whole else content.data
    sample = content.head if data is None else data
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
        return "utf-8", data
    except UnicodeDecodeError:
        where = f"party {party!r}: {named(content.path)}"
        name, example = _guessed(sample, where, party)
    notes.append(f"{where}: the file is not UTF-8; its encoding is taken to be {name}, which reads {example!r}; if "
                 f'this is wrong, write encoding = "..." in [parties.{party}]')  # fmt: skip
    return name, data


def _guessed(sample: bytes, where: str, party: str) -> tuple[str, str]:
    """Guess the encoding of a file that is not Unicode; return its name, and an example of decoded text.

    Encodings with one byte per character can rarely be distinguished. Only cp1252 is accepted, and only for Western
    European languages.

    Raises:
        TableError: several encodings are possible.
    """
    lines = [line for line in sample.splitlines() if not line.isascii()][:1000]
    odd = b"\n".join(lines)
    western = odd.decode("cp1252", errors="replace")
    if _is_western(western):
        return "cp1252", _example(western)
    best = from_bytes(odd).best()
    if best is not None and best.encoding in _CJK and _in_runs(str(best)):
        return best.encoding, _example(str(best))
    offers = []
    for name in dict.fromkeys([*([best.encoding] if best else []), "cp1250", "cp1251", "cp850", "cp1252"]):
        with_marks = odd.decode(name, errors="replace")
        offers.append(f"{name} reads {_example(with_marks)!r}")
    raise TableError(f"{where}: the file is not UTF-8 text, and its encoding is not evident: {', '.join(offers)}; "
                     f'write encoding = "{best.encoding if best else "cp1250"}" or another in [parties.{party}], or '
                     "save it as UTF-8")  # fmt: skip


def _is_western(text: str) -> bool:
    """Return whether text decoded as cp1252 looks like a Western European language."""
    for word in re.findall(r"[^\s,;|\"']*[^\x00-\x7f][^\s,;|\"']*", text):
        odd = [letter for letter in word if not letter.isascii()]
        if not all(_WESTERN.match(letter) or letter in _MARKS for letter in odd):
            return False
        letters = [letter for letter in word if letter.isalpha()]
        accents = [letter for letter in odd if letter.isalpha()]
        if 2 * len(accents) > len(letters) and len(letters) > 2:
            return False
        if re.search(r"\w[£¥]\w|^[£¥][^\W\d]", word):
            return False
    return True


def _in_runs(text: str) -> bool:
    """Return whether most non-ASCII characters follow one another, as in Chinese, Japanese and Korean text."""
    odd = re.findall(r"[^\x00-\x7f]+", text)
    return 2 * sum(len(run) for run in odd if len(run) > 1) > sum(map(len, odd))


def _example(text: str) -> str:
    found = re.search(r"[^,;|\t\n\"]*[^\x00-\x7f][^,;|\t\n\"]*", text)
    return "" if found is None else found.group(0).strip()[:30]


def _as_utf_8(content: FileContent, encoding: str, settings: FileSettings, party: str) -> bytes:
    try:
        return content.whole().decode(encoding).removeprefix("\ufeff").encode()
    except UnicodeError as error:
        setting = f"encoding = {settings.encoding!r}" if settings.encoding else f"the encoding {encoding}"
        where = f"party {party!r}: {named(content.path)}"
        raise TableError(f"{where}: {setting} does not fit the file ({error}); write another encoding in "
                         f"[parties.{party}]") from None  # fmt: skip


def _text(head: bytes) -> str:
    """Decode the first bytes of a file as UTF-8, and drop an incomplete last character."""
    return head[:65_536].decode(errors="ignore").removeprefix("\ufeff")


def _separator(text: str) -> str | None:
    """Return the separator that gives most lines the same number of cells; ``None`` for a single column."""
    lines = [line for line in islice(io.StringIO(text, newline=None), SAMPLE + 1) if line.strip()]
    if len(lines) > 2:
        lines = lines[:-1] if not lines[-1].endswith("\n") else lines  # the last line of the sample may be incomplete
    best: tuple[float, int, str] | None = None
    for mark in SEPARATORS:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
        except csv.Error:
            continue
        if not widths or widths[0] < 2:
            continue
        rate = (sum(width == widths[0] for width in widths[1:]) + 1) / len(widths)
        if best is None or (rate, widths[0]) > best[:2]:
            best = rate, widths[0], mark
    return best[2] if best else None


def _quote(text: str, separator: str) -> str:
    """Return the quotation mark: a single one if it encloses all column names, else a double one."""
    names = text.partition("\n")[0].strip().split(separator)
    single = all(len(name) > 1 and name[0] == name[-1] == "'" for name in names)
    double = re.search(rf'(^|{re.escape(separator)})"', text, re.MULTILINE)
    return "'" if single and not double else '"'


def decimal_mark(frame: pl.DataFrame, dialect: Dialect, settings: FileSettings) -> str:
    """Return the decimal mark of a file's numbers: ``settings.decimal``, or by default the mark that the cells show.

    The cells show a decimal comma if a column of numbers contains a comma that cannot separate thousands. In all other
    cases, the decimal mark is a point.
    """
    if settings.decimal is not None or dialect.separator == ",":
        return settings.decimal or "."
    sample = frame.head(1000).select(pl.all().cast(pl.String).str.strip_chars())
    columns = [known for column in sample.iter_columns() if len(known := column.drop_nulls())]
    numbers = [column for column in columns if column.str.contains(_COMMA).all()]
    commas = any(column.str.contains(r",(\d{1,2}|\d{4,})$").any() for column in numbers)
    points = any(column.str.contains(r"^[+-]?\d+\.(\d{1,2}|\d{4,})$").all() for column in columns)
    return "," if commas and not points else "."


def with_points(column: pl.Series) -> pl.Series:
    """Convert numbers with a decimal comma to a decimal point, without marks between thousands; keep all other cells.

    >>> with_points(pl.Series(["1.234,5", "-2,75", "300", "x", None])).to_list()
    ['1234.5', '-2.75', '300', 'x', None]
    """
    text = column.str.strip_chars()
    numbers = text.str.contains(_COMMA).fill_null(value=False)
    written = text.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    return written.zip_with(numbers, column)


def are_decimal(column: pl.Series) -> bool:
    """Return whether the column has cells, and all of them may be numbers with a decimal comma."""
    known = column.str.strip_chars().drop_nulls()
    return bool(known.str.contains(_COMMA).all()) and len(known) > 0


UNNAMED = "\0"  # the first character of the replacement for a missing column name
ABOVE = "; if the column names are in a later line, remove the lines above them"
_BLANK, _GAP = "\0blank", "\0gap"
# Two marks for each row: whether all its cells are empty, and whether its last cell is empty.
_ROW_MARKS = (pl.all_horizontal(pl.all().is_null()).alias(_BLANK), pl.last().is_null().alias(_GAP))


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
        """The names of the party and the file, as the beginning of messages."""
        return f"party {self.party!r}: {named(self.content.path)}"

    @cached_property
    def header(self) -> list[str]:
        """The column names in the first line, trimmed; "" for a column without a name.

        Raises:
            TableError: the line is empty or not usable.
        """
        with self.open() as file:
            header = [name.strip("\ufeff \t\r\n") for name in next(self._rows(file), [])]
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
        """Read all cells as text, so that errors can quote them as in the file.

        ``drop`` lists columns that are checked, but are left out of the result.

        Returns:
            The cells, the decimal mark, and remarks on what was guessed, repaired or left out.
        """
        names = [name or f"{UNNAMED}{place}" for place, name in enumerate(self.header)]
        try:
            whole = not set(names) & set(drop)
            rows = self._parsed(names, whole=whole)
            kept = rows.select(by_name(*(name for name in names if name not in drop)), *_ROW_MARKS)
            frame = kept.collect(engine="auto" if whole else "streaming")
        except pl.exceptions.ComputeError:  # find the line number, which polars does not report
            self._check_long_rows(len(names))
            self._check_quotes()
            self._check_line_ends()
            raise
        if self._may_be_short(frame[_GAP], len(names)):
            self._check_short_rows(len(names))
        if frame[_BLANK].any():
            frame = frame.filter(~pl.col(_BLANK))
        frame, notes = without_unnamed(frame.drop(_BLANK, _GAP), self.where)
        sample = frame if whole else rows.filter(~_ROW_MARKS[0]).head(1000).collect()
        decimal = decimal_mark(sample, self.dialect, settings)
        if decimal == "," and settings.decimal is None:
            notes += (f'{self.where}: numbers are read with a decimal comma (decimal = ","), as in its columns',)
        return frame, decimal, self.dialect.notes + notes

    def _parsed(self, names: list[str], *, whole: bool) -> pl.LazyFrame:
        """Parse the file with the given column names: at once, or in batches if ``whole`` is false."""
        parse = pl.read_csv if whole else pl.scan_csv
        parsed = parse(
            self.content.source if self.dialect.data is None else self.dialect.data,
            separator=self.dialect.separator, quote_char=self.dialect.quote, infer_schema=False, glob=False,
        ).lazy()  # fmt: skip
        return parsed.rename(dict(zip(parsed.collect_schema().names(), names, strict=True)))

    def open(self) -> TextIO:
        """Return the file opened as a stream of decoded text."""
        data = self.content.data if self.dialect.data is None else self.dialect.data
        if data is None:
            return self.content.path.open(encoding="utf-8-sig", newline="")
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")

    def _rows(self, file: TextIO) -> Any:
        return csv.reader(file, delimiter=self.dialect.separator, quotechar=self.dialect.quote)

    def _line(self, number: int) -> str:
        return f"{self.where}, line {number + self.dialect.skipped}"

    def _may_be_short(self, gaps: pl.Series, width: int) -> bool:
        """Return whether a row may have fewer than ``width`` cells; polars fills such rows with nulls.

        ``gaps`` [n] marks the rows whose last cell is empty. Only these rows are examined. If none of their cells is
        missing, such a row ends with a separator.
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
        ends = lines[1:].filter(gaps)  # the rows whose last cell is empty
        marks = ends.str.replace_all(f"{quote}[^{quote}]*{quote}", "").str.count_matches(mark, literal=True)
        return bool((~ends.str.ends_with(mark) | (marks < width - 1)).any())

    def _check_short_rows(self, width: int) -> None:
        """Raise an error for the first row that has fewer cells than there are columns."""
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
        """Raise an error for the first row that has a wrong quotation mark.

        A quotation mark is wrong if it is not closed, or if it is part of the cell's text and is not doubled, as in the
        cell ``5" pipe``.
        """
        quote = self.dialect.quote
        with self.open() as file:
            lines = list(file)
        rows = csv.reader(lines, strict=True, delimiter=self.dialect.separator, quotechar=quote)
        line = 0
        try:
            for cells in rows:
                # the csv module does not report a quotation mark within an unquoted cell
                if "".join(lines[line : rows.line_num]).count(quote) % 2:
                    raise csv.Error(some(cell for cell in cells if quote in cell))
                line = rows.line_num
        except csv.Error as error:
            raise TableError(
                f"{self._line(line + 1)}: a quotation mark is not closed, or stands within a cell ({error}); correct "
                "the line: put quotation marks around the whole cell, and double each one inside it"
            ) from None

    def _check_line_ends(self) -> None:
        """Raise an error if a line ends in a carriage return alone; the error names the first such line."""
        with self.open() as file:
            for number, line in enumerate(file, start=1):
                if line.endswith("\r"):
                    raise TableError(f"{self._line(number)} ends in a carriage return (CR) alone, and other lines do "
                                     "not; write all line ends in one way")  # fmt: skip

    def _check_long_rows(self, width: int) -> None:
        """Raise an error for the first row that has more cells than there are columns."""
        with self.open() as file:
            rows, above = self._rows(file), ""
            for cells in rows:
                if len(cells) > width:
                    if width == 1 or rows.line_num == 2:
                        above = ABOVE
                    raise TableError(
                        f"{self._line(rows.line_num)} has {len(cells)} cells, where {width} are expected, "
                        f"{some(cells)}: there is a separator ({self.dialect.separator!r}) too many, or a cell with "
                        f"one lacks quotation marks; correct the line{above}"
                    )


def without_unnamed(frame: pl.DataFrame, where: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Drop empty columns without a name, and a first column of row numbers without a name.

    In ``frame``, the name of such a column is ``UNNAMED`` followed by its place in the file.

    Returns:
        The other columns, and remarks on the dropped ones.

    Raises:
        TableError: any other column without a name has cells.
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
                         f"{row + 1}; give the column a name, or remove it{ABOVE if row == 0 else ''}")  # fmt: skip
    return frame.drop(unnamed), tuple(notes)


def _are_row_numbers(column: pl.Series) -> bool:
    """Return whether the cells are 0, 1, 2 ... or 1, 2, 3 ..."""
    numbers = column.cast(pl.Int64, strict=False)
    first = numbers[0]
    return first in {0, 1} and bool((numbers == pl.int_range(first, first + len(column), eager=True)).all())


def check_unique(names: list[str], where: str) -> None:
    """Reject column names that occur more than once."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{where}: column names must differ, but {some(twice)} occurs more than once; rename it")
