"""Read numbers that are written with marks: percent signs, currencies, marks between thousands, decimal commas, limits.

A column has one format: one decimal mark and at most one unit. Cells in another format are not numbers, because their
meaning would be a guess. ``39,400`` is read with a mark between thousands if every comma of the column can be one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple, TypeAlias

import polars as pl
from pydantic import BaseModel, ConfigDict

from anyparty.tables import cells

Limits: TypeAlias = Literal["half", "value", "missing"]
Decimal: TypeAlias = Literal[".", ","]

CURRENCY = r"\p{Sc}|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN"
SHARES = ("%", "‰")
MINUS = r"[+\u2212-]"
SPACE = r"['’\s\u00a0\u202f]"
CELL = (
    rf"^(?P<sign>{MINUS})?\s*(?P<before>{CURRENCY})?\s*(?P<other>{MINUS})?\s*"
    rf"(?P<body>[.,]?\d(?:[\d.,]|{SPACE}\d)*)\s*(?P<after>%|‰|{CURRENCY})?$"
)
BODY: dict[Decimal, str] = {
    ".": rf"^(\d+|[1-9]\d{{0,2}}(,\d{{3}})+|[1-9]\d?(,\d\d)*,\d{{3}}|[1-9]\d{{0,2}}({SPACE}\d{{3}})+)?(\.\d+)?$",
    ",": rf"^(\d+|[1-9]\d{{0,2}}(\.\d{{3}})+|[1-9]\d{{0,2}}({SPACE}\d{{3}})+)?(,\d+)?$",
}
NOT_A_NUMBER = ("-", "\u2013", "\u2014", ".", "*", "\\N")  # texts that mark a missing cell among numbers
LIMIT = r"^(?P<side><=?|>=?|≤|≥|~)\s*(?P<limit>[+-]?\d+(?:\.\d+)?)$"
RANGE = r"^(?P<low>\d+(?:\.\d+)?)\s*(?:-|–|to|\.\.)\s*(?P<high>\d+(?:\.\d+)?)$"


class NumberFormat(BaseModel):
    """The format of a column's numbers: the decimal mark, and the unit, which may be ""."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    decimal: Decimal = "."
    unit: str = ""


class MarkedNumbers(NamedTuple):
    """The numbers [n] of a text column, the mask [n] of cells that are not numbers, and the format.

    A number is null if the cell is missing or is not a number.
    """

    numbers: pl.Series
    bad: pl.Series
    format: NumberFormat


def without_marks(text: pl.Series, decimal: Decimal | None = None) -> MarkedNumbers:
    """Recognize the format of text cells [n], null if missing, and read the cells as numbers.

    If the decimal mark remains ambiguous, no cell is read as a number.

    >>> without_marks(pl.Series(["39,400", "1,250.5", "$7"])).numbers.to_list()
    [39400.0, 1250.5, 7.0]
    >>> without_marks(pl.Series(["1.234,5 €", "0,5"])).format
    NumberFormat(decimal=',', unit='€')

    Args:
        text: the cells.
        decimal: the decimal mark; ``None`` recognizes it.
    """
    formats = [NumberFormat(decimal=mark, unit=_unit(text)) for mark in ([decimal] if decimal else BODY)]
    read = [with_format(text, each) for each in formats]
    best = min(read, key=lambda each: int(each.bad.sum()))
    if decimal is None and not best.bad.any() and _is_ambiguous(text, read):
        return MarkedNumbers(best.numbers.clear(len(text)), text.is_not_null(), best.format)
    return best


def with_format(text: pl.Series, format: NumberFormat) -> MarkedNumbers:  # noqa: A002 - the usual name
    """Read text cells [n], null if missing, as numbers in a known format."""
    parts = text.str.extract_groups(CELL).struct.unnest()
    body, units = parts["body"], parts.select(pl.coalesce("before", "after").fill_null("")).to_series()
    known = body.str.contains(BODY[format.decimal]).fill_null(value=False)
    known &= units.is_in(["", format.unit]) & (parts["sign"].is_null() | parts["other"].is_null())
    known &= parts["before"].is_null() | parts["after"].is_null()
    marks = "[,'’\\s\u00a0\u202f]" if format.decimal == "." else "[.'’\\s\u00a0\u202f]"
    plain = body.str.replace_all(marks, "").str.replace(",", ".", literal=True)
    negative = parts.select(pl.coalesce("sign", "other").is_in(["-", "\u2212"]).fill_null(value=False)).to_series()
    numbers = plain.set(~known, None).cast(pl.Float64, strict=False)
    numbers = numbers.zip_with(~negative, -numbers)
    if format.unit in SHARES:  # beside percentages, 0.5 may mean 0.5 % or 50 %
        numbers = numbers.set((units == "") & (numbers != 0).fill_null(value=False), None)
    # The pattern CELL does not match numbers such as 1e5.
    exponents = text.set(numbers.is_not_null(), None).cast(pl.Float64, strict=False)
    numbers = numbers if format.unit or format.decimal == "," else numbers.fill_null(exponents)
    return MarkedNumbers(numbers.alias(text.name), text.is_not_null() & numbers.is_null(), format)


def _unit(text: pl.Series) -> str:
    """Return the most frequent unit of the cells; "" if no cell has one."""
    parts = text.str.extract_groups(CELL).struct.unnest()
    units = parts.select(pl.coalesce("before", "after")).to_series().drop_nulls()
    return cells.value_counts(units)[0][0] if len(units) else ""


def _is_ambiguous(text: pl.Series, read: Collection[MarkedNumbers]) -> bool:
    """Return whether both decimal marks are possible, and the cells do not show which mark is meant.

    1.234 beside 12,345 is ambiguous. 1.234 with a unit is ambiguous too, because prices rarely have three decimals.
    """
    if any(each.bad.any() for each in read) or all((each.numbers == next(iter(read)).numbers).all() for each in read):
        return False
    return bool(text.str.contains(".", literal=True).any())


def without_limits(text: pl.Series, how: Limits | None) -> tuple[pl.Series, pl.Series]:
    """Replace limits such as <25 and ranges such as 10-20 by numbers, or by null.

    "half" is half of an upper limit, the value of a lower limit, and the middle of a range. "value" is the limit
    itself, and the middle of a range. "missing" is null.

    >>> without_limits(pl.Series(["<25", ">90", "10-20", "7"]), "half")[0].to_list()
    ['12.5', '90', '15', '7']

    Returns:
        The cells [n], unchanged if ``how`` is ``None``; and the mask [n] of limits and ranges.
    """
    limits = text.str.extract_groups(LIMIT).struct.unnest()
    ranges = text.str.extract_groups(RANGE).struct.unnest()
    found = (limits["limit"].is_not_null() | ranges["low"].is_not_null()).alias(text.name)
    if how is None or not found.any():
        return text, found
    if how == "missing":
        return text.set(found, None), found
    limit = limits["limit"].cast(pl.Float64)
    upper = limits["side"].is_in(["<", "<=", "≤"]).fill_null(value=False)
    limit = limit.zip_with(~upper, limit / 2) if how == "half" else limit
    middle = (ranges["low"].cast(pl.Float64) + ranges["high"].cast(pl.Float64)) / 2
    number = cells.as_text(limit.fill_null(middle))
    return number.fill_null(text).alias(text.name), found
