"""Check data quality: report possible mistakes in a table, and cells that differ from the training rows.

Each check returns or yields sentences for the user. A sentence begins with the names of the party and the file: the
argument ``where``, or text that the caller adds. No check raises an error, so that no check stops a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.errors import some
from anyparty.tables import cells
from anyparty.tables.cells import SEARCHED, key, party_in, party_setting
from anyparty.tables.column_types import FEW_LEVELS, NOTATIONS, date_setting, dates_in, notation_of
from anyparty.tables.label_cells import may_be_missing
from anyparty.tables.reading_rules import NOT_A_NUMBER, numbers_with_marks

EMPTY = "are empty except for the id"

UNSEEN_SHARE = 0.5  # a warning is issued if a larger share of a column's cells differs from training
FAR = 10  # a number is far if it is more than this many standard deviations from the training mean
VERY_FAR = 50  # a warning is issued for a single number at this distance, in standard deviations
# In a table of fewer rows than FEW_ROWS, an empty column is not reported. In a table of at most SOME_ROWS rows, it is
# reported only if at most the share HARDLY was empty in training. In other tables, a column is also reported if the
# share of its empty cells has grown by more than MORE.
FEW_ROWS, SOME_ROWS, HARDLY, MORE = 5, 10, 0.05, 0.5
LISTED = 12  # the largest number of texts that the advice on a column of categories lists
SAMPLE = 1000  # the number of rows in which different numbers are counted
MANY = 3  # the largest number of column names in a sentence


def inferred_kinds(inferred: pl.DataFrame, columns: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Check columns whose kind was inferred, and return sentences on kinds that may be wrong."""
    return tuple(note for check in (leading_zeros, grouped_points, quantities)
                 for note in check(inferred, columns, where))  # fmt: skip


