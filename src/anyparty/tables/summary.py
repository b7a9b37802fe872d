"""Summarize how each party's columns were read, with remarks on possible mistakes, before training."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from rich.text import Text

from anyparty.core.display import TextTable as RichTable
from anyparty.errors import some
from anyparty.tables import cells
from anyparty.tables.column_types import FEW_LEVELS, MANY_LEVELS, Kind
from anyparty.tables.label_cells import names_of
from anyparty.tables.table import Table
from anyparty.tables.target import MANY_CLASSES, AskedKind, whole_numbers_as

WIDE = 12  # if a table has more columns, only columns with a remark are shown
TALL = 48  # if all smaller tables together have more columns, only columns with a remark are shown
PARTIES = 16  # the largest number of parties in a summary
# A number is far if it is more than FAR interquartile ranges from the median of at least FEWEST numbers. At most the
# share RARE of numbers may be far. A far number is an outlier if its distance from the median is more than APART times
# the distance of the next nearer number.
FAR, APART, RARE, FEWEST = 50, 3, 0.05, 20
# In a table of at least ENOUGH labelled rows, a column determines the classes if it does so in the share NEARLY_ALL of
# each class, of which the rarest has at least RAREST rows. It determines numbers if the absolute value of their
# correlation is at least SAME. In fewer rows, a column may do so by chance.
ENOUGH, NEARLY_ALL, RAREST, SAME, SAMPLE = 100, 0.98, 5, 0.9999, 1000
LARGE = 10**8  # whole numbers of at least this size may be identifiers, or times in seconds
NINES = [sign * (10.0**digits - 1) for digits in range(2, 10) for sign in (-1, 1)]  # 99, -99, 999 and so on

DATES = [dt.date(1, 1, 1), dt.date(1899, 12, 30), dt.date(1900, 1, 1), dt.date(1970, 1, 1), dt.date(2099, 12, 31),
         dt.date(2999, 12, 31), dt.date(9999, 12, 31)]  # fmt: skip
NOUNS: dict[Kind, tuple[str, str]] = {
    "numeric": ("number", "numbers"), "categorical": ("category", "categories"), "date": ("date", "dates"),
    "text": ("text", "texts"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ColumnSummary:
    """The summary of how one feature column was read.

    Attributes:
        name: the column.
        kind: "numeric", "categorical", "date" or "text".
        levels: the number of distinct values of a categorical column; ``None`` for the other kinds.
        missing: the share of cells that are missing.
        remark: a possible mistake; may be empty.
        suspicious: whether the remark is about cells that may be identifiers, or that may mark missing values.
    """

    name: str
    kind: Kind
    levels: int | None
    missing: float
    remark: str
    suspicious: bool = False


def columns(table: Table) -> tuple[ColumnSummary, ...]:
    """Return a summary of how each feature column of a table was read.

    >>> from anyparty.tables.table import read_table
    >>> shop = read_table(pl.DataFrame({"id": [1, 2], "town": ["Ulm", "Ulm"], "sum": [1.5, None]}), party="s", id="id")
    >>> [(column.name, column.levels, column.missing, column.remark) for column in columns(shop)]
    [('town', 1, 0.0, 'constant'), ('sum', None, 0.5, 'constant')]
    """
    kinds = table.kinds
    return tuple(_column(series, kinds[series.name], table.party) for series in table.columns.iter_columns())


def notes(table: Table, kind: AskedKind = "auto") -> tuple[str, ...]:
    """Return sentences on possible mistakes in a table: its notes, numbers far from all others, and possible ids.

    One more sentence reports more than 20 whole numbers that are read as classes.  ``kind`` is the requested kind of
    task: labels that are classes are not compared as numbers.
    """
    where = f"party {table.party!r}, {table.source}"
    found = [(f"column {column.name!r}", column.remark) for column in columns(table) if column.suspicious]
    if table.label is not None and (remark := label_remark(table.label, kind)):
        found.append((f"label column {table.label.name!r}", remark))
    if table.label is not None and (remark := _codes_remark(table.label, kind)):
        found.append((f"label column {table.label.name!r}", remark))
    copies = () if table.label is None else _label_copies(table.columns, table.label, kind, where)
    return (*table.notes, *(f"{where}: {name} has {remark}" for name, remark in found), *copies)


def _label_copies(columns: pl.DataFrame, label: pl.Series, kind: AskedKind, where: str) -> Iterator[str]:
    """Yield a sentence on each feature column that determines the label, or has its name in another spelling."""
    known = label.is_not_null()
    numbers = None if _are_classes(label, kind) else cells.as_numbers(label.filter(known))[0]
    y = names_of(label.filter(known)) if numbers is None else numbers
    few = numbers is None and 2 <= y.n_unique() <= MANY_CLASSES
    rarest = min(y.value_counts()["count"].to_list()) if few else 0
    for column in columns.iter_columns():
        x = column.filter(known)
        agreeing = 0
        if numbers is not None and len(y) >= ENOUGH:
            agreeing = _correlated(x, numbers)
        elif rarest >= RAREST and len(y) >= ENOUGH:
            agreeing = _determining(x, y)
        if agreeing:
            rows = f"all {len(y):,}" if agreeing == len(y) else f"{agreeing:,} of {len(y):,}"
            yield (f"{where}: column {column.name!r} agrees with the label in {rows} labelled rows: leave it out if it "
                   f"is not known at prediction: {cells.drop_setting(where, column.name)}")  # fmt: skip
        elif cells.fold(column.name) == cells.fold(label.name):
            yield (f"{where}: column {column.name!r} has the name of the label column {label.name!r} in another "
                   f"spelling: leave it out if it is a copy: {cells.drop_setting(where, column.name)}")  # fmt: skip


def _determining(x: pl.Series, y: pl.Series) -> int:
    """Return in how many rows [n] a column ``x`` determines the class ``y``; 0 if it does not do so in nearly all.

    A column determines the class if each level, or whether the cell is empty, stands for one class; or if the numbers
    of each class are apart from those of the other classes.
    """
    sizes = dict(y.value_counts().iter_rows())
    levels = cells.as_text(x) if x.head(SAMPLE).n_unique() <= FEW_LEVELS else x.is_null()
    pairs = pl.DataFrame({"x": levels, "y": y}).group_by("x", "y").len().sort("len", "y", descending=True)
    if pairs["x"].n_unique() <= FEW_LEVELS:
        best = pairs.unique("x", keep="first", maintain_order=True)
        right = dict(best.group_by("y").agg(pl.col("len").sum()).iter_rows())
        if all(right.get(name, 0) >= NEARLY_ALL * size for name, size in sizes.items()):
            return sum(right.values())
    if x.dtype == pl.String or x.null_count() > (1 - NEARLY_ALL) * len(x):
        return 0
    ends = pl.DataFrame({"x": x.cast(pl.Float64) if x.dtype.is_numeric() else x.cast(pl.Int64), "y": y})
    ranges = ends.drop_nulls().group_by("y").agg(low=pl.col("x").min(), high=pl.col("x").max()).sort("low")
    apart = len(ranges) == len(sizes) and bool((ranges["low"] > ranges["high"].shift(1)).fill_null(value=True).all())
    return x.count() if apart else 0


def _correlated(x: pl.Series, y: pl.Series) -> int:
    """Return the number of known cells of a column ``x`` [n] if it determines the numbers ``y``; else 0."""
    if x.dtype == pl.String or x.count() < NEARLY_ALL * len(x) or x.n_unique() <= FEW_LEVELS:
        return 0
    both = pl.DataFrame({"x": x.cast(pl.Float64) if x.dtype.is_numeric() else x.cast(pl.Int64), "y": y}).drop_nulls()
    ways = (pl.corr("x", "y"), pl.corr("x", "y", method="spearman"))
    linear, ranks = (abs(float(value or 0.0)) for value in both.select(a=ways[0], b=ways[1]).row(0))
    return len(both) if max(linear, ranks) >= SAME else 0


def _are_classes(label: pl.Series, kind: AskedKind) -> bool:
    """Return whether labels are probably classes."""
    if kind != "auto" or label.dtype == pl.Boolean or cells.is_category(label):
        return kind != "regression"
    return bool(cells.as_numbers(label)[1].any()) or whole_numbers_as(label)[0] == "classification"


def label_remark(label: pl.Series, kind: AskedKind = "auto") -> str:
    """Return a remark on a few numeric labels far from all others; "" if there are no such labels.

    Such labels would dominate a squared error.
    """
    numbers, bad = cells.as_numbers(label.cast(pl.String) if cells.is_category(label) else label)
    known = numbers.drop_nulls()
    if not len(known) or _are_classes(label, kind) or bad.any() or label.dtype == pl.Boolean:
        return ""
    return _outlier_remark(known, "label", "")


def _codes_remark(label: pl.Series, kind: AskedKind) -> str:
    """Return a remark on more than 20 different whole numbers that are read as classes; "" for other labels."""
    read_as, reason = whole_numbers_as(label)
    if kind != "auto" or read_as != "classification" or names_of(label).n_unique() <= MANY_CLASSES + label.has_nulls():
        return ""
    return f'{reason}, which are read as classes; write federation.task = "regression" if they are numbers to predict'


def files(tables: Sequence[Table]) -> RichTable:
    """Return a printable table with the format of each party's file."""
    shown = RichTable("party", "table", "format", title="how files were read", title_justify="left")
    shown.add_column("rows", justify="right")
    for table in tables[:PARTIES]:
        shown.add_row(*map(Text, (table.party, table.source, table.read_as, f"{len(table):,}")))
    return shown


