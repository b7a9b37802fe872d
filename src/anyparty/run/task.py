"""What is predicted, and by which labels: those of the active party's training rows of which somebody knows a cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty.blocks.splits import TRAIN
from anyparty.config import FederationSettings
from anyparty.errors import TableError
from anyparty.tables.cells import as_level
from anyparty.tables.labels import described, encode, infer_task
from anyparty.tables.table import Table
from anyparty.terms import Task


def teaching(table: Table, position: NDArray[np.int64], observed: NDArray[np.bool_]) -> Table:
    """Return a label holder's table without labels of rows of which nobody knows a cell: they can teach nothing.

    Args:
        table: the party's.
        position: [N], its own row of each aligned row, -1 where it has none.
        observed: [N, K], who knows a cell of which row.
    """
    if table.label is None:
        return table
    kept = np.zeros(len(table), dtype=np.bool_)
    kept[position[(position >= 0) & observed.any(axis=1)]] = True
    return replace(table, label=table.label.zip_with(pl.Series(kept), table.label.clear(len(table))))


def labeled_rows(table: Table, position: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the N aligned rows have a label in the party's table: [N] bool."""
    assert table.label is not None
    known = table.label.is_not_null().to_numpy()
    return np.where(position >= 0, known[position], False)


def predicted(table: Table, asked: FederationSettings) -> str:
    """Return in one line what is predicted: the classes, or the range of numbers, of all known labels of a table.

    Raises:
        TableError: the labels cannot be used, such as a single class.
    """
    rows = np.arange(len(table))
    task = task_of(table, rows, np.full(len(rows), TRAIN, np.int8), asked, without=True)
    assert table.label is not None
    return described(task, table.label, asked.task)


def task_of(
    table: Table, position: NDArray[np.int64], use: NDArray[np.int8], asked: FederationSettings, *,
    without: bool = False,
) -> Task:  # fmt: skip
    """Return what is predicted, from the labels of the active party's training rows; nothing ``without`` any.

    ``asked`` says which kind of task, and which class is positive.

    Raises:
        TableError: no labels, or a single class.
    """
    assert table.label is not None
    rows = position[(position >= 0) & (use == TRAIN)]
    try:
        return infer_task(
            table.label, party=table.party, kind=asked.task, train_rows=rows, without=without, positive=asked.positive
        )
    except TableError as error:
        others = _held_out(table.label, rows, position[(position >= 0) & (use != TRAIN)])
        remarks = [f"by the way, {note}" for note in table.notes]
        raise TableError(f"{'; '.join([str(error), *others])}{''.join(f' ({remark})' for remark in remarks)}") from None


def _held_out(label: pl.Series, trained: NDArray[np.int64], others: NDArray[np.int64]) -> Iterator[str]:
    """Say where labels are that rows for training lack, if these have fewer than two values."""
    there, elsewhere = (as_level(label[rows]).drop_nulls() for rows in (trained, others))
    lacking = elsewhere.filter(~elsewhere.is_in(there.unique().implode()))
    if there.n_unique() < 2 and len(lacking):
        yield (
            f"the others, such as {lacking[0]!r}, are all among the rows for validation and test: give another "
            f"train.seed, a smaller train.validation and train.test, or more such rows"
        )


def balanced(table: Table, position: NDArray[np.int64], use: NDArray[np.int8], task: Task) -> tuple[float, ...]:
    """Return the weight of each class that lets all count alike: rows / (classes x rows of the class).

    Classes that no row for training has are not counted, so that the mean weight of these rows is 1.
    """
    assert table.label is not None
    y, labeled = encode(table.label, task, table.party)
    own = torch.from_numpy(position[(position >= 0) & (use == TRAIN)])
    counts = torch.bincount(y[own][labeled[own]], minlength=task.outputs)
    return tuple((counts.sum() / ((counts > 0).sum() * counts.clamp(min=1))).tolist())
