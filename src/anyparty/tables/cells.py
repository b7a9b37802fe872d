"""Normalize cells: missing markers, numbers, and the text of ids, categories and classes. Compare spellings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

RowNumbers: TypeAlias = NDArray[np.integer[Any]]  # indices of a table's rows, counted from 0

ZONED = r"^(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(\.\d+)? ?(Z|UTC|[+-]\d{2}:?\d{2})$"
MAX_BYTES = 65_536  # default size limit of a text cell
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "?")


def as_text(series: pl.Series) -> pl.Series:
    """Convert the cells to trimmed text, and missing cells (:data:`MISSING`) to null.

    Whole numbers get no fraction, because pandas stores a column of integers with missing cells as floats:

    >>> as_text(pl.Series([7.0, None, 2.5, -0.0])).to_list()
    ['7', None, '2.5', '0']
    >>> as_text(pl.Series([" 7", "7.0", "red ", "N/A"])).to_list()
    ['7', '7', 'red', None]
    >>> as_text(pl.Series(["7.00", "2.50", "100.00"]).cast(pl.Decimal(10, 2))).to_list()
    ['7', '2.5', '100']

    Whole numbers in R's exponent notation are converted to plain digits. R uses this notation only if no digit is lost:

    >>> as_text(pl.Series(["1e+05", "2.5e+11", "1.5e+00", "1E+05", "1e5"])).to_list()
    ['100000', '250000000000', '1.5e+00', '1E+05', '1e5']

    Timestamps get one form, whatever their resolution and notation. A timestamp with a time zone is converted to UTC. A
    timestamp at midnight without a time zone becomes its date:

    >>> as_text(pl.Series(["2020-01-31 00:00:00", "2020-01-31 08:30:00.500"]).str.to_datetime(time_unit="ns")).to_list()
    ['2020-01-31', '2020-01-31 08:30:00.5']
    >>> as_text(pl.Series(["2020-01-31T08:30:00.500", "2020-01-31 09:30:00+01:00", "2020-01-31T08:30:00Z"])).to_list()
    ['2020-01-31 08:30:00.5', '2020-01-31 08:30:00 UTC', '2020-01-31 08:30:00 UTC']
    >>> as_text(pl.Series(["2020-01-31 00:00:00", "2020-01-31T08:30:00Z"], dtype=pl.Categorical)).to_list()
    ['2020-01-31', '2020-01-31 08:30:00 UTC']
    """
    numeric = series.dtype.is_float() or series.dtype == pl.Time
    text = (_cast_text(series) if numeric else series.cast(pl.String)).str.strip_chars()
    if text.str.ends_with(".0").any():  # this test is much faster than the replacement
        text = text.str.replace(r"^([+-]?\d+)\.0$", "${1}")
    if is_text(series):
        text = _without_exponent(text)
    if series.dtype.is_temporal():  # the cast appends zeros to seconds
        text = text.str.replace(r"(:\d{2}\.\d*?)0+$", "${1}").str.strip_chars_end(".")
    if series.dtype.is_temporal() or is_text(series):
        text = _timestamps(text)
    if series.dtype.is_decimal():  # the cast appends zeros to decimals
        text = text.str.replace(r"(\.\d*?)0+$", "${1}").str.strip_chars_end(".")
    missing = text.is_in(MISSING)
    return text.set(missing, None) if missing.any() else text


def with_type(series: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """Convert the cells to a data type; return ``None`` if a cell would differ as text (``as_text``) afterwards.

    >>> with_type(pl.Series(["7", None]), pl.Int64()).to_list(), with_type(pl.Series(["07"]), pl.Int64())
    ([7, None], None)
    """
    if series.dtype == dtype:
        return series
    try:
        changed = series.cast(dtype, strict=False)
        return changed if as_text(changed).eq_missing(as_text(series)).all() else None
    except pl.exceptions.PolarsError:  # polars has no such conversion, as from text to a date
        return None


def _without_exponent(text: pl.Series) -> pl.Series:
    """Convert whole numbers in R's exponent notation to plain digits, and keep all other texts."""
    if not (powers := text.str.contains(r"^[+-]?\d(\.\d+)?e\+\d{2}$").fill_null(value=False)).any():
        return text
    numbers = text.filter(powers).cast(pl.Float64)
    whole = (numbers == numbers.floor()) & (numbers.abs() < largest_exact(numbers))
    written = numbers.set(~whole, None).cast(pl.Int64).cast(pl.String).fill_null(text.filter(powers).cast(pl.String))
    return text.scatter(powers.arg_true(), written)


