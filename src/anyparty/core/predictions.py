"""Predictions: the scores of rows, with the parties that took part in each prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from anyparty.core.display import named_ids, take_rows, write_frame
from anyparty.core.types import LabelType, Task
from anyparty.errors import PredictionError

NO_NUMBER = "the networks gave no number for this row"
NO_ANSWER = "the method has no answer for this row, and gave no reason"
DTYPES: dict[LabelType, tuple[type[pl.DataType], type[Any]]] = {
    "text": (pl.String, np.str_),
    "integer": (pl.Int64, np.int64),
    "number": (pl.Float64, np.float64),
    "boolean": (pl.Boolean, np.bool_),
}


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions for n rows, with the parties that took part in each of them.

    Attributes:
        task: the task.
        blocks: the K parties that hold columns, in the roster's order.
        scores: [n, C]: class probabilities, float32, or the predicted number in the label's own unit, float64; NaN for
            a row without an answer.
        by_party: [n, K, C]: the answer of each party's own predictor (LASER-VFL, Algorithm 2), in the form of
            ``scores``; NaN if party k has no answer. ``None`` if the method has one answer for all parties.
        took_part: [n, K] bool, True if the answer used party k's block.
        asked: [K] bool, True if party k was asked to take part.
        silent: parties that were asked to take part and did not answer.
        predictor: a description of the predictor.
        reasons: for each row without an answer, by its index, the reason why the answer is missing.
        id_columns: [n, m] the m id columns of these rows; ``None`` if this party does not know their ids.
        unseen: the number of classes that training did not see, and that ``over`` has appended to the classes of
            ``task``.
    """

    task: Task
    blocks: tuple[str, ...]
    scores: Tensor
    took_part: Tensor
    asked: Tensor
    by_party: Tensor | None = None
    silent: tuple[str, ...] = ()
    predictor: str = ""
    reasons: dict[int, str] = field(default_factory=dict)
    id_columns: pl.DataFrame | None = None
    unseen: int = 0

    def __post_init__(self) -> None:
        n, K, C = len(self.scores), len(self.blocks), self.task.outputs
        assert self.scores.shape == (n, C), f"scores are {tuple(self.scores.shape)}, not {(n, C)}"
        assert self.took_part.shape == (n, K), f"took_part is {tuple(self.took_part.shape)}, not {(n, K)}"
        assert self.asked.shape == (K,), f"asked is {tuple(self.asked.shape)}, not {(K,)}"
        assert self.by_party is None or self.by_party.shape == (n, K, C)
        assert self.id_columns is None or len(self.id_columns) == n

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        """Describe the predictions by the number of rows and the parties, without answers, ids or labels."""
        asked = ", ".join(members(self.asked, self.blocks))
        by = f" by {self.predictor}" if self.predictor else ""
        return f"<Predictions of {len(self):,} rows{by}: {int(self.answered.sum()):,} answered; asked: {asked}>"

    @cached_property
    def ids(self) -> tuple[Any, ...] | None:
        """The rows' ids [n], with the types of the table; with several id columns, each id is a tuple.

        ``None`` if the ids are not known.
        """
        return None if self.id_columns is None else id_values(self.id_columns)

    @property
    def answered(self) -> Tensor:
        """A mask [n] bool, True for a row with an answer."""
        return ~torch.isnan(self.scores).any(dim=1)

    def calibrated(self) -> Predictions:
        """Divide the logits by the temperature of the task, and return the changed predictions.

        Class weights, if any, must still be part of the probabilities.
        """
        if self.task.temperature == 1:
            return self
        by_party = None if self.by_party is None else tempered(self.by_party, self.task.temperature)
        return replace(self, scores=tempered(self.scores, self.task.temperature), by_party=by_party)

    def unweighted(self) -> Predictions:
        """Remove the class weights from the class probabilities, and return the changed predictions.

        The networks of a model with class weights multiply the odds of a class by the weight of the class.  Each
        probability is therefore divided by the weight of its class, and each row is normalised.  The order of rows and
        the predicted classes do not change.
        """
        if not self.task.weights:
            return self
        by_party = None if self.by_party is None else _reweighted(self.by_party, self.task, -1)
        return replace(self, scores=_reweighted(self.scores, self.task, -1), by_party=by_party)

    def over(self, more: Sequence[str]) -> Predictions:
        """Add classes that the model does not know; each of them gets the probability 0."""
        if not more:
            return self
        weights = (*self.task.weights, *(1.0 for _ in more)) if self.task.weights else ()
        task = replace(self.task, classes=(*self.task.classes, *more), weights=weights)
        scores, *by_party = (
            functional.pad(each, (0, len(more))) for each in (self.scores, self.by_party) if each is not None
        )
        return replace(self, task=task, scores=scores, by_party=by_party[0] if by_party else None, unseen=len(more))

    def take(self, places: Sequence[int]) -> Predictions:
        """Return the predictions for the rows at ``places``, in this order."""
        at = torch.as_tensor(places, dtype=torch.int64)
        return replace(
            self, scores=self.scores[at], took_part=self.took_part[at],
            by_party=None if self.by_party is None else self.by_party[at],
            reasons={new: self.reasons[old] for new, old in enumerate(at.tolist()) if old in self.reasons},
            id_columns=None if self.id_columns is None else take_rows(self.id_columns, at.numpy()),
        )  # fmt: skip

    def labels(self) -> list[str | float | None]:
        """Return the predicted class or number of each row; ``None`` for a row without an answer.

        The function ``predicted_class`` chooses the class. Classes have the type that they have in the active party's
        table: text, int, float or bool.
        """
        if self.task.kind == "regression":
            answered = self.answered.tolist()
            return [value if ok else None for value, ok in zip(self.scores[:, 0].tolist(), answered, strict=True)]
        best = predicted_class(self.task, self.scores).tolist()
        label_of: dict[int, str | float | None] = {c: self.task.label(c) for c in set(best) - {-1}} | {-1: None}
        return [label_of[c] for c in best]

    def to_numpy(self) -> NDArray[Any]:
        """Return the predicted class or number of each row as an array [n], in the order of ``ids``.

        The array has the type of the labels. If some rows have no answer, the missing answers are NaN among numbers,
        which are then floats. Among texts or booleans, the missing answers are ``None``, and the array has the type
        object.
        """
        labels, (_, dtype) = self.labels(), self._dtypes
        if None not in labels:
            return np.array(labels, dtype=dtype)
        if np.issubdtype(dtype, np.number):
            return np.array([math.nan if label is None else label for label in labels], dtype=np.float64)
        return np.array(labels, dtype=object)

    @property
    def _dtypes(self) -> tuple[type[pl.DataType], type[Any]]:
        return DTYPES["number" if self.task.kind == "regression" else self.task.label_type]

    def frame(self) -> pl.DataFrame:
        """Return a frame with one row per id: answer, probability of each class, parties that took part, and reason.

        The reason explains why an answer is missing. It is null if there is an answer.
        """
        columns: dict[str, pl.Series] = {} if self.id_columns is None else named_ids(self.id_columns)
        columns["prediction"] = pl.Series(self.labels(), dtype=self._dtypes[0])
        columns |= self._probabilities()
        distinct, which = patterns(self.took_part)
        names = [" ".join(members(row, self.blocks)) for row in distinct]
        columns["parties"] = pl.Series([names[p] for p in which.tolist()], dtype=pl.String)
        columns["reason"] = pl.Series([self.reasons.get(i) for i in range(len(self))], dtype=pl.String)
        return pl.DataFrame(columns)

    def probabilities(self) -> pl.DataFrame:
        """Return a frame with one row per id: the id, and the probability of each class c in the column ``p(c)``.

        The probabilities of a row without an answer are null.

        Raises:
            PredictionError: the task is a regression, which has no probabilities.
        """
        if self.task.kind == "regression":
            raise PredictionError("probabilities: the model predicts numbers, which have no probabilities; use frame()")
        columns: dict[str, pl.Series] = {} if self.id_columns is None else named_ids(self.id_columns)
        return pl.DataFrame(columns | self._probabilities())

    def _probabilities(self) -> dict[str, pl.Series]:
        """Return a column of probabilities for each class; in a regression, return no columns."""
        if self.task.kind == "regression":
            return {}
        scores = np.where(self.answered.numpy()[:, None], self.scores.numpy(), np.nan)
        return {f"p({name})": pl.Series(scores[:, c]).fill_nan(None) for c, name in enumerate(self.task.classes)}

    def write(self, path: Path | str, *, raw_csv: bool = False) -> None:
        """Write ``frame()`` to a .csv or .parquet file; in a CSV, text that begins like a formula is escaped.

        If ``raw_csv`` is true, no text is escaped.

        Raises:
            ConfigError: the suffix is neither .csv nor .parquet.
            StorageError: the disk is full, or the folder is not writable.
        """
        write_frame(self.frame(), path, raw_csv=raw_csv)


