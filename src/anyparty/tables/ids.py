"""Read, check and normalize ids from one or more columns, and combine rows with the same id.

Ids are normalized only by the changes that the settings list. The columns of a composite id become one text, joined by
a character that no id may contain.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import polars as pl

from anyparty.errors import ConfigError, TableError, nearest, some
from anyparty.tables import cells

Duplicates = Literal["error", "first", "last", "mean"]

JOINT = "\x1f"  # the character between the columns of a composite id
SHOWN = 5  # the largest number of rows that a message shows
INVISIBLE = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"  # control characters, which ids may not contain
LONGEST_AFFIX = 8  # the largest number of characters before or after ids that are searched for
_SHORTENED = r"^[+-]?\d([.,]\d+)?E\+\d+$"  # a long number in a spreadsheet's notation, such as 1.23E+15
_DIGITS = 15  # the largest number of digits that spreadsheets store
# A remark reports a rare type of ids (at most the share _RARE) in tables of at least _FEWEST rows.
_RARE, _FEWEST = 0.05, 20


@dataclass(frozen=True)
class Normalization:
    """A change of ids that makes differently written ids equal.

    Attributes:
        difference: the difference between ids that the change removes, for messages.
        change: the function that changes a column of ids.
    """

    difference: str
    change: Callable[[pl.Series], pl.Series]


NORMALIZATIONS: dict[str, Normalization] = {
    "unicode": Normalization(
        "Unicode normalization, or invisible characters",
        lambda ids: ids.str.replace_all(r"\p{Cf}", "").str.normalize("NFKC"),
    ),
    "lower-case": Normalization("upper and lower case", lambda ids: ids.str.to_lowercase()),
    "strip-spaces": Normalization("spaces", lambda ids: ids.str.replace_all(r"\s+", "")),
    "strip-point-zero": Normalization(
        "zeros after the decimal point",
        lambda ids: ids.str.replace(r"^(\d+)(?:\.0+|(\.\d*[1-9])0+)$", "${1}${2}"),
    ),
    "strip-hyphens": Normalization("hyphens", lambda ids: ids.str.replace_all(r"[\p{Pd}\x{2212}]", "")),
    "strip-separators": Normalization(
        "separators such as commas, points and slashes", lambda ids: ids.str.replace_all(r"[.,;:'’`_/\\]", "")
    ),
    "strip-zeros": Normalization("leading zeros", lambda ids: ids.str.replace(r"^0+(.)", "${1}")),
}
"""The changes that ``id_normalize`` may name, in the order in which they are applied."""


class Resemblance(NamedTuple):
    """A way in which ids may look alike that no change of ``NORMALIZATIONS`` removes.

    Attributes:
        difference: the end of a sentence such as "some would be equal".
        key: the function that returns a text for each id, equal for ids that look alike; null for no text.
    """

    difference: str
    key: Callable[[pl.Series], pl.Series]


def _longest_part(ids: pl.Series) -> pl.Series:
    """Return the longest part of each id between signs, such as k17 in ID-k17."""
    if not ids.str.contains(r"[^\p{L}\d]").any():
        return ids
    longest = pl.element().sort_by(pl.element().str.len_chars(), descending=True, maintain_order=True).first()
    return ids.str.extract_all(r"[\p{L}\d]+").list.eval(longest).list.first()


def _without_affix(ids: pl.Series) -> pl.Series:
    """Remove the text, with a character that is not a digit, whose removal makes most ids equal to other ids.

    >>> _without_affix(pl.Series(["k1", "k2", "IDk1", "IDk2", "x3"])).to_list()
    ['k1', 'k2', 'k1', 'k2', 'x3']
    """
    affixes = [*((0, n) for n in range(1, LONGEST_AFFIX + 1)), *((-n, n) for n in range(1, LONGEST_AFFIX + 1))]
    best, most = ids, 0
    for start, n in affixes:
        rest = ids.str.slice(n) if start == 0 else ids.str.head(-n)
        removed = ids.str.slice(start, n).filter(rest.is_in(ids.implode()))
        counts = removed.filter(removed.str.contains(r"\D")).alias("affix").value_counts(sort=True)
        if len(counts) and counts["count"][0] > most:
            most, affix = counts["count"][0], counts["affix"][0]
            found = (ids.str.starts_with(affix) if start == 0 else ids.str.ends_with(affix)) & rest.is_in(ids.implode())
            best = rest.zip_with(found, ids)
    return best


def _without_zone(ids: pl.Series) -> pl.Series:
    return ids.str.replace(r"(?: UTC|Z|[+-]\d\d:?\d\d)$", "").str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1} 00:00:00")


def _digits(ids: pl.Series) -> pl.Series:
    return ids.str.replace_all(r"\D", "").replace("", None)


RESEMBLANCES = (
    Resemblance(
        "but for letters that look alike, such as Latin and Cyrillic ones, which must be replaced in the table",
        lambda ids: by_column(ids, lambda part: part.str.replace_many(cells.ALIKE)),
    ),
    Resemblance(
        "but for the time zone, which some ids lack; write all ids with it, or none",
        lambda ids: by_column(ids, _without_zone),
    ),
    Resemblance(
        "with the id columns in another order; list the columns in the same order for every party, with id in "
        "[parties.NAME]",
        lambda ids: ids.str.split(JOINT).list.sort().list.join(JOINT),
    ),
    Resemblance(
        "but for letters or signs around the numbers, which must be removed in the table",
        lambda ids: by_column(ids, _digits),
    ),
    Resemblance(
        "but for text before or after the id, which must be removed in the table",
        lambda ids: by_column(_without_affix(ids), _longest_part),
    ),
)


def check_normalize(changes: Iterable[str]) -> tuple[str, ...]:
    """Remove repeated names of changes, and sort the names in the order in which the changes are applied.

    >>> check_normalize(["strip-zeros", "lower-case", "strip-zeros"])
    ('lower-case', 'strip-zeros')

    Raises:
        ConfigError: a change does not exist.
    """
    if isinstance(changes, str):
        raise ConfigError(f"id_normalize takes a list, such as [{changes!r}], not a text")
    named = list(changes)
    for name in named:
        if name not in NORMALIZATIONS:
            raise ConfigError(f"id_normalize: there is no change {name!r}{nearest(name, NORMALIZATIONS)}")
    return tuple(name for name in NORMALIZATIONS if name in named)


def normalized(ids: pl.Series, changes: Sequence[str]) -> pl.Series:
    """Apply changes to ids; each column of a composite id is changed separately.

    >>> normalized(pl.Series(["03EF-922a", "000 12"]), ["lower-case", "strip-hyphens", "strip-zeros"]).to_list()
    ['3ef922a', ' 12']
    """
    for name in check_normalize(changes):
        ids = by_column(ids, NORMALIZATIONS[name].change)
    return ids


def by_column(ids: pl.Series, change: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Apply a function to ids, and to each column of a composite id separately."""
    if not len(ids) or JOINT not in str(ids[0]):
        return change(ids) if len(ids) else ids
    fields = [str(place) for place in range(str(ids[0]).count(JOINT) + 1)]
    parts = ids.str.split(JOINT).list.to_struct(fields=fields).struct.unnest()
    changed = [change(part) for part in parts.iter_columns()]
    return pl.select(pl.concat_str(changed, separator=JOINT)).to_series().alias(ids.name)