def _timestamps(text: pl.Series) -> pl.Series:
    """Rewrite timestamps in one form, and keep all other texts."""
    if not text.str.contains(r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:").any():
        return text
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})", "${1} ${2}")
    if (zoned := text.str.contains(ZONED)).any():
        day, second, part, zone = text.filter(zoned).str.extract_groups(ZONED).struct.unnest()
        offset = zone.str.replace("Z|UTC", "+0000").str.replace(":", "")
        datetimes = (day + " " + second + offset).str.to_datetime("%Y-%m-%d %H:%M:%S%z", time_unit="us", strict=False)
        written = datetimes.dt.strftime("%Y-%m-%d %H:%M:%S") + part.fill_null("").str.replace(r"\.?0+$", "") + " UTC"
        text = text.scatter(zoned.arg_true(), written.fill_null(text.filter(zoned)))
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:(\.\d*[1-9])0*|\.0*)$", "${1}${2}")
    return text.str.replace(r"^(\d{4}-\d{2}-\d{2}) 00:00:00$", "${1}")


def value_counts(text: pl.Series) -> list[tuple[str, int]]:
    """Return each distinct text with its number of cells: most frequent texts first, equally frequent ones sorted."""
    # polars adds a column "count", so the series must have another name
    counts = text.alias("text").value_counts()
    return list(counts.sort("count", "text", descending=[True, False]).iter_rows())


def missing_markers(series: pl.Series) -> dict[str, int]:
    """Return each trimmed text that marks a missing cell, with its number of cells. Empty cells are left out.

    >>> missing_markers(pl.Series(["None", " NA", "None", "", None, "no"]))
    {'None': 2, 'NA': 1}
    """
    text = series.cast(pl.String).str.strip_chars()
    return dict(value_counts(text.filter(text.is_in(MISSING) & (text != ""))))


def as_level(series: pl.Series) -> pl.Series:
    """Convert the cells to names of categories or classes: text as in ``as_text``, but true and false in lower case.

    >>> as_level(pl.Series(["True", "b", "1.0"])).to_list()
    ['true', 'b', '1']
    """
    text = as_text(series)
    return text.str.replace("^(?i:true)$", "true").str.replace("^(?i:false)$", "false")


def as_numbers(series: pl.Series, *, truths: bool | None = None) -> tuple[pl.Series, pl.Series]:
    """Convert the cells to Float64, and missing cells to null.

    The second result is the mask of cells that are neither numbers nor missing. The texts true and false are the
    numbers 1 and 0 if ``truths`` is true, or if it is ``None`` and all other numbers are 0 and 1.

    >>> numbers, bad = as_numbers(pl.Series([" 1.5", "?", "TRUE", "old"]))
    >>> numbers.to_list(), bad.to_list()
    ([1.5, None, None, None], [False, False, True, True])
    >>> as_numbers(pl.Series(["0", "TRUE"]))[0].to_list()
    [0.0, 1.0]
    """
    numbers = _cast(series)
    bad = series.is_not_null() & numbers.is_null()
    if bad.any() and series.dtype == pl.String:
        series = as_text(series)
        numbers = _cast(series)
        if are_truths(numbers) if truths is None else truths:
            series = series.str.replace("^(?i:true)$", "1").str.replace("^(?i:false)$", "0")
            numbers = _cast(series)
        bad = series.is_not_null() & numbers.is_null()
    return numbers, bad


def are_truths(series: pl.Series) -> bool:
    """Return whether all known cells are 0, 1 or truth values."""
    return series.dtype in {pl.Boolean, pl.Null} or bool(((series == 0) | (series == 1)).all())


def is_truth_word(text: pl.Series) -> pl.Series:
    """Return the mask of the cells true and false, in any case."""
    return text.str.contains("^(?i:true|false)$").fill_null(value=False)


def is_text(series: pl.Series) -> bool:
    """Return whether the column holds text: strings, or a polars Categorical or Enum."""
    return series.dtype == pl.String or is_category(series)


def is_category(series: pl.Series) -> bool:
    """Return whether the data type of the column is polars Categorical or Enum."""
    return isinstance(series.dtype, pl.Categorical | pl.Enum)


