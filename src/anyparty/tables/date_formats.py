"""Read dates and times in text, and convert them to numeric columns.

A column has one order: year-first, day-first or month-first. The cells show the order if only one order makes
all cells dates. If the cells allow two orders that give different dates, the user must choose. A date with the name of
a month, as in 3 Mar 2024, has only one meaning. Times with a time zone are converted to UTC.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal, NamedTuple, get_args

import polars as pl
from pydantic import BaseModel, ConfigDict

from anyparty.tables.cells import RowNumbers

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


class DateCells(NamedTuple):
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


def of_type(series: pl.Series) -> DateCells:
    """Convert a column of type Date or Datetime to ``DateCells``. Times with a time zone are converted to UTC."""
    zone = series.dtype.time_zone if isinstance(series.dtype, pl.Datetime) else None
    if zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    known = series.is_not_null()
    return DateCells(series.cast(pl.Datetime("us")), known & ~known, known if zone is not None else known & ~known)


def with_order(text: pl.Series, order: str) -> DateCells:
    """Read text cells [n], null if missing, as dates in a known order or ``strptime`` format.

    >>> with_order(pl.Series(["3.12.2024", "3 Mar 2024 5:30 pm", "x"]), "day-first").values.dt.to_string().to_list()
    ['2024-12-03 00:00:00.000000', '2024-03-03 17:30:00.000000', None]
    """
    if order not in ORDERS:
        read = of_type(text.str.to_datetime(order, strict=False, time_unit="us"))
        values = read.values.set(read.values.dt.year() < 100, None)  # %Y also reads years of two digits, 24 as year 24
        return DateCells(values, text.is_not_null() & values.is_null(), read.zoned)
    return _in_order(text, text.str.extract_groups(DATE_CELL).struct.unnest(), order)


def _in_order(text: pl.Series, parts: pl.DataFrame, order: str) -> DateCells:
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
    return DateCells(values, text.is_not_null() & values.is_null(), parts["zone"].is_not_null())


def orders_of(text: pl.Series) -> dict[Order, DateCells]:
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
    kept = dict[Order, DateCells]()
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
