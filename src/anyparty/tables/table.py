"""Read and check one party's table: ids, feature columns and, if it holds them, labels.

Messages count rows from 1, without the header and without blank lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import by_name

from anyparty.core.display import doing
from anyparty.errors import TableError, continued, locating, nearest, some
from anyparty.tables import cells, checks, readers
from anyparty.tables.column_types import KINDS, FeatureColumn, Kind, feature
from anyparty.tables.csv_file import are_decimal, with_points
from anyparty.tables.file_content import DETECT, FileSettings
from anyparty.tables.ids import Duplicates, are_row_numbers, combined, doubled, id_names, read_ids
from anyparty.tables.label_cells import Labels, read_labels
from anyparty.tables.reading_rules import AS_WRITTEN, Decimal, ReadingRules

if TYPE_CHECKING:
    from anyparty.tables.readers import Source

TOO_LONG = "shorten it, leave the column out, or raise federation.max_cell_bytes"
MANY_LACKING = 100  # the largest number of missing columns that an error lists
MANY_WRONG = 10  # the largest number of columns whose errors are reported at once


@dataclass(frozen=True)
class Table:
    """One party's table of n rows, which has passed all checks.

    Attributes:
        party: the party that holds the table.
        source: the file's name, or "data frame".
        ids: [n] String, trimmed, unique, no nulls. The columns of a composite id are joined by ``ids.JOINT``.
        columns: [n, d] the features: numeric; String for categories and free text; Date or Datetime for dates. A null
            is a missing value; NaN and infinity do not occur. [0, 0] for a party that holds labels only.
        label: [n] the label column with the type that it has in the source (text in a CSV). A null is an
            unlabelled row. ``None`` if the party holds no labels.
        notes: possible mistakes in the table, as sentences.
        read_as: the format that was recognised, such as "CSV, separator ';', encoding utf-8".
        id_columns: [n, m] the m id columns with the types that they have in the source; texts are trimmed.
        rows: [n] the index of each row in the source, from 0; ``None`` if no row was left out.
        rules: the rules by which the cells were read.
        part_by: [n] the column that assigns rows to training, validation and test, if the split uses one.
        texts: the columns of free text.
    """

    party: str
    source: str
    ids: pl.Series
    columns: pl.DataFrame
    label: pl.Series | None = None
    notes: tuple[str, ...] = ()
    rules: ReadingRules = AS_WRITTEN
    read_as: str = ""
    id_columns: pl.DataFrame | None = None
    rows: pl.Series | None = None
    part_by: pl.Series | None = None
    texts: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """Describe the table without its cells."""
        label = "" if self.label is None else ", and the label"
        return (
            f"<Table of party {self.party!r} ({self.source}): {len(self):,} rows, {self.columns.width} columns{label}>"
        )

    @cached_property
    def blank(self) -> NDArray[np.bool_]:
        """The mask [n] of rows whose feature cells are all empty. The party is treated as absent in these rows."""
        return checks.blank(self.columns, len(self))

    @property
    def has_content(self) -> NDArray[np.bool_]:
        """The mask [n] of rows with a feature cell or a label; True for all rows of a table with only ids."""
        if self.label is None:
            return ~self.blank
        labeled = self.label.is_not_null().to_numpy()
        return ~self.blank | labeled if self.columns.width else labeled

    def blocks_at(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``position`` [N], the party's row index of each aligned row, with -1 for rows without any feature."""
        if not self.blank.any():
            return position
        return np.where((position >= 0) & ~self.blank[position], position, -1)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each feature column."""
        found: dict[str, Kind] = {}
        for name, dtype in self.columns.schema.items():
            if dtype == pl.String:
                found[name] = "text" if name in self.texts else "categorical"
            else:
                found[name] = "date" if dtype.is_temporal() else "numeric"
        return found

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the ids, columns and labels, with the column names and the order of rows and columns."""
        digest = hashlib.sha256()
        labels = [] if self.label is None else [self.label]
        parts = [] if self.part_by is None else [self.part_by.alias(f"split by {self.part_by.name}")]
        for column in (self.ids, *self.columns.iter_columns(), *labels, *parts):
            digest.update(repr((column.name, len(column), column is self.label)).encode())
            for part in _content(column):
                digest.update(part)
        return digest.hexdigest()