def shown(text: str) -> str:
    """Return an id for messages, with slashes between the columns of a composite id."""
    return text.replace(JOINT, " / ")


def id_names(id: str | Sequence[str]) -> tuple[str, ...]:  # noqa: A002 - as in the settings
    """Return the names of the id columns.

    Raises:
        TableError: there is no name, or a name repeats.
    """
    names = (id,) if isinstance(id, str) else tuple(id)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise TableError(f"id = {list(names)!r}: expected the name of a column, or a list of different names")
    return names


def read_ids(
    raw: pl.DataFrame, names: Sequence[str], normalize: Sequence[str], where: str
) -> tuple[pl.Series, pl.DataFrame, tuple[str, ...]]:
    """Read and check the id columns.

    Returns:
        The ids as text [n], columns of a composite id joined; the id columns with the types of the source; and remarks.

    Raises:
        TableError: an id is missing, has control characters, or was shortened by a spreadsheet or by a float column.
    """
    columns, parts, notes = list[pl.Series](), list[pl.Series](), list[str]()
    for name in names:
        text = id_texts(raw[name], where)
        notes += _remarks(text, raw[name], where)
        columns.append(text if cells.is_text(raw[name]) else raw[name])
        changed = normalized(text, normalize) if normalize else text
        if (empty := changed == "").any():
            raise TableError(
                f"{where}: id_normalize = {list(normalize)} leaves nothing of ids in column {name!r}: "
                f"{cells.cited(text, empty, SHOWN)}; leave a change out"
            )
        parts.append(changed)
    if len(names) > 1:
        parts = [pl.select(pl.concat_str(parts, separator=JOINT)).to_series().alias("id")]
    return parts[0], pl.DataFrame(columns), tuple(notes)


