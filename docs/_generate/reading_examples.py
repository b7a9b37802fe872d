"""The tables of docs/reference/tables.md that show how cells are read: each outcome is that of reading such a table.

The party NAME has a column with the cells of an example, or labels, ids or a file like them. Its table is read without
settings, and again with each setting of the example.
"""

from __future__ import annotations

import functools
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from anyparty import Federation
from anyparty.config import Config
from anyparty.errors import AnypartyWarning, UserError, remarks_to

ROWS = 240
CLEAN = pl.DataFrame({
    "ID": [f"c{k:03}" for k in range(ROWS)],
    "LABEL": ["no", "yes"] * (ROWS // 2),
    "COLUMN": [f"{k % 37}.5" for k in range(ROWS)],
    "MORE": [f"{k % 31}.5" for k in range(ROWS)],
})  # fmt: skip
OTHER = pl.DataFrame({"ID": CLEAN["ID"], "OTHER": [str(k % 29) for k in range(ROWS)]})
Read = Callable[[Federation], str]


@dataclass(frozen=True)
class Example:
    """Cells that a column may have.

    Attributes:
        cells: the cells.
        beside: the other cells of the column, as the page names them: a key of ``FILLERS``.
        settings: settings in TOML, each of which changes what happens.
        times: how often the column has each of ``cells``.
    """

    cells: Sequence[str]
    beside: str
    settings: Sequence[str] = ()
    times: int = 4


FILLERS: Mapping[str, Callable[[int], Any]] = {
    "numbers": lambda k: f"{10 + k % 40}.{k % 7 + 1}",
    "percentages": lambda k: f"{10 + k % 40}.{k % 7 + 1}%",
    "dollars": lambda k: f"${10 + k % 40}.{k % 7 + 1}",
    "euros": lambda k: f"{10 + k % 40}.{k % 7 + 1} EUR",
    "thousands with `,`": lambda k: f"{10 + k % 40},{100 + k % 7}",
    "thousands with a space": lambda k: f"{10 + k % 40} {100 + k % 7}",
    "thousands with `'`": lambda k: f"{10 + k % 40}'{100 + k % 7}",
    "decimal commas": lambda k: f"{10 + k % 40},{k % 7 + 1}",
    "decimal points and commas": lambda k: f"{10 + k % 40}" + (f".{100 + k % 7}" if k % 2 else f",{100 + k % 7}"),
    "points with three digits": lambda k: f"{10 + k % 40}.{100 + k % 7}" if k % 2 else str(k % 9),
    "whole numbers": lambda k: str(k % 60),
    "3 whole numbers": lambda k: str(3 + k % 3),
    "2 words": lambda k: ("blue", "green")[k % 2],
    "2 words, empty cells": lambda k: ("blue", "green", None)[k % 3],
    "`no`": lambda _: "no",
    "`0`": lambda _: "0",
    "`0`, `1`": lambda k: str(k % 2),
    "`yes`, `no`": lambda k: ("yes", "no")[k % 2],
    "`yes`, `no`, in half of the rows": lambda k: ("yes", "no")[k // 2 % 2],
    "`+`": lambda _: "+",
    "dates such as `2024-05-17`": lambda k: f"2024-{1 + k % 12:02}-{1 + k % 28:02}",
    "dates such as `2024/05/17 17:30`": lambda k: f"2024/{1 + k % 12:02}/{1 + k % 28:02} {k % 24:02}:30",
    "dates such as `17 May 2024`": lambda k: f"{1 + k % 28} May {2000 + k % 24}",
    "dates such as `17.05.2024`": lambda k: f"{1 + k % 28:02}.{1 + k % 12:02}.2024",
    "dates such as `05/17/2024`": lambda k: f"{1 + k % 12:02}/{1 + k % 28:02}/2024",
    "dates such as `05/04/2024`": lambda k: f"{1 + k % 12:02}/{1 + k // 12 % 12:02}/2024",
    "dates such as `17.05.24`": lambda k: f"{1 + k % 28:02}.{1 + k % 12:02}.24",
    "dates such as `20240517`": lambda k: f"2024{1 + k % 12:02}{1 + k % 28:02}",
    "times with a zone": lambda k: f"2024-{1 + k % 12:02}-{1 + k % 28:02}T{k % 24:02}:30:00+02:00",
    "times of day": lambda k: f"{k % 24:02}:{k % 60:02}",
    "other texts": lambda k: f"customer {k} from street {k * 7}",
    "": lambda _: None,
}  # fmt: skip

TYPE, CLASSES = "parties.NAME.types = {COLUMN = %s}", "federation.classes = %s"
CATEGORY, LIMIT, MISSING = TYPE % '"categorical"', "parties.NAME.limits = {%s = %s}", "parties.NAME.missing = {%s = %s}"
LIMITS = [LIMIT % ("COLUMN", each) for each in ('"half"', '"value"', '"missing"')]
DATE = "parties.NAME.dates = {COLUMN = %s}"
DECIMAL = 'parties.NAME.decimal = ","'
QUANTITY = 'federation.task = "classification"'
COLUMNS = {
    "numbers": (
        Example(["39.4%"], "percentages", [CATEGORY]),
        Example(["$39.4"], "dollars"),
        Example(["39.4 EUR"], "euros"),
        Example(["39,400"], "thousands with `,`", [DECIMAL]),
        Example(["39 400"], "thousands with a space"),
        Example(["39'400"], "thousands with `'`"),
        Example(["39,4", "1.234,5"], "decimal commas"),
        Example(["12.345"], "points with three digits", [DECIMAL]),
        Example(["1.234", "12,345"], "decimal points and commas"),
        Example(["39.4%"], "numbers"),
        Example(["$39.4"], "euros"),
        Example(["-", ".", "*", "\\N"], "numbers"),
        Example(["<25", ">90", "10-20"], "numbers", LIMITS),
        Example(["refused"], "numbers", [MISSING % ("COLUMN", '["refused"]')]),
        Example(["refused"], "3 whole numbers", [MISSING % ("COLUMN", '["refused"]')]),
        Example(["-999"], "numbers", [MISSING % ("COLUMN", "[-999]")]),
        Example(["5%", "12'345"], "3 whole numbers"),
    ),
    "categories": (
        Example(["Yes", "yes", "YES"], "2 words", ["federation.merge_spellings = true"]),
        Example(["NA", "None"], "2 words"),
        Example(["NA", "None"], "2 words, empty cells", [MISSING % ("COLUMN", '["NA", "None"]')]),
        Example(["customer 7 from street 49"], "other texts", [CATEGORY, TYPE % '"text"']),
    ),
    "dates": (
        Example(["2024-03-31"], "dates such as `2024-05-17`", [CATEGORY]),
        Example(["2024/03/31 17:30"], "dates such as `2024/05/17 17:30`"),
        Example(["31 Mar 2024", "March 31, 2024"], "dates such as `17 May 2024`"),
        Example(["31.03.2024"], "dates such as `17.05.2024`"),
        Example(["2024-03-31"], "dates such as `17.05.2024`"),
        Example(["03/31/2024"], "dates such as `05/17/2024`"),
        Example(["03/04/2024"], "dates such as `05/04/2024`", [DATE % '"day-first"', DATE % '"month-first"']),
        Example(["31.03.24"], "dates such as `17.05.24`", [DATE % '"%d.%m.%y"']),
        Example(["20240331"], "dates such as `20240517`", [DATE % '"%Y%m%d"']),
        Example(["2024-03-31T17:30:00+02:00"], "times with a zone"),
        Example(["2024-03-31 17:30"], "times with a zone"),
        Example(["17:30"], "times of day"),
        Example(["0000-00-00", "soon"], "dates such as `2024-05-17`",
                [MISSING % ("COLUMN", '["0000-00-00", "soon"]')]),
        Example(["never"], "dates such as `17.05.2024`", [MISSING % ("COLUMN", '["never"]')], 60),
        Example(["1900-01-01", "9999-12-31"], "dates such as `2024-05-17`",
                [MISSING % ("COLUMN", '["1900-01-01", "9999-12-31"]')]),
    ),
}  # fmt: skip
LABELS = (
    Example(["yes", "Yes", " yes "], "`no`", [CLASSES % '["yes", "Yes", "no"]'], 40),
    Example(["1", "1.0", "1e0"], "`0`", [], 40),
    Example(["true", "no"], "`0`", [CLASSES % '{yes = ["true"], no = ["0", "no"]}'], 40),
    Example(["01", "1"], "`0`", [CLASSES % '{one = ["1", "01"], zero = ["0"]}'], 40),
    Example([""], "`yes`, `no`"),
    Example(["NA"], "`yes`, `no`", [CLASSES % '["yes", "no", "NA"]']),
    Example(["-"], "`+`", [], 80),
    Example(["unknown"], "`yes`, `no`", [MISSING % ("LABEL", '["unknown"]'), CLASSES % '["yes", "no", "unknown"]']),
    Example(["unknown"], "`yes`, `no`, in half of the rows", [MISSING % ("LABEL", '["unknown"]')], 120),
    Example(["-9"], "`0`, `1`", [MISSING % ("LABEL", "[-9]"), CLASSES % '["0", "1", "-9"]']),
    Example(["7"], "whole numbers", [QUANTITY]),
    Example(["39.4%"], "percentages", [QUANTITY]),
    Example(["<25"], "numbers", [LIMIT % ("LABEL", '"half"'), LIMIT % ("LABEL", '"value"')]),
)
NORMALIZE, DUPLICATES = "federation.id_normalize = %s", "parties.NAME.duplicates = %s"
IDS = (
    ("7", "7", ()),
    (" 7", "7", ()),
    ("7.0", "7", ()),
    ("007", "7", [NORMALIZE % '["strip-zeros"]']),
    ("DE-A7", "dea7", [NORMALIZE % '["lower-case", "strip-hyphens"]']),
    ("total", "7", ()),
    ("", "7", ()),
    ("1.23E+11", "123000000001", ()),
)
REPEATED = [DUPLICATES % each for each in ('"first"', '"last"', '"mean"')]
FILES: Sequence[tuple[str, bytes, Sequence[str]]] = (
    ("cells between `;`, tabs or `|`", b"ID;LABEL;COLUMN\n1;yes;a\n2;no;b\n", ()),
    ("a first line `sep=;`", b"sep=;\nID;LABEL;COLUMN\n1;yes;a\n2;no;b\n", ()),
    ("all column names in `'`", b"'ID','LABEL','COLUMN'\n'1','yes','a'\n'2','no','b'\n", ()),
    ("UTF-16", "ID,LABEL,COLUMN\n1,yes,Köln\n2,no,Ulm\n".encode("utf-16"), ()),
    ("Western text that is not UTF-8", "ID,LABEL,COLUMN\n1,yes,Köln\n2,no,Düren\n".encode("cp1252"),
     ['parties.NAME.encoding = "cp1250"']),
    ("lines that end in CR alone", b"ID,LABEL,COLUMN\r1,yes,a\r2,no,b\r", ()),
    ("a line with too few cells", b"ID,LABEL,COLUMN\n1,yes,a\n2\n", ()),
    ("an HTML page, JSON, a PDF or another content", b"<!DOCTYPE html><html><body></body></html>", ()),
)  # fmt: skip


@functools.cache
def example_rows() -> dict[str, list[list[str]]]:
    """Return the rows of each table of examples, by the table's name."""
    found = {name: [_column(each, "COLUMN") for each in examples] for name, examples in COLUMNS.items()}
    found["labels"] = [_column(each, "LABEL") for each in LABELS]
    found["ids"] = [*(_id(*each) for each in IDS), _repeated(REPEATED)]
    return found | {"files": [_file(*each) for each in FILES]}


def _column(example: Example, name: str) -> list[str]:
    values = [FILLERS[example.beside](k) for k in range(ROWS)]
    places = range(0, ROWS, ROWS // (example.times * len(example.cells)))
    for k, place in enumerate(places[: example.times * len(example.cells)]):
        values[place] = example.cells[k % len(example.cells)]
    table = CLEAN.with_columns(pl.Series(name, values))
    shown = places[: len(example.cells)]

    def read(made: Federation) -> str:
        return _label(made, shown) if name == "LABEL" else _feature(made, shown)

    cells = ", ".join(f"`{cell}`" if cell else "empty" for cell in example.cells)
    return [cells, example.beside, *_outcomes(table.write_csv().encode(), OTHER, example.settings, read)]


def _feature(made: Federation, shown: Sequence[int]) -> str:
    table = made.tables["NAME"]
    if "COLUMN" not in table.columns:
        return "left out"
    kind, cells = table.kinds["COLUMN"], table.columns["COLUMN"].gather(list(shown))
    if cells.null_count() == len(cells):
        return "missing"
    if kind == "categorical":
        return "one category" if cells.n_unique() == 1 else f"{cells.n_unique()} categories"
    if kind == "text":
        return "hashed words"
    noun = "number" if kind == "numeric" else "date"
    values = ", ".join(f"{cell:.12g}" if kind == "numeric" else str(cell) for cell in cells)
    return f"{noun}{'s' if len(cells) > 1 else ''} {values}"


def _label(made: Federation, shown: Sequence[int]) -> str:
    cells = pl.Series(made.tables["NAME"].label).gather(list(shown))
    if cells.null_count() == len(cells):
        return "no label"
    if made.predicted().startswith("task: regression"):
        return "regression; number " + ", ".join(f"{float(cell):g}" for cell in cells)
    return "one class" if cells.n_unique() == 1 else f"{cells.n_unique()} classes"


def _id(one: str, other: str, settings: Sequence[str]) -> list[str]:
    ids = [f"c{k}" if one[-1:].isalpha() or "-" in one else f"{k}" for k in range(1000, 999 + ROWS)]
    table = CLEAN.with_columns(ID=pl.Series([one, *ids]))

    def read(made: Federation) -> str:
        return "the same id" if made.overlap.by_all == ROWS else "different ids"

    others = OTHER.with_columns(ID=pl.Series([other, *ids]))
    return [
        f"`{one}`" if one else "empty",
        f"`{other}`",
        *_outcomes(table.write_csv().encode(), others, settings, read),
    ]


def _repeated(settings: Sequence[str]) -> list[str]:
    """Return the row of an id that the first two rows of a table share; their numbers are 1 and 3."""
    table = CLEAN.with_columns(ID=pl.Series(["c001", *CLEAN["ID"][1:]]), COLUMN=pl.Series(["1", "3"] * (ROWS // 2)))

    def read(made: Federation) -> str:
        return f"one row, number {made.tables['NAME'].columns['COLUMN'][0]:g}"

    head = ["two rows of one id, numbers 1 and 3", ""]
    return [*head, *_outcomes(table.write_csv().encode(), OTHER, settings, read)]


def _file(words: str, content: bytes, settings: Sequence[str]) -> list[str]:
    other = pl.DataFrame({"ID": ["1", "2"], "OTHER": ["3", "4"]})
    return [words, *_outcomes(content, other, settings, lambda made: f"read as {made.tables['NAME'].read_as}")]


def _outcomes(content: bytes, other: pl.DataFrame, settings: Sequence[str], read: Read) -> list[str]:
    """Read a file of the party NAME without settings and with each setting; return both results in words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_bytes(content)
        happens = _outcome(path, other, "", read)
        return [happens, "; ".join(f"`{setting}`: {_outcome(path, other, setting, read)}" for setting in settings)]


def _outcome(path: Path, other: pl.DataFrame, setting: str, read: Read) -> str:
    asked = tomllib.loads(setting)
    federation = {"id": "ID", "label": "LABEL", **asked.get("federation", {})}
    config = Config.of({"federation": federation, "parties": {"NAME": {}, "OTHER": {}, **asked.get("parties", {})}})
    heard = list[str]()
    try:
        with remarks_to(heard.append), warnings.catch_warnings():
            warnings.simplefilter("ignore", AnypartyWarning)
            made = Federation.from_config(config, {"NAME": path, "OTHER": other})
            made.predicted()
            result = read(made)
        return result + (", with a remark" if made.overlap.notes or heard else "")
    except UserError:
        return "stops"