P = ParamSpec("P")


def _with_place(read: Callable[P, Table]) -> Callable[P, Table]:
    """Set the party and the file of the errors that ``read`` raises."""

    @wraps(read)
    def read_with_place(*args: P.args, **kwargs: P.kwargs) -> Table:
        source = args[0] if args else kwargs.get("source")
        file = str(source) if isinstance(source, str | Path) else ""
        with locating(party=str(kwargs.get("party", "")), file=file):
            return read(*args, **kwargs)

    return read_with_place


@_with_place
def read_table(
    source: Source,
    *,
    party: str,
    id: str | Sequence[str],  # noqa: A002 - as in the settings
    id_normalize: Sequence[str] = (),
    duplicates: Duplicates = "error",
    label: str | None = None,
    part_by: str | None = None,
    drop: Collection[str] = (),
    types: Mapping[str, Kind] | None = None,
    expect: Mapping[str, Kind] | None = None,
    rules: ReadingRules = AS_WRITTEN,
    max_cell_bytes: int = cells.MAX_BYTES,
    file: FileSettings = DETECT,
) -> Table:
    """Read and check one party's table from a file, a folder of files, standard input ("-") or a data frame.

    Ids of any type are compared as trimmed text: the number 7, the texts " 7" and "7", and the float 7.0 are one id.
    (pandas stores whole ids as floats if the column has missing cells.) Empty cells and NA, N/A, n/a, #N/A, <NA>, NaN,
    nan, NaT, null, NULL, None and ? are missing. ``label_cells`` describes how labels are read, and ``Table.notes``
    reports what was merged or left out. A text column is numeric if all its cells are numbers, or true and false.

    Args:
        source: the file or data frame.
        party: the name of the party that holds the table, for messages.
        id: the column of ids, or several columns that together identify a row.
        id_normalize: changes of ids, such as "strip-zeros" (``ids.NORMALIZATIONS``).
        duplicates: the treatment of rows with the same id. "error" rejects them, "first" and "last" keep one of them,
            and "mean" averages numbers and takes the most frequent category.
        label: the column of labels, if the party holds them.
        part_by: a column that is used only to split the rows; it is not a feature.
        drop: columns to leave out.
        types: "numeric", "categorical", "date" or "text", for each column, to replace the inferred kind.
        expect: the columns and kinds that a model was trained on (``Prepare.kinds``). Each column is read as its kind,
            a missing column is an error, and all other columns are ignored.
        rules: the rules by which cells are read.  Prediction uses the rules of training (``Table.rules``).
        max_cell_bytes: the largest number of UTF-8 bytes in a column name, or in a text cell of a column that is read.
        file: settings that replace what is recognised about a file.

    Raises:
        TableError: the source cannot be read, a column is missing, or ids, features or labels are not usable.
    """
    needed = None if expect is None else {*id_names(id), *expect, *(each for each in (label, part_by) if each)}
    made = readers.read(source, party, file, () if isinstance(drop, str) else set(drop) - {part_by}, needed)
    raw, available = made.cells, list(made.columns)
    where = f"party {party!r}, {made.name}"
    _check_name_sizes(available, where, max_cell_bytes)
    names = id_names(id)
    if part_by is not None and (part_by not in available or part_by in {*names, label}):
        why = "has ids or labels" if part_by in {*names, label} else f"is missing{nearest(part_by, available)}"
        raise TableError(f"{where}: the settings of [split] name column {part_by!r}, which {why}")
    _check_named(
        available,
        where,
        id=names,
        label=label,
        drop=drop,
        types=types or {},
        rules=rules if expect is None else AS_WRITTEN,
        source=source,
        scored=bool(expect),
    )
    if raw.height == 0:
        raise TableError(f"{where}: there are no rows; at least one was expected below the column names")
    if expect is None:
        others = {*names, label, part_by, *drop}
        kinds: dict[str, Kind | None] = {c: (types or {}).get(c) for c in available if c not in others}
    else:
        kinds = dict(_expected(available, expect, where))
    read = {*names, *kinds} | {name for name in (label, part_by) if name is not None}
    if not isinstance(source, str | Path):
        raw = pl.DataFrame(
            # copies of the cells, because polars shares memory with pandas and numpy
            {
                column.name: column.gather(pl.int_range(len(column), eager=True)) if column.name in read else column
                for column in raw.iter_columns()
            }
        )
    _check_cell_sizes((column for column in raw.iter_columns() if column.name in read), where, max_cell_bytes)
    lost = _lost(made, {*names, label, part_by}, kinds, where)
    ids, id_columns, notes = read_ids(raw, names, id_normalize, where)
    if duplicates == "error" and ids.n_unique() < len(ids):
        raise doubled(ids, names, id_normalize, where, party)
    saved = rules.decimal
    if made.decimal == "," or file.decimal is not None:
        raw, rules, more = _with_decimal(made, raw, kinds, label, where, file.decimal, rules)
        notes += more
    columns, rules, read_notes = _features(raw, kinds, where, trained=expect is not None, rules=rules)
    (labels, spelled, _), rules = _label(raw, label, where, rules, trained=expect is not None)
    rules = rules.model_copy(update={"decimal": saved})  # prediction may read another kind of table
    rows, kept = None, columns
    if ids.n_unique() < len(ids):
        rows, kept, labels, note = combined(ids, columns, labels, duplicates, where)
        ids, id_columns, notes = ids[rows], id_columns[rows], (*notes, note)
    notes = made.notes + lost + notes + read_notes + checks.without_cells(kept, where, labels=label is not None)
    if expect is None:
        free = [name for name, kind in kinds.items() if kind is None and name in columns and cells.is_text(raw[name])]
        notes += checks.inferred_kinds(raw.select(by_name(free)), columns, where) if free else ()
        notes += made.without_effect(file, where) if file != DETECT else ()
    parts = None if part_by is None else raw[part_by]
    if parts is not None and rows is not None:
        parts = parts[rows]
    texts = frozenset(name for name, kind in kinds.items() if kind == "text")
    return Table(
        party, made.name, ids, kept, labels, notes + spelled, rules, made.read_as, id_columns, rows, parts, texts
    )