def id_texts(column: pl.Series, where: str) -> pl.Series:
    """Check the cells of one id column, and return them as text."""
    timestamps = column.dtype.is_temporal() and column.dtype != pl.Duration
    if not (cells.is_text(column) or cells.is_number(column) or timestamps):
        raise TableError(f"{where}: id column {column.name!r} is of type {column.dtype}; expected text or numbers")
    if column.dtype.is_float() and (large := column.fill_nan(None).abs() >= cells.largest_exact(column)).any():
        raise TableError(
            f"{where}: id column {column.name!r} holds numbers that are too large for {column.dtype} to be exact, "
            f"{cells.cited(column, large, SHOWN)}; read the ids as text, or as whole numbers of 64 bits"
        )
    if cells.is_text(column) and (decimal := rounded(column)).any():
        raise TableError(
            f"{where}: id column {column.name!r} has numbers of 2^53 or more that were written as decimals, so that "
            f"their last digits may be lost: {cells.cited(column, decimal, SHOWN)}; export the table again with this "
            "column as text, or as whole numbers of 64 bits"
        )
    ids = cells.as_text(column)
    if ids.null_count():
        missing = ids.is_null().arg_true() + 1
        rows = ("row " if len(missing) == 1 else "rows ") + ", ".join(map(str, missing.head(SHOWN)))
        rows += f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        marks = f" ({some(cells.missing_markers(column))} stands for missing)" if cells.missing_markers(column) else ""
        raise TableError(
            f"{where}: id column {ids.name!r} has no id in {rows}{marks}; give each row one, or leave it out"
        )
    if (invisible := ids.str.contains(INVISIBLE)).any():
        raise TableError(
            f"{where}: id column {ids.name!r} has invisible characters: {cells.cited(ids, invisible, SHOWN)}; remove "
            "them, because they make an id differ from the same text without them"
        )
    if (short := ids.str.contains(_SHORTENED)).any():
        raise TableError(
            f"{where}: id column {ids.name!r} has numbers that a spreadsheet shortened: "
            f"{cells.cited(ids, short, SHOWN)}; their last digits are lost: export the table again with this column as "
            "text"
        )
    return ids


def rounded(column: pl.Series) -> pl.Series:
    """Return the mask of texts that programs write for whole floating-point numbers of 2^53 or more.

    >>> rounded(pl.Series(["9007199254740992.0", "9.007199254740993e+15", "9007199254740993", "7.0"])).to_list()
    [True, True, False, False]
    """
    text = column.cast(pl.String).str.strip_chars()
    written = text.str.contains(r"^[+-]?(\d{16,}\.0*|\d(\.\d+)?e\+\d+)$").fill_null(value=False)
    if not written.any():
        return written
    return written & (text.cast(pl.Float64, strict=False).abs() >= 2**53).fill_null(value=False)


def are_row_numbers(ids: pl.Series) -> bool:
    """Return whether ids [n] are the numbers from 0 or from 1 in the order of the rows."""
    n, first = len(ids), ids[0] if len(ids) else ""
    if n < _FEWEST or first not in {"0", "1"}:
        return False
    return bool((ids == pl.int_range(int(first), n + int(first), eager=True).cast(pl.String)).all())


def _remarks(ids: pl.Series, column: pl.Series, where: str) -> Iterable[str]:
    """Yield remarks on ids that may be damaged, or whose type differs from most ids."""
    where = f"{where}: id column {ids.name!r}"
    long = ids.filter(ids.str.contains(rf"^\d{{{_DIGITS + 1},}}$"))
    if len(long) >= SHOWN and long.str.contains(rf"^\d{{{_DIGITS}}}0+$").all():
        yield (
            f"{where}: all {len(long):,} numbers of more than {_DIGITS} digits end in zeros, such as {long[0]!r}: a "
            "spreadsheet replaces digits by zeros; if so, export the table again with this column as text"
        )
    if not cells.is_text(column) or len(ids) < _FEWEST:
        return
    whole, latin = ids.str.contains(r"^\d+$"), ids.str.replace_many(cells.ALIKE)
    hexadecimal = ids.str.contains(r"^(?i)[0-9a-f]+$").all()  # such ids may lack digits by chance
    plain = ~ids.str.contains(r"\d") & (not hexadecimal)
    for odd, what, others in (
        (~whole, "not whole numbers", "all others are"),
        (whole, "whole numbers", "no other is"),
        (plain & (~whole).all(), "without a digit", "all others have one"),
    ):
        if 0 < odd.sum() <= _RARE * len(ids):
            yield f"{where}: {odd.sum():,} of {len(ids):,} ids are {what}, {others}: {cells.cited(ids, odd, SHOWN)}"
    foreign = (latin != ids) & ~latin.str.contains(r"[\p{L}--a-zA-Z]")
    if foreign.any() and ids.str.contains("[a-zA-Z]").any():
        letter = next(letter for letter in ids.filter(foreign)[0] if letter in cells.ALIKE)
        yield (f"{where}: {foreign.sum():,} of {len(ids):,} ids have letters that look like Latin ones, such as "
               f"{unicodedata.name(letter)}, beside ids with Latin letters: {cells.cited(ids, foreign, SHOWN)}; "
               "such ids equal no id in Latin letters: replace these letters in the table")  # fmt: skip


