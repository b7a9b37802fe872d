"""Combine rows of one table that have the same id."""

from __future__ import annotations

import polars as pl

from anyparty.errors import TableError
from anyparty.tables import cells
from anyparty.tables.ids import SHOWN, Duplicates, shown

_ID, _ROW, _LABEL = "\0id", "\0row", "\0label"


def combined(
    ids: pl.Series, columns: pl.DataFrame, label: pl.Series | None, how: Duplicates, where: str
) -> tuple[pl.Series, pl.DataFrame, pl.Series | None, str]:
    """Return one row for each id.

    Args:
        ids: [n], with repetitions.
        columns: [n, d], the features; may be [0, 0].
        label: [n], the labels.
        how: "first" and "last" keep one of the rows; "mean" averages numbers, and takes the most frequent category (the
            first of equally frequent ones).
        where: party and file, the beginning of the remark.

    Returns:
        [m] for each id, in the order of the rows that are kept, the number of its row; the m rows of features; the m
        labels; and a remark.

    Raises:
        TableError: with "mean", rows with the same id have different labels that are whole numbers.
    """
    frame = pl.DataFrame({_ID: ids, _ROW: pl.int_range(len(ids), dtype=pl.Int64, eager=True)})
    kept = frame.unique(_ID, keep="last" if how == "last" else "first", maintain_order=True)[_ROW].sort()
    removed = f"{len(ids) - len(kept):,} of {len(ids):,} rows have the id of another row"
    done = {"first": "the first row of each id is kept", "last": "the last row of each id is kept"}
    if how != "mean":
        columns = columns[kept] if columns.width else columns
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


def _check_labels(ids: pl.Series, label: pl.Series, where: str) -> None:
    """Reject different labels of one id that are whole numbers, because they may be classes or numbers to predict."""
    numbers = label.cast(pl.Float64, strict=False).drop_nulls().drop_nans()
    if len(numbers) < label.count() or (numbers != numbers.floor()).any():
        return
    frame = pl.DataFrame({"id": ids, "label": label})
    differ = frame.drop_nulls("label").group_by("id", maintain_order=True).n_unique().filter(pl.col("label") > 1)["id"]
    if len(differ):
        rows = ids.is_in(differ.head(SHOWN).implode())
        examples = cells.cited(pl.Series([shown(each) for each in ids]), rows, SHOWN)
        raise TableError(
            f'{where}: duplicates = "mean", but the rows of {len(differ):,} ids have different labels in column '
            f'{label.name!r}, such as {examples}; write duplicates = "first" or "last", or correct them'
        )
