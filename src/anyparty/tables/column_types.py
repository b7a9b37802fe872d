"""Infer the kind of a feature column: numeric, categorical, or unusable as a feature."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from anyparty.errors import TableError, some
from anyparty.tables import cells

Kind: TypeAlias = Literal["numeric", "categorical"]

NUMERIC_SHARE = 0.9  # a text column with at least this share of numbers is a numeric column with mistakes in it
FEW_TEXTS = 2  # up to this many distinct texts among more than FEW_LEVELS distinct numbers may mark missing cells
MORE_TEXTS, MOSTLY = 5, 0.8  # the limit is MORE_TEXTS instead if at least the share MOSTLY of the cells are numbers
MANY_LEVELS = 50  # text is not a category if it has more distinct values than this, and than half the number of cells
FEW_LEVELS = 20  # text with at most this many distinct values is a category, whatever its notation
NUMBER = r"[+\u2212-]?(?:(?:\d{1,3}(?:[.,'\s]\d{3})+|\d+)(?:[.,]\d+)?|[.,]\d+)"
MONEY = r"(\p{Sc}|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN)"
UNIT = (  # a fixed list, because letters as in 7A and 7B are codes; k stands for thousands, M for millions
    r"([%‰]|°[CF]?|[kKM]|[kmµ]?g|[kcmµ]?m[²³23]?|[cdm]?l|m?s|h|lbs?|oz|ft|mi|mph|km/h|m/s|k?Wh?|"
    r"(year|yr|month|week|day|hour|hr|minute|min|second|sec)s?)"
)
SUFFIX = r"[\p{L}%‰°²³]+(?:[/·*^\s]+[\p{L}\d%²³.]+)*"  # a unit that is not in UNIT, such as mL/min/1.73 m²
NOTATIONS = {  # by name, the pattern of quantities in text, and advice; values may repeat, unlike identifiers
    "numbers with decimal commas": (
        r"^([<>]=?\s*)?[+-]?(\d+|\d{1,3}([.' ]\d{3})+),\d+$|^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$",
        "write them with a decimal point and no mark between thousands",
    ),
    "numbers with marks between thousands": (
        r"^[+-]?[1-9]\d{0,2}(['\s]\d{3})+([.,]\d+)?$",
        "write them without these marks",
    ),
    "numbers with a unit": (
        rf"^\(?({NUMBER}\s*({UNIT}|{MONEY})|[+\u2212-]?{MONEY}\s*{NUMBER})\)?$",
        "write the numbers alone, all in the same unit",
    ),
    "numbers with another sign than - for minus": (rf"^[\u2212\u2013]\s?{NUMBER}$", "write a hyphen for minus"),
    "numbers in brackets": (
        rf"^\(\s*{NUMBER}\s*\)$",
        "write them without brackets, and with a minus sign if they are negative",
    ),
    "durations": (  # as pandas writes them to a CSV
        r"^-?\d+ days? [+-]?\d\d:\d\d:\d\d(\.\d+)?$",
        "write a number instead, such as days",
    ),
    "times": (
        r"^\d{1,2}:[0-5]\d(:[0-5]\d([.,]\d+)?)?(\s*[AaPp]\.?[Mm]\.?)?$",
        "write a number instead, such as minutes",
    ),
    "numbers that are known as limits": (r"^[<>≤≥~]=?\s*[+-]?\d+([.,]\d+)?$", "write a number for each limit"),
    "dates": (
        r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ].*)?$",
        "write a number instead, such as days before a day of your choice",
    ),
}
OR_CATEGORY = ": correct them, leave them empty, or declare the column categorical with types"
MODELS = "The model was trained on numbers there: correct them, or leave them empty (an empty cell is imputed)"
LARGEST = float(np.finfo(np.float32).max)  # models compute in float32


class Notation(NamedTuple):
    """A notation of quantities in text, with advice and the cells in which it occurs."""

    name: str
    advice: str
    examples: pl.Series


def feature(column: pl.Series, kind: Kind | None, where: str, *, trained: bool = False) -> pl.Series:
    """Read a feature column as numbers or, for categories, as String.

    Args:
        column: the cells as in the file.
        kind: the declared kind; ``None`` infers it.
        where: party and file, the beginning of an error.
        trained: whether a model fixed the kind, so that the user cannot change it.

    Raises:
        TableError: the column has no name, an unusable type, numbers with a cell that is not a number, an infinite
            number, or text that looks like an identifier, a date, or a number in another notation.
    """
    where = f"{where}: column {column.name!r}"
    if not column.name:
        raise TableError(f"{where} has no name (pandas writes its index so); name it, or drop it with drop=['']")
    if not (cells.is_text(column) or cells.is_number(column)):
        into = ", as into days before a day of your choice" if column.dtype.is_temporal() else ""
        raise TableError(f"{where} is of type {column.dtype}; expected numbers, truth values or text: drop it, or "
                         f"convert it first{into}")  # fmt: skip
    if kind is None:
        return _inferred(column, where)
    if kind == "categorical":
        return cells.as_level(column)
    return _numeric(column, where, MODELS) if trained else _numeric(column, where)


def _inferred(column: pl.Series, where: str) -> pl.Series:
    if cells.is_number(column):
        return _numeric(column, where)
    if cells.is_category(column):
        return cells.as_level(column)
    numbers, bad = cells.as_numbers(column)
    if not bad.any():
        return _finite(numbers, where)
    text = cells.as_level(column)
    known = len(text) - text.null_count()
    if bad.sum() <= (1 - NUMERIC_SHARE) * known:
        return _numeric(column, where, f"Nearly all others are{OR_CATEGORY}")
    values = text.n_unique() - (text.null_count() > 0)
    notation = notation_of(text) if values > FEW_LEVELS else None
    marks = None if notation else marks_among(numbers, text.filter(bad))
    if marks:
        raise TableError(f"{where} has numbers except for {marks}: leave these cells empty, or declare the column "
                         f"categorical with types")  # fmt: skip
    if notation or values > max(MANY_LEVELS, known / 2):
        name, advice, examples = notation or Notation("an identifier or free text", "", text.drop_nulls())
        raise TableError(
            f"{where} is text with {values} different values in {known} rows, such as {some(examples.head(2))}: it "
            f"looks like {name}; {advice}leave it out with drop, or keep it with types: categorical"
        )
    return text


def notation_of(text: pl.Series) -> Notation | None:
    """Return the notation that nearly all cells share; ``None`` if they do not look like quantities."""
    known = text.drop_nulls()
    plain = known.cast(pl.Float64, strict=False).is_not_null()
    for name, (pattern, advice) in NOTATIONS.items():
        found = known.str.contains(pattern)
        if found.any() and (found | plain).sum() >= NUMERIC_SHARE * len(known):
            return Notation(name, f"{advice}, ", known.filter(found))
    found = _with_one_suffix(known)
    return Notation("numbers with a unit", "write the numbers alone, ", found) if len(found) else None


def _with_one_suffix(known: pl.Series) -> pl.Series:
    """Return the cells that consist of a number and the most frequent suffix.

    The result is empty unless nearly all cells have this suffix, in many distinct values. It is also empty if a single
    letter directly follows whole numbers, as in 7A, because such text is a code.

    >>> len(_with_one_suffix(pl.Series([f"{n} mmHg" for n in range(30)] + ["high"])))
    30
    """
    suffixes = known.str.extract(rf"^{NUMBER}\s*({SUFFIX})$", 1).str.to_lowercase()
    most = suffixes.drop_nulls().alias("suffix").value_counts(sort=True).to_series(0).head(1)
    found = known.filter(suffixes.is_in(most.to_list()))
    is_code = bool((most.str.len_chars() == 1).any()) and not found.str.contains(r"[\s.,]").any()
    few = len(found) < NUMERIC_SHARE * len(known) or found.n_unique() <= FEW_LEVELS
    return found.clear() if is_code or few else found


def marks_among(numbers: pl.Series, texts: pl.Series) -> str | None:
    """Describe a few distinct texts among many distinct numbers, because these texts may mark missing cells.

    Up to two texts are described, or up to five if most cells are numbers. Otherwise the result is ``None``.

    >>> marks_among(pl.Series(range(30)), pl.Series(["-", "-", "none"]))
    "'-' (2 cells), 'none' (1 cell)"
    """
    known = numbers.drop_nulls()
    most = MORE_TEXTS if len(known) >= MOSTLY * (len(known) + len(texts)) else FEW_TEXTS
    if known.n_unique() <= FEW_LEVELS or texts.n_unique() > most:
        return None
    found = cells.value_counts(texts)
    return ", ".join(f"{text!r} ({count:,} cell{'' if count == 1 else 's'})" for text, count in found)


def _numeric(column: pl.Series, where: str, why: str = f"Numbers are expected there{OR_CATEGORY}") -> pl.Series:
    """Return a column as numbers, with null for missing cells. Integers and truth values keep their type."""
    if column.dtype.is_integer() or column.dtype == pl.Boolean:
        return column
    if column.dtype.is_float():
        return _finite(column.fill_nan(None), where)
    numbers, bad = cells.as_numbers(column.cast(pl.String) if cells.is_category(column) else column)
    if bad.any():
        raise TableError(f"{where} has cells that are not numbers: {cells.cited(column, bad)}. {why}")
    return _finite(numbers, where)


def _finite(column: pl.Series, where: str) -> pl.Series:
    """Check that no number is infinite or too large for float32."""
    large = column.abs() > LARGEST
    if large.any():
        raise TableError(
            f"{where} has numbers that are infinite or too large to compute with: {cells.cited(column, large)}; "
            f"correct them, or leave them empty to have them imputed"
        )
    return column