def _lost(made: readers.RawTable, named: Collection[str | None], kinds: Collection[str], where: str) -> tuple[str, ...]:
    """Return sentences on cells of a workbook whose values are lost.

    Raises:
        TableError: a column that has ids or labels, or splits the rows, has such cells.
    """
    for each in made.lost:
        if each.column in named:
            raise TableError(f"{where}: {each}")
    return tuple(f"{where}: {each}" for each in made.lost if each.column in kinds and each.way != "rounded")


ARRAY = "array"  # the source of a table that was made from an array


def from_array(table: Table) -> Table:
    """Return a table that was made from an array without its notes on rows whose cells are all empty.

    Such a row is not a mistake; it means that the party lacks the row.
    """
    return replace(table, source=ARRAY, notes=tuple(note for note in table.notes if checks.EMPTY not in note))


def row_number_notes(tables: Sequence[Table], *, private: bool = False) -> tuple[str, ...]:
    """Return a sentence on parties whose ids seem to be row numbers, which join rows of different people.

    These parties' ids are the numbers from 0 or 1 in the order of the rows. If several such tables have the same number
    of rows, they are probably parts of one table, and the sentence is left out. If ``private`` is true, ``tables`` has
    the only table that this party knows, and other parties hold the others.
    """
    found = [table for table in tables if table.source != ARRAY and are_row_numbers(table.ids)]
    if len({len(table) for table in found}) < (1 if private else 2):
        return ()
    named = " and ".join(f"{table.party} ({table.ids[0]} to {table.ids[-1]})" for table in found)
    note = (
        f"the ids of {named} are numbers in the order of the rows: if they are row numbers, rows of different people "
        "are joined; use ids that all parties know"
    )
    return (note,)


def _with_decimal(
    made: readers.RawTable, raw: pl.DataFrame, kinds: Mapping[str, Kind | None], label: str | None, where: str,
    declared: str | None, rules: ReadingRules,
) -> tuple[pl.DataFrame, ReadingRules, tuple[str, ...]]:  # fmt: skip
    """Apply a table's decimal mark to its text columns of numbers; ``declared`` is the mark in the settings.

    In a CSV file, decimal commas become points, except in columns that training read with commas. For other tables, the
    rules get the declared mark.

    Returns:
        The cells, the rules and, unless the mark is declared, remarks on columns whose points may be decimal points.
    """
    if made.decimal != ",":
        applies = declared is not None and made.format != "CSV"
        return raw, rules.model_copy(update={"decimal": cast("Decimal", declared)}) if applies else rules, ()
    names = [name for name, kind in kinds.items() if kind != "categorical"] + ([label] if label else [])
    texts = [raw[name] for name in names if raw[name].dtype == pl.String]
    native = {name for name, form in rules.formats.items() if form.decimal == ","}
    commas = [text for text in texts if kinds.get(text.name) == "numeric" or are_decimal(text)]
    commas = [text for text in commas if text.name not in native]
    notes = () if declared else checks.points_between_thousands(commas, where)
    return raw.with_columns(map(with_points, commas)), rules, notes


