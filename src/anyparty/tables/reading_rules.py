"""Read numbers with marks, and dates, in text; the rules by which one party's cells are read.

A model stores these reading rules, so that prediction reads cells as training did.

Marks of numbers are percent signs, currencies, marks between thousands, decimal commas and limits. A column has one
format: one decimal mark and at most one unit. Cells in another format are not numbers, because their meaning would be a
guess. The comma in ``39,400`` separates thousands if every comma in the column can separate thousands.

Dates: a column has one order: year-first, day-first or month-first. The cells show the order if only one order makes
all cells dates. If the cells allow two orders that give different dates, the user must choose. A date with the name of
a month, as in 3 Mar 2024, has only one meaning. Times with a time zone are converted to UTC.
"""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import polars as pl
from pydantic import BaseModel, ConfigDict

from anyparty.tables import cells
from anyparty.tables.cells import RowNumbers

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


Order = Literal["year-first", "day-first", "month-first"]
ORDERS: tuple[Order, ...] = get_args(Order)
MONTHS = {"jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "oct": 10,
          "nov": 11, "dec": 12}  # fmt: skip
DAY = (
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
    r"(?P<first>\d{1,2})[-/.](?P<second>\d{1,2})[-/.](?P<last>\d{4})",
    r"(?P<d>\d{1,2})[ -](?P<m>[A-Za-z]{3,9})[ -](?P<y>\d{4})",
    r"(?P<named>[A-Za-z]{3,9}) (?P<d2>\d{1,2}),? (?P<y2>\d{4})",
)
TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<sec>\d\d)(?:[.,](?P<part>\d{1,9}))?)?"
ZONE = r"(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)"
DATE_CELL = rf"^(?:{'|'.join(DAY)})(?:(?:T|\s+){TIME}\s*(?P<half>[AaPp]\.?[Mm]\.?)?\s*{ZONE}?)?$"
SHORT_DATE = r"^\d{1,2}(?:[-/.]\d{1,2}[-/.]|[ -](?i:[a-z]{3,9})[ -])\d{2}(?: |$)"  # a date with a year of two digits
MIDNIGHT = dt.time()
DAY_US = 86_400e6  # microseconds in a day