def remarked(tables: Sequence[Table], kind: AskedKind = "auto") -> RichTable | None:
    """Return a printable table of the columns and labels with a remark; ``None`` if no column or label has one.

    ``kind`` is the requested kind of task.
    """
    found = [
        (table.party, column.name, _kind(column), column.remark)
        for table in tables
        for column in columns(table)
        if column.remark
    ]
    labels = [(table.party, table.label) for table in tables if table.label is not None]
    found += [(party, label.name, "label", text) for party, label in labels if (text := label_remark(label, kind))]
    if not found:
        return None
    shown = RichTable("party", "column", "read as", "remark", title="columns to look at", title_justify="left")
    for row in found[:TALL]:
        shown.add_row(*map(Text, row))
    if len(found) > TALL:
        shown.add_row(f"... {len(found) - TALL:,} more")
    return shown


def render(tables: Sequence[Table]) -> RichTable:
    """Return a printable table of the parties' columns. In a long list, only columns with a remark are shown."""
    shown = RichTable(title="how columns were read", title_justify="left")
    for heading in ("party", "column", "read as"):
        shown.add_column(heading)
    shown.add_column("missing", justify="right")
    shown.add_column("remark")
    narrow = [table.columns.width for table in tables if table.columns.width <= WIDE]
    for table in tables[:PARTIES]:
        _add(shown, table.party, columns(table), wide=sum(narrow) > TALL or table.columns.width > WIDE)
    if len(tables) > PARTIES:
        shown.add_row(f"... {len(tables) - PARTIES:,} more parties")
    return shown


