"""Cells: which are missing, which are numbers, and how an id, a category or a class reads as text.

The rules hold per cell and never depend on the other cells of a column, so that two files, or two parties, that
hold the same value read it the same way.  A decimal in text keeps the zeros behind its point but for ".0": 1.1 and 1.10
may be two codes.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

ZONED = r"^(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(\.\d+)? ?(Z|UTC|[+-]\d{2}:?\d{2})$"
MAX_BYTES = 65_536  # of one text cell, unless the settings say otherwise
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "?")


def as_text(series: pl.Series) -> pl.Series:
    """Return the cells as trimmed text, null where they are missing (:data:`MISSING`).

    Whole numbers read without a fraction, because pandas turns whole numbers into floats where there are gaps:

    >>> as_text(pl.Series([7.0, None, 2.5, -0.0])).to_list()
    ['7', None, '2.5', '0']
    >>> as_text(pl.Series([" 7", "7.0", "red ", "N/A"])).to_list()
    ['7', '7', 'red', None]
    >>> as_text(pl.Series(["7.00", "2.50", "100.00"]).cast(pl.Decimal(10, 2))).to_list()
    ['7', '2.5', '100']

    R writes the whole numbers 100000 and 250000000000 so, and no other digits are lost by it:

    >>> as_text(pl.Series(["1e+05", "2.5e+11", "1.5e+00", "1E+05", "1e5"])).to_list()
    ['100000', '250000000000', '1.5e+00', '1E+05', '1e5']

    A moment reads the same however finely its column counts and however it is written, with a zone in UTC; and
    midnight, without a zone, as the day:

    >>> as_text(pl.Series(["2020-01-31 00:00:00", "2020-01-31 08:30:00.500"]).str.to_datetime(time_unit="ns")).to_list()
    ['2020-01-31', '2020-01-31 08:30:00.5']
    >>> as_text(pl.Series(["2020-01-31T08:30:00.500", "2020-01-31 09:30:00+01:00", "2020-01-31T08:30:00Z"])).to_list()
    ['2020-01-31 08:30:00.5', '2020-01-31 08:30:00 UTC', '2020-01-31 08:30:00 UTC']
    >>> as_text(pl.Series(["2020-01-31 00:00:00", "2020-01-31T08:30:00Z"], dtype=pl.Categorical)).to_list()
    ['2020-01-31', '2020-01-31 08:30:00 UTC']
    """
    text = _written(series).str.strip_chars().str.replace(r"^([+-]?\d+)\.0$", "${1}")
    if is_text(series):
        text = _whole(text)
    if series.dtype.is_temporal():  # how finely it counts says how it is kept; midnight is the day
        text = text.str.replace(r"(:\d{2}\.\d*?)0+$", "${1}").str.strip_chars_end(".")
    if series.dtype.is_temporal() or is_text(series):
        text = _moments(text)
    if series.dtype.is_decimal():  # a Decimal's zeros say how it is kept
        text = text.str.replace(r"(\.\d*?)0+$", "${1}").str.strip_chars_end(".")
    missing = text.is_in(MISSING)
    return text.set(missing, None) if missing.any() else text


def _whole(text: pl.Series) -> pl.Series:
    """Return texts with whole numbers that R wrote with a power of ten written out; others stay."""
    if not (powers := text.str.contains(r"^[+-]?\d(\.\d+)?e\+\d{2}$").fill_null(value=False)).any():
        return text
    numbers = text.filter(powers).cast(pl.Float64)
    whole = (numbers == numbers.floor()) & (numbers.abs() <= exact(numbers))
    written = numbers.set(~whole, None).cast(pl.Int64).cast(pl.String).fill_null(text.filter(powers).cast(pl.String))
    return text.scatter(powers.arg_true(), written)


def _moments(text: pl.Series) -> pl.Series:
    """Return texts with one writing for every moment among them; others stay."""
    if not text.str.contains(r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:").any():
        return text
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})", "${1} ${2}")
    if (zoned := text.str.contains(ZONED)).any():
        day, second, part, zone = text.filter(zoned).str.extract_groups(ZONED).struct.unnest()
        offset = zone.str.replace("Z|UTC", "+0000").str.replace(":", "")
        moment = (day + " " + second + offset).str.to_datetime("%Y-%m-%d %H:%M:%S%z", time_unit="us", strict=False)
        written = moment.dt.strftime("%Y-%m-%d %H:%M:%S") + part.fill_null("").str.replace(r"\.?0+$", "") + " UTC"
        text = text.scatter(zoned.arg_true(), written.fill_null(text.filter(zoned)))
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:(\.\d*[1-9])0*|\.0*)$", "${1}${2}")
    return text.str.replace(r"^(\d{4}-\d{2}-\d{2}) 00:00:00$", "${1}")


def pick(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """Return the named columns. ``DataFrame.select`` would read a name such as ``^.*$`` as a pattern.

    >>> pick(pl.DataFrame({"^.*$": [1], "age": [2]}), ["^.*$"]).columns
    ['^.*$']
    """
    return pl.DataFrame([frame[name] for name in names])


def value_counts(text: pl.Series) -> list[tuple[str, int]]:
    """Return the distinct texts and the number of cells of each, most frequent first, then by text."""
    counts = text.alias("text").value_counts()  # a column named "count" would clash with that of the counts
    return list(counts.sort("count", "text", descending=[True, False]).iter_rows())


def missing_markers(series: pl.Series) -> dict[str, int]:
    """Return the texts that mark a missing cell, trimmed, with the number of cells of each. Empty cells do not count.

    >>> missing_markers(pl.Series(["None", " NA", "None", "", None, "no"]))
    {'None': 2, 'NA': 1}
    """
    text = series.cast(pl.String).str.strip_chars()
    return dict(value_counts(text.filter(text.is_in(MISSING) & (text != ""))))


def as_level(series: pl.Series) -> pl.Series:
    """Return the cells as the names of categories or classes: text, with true and false in lower case.

    >>> as_level(pl.Series(["True", "b", "1.0"])).to_list()
    ['true', 'b', '1']
    """
    text = as_text(series)
    return text.str.replace("^(?i:true)$", "true").str.replace("^(?i:false)$", "false")


def as_numbers(series: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the cells as Float64, null where they are missing, and which cells are neither number nor missing.

    >>> numbers, bad = as_numbers(pl.Series([" 1.5", "?", "TRUE", "old"]))
    >>> numbers.to_list(), bad.to_list()
    ([1.5, None, 1.0, None], [False, False, False, True])
    """
    numbers = _cast(series)
    bad = series.is_not_null() & numbers.is_null()
    if bad.any() and series.dtype == pl.String:
        series = _truth_as_numbers(as_text(series))
        numbers = _cast(series)
        bad = series.is_not_null() & numbers.is_null()
    return numbers, bad


