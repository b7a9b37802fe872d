"""Infer the task from the labels of the active party's training rows, and compute class weights.

Labels of rows that are empty at all parties are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.core.types import Task
from anyparty.data.splits import TRAIN
from anyparty.errors import TableError, some
from anyparty.tables.label_cells import names_of
from anyparty.tables.table import Table
from anyparty.tables.target import AskedKind, described, encode, infer_task


def teaching(table: Table, position: NDArray[np.int64], observed: NDArray[np.bool_]) -> Table:
    """Return a label holder's table without the labels of rows that are empty at all parties.

    Such rows cannot train a model. They remain in the returned table, without labels.

    Args:
        table: the label holder's table.
        position: [N], the index of each aligned row in the label holder's table; -1 if the table lacks the row.
        observed: [N, K], True if party k has a cell in row n.
    """
    if table.label is None:
        return table
    kept = np.zeros(len(table), dtype=np.bool_)
    kept[position[(position >= 0) & observed.any(axis=1)]] = True
    return replace(table, label=table.label.zip_with(pl.Series(kept), table.label.clear(len(table))))


def labeled_rows(table: Table, position: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the mask [N] of aligned rows that have a label in the party's table."""
    assert table.label is not None
    known = table.label.is_not_null().to_numpy()
    return np.where(position >= 0, known[position], False)


def predicted(table: Table, kind: AskedKind, positive: str | None) -> str:
    """Describe in one line the task that a table's labels define: the classes, or the range of numbers.

    ``kind`` is "auto", "classification" or "regression". ``positive`` is the positive class of a binary task, if one
    was chosen.

    Raises:
        TableError: the labels cannot be used, for example because all have the same class.
    """
    rows = np.arange(len(table))
    task = task_of(table, rows, np.full(len(rows), TRAIN, np.int8), kind, positive, without=True)
    assert table.label is not None
    return described(task, table.label, kind)


def task_of(
    table: Table, position: NDArray[np.int64], use: NDArray[np.int8], kind: AskedKind, positive: str | None, *,
    without: bool = False,
) -> Task:  # fmt: skip
    """Infer the task from the labels of the active party's training rows.

    Args:
        table: the active party's table.
        position: [N], the index of each aligned row in the party's table; -1 if the table lacks the row.
        use: [N], the part of each row: training, validation, test or none.
        kind: "auto", "classification" or "regression".
        positive: the positive class of a binary task, if one was chosen.
        without: whether a table without labels is accepted. The task then has no outputs.

    Raises:
        TableError: there are no labels, or all have the same class.
    """
    assert table.label is not None
    rows = position[(position >= 0) & (use == TRAIN)]
    try:
        return infer_task(
            table.label, party=table.party, kind=kind, train_rows=rows, without=without, positive=positive
        )
    except TableError as error:
        others = _held_out(table.label, rows, position[(position >= 0) & (use != TRAIN)])
        remarks = [f"by the way, {note}" for note in table.notes]
        raise TableError(f"{'; '.join([str(error), *others])}{''.join(f' ({remark})' for remark in remarks)}") from None


def _held_out(label: pl.Series, trained: NDArray[np.int64], others: NDArray[np.int64]) -> Iterator[str]:
    """Yield a hint if the training rows lack classes that occur in the rows for validation and test."""
    there, elsewhere = (names_of(label[rows]).drop_nulls() for rows in (trained, others))
    lacking = elsewhere.filter(~elsewhere.is_in(there.unique().implode()))
    if there.n_unique() < 2 and len(lacking):
        yield (
            f"the others, such as {lacking[0]!r}, are all among the rows for validation and test: give another "
            f"train.seed, a smaller train.validation and train.test, or more such rows"
        )


def check_training_labels(
    table: Table, position: NDArray[np.int64], use: NDArray[np.int8], task: Task, rows: str
) -> None:
    """Check that the training rows that ``train.rows`` selects have labels of every class.

    Args:
        table: the active party's table.
        position: [N], the index of each aligned row in the party's table; -1 if the table lacks the row.
        use: [N], the part of each row; rows that ``train.rows`` excludes are marked as unused.
        task: the task.
        rows: the value of the setting ``train.rows``, for the error message.

    Raises:
        TableError: no training row has a label, or no training row has a given class.
    """
    assert table.label is not None
    labels = table.label[position[(position >= 0) & (use == TRAIN)]].drop_nulls()
    held = set(names_of(labels)) if task.classes else set()
    lacking = [name for name in task.classes if name not in held]
    if lacking or (task.outputs and not len(labels)):
        of = f"of class {some(lacking)}" if len(labels) else "with a label"
        raise TableError(f"party {table.party!r}, label column {table.label.name!r}: train.rows = {rows!r} leaves no "
                         f"row {of} for training; write train.rows = 'any', or label more such rows")  # fmt: skip


def balanced(table: Table, position: NDArray[np.int64], use: NDArray[np.int8], task: Task) -> tuple[float, ...]:
    """Return class weights that give all classes the same total weight: n / (C n_c).

    n is the number of labelled training rows, n_c the number of these rows with class c, and C the number of classes
    with n_c > 0. The mean weight of these rows is 1.
    """
    assert table.label is not None
    y, labeled = encode(table.label, task, table.party)
    own = position[(position >= 0) & (use == TRAIN)]
    counts = y[own][labeled[own]].bincount(minlength=task.outputs)
    return tuple((counts.sum() / ((counts > 0).sum() * counts.clamp(min=1))).tolist())
