"""One table in many notations: marks of missing cells, spellings, notations of numbers and dates, files, data frames.

Whatever the notation, the model's rows, classes and matrix are those of the clean table, or the table stops with an
error that names the column. A column of few numbers may be read as categories, with a remark that names it.
"""

import bz2
import csv
import datetime as dt
import decimal
import gzip
import io
import random
import unicodedata
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import zstandard
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from anyparty.errors import AnypartyError
from anyparty.tables import cells
from anyparty.tables.label_cells import MARKS, class_key
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.reading_rules import NOT_A_NUMBER, ReadingRules
from anyparty.tables.table import Table, read_table
from anyparty.tables.target import encode, infer_task

ODD_LABELS = ("unknown", "-9", "99", "(none)", "refused", "n/k")  # marks that may be classes
READ_SHARE = 0.5  # at least so many examples must be read, so that errors do not hide differences
LEVELS = (
    ("red", "green", "blue"), ("São Paulo", "Köln", "Málaga"), ("a,b", "c;d", 'say "hi"'), ("it's", "x|y", "tab\there"),
    ("A1", "B2", "C3"), ("12 km", "3 km", "far"), ("ＡＢ", "cd", "ef"), ("1,5", "2;5", "x"), ("-", "+", "o"),
)  # fmt: skip
START = dt.datetime(2019, 1, 1)
CLASSES = (("0", "1"), ("no", "yes"), ("false", "true"), ("a", "b", "c"), ("1", "2", "3"), ("-1", "1"), ("good", "bad"),
           ("é", "è"), ("0.5", "x", "y"), ("A,B", "C"))  # fmt: skip


@dataclass(frozen=True)
class Clean:
    """A clean table: by column its cells, "" if missing, and the column's kind."""

    columns: dict[str, list[str]]
    kinds: dict[str, str]


@cache
def clean(number: int) -> Clean:
    """Draw a clean table of 30 to 60 rows."""
    draw = random.Random(number)  # noqa: S311 - not a secret
    n = draw.randint(30, 60)
    gaps = draw.choice([0.0, 0.1, 0.3])

    def column(cell) -> list[str]:
        return ["" if draw.random() < gaps else cell() for _ in range(n)]

    levels, classes, amounts = draw.choice(LEVELS), draw.choice(CLASSES), number % 5 == 0
    clock = draw.choice([True, False])
    size = draw.choice([1, 100, 100_000])
    ids = list(map(str, draw.sample(range(1000, 9999), n))) if number % 2 else [f"k-{k:03}é" for k in range(n)]
    columns = {
        "id": ids,
        "price": column(lambda: f"{draw.uniform(-size, size):.2f}"),
        "count": column(lambda: str(draw.randint(0, draw.choice([9, 40, 90_000])))),
        "place": column(lambda: draw.choice(levels)),
        "seen": column(lambda: (START + dt.timedelta(minutes=draw.randint(0, 3_000_000))).strftime(
            "%Y-%m-%d %H:%M:00" if clock else "%Y-%m-%d")),
        "label": column(lambda: f"{draw.uniform(-size, size):.2f}" if amounts else draw.choice(classes)),
    }  # fmt: skip
    columns["count"][0] = "7"
    kinds = {"id": "id", "price": "number", "count": "number", "place": "category", "seen": "date"}
    return Clean(columns, kinds | {"label": "number" if amounts else "label"})


# Notations of one cell. Each takes the plain text.


def _grouped(text: str, mark: str) -> str:
    number, point, rest = text.partition(".")
    return f"{int(number):,}".replace(",", mark) + point + rest if number not in {"-0", "-"} else text


