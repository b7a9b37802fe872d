"""Preprocess one party's columns: fit on its training rows, then apply to any of its rows.

scikit-learn fits numeric columns (``SimpleImputer``, ``StandardScaler``), and encodes categories (``OneHotEncoder``)
and free text (``HashingVectorizer``). scikit-learn is imported only in functions, because its import takes about a
second. In a categorical column, missing cells are a level of their own. A category that did not occur in training
becomes zeros. A date becomes several numbers, such as its year, which are then treated as numeric columns.

Fitted values are saved in JSON as numbers and names, and are restored bit for bit. The file does not contain names
of Python classes. Loading the file therefore creates only objects of the classes below.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import by_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anyparty.errors import ModelError, TableError, remark, some
from anyparty.tables import cells, checks
from anyparty.tables.cells import RowNumbers, key, party_in
from anyparty.tables.column_types import KINDS, Kind
from anyparty.tables.date_formats import DateColumn
from anyparty.tables.table import Table, lacking

if TYPE_CHECKING:
    from sklearn.preprocessing import OneHotEncoder

Impute: TypeAlias = Literal["mean", "median"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MANY_LEVELS = 256  # the largest number of levels of a categorical column; the rarest levels are merged
HASHES = 256  # the number of numeric columns for a column of free text
RARE = "(rare)"  # the name of the level that merges rare levels
CHUNK = 2**21  # the number of cells that are converted at a time, 16 MiB in double precision

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class Numeric(BaseModel):
    """The fitted imputation and scaling of the numeric columns.

    A missing cell becomes ``fill``. Then every number x becomes (x - mean) / scale.

    Attributes:
        columns: the names of the columns.
        fill: the value of a missing cell, by column.
        mean: the mean of the known cells, by column; ``None`` without scaling.
        scale: the standard deviation of the known cells, by column; ``None`` without scaling.
        constant: columns with a single value in training. Scaling sets them to 0 in all rows, because the model has
            learnt nothing about any other value.
        low, high: the smallest and the largest known cell, by column; empty in models of earlier versions.
        whole: columns whose known cells are whole numbers.
    """

    model_config = STRICT

    columns: tuple[str, ...]
    fill: tuple[Finite, ...]
    mean: tuple[Finite, ...] | None
    scale: tuple[Positive, ...] | None
    constant: tuple[str, ...] = ()
    low: tuple[Finite, ...] = ()
    high: tuple[Finite, ...] = ()
    whole: tuple[str, ...] = ()

    @classmethod
    def fit(cls, columns: pl.DataFrame, rows: RowNumbers, *, scale: bool, impute: Impute) -> Numeric:
        """Fit to the training rows, a few columns at a time to save memory."""
        from sklearn.impute import SimpleImputer  # noqa: PLC0415

        fill, mean, deviation, lows, highs = ([np.zeros(0)] for _ in range(5))
        constants, whole = list[str](), list[str]()
        step = max(1, CHUNK // len(rows))
        for start in range(0, columns.width, step):
            numbers = columns[:, start : start + step].cast(pl.Float64)[rows].to_numpy(writable=True)
            low, high = np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0)
            constant = low == high  # a mean would have rounding errors
            fractions = np.nan_to_num(numbers) % 1 != 0
            whole += [columns.columns[start + int(k)] for k in np.flatnonzero(~fractions.any(axis=0))]
            lows.append(low)
            highs.append(high)
            imputer = SimpleImputer(strategy=impute, copy=False).fit(numbers)
            imputer.statistics_ = np.where(constant, low, imputer.statistics_)
            means, deviations = _spread(numbers, low, constant)
            fill.append(imputer.statistics_)
            mean.append(np.where(constant, low, means))
            deviation.append(deviations)
            constants += [columns.columns[start + int(k)] for k in np.flatnonzero(constant)]
        fills, centres, scales, smallest, largest = (
            tuple(np.concatenate(parts).tolist()) for parts in (fill, mean, deviation, lows, highs)
        )
        fitted = cls(columns=tuple(columns.columns), fill=fills, mean=None, scale=None, low=smallest, high=largest,
                     whole=tuple(whole))  # fmt: skip
        if not scale:
            return fitted
        return fitted.model_copy(update={"mean": centres, "scale": scales, "constant": tuple(constants)})

    @model_validator(mode="after")
    def _check_lengths(self) -> Numeric:
        fitted = [self.fill, *(values for values in (self.mean, self.scale) if values is not None)]
        if (self.mean is None) != (self.scale is None) or any(len(each) != len(self.columns) for each in fitted):
            raise ValueError("fill, mean and scale must have one value for each numeric column")
        if not {len(self.low), len(self.high)} <= {0, len(self.columns)}:
            raise ValueError("low and high must have one value for each numeric column")
        if not {*self.constant, *self.whole} <= set(self.columns):
            raise ValueError("constant and whole must name numeric columns")
        return self

    def transform(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Impute and scale the numbers [b, d] in place."""
        np.copyto(numbers, np.array(self.fill), where=np.isnan(numbers))
        if self.mean is not None and self.scale is not None:
            numbers -= np.array(self.mean)
            numbers /= np.array(self.scale)
            numbers[:, self.constant_at] = 0.0
        return numbers

    def as_in_training(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move numbers [..., d] into the range of the training cells, and round those of columns of whole numbers.

        NaN stays NaN.
        """
        if not self.low:
            return numbers
        rounded = np.where(np.isin(self.columns, self.whole), np.rint(numbers), numbers)
        return np.clip(rounded, self.low, self.high)

    @cached_property
    def constant_at(self) -> list[int]:
        """The indices of the columns that were constant in training."""
        return [k for k, name in enumerate(self.columns) if name in self.constant]


def _spread(
    numbers: NDArray[np.float64], low: NDArray[np.float64], constant: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean [d] and the standard deviation [d] of the columns of ``numbers`` [n, d]; NaN is ignored.

    scikit-learn treats a column with little variation relative to its size, such as timestamps in microseconds, as
    constant. The minimum ``low`` [d] is therefore subtracted from such columns first. ``constant`` [d] marks columns
    with a single value.
    """
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler(copy=False).fit(numbers)
    means, deviations = scaler.mean_, scaler.scale_
    close = np.flatnonzero(~constant & (deviations == 1) & (scaler.var_ != 1))
    if len(close):
        near = StandardScaler().fit(numbers[:, close] - low[close])
        means[close], deviations[close] = low[close] + near.mean_, near.scale_
    return means, deviations


class Categorical(BaseModel):
    """The fitted one-hot encoding of the categorical columns.

    Attributes:
        columns: the names of the columns.
        levels: the levels of each column; ``None`` is the level of missing cells.
        grouped: the columns with too many levels. A category that is not in ``levels`` of such a column, such as one
            that did not occur in training, has the level :data:`RARE`.
    """

    model_config = STRICT

    columns: tuple[str, ...]
    levels: tuple[Annotated[tuple[str | None, ...], Field(min_length=1)], ...]
    grouped: tuple[str, ...] = ()

    @classmethod
    def fit(cls, columns: pl.DataFrame, rows: RowNumbers, where: str, max_levels: int = MANY_LEVELS) -> Categorical:
        """Collect the levels of each column in the training rows, sorted, with the level of missing cells last.

        Warns:
            AnypartyWarning: a column has more than ``max_levels`` levels, and the rarest are grouped.
        """
        levels, grouped = [], []
        for column in columns.iter_columns():
            counts = cells.value_counts(column[rows].drop_nulls())
            missing = (None,) if column[rows].null_count() else ()
            frequent = counts
            if len(counts) > max_levels:
                frequent = counts[: max_levels - 1]
                grouped.append(column.name)
                share = sum(count for _, count in counts[len(frequent) :])
                remark(
                    f"{where}: column {column.name!r} has {len(counts):,} categories in the training rows; the "
                    f"{len(counts) - len(frequent):,} rarest, in {share:,} of {len(rows):,} rows, are one category: "
                    f"the limit is parties.{key(party_in(where))}.max_levels = {max_levels}"
                )
            rare = (RARE,) if column.name in grouped else ()
            levels.append((*sorted(level for level, _ in frequent), *rare, *missing))
        return cls(columns=tuple(columns.columns), levels=tuple(levels), grouped=tuple(grouped))

    def fill(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Fill the missing cells of columns that had a single category and no missing cell in training."""
        known = zip(self.columns, self.levels, strict=True)
        constant = {name: levels[0] for name, levels in known if len(levels) == 1 and levels[0] is not None}
        return frame.with_columns(frame[name].fill_null(level) for name, level in constant.items())

    def group(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace rare categories of the grouped columns by :data:`RARE`."""
        known = dict(zip(self.columns, self.levels, strict=True))
        changed = [
            frame[name].set((~frame[name].is_in([each for each in known[name] if each])).fill_null(value=False), RARE)
            for name in self.grouped
        ]
        return frame.with_columns(changed) if changed else frame

    @model_validator(mode="after")
    def _check_levels(self) -> Categorical:
        if len(self.levels) != len(self.columns) or any(len(set(each)) != len(each) for each in self.levels):
            raise ValueError("levels must be different, in one list for each categorical column")
        return self

    def transform(self, objects: NDArray[np.object_]) -> NDArray[np.float32]:
        """Encode the cells [b, d] as zeros and ones [b, L]; L is the number of levels of all columns.

        A category that did not occur in training becomes zeros.
        """
        return self._encoder.transform(objects)  # type: ignore[no-any-return]

    @cached_property
    def _encoder(self) -> OneHotEncoder:
        from sklearn.preprocessing import OneHotEncoder  # noqa: PLC0415

        levels = [np.array(each, dtype=object) for each in self.levels]
        encoder = OneHotEncoder(categories=levels, handle_unknown="ignore", sparse_output=False, dtype=np.float32)
        return encoder.fit(np.array([[each[0] for each in levels]], dtype=object))


class Words(BaseModel):
    """The hashed words of columns of free text.

    Words and pairs of words are hashed to ``width`` numbers for each column, by scikit-learn's ``HashingVectorizer``:
    Weinberger et al., Feature Hashing for Large Scale Multitask Learning, ICML 2009. The saved model contains no word.
    """

    model_config = STRICT

    columns: tuple[str, ...] = ()
    width: Annotated[int, Field(ge=1)] = HASHES

    def transform(self, frame: pl.DataFrame) -> NDArray[np.float32]:
        """Convert the texts [b, d] to numbers [b, d * width].

        The numbers of a text are a vector of norm 1; the numbers of a missing text are zeros.
        """
        from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

        hashing = HashingVectorizer(n_features=self.width, ngram_range=(1, 2), dtype=np.float32)
        return np.hstack([hashing.transform(frame[name].fill_null("")).toarray() for name in self.columns])


@dataclass(frozen=True)
class Features:
    """A table's preprocessed rows.

    Attributes:
        x: [n, width] float32, the numbers.
        gaps: [n, width] bool, True for numbers that were imputed; ``None`` if no number was imputed.
    """

    x: NDArray[np.float32]
    gaps: NDArray[np.bool_] | None = None

    @classmethod
    def none(cls, n: int) -> Features:
        """Return the features of a party without columns, [n, 0]."""
        return cls(np.empty((n, 0), dtype=np.float32))


class Prepare(BaseModel):
    """The fitted preprocessing of one party's columns.

    Attributes:
        party: the party.
        numeric: the imputation and scaling of numeric columns.
        categorical: the encoding of categorical columns.
        dates: the columns of dates.
        words: the columns of free text.
        missing: by column, the share of the party's training rows in which the cell is empty.
        varied: the numeric columns in which at least half of the numbers differ from each other in training.
    """

    model_config = STRICT

    format: Literal["anyparty.prepare.1"] = "anyparty.prepare.1"
    party: str
    numeric: Numeric
    categorical: Categorical
    dates: tuple[DateColumn, ...] = ()
    words: Words = Words()
    missing: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    varied: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_varied(self) -> Prepare:
        if not set(self.varied) <= set(self._numbers):
            raise ValueError("varied must name numeric columns")
        return self

    @classmethod
    def fit(
        cls, table: Table, rows: RowNumbers, *, scale: bool = True, impute: Impute = "mean",
        max_levels: int = MANY_LEVELS,
    ) -> Prepare:  # fmt: skip
        """Fit to the party's training rows.

        Args:
            table: the party's table, n rows.
            rows: [m] the indices of the party's training rows.
            scale: whether to standardize numeric columns. A column that is constant in training becomes 0 in all rows.
            impute: the statistic that replaces a missing number.
            max_levels: the largest number of categories of a column; if there are more, the rarest become one category.

        Raises:
            TableError: there are no training rows, or all columns are empty in the training rows.

        Warns:
            AnypartyWarning: a column is empty in all training rows and is left out, or rare categories are grouped.
        """
        if table.blank.all() and table.columns.width:
            raise TableError(f"{_where(table)}: all {len(table)} rows {checks.EMPTY}: leave the party out")
        if len(rows) == 0:
            raise TableError(f"{_where(table)}: none of its rows is for training; at least one was expected: leave the "
                             f"party out, hold out fewer rows (train.test), or draw others (train.seed)")  # fmt: skip
        empty = [column.name for column in table.columns.iter_columns() if column[rows].null_count() == len(rows)]
        if empty:
            sentence = f"{_where(table)}: {some(empty)} is empty in all {len(rows)} training rows"
            if len(empty) == table.columns.width:
                raise TableError(f"{sentence}, and there is no other column: leave the party out")
            remark(f"{sentence}, and is left out")
        names: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
        for name, kind in table.kinds.items():
            if name not in empty:
                names[kind].append(name)
        numeric, categorical, datetimes, texts = (table.columns.select(by_name(of)) for of in names.values())
        of_dates = tuple(DateColumn.fit(column, rows) for column in datetimes.iter_columns())
        numbers = _with_dates(numeric, datetimes, of_dates, table) if of_dates else numeric
        return cls(
            party=table.party,
            numeric=Numeric.fit(numbers, rows, scale=scale, impute=impute),
            categorical=Categorical.fit(categorical, rows, _where(table), max_levels),
            dates=of_dates,
            words=Words(columns=tuple(texts.columns)),
            missing=_missing(table.columns[rows].drop(empty)) if table.columns.width else {},
            varied=checks.varied(numeric[rows]) if numeric.width else (),
        )

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each column that the model requires, for ``read_table(..., expect=)``."""
        kinds: dict[str, Kind] = dict.fromkeys(self._numbers, "numeric")
        kinds |= dict.fromkeys(self.categorical.columns, "categorical")
        kinds |= dict.fromkeys((each.name for each in self.dates), "date")
        return kinds | dict.fromkeys(self.words.columns, "text")

    @cached_property
    def _numbers(self) -> tuple[str, ...]:
        """The numeric columns of the party's table, without those made from dates."""
        return self.numeric.columns[: len(self.numeric.columns) - sum(len(each.parts) for each in self.dates)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the output columns: numbers, numbers from dates, ``column=level`` for categories, then words."""
        pairs = zip(self.categorical.columns, self.categorical.levels, strict=True)
        hot = (f"{c}={'(missing)' if level is None else level}" for c, levels in pairs for level in levels)
        words = (f"{c}: words {k}" for c in self.words.columns for k in range(self.words.width))
        return (*self.numeric.columns, *hot, *words)

    @cached_property
    def width(self) -> int:
        """The number of output columns."""
        words = len(self.words.columns) * self.words.width
        return len(self.numeric.columns) + sum(map(len, self.categorical.levels)) + words

    def apply(self, table: Table, *, new: bool = True) -> NDArray[np.float32]:
        """Preprocess the table's n rows to numbers [n, width].

        Columns are matched by name. Their order does not matter, and columns that training did not have are ignored.

        Args:
            table: the party's table, n rows.
            new: whether the table differs from the training table. The training table also contains the held-out rows;
                rare categories that occur only in these rows do not cause a warning.

        Raises:
            TableError: a column is missing, or holds text in place of numbers.

        Warns:
            AnypartyWarning: cells differ from the cells of the training rows, such as categories that did not
            occur in training.
        """
        return self.features(table, new=new).x

    def features(self, table: Table, *, new: bool = True, emptier: bool = True) -> Features:
        """Preprocess the table's rows as ``apply`` does, and mark the imputed numbers.

        Missing cells of a categorical column have a level of their own, and are not marked. If ``emptier`` is false, no
        remark reports columns that are emptier than in training.
        """
        frame = self.matched(table)
        x = np.empty((len(table), self.width), dtype=np.float32)
        step = max(1, CHUNK // max(1, self.width))
        for start in range(0, len(table), step):
            self._fill(x[start : start + step], frame[start : start + step], table, start)
        collapsed = checks.collapsed(table.columns.select(by_name(self.varied))) if new else ()
        empty = self._empty(table) if new and emptier else ()
        for sentence in (*self._differences(frame, few=new), *empty, *collapsed):
            remark(f"{_where(table)}: {sentence}")
        numbers = frame.select(by_name(self.numeric.columns))
        if not sum(numbers.null_count().row(0)):
            return Features(x)
        gaps = np.zeros(x.shape, dtype=np.bool_)
        gaps[:, : numbers.width] = numbers.select(pl.all().is_null()).to_numpy()
        return Features(x, gaps)

    def units(self, prepared: NDArray[np.float32]) -> NDArray[np.float64]:
        """Undo the scaling of the numeric columns in preprocessed rows [..., width], in double precision."""
        out = prepared.astype(np.float64)
        mean, scale = self.numeric.mean, self.numeric.scale
        if mean is not None and scale is not None:
            out[..., : len(mean)] = out[..., : len(mean)] * np.array(scale) + np.array(mean)
            for k in self.numeric.constant_at:  # a constant column gets its value without rounding
                out[..., k] = np.where(np.isnan(out[..., k]), np.nan, mean[k])
        return out

    def table(self, values: NDArray[np.float64]) -> pl.DataFrame:
        """Convert preprocessed rows in original units [n, width] back to columns of the party's table.

        A categorical column gets its most likely level in each row. NaN and the level of missing cells become empty
        cells. A date is restored from its number of days. Free text is left out.
        """
        start = len(self.numeric.columns)
        numbers = {name: pl.Series(name, values[:, k]).fill_nan(None) for k, name in enumerate(self.numeric.columns)}
        columns = [numbers[name] for name in self._numbers]
        columns += [each.inverse(numbers[each.parts[0]]) for each in self.dates]
        for name, levels in zip(self.categorical.columns, self.categorical.levels, strict=True):
            part, start = values[:, start : start + len(levels)], start + len(levels)
            most = np.where(np.isnan(part).any(axis=1), len(levels), np.nan_to_num(part).argmax(axis=1))
            columns.append(pl.Series(name, [*levels, None], dtype=pl.String).gather(most))
        return pl.DataFrame(columns)

    def with_levels(
        self, values: NDArray[np.float64], centers: NDArray[np.float64], truths: Collection[str],
        random: np.random.Generator,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Draw a level of each categorical column for each row; set its output to 1, the other levels' outputs to 0.

        Args:
            values: [..., width], preprocessed rows in original units; NaN stays NaN.
            centers: [..., width]. For categorical columns, the weights of the levels. Negative weights are used as 0.
                If no weight is positive, the level with the largest weight is chosen. For ``truths``, probabilities.
            truths: numeric columns that hold booleans. They become 1 with the probability in ``centers``, else 0.
            random: the generator of random numbers.
        """
        out, cells = values.copy(), values.shape[:-1]
        for k, name in enumerate(self.numeric.columns):
            if name in truths:
                drawn = random.random(cells) < centers[..., k]  # from a seeded generator  # nosec B311
                out[..., k] = np.where(np.isnan(values[..., k]), np.nan, drawn)
        start = len(self.numeric.columns)
        for levels in self.categorical.levels:
            at = slice(start, start := start + len(levels))
            weight = centers[..., at].clip(min=0)
            edge = weight.cumsum(axis=-1)
            drawn = (random.random((*cells, 1)) * edge[..., -1:] >= edge).sum(axis=-1)  # a seeded generator  # nosec B311
            level = np.where(edge[..., -1] > 0, drawn, np.nan_to_num(centers[..., at]).argmax(axis=-1))
            out[..., at] = np.where(np.isnan(values[..., at]), np.nan, np.eye(len(levels))[level])
        return out

    def to_json(self) -> dict[str, Any]:
        """Return the fitted values for JSON, without rounding."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Prepare:
        """Create the preprocessing from the result of :meth:`to_json`.

        Raises:
            ModelError: the values do not have the expected form.
        """
        try:
            return cls.model_validate_json(json.dumps(saved))
        except (TypeError, ValueError) as error:
            raise ModelError(f"the saved preprocessing of a table is invalid: {_reason(error)}") from error

    def matched(self, table: Table) -> pl.DataFrame:
        """Return the columns that the model requires, in its order: numbers as Float64, categories and texts as String.

        Raises:
            TableError: a column is missing, or holds text in place of numbers.
        """
        present = table.columns.columns
        missing = [name for name in self.kinds if name not in present]
        if missing:
            raise lacking(missing, [name for name in present if name not in self.kinds], _where(table))
        read = {name: _as_kind(table, name, kind) for name, kind in self.kinds.items()}
        parts = [part for each in self.dates for part in each.transform(read[each.name])]
        others = [read[name] for name in (*self.categorical.columns, *self.words.columns)]
        return pl.DataFrame([*(read[name] for name in self._numbers), *parts, *others])

    def _differences(self, frame: pl.DataFrame, *, few: bool) -> Iterator[str]:
        """Yield warnings about cells that differ from the cells of the training rows."""
        if self.categorical.columns:
            yield from checks.unseen_levels(frame, self._levels, few=few)
        if self.numeric.constant:
            yield from checks.no_longer_constant(frame, self._constants)
        yield from checks.far_from_training(frame, self._spreads, few=few)

    def _empty(self, table: Table) -> Iterator[str]:
        return checks.empty_now(table.columns.select(by_name(list(self.kinds))), self.missing)

    def row_remarks(self, table: Table) -> checks.RowRemarks:
        """Compare each row with the training rows, and return remarks on unusual cells."""
        return checks.row_remarks(self.party, self.matched(table), self._levels, self._spreads, self._empty(table))

    @cached_property
    def _levels(self) -> dict[str, tuple[str | None, ...]]:
        """The levels of the categorical columns without merged levels; ``None`` is the level of missing cells."""
        pairs = zip(self.categorical.columns, self.categorical.levels, strict=True)
        return {name: each for name, each in pairs if name not in self.categorical.grouped}

    @cached_property
    def _constants(self) -> dict[str, float]:
        """The value of each numeric column that was constant in training."""
        fill = dict(zip(self.numeric.columns, self.numeric.fill, strict=True))
        return {name: fill[name] for name in self.numeric.constant}

    @cached_property
    def _spreads(self) -> dict[str, tuple[float, float]]:
        """The mean and standard deviation of the numeric columns that were not constant in training."""
        if self.numeric.mean is None or self.numeric.scale is None:
            return {}
        spreads = zip(self.numeric.columns, self.numeric.mean, self.numeric.scale, strict=True)
        return {name: (mean, scale) for name, mean, scale in spreads if name not in self.numeric.constant}

    def _fill(self, out: NDArray[np.float32], frame: pl.DataFrame, table: Table, start: int) -> None:
        """Preprocess ``frame``, a part of the table that begins at row ``start``, and write the result to ``out``."""
        split, categories = len(self.numeric.columns), sum(map(len, self.categorical.levels))
        if split:
            with np.errstate(over="ignore"):
                out[:, :split] = self.numeric.transform(frame[:, :split].to_numpy(writable=True))
            finite = np.isfinite(out[:, :split]).all(axis=0)
            if not finite.all():
                far = int(finite.argmin())
                rows = pl.Series(~np.isfinite(out[:, far]))
                raise TableError(
                    f"{_where(table)}: column {self.numeric.columns[far]!r} has a number too far from those of "
                    f"training: {cells.cited(frame.to_series(far), rows, start=start)}; correct it"
                )
        if self.categorical.columns:
            levels = self.categorical.fill(self.categorical.group(frame.select(by_name(self.categorical.columns))))
            out[:, split : split + categories] = self.categorical.transform(levels.to_numpy())
        if self.words.columns:
            out[:, split + categories :] = self.words.transform(frame)


def _missing(columns: pl.DataFrame) -> dict[str, float]:
    """Return the share of empty cells of each column [n, d]. Rows whose cells are all empty are not counted."""
    columns = columns.filter(~pl.all_horizontal(pl.all().is_null()))
    return {column.name: column.null_count() / max(1, len(column)) for column in columns.iter_columns()}


def _where(table: Table) -> str:
    return f"party {table.party!r}, {table.source}"


def _with_dates(
    numeric: pl.DataFrame, datetimes: pl.DataFrame, of_dates: tuple[DateColumn, ...], table: Table
) -> pl.DataFrame:
    parts = [part for each in of_dates for part in each.transform(datetimes[each.name])]
    if taken := [part.name for part in parts if part.name in table.columns.columns]:
        raise TableError(
            f"{_where(table)}: column {taken[0]!r} has the name of a number that a column of dates becomes; rename it"
        )
    return pl.DataFrame([*numeric.iter_columns(), *parts])


def _as_kind(table: Table, name: str, kind: Kind) -> pl.Series:
    column = table.columns[name]
    if kind == "categorical":
        return cells.as_level(column)
    if kind in {"date", "text"}:
        return column
    if column.dtype == pl.String:
        raise TableError(
            f"{_where(table)}: column {name!r} holds text, such as {cells.cited(column, column.is_not_null())}, "
            f"where numbers were in training; correct it"
        )
    return column.cast(pl.Float64)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
