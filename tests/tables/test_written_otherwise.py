"""One table in many notations: marks of missing cells, spellings, notations of numbers, and dialects of files.

Whatever the notation, the model's rows, classes and matrix are those of the clean table, or the table stops with an
error that names the column. A column of few numbers may be read as categories, with a remark that names it.
"""

import bz2
import csv
import gzip
import io
import random
import unicodedata
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
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

READ_SHARE = 0.5  # at least so many examples must be read, so that errors do not hide differences
LEVELS = (
    ("red", "green", "blue"), ("São Paulo", "Köln", "Málaga"), ("a,b", "c;d", 'say "hi"'), ("it's", "x|y", "tab\there"),
    ("A1", "B2", "C3"), ("12 km", "3 km", "far"), ("ＡＢ", "cd", "ef"), ("1,5", "2;5", "x"), ("-", "+", "o"),
)  # fmt: skip
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

    levels, classes = draw.choice(LEVELS), draw.choice(CLASSES)
    size = draw.choice([1, 100, 100_000])
    ids = list(map(str, draw.sample(range(1000, 9999), n))) if number % 2 else [f"k-{k:03}é" for k in range(n)]
    columns = {
        "id": ids,
        "price": column(lambda: f"{draw.uniform(-size, size):.2f}"),
        "count": column(lambda: str(draw.randint(0, draw.choice([9, 40, 90_000])))),
        "place": column(lambda: draw.choice(levels)),
        "label": column(lambda: draw.choice(classes)),
    }
    columns["count"][0] = "7"
    kinds = {"id": "id", "price": "number", "count": "number", "place": "category", "label": "label"}
    return Clean(columns, kinds)


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
    declared: list[str]
    dialect: dict[str, Any]
    encoding: str
    packing: str
    sep_line: bool
    last_line: bool

    def write(self, path: Path) -> None:
        """Write the table."""
        draw = random.Random(self.number)  # noqa: S311
        table = clean(self.number)
        forms = {"number": NUMBERS, "category": SPELLINGS, "label": SPELLINGS, "id": IDS}
        columns = [
            [
                forms[table.kinds[name]][draw.choice(self.forms[name])](text) if text else draw.choice(self.marks[name])
                for text in texts
            ]
            for name, texts in table.columns.items()
        ]
        buffer = io.StringIO()
        if self.sep_line:
            buffer.write(f"sep={self.dialect['delimiter']}{self.dialect['lineterminator']}")
        rows = csv.writer(buffer, **self.dialect)
        rows.writerow(table.columns)
        rows.writerows(zip(*columns, strict=True))
        text = buffer.getvalue()
        if not self.last_line:
            text = text.removesuffix(self.dialect["lineterminator"])
        path.write_bytes(COMPRESSED[self.packing](text.encode(self.encoding, errors="strict")))

    @property
    def rules(self) -> ReadingRules:
        """The settings."""
        missing = {name: tuple(mark for mark in self.marks[name] if mark) for name in self.declared}
        return ReadingRules(missing=missing, merge_spellings=True)


OFTEN = st.sampled_from


@st.composite
def notations(draw: st.DrawFn) -> Notation:
    """Draw a notation."""
    marks_of = {
        "id": st.just([""]),
        "price": st.lists(OFTEN([*cells.MISSING, *NOT_A_NUMBER]), min_size=1, max_size=3),
        "count": st.lists(OFTEN([*cells.MISSING, *NOT_A_NUMBER, "refused"]), min_size=1, max_size=2),
        "place": st.lists(OFTEN(cells.MISSING), min_size=1, max_size=1),
        "label": st.lists(OFTEN([*sorted(MARKS), "unknown", "-9"]), min_size=1, max_size=2),
    }
    marks = {name: draw(each) for name, each in marks_of.items()}
    declared = draw(st.lists(OFTEN(["price", "count", "label"]), max_size=2, unique=True))
    odd = ["refused", "-999", "?", "99999", "n.k."]
    for name in declared:
        marks[name] = draw(st.lists(OFTEN(odd), min_size=1, max_size=2, unique=True))
    forms = {
        name: draw(st.lists(OFTEN(sorted(of)), min_size=1, max_size=most))
        for name, of, most in (
            ("id", IDS, 2), ("price", NUMBERS, 2), ("count", NUMBERS, 2), ("place", SPELLINGS, 3),
            ("label", SPELLINGS, 3),
        )
    }  # fmt: skip
    for name in ("price", "count"):
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
    return Notation(
        number=draw(st.integers(0, 199)), forms=forms, marks=marks, declared=declared, dialect=dialect,
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
    return table.ids.to_list(), classes, labels.tolist(), known.tolist(), table.kinds, prepare.names, matrix


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = expected(notation.number, folder)
        path = folder / "table.csv"
        try:
            notation.write(path)
        except (UnicodeEncodeError, csv.Error):
            counts["cannot be written"] += 1
            return
        try:
            table = read_table(path, party="bank", id="id", label="label", rules=notation.rules)
            found = view(table)
        except AnypartyError as error:
            said = str(error)
            assert any(repr(name) in said for name in clean(notation.number).columns) or "encoding" in said, said
            counts["stops"] += 1
            return
    counts["read"] += 1
    if right is None or found == right:
        return
    if len(found[1]) > len(right[1]) and {"unknown", "-9"} & set(found[1]):
        marked = [found[1][label] in {"unknown", "-9"} for label, known in zip(*found[2:4], strict=True) if known]
        assert 5 * sum(marked) > len(marked), "only a larger share may be a class"
        return
    assert found[:4] == right[:4], "the ids or the labels differ"
    unlike = {name for name, kind in right[4].items() if found[4].get(name) != kind} or {"count"}
    for name in unlike:
        said = ("is read as categories", "is read with a decimal point")
        assert any(f"column {name!r} {each}" in note for note in table.notes for each in said), (name, table.notes)
    counts["differs with a remark"] += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notations")


@pytest.mark.parametrize(
    ("examples", "part"),
    [
        pytest.param(100, 0, id="quick"),
        *(pytest.param(2_500, part, id=f"many-{part}", marks=pytest.mark.slow) for part in range(1, 5)),
    ],
)
def test_a_table_in_another_notation_is_the_same_table_or_stops(folder: Path, examples: int, part: int) -> None:
    counts: Counter[str] = Counter()

    @seed(part)
    @settings(max_examples=examples)
    @given(notations())
    def same(notation: Notation) -> None:
        check(notation, folder, counts)

    same()
    assert counts["read"] >= READ_SHARE * (counts["read"] + counts["stops"]), counts