def of_each(names: Iterable[str], read: Callable[[str], Table]) -> dict[str, Table]:
    """Read the tables of several parties, and report the errors of all tables at once.

    Raises:
        TableError: one or more tables cannot be used.
    """
    tables, wrong = dict[str, Table](), list[str]()
    for name in names:
        doing(f"reading the table of party {name!r}")
        try:
            tables[name] = read(name)
        except TableError as error:
            wrong.append(str(error))
    if wrong:
        raise TableError("\n".join(dict.fromkeys(wrong)))
    return tables


def _advice(role: str, name: str, where: str, source: Source, *, scored: bool) -> Iterator[str]:
    """Yield advice for a column ``name`` that a table lacks; ``scored`` as in ``_check_named``."""
    if role not in {"id", "label"}:
        return
    party = where.split("'")[1]
    below = readers.header_below(source, party, name)
    if role == "label" and scored:
        yield "rows are scored by their labels"
    elif role == "id" and readers.has_unnamed_index(source):
        yield "the data frame's index has no name: frame.rename_axis(...) makes it a column"
    elif role == "id" and not below:
        yield (f"rename the column, or name the ids of this table alone: parties.{party}.id = COLUMN "
               f"(in Python: id={{{party!r}: COLUMN, ...}})")  # fmt: skip
    yield below


def _check_named(
    names: list[str],
    where: str,
    *,
    id: Sequence[str],  # noqa: A002
    label: str | None,
    drop: Collection[str],
    types: Mapping[str, Kind],
    rules: ReadingRules,
    source: Source,
    scored: bool,
) -> None:
    """Reject settings with the name of a missing column, or with two roles of one column.

    ``scored`` is True if the labels are needed to score a model; the error then mentions this.
    """
    if isinstance(drop, str):
        raise TableError(f"{where}: drop takes a list of column names, not the text {drop!r}")
    for role, name in [
        *(("id", name) for name in id),
        ("label", label),
        *(("drop", d) for d in drop),
        *(("types", t) for t in types),
        *((setting, name) for setting in ("missing", "limits", "dates") for name in getattr(rules, setting)),
    ]:
        if name is not None and name not in names:
            message = f"{where}: there is no column {name!r}, named as {role}{nearest(name, names)}"
            for clause in _advice(role, name, where, source, scored=scored):
                message = continued(message, clause)
            raise TableError(message)
    if label in id:
        raise TableError(f"{where}: column {label!r} is named both as id and as label; name two columns")
    for name in (*id, label):
        if name in drop or name in types:
            raise TableError(f"{where}: column {name!r} holds ids or labels; drop and types are for features")
    for name, kind in types.items():
        if kind not in KINDS:
            raise TableError(f"{where}: types says {kind!r} for column {name!r}; known are: {', '.join(sorted(KINDS))}")


def _check_name_sizes(names: list[str], where: str, most: int) -> None:
    """Raise an error if a column name has more than ``most`` bytes."""
    for place, name in enumerate(names, start=1):
        if (found := len(name.encode(errors="surrogatepass"))) > most:
            raise TableError(f"{where}: the name of column {place} has {found:,} bytes; the limit for a cell is "
                             f"{most:,}; {TOO_LONG}")  # fmt: skip


def _check_cell_sizes(columns: Iterable[pl.Series], where: str, most: int) -> None:
    """Raise an error if a text cell has more than ``most`` bytes."""
    for column in columns:
        if not cells.is_text(column):
            continue
        sizes = column.cast(pl.String).str.len_bytes()
        if len(rows := (sizes > most).arg_true()):
            more = f" (as do {len(rows) - 1:,} other rows)" if len(rows) > 1 else ""
            raise TableError(f"{where}: the cell in row {rows[0] + 1:,} below the column names, column "
                             f"{column.name!r}, has {sizes[rows[0]]:,} bytes{more}; the limit for a cell is {most:,}; "
                             f"{TOO_LONG}")  # fmt: skip


