"""Estimators for scikit-learn, for rows whose columns belong to several parties; a party may lack rows.

    classifier = VerticalClassifier(blocks={"bank": ["income", "age"], "shop": ["visits", "town"]}, random_state=0)
    cross_val_score(classifier, frame, labels)
    classifier.fit({"bank": bank_frame, "shop": shop_frame}, labels).predict({"shop": new_shop_frame})

A party does not have a row if all cells of its block are missing in that row.  For tables with ids, whose rows are not
in the same order, use ``anyparty.Federation``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.config.schema import METHOD_DEFAULTS
from anyparty.core.declared_types import adapter_of, check, check_arguments
from anyparty.errors import AnypartyWarning, ConfigError, PredictionError, TableError, nearest
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.tables import data_frames, partition
from anyparty.tables.checks import EMPTY

Blocks = Mapping[str, Sequence[str | int]] | int | None
_BY_PARTY = adapter_of(Mapping[str, Any])
PADDED = 64  # the number of rows passed to the model is a multiple of this number
FEW = 5  # minimum number of rows per class for a validation split (in regression: 2 x FEW rows)


class _VerticalEstimator(BaseEstimator):  # type: ignore[misc]
    """The code that ``VerticalClassifier`` and ``VerticalRegressor`` share."""

    model_: Model
    blocks_: dict[str, list[str]]
    _task: Literal["classification", "regression"]

    def __init__(
        self, method: str = "sum", *, blocks: Blocks = None, epochs: int | None = None, batch_size: int | None = None,
        hidden: Sequence[int] | None = None, lr: float | None = None, validation: float = 0.15,
        patience: int | None = None, parameters: Mapping[str, Any] | None = None, no_answer: str = "prior",
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.method = method
        self.blocks = blocks
        self.epochs = epochs
        self.batch_size = batch_size
        self.hidden = hidden
        self.lr = lr
        self.validation = validation
        self.patience = patience
        self.parameters = parameters
        self.no_answer = no_answer
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags of this estimator, which declare that missing cells are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # Functions for training

    def _fit(self, X: Any, y: NDArray[Any], labels: pl.Series, validation: float) -> None:
        check_arguments(type(self).__init__, self.get_params(deep=False))
        if self.no_answer not in {"prior", "raise"}:
            raise ConfigError(f"no_answer: expected 'prior' or 'raise', got {self.no_answer!r}")
        frames = self._frames(X, reset=True)
        check_consistent_length(*(frame.to_numpy() for frame in frames.values()), y)
        active, id_column, label = next(iter(frames)), self._free("row"), self._free("label")
        tables = _with_ids(frames, id_column)
        tables[active] = tables[active].with_columns(labels.alias(label))
        given = {name: getattr(self, name) for name in ("epochs", "batch_size", "patience")}
        if not validation:
            given["patience"] = None
        own = METHOD_DEFAULTS.get(self.method, {}).get("optimizer", Optimizer())
        with _empty_blocks_allowed():
            federation = Federation.from_tables(tables, id=id_column, label=label, active=active, task=self._task)
            self.model_ = federation.train(
                self.method, parameters=self.parameters,
                encoder=None if self.hidden is None else MLP(hidden=tuple(self.hidden)),
                optimizer=None if self.lr is None else replace(own, lr=self.lr), seed=_seed(self.random_state),
                test=0.0, validation=validation, **{name: each for name, each in given.items() if each is not None},
            )  # fmt: skip
        self._id_column = id_column

    # Functions that divide X into the blocks of the parties

    def _frames(self, X: Any, *, reset: bool) -> dict[str, pl.DataFrame]:
        """Return each party's block of ``X`` as a frame; all frames have the same rows.

        In ``fit`` (``reset`` is True), the names of each party's columns are stored. In ``predict``, the columns with
        these names are selected.
        """
        if isinstance(X, Mapping) and not issparse(X):  # scipy's sparse matrix in "dok" format is also a mapping
            return self._frames_of_mapping(X, reset=reset)
        if self.blocks is None and not reset and set(self.blocks_) != {"all"}:
            raise ConfigError("X: the estimator was fitted to a dict of frames; give a dict, or set blocks before fit")
        frame = self._single_frame(X, reset=reset)
        if reset:
            self.blocks_ = self._named_blocks(frame.columns)
        elif missing := [name for names in self.blocks_.values() for name in names if name not in frame.columns]:
            raise TableError(f"X: there is no column {missing[0]!r}{nearest(missing[0], frame.columns)}")
        return {party: frame.select(names) for party, names in self.blocks_.items()}

    def _frames_of_mapping(self, X: Mapping[str, Any], *, reset: bool) -> dict[str, pl.DataFrame]:
        check(X, _BY_PARTY, "X")
        frames = {party: _as_frame(block) for party, block in X.items() if block is not None}
        if not frames:
            raise ConfigError("X: the dict is empty; give a frame for at least one party")
        if len({len(frame) for frame in frames.values()}) > 1:
            sizes = ", ".join(f"{party}: {len(frame):,}" for party, frame in frames.items())
            raise TableError(f"X: the frames need the same rows in the same order, but have different numbers of rows "
                             f"({sizes}); leave all cells of a row empty where a party does not have it")  # fmt: skip
        if reset:
            self.blocks_ = {party: frame.columns for party, frame in frames.items()}
            self.n_features_in_ = sum(map(len, self.blocks_.values()))
            return frames
        for party, frame in frames.items():
            if party not in self.blocks_:
                raise PredictionError(f"X: there is no party {party!r}{nearest(party, self.blocks_)}")
            if lacking := [name for name in self.blocks_[party] if name not in frame.columns]:
                raise TableError(f"X: party {party!r} has no column {lacking[0]!r}"
                                 f"{nearest(lacking[0], frame.columns)}")  # fmt: skip
        return {party: frames[party].select(names) for party, names in self.blocks_.items() if party in frames}

    def _single_frame(self, X: Any, *, reset: bool) -> pl.DataFrame:
        if not (data_frames.is_pandas(X) or isinstance(X, pl.DataFrame)):
            X = _as_plain(X)
        if hasattr(X, "columns") and hasattr(X, "shape") and 0 not in X.shape:
            validate_data(self, X, reset=reset, skip_check_array=True)
            return _as_frame(X)
        return _as_frame(validate_data(self, X, reset=reset, dtype="numeric", ensure_all_finite="allow-nan"))

    def _named_blocks(self, columns: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of each party's columns: those of ``columns`` that ``blocks`` assigns to the party.

        Raises:
            ConfigError: a column in ``blocks`` does not exist or occurs twice.
        """
        if self.blocks is None:
            return {"all": list(columns)}
        if isinstance(self.blocks, int):
            cuts = partition.columns(columns, self.blocks, drop_rest=False)
            return {f"block{k}": names for k, names in enumerate(cuts)}
        named = {}
        for party, block in self.blocks.items():
            wrong = [place for place in block if not isinstance(place, str) and not 0 <= place < len(columns)]
            if wrong:
                raise ConfigError(f"blocks: party {party!r} has column {wrong[0]}, but X has {len(columns)} columns")
            named[party] = [place if isinstance(place, str) else columns[place] for place in block]
        return partition.named(list(columns), named)

    def _free(self, name: str) -> str:
        """Return ``name`` with as many underscores at its end as needed, so that no block has a column of this name."""
        while any(name in names for names in self.blocks_.values()):
            name += "_"
        return name

    # Functions for prediction

    def _scores(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the model's scores [n, C] for the n rows of ``X``, and a mask [n] of the rows with an answer."""
        check_is_fitted(self)
        frames = self._frames(X, reset=False)
        n = len(next(iter(frames.values())))
        scores = np.full((n, self.model_.task.outputs), np.nan)
        if present := {party: frame for party, frame in frames.items() if _has_cells(frame)}:
            padded = {party: _padded(frame) for party, frame in present.items()}
            with _empty_blocks_allowed():
                found = self.model_.predict(_with_ids(padded, self._id_column))
            assert found.ids is not None
            rows = np.array(found.ids, dtype=np.int64)
            scores[rows[rows < n]] = found.scores.numpy()[rows < n]
        answered = ~np.isnan(scores).any(axis=1)
        if not answered.all():
            self._report_missing_answers(int((~answered).sum()), n)
        return scores, answered

    def _report_missing_answers(self, lacking: int, n: int) -> None:
        message = f"{self.method} has no answer for {lacking:,} of {n:,} rows from the parties that have them"
        if self.no_answer == "raise":
            raise PredictionError(f"{message}; no_answer='prior' answers with the frequencies of the training labels")
        warnings.warn(f"{message}; they get the training labels' frequencies or mean", AnypartyWarning, stacklevel=4)


class VerticalClassifier(ClassifierMixin, _VerticalEstimator):  # type: ignore[misc]
    """A classifier of rows whose columns belong to several parties.  All labels are classes, also many numbers.

    ``X`` is a dict of data frames or arrays by party, or one frame or array that ``blocks`` divides among the parties.
    All frames of a dict have the same rows in the same order.  At prediction, a dict may lack parties.

    Parameters
    ----------
        method: a name from ``anyparty methods``.
        blocks: for a single frame, the columns of each party, by name or index; or the number of contiguous blocks
            into which the columns are divided; ``None`` gives all columns to one party.
        epochs: the largest number of epochs; by default as in ``Federation.train``.
        batch_size: the number of rows in a batch; by default as in ``Federation.train``.
        hidden: the widths of the hidden layers of each party's encoder, an ``MLP``; by default as in
        ``Federation.train``.
        lr: the first learning rate; by default as in ``Federation.train``.
        validation: the share of rows for validation, by which methods other than "sum" choose the best epoch; no row is
        used for validation if a class has fewer than 5 rows.
        patience: the number of epochs without improvement after which training stops; by default as in
        ``Federation.train``.
        parameters: parameters of the method, such as ``{"embedding": 32}``.
        no_answer: the reaction to a row for which the method has no prediction: "prior" predicts the frequencies of the
            training labels and warns; "raise" raises ``PredictionError``.
        random_state: the seed of all random draws.

    Attributes
    ----------
        classes_: the classes.
        model_: the trained ``anyparty.Model``; its ``predict`` also returns the parties that took part.
        blocks_: the columns of each party.
        n_features_in_: the number of columns.
        feature_names_in_: the names of the columns, if ``X`` is one frame whose columns have names.
    """

    _task = "classification"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the rows of ``X`` with the labels ``y`` [n].

        Raises:
            ConfigError: a parameter is invalid.
            TableError: ``X`` or ``y`` cannot be used for training.
        """
        labels = _target(self, y)
        check_classification_targets(labels)
        self.classes_, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(self.classes_) < 2:
            raise TableError(f"y has one class, {self.classes_[0]!r}; a classifier needs at least two")
        self._prior = counts / counts.sum()
        few = counts.min() < FEW or len(labels) < FEW * len(counts)
        self._fit(X, labels, pl.Series([str(c) for c in which]), 0.0 if few else self.validation)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of the classes [n, C], in the order of ``classes_``.

        Raises:
            PredictionError: a row has no answer and ``no_answer`` is "raise".
        """
        scores, answered = self._scores(X)
        found = np.zeros((len(scores), len(self.classes_)))
        found[:, [int(name) for name in self.model_.task.classes]] = scores
        found[~answered] = self._prior
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable classes [n], with the type of the training labels.

        Raises:
            PredictionError: a row has no answer and ``no_answer`` is "raise".
        """
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


class VerticalRegressor(RegressorMixin, _VerticalEstimator):  # type: ignore[misc]
    """A regressor of rows whose columns belong to several parties.  All labels are numbers to predict.

    ``X`` is a dict of data frames or arrays by party, or one frame or array that ``blocks`` divides among the parties.
    The parameters are those of ``VerticalClassifier``. With ``no_answer="prior"``, a row without an answer gets the
    mean of the training labels.

    Attributes:
        model_: the trained ``anyparty.Model``; its ``predict`` also returns the parties that took part.
        blocks_: the columns of each party.
        n_features_in_: the number of columns.
        feature_names_in_: the names of the columns, if ``X`` is one frame whose columns have names.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the rows of ``X`` with the numbers ``y`` [n].

        Raises:
            ConfigError: a parameter is invalid.
            TableError: ``X`` or ``y`` cannot be used for training.
        """
        labels = _target(self, y).astype(np.float64)
        self._mean = float(labels.mean())
        self._fit(X, labels, pl.Series(labels), self.validation if len(labels) >= 2 * FEW else 0.0)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted numbers [n].

        Raises:
            PredictionError: a row has no answer and ``no_answer`` is "raise".
        """
        scores, answered = self._scores(X)
        return np.where(answered, scores[:, 0], self._mean)


def _target(estimator: BaseEstimator, y: Any) -> NDArray[Any]:
    """Return the labels ``y`` as an array [n]; reject missing values and fewer than two labels."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if np.ma.is_masked(y):
        count = int(np.ma.getmaskarray(y).sum())
        raise TableError(f"y has {count:,} masked labels; each row needs a label: leave these rows out")
    labels = np.asarray(column_or_1d(data_frames.array_of(y, "y") if data_frames.is_array(y) else y, warn=True))
    assert_all_finite(labels, input_name="y")
    if labels.dtype.kind == "O" and (missing := data_frames.series_of("y", labels, "y").null_count()):
        raise TableError(f"y has {missing:,} missing labels; each row needs a label: leave these rows out")
    if len(labels) < 2:
        raise TableError(f"y has {len(labels)} sample{'s' * (len(labels) != 1)}; at least 2 samples are needed")
    return labels


def _as_frame(block: Any) -> pl.DataFrame:
    """Convert a data frame or an array [n, d] to a polars frame; NaN becomes a missing cell.

    Raises:
        TableError: ``block`` is neither a data frame nor an array of two dimensions.
    """
    if hasattr(block, "columns") and hasattr(block, "reset_index"):
        block = block.rename(columns=str).reset_index(drop=True)
    if issparse(block):
        raise TableError("X: expected a frame or an array [n, d] for each party, got a sparse matrix: give toarray()")
    block = _as_plain(block)
    if isinstance(block, pl.DataFrame):
        return block.with_columns(pl.selectors.float().fill_nan(None))
    array = np.asarray(block)
    if array.ndim != 2:
        raise TableError(f"X: expected a frame or an array [n, d] for each party, got an array of shape {array.shape}")
    names = [f"x{column}" for column in range(array.shape[1])]
    return pl.from_numpy(array.astype(np.float64), schema=names).fill_nan(None)


def _as_plain(X: Any) -> Any:
    """Convert a data frame of any library to a polars frame, and an array to a numpy array without a mask."""
    if isinstance(X, pl.LazyFrame):
        return X.collect()
    if found := data_frames.frame_of(X, "X"):
        return found[1]
    return data_frames.array_of(X, "X") if data_frames.is_array(X) else X


def _with_ids(frames: Mapping[str, pl.DataFrame], id_column: str) -> dict[str, pl.DataFrame]:
    """Add an id column to each frame: nine-digit row numbers, which sort as text in the order of the rows."""
    n = len(next(iter(frames.values())))
    ids = pl.Series(id_column, [f"{row:09d}" for row in range(n)], dtype=pl.String)
    return {party: frame.insert_column(0, ids) for party, frame in frames.items()}


@contextmanager
def _empty_blocks_allowed() -> Iterator[None]:
    """Ignore warnings about rows whose cells are all empty: here, such a row means that the party lacks the row."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{EMPTY}", AnypartyWarning)
        yield


def _padded(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with some rows repeated at its end, so that the number of rows is a multiple of ``PADDED``.

    If there are few rows, the rounding of a matrix product depends on their number.  Without the repeated rows, the
    last digits of a prediction would therefore depend on the number of rows.
    """
    extra = -len(frame) % PADDED
    return pl.concat([frame, frame[[place % len(frame) for place in range(extra)]]]) if extra else frame


def _has_cells(frame: pl.DataFrame) -> bool:
    return any(column.null_count() < len(column) for column in frame.iter_columns())


def _seed(random_state: Any) -> int:
    """Convert ``random_state``, an int, a ``RandomState`` or ``None``, to a seed."""
    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))