NUMBERS = {
    "plain": lambda text: text,
    "spaces": lambda text: f" {text} ",
    "plus": lambda text: text if text.startswith("-") else f"+{text}",
    "zeros": lambda text: f"{text}0" if "." in text else f"{text}.0",
    "exponent": lambda text: f"{text}e0",
    "minus": lambda text: text.replace("-", "\u2212"),
    "comma": lambda text: text.replace(".", ","),
    "thousands": lambda text: _grouped(text, ","),
    "apostrophes": lambda text: _grouped(text, "'"),
    "narrow": lambda text: _grouped(text, "\u202f"),
    "german": lambda text: _grouped(text, ",").translate({ord(","): ".", ord("."): ","}),
    "percent": lambda text: f"{text}%",
    "dollar": lambda text: text.replace("-", "-$") if text.startswith("-") else f"${text}",
    "euro": lambda text: f"{text.replace('.', ',')} €",
    "chf": lambda text: f"CHF {text}",
}  # fmt: skip
SPELLINGS = {
    "as it is": lambda text: text,
    "upper": str.upper,
    "title": str.title,
    "spaces": lambda text: f"  {text} ",
    "zero width": lambda text: f"{text}\u200b",
    "no-break": lambda text: f"{text}\u00a0",
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "composed": lambda text: unicodedata.normalize("NFC", text),
    "compatible": lambda text: unicodedata.normalize("NFKC", text),
    "point zero": lambda text: f"{text}.0" if text.lstrip("-").isdigit() else text,
    "exponent": lambda text: f"{text}e0" if text.lstrip("-").isdigit() else text,
}


def _dated(day: str, time: str = "%H:%M:%S") -> Callable[[str], str]:
    """Return a notation of dates, in the formats of ``strftime``; the time is left out of a date without one."""

    def write(text: str) -> str:
        moment = dt.datetime.fromisoformat(text)
        return moment.strftime(f"{day} {time}" if len(text) > 10 else day)

    return write


def _zoned(hours: int) -> Callable[[str], str]:
    def write(text: str) -> str:
        if len(text) == 10:
            return text
        return f"{dt.datetime.fromisoformat(text) + dt.timedelta(hours=hours)}{hours:+03}:00"

    return write


NAMED_DATES = {
    "as it is": lambda text: text,
    "spaces": lambda text: f" {text}  ",
    "no-break": lambda text: f"{text}\u00a0",
    "T": lambda text: text.replace(" ", "T"),
    "midnight": lambda text: text if len(text) > 10 else f"{text} 00:00:00",
    "fraction": lambda text: f"{text}.000" if len(text) > 10 else text,
    "slashes": _dated("%Y/%m/%d", "%H:%M"),
    "month name": _dated("%d %b %Y", "%I:%M %p"),
    "long name": _dated("%B %d, %Y"),
    "upper name": lambda text: _dated("%d-%b-%Y")(text).upper(),
}  # fmt: skip
ORDERED_DATES = (
    {"dots": _dated("%d.%m.%Y", "%H:%M"), "day first": _dated("%d/%m/%Y"), "hyphens": _dated("%d-%m-%Y", "%I:%M%p")},
    {"month first": _dated("%m/%d/%Y", "%I:%M %p"), "month first hyphens": _dated("%m-%d-%Y", "%H:%M")},
    {"short": _dated("%d.%m.%y")},
    {"zulu": _zoned(0), "zone": _zoned(2), "west": _zoned(-5)},
)
DATES = NAMED_DATES | {name: form for forms in ORDERED_DATES for name, form in forms.items()}
IDS = {
    "as it is": lambda text: text,
    "spaces": lambda text: f" {text}  ",
    "point zero": lambda text: f"{text}.0" if text.isdigit() else text,
}  # fmt: skip


def _zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("table.csv", data)
    return buffer.getvalue()


COMPRESSED = {
    "": lambda data: data, "gzip": gzip.compress, "bz2": bz2.compress, "zstd": zstandard.compress,
    "zip": _zipped,
}  # fmt: skip


