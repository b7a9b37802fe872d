"""Read numbers with marks in text; the rules by which one party's cells are read.

A model stores these reading rules, so that prediction reads cells as training did.

Marks of numbers are percent signs, currencies, marks between thousands, decimal commas and limits. A column has one
format: one decimal mark and at most one unit. Cells in another format are not numbers, because their meaning would be a
guess. The comma in ``39,400`` separates thousands if every comma in the column can separate thousands.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import polars as pl
from pydantic import BaseModel, ConfigDict

from anyparty.tables import cells
from anyparty.tables.date_formats import DateFormat

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
NOT_A_NUMBER = ("-", "\u2013", "\u2014", ".", "*", "\\N")  # texts that mark missing cells in a column of numbers
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
        decimal: the decimal mark; if ``None``, the mark is recognized.
    """
    formats = [NumberFormat(decimal=mark, unit=_unit(text)) for mark in ([decimal] if decimal else BODY)]
    read = [with_format(text, each) for each in formats]
    best = min(read, key=lambda each: int(each.bad.sum()))
    if decimal is None and not best.bad.any() and _is_ambiguous(text, read):
        return MarkedNumbers(best.numbers.clear(len(text)), text.is_not_null(), best.format)
    return best


def with_format(text: pl.Series, format: NumberFormat) -> MarkedNumbers:  # noqa: A002 - the usual name
    """Read text cells [n], null if missing, as numbers in a known format."""
    written, text = text, _with_ascii_digits(text)
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
    if format.unit in SHARES:  # 0.5 without % may mean 0.5 % or 50 %
        numbers = numbers.set((units == "") & (numbers != 0).fill_null(value=False), None)
    # numbers such as 1e5, which the pattern CELL does not match
    exponents = text.set(numbers.is_not_null(), None).cast(pl.Float64, strict=False)
    numbers = numbers if format.unit or format.decimal == "," else numbers.fill_null(exponents)
    return MarkedNumbers(numbers.alias(text.name), written.is_not_null() & numbers.is_null(), format)


def _with_ascii_digits(text: pl.Series) -> pl.Series:
    """Rewrite numbers in plain characters: digits 0 to 9, the minus in front, no invisible character or apostrophe.

    >>> _with_ascii_digits(pl.Series(["\uff14\uff12", "\u0664\u0662", "42\u200b", "'42", "42-", "4.2"])).to_list()
    ['42', '42', '42', '42', '-42', '4.2']
    """
    if not text.str.contains(r"[^\x00-\x7f]|^'|-$").any():
        return text
    digits = text.str.extract_all(r"[\p{Nd}--[0-9]]").explode().drop_nulls().unique().to_list()
    text = text.str.replace_all(r"\p{Cf}", "").str.replace(r"^'([+-]?\d)", "${1}")
    text = text.str.replace(r"^(\d[\d.,]*)-$", "-${1}")
    return text.str.replace_many({each: str(unicodedata.decimal(each)) for each in digits}) if digits else text


