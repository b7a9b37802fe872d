"""The problem of a training: the task, and the use of each aligned row, from the active party's labels.

Labels of rows that are empty at all parties are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.alignment.alignment import rows_of
from anyparty.core.seeds import Seeds
from anyparty.core.types import Roster, Task
from anyparty.errors import ConfigError, TableError, some
from anyparty.problem.splits import TRAIN, UNUSED, Part, ProblemPlan, assign
from anyparty.tables.label_cells import names_of
from anyparty.tables.table import Table
from anyparty.tables.target import described, encode, infer_task

if TYPE_CHECKING:  # importing torch takes seconds
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem of a training, as the active party knows it: the task, and the use of each row.

    All other facts are computed from these attributes when they are first needed, so an error about the labels appears
    in the step that needs them.

    Attributes:
        roster: the parties in their fixed order, and which of them is active.
        table: the active party's table.
        position: [N], the index of each aligned row in the active party's table; -1 if the table lacks the row.
        observed: [N, K], True if party k holds row n.
        plan: the settings of the split, of the task and of the training rows.
        seeds: the random streams, which depend on the seed and, at a site, on the active party's secret.
        without_labels: True if the method is useful without any label. The task then may have no outputs.
        key: [N], a number that identifies each row; only training needs it.
    """

    roster: Roster
    table: Table
    position: NDArray[np.int64] = field(repr=False)
    observed: NDArray[np.bool_] = field(repr=False)
    plan: ProblemPlan
    seeds: Seeds
    without_labels: bool = False
    key: Tensor | None = field(default=None, repr=False)

    @cached_property
    def labeled(self) -> NDArray[np.bool_]:
        """The mask [N] of aligned rows that have a label in the active party's table."""
        known = label_of(self.table).is_not_null().to_numpy()
        return np.where(self.position >= 0, known[self.position], False)

    @cached_property
    def teaching(self) -> Table:
        """The active party's table, without the labels of rows whose cells are empty at all parties."""
        return teaching(self.table, self.position, self.observed)

    @cached_property
    def drawn(self) -> Part:
        """The part [N] that the split draws for each row; preprocessing is fitted on the rows for training.

        Raises:
            TableError: a class has too few rows for training, validation and test, or the column that splits the rows
                cannot be used.
        """
        return assign(self.table, self.position, self.observed, self.plan, self.seeds)

    @cached_property
    def joined(self) -> NDArray[np.bool_]:
        """The mask [N] of the rows that the setting ``train.rows`` selects for training."""
        return rows_of(self.plan.rows, self.observed, self.position >= 0)

    @cached_property
    def use(self) -> Part:
        """The use [N] of each row: the drawn part; training rows that ``train.rows`` does not select have none."""
        return np.where((self.drawn == TRAIN) & ~self.joined, np.int8(UNUSED), self.drawn)

    @cached_property
    def task(self) -> Task:
        """The task that the labels of training rows define, with class weights if ``train.balance`` asks for them.

        Raises:
            TableError: there are no labels, all labels have the same class, or ``train.rows`` leaves no row of a class.
            ConfigError: ``train.balance`` is set, and the labels are numbers.
        """
        task = self.task_for(self.drawn, without=self.without_labels)
        if self.plan.balance and task.kind == "regression":
            raise ConfigError("train.balance = true weighs classes, and numbers are predicted here: leave it out")
        own = self.position[(self.position >= 0) & (self.use == TRAIN)]
        if self.plan.rows != "any":
            check_training_labels(self.teaching, own, task, self.plan.rows)
        return replace(task, weights=balanced(self.teaching, own, task)) if self.plan.balance else task

    def task_for(self, use: Part | None = None, *, without: bool = False) -> Task:
        """Infer the task from the labels of the rows for training, according to their ``use`` [N].

        If ``use`` is ``None``, the labels of all rows of the table count. If ``without`` is true, a table without
        labels is accepted. The task then has no outputs.

        Raises:
            TableError: there are no labels, or all have the same class.
        """
        label, plan, own = label_of(self.teaching), self.plan, np.arange(len(self.table))
        trained = np.ones(len(own), dtype=np.bool_)
        if use is not None:
            own, trained = self.position[self.position >= 0], use[self.position >= 0] == TRAIN
        try:
            return infer_task(label, party=self.table.party, kind=plan.task, train_rows=own[trained], without=without,
                              positive=plan.positive)  # fmt: skip
        except TableError as error:
            hints = _held_out(label, own[trained], own[~trained])
            remarks = [f" (by the way, {note})" for note in self.table.notes]
            raise TableError("; ".join([str(error), *hints]) + "".join(remarks)) from None

    def describe(self) -> str:
        """Describe in one line the task that all labels define: the classes, or the range of numbers.

        Raises:
            TableError: the labels cannot be used, for example because all have the same class.
        """
        return described(self.task_for(without=True), label_of(self.teaching), self.plan.task)


def label_of(table: Table) -> pl.Series:
    """Return the label column of a party that holds labels."""
    assert table.label is not None
    return table.label


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


def _held_out(label: pl.Series, trained: NDArray[np.int64], others: NDArray[np.int64]) -> Iterator[str]:
    """Yield a hint if the training rows lack classes that occur in the rows for validation and test."""
    there, elsewhere = (names_of(label[rows]).drop_nulls() for rows in (trained, others))
    lacking = elsewhere.filter(~elsewhere.is_in(there.unique().implode()))
    if there.n_unique() < 2 and len(lacking):
        yield (
            f"the others, such as {lacking[0]!r}, are all among the rows for validation and test: give another "
            f"train.seed, a smaller train.validation and train.test, or more such rows"
        )


def check_training_labels(table: Table, own: NDArray[np.int64], task: Task, rows: str) -> None:
    """Check that the training rows that ``train.rows`` selects have labels of every class.

    Args:
        table: the active party's table.
        own: the indices of the selected training rows in the table.
        task: the task.
        rows: the value of the setting ``train.rows``, for the error message.

    Raises:
        TableError: no training row has a label, or no training row has a given class.
    """
    label = label_of(table)
    labels = label[own].drop_nulls()
    held = set(names_of(labels)) if task.classes else set()
    lacking = [name for name in task.classes if name not in held]
    if lacking or (task.outputs and not len(labels)):
        of = f"of class {some(lacking)}" if len(labels) else "with a label"
        raise TableError(f"party {table.party!r}, label column {label.name!r}: train.rows = {rows!r} leaves no "
                         f"row {of} for training; write train.rows = 'any', or label more such rows")  # fmt: skip


def balanced(table: Table, own: NDArray[np.int64], task: Task) -> tuple[float, ...]:
    """Return class weights that give all classes the same total weight: n / (C n_c).

    n is the number of labelled training rows, n_c the number of these rows with class c, and C the number of classes
    with n_c > 0. The mean weight of these rows is 1. ``own`` has the indices of the training rows in the table.
    """
    y, labeled = encode(label_of(table), task, table.party)
    counts = y[own][labeled[own]].bincount(minlength=task.outputs)
    return tuple((counts.sum() / ((counts > 0).sum() * counts.clamp(min=1))).tolist())