def id_values(id_columns: pl.DataFrame) -> tuple[Any, ...]:
    """Return the id of each row; if there are several id columns, each id is a tuple."""
    rows = id_columns.rows()
    return tuple(row[0] for row in rows) if id_columns.width == 1 else tuple(rows)


def refuse_without_labels(task: Task) -> None:
    """Raise an error if training had no labels, so that the model predicts no labels.

    Raises:
        PredictionError: the task has no outputs.
    """
    if not task.outputs:
        raise PredictionError(
            "no row had a label in training, so the model cannot predict labels: label some rows and train again; "
            "anyparty.impute and anyparty.log_likelihood work without labels"
        )


def predicted_class(task: Task, scores: Tensor) -> Tensor:
    """Return the index of the predicted class from class probabilities: [..., C] -> [...] int64.

    Without class weights, the predicted class is the most probable one.  With class weights, it is the class with the
    greatest product of weight and probability, so that rare classes count as much as frequent ones. If several classes
    have the greatest product, the first of them is predicted. The result is -1 if one of the C probabilities is NaN.

    >>> predicted_class(Task(kind="classification", classes=("a", "b"), weights=(0.5, 5.0)), torch.tensor([[0.8, 0.2]]))
    tensor([1])
    """
    if task.weights:
        scores = _reweighted(scores, task, 1)
    return torch.where(torch.isnan(scores).any(dim=-1), -1, scores.argmax(dim=-1))


