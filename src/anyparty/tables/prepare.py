"""Prepare: one party's columns as numbers, fitted on its own training rows and applied again to any of its rows.

scikit-learn does the work both times: ``SimpleImputer`` and ``StandardScaler`` for numeric columns, ``OneHotEncoder``
for categorical ones (a missing cell is a level of its own, a value that training never saw is all zeros).  A saved
``Prepare`` gives the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from anyparty.errors import ModelError, TableError, nearest, remark, some
from anyparty.tables import cells, unlike
from anyparty.tables.fitted import CHUNK, STRICT, Categorical, Impute, Numeric, Rows
from anyparty.tables.kinds import Kind
from anyparty.tables.notes import EMPTY
from anyparty.tables.table import Table


@dataclass(frozen=True)
class Features:
    """A table's rows as numbers.

    Attributes:
        x: [n, width] float32.
        gaps: [n, width] bool, numbers that stand for an empty cell; ``None`` where none does.
    """

    x: NDArray[np.float32]
    gaps: NDArray[np.bool_] | None = None

    @classmethod
    def none(cls, n: int) -> Features:
        """Return those of a party without columns."""
        return cls(np.empty((n, 0), dtype=np.float32))


class Prepare(BaseModel):
    """What one party's training rows taught about its columns."""

    model_config = STRICT

    format: Literal["anyparty.prepare.1"] = "anyparty.prepare.1"
    party: str
    numeric: Numeric
    categorical: Categorical

    @classmethod
    def fit(cls, table: Table, rows: Rows, *, scale: bool = True, impute: Impute = "mean") -> Prepare:
        """Fit on the party's own training rows; a column that is empty in all of them is left out, with a warning.

        Args:
            table: the party's table, n rows.
            rows: [m] which of its rows are for training.
            scale: standardise numeric columns; one that is constant among these rows is zeros in all, now and later.
            impute: what a missing number becomes.

        Raises:
            TableError: no training rows; columns that are all empty in them, or one that has too many levels.
        """
        if table.blank.all() and table.columns.width:
            raise TableError(f"{_where(table)}: all {len(table)} rows {EMPTY}: leave the party out")
        if len(rows) == 0:
            raise TableError(f"{_where(table)}: none of its rows is for training; at least one was expected: leave the "
                             f"party out, hold out fewer rows (train.test), or draw others (train.seed)")  # fmt: skip
        empty = [column.name for column in table.columns.iter_columns() if column[rows].null_count() == len(rows)]
        if empty:
            said = f"{_where(table)}: {some(empty)} is empty in all {len(rows)} training rows"
            if len(empty) == table.columns.width:
                raise TableError(f"{said}, and there is no other column: leave the party out")
            remark(f"{said}, and is left out")
        numeric, categorical = (
            cells.pick(table.columns, (name for name, of in table.kinds.items() if of == kind and name not in empty))
            for kind in ("numeric", "categorical")
        )
        return cls(
            party=table.party,
            numeric=Numeric.fit(numeric, rows, scale=scale, impute=impute),
            categorical=Categorical.fit(categorical, rows, _where(table)),
        )

    @property
    def kinds(self) -> dict[str, Kind]:
        """The columns it needs, numeric ones first, and their kinds: what ``read_table(..., expect=)`` takes."""
        numeric: dict[str, Kind] = dict.fromkeys(self.numeric.columns, "numeric")
        return numeric | dict.fromkeys(self.categorical.columns, "categorical")

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs' names: numeric columns first, then ``column=level``."""
        pairs = zip(self.categorical.columns, self.categorical.levels, strict=True)
        hot = (f"{c}={'(missing)' if level is None else level}" for c, levels in pairs for level in levels)
        return (*self.numeric.columns, *hot)

    @property
    def width(self) -> int:
        """How many outputs a row has."""
        return len(self.numeric.columns) + sum(map(len, self.categorical.levels))

    def apply(self, table: Table, *, new: bool = True) -> NDArray[np.float32]:
        """Return the table's rows as numbers [n, width].

        Columns are matched by name: their order does not matter, and those that training did not have are ignored.
        What training knows nothing of is warned of; of a table that is not ``new``, but the one that training had, only
        where most of a column is such: its held-out rows are as they are.

        Raises:
            TableError: a column is missing, or holds text where numbers were.
        """
        frame = self.matched(table)
        out = np.empty((len(table), self.width), dtype=np.float32)
        step = max(1, CHUNK // max(1, self.width))
        for start in range(0, len(table), step):
            self._fill(out[start : start + step], frame[start : start + step], table)
        unlike.warn(self.numeric, self.categorical, frame, _where(table), few=new)
        return out

    def features(self, table: Table, *, new: bool = True) -> Features:
        """Return the table's rows as ``apply`` does, and which numbers were filled in.

        A category's missing cells are a level of their own, and no gaps.
        """
        x = self.apply(table, new=new)
        numbers = cells.pick(table.columns, self.numeric.columns)
        if not sum(numbers.null_count().row(0)):
            return Features(x)
        gaps = np.zeros(x.shape, dtype=np.bool_)
        gaps[:, : numbers.width] = numbers.select(pl.all().is_null()).to_numpy()
        return Features(x, gaps)

    def units(self, prepared: NDArray[np.float32]) -> NDArray[np.float64]:
        """Undo the scaling of numeric columns in outputs [..., width]; in double precision: a large mean needs it."""
        out = prepared.astype(np.float64)
        mean, scale = self.numeric.mean, self.numeric.scale
        if mean is not None and scale is not None:
            out[..., : len(mean)] = out[..., : len(mean)] * np.array(scale) + np.array(mean)
        return out

    def table(self, values: NDArray[np.float64]) -> pl.DataFrame:
        """Return outputs in their own units [n, width] as columns of the party's table: of a category the level that
        has most.

        NaN becomes an empty cell, and so does a category whose level of missing cells has most.
        """
        start = len(self.numeric.columns)
        columns = [pl.Series(name, values[:, k]).fill_nan(None) for k, name in enumerate(self.numeric.columns)]
        for name, levels in zip(self.categorical.columns, self.categorical.levels, strict=True):
            part, start = values[:, start : start + len(levels)], start + len(levels)
            most = np.where(np.isnan(part).any(axis=1), len(levels), np.nan_to_num(part).argmax(axis=1))
            columns.append(pl.Series(name, [*levels, None], dtype=pl.String).gather(most))
        return pl.DataFrame(columns)

    def with_levels(
        self, values: NDArray[np.float64], centers: NDArray[np.float64], truths: Collection[str],
        random: np.random.Generator,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Return outputs in their own units [..., width] with a level of each category drawn: it is 1, the others 0.

        How likely levels are say their ``centers`` [..., width], as far as they are above 0; where none is, it is the
        greatest.  Columns of numbers ``truths`` are 1 as likely as their center says, else 0.
        """
        out, cells = values.copy(), values.shape[:-1]
        for k, name in enumerate(self.numeric.columns):
            if name in truths:
                drawn = random.random(cells) < centers[..., k]  # a seeded sample of numpy's  # nosec B311
                out[..., k] = np.where(np.isnan(values[..., k]), np.nan, drawn)
        start = len(self.numeric.columns)
        for levels in self.categorical.levels:
            at = slice(start, start := start + len(levels))
            weight = centers[..., at].clip(min=0)
            edge = weight.cumsum(axis=-1)
            drawn = (random.random((*cells, 1)) * edge[..., -1:] >= edge).sum(axis=-1)  # numpy's  # nosec B311
            level = np.where(edge[..., -1] > 0, drawn, np.nan_to_num(centers[..., at]).argmax(axis=-1))
            out[..., at] = np.where(np.isnan(values[..., at]), np.nan, np.eye(len(levels))[level])
        return out

    def to_json(self) -> dict[str, Any]:
        """Return what was fitted as values that JSON can hold, exactly."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Prepare:
        """Return the ``Prepare`` that :meth:`to_json` described.

        Raises:
            ModelError: it is not what was expected.
        """
        try:
            return cls.model_validate_json(json.dumps(saved))
        except (TypeError, ValueError) as error:
            raise ModelError(f"the saved preparation of a table is not what was expected: {_reason(error)}") from error

    def matched(self, table: Table) -> pl.DataFrame:
        """Return the needed columns: Float64 for numeric ones, String for categorical ones.

        Raises:
            TableError: as ``apply``.
        """
        there = table.columns.columns
        missing = [name for name in self.kinds if name not in there]
        if missing:
            raise TableError(
                f"{_where(table)}: the model was trained on {some(missing)}, which the table does not have"
                f"{nearest(missing[0], there)}; add the column, empty where it is not known"
            )
        return pl.DataFrame([_as_kind(table, name, kind) for name, kind in self.kinds.items()])

    def _fill(self, out: NDArray[np.float32], frame: pl.DataFrame, table: Table) -> None:
        """Write the outputs of some rows [b, width]."""
        split = len(self.numeric.columns)
        if split:
            with np.errstate(over="ignore"):
                out[:, :split] = self.numeric.transform(frame[:, :split].to_numpy(writable=True))
            finite = np.isfinite(out[:, :split]).all(axis=0)
            if not finite.all():
                far = self.numeric.columns[int(finite.argmin())]
                raise TableError(
                    f"{_where(table)}: column {far!r} has a number too far from those of training; mend it"
                )
        if split < frame.width:
            out[:, split:] = self.categorical.transform(frame[:, split:].to_numpy())


def _where(table: Table) -> str:
    return f"party {table.party!r}, {table.source}"


def _as_kind(table: Table, name: str, kind: Kind) -> pl.Series:
    column = table.columns[name]
    if kind == "categorical":
        return cells.as_level(column)
    if column.dtype == pl.String:
        raise TableError(
            f"{_where(table)}: column {name!r} holds text, such as {some(column.drop_nulls().head(2))}, "
            f"where numbers were in training; mend it"
        )
    return column.cast(pl.Float64)


def _reason(error: Exception) -> str:
    """Return the first thing that is wrong, and where."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