def numbers_with_marks(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return two masks of the cells: numbers in any format; and numbers with a percent sign or a currency.

    >>> [mask.to_list() for mask in numbers_with_marks(pl.Series(["1.234,5", "12 %", "A-12"]))]
    [[True, True, False], [False, True, False]]
    """
    parts = text.str.extract_groups(CELL).struct.unnest()
    plain = text.cast(pl.Float64, strict=False).is_not_null()
    written = (parts["body"].str.contains(BODY["."]) | parts["body"].str.contains(BODY[","])).fill_null(value=False)
    units = parts["before"].is_not_null() | parts["after"].is_not_null()
    return plain | written, written & units


def _unit(text: pl.Series) -> str:
    """Return the most frequent unit of the cells, or ""."""
    parts = _with_ascii_digits(text).str.extract_groups(CELL).struct.unnest()
    units = parts.select(pl.coalesce("before", "after")).to_series().drop_nulls()
    return cells.value_counts(units)[0][0] if len(units) else ""


def _is_ambiguous(text: pl.Series, read: Collection[MarkedNumbers]) -> bool:
    """Return whether the decimal mark is ambiguous.

    1.234 is ambiguous in a column that also contains 12,345. 1.234 with a unit is ambiguous too, because prices rarely
    have three decimals.
    """
    if any(each.bad.any() for each in read) or all((each.numbers == next(iter(read)).numbers).all() for each in read):
        return False
    return bool(text.str.contains(".", literal=True).any())


def without_limits(text: pl.Series, how: Limits | None) -> tuple[pl.Series, pl.Series]:
    """Replace limits such as <25 and ranges such as 10-20 by numbers, or by null.

    ``how`` chooses the replacement. With "half", an upper limit becomes half its number, and a lower limit becomes its
    number. With "value", both kinds of limits become their number.  With "half" and with "value", a range becomes its
    middle.  With "missing", limits and ranges become null.

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


class ReadingRules(BaseModel):
    """The rules by which the cells of one party's table are read.

    Attributes:
        missing: for each column, the texts and numbers that mark a missing cell, in addition to the usual ones such as
            NA.
        task: the requested kind of task. For "regression", all labels are numbers.
        classes: for each class, the label texts that stand for it, without regard to case; if ``None``, the classes
            are recognized.
        limits: for each column, how limits such as <25 and ranges such as 10-20 are read: "half", "value" or "missing".
        dates: for each column, the order of dates such as "day-first", or their format such as "%d.%m.%y".
        decimal: the decimal mark of numbers in text; if ``None``, the mark of each column is recognized.
        merge_spellings: whether categories that differ only in their spelling are one category.
        formats: for each column, the format of numbers with marks, as recognized in training.
        date_formats: for each column, how dates are written, as recognized in training.
        literals: for each column, texts such as NA that usually mark a missing cell, but were levels in training.
        truths: the columns whose numbers were only 0 and 1, or truth values, in training; ``None`` if unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    missing: dict[str, tuple[str, ...]] = {}
    task: Literal["auto", "classification", "regression"] = "auto"
    classes: dict[str, tuple[str, ...]] | None = None
    limits: dict[str, Limits] = {}
    dates: dict[str, str] = {}
    decimal: Decimal | None = None
    merge_spellings: bool = False
    formats: dict[str, NumberFormat] = {}
    date_formats: dict[str, DateFormat] = {}
    literals: dict[str, tuple[str, ...]] = {}
    truths: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, for JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)


AS_WRITTEN = ReadingRules()


def texts(values: Iterable[Any] | str | float) -> tuple[str, ...]:
    """Convert one or more values of a setting to text in the form that cells get.

    >>> texts([1.0, True, "refused", -999])
    ('1', 'true', 'refused', '-999')
    """
    listed = [values] if isinstance(values, str | int | float) else list(values)
    if nested := [value for value in listed if isinstance(value, list | tuple | Mapping)]:
        raise ValueError(f"expected texts and numbers, not {nested[0]!r} among them")
    return tuple(
        str(value).lower() if isinstance(value, bool)
        else str(int(value)) if isinstance(value, float) and value.is_integer()
        else str(value)
        for value in listed
    )  # fmt: skip


def classes(values: Any) -> Any:
    """Convert the setting ``classes`` to a mapping from each class to its label texts; the setting may be a list.

    >>> classes(["no", "yes"]), classes({"yes": ["true", 1], "no": 0})
    ({'no': ('no',), 'yes': ('yes',)}, {'yes': ('true', '1'), 'no': ('0',)})

    Raises:
        ValueError: there are fewer than two classes, a class has no text, or two classes have the same text.
    """
    if isinstance(values, Mapping):
        found = {texts([name])[0]: texts(each) for name, each in values.items()}
    elif isinstance(values, list | tuple):
        found = {name: (name,) for name in texts(values)}
    elif values is None:
        return None
    else:
        raise ValueError('expected a list of classes, such as ["no", "yes"], or the texts of each class, such as '
                         '{yes = ["true", 1], no = ["0"]}')  # fmt: skip
    if len(found) < 2 or not all(found.values()):
        raise ValueError("expected at least two classes, each with at least one text")
    classes_of: dict[str, str] = {}
    for name, each in found.items():
        for text in each:
            if classes_of.setdefault(text, name) != name:
                raise ValueError(f"the text {text!r} belongs to two classes, {classes_of[text]!r} and {name!r}; remove "
                                 "it from one of them")  # fmt: skip
    return found