def _column(series: pl.Series, kind: Kind, party: str) -> ColumnSummary:
    missing = series.null_count() / max(1, len(series))
    levels = series.drop_nulls().n_unique() if kind == "categorical" else None
    plain = _remark(series, levels, missing)
    suspicion, known = "", series.drop_nulls()
    if not plain and known.dtype.is_integer() and _may_be_identifiers(known):
        suspicion = "another large whole number in every row: leave it out if it is an identifier, or a point in time"
    elif not plain and known.dtype != pl.String:
        suspicion = _outlier_remark(known, "cell", f", or list them in parties.{cells.key(party)}.missing")
    return ColumnSummary(
        name=series.name, kind=kind, levels=levels, missing=missing, remark=plain or suspicion,
        suspicious=suspicion != "",
    )  # fmt: skip


def _remark(series: pl.Series, levels: int | None, missing: float) -> str:
    if series.null_count() == len(series):
        return "empty: left out"
    if levels == 1 or (levels is None and series.min() == series.max()):
        return "constant"
    if levels is not None and levels > MANY_LEVELS:
        return "many levels: a column of zeros and ones for each"
    if missing > 0.5:
        return "mostly missing"
    return ""


def _may_be_identifiers(numbers: pl.Series) -> bool:
    """Return whether the whole numbers are large and distinct, like account numbers."""
    if len(numbers) < FEWEST:
        return False
    return int(str(numbers.min())) >= LARGE and numbers.n_unique() == len(numbers)


def _outlier_remark(known: pl.Series, noun: str, setting: str) -> str:
    """Return a remark on a few numbers or dates far from all others, such as 9999, which may mark missing cells.

    Args:
        known: the numbers or dates.
        noun: the word for a value in the remark.
        setting: the end of the remark: a setting that marks the values as missing; may be empty.
    """
    days = known.cast(pl.Date) if known.dtype.is_temporal() else None
    numbers = (known if days is None else days.cast(pl.Int32)).cast(pl.Float64)
    outliers = _frequent_marks(numbers)
    if not len(outliers):
        outliers = numbers.filter(_are_far(numbers, numbers))
        outliers = outliers.clear() if len(outliers) > RARE * len(numbers) else _apart(outliers, numbers)
    if not len(outliers) and days is not None:
        outliers = _lone_dates(numbers, days)
    if not len(outliers):
        return ""
    values = outliers.unique().sort()[:2]
    which = ", ".join(f"{value:g}" for value in values) if days is None else some(values.cast(pl.Int32).cast(pl.Date))
    return (
        f"{_counted(len(outliers), noun)} far from all others ({which}): if they stand for missing values, leave them "
        f"empty{setting}"
    )