@dataclass
class Notation:
    """How a table is written.

    Attributes:
        number: the clean table, and the draw of a notation for each cell.
        forms: by column, the notations of its cells.
        marks: by column, the texts of its missing cells.
        types: by column of a data frame, the type of its cells (``TYPES``). Text cells are written as in a file.
        source: "file", "polars" or "pandas".
        declared: the columns whose marks the settings declare.
        dialect: the arguments of ``csv.writer``.
        encoding: the encoding.
        packing: the compression.
        sep_line: whether a first line names the separator.
        last_line: whether the last line ends.
    """

    number: int
    forms: dict[str, list[str]]
    marks: dict[str, list[str]]
    types: dict[str, str]
    source: str
    declared: list[str]
    dialect: dict[str, Any]
    encoding: str
    packing: str
    sep_line: bool
    last_line: bool

    def cells(self) -> dict[str, list[str]]:
        """Return the cells of each column as text."""
        draw = random.Random(self.number)  # noqa: S311
        table = clean(self.number)
        forms = {"number": NUMBERS, "category": SPELLINGS, "label": SPELLINGS, "id": IDS, "date": DATES}
        return {
            name: [
                forms[table.kinds[name]][draw.choice(self.forms[name])](text) if text else draw.choice(self.marks[name])
                for text in texts
            ]
            for name, texts in table.columns.items()
        }

    def frame(self) -> Any:
        """Return the table as a data frame of the library ``source``."""
        texts, plain = self.cells(), clean(self.number)
        of = TYPES[self.source]
        columns = {
            name: of[self.types[name]](plain.columns[name]) if name in self.types else texts[name] for name in texts
        }
        if self.source == "polars":
            return pl.DataFrame(columns)
        frame = pd.DataFrame(columns)
        return frame.set_index("id") if self.last_line else frame

    def write(self, path: Path) -> None:
        """Write the table to a file."""
        buffer = io.StringIO()
        if self.sep_line:
            buffer.write(f"sep={self.dialect['delimiter']}{self.dialect['lineterminator']}")
        rows = csv.writer(buffer, **self.dialect)
        columns = self.cells()
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
        text = buffer.getvalue()
        if not self.last_line:
            text = text.removesuffix(self.dialect["lineterminator"])
        path.write_bytes(COMPRESSED[self.packing](text.encode(self.encoding, errors="strict")))

    @property
    def rules(self) -> ReadingRules:
        """The settings."""
        missing = {name: tuple(mark for mark in self.marks[name] if mark) for name in self.declared}
        return ReadingRules(missing=missing, merge_spellings=True)


def _known(change: Callable[[str], Any]) -> Callable[[list[str]], list[Any]]:
    return lambda cells: [change(cell) if cell else None for cell in cells]


_floats, _ints, _texts = _known(float), _known(lambda cell: int(float(cell))), _known(str)
_moments, _days = _known(dt.datetime.fromisoformat), _known(lambda cell: dt.datetime.fromisoformat(cell).date())
TYPES: dict[str, dict[str, Callable[[list[str]], Any]]] = {
    "polars": {
        "float": _floats, "integer": _ints, "text": _texts, "moment": _moments, "day": _days,
        "decimal": _known(decimal.Decimal), "nan": lambda cells: pl.Series(_floats(cells)).fill_null(float("nan")),
        "small": lambda cells: pl.Series(_ints(cells), dtype=pl.Int32),
        "category": lambda cells: pl.Series(_texts(cells), dtype=pl.Categorical),
        "enum": lambda cells: pl.Series(_texts(cells), dtype=pl.Enum(sorted({cell for cell in cells if cell}))),
        "ns": lambda cells: pl.Series(_moments(cells), dtype=pl.Datetime("ns")),
        "zone": lambda cells: pl.Series(_moments(cells)).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
        "truth": _known(lambda cell: cell in {"1", "true"}),
    },
    "pandas": {
        "float": lambda cells: pd.Series(_floats(cells), dtype=float), "integer": _ints, "text": _texts,
        "moment": lambda cells: pd.to_datetime(pd.Series(_moments(cells))), "day": _days,
        "decimal": _known(decimal.Decimal), "small": lambda cells: pd.Series(_ints(cells), dtype="Int32"),
        "object": lambda cells: pd.Series(_floats(cells), dtype=object),
        "category": lambda cells: pd.Series(_texts(cells), dtype="category"),
        "string": lambda cells: pd.Series(_texts(cells), dtype="string"),
        "numbers": lambda cells: pd.Series(_floats(cells)).astype("category"),
        "ns": lambda cells: pd.Series(_moments(cells)).astype("datetime64[ns]"),
        "zone": lambda cells: pd.to_datetime(pd.Series(_moments(cells)), utc=True).dt.tz_convert("Asia/Tokyo"),
        "truth": lambda cells: pd.Series(_known(lambda cell: cell in {"1", "true"})(cells), dtype="boolean"),
        "truths": lambda cells: pd.Series(_known(lambda cell: cell in {"1", "true"})(cells), dtype=object),
    },
}  # fmt: skip
NUMBER_TYPES = {"float", "decimal", "nan", "object"}
WHOLE_TYPES = NUMBER_TYPES | {"integer", "small"}
TEXT_TYPES = {"text", "category", "enum", "string"}
DATE_TYPES = {"moment", "day", "ns", "zone"}