def is_number(series: pl.Series) -> bool:
    """Return whether the column's type is numeric, Boolean (read as 0 and 1) or Null."""
    return series.dtype.is_numeric() or series.dtype in {pl.Boolean, pl.Null}


def is_date_or_datetime(series: pl.Series) -> bool:
    """Return whether the column's type is a date, or a date with a time."""
    return series.dtype == pl.Date or isinstance(series.dtype, pl.Datetime)


def cited(series: pl.Series, bad: pl.Series, most: int = 5, *, start: int = 0) -> str:
    """Quote the first cells for which the mask ``bad`` is True, with their row numbers; at most ``most`` cells.

    Rows are counted from 1. ``start`` is the number of the table's rows that precede ``series``.

    >>> cited(pl.Series(["1", "x", "y"]), pl.Series([False, True, True]))
    "'x' in row 2, 'y' in row 3"
    """
    rows = bad.arg_true()
    named = [f"{str(series[row])!r} in row {start + row + 1}" for row in rows.head(most).to_list()]
    return ", ".join(named) + (f" and {len(rows) - most} more" if len(rows) > most else "")


def without(series: pl.Series, marks: Collection[str]) -> pl.Series:
    """Replace each cell that equals a text in ``marks``, as text or as a number, by null.

    >>> without(pl.Series(["-999", "7", "refused ", "-999.0"]), ["-999", "refused"]).to_list()
    [None, '7', None, None]
    """
    if not marks:
        return series
    numbers = [number for number in pl.Series(list(marks)).cast(pl.Float64, strict=False) if number is not None]
    text = series.cast(pl.String) if is_text(series) else series
    found = text.cast(pl.Float64, strict=False).is_in(numbers)
    if is_text(series):
        found |= text.str.strip_chars().is_in(list(marks))
    return series.zip_with(~found.fill_null(value=False), series.clear(len(series)))


def _cast(series: pl.Series) -> pl.Series:
    return series.cast(pl.Float64, strict=False).fill_nan(None)


def largest_exact(series: pl.Series) -> int:
    """Return the largest n for which the column's float type can represent all whole numbers up to n."""
    bits = {"Float16": 11, "Float32": 24}.get(str(series.dtype), 53)
    return 1 << bits


def _cast_text(series: pl.Series) -> pl.Series:
    """Convert times and floats to text, whole floats without a fraction."""
    if series.dtype == pl.Time:
        return series.dt.to_string("%H:%M:%S%.f")
    series = series.fill_nan(None)
    whole = ((series == series.floor()) & (series.abs() <= largest_exact(series))).fill_null(value=False)
    if whole.all():
        return series.cast(pl.Int64).cast(pl.String)
    return series.set(~whole, None).cast(pl.Int64).cast(pl.String).fill_null(series.cast(pl.String))


INVISIBLE = re.compile(
    "[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufe0e\ufe0f\ufeff]|^[\u200c\u200d]+|[\u200c\u200d]+$"
)
# Cyrillic and Greek letters, and the Latin letters that look like them.
ALIKE = dict(zip("авекмнорстухіјѕαβεικνορτυ" "АВЕКМНОРСТУХІЈЅΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
                 "abekmhopctyxijsabeikvoptu" "ABEKMHOPCTYXIJSABEZHIKMNOPTYX", strict=True))  # fmt: skip
SEARCHED = 5000  # in columns with more levels, spellings are not compared
SHOWN = 6  # the largest number of groups of spellings in a note


def tidy(text: str) -> str:
    """Remove invisible characters and needless spaces, and compose Unicode characters (NFC).

    >>> tidy(" a\u200b  b ")
    'a b'
    """
    return " ".join(INVISIBLE.sub("", unicodedata.normalize("NFC", text)).split())


def fold(text: str) -> str:
    """Return a text's form for comparisons, which is equal for all its spellings: tidy and in lower case."""
    return tidy(unicodedata.normalize("NFKC", tidy(text))).lower()


def merged(levels: pl.Series) -> pl.Series:
    """Replace each level [n] by the form that its spellings share (``fold``); missing levels stay null.

    >>> merged(pl.Series(["Yes", "YES ", None, "no"])).to_list()
    ['yes', 'yes', None, 'no']
    """
    known = levels.drop_nulls().unique()
    return levels.replace_strict(known, [fold(level) for level in known], default=None, return_dtype=pl.String)