def _frequent_marks(numbers: pl.Series) -> pl.Series:
    """Return the cells with one or two frequent, extreme numbers that are far from all other numbers.

    If there are few other numbers, only numbers such as 99 and -999 (``NINES``) are accepted.
    """
    values = numbers.unique().sort()
    for ends in (values[[0, -1]], values[:2], values[-2:], values[:1], values[-1:]):
        among = numbers.is_in(ends.to_list())
        may_be_levels = len(values) - len(ends) <= FEW_LEVELS and not ends.is_in(NINES).all()
        if among.sum() <= RARE * len(numbers) or may_be_levels:
            continue
        marks = numbers.filter(among)
        if _are_far(ends, numbers.filter(~among)).all() and marks.is_duplicated().all():
            return marks
    return numbers.clear()


def _apart(far: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return the cells of ``far`` that a gap separates from the median; a long tail of numbers has no gap.

    A gap lies between two neighbouring numbers on one side of the median, if the distance of the farther number from
    the median is more than ``APART`` times the distance of the nearer one. The smallest or largest number needs no gap
    if it consists of nines (``NINES``) and is in several cells.
    """
    middle, found = float(numbers.quantile(0.5, "linear") or 0.0), list[float]()
    for side in (-1, 1):
        outliers = side * (far - middle)
        distances = (side * (numbers.unique() - middle)).sort()
        distances = distances.filter(distances >= 0)
        gaps = distances.is_in(outliers.implode()) & (distances > APART * distances.shift(1, fill_value=0.0))
        found += far.filter(outliers >= distances[gaps.arg_true()[0]]).to_list() if gaps.any() else []
    found += [end for end in numbers.sort()[[0, -1]] if end in NINES and (numbers == end).sum() > 1]
    return far.filter(far.is_in(found))


def _are_far(numbers: pl.Series, others: pl.Series) -> pl.Series:
    """Return the mask of ``numbers`` that are more than ``FAR`` interquartile ranges from the median of ``others``."""
    low, middle, high = (float(others.quantile(share, "linear") or 0.0) for share in (0.25, 0.5, 0.75))
    measured = len(others) >= FEWEST and high > low
    return (numbers - middle).abs() > (FAR * (high - low) if measured else float("inf"))


def _lone_dates(numbers: pl.Series, days: pl.Series) -> pl.Series:
    """Return the cells with a date from ``DATES`` that is far from all other dates."""
    marks = days.is_in(DATES)
    others = numbers.filter(~marks).sort()
    if not marks.any() or len(others) < FEWEST:
        return numbers.clear()
    spread = float(others.quantile(0.75) or 0) - float(others.quantile(0.25) or 0)
    found = numbers.filter(marks)
    return found.filter((found < others[0] - spread) | (found > others[-1] + spread))


def _add(shown: RichTable, party: str, read: Sequence[ColumnSummary], *, wide: bool) -> None:
    """Add a row for each column of a party, and one row that summarizes the columns that are not shown.

    If ``wide`` is true, only columns with a remark are shown.
    """
    listed = [column for column in read if column.remark or not wide][:WIDE]
    rest = [column for column in read if column not in listed]
    rows = [(column.name, _kind(column), _share(column.missing), column.remark) for column in listed]
    if rest or not rows:
        name = f"{len(rest):,} others" if rows else f"{len(rest):,} columns"
        share = sum(column.missing for column in rest) / max(1, len(rest))
        more = sum(bool(column.remark) for column in rest)
        rows.append((name, _kinds(rest), _share(share), f"{more:,} more with a remark" if more else ""))
    for place, row in enumerate(rows):
        shown.add_row(Text("" if place else party), *map(Text, row))
    shown.add_section()


def _kind(column: ColumnSummary) -> str:
    return NOUNS[column.kind][0] + ("" if column.levels is None else f", {_counted(column.levels, 'level')}")


def _kinds(read: Sequence[ColumnSummary]) -> str:
    counts = Counter(column.kind for column in read)
    return ", ".join(
        f"{counts[kind]:,} {one if counts[kind] == 1 else many}" for kind, (one, many) in NOUNS.items() if counts[kind]
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _share(missing: float) -> str:
    return f"{missing:.1%}" if missing else ""