def leading_zeros(inferred: pl.DataFrame, columns: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return a sentence on columns that were read as numbers although cells begin with a zero, as codes do.

    Args:
        inferred: the columns whose kind the user did not declare, with the cells as in the file.
        columns: the feature columns, converted to their kinds.
        where: party and file, the beginning of the sentence.
    """
    found = []
    for column in inferred.iter_columns():
        if columns[column.name].dtype.is_numeric() and cells.is_text(column):
            coded = column.filter(column.cast(pl.String).str.contains(r"^\s*0\d+\s*$"))
            if len(coded):
                found.append((column.name, len(coded), coded[0]))
    if not found:
        return ()
    name, count, cell = found[0]
    more = f"; the same applies to {some([other for other, *_ in found[1:]])}" if found[1:] else ""
    note = (
        f"{where}: column {name!r} is read as numbers, and {count:,} of its cells begin with a zero, such as {cell!r}: "
        f"if these are codes, write {party_setting(where, 'types', name, 'categorical')}{more}"
    )
    return (note,)


def grouped_points(inferred: pl.DataFrame, columns: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return a sentence on columns in which a point was read as decimal, but may separate thousands, as in 1.234.

    A column is reported if it contains whole numbers, and if every point may separate thousands.
    """
    notes = []
    for column in inferred.iter_columns():
        if not (columns[column.name].dtype.is_numeric() and cells.is_text(column)):
            continue
        text = column.cast(pl.String).str.strip_chars().drop_nulls()
        pointed = text.filter(text.str.contains(r"\d\.|\.\d"))
        whole = text.filter(text.str.contains(r"^[+-]?\d+$"))
        if len(pointed) and len(whole) and pointed.str.contains(r"^[+-]?[1-9]\d{0,2}\.\d{3}$").all():
            notes.append(
                f"{where}: column {column.name!r} is read with a decimal point, such as {pointed[0]!r} beside "
                f"{whole[0]!r}: if the point stands between thousands, write "
                f'parties.{key(party_in(where))}.decimal = ","'
            )
    return tuple(notes)


def points_between_thousands(columns: Sequence[pl.Series], where: str) -> tuple[str, ...]:
    """Return a sentence on columns in which points were read as marks between thousands, but may be decimal points.

    These are columns without a comma in a file with decimal commas.
    """
    notes = []
    for column in columns:
        text = column.str.strip_chars().drop_nulls()
        pointed = text.filter(text.str.contains(".", literal=True))
        if len(pointed) and not text.str.contains(",", literal=True).any():
            notes.append(
                f"{where}: column {column.name!r} has no decimal comma, and its points are read as marks between "
                f"thousands, such as {pointed[0]!r} as {pointed[0].replace('.', '')}, because other columns have "
                "decimal commas: if a point is a decimal point in this column, write all numbers of the file with one "
                "decimal mark"
            )
    return tuple(notes)


def quantities(inferred: pl.DataFrame, columns: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return a sentence on columns that were read as categories although cells look like numbers, dates or times."""
    notes = []
    for column in inferred.iter_columns():
        if columns[column.name].dtype != pl.String or cells.is_category(column):
            continue
        text = cells.as_level(column).filter(columns[column.name].is_not_null()).drop_nulls()
        words = [level for level in text.unique().head(SEARCHED) if may_be_missing(level)]
        numbers = text.filter(~text.is_in([*words, *NOT_A_NUMBER]))
        if words and len(numbers) and numbers.cast(pl.Float64, strict=False).is_not_null().all():
            notes.append(
                f"{where}: column {column.name!r} is read as categories, because of {some(words)} beside numbers: if "
                f"this stands for missing, write {party_setting(where, 'missing', column.name, words)}"
            )
        elif notation := notation_of(numbers):
            advice = f"{date_setting(column.name, where, numbers)}, " if notation.name == "dates" else notation.advice
            notes.append(
                f"{where}: column {column.name!r} is read as categories, and its cells look like {notation.name}, such "
                f"as {notation.examples[0]!r}: {advice}or keep them: "
                f"{party_setting(where, 'types', column.name, 'categorical')}"
            )
        elif others := _among_quantities(text.filter(~text.is_in(NOT_A_NUMBER)), where, column.name):
            notes.append(others)
    return tuple(notes)


def _among_quantities(text: pl.Series, where: str, name: str) -> str:
    """Return a report if some cells of a column of categories look like numbers or dates; else "".

    The counted cells are, in this order:

    - numbers, plain or with marks or units, if they are at least half of the cells, and more than ``FEW_LEVELS``
      different ones, because few numbers may be levels;
    - numbers with a percent sign or a currency, if there are at least two different ones;
    - dates (``dates_in``), if there are at least two different ones.

    Codes such as A-12, ranges such as 2-3 years, and few numbers such as 4 beside 5+ are not reported.

    Args:
        text: the cells that are not empty.
        where: party and file, the beginning of the report.
        name: the name of the column.
    """
    numbers, shares = numbers_with_marks(text)
    numbers |= text.str.contains(NOTATIONS["numbers with a unit"][0])
    many = 2 * int(numbers.sum()) >= len(text) and text.filter(numbers).n_unique() > FEW_LEVELS
    looked_for = {
        "numbers": (numbers, 1 if many else len(text) + 1),
        "numbers with marks": (shares, 2),
        "dates": (dates_in(text, strict=True), 2),
    }
    for what, (found, least) in looked_for.items():
        if text.filter(found).n_unique() < least or found.all():
            continue
        rest = [each for each, _ in cells.value_counts(text.filter(~found))]
        empty = (
            f"write {party_setting(where, 'missing', name, rest)}" if len(rest) <= LISTED
            else "leave them empty in the table"
        )  # fmt: skip
        return (
            f"{where}: column {name!r} is read as categories: {int(found.sum()):,} of its cells are {what}, such as "
            f"{text.filter(found)[0]!r}, and {int((~found).sum()):,} are not, such as {some(rest)}: if these mean an "
            f"empty cell, {empty}; if they are categories, write {party_setting(where, 'types', name, 'categorical')}"
        )
    return ""


def blank(columns: pl.DataFrame, n: int) -> NDArray[np.bool_]:
    """Return the mask [n] of rows whose cells are all empty; all False if there are no columns."""
    if not columns.width:
        return np.zeros(n, dtype=np.bool_)
    return columns.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()


def without_cells(columns: pl.DataFrame, where: str, *, labels: bool) -> tuple[str, ...]:
    """Return a sentence on rows whose feature cells are all empty; an outer join of tables makes such rows.

    The party is treated as absent in these rows.
    """
    count = int(blank(columns, columns.height).sum())
    note = (
        f"{where}: {count:,} of {columns.height:,} rows {EMPTY}{' and the label' if labels else ''}: "
        f"there the party counts as absent"
    )
    return (note,) if count else ()


def unseen_levels(frame: pl.DataFrame, levels: Mapping[str, tuple[str | None, ...]], *, few: bool) -> Iterator[str]:
    """Yield warnings about categories that did not occur in training. The model receives zeros for such a category.

    Args:
        frame: the prepared columns, String for categories.
        levels: the levels of each categorical column in training; ``None`` is the level of missing cells.
        few: also report columns in which at most half of the cells have such a category.
    """
    rare = []
    for name, known_levels in levels.items():
        known = frame[name].drop_nulls()
        seen = [level for level in known_levels if level is not None]
        unseen = known.filter(~known.is_in(seen)) if seen else known.clear()
        if len(unseen) > UNSEEN_SHARE * len(known):
            most = "" if len(unseen) == len(known) else f" in {len(unseen)} of {len(known)} cells"
            yield (f"training saw none of the categories of column {name!r}{most}, such as "
                   f"{some(unseen.unique().sort().head(2))}; it saw {some(seen[:2])}: the model cannot use these "
                   "cells; are they written in another way?")  # fmt: skip
        elif few and len(unseen):
            example = repr(unseen.sort()[0])
            rare.append(f"column {name!r}, {len(unseen)} of {len(known)} cells, such as {example}")
    if rare:
        more = f"; and in {len(rare) - MANY} more columns" if len(rare) > MANY else ""
        yield ("there are categories that training never saw, so the model cannot use these cells: "
               f"{'; '.join(rare[:MANY])}{more}")  # fmt: skip


def no_longer_constant(frame: pl.DataFrame, constants: Mapping[str, float]) -> Iterator[str]:
    """Yield a warning about columns that were constant in training and contain other numbers now.

    Args:
        frame: the prepared columns, Float64 for numbers.
        constants: for each column, the value that the column had in all training rows.
    """
    changed = [
        (name, count) for name, value in constants.items() if (count := (frame[name].drop_nulls() != value).sum())
    ]
    if changed:
        name, count = changed[0]
        more = f"; the same applies to {some([other for other, _ in changed[1:]])}" if changed[1:] else ""
        value = constants[name]
        yield (f"column {name!r} was {value:g} in all training rows and is another number in {count} here: the model "
               f"could not learn from it and treats it as {value:g}{more}")  # fmt: skip


def empty_now(columns: pl.DataFrame, shares: Mapping[str, float]) -> Iterator[str]:
    """Yield a warning about columns that are mostly empty now, and were not in training.

    Rows whose cells are all empty are not counted, because ``without_cells`` reports them. In the other n rows, a
    column is reported in two cases:

    - All n cells are empty, n is at least ``FEW_ROWS``, and at most the share ``HARDLY`` was empty in training. If n is
      more than ``SOME_ROWS``, a greater share in training is allowed if its n-th power is below 0.001.
    - n is more than ``SOME_ROWS``, and the share of empty cells is more than ``MORE`` above the share in training.

    Args:
        columns: [n, d] the columns that the model requires, null for an empty cell.
        shares: by column, the share of cells that were empty in training; a column that is not listed had some cells.
    """
    columns = columns.filter(~pl.all_horizontal(pl.all().is_null())) if columns.width else columns
    n, found = len(columns), list[str]()
    for column in columns.iter_columns() if n >= FEW_ROWS else ():
        count, then = column.null_count(), shares.get(column.name)
        known = 0.0 if then is None else then
        wholly = count == n and (known <= HARDLY or (n > SOME_ROWS and known**n < 0.001))
        if wholly or (then is not None and n > SOME_ROWS and count > (then + MORE) * n):
            found.append(f"column {column.name!r} in {count:,} of {n:,} rows"
                         f"{'' if then is None else f' (in training in {then:.1%})'}")  # fmt: skip
    if found:
        more = f" and {len(found) - MANY} more columns" if len(found) > MANY else ""
        yield (f"more cells are empty than in training: {', '.join(found[:MANY])}{more}: the model uses the fill value "
               "or the level of missing cells")  # fmt: skip


def varied(columns: pl.DataFrame) -> tuple[str, ...]:
    """Return the names of numeric columns [n, d] in which at least half of the numbers differ from each other."""
    sample = columns.head(SAMPLE)
    least = max(SOME_ROWS, len(sample)) / 2
    return tuple(each.name for each in sample.iter_columns() if each.drop_nulls().n_unique() >= least)


def collapsed(columns: pl.DataFrame) -> Iterator[str]:
    """Yield a warning about columns with few different numbers now, most of whose numbers differed in training.

    Rounding has this effect, for example in a file with numbers of single precision.

    Args:
        columns: [n, d] the columns that ``varied`` returned for the training rows.
    """
    found = []
    for column in columns.head(SAMPLE).iter_columns():
        known = column.drop_nulls()
        if len(known) > 2 * SOME_ROWS and 10 * known.n_unique() <= len(known):
            found.append(f"column {column.name!r} has {known.n_unique():,} different numbers in {len(known):,} cells")
    if found:
        more = f"; and {len(found) - MANY} more columns" if len(found) > MANY else ""
        yield f"{'; '.join(found[:MANY])}{more}, and in training most numbers differed: were they rounded?"


def far_from_training(
    frame: pl.DataFrame, spreads: Mapping[str, tuple[float, float]], *, few: bool = True
) -> Iterator[str]:
    """Yield a warning about columns whose numbers mostly lie far from the training mean; their unit may have changed.

    Args:
        frame: the prepared columns, Float64 for numbers.
        spreads: for each column, the mean and standard deviation of its numbers in the training rows.
        few: also report columns in which only a few numbers lie very far from the mean.
    """
    far = [
        name
        for name, (mean, scale) in spreads.items()
        if (((frame[name] - mean) / scale).abs() > FAR).sum() > UNSEEN_SHARE * frame[name].count()
    ]
    for name, (mean, scale) in spreads.items():
        far_values = frame[name].filter(((frame[name] - mean) / scale).abs() > VERY_FAR)
        if few and len(far_values) and name not in far:
            yield (f"{len(far_values):,} of {frame[name].count():,} numbers of column {name!r} lie more than "
                   f"{VERY_FAR} standard deviations from their mean in training, such as {far_values[0]:g} "
                   f"(mean {mean:g}, standard deviation {scale:g}): leave them empty if they stand for missing "
                   "values")  # fmt: skip
    if far:
        name, (mean, scale) = far[0], spreads[far[0]]
        more = f" The same applies to {some(far[1:])}" if far[1:] else ""
        yield (f"most numbers of column {name!r} lie more than {FAR} standard deviations from their mean in training, "
               f"such as {frame[name].drop_nulls().sort()[frame[name].count() // 2]:g} (mean {mean:g}, standard "
               f"deviation {scale:g}): are they in another unit?{more}")  # fmt: skip


class OddColumn(NamedTuple):
    """A column with cells that differ from the training rows.

    Attributes:
        cells: [n] the prepared column.
        odd: [n] bool, True for a cell that differs.
        reason: how these cells differ, as the end of a sentence.
    """

    cells: pl.Series
    odd: NDArray[np.bool_]
    reason: str


@dataclass(frozen=True)
class RowRemarks:
    """Remarks on the rows of one party's table, to accompany the answers for these rows.

    Attributes:
        party: the party.
        always: remarks on columns that are mostly empty in the whole table.
        columns: the columns with cells that differ from the training rows.
    """

    party: str
    always: tuple[str, ...] = ()
    columns: tuple[OddColumn, ...] = ()

    def of(self, row: int) -> tuple[str, ...]:
        """Return the remarks on the row with the given index; the index -1 stands for a row without cells."""
        if row < 0:
            return (f"the table of {self.party!r} has no cell in this row",)
        remarks = (f"column {each.cells.name!r} is {each.cells[row]!r}, {each.reason}" for each in self.columns
                if each.odd[row])  # fmt: skip
        return (*self.always, *remarks)


def row_remarks(
    party: str, frame: pl.DataFrame, levels: Mapping[str, tuple[str | None, ...]],
    spreads: Mapping[str, tuple[float, float]], empty: Iterable[str] = (),
) -> RowRemarks:  # fmt: skip
    """Compare each row of a table with the training rows.

    Args:
        party: the party that holds the table.
        frame: [n, d] the prepared columns.
        levels: the levels of each categorical column in training; ``None`` is the level of missing cells.
        spreads: for each numeric column, the mean and standard deviation of its numbers in the training rows.
        empty: remarks on columns that are mostly empty in the whole table.
    """
    found = []
    for name, known in levels.items():
        unseen = ~frame[name].is_in([level for level in known if level is not None])
        found.append((frame[name], unseen, "a category that training never saw"))
    for name, (mean, scale) in spreads.items():
        far = ((frame[name] - mean) / scale).abs() > FAR
        reason = f"more than {FAR} standard deviations from its mean in training ({mean:g})"
        found.append((frame[name], far, reason))
    masks = [(column, odd.fill_null(value=False), reason) for column, odd, reason in found]
    columns = tuple(OddColumn(column, odd.to_numpy(), reason) for column, odd, reason in masks if odd.any())
    return RowRemarks(party, tuple(empty), columns)