def doubled(ids: pl.Series, names: Sequence[str], normalize: Sequence[str], where: str, party: str) -> TableError:
    """Return the error for ids that occur more than once, with a few of them as examples."""
    twice = ids.is_duplicated()
    named = f"column {names[0]!r}" if len(names) == 1 else f"columns {some(names)}"
    how = f" after id_normalize = {list(normalize)}" if normalize else " (as text, trimmed)"
    first = ids.filter(twice).unique(maintain_order=True).head(SHOWN)
    examples = "; ".join(
        f"{shown(each)!r} in rows {', '.join(str(row + 1) for row in (ids == each).arg_true().head(SHOWN))}"
        for each in first
    )
    return TableError(
        f"{where}: id {named} must name each row once, but {twice.sum():,} rows share an id{how}: {examples}; keep "
        f'one row for each id, or write duplicates = "first", "last" or "mean" in [parties.{party}]'
    )


_ID, _ROW, _LABEL = "\0id", "\0row", "\0label"


def combined(
    ids: pl.Series, columns: pl.DataFrame, label: pl.Series | None, how: Duplicates, where: str
) -> tuple[pl.Series, pl.DataFrame, pl.Series | None, str]:
    """Combine rows with the same id, so that one row remains for each of the m different ids.

    Args:
        ids: [n], with repetitions.
        columns: [n, d], the features; [0, 0] if the party has no features.
        label: [n], the labels; ``None`` if the party has no labels.
        how: "first" and "last" keep one of the rows; "mean" averages numbers, and takes the most frequent category (the
            first of equally frequent ones).
        where: party and file, the beginning of the remark.

    Returns:
        The indices [m] of the rows that are kept, in ascending order (with "mean", the first row of each id); the
        features [m, d]; the labels [m] or ``None``; and a remark.

    Raises:
        TableError: with "mean", rows with the same id have different labels that are whole numbers.
    """
    frame = pl.DataFrame({_ID: ids, _ROW: pl.int_range(len(ids), dtype=pl.Int64, eager=True)})
    kept = frame.unique(_ID, keep="last" if how == "last" else "first", maintain_order=True)[_ROW].sort()
    removed = f"{len(ids) - len(kept):,} of {len(ids):,} rows have the id of another row"
    done = {"first": "the first row of each id is kept", "last": "the last row of each id is kept"}
    if how != "mean":
        columns = columns[kept] if columns.width else columns
        if label is not None and (differ := _differing(ids, label)).len():
            done[how] += f"; the rows of {len(differ):,} of these ids have different labels in column {label.name!r}"
        return kept, columns, None if label is None else label[kept], f"{where}: {removed}: {done[how]}"
    if label is not None:
        _check_labels(ids, label, where)
        frame = frame.with_columns(label.alias(_LABEL))
    frame = pl.concat([frame, columns], how="horizontal") if columns.width else frame
    twice = frame[_ID].is_duplicated()
    values = [name for name in frame.columns if name not in {_ID, _ROW}]
    means = [_mean(frame[name]) for name in values]
    averaged = frame.filter(twice).group_by(_ID, maintain_order=True).agg(pl.col(_ROW).first(), *means)
    single = frame.filter(~twice).with_columns(pl.col(name).cast(averaged.schema[name]) for name in values)
    whole = pl.concat([single, averaged.select(single.columns)]).sort(_ROW)
    return (
        whole[_ROW],
        whole.select(columns.columns) if columns.width else columns,
        None if label is None else whole[_LABEL].alias(label.name),
        f"{where}: {removed}: numbers are averaged, and the most frequent category is taken",
    )


def _mean(column: pl.Series) -> pl.Expr:
    name = pl.col(column.name)
    if column.dtype.is_numeric():
        return name.mean()
    return name.drop_nulls().mode(maintain_order=True).first()


def _differing(ids: pl.Series, label: pl.Series) -> pl.Series:
    """Return the ids whose rows have different labels."""
    frame = pl.DataFrame({"id": ids, "label": label}).drop_nulls("label")
    return frame.group_by("id", maintain_order=True).n_unique().filter(pl.col("label") > 1)["id"]


def _check_labels(ids: pl.Series, label: pl.Series, where: str) -> None:
    """Raise an error if rows with the same id have different classes as labels, because classes have no mean."""
    numbers = label.cast(pl.Float64, strict=False).drop_nulls().drop_nans()
    if len(numbers) < label.count() or (numbers != numbers.floor()).any():
        return
    if len(differ := _differing(ids, label)):
        rows = ids.is_in(differ.head(SHOWN).implode())
        examples = cells.cited(pl.Series([shown(each) for each in ids]), rows, SHOWN)
        raise TableError(
            f'{where}: duplicates = "mean", but the rows of {len(differ):,} ids have different labels in column '
            f'{label.name!r}, such as {examples}; write duplicates = "first" or "last", or correct them'
        )