def weighted(task: Task, scores: Tensor) -> Tensor:
    """Multiply class probabilities [..., C] by the class weights and normalise them."""
    return _reweighted(scores, task, 1) if task.weights else scores


def tempered(scores: Tensor, temperature: float) -> Tensor:
    """Divide the logits of class probabilities [..., C] by a temperature: p^(1/T), normalised.

    >>> tempered(torch.tensor([0.9, 0.1]), 2.0)
    tensor([0.7500, 0.2500])
    """
    powers = (scores / scores.amax(dim=-1, keepdim=True)) ** (1 / temperature)
    return powers / powers.sum(dim=-1, keepdim=True)


def _reweighted(scores: Tensor, task: Task, power: int) -> Tensor:
    products = scores * scores.new_tensor(task.weights) ** power
    return products / products.sum(dim=-1, keepdim=True)


def patterns(present: Tensor) -> tuple[Tensor, Tensor]:
    """Find the P distinct rows (patterns) of ``present`` [n, K] bool, in lexicographic order.

    Returns:
        The patterns [P, K] bool, and for each row the index of its pattern, [n] int64.
    """
    n, K = present.shape
    code = torch.zeros(n, dtype=torch.int64)
    for k in range(K):
        code = code * 2 + present[:, k]
        if k % 30 == 29:  # replace codes by smaller numbers, so that 30 more bits fit into 64
            code = torch.unique(code, return_inverse=True)[1]
    numbers, which = torch.unique(code, return_inverse=True)
    row_of = torch.empty(len(numbers), dtype=torch.int64)
    row_of[which] = torch.arange(n)  # the index of one row of each pattern
    return present[row_of], which


def members(present: Tensor, blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the parties for which ``present`` [K] bool is True."""
    return tuple(name for name, here in zip(blocks, present.tolist(), strict=True) if here)
