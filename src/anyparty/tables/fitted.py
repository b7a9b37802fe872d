"""What scikit-learn's objects learnt from training rows, as numbers and names that JSON can hold exactly.

The objects that transform are built from these in the same way after fitting and after loading, and only those named
here are ever built: a saved preparation names no class.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from anyparty.errors import TableError

Rows: TypeAlias = NDArray[np.integer[Any]]
Impute: TypeAlias = Literal["mean", "median"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MANY_LEVELS = 4096  # outputs that one categorical column may become
CHUNK = 2**21  # cells in double precision at a time: 16 MiB

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class Numeric(BaseModel):
    """Numeric columns: missing cells take ``fill``, then (x - mean) / scale, or x where these are ``None``.

    Mean and scale are those of the cells that are known: a column with many gaps is measured by what it has.
    A column that is ``constant`` among training rows is 0 in all rows once it is scaled: training has learnt nothing
    of another value, and has nothing to measure it by.
    """

    model_config = STRICT

    columns: tuple[str, ...]
    fill: tuple[Finite, ...]
    mean: tuple[Finite, ...] | None
    scale: tuple[Positive, ...] | None
    constant: tuple[str, ...] = ()

    @classmethod
    def fit(cls, columns: pl.DataFrame, rows: Rows, *, scale: bool, impute: Impute) -> Numeric:
        """Fit on a few columns at a time, so that no second table is held in double precision."""
        fill, mean, deviation, alike = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)], list[str]()
        step = max(1, CHUNK // len(rows))
        for start in range(0, columns.width, step):
            numbers = columns[:, start : start + step].cast(pl.Float64)[rows].to_numpy(writable=True)
            low = np.nanmin(numbers, axis=0)
            constant = low == np.nanmax(numbers, axis=0)  # the mean of equal numbers is not always that number
            imputer = SimpleImputer(strategy=impute, copy=False).fit(numbers)
            imputer.statistics_ = np.where(constant, low, imputer.statistics_)
            means, deviations = _spread(numbers, low, constant)
            fill.append(imputer.statistics_)
            mean.append(np.where(constant, low, means))
            deviation.append(deviations)
            alike += [columns.columns[start + int(k)] for k in np.flatnonzero(constant)]
        fills, centres, scales = (tuple(np.concatenate(parts).tolist()) for parts in (fill, mean, deviation))
        names = tuple(columns.columns)
        if not scale:
            return cls(columns=names, fill=fills, mean=None, scale=None)
        return cls(columns=names, fill=fills, mean=centres, scale=scales, constant=tuple(alike))

    @model_validator(mode="after")
    def _one_each(self) -> Numeric:
        given = [self.fill, *(values for values in (self.mean, self.scale) if values is not None)]
        if (self.mean is None) != (self.scale is None) or any(len(each) != len(self.columns) for each in given):
            raise ValueError("fill, mean and scale must have one value for each numeric column")
        if not set(self.constant) <= set(self.columns):
            raise ValueError("constant must name numeric columns")
        return self

    def transform(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the numbers [b, d] imputed and scaled, in place."""
        filled: NDArray[np.float64] = self._imputer.transform(numbers)
        if self._scaler is None:
            return filled
        scaled: NDArray[np.float64] = self._scaler.transform(filled)
        scaled[:, self._constant] = 0.0
        return scaled

    @cached_property
    def _constant(self) -> NDArray[np.int64]:
        at = {name: k for k, name in enumerate(self.columns)}
        return np.array([at[name] for name in self.constant], dtype=np.int64)

    @cached_property
    def _imputer(self) -> SimpleImputer:
        """The mean of one row of fills is that row."""
        return SimpleImputer(strategy="mean", copy=False).fit(np.array([self.fill]))

    @cached_property
    def _scaler(self) -> StandardScaler | None:
        if self.mean is None or self.scale is None:
            return None
        scaler = StandardScaler(copy=False).fit(np.zeros((1, len(self.columns))))
        scaler.mean_, scaler.scale_ = np.array(self.mean), np.array(self.scale)
        scaler.var_ = scaler.scale_**2
        return scaler


def _spread(
    numbers: NDArray[np.float64], low: NDArray[np.float64], constant: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and standard deviations [d] of the known numbers among [n, d], of which ``low`` is the least.

    scikit-learn takes a column for constant that varies little beside its size, as moments in microseconds do: such a
    column is measured from its least number on.
    """
    scaler = StandardScaler(copy=False).fit(numbers)
    means, deviations = scaler.mean_, scaler.scale_
    close = np.flatnonzero(~constant & (deviations == 1) & (scaler.var_ != 1))
    if len(close):
        near = StandardScaler().fit(numbers[:, close] - low[close])
        means[close], deviations[close] = low[close] + near.mean_, near.scale_
    return means, deviations


class Categorical(BaseModel):
    """Categorical columns: one output for each level, where ``None`` is the level of missing cells."""

    model_config = STRICT

    columns: tuple[str, ...]
    levels: tuple[Annotated[tuple[str | None, ...], Field(min_length=1)], ...]

    @classmethod
    def fit(cls, columns: pl.DataFrame, rows: Rows, where: str) -> Categorical:
        """Learn the levels that training rows have, in the encoder's order: sorted, missing last.

        Raises:
            TableError: a column has more than :data:`MANY_LEVELS`.
        """
        levels = []
        for column in columns.iter_columns():
            objects = column[rows].to_numpy().astype(object)
            found = OneHotEncoder().fit(objects[:, None]).categories_[0]
            if len(found) > MANY_LEVELS:
                raise TableError(
                    f"{where}: categorical column {column.name!r} has {len(found)} different values in the training "
                    f"rows, and at most {MANY_LEVELS} can be encoded; group its values, or leave it out with drop"
                )
            levels.append(tuple(found.tolist()))
        return cls(columns=tuple(columns.columns), levels=tuple(levels))

    @model_validator(mode="after")
    def _one_each(self) -> Categorical:
        if len(self.levels) != len(self.columns) or any(len(set(each)) != len(each) for each in self.levels):
            raise ValueError("levels must be different, in one list for each categorical column")
        return self

    def transform(self, objects: NDArray[np.object_]) -> NDArray[np.float32]:
        """Return one column for each level [b, L]: all zeros for a value that training never saw."""
        return self._encoder.transform(objects)  # type: ignore[no-any-return]

    @cached_property
    def _encoder(self) -> OneHotEncoder:
        levels = [np.array(each, dtype=object) for each in self.levels]
        encoder = OneHotEncoder(categories=levels, handle_unknown="ignore", sparse_output=False, dtype=np.float32)
        return encoder.fit(np.array([[each[0] for each in levels]], dtype=object))