def _types_of(name: str, number: int) -> set[str]:
    """Return the types that a column of a clean table can have in a data frame without a change of its meaning."""
    table = clean(number)
    known = {cell for cell in table.columns[name] if cell}
    if name == "seen":
        return DATE_TYPES - ({"day"} if any(len(cell) > 10 for cell in known) else set())
    if name == "id":
        return {"text", "string"} | ({"integer", "float", "object", "small"} if number % 2 else set())
    if name == "count":
        return WHOLE_TYPES
    if name == "price" or table.kinds[name] == "number":
        return NUMBER_TYPES
    types = set(TEXT_TYPES)
    if name == "label" and known <= {"true", "false"}:
        types |= {"truth", "truths"}
    if name == "label" and all(cell.lstrip("-").isdigit() for cell in known):
        types |= WHOLE_TYPES | {"numbers"}
    return types


OFTEN = st.sampled_from


@st.composite
def notations(draw: st.DrawFn) -> Notation:
    """Draw a notation."""
    marks_of = {
        "id": st.just([""]),
        "price": st.lists(OFTEN([*cells.MISSING, *NOT_A_NUMBER]), min_size=1, max_size=3),
        "count": st.lists(OFTEN([*cells.MISSING, *NOT_A_NUMBER, "refused"]), min_size=1, max_size=2),
        "place": st.lists(OFTEN(cells.MISSING), min_size=1, max_size=1),
        "seen": st.lists(OFTEN([*cells.MISSING, *NOT_A_NUMBER, "never"]), min_size=1, max_size=2),
    }
    number = draw(st.integers(0, 199))
    kinds = clean(number).kinds
    odd_labels = [each for each in ODD_LABELS if kinds["label"] == "label" or not each.lstrip("-").isdigit()]
    marks_of["label"] = st.lists(OFTEN([*sorted(MARKS), *odd_labels]), min_size=1, max_size=3)
    marks = {name: draw(each) for name, each in marks_of.items()}
    declared = draw(st.lists(OFTEN(["price", "count", "seen", "label"]), max_size=2, unique=True))
    odd = ["refused", "-999", "?", "99999", "n.k."]
    for name in declared:
        of_column = ["never", "1900-01-01", "0000-00-00", "n.k."] if name == "seen" else odd
        marks[name] = draw(st.lists(OFTEN(of_column), min_size=1, max_size=2, unique=True))
    forms = {
        name: draw(st.lists(OFTEN(sorted(of)), min_size=1, max_size=most))
        for name, of, most in (
            ("id", IDS, 2), ("price", NUMBERS, 2), ("count", NUMBERS, 2), ("place", SPELLINGS, 3),
            ("label", NUMBERS if kinds["label"] == "number" else SPELLINGS, 3),
            ("seen", NAMED_DATES | draw(OFTEN([{}, *ORDERED_DATES])), 3),
        )
    }  # fmt: skip
    for name in ("price", "count", "label"):
        if {"german", "comma", "euro"} & set(forms[name]):  # beside 28,14, 28.140 is a large number
            forms[name] = [form for form in forms[name] if form != "zeros"]
    dialect = {
        "delimiter": draw(OFTEN(",;\t|")),
        "quotechar": draw(OFTEN('"""\'')),
        "lineterminator": draw(OFTEN(["\n", "\r\n", "\r"])),
        "quoting": draw(OFTEN([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
    }
    if dialect["quotechar"] == "'":
        dialect["quoting"] = csv.QUOTE_ALL
    source = draw(OFTEN(["file", "file", *TYPES]))
    types = {
        name: draw(OFTEN(sorted(_types_of(name, number) & set(TYPES.get(source, ())))))
        for name in draw(st.lists(OFTEN(sorted(kinds)), unique=True))
        if source != "file"
    }
    return Notation(
        number=number, forms=forms, marks=marks, types=types, source=source, declared=declared, dialect=dialect,
        encoding=draw(OFTEN(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "utf-32"])),
        packing=draw(OFTEN(["", "", "", *COMPRESSED])), sep_line=draw(OFTEN([False, False, True])),
        last_line=draw(st.booleans()),
    )  # fmt: skip


def view(table: Table) -> tuple[Any, ...]:
    """Return all that a model sees: ids, classes, labels, kinds, names of the matrix, and the matrix."""
    assert table.label is not None
    task = infer_task(table.label, party="bank")
    labels, known = encode(table.label, task, party="bank")
    prepare = Prepare.fit(table, np.arange(len(table)))
    classes = tuple(map(class_key, task.classes))
    matrix = prepare.apply(table).tobytes()
    labels = labels.masked_fill(~known, -1)
    scale = task.mean, task.scale
    return table.ids.to_list(), classes, labels.tolist(), known.tolist(), table.kinds, prepare.names, matrix, scale


@cache
def expected(number: int, folder: Path) -> tuple[Any, ...] | None:
    """Return the view of a clean table; ``None`` if the clean table stops."""
    path = folder / f"clean-{number}.csv"
    table = clean(number)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerow(table.columns)
        rows.writerows(zip(*table.columns.values(), strict=True))
    try:
        read = read_table(path, party="bank", id="id", label="label", rules=ReadingRules(merge_spellings=True))
        return view(read)
    except AnypartyError:
        return None


def check(notation: Notation, folder: Path, counts: Counter[str]) -> None:
    """Check one notation, and count how it was read."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        right = expected(notation.number, folder)
        source = folder / "table.csv"
        try:
            if notation.source == "file":
                notation.write(source)
            else:
                source = notation.frame()
        except (UnicodeEncodeError, csv.Error):
            counts["cannot be written"] += 1
            return
        try:
            table = read_table(source, party="bank", id="id", label="label", rules=notation.rules)
            found = view(table)
        except AnypartyError as error:
            said = str(error)
            assert any(repr(name) in said for name in clean(notation.number).columns) or "encoding" in said, said
            counts["stops"] += 1
            return
    counts["read"] += 1
    counts[notation.source] += 1
    if right is None or found == right:
        return
    if len(found[1]) > len(right[1]) and set(ODD_LABELS) & set(found[1]):
        marked = [found[1][label] in ODD_LABELS for label, known in zip(*found[2:4], strict=True) if known]
        assert 5 * sum(marked) > len(marked), "only a larger share may be a class"
        assert any("It is read as a class" in str(each.message) for each in heard)
        return
    assert found[:4] == right[:4], "the ids or the labels differ"
    unlike = {name for name, kind in right[4].items() if found[4].get(name) != kind}
    unlike |= {"label"} if found[7] != right[7] else set()
    for name in unlike or {"count"}:
        said = ("is read as categories", "is read with a decimal point", "is text with", "has no decimal comma, and")
        assert any(f"column {name!r} {each}" in note for note in table.notes for each in said), (name, table.notes)
    counts["differs with a remark"] += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notations")


@pytest.mark.parametrize(
    ("examples", "start"),
    [pytest.param(60, 0, id="quick"), pytest.param(1_000, 1, id="a minute", marks=pytest.mark.slow)],
)
def test_a_table_in_another_notation_is_the_same_table_or_stops(folder: Path, examples: int, start: int) -> None:
    counts: Counter[str] = Counter()

    @seed(start)
    @settings(max_examples=examples)
    @given(notations())
    def same(notation: Notation) -> None:
        check(notation, folder, counts)

    same()
    assert counts["read"] >= READ_SHARE * (counts["read"] + counts["stops"]), counts