def several(levels: pl.Series) -> str:
    """Return a text that lists levels which differ only in their spelling, each with its number of cells.

    The result is "" if there are no such levels.

    >>> several(pl.Series(["Yes", "yes", "YES", "no", "no"]))
    "'YES' (1), 'Yes' (1), 'yes' (1)"
    """
    counts = value_counts(levels.drop_nulls().cast(pl.String))
    if len(counts) > SEARCHED:
        return ""
    groups: dict[str, list[tuple[str, int]]] = {}
    for level, count in counts:
        groups.setdefault(fold(level), []).append((level, count))
    found = [group for group in groups.values() if len({level.strip(" ") for level, _ in group}) > 1]
    more = f"; and {len(found) - SHOWN} more groups" if len(found) > SHOWN else ""
    return "; ".join(map(counted, found[:SHOWN])) + more


VOCABULARIES = ({"true", "false"}, {"t", "f"}, {"yes", "no"}, {"y", "n"}, {"1", "0"}, {"on", "off"})
YES, NO = {"true", "t", "yes", "y", "1", "on"}, {"false", "f", "no", "n", "0", "off"}


def mixed_truths(levels: pl.Series) -> str:
    """Return a text that lists levels which say yes or no in several ways, with their numbers of cells.

    The result is "" if there are no such levels, or if more than one other level occurs.

    >>> mixed_truths(pl.Series(["yes", "no", "1", "1"]))
    "'1' (2), 'no' (1), 'yes' (1)"
    """
    counts = value_counts(levels.drop_nulls().unique())
    if not 3 <= len(counts) <= sum(map(len, VOCABULARIES)) + 1:
        return ""
    folded = {fold(level) for level, _ in counts}
    several = [sum(bool(words & meaning & folded) for words in VOCABULARIES) > 1 for meaning in (YES, NO)]
    mixed = any(several) or len([words for words in VOCABULARIES if words & folded]) > 1
    others = folded - YES - NO
    few = not others or (len(others) == 1 and not max(others).isdecimal())
    return counted(value_counts(levels.drop_nulls())) if mixed and few else ""


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """Return a list of texts with their numbers of cells, for a message."""
    listed = list(counts)
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return ", ".join(f"{visible(text)} ({count:,})" for text, count in listed[:12]) + more


def visible(text: str) -> str:
    """Return a text in quotation marks, with escapes for invisible characters."""
    quoted = f'"{text}"' if "'" in text else f"'{text}'"
    return "".join(f"\\u{ord(c):04x}" if INVISIBLE.match(c) or c in "\u00a0\u200c\u200d" else c for c in quoted)


def key(text: str) -> str:
    """Return a text as a TOML key, in quotation marks if necessary."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else f'"{text}"'


def listed(texts: Iterable[str]) -> str:
    """Return texts as a TOML array."""
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"


def party_setting(where: str, setting: str, column: str, value: str | Iterable[str]) -> str:
    r"""Return a line of a settings file, and the Python argument, that set ``setting`` for one column of a party.

    >>> party_setting("party 'shop', shop.csv: column 'zip'", "types", "zip", "categorical")
    'parties.shop.types = {zip = "categorical"} (in Python: types={\'shop\': {\'zip\': \'categorical\'}})'

    Args:
        where: the beginning of an error message; the party's name is read from it.
        setting: the name of the setting, such as "missing".
        column: the name of the column.
        value: the value, a text or several texts.
    """
    value = value if isinstance(value, str) else list(value)
    party = party_in(where)
    toml = f'"{value}"' if isinstance(value, str) else listed(value)
    return (
        f"parties.{key(party)}.{setting} = {{{key(column)} = {toml}}} "
        f"(in Python: {setting}={ {party: {column: value}}!r})"
    )


def drop_setting(where: str, column: str) -> str:
    """Return the settings line that leaves a column out.

    >>> drop_setting("party 'shop', shop.csv: column 'zip'", "zip")
    'parties.shop.drop = ["zip"]'
    """
    return f"parties.{key(party_in(where))}.drop = {listed([column])}"


def party_in(where: str) -> str:
    """Return the party's name from the beginning of an error message; NAME if it contains no party."""
    found = re.match(r"""party (['"])(.+?)\1[,:]""", where)
    return found[2] if found else "NAME"
