"""Infer the kind of a feature column: numeric, categorical, date, text, or unusable as a feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, NoReturn, TypeAlias, get_args

import numpy as np
import polars as pl

from anyparty.errors import TableError, some
from anyparty.tables import cells, date_formats
from anyparty.tables.reading_rules import (
    AS_WRITTEN,
    NOT_A_NUMBER,
    SHARES,
    MarkedNumbers,
    NumberFormat,
    ReadingRules,
    with_format,
    without_limits,
    without_marks,
)

Kind: TypeAlias = Literal["numeric", "categorical", "date", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NUMERIC_SHARE = 0.9  # a text column with at least this share of numbers is numeric, and its other cells are mistakes
FEW_TEXTS = 2  # up to this many distinct texts in a column of numbers may mark missing cells
MORE_TEXTS, MOSTLY = 5, 0.8  # instead of FEW_TEXTS, if the share of numbers is at least MOSTLY
MANY_LEVELS = 50  # a column with more than max(MANY_LEVELS, n / 2) distinct texts in n cells is not categorical
FEW_LEVELS = 20  # a text column with at most this many distinct texts is categorical
DAY_OR_MONTH_FIRST = r"^\s*\d{1,2}[-/.]\d"
NUMBER = r"[+\u2212-]?(?:(?:\d{1,3}(?:[.,'\s]\d{3})+|\d+)(?:[.,]\d+)?|[.,]\d+)"
MONEY = r"(\p{Sc}|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN)"
UNIT = (  # only known units, because other letters occur in codes such as 7A
    r"([%‰]|°[CF]?|[kKM]|[kmµ]?g|[kcmµ]?m[²³23]?|[cdm]?l|m?s|h|lbs?|oz|ft|mi|mph|km/h|m/s|k?Wh?|"
    r"(year|yr|month|week|day|hour|hr|minute|min|second|sec)s?)"
)
SUFFIX = r"[\p{L}%‰°²³]+(?:[/·*^\s]+[\p{L}\d%²³.]+)*"  # any other unit, such as mL/min/1.73 m²
POWER_OF_TEN = r"[x\u00d7\u00b7*]\s*10\s*(\^|\*\*)?\s*[+\u2212-]?[\d\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+"
MONTH = rf"(?i:{'|'.join(date_formats.MONTHS)})[A-Za-z]*"
# The notations of quantities in text: name, pattern, and advice for the user.
NOTATIONS = {
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
    "hours and minutes": (
        r"^\d{1,3}\s?h\s?([0-5]?\d\s?(m|min)?)?(\s?[0-5]?\d\s?s)?$|^\d{1,3}\s?m(in)?\s?[0-5]?\d\s?s(ec)?$",
        "write a number instead, such as minutes",
    ),
    "hexadecimal, octal or binary numbers": (
        r"^[+-]?0([xX][0-9A-Fa-f]+|[oO][0-7]+|[bB][01]+)$",
        "write decimal numbers",
    ),
    "numbers with underscores": (r"^[+-]?\d{1,3}(_\d{3})+(\.\d+)?$", "write them without underscores"),
    "numbers with an error": (
        rf"^\(?{NUMBER}\s*(±|\+/-|\+-)\s*{NUMBER}\)?\s*({UNIT})?$|^[+-]?\d+[.,]\d+\(\d+\)$",
        "write the number and its error in two columns",
    ),
    "fractions": (
        r"^[+-]?(\d+\s+)?\d+\s*[/\u2044]\s*\d+$|^[+-]?\d*\s?[\u00bc-\u00be\u2150-\u215e]$",
        "write a decimal number instead, or two columns of numbers",
    ),
    "numbers with an exponent in another notation": (
        rf"^[+-]?(\d+,\d+\s?[eEdD][+-]?\d+|\d+\.\d+[dD][+-]?\d+|{NUMBER}\s*{POWER_OF_TEN})$",
        "write them as 1.5e3",
    ),
    "angles": (
        r"^[+-]?\d+([.,]\d+)?\s*[°º]\s*(\d+([.,]\d+)?\s*['′’]\s*)?(\d+([.,]\d+)?\s*(\"|″|”|''))?\s*[NSEW]?$",
        "write decimal degrees",
    ),
    "ordinal numbers": (r"^\d+(?i:st|nd|rd|th)$", "write the numbers alone"),
    "approximate numbers": (rf"^(?i:c\.|ca\.?|circa|about|approx\.?)\s*{NUMBER}$", "write the numbers alone"),
    "numbers with another sign than - for minus": (rf"^[\u2212\u2013]\s?{NUMBER}$", "write a hyphen for minus"),
    "numbers in brackets": (
        rf"^\(\s*{NUMBER}\s*\)$",
        "write them without brackets, and with a minus sign if they are negative",
    ),
    "durations": (  # as pandas writes them
        r"^-?\d+ days? [+-]?\d\d:\d\d:\d\d(\.\d+)?$|^-?P(\d+(\.\d+)?[YMWD])*(T(\d+(\.\d+)?[HMS])+)?$",
        "write a number instead, such as days",
    ),
    "times": (
        r"^\d{1,2}:[0-5]\d(:[0-5]\d([.,]\d+)?)?(\s*[AaPp]\.?[Mm]\.?)?$",
        "write a number instead, such as minutes",
    ),
    "numbers that are known as limits": (r"^[<>≤≥~]=?\s*[+-]?\d+([.,]\d+)?$", "write a number for each limit"),
    "dates": (
        (
            r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})|"
            rf"\d{{1,2}}[ -]{MONTH}[ -](\d{{4}}|\d{{2}})|{MONTH} \d{{1,2}},? \d{{4}})([T ].*)?$"
        ),
        "write a number instead, such as days before a day of your choice",
    ),
}
MODELS = "The model was trained on numbers there: correct them, or leave them empty (an empty cell is imputed)"
LITERALS = ("NA", "None")  # texts that usually mark missing cells, but may be categories
GROUPED = r"\d[,'’\s]\d"  # a comma, a space or an apostrophe within a number
LARGEST = float(np.finfo(np.float32).max)  # the largest float32, because models compute in float32


class Notation(NamedTuple):
    """A notation of quantities in text, with advice for the user and example cells."""

    name: str
    advice: str
    examples: pl.Series


@dataclass(frozen=True)
class FeatureColumn:
    """A feature column as it was read.

    Attributes:
        cells: [n] numbers; String for categories and free text; Date or Datetime for dates. Null if missing.
        note: what was recognized in the cells, as a sentence; may be empty.
        format: the format of numbers with marks, such as percent signs; ``None`` for plain numbers and categories.
        literals: texts such as NA, which usually mark a missing cell, but are levels of this column.
        left_out: whether the column holds identifiers or free text, which the features do not contain.
        dates: how the dates are written; ``None`` if the column holds no dates.
    """

    cells: pl.Series
    note: str = ""
    format: NumberFormat | None = None
    literals: tuple[str, ...] = ()
    left_out: bool = False
    dates: date_formats.DateFormat | None = None


def feature(
    column: pl.Series, kind: Kind | None, where: str, *, trained: bool = False, rules: ReadingRules = AS_WRITTEN
) -> FeatureColumn:
    """Return a feature column, read as numbers, categories, dates or free text.

    Args:
        column: the cells as in the file.
        kind: the declared kind; if ``None``, the kind is inferred.
        where: party and file, the beginning of an error.
        trained: whether a trained model fixes the kind, so that the user cannot change it.
        rules: the rules by which the party's cells are read.

    Raises:
        TableError: the column has no name or an unusable type; a cell in a column of numbers is infinite or not a
            number; or the text looks like quantities with a notation, such as units, or like dates in doubtful order.
    """
    where = f"{where}: column {column.name!r}"
    if not column.name:
        raise TableError(f"{where} has no name (pandas writes its index so); name it, or leave it out: "
                         f"{cells.drop_setting(where, '')}")  # fmt: skip
    if not (cells.is_text(column) or cells.is_number(column) or cells.is_date_or_datetime(column)):
        raise TableError(f"{where} is of type {column.dtype}; expected numbers, truth values, text or dates: convert "
                         f"it first, or leave it out: {cells.drop_setting(where, column.name)}")  # fmt: skip
    if not cells.is_date_or_datetime(column):
        column = cells.without(column, rules.missing.get(column.name, ()))
    if kind == "date" or (kind is None and (cells.is_date_or_datetime(column) or column.name in rules.dates)):
        return as_dates(column, where, rules, trained=trained, declared=kind is not None)
    if cells.is_date_or_datetime(column) and kind == "numeric":
        raise TableError(f"{where} is of type {column.dtype}, and numbers are expected there: convert it first, or "
                         f"write {cells.party_setting(where, 'types', column.name, 'date')}")  # fmt: skip
    if trained and kind == "numeric":
        _check_as_trained(column, where, rules)
    if kind == "text":
        return FeatureColumn(cells.as_text(column))
    if kind == "categorical" or (kind is None and cells.is_category(column)):
        return as_categories(column, where, rules, trained=trained)
    read = (
        FeatureColumn(_numeric(column, where)) if cells.is_number(column)
        else _of_text(column, kind, where, rules, trained=trained)
    )  # fmt: skip
    notes = (read.note, _merged_note(column, read.cells, where), _no_truths_note(read.cells, where, rules) * trained)
    return replace(read, note="\n".join(filter(None, notes)))


def _check_as_trained(column: pl.Series, where: str, rules: ReadingRules) -> None:
    """Reject cells that mean something else than the numbers that a model was trained on.

    Raises:
        TableError: the cells are truth values, and training had other numbers than 0 and 1; or the cells are numbers
            without a percent sign, and training had percent signs.
    """
    if column.dtype == pl.Boolean and rules.truths is not None and column.name not in rules.truths:
        raise TableError(f"{where} has truth values, and training had other numbers than 0 and 1: write numbers as in "
                         "training, or leave the cells empty (an empty cell is imputed)")  # fmt: skip
    known = rules.formats.get(column.name)
    if known and known.unit in SHARES and column.dtype.is_numeric() and (column.fill_null(0) != 0).any():
        raise TableError(f"{where} has numbers without a sign, such as {column.filter(column != 0)[0]}, and training "
                         f"had numbers with {known.unit}: write them with {known.unit}, as text")  # fmt: skip


def _no_truths_note(numbers: pl.Series, where: str, rules: ReadingRules) -> str:
    """Return a note on other numbers than 0 and 1 in a column that had only these in training."""
    if numbers.name not in (rules.truths or ()) or cells.are_truths(numbers):
        return ""
    other = numbers.filter((numbers != 0) & (numbers != 1))
    return (f"{where} has {len(other):,} numbers other than 0 and 1, such as {other[0]:g}, and training had none: "
            "correct them, or leave them empty")  # fmt: skip


def _merged_note(column: pl.Series, read: pl.Series, where: str) -> str:
    """Return a note on different numbers of 2^53 or more that become one number, because models compute in floats."""
    ends = (read.min(), read.max()) if read.dtype.is_numeric() else ()
    if not any(end is not None and abs(end) >= 2**53 for end in ends):  # type: ignore[arg-type, operator]
        return ""
    large = (read.cast(pl.Float64).abs() >= 2**53).fill_null(value=False)
    before, after = cells.as_text(column.filter(large)).n_unique(), read.filter(large).cast(pl.Float64).n_unique()
    if after >= before:
        return ""
    return (f"{where} has {before:,} different numbers of 2^53 or more, which become {after:,} floating-point numbers: "
            f"leave the column out if they are identifiers: {cells.drop_setting(where, column.name)}, or subtract a "
            "constant")  # fmt: skip


def as_categories(column: pl.Series, where: str, rules: ReadingRules, *, trained: bool) -> FeatureColumn:
    """Return a column read as categories.

    If a column has empty cells and also the texts None or NA, these texts become levels, because they may mean
    something else than an empty cell. At prediction, the same texts are levels as in training. If
    ``rules.merge_spellings`` is true, levels are converted to lower case, and invisible characters and repeated spaces
    are removed.
    """
    levels, raw = cells.as_level(column), column.cast(pl.String).str.strip_chars()
    found, literals = raw.is_in(LITERALS), rules.literals.get(column.name, ())
    if not trained and found.any() and (raw.is_null() | (raw == "")).any():
        literals = tuple(sorted(raw.filter(found.fill_null(value=False)).unique()))
    note = ""
    if literals:
        kept = raw.is_in(literals).fill_null(value=False)
        levels = levels.zip_with(~kept, raw)
        note = (
            f"{where} has {_counted(raw.filter(kept))} beside empty cells: these texts are levels of their own; if "
            f"they mean an empty cell, write {cells.party_setting(where, 'missing', column.name, literals)}"
        )
    if rules.merge_spellings:
        return FeatureColumn(cells.merged(levels), note, literals=literals)
    several = "" if trained else cells.several(column if cells.is_text(column) else levels)
    if not trained and (mixed := cells.mixed_truths(levels)):
        more = f"{where} has levels that say yes or no in several ways: {mixed}; if so, write them in one way"
        note = f"{note}\n{more}".strip()
    if several:
        more = f"{where} has levels that differ only in their spelling: {several}; merge_spellings = true merges them"
        note = f"{note}\n{more}".strip()
    return FeatureColumn(levels, note, literals=literals)


def _of_text(
    column: pl.Series, kind: Kind | None, where: str, rules: ReadingRules, *, trained: bool
) -> FeatureColumn:  # fmt: skip
    """Return a text column as numbers, if possible, or else as dates or categories."""
    column = column.cast(pl.String)
    known_truths = None if rules.truths is None or not trained else column.name in rules.truths
    numbers, bad = cells.as_numbers(column, truths=known_truths)
    known_format = rules.formats.get(column.name)
    if not bad.any() and known_format is None and rules.decimal != ",":
        return FeatureColumn(_finite(numbers, where))
    if kind is None and (found := _recognized_dates(column, where, rules)) is not None:
        return found
    text, limits = without_limits(cells.as_level(column), rules.limits.get(column.name))
    dashes = text.is_in(NOT_A_NUMBER).fill_null(value=False)
    text, note = text.set(dashes, None), ""
    if trained and known_format is None:
        known_format = NumberFormat(decimal=rules.decimal or ".")
        note = _commas_note(text, where) if rules.decimal is None else ""
    if known_format:
        read = with_format(text, known_format)
    else:
        plain, others = cells.as_numbers(text)
        is_plain = rules.decimal is None and not others.any()
        read = MarkedNumbers(plain, others, NumberFormat()) if is_plain else without_marks(text, rules.decimal)
    if trained or kind == "numeric":
        _check_numbers(column, read.bad, where, MODELS if trained else "", limits)
    elif read.bad.any():
        return _not_numbers(column, text, read, limits, where, rules)
    elif (
        not read.format.unit and text.n_unique() <= FEW_LEVELS
        and text.str.contains(GROUPED if rules.decimal is None else GROUPED.replace(",", "")).any()
    ):  # fmt: skip
        # these may be codes such as 1 200, or lists such as 1,2
        return as_categories(column, where, rules, trained=False)
    return FeatureColumn(_finite(read.numbers, where), note) if trained else _with_note(column, read, where, rules)


def _commas_note(text: pl.Series, where: str) -> str:
    """Return a note on cells such as 1,234 in a column that had only plain numbers in training."""
    found = text.filter(text.str.contains(r"^[+-]?[1-9]\d{0,2},\d{3}$"))
    if not len(found):
        return ""
    return (f"{where} has {len(found):,} numbers with a comma, such as {found[0]!r} as {found[0].replace(',', '')}; "
            "training had none: if the comma is a decimal mark, write these numbers as in training")  # fmt: skip


def _with_note(column: pl.Series, read: MarkedNumbers, where: str, rules: ReadingRules) -> FeatureColumn:
    numbers = _finite(read.numbers, where)
    plain = read.format == NumberFormat() and not column.str.contains(GROUPED).any()
    note = marks_note(column, numbers, where, _as_category(where, column.name))
    commas = column.filter(column.str.contains(",", literal=True))
    may_be_decimal = len(commas) > 0 and commas.str.contains(r"^[^\d.]*[1-9]\d{0,2},\d{3}[^\d.]*$").all()
    if note and may_be_decimal and rules.decimal is None and not column.str.contains(".", literal=True).any():
        note += f'. If the comma is a decimal mark, write parties.{cells.key(cells.party_in(where))}.decimal = ","'
    return FeatureColumn(numbers, note, None if plain else read.format)


def marks_note(column: pl.Series, numbers: pl.Series, where: str, otherwise: str) -> str:
    """Return a note on cells with marks, such as 5 %, that were read as numbers, and on dashes (missing cells).

    The note is "" if the column has no such cells.

    Args:
        column: [n] the cells.
        numbers: [n] the numbers that were read.
        where: party, file and column, the beginning of the note.
        otherwise: the advice if the column does not hold numbers.
    """
    plain, bad = cells.as_numbers(column)
    marked = bad | (plain.ne_missing(numbers) & numbers.is_not_null())
    shown = numbers.filter(marked).is_not_null().arg_true()
    text = column.filter(marked)
    examples = [f"{text[row].strip()!r} as {numbers.filter(marked)[row]:.15g}" for row in shown.head(2).to_list()]
    dashes = len(text) - len(shown)
    parts = [f"{len(shown):,} cells are written with marks, such as {', '.join(examples)}"] if examples else []
    parts += [f"{_counted(text.filter(numbers.filter(marked).is_null()))} stand for missing cells"] if dashes else []
    return f"{where} is read as numbers: {'; '.join(parts)}. If it holds no numbers, {otherwise}" if parts else ""


def _check_numbers(column: pl.Series, bad: pl.Series, where: str, why: str, limits: pl.Series) -> None:
    """Raise an error if a column of numbers has cells that are not numbers; ``bad`` [n] marks these cells."""
    if not bad.any():
        return
    if (bad & limits).any() and not why:
        stop_at_limits(column, bad & limits, where)
    offer = or_category(column.name, cells.as_level(column.filter(bad)), where)
    raise TableError(f"{where} has cells that are not numbers: {cells.cited(column, bad)}. "
                     f"{why or f'Numbers are expected there{offer}'}")  # fmt: skip


def stop_at_limits(column: pl.Series, limits: pl.Series, where: str) -> NoReturn:
    """Raise the error for a column of numbers that contains limits, such as <25, or ranges."""
    raise TableError(
        f"{where} has numbers, and {int(limits.sum()):,} limits or ranges: {cells.cited(column, limits)}. Write "
        f"{cells.party_setting(where, 'limits', column.name, 'half')} to read <25 as 12.5, >90 as 90 "
        'and 10-20 as 15; "value" reads <25 as 25; "missing" leaves these cells empty'
    )


def _not_numbers(
    column: pl.Series, text: pl.Series, read: MarkedNumbers, limits: pl.Series, where: str, rules: ReadingRules
) -> FeatureColumn:
    """Read a text column as categories, or leave it out if it seems to hold identifiers or free text.

    Raises:
        TableError: the column seems to hold numbers with a few other cells, or quantities that are not plain numbers.
    """
    bad = read.bad
    words = cells.is_truth_word(text)
    if words.any() and not (bad & ~words).any() and read.numbers.count():
        raise TableError(f"{where} has numbers, and {int(words.sum()):,} truth values: {cells.cited(column, words)}. "
                         f"These are numbers only beside 0 and 1{or_category(column.name, text.filter(words), where)}"
                         )  # fmt: skip
    known = len(text) - text.null_count()
    values = text.drop_nulls().n_unique()
    limited, right = bad & limits, known - int(bad.sum())
    if limited.any() and values > FEW_LEVELS and 2 * right >= known and 10 * (bad & ~limits).sum() <= known:
        stop_at_limits(column, limited, where)
    if 10 * bad.sum() <= known:  # at least nine of ten cells are numbers
        offer = or_category(column.name, text.filter(bad), where)
        raise TableError(f"{where} has cells that are not numbers: {cells.cited(column, bad)}. Nearly all others are"
                         f"{offer}")  # fmt: skip
    notation = notation_of(text) if values > FEW_LEVELS else None
    what, marks = "numbers", None if notation else marks_among(read.numbers, text.filter(bad))
    if notation is None and marks is None:
        dated = dates_in(text)
        what, bad = "dates", (~dated).fill_null(value=False)
        marks = marks_among(text.filter(dated), text.filter(bad))
    if marks:
        raise TableError(f"{where} has {what} except for {marks}, {cells.cited(column, bad)}: leave these cells "
                         f"empty, or {_as_category(where, column.name)}"
                         f"{missing_offer(column.name, text.filter(bad), where)}")  # fmt: skip
    examples = (
        cells.cited(text, text.is_in(notation.examples.implode()).fill_null(value=False))
        if notation else some(text.drop_nulls().head(2))
    )  # fmt: skip
    sentence = f"{where} is text with {values} different values in {known} rows, such as {examples}: it looks like"
    if notation:
        advice = f"{date_setting(column.name, where, text)}, " if notation.name == "dates" else notation.advice
        raise TableError(f"{sentence} {notation.name}; {advice}leave it out: "
                         f"{cells.drop_setting(where, column.name)}, or "
                         f"{_as_category(where, column.name)}")  # fmt: skip
    if 2 * values > known and values > MANY_LEVELS:
        note = (
            f"{sentence} an identifier or free text, and is left out; to keep it, write "
            f'{cells.party_setting(where, "types", column.name, "categorical")}, or "text" to keep it as words'
        )
        return FeatureColumn(column, note, left_out=True)
    return as_categories(column, where, rules, trained=False)


def as_dates(
    column: pl.Series, where: str, rules: ReadingRules, *, trained: bool = False, declared: bool = True,
    choices: Mapping[date_formats.Order, date_formats.DateCells] | None = None, advice: str = "",
) -> FeatureColumn:  # fmt: skip
    """Return a column read as dates.

    Args:
        column: the cells as in the file.
        where: party, file and column, the beginning of an error.
        rules: the rules by which the party's cells are read.
        trained: whether a trained model fixes how the dates are written.
        declared: whether the user declared the column as dates. If not, a note describes how dates were read.
        choices: the dates in each possible order, if the caller has read them already.
        advice: the end of an error for cells that are not dates; by default the advice for features.

    Raises:
        TableError: a cell is not a date, the order of day and month is doubtful, or only some cells have a time zone.
    """
    name, known = column.name, rules.date_formats.get(column.name) if trained else None
    order = known.order if known else rules.dates.get(name)
    text = _date_texts(column)
    if cells.is_date_or_datetime(column):
        order, read = "year-first", date_formats.of_type(column)
    elif order is None:
        choices = date_formats.orders_of(text) if choices is None else choices
        _check_order(column, choices, where)
        order, read = (
            next(iter(choices.items())) if choices else ("year-first", date_formats.with_order(text, "year-first"))
        )
    else:
        read = date_formats.with_order(text, order)
        if trained and read.bad.any() and not (iso := date_formats.with_order(text, "year-first")).bad.any():
            read = iso  # dates with the year first have only one meaning
    if read.bad.any():
        short = date_formats.two_digit_formats(text)
        why = f"The years have two digits: {date_setting(name, where, text)}" if short else advice or (
            f"Expected dates{or_category(name, text.filter(read.bad), where)}"
        )  # fmt: skip
        if known:
            why = f"The model was trained on dates that are written {known.order}: correct them, or leave them empty"
        raise TableError(f"{where} has cells that are not dates: {cells.cited(column, read.bad)}. {why}")
    datetimes = read.values
    if marks := rules.missing.get(name, ()):
        datetimes = datetimes.set(cells.as_text(datetimes).is_in(marks).fill_null(value=False), None)
    _check_zones(column, read, known, where)
    clock = datetimes.dt.time().drop_nulls()
    format_ = known or date_formats.DateFormat(
        order=order, times=bool((clock != date_formats.MIDNIGHT).any()), zoned=bool(read.zoned.any())
    )
    datetimes = datetimes if format_.times else datetimes.cast(pl.Date)
    quiet = trained or ((declared or name in rules.dates) and not format_.zoned)
    note = "" if quiet else _date_note(column, datetimes, format_, where)
    note = "\n".join(filter(None, (note, _times_note(column, read.values, format_, where, trained=trained))))
    if "%y" in order and datetimes.count() and not trained:
        row = datetimes.arg_max() or 0
        example = f"{text[row]!r} as {datetimes[row]:%Y-%m-%d}"
        note = f"{note}\n{where}: years of two digits are read as 1970 to 2069, such as {example}".strip()
    return FeatureColumn(datetimes.alias(name), note, dates=format_)


def _recognized_dates(column: pl.Series, where: str, rules: ReadingRules) -> FeatureColumn | None:
    """Return a text column read as dates, or ``None`` if the column may hold something else."""
    text = _date_texts(column)
    choices = date_formats.orders_of(text)
    certain = [order for order, read in choices.items() if not read.bad.any()]
    if not choices or (len(certain) != 1 and text.n_unique() <= FEW_LEVELS):
        return None
    return as_dates(column, where, rules, declared=False, choices=choices)


def _date_texts(column: pl.Series) -> pl.Series:
    text = cells.as_text(column)
    return text.set(text.is_in(NOT_A_NUMBER).fill_null(value=False), None)


def _check_order(column: pl.Series, choices: Mapping[date_formats.Order, date_formats.DateCells], where: str) -> None:
    """Raise an error if the cells do not show whether the day or the month comes first."""
    certain = {order: read.values for order, read in choices.items() if not read.bad.any()}
    if len(certain) < 2:
        return
    one, other = list(certain.values())[:2]
    row = int((one != other).fill_null(value=False).arg_max() or 0)
    raise TableError(
        f"{where} has dates whose order is not evident, such as {str(column[row])!r} in row {row + 1}, which may be "
        f"{one[row]:%Y-%m-%d} or {other[row]:%Y-%m-%d}: {date_setting(column.name, where, column)}"
    )


def date_setting(name: str, where: str, text: pl.Series) -> str:
    """Return the advice for dates whose order the user must choose, or whose years in ``text`` have two digits."""
    dates = text.drop_nulls().filter(text.drop_nulls().str.contains(NOTATIONS["dates"][0]))
    short = dates.str.contains(date_formats.SHORT_DATE)
    if short.any() and not short.all():
        return f"write all years with four digits, such as the year of {dates.filter(short)[0]!r}"
    if formats := date_formats.two_digit_formats(dates):
        more = "".join(f' or "{each}"' for each in formats[1:])
        return f"write {cells.party_setting(where, 'dates', name, formats[0])}{more}"
    line = cells.party_setting(where, "dates", name, "day-first")
    return f'write {line}, or "month-first", "year-first" or a format such as "%d.%m.%y"'


def date_order(text: pl.Series, datetimes: pl.Series, order: str) -> str:
    """Describe the order in which dates were read, with one cell and its date as an example."""
    numbers = text.str.contains(DAY_OR_MONTH_FIRST).fill_null(value=False) & datetimes.is_not_null()
    row = (numbers if numbers.any() else datetimes.is_not_null()).arg_max() or 0
    return f"({order}), such as {text[row].strip()!r} as {datetimes[row]}"


def _check_zones(
    column: pl.Series, read: date_formats.DateCells, known: date_formats.DateFormat | None, where: str
) -> None:
    """Reject a column if only some of its times have a time zone, or if the column differs in this from training."""
    present = read.values.is_not_null()
    plain, zoned = present & ~read.zoned, present & read.zoned
    if plain.any() and zoned.any():
        raise TableError(
            f"{where} has times with and without a time zone: {cells.cited(column, zoned, 1)} and "
            f"{cells.cited(column, plain, 1)}; write all of them with a time zone, or all without"
        )
    if known is not None and present.any() and bool(zoned.any()) != known.zoned:
        here, then = ("with", "without") if zoned.any() else ("without", "with")
        raise TableError(f"{where} has times {here} a time zone, and training had times {then} one: "
                         f"{cells.cited(column, present, 1)}; write them as in training")  # fmt: skip


def _times_note(
    column: pl.Series, datetimes: pl.Series, format_: date_formats.DateFormat, where: str, *, trained: bool
) -> str:  # fmt: skip
    """Return a sentence on cells without a time of day in a column of times, or with one in a column of dates."""
    midnight = (datetimes.dt.time() == date_formats.MIDNIGHT).fill_null(value=False)
    if trained and not format_.times and (count := datetimes.count() - int(midnight.sum())):
        return f"{where} has a time of day in {count:,} cells, and training had dates only: the times are not used"
    if not format_.times or not datetimes.count():
        return ""
    lacking = midnight
    if midnight.sum() < datetimes.count():  # midnight may be a time, if it is written
        in_text = cells.is_text(column) and format_.order in date_formats.ORDERS
        lacking &= ~column.cast(pl.String).str.contains(r"\d:\d\d").fill_null(value=True) & in_text
    if not lacking.any():
        return ""
    then = ", and training had times" * trained
    return (f"{where} has no time of day in {int(lacking.sum()):,} of {datetimes.count():,} cells{then}, such as "
            f"{cells.cited(column, lacking, 1)}: the hour is read as 0")  # fmt: skip


def _date_note(column: pl.Series, datetimes: pl.Series, written: date_formats.DateFormat, where: str) -> str:
    """Return a sentence on how a column of dates was read; empty if its cells have only one meaning."""
    plain = cells.is_date_or_datetime(column) or not _date_texts(column).str.contains(DAY_OR_MONTH_FIRST).any()
    if not datetimes.count() or (plain and not written.zoned):
        return ""
    how = "" if cells.is_date_or_datetime(column) else f" {date_order(column, datetimes, written.order)}"
    zone = ", converted to UTC" if written.zoned else ""
    return (
        f"{where} is read as {'dates and times' if written.times else 'dates'}{how}{zone}; if it holds no dates, "
        f"{_as_category(where, column.name)}"
    )


def or_category(name: str, texts: pl.Series, where: str) -> str:
    """Return advice for unusual cells: correct the cells, or read the column as categories."""
    offer = missing_offer(name, texts, where)
    return f": correct them, leave them empty, or {_as_category(where, name)}{offer}"


def _as_category(where: str, name: str) -> str:
    return f"read the column as categories: {cells.party_setting(where, 'types', name, 'categorical')}"


def missing_offer(name: str, texts: pl.Series, where: str) -> str:
    """Return advice for texts that may mean an empty cell: list them in the setting ``missing``."""
    found = [text for text, _ in cells.value_counts(texts.drop_nulls())[:MORE_TEXTS]]
    return f"; if they mean an empty cell, write {cells.party_setting(where, 'missing', name, found)}"


def _counted(texts: pl.Series) -> str:
    return cells.counted(cells.value_counts(texts.cast(pl.String).str.strip_chars()))


def notation_of(text: pl.Series) -> Notation | None:
    """Return the notation, such as percent signs, of a text column with quantities; ``None`` for other text."""
    known = text.filter(~text.is_in(NOT_A_NUMBER).fill_null(value=True))
    plain = known.cast(pl.Float64, strict=False).is_not_null()
    several = plain
    for name, (pattern, advice) in NOTATIONS.items():
        found = dates_in(known) if name == "dates" else known.str.contains(pattern)
        if found.any() and (found | plain).sum() >= NUMERIC_SHARE * len(known):
            return Notation(name, f"{advice}, ", known.filter(found))
        several |= found
    if len(found := _with_one_suffix(known)):
        return Notation("numbers with a unit", "write the numbers alone, ", found)
    if (several & ~plain).any() and several.sum() >= NUMERIC_SHARE * len(known):
        return Notation("numbers in several notations", "write them in one notation, ", known.filter(several & ~plain))
    return None


def dates_in(text: pl.Series, *, strict: bool = False) -> pl.Series:
    """Return the mask of cells that look like dates; null if missing.

    Dates with a year of two digits count only if one format makes nearly all of them days, because versions and codes
    look similar. If ``strict`` is true, such a date must have slashes, the name of a month, or two digits in each part.
    """
    short = text.str.contains(date_formats.SHORT_DATE)
    long = text.str.contains(NOTATIONS["dates"][0]) & ~short
    if strict:
        short &= text.str.contains(r"^(\d\d\D\d\d\D\d\d|\d+/\d+/\d\d|\d+.\p{L})")
    return long | short if date_formats.two_digit_formats(text.filter(short)) else long


def _with_one_suffix(known: pl.Series) -> pl.Series:
    """Return the cells that consist of a number and the most frequent suffix, such as a unit.

    The result is empty if many cells lack this suffix, or if the cells look like codes, such as 7A.

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
    """List the few texts in a column of numbers or dates that may stand for missing cells.

    The result is ``None`` if there are many different texts, or few different numbers or dates.

    >>> marks_among(pl.Series(range(30)), pl.Series(["-", "-", "none"]))
    "'-' (2 cells), 'none' (1 cell)"
    """
    known = numbers.drop_nulls()
    most = MORE_TEXTS if len(known) >= MOSTLY * (len(known) + len(texts)) else FEW_TEXTS
    if known.n_unique() <= FEW_LEVELS or texts.n_unique() > most:
        return None
    found = cells.value_counts(texts)
    return ", ".join(f"{text!r} ({count:,} cell{'' if count == 1 else 's'})" for text, count in found)


def _numeric(column: pl.Series, where: str) -> pl.Series:
    """Return a numeric column with null for missing cells."""
    if column.dtype.is_float():
        return _finite(column.fill_nan(None), where)
    return column if column.dtype.is_integer() or column.dtype == pl.Boolean else cells.as_numbers(column)[0]


def _finite(column: pl.Series, where: str) -> pl.Series:
    """Return the column, or raise an error if a number is infinite or too large for float32."""
    large = column.abs() > LARGEST
    if large.any():
        raise TableError(
            f"{where} has numbers that are infinite or too large to compute with: {cells.cited(column, large)}; "
            f"correct them, or leave them empty to have them imputed"
        )
    return column
