"""What is said of a table that can be used, and may yet hold a mistake."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.errors import some
from anyparty.tables import cells
from anyparty.tables.kinds import looks_of

EMPTY = "are empty but for the id"
MANY_MARKERS, MARKED_SHARE = 10, 0.05  # labels written as missing: as many, or above this share, may be a class


def codes(inferred: pl.DataFrame, columns: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Say which columns of text were read as numbers though cells begin with a zero, as codes do."""
    found = []
    for column in inferred.iter_columns():
        if columns[column.name].dtype.is_numeric() and cells.is_text(column):
            coded = column.filter(column.cast(pl.String).str.contains(r"^\s*0\d+\s*$"))
            if len(coded):
                found.append((column.name, len(coded), coded[0]))
    if not found:
        return ()
    name, count, cell = found[0]
    more = f", and so for {some([other for other, *_ in found[1:]])}" if found[1:] else ""
    note = (
        f"{where}: column {name!r} is read as numbers, and {count:,} of its cells begin with a zero, such as {cell!r}: "
        f"if these are codes, declare it categorical with types, or leave it out with drop{more}"
    )
    return (note,)


def quantities(inferred: pl.DataFrame, columns: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Say which columns were read as categories though their few values look like numbers, dates or times."""
    said = []
    for column in inferred.iter_columns():
        if columns[column.name].dtype != pl.String or cells.is_category(column):
            continue
        if looks := looks_of(columns[column.name]):
            what, instead, such = looks
            said.append(
                f"{where}: column {column.name!r} is read as categories, and its cells look like {what}, such as "
                f"{such[0]!r}: {instead}or declare the column categorical with types"
            )
    return tuple(said)


def marked(column: pl.Series, where: str) -> tuple[str, ...]:
    """Say that many labels are texts that stand for missing: one of them may be meant as a class."""
    marked = cells.missing_markers(column) if cells.is_text(column) else {}
    count = sum(marked.values())
    labels = count + len(column) - cells.as_text(column).null_count() if count else 0
    if count < MANY_MARKERS and count <= MARKED_SHARE * labels:
        return ()
    written = ", ".join(f"{text!r} ({rows:,})" for text, rows in marked.items())
    note = (
        f"{where}: {count:,} of {labels:,} cells of label column {column.name!r} are {written}, which stands "
        f"for missing: these rows are unlabelled. If it is meant as a class, give it another name in the table"
    )
    return (note,)


def blank(columns: pl.DataFrame, n: int) -> NDArray[np.bool_]:
    """Return which of n rows have no cell in any column: none of a party that holds labels alone."""
    if not columns.width:
        return np.zeros(n, dtype=np.bool_)
    return columns.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()


def without_cells(columns: pl.DataFrame, where: str, *, labels: bool) -> tuple[str, ...]:
    """Say that rows have no cell, as an outer join leaves them: the party counts as absent there."""
    count = int(blank(columns, columns.height).sum())
    note = (
        f"{where}: {count:,} of {columns.height:,} rows {EMPTY}{' and the label' if labels else ''}: "
        f"there the party counts as absent"
    )
    return (note,) if count else ()


def cases(label: pl.Series, where: str) -> tuple[str, ...]:
    """Say that two classes differ in nothing but case."""
    pair = cells.differ_in_case(label) if label.dtype == pl.String else None
    if pair is None:
        return ()
    note = (
        f"{where}: {pair[0]!r} and {pair[1]!r} in label column {label.name!r} differ in nothing but case or blanks, "
        f"and are two classes"
    )
    return (note,)