class DateFormat(BaseModel):
    """The notation of a column's dates.

    Attributes:
        order: one of ``ORDERS``, or a format as for ``strptime``, such as "%d.%m.%y".
        times: whether cells have a time of day.
        zoned: whether cells have a time zone. Such times are converted to UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    order: str = "year-first"
    times: bool = False
    zoned: bool = False


class Moments(NamedTuple):
    """A column of n cells, read as dates and times.

    Attributes:
        values: [n] Datetime without a time zone; null if the cell is missing or bad.
        bad: [n] bool, True for a cell that is neither a date nor missing.
        zoned: [n] bool, True for a cell with a time zone.
    """

    values: pl.Series
    bad: pl.Series
    zoned: pl.Series


def check_order(order: str) -> str:
    """Check a setting for the order of dates, and return it.

    Raises:
        ValueError: the setting is not one of ``ORDERS``, and does not look like a format such as "%d.%m.%y".
    """
    if order not in ORDERS and "%" not in order:
        raise ValueError(f"expected {', '.join(map(repr, ORDERS))} or a format such as '%d.%m.%y', not {order!r}")
    return order


def two_digit_formats(text: pl.Series) -> tuple[str, ...]:
    """Return the ``strptime`` formats, with a year of two digits, by which nine of ten text cells are dates.

    The result is empty if a cell does not look like such a date. A format with the day first is the first one.

    >>> two_digit_formats(pl.Series(["01.02.24", "13.02.99"])), two_digit_formats(pl.Series(["3-MAR-24"]))
    (('%d.%m.%y',), ('%d-%b-%y',))
    """
    known = text.drop_nulls()
    if not len(known) or not known.str.contains(SHORT_DATE).all():
        return ()
    mark = known[0].lstrip("0123456789")[0]
    days = [day.replace("-", mark) for day in ("%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%d-%b-%y")]
    formats = [day + time for day in days for time in ("", " %H:%M", " %H:%M:%S")]
    return tuple(each for each in formats if 10 * with_order(known, each).bad.sum() <= len(known))


def of_type(series: pl.Series) -> Moments:
    """Convert a column of type Date or Datetime to ``Moments``. Times with a time zone are converted to UTC."""
    zone = series.dtype.time_zone if isinstance(series.dtype, pl.Datetime) else None
    if zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    known = series.is_not_null()
    return Moments(series.cast(pl.Datetime("us")), known & ~known, known if zone is not None else known & ~known)


def with_order(text: pl.Series, order: str) -> Moments:
    """Read text cells [n], null if missing, as dates in a known order or ``strptime`` format.

    >>> with_order(pl.Series(["3.12.2024", "3 Mar 2024 5:30 pm", "x"]), "day-first").values.dt.to_string().to_list()
    ['2024-12-03 00:00:00.000000', '2024-03-03 17:30:00.000000', None]
    """
    if order not in ORDERS:
        read = of_type(text.str.to_datetime(order, strict=False, time_unit="us"))
        values = read.values.set(read.values.dt.year() < 100, None)  # %Y also reads years of two digits, 24 as year 24
        return Moments(values, text.is_not_null() & values.is_null(), read.zoned)
    return _in_order(text, text.str.extract_groups(DATE_CELL).struct.unnest(), order)


def _in_order(text: pl.Series, parts: pl.DataFrame, order: str) -> Moments:
    """Read text cells [n] as dates in one of ``ORDERS``; ``parts`` has their parts as matched by ``DATE_CELL``."""
    first, second = ("first", "second") if order == "day-first" else ("second", "first")
    day, month, year = ["day", "d", "d2"], ["month"], ["year", "y", "y2"]
    if order != "year-first":  # dates with the year first are read in every order
        day, month, year = [first, *day], [second, *month], ["last", *year]
    named = pl.coalesce("m", "named").str.to_lowercase().str.slice(0, 3).replace_strict(
        MONTHS, default=None, return_dtype=pl.Int64)  # fmt: skip
    hour, half = pl.col("hour").cast(pl.Int64), pl.col("half").str.to_lowercase().str.slice(0, 1)
    hour = pl.when(half.is_null()).then(hour).when(hour.is_between(1, 12)).then(hour % 12 + 12 * (half == "p"))
    time = pl.format("{}:{}:{}.{}", hour, "minute", pl.col("sec").fill_null("00"), pl.col("part").fill_null("0"))
    time = pl.when(pl.col("hour").is_null()).then(pl.lit("0:00:00.0")).otherwise(time)
    date = pl.format("{}-{}-{}", pl.coalesce(year), pl.coalesce(*month, named.cast(pl.String)), pl.coalesce(day))
    offset = pl.col("zone").str.replace("Z|UTC|GMT", "+0000").str.replace(":", "")
    minutes = offset.str.slice(1, 2).cast(pl.Int64) * 60 + offset.str.slice(3, 2).cast(pl.Int64)
    minutes = pl.when(offset.str.starts_with("-")).then(-minutes).otherwise(minutes).fill_null(0)
    datetimes = (date + " " + time).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us")
    values = parts.select((datetimes - pl.duration(minutes=minutes)).alias(text.name)).to_series()
    return Moments(values, text.is_not_null() & values.is_null(), parts["zone"].is_not_null())


def orders_of(text: pl.Series) -> dict[Order, Moments]:
    """Read the cells as dates in each possible order of day, month and year; the order with most dates is first.

    An order is possible if at least nine of ten cells are then dates. An order that gives the same dates as a better
    one is left out.
    """
    known = text.drop_nulls()
    if not known.head(100).str.contains(DATE_CELL).any() and not known.str.contains(DATE_CELL).any():
        return {}
    parts = text.str.extract_groups(DATE_CELL).struct.unnest()
    tried = ORDERS if parts["first"].count() else ORDERS[:1]
    read = {order: _in_order(text, parts, order) for order in tried}
    best = sorted(read, key=lambda order: int(read[order].bad.sum()))
    found = {order: read[order] for order in best if 10 * read[order].bad.sum() <= len(known)}
    kept = dict[Order, Moments]()
    for order, each in found.items():
        if not any(other.values.equals(each.values) for other in kept.values()):
            kept[order] = each
    return kept


class DateColumn(BaseModel):
    """A column of dates, which becomes several numeric columns.

    >>> seen = pl.Series("seen", [dt.datetime(2024, 3, 3, 12), None])
    >>> column = DateColumn(name="seen", reference=dt.date(2024, 3, 1), hours=True)
    >>> [f"{part.name} {part[0]}" for part in column.transform(seen)]
    ['seen: days 2.5', 'seen: year 2024.0', 'seen: month 3.0', 'seen: weekday 7.0', 'seen: hour 12.0']

    Attributes:
        name: the name of the column.
        reference: the earliest day in the training rows, from which days are counted.
        hours: whether the hour of the day is one of the numeric columns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    reference: dt.date
    hours: bool

    @classmethod
    def fit(cls, column: pl.Series, rows: RowNumbers) -> DateColumn:
        """Fit to the training rows, at least one of which has a date; the earliest day becomes ``reference``."""
        earliest = column[rows].drop_nulls().cast(pl.Date).sort()[0]
        return cls(name=column.name, reference=earliest, hours=isinstance(column.dtype, pl.Datetime))

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the numeric columns that the dates become."""
        names = ("days", "year", "month", "weekday", "hour")
        return tuple(f"{self.name}: {part}" for part in (names if self.hours else names[:-1]))

    def transform(self, column: pl.Series) -> list[pl.Series]:
        """Convert dates [n] to days since ``reference``, year, month, weekday (1 is Monday) and hour of the day.

        Days and hours have a fraction. The hour is left out if ``hours`` is False.
        """
        datetimes = column.cast(pl.Datetime("us"))
        days = (datetimes - dt.datetime.combine(self.reference, MIDNIGHT)).cast(pl.Int64) / DAY_US
        hour = datetimes.dt.time().cast(pl.Int64) / 3600e9  # from nanoseconds
        numbers = (days, datetimes.dt.year(), datetimes.dt.month(), datetimes.dt.weekday(), hour)
        return [each.cast(pl.Float64).alias(name) for name, each in zip(self.parts, numbers, strict=False)]

    def inverse(self, days: pl.Series) -> pl.Series:
        """Convert days since ``reference`` [n] back to dates, rounded to whole days if ``hours`` is False."""
        start = dt.datetime.combine(self.reference, MIDNIGHT)
        datetimes = start + (days * DAY_US).round().cast(pl.Int64).cast(pl.Duration("us"))
        return (datetimes if self.hours else datetimes.dt.offset_by("12h").cast(pl.Date)).alias(self.name)


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