def lacking(missing: Sequence[str], others: Iterable[str], where: str) -> TableError:
    """Return the error for columns that the model requires and the table lacks.

    ``others`` are the columns of the table that the model does not use.
    """
    message = f"{where}: the model was trained on {some(missing, MANY_LACKING)}, which the table does not have"
    hint = nearest(missing[0], others).replace("known are", "its other columns are")
    if len(missing) > 1:
        hint = hint.replace("did you mean", f"for {missing[0]!r}, did you mean")
    add = "add the column" if len(missing) == 1 else "add the columns"
    return TableError(continued(message + hint, f"{add}, empty where it is not known"))


def _expected(names: list[str], expect: Mapping[str, Kind], where: str) -> Mapping[str, Kind]:
    missing = [name for name in expect if name not in names]
    if missing:
        raise lacking(missing, [name for name in names if name not in expect], where)
    return expect


def _features(
    raw: pl.DataFrame, kinds: Mapping[str, Kind | None], where: str, *, trained: bool, rules: ReadingRules
) -> tuple[pl.DataFrame, ReadingRules, tuple[str, ...]]:
    """Read the feature columns, and report the errors of all columns at once.

    Returns:
        The columns, the rules by which they were read, and notes.
    """
    read, wrong = list[FeatureColumn](), list[str]()
    for name, kind in kinds.items():
        try:
            read.append(feature(raw[name], kind, where, trained=trained, rules=rules))
        except TableError as error:
            wrong.append(str(error))
    if wrong:
        more = [f"... and {len(wrong) - MANY_WRONG} more columns"] if len(wrong) > MANY_WRONG else []
        raise TableError("\n".join([*wrong[:MANY_WRONG], *more]))
    if not trained:
        rules = rules.model_copy(
            update={
                "formats": {each.cells.name: each.format for each in read if each.format is not None},
                "date_formats": {each.cells.name: each.dates for each in read if each.dates is not None},
                "literals": {each.cells.name: each.literals for each in read if each.literals},
                "truths": tuple(
                    each.cells.name
                    for each in read
                    if cells.is_number(each.cells) and not each.left_out and cells.are_truths(each.cells)
                ),
            }
        )
    notes = tuple(sentence for each in read for sentence in each.note.split("\n") if sentence)
    if read and all(each.left_out for each in read):
        raise TableError("\n".join((*notes, f"{where}: no other feature column remains: keep one, or drop them all")))
    read = [each for each in read if not each.left_out]
    return pl.DataFrame([each.cells for each in read]), rules, notes


def _label(
    raw: pl.DataFrame, label: str | None, where: str, rules: ReadingRules, *, trained: bool
) -> tuple[Labels, ReadingRules]:
    """Read the label column; return the labels, and the rules with the format of the labels."""
    if label is None:
        return Labels(None), rules
    column = raw[label]
    if not (cells.is_text(column) or cells.is_number(column)):
        raise TableError(f"{where}: label column {column.name!r} is of type {column.dtype}; expected numbers or text")
    read = read_labels(column, where, rules, trained=trained)
    if trained or read.format is None:
        return read, rules
    return read, rules.model_copy(update={"formats": rules.formats | {label: read.format}})


def _content(column: pl.Series) -> list[bytes]:
    """Return a column's cells as bytes for a hash: numbers as float64, other cells as text and lengths.

    Integers that float64 cannot represent exactly become text.
    """
    long = column.dtype.is_integer() and ((column > 2**53) | (column < -(2**53))).any()
    if long or not cells.is_number(column):
        column = column.cast(pl.String)
    if column.dtype != pl.String:
        numbers = column.cast(pl.Float64).to_numpy().astype("<f8", copy=True)
        numbers[np.isnan(numbers)] = np.nan
        return [b"numbers", numbers.tobytes()]
    lengths = column.str.len_bytes().cast(pl.Int64).fill_null(-1).to_numpy().astype("<i8")
    return [b"text", lengths.tobytes(), (column.str.join("").item() or "").encode()]