def is_text(series: pl.Series) -> bool:
    """Say whether the column holds text: strings, or a polars Categorical or Enum."""
    return series.dtype == pl.String or is_category(series)


def is_category(series: pl.Series) -> bool:
    """Say whether the column was declared categorical by whoever made it."""
    return isinstance(series.dtype, pl.Categorical | pl.Enum)


def is_number(series: pl.Series) -> bool:
    """Say whether the column holds numbers, or truth values, which read as 0 and 1."""
    return series.dtype.is_numeric() or series.dtype in {pl.Boolean, pl.Null}


def cited(series: pl.Series, bad: pl.Series, most: int = 3) -> str:
    """Name the first few bad cells and the rows they stand in, counted from 1 without the header.

    >>> cited(pl.Series(["1", "x", "y"]), pl.Series([False, True, True]))
    "'x' in row 2, 'y' in row 3"
    """
    rows = bad.arg_true()
    named = [f"{str(series[row])!r} in row {row + 1}" for row in rows.head(most).to_list()]
    return ", ".join(named) + (f" and {len(rows) - most} more" if len(rows) > most else "")


def _cast(series: pl.Series) -> pl.Series:
    return series.cast(pl.Float64, strict=False).fill_nan(None)


def _truth_as_numbers(text: pl.Series) -> pl.Series:
    """Read true and false, in any case, as 1 and 0."""
    return text.str.replace("^(?i:true)$", "1").str.replace("^(?i:false)$", "0")


def exact(series: pl.Series) -> int:
    """Return up to where every whole number has a float of the column's own."""
    bits = {"Float16": 11, "Float32": 24}.get(str(series.dtype), 53)
    return 1 << bits


def _written(series: pl.Series) -> pl.Series:
    """Return cells as text; whole floats as integers, for 7.0 would print so, and a time of day with its fraction."""
    if series.dtype == pl.Time:
        return series.dt.to_string("%H:%M:%S%.f")
    if not series.dtype.is_float():
        return series.cast(pl.String)
    series = series.fill_nan(None)
    whole = ((series == series.floor()) & (series.abs() <= exact(series))).fill_null(value=False)
    if whole.all():
        return series.cast(pl.Int64).cast(pl.String)
    return series.set(~whole, None).cast(pl.Int64).cast(pl.String).fill_null(series.cast(pl.String))


def differ_in_case(levels: pl.Series) -> tuple[str, str] | None:
    """Return two levels that differ in nothing but case, or in blanks within, if there are any.

    >>> differ_in_case(pl.Series(["no", "Yes", "yes", None]))
    ('Yes', 'yes')
    """
    known = pl.DataFrame({"level": levels.drop_nulls().unique().sort()})
    alike = pl.col("level").str.to_lowercase().str.replace_all(r"\s+", " ")
    twice = known.with_columns(alike=alike).filter(pl.col("alike").is_duplicated()).sort("alike", "level")
    return (twice["level"][0], twice["level"][1]) if twice.height else None
