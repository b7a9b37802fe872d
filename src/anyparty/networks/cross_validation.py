"""Compute the k-fold cross-validation scores of a scikit-learn classifier on embeddings or columns.

Notation  n rows, d columns, k folds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.multiclass import unique_labels

from anyparty.core.types import Task
from anyparty.errors import AlignmentError, ConfigError, nearest
from anyparty.networks.sklearn_head import estimator

Scale = Literal["none", "standard", "minmax"]
SCALERS = {"none": (), "standard": (StandardScaler,), "minmax": (MinMaxScaler,)}


def cross_validated(
    x: ArrayLike, y: ArrayLike, *,
    classifier: str = "logistic", settings: Mapping[str, Any] | None = None, scale: Scale = "none",
    metric: str = "accuracy", folds: int = 10, seed: int = 0, classes: Sequence[str] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return a classifier's scores [k]: one on each of k stratified folds, after a fit to the other folds.

    Args:
        x: [n, d], columns or embeddings.
        y: [n], the classes.
        classifier: "logistic", or the name of a scikit-learn class.
        settings: keyword arguments of the classifier.
        scale: the scaling of the columns: "standard" to standard deviation 1, "minmax" to [0, 1]. It is fitted to the
            same rows as the classifier.
        metric: name of a scikit-learn scorer: "accuracy", "f1", "f1_macro", "roc_auc" ...
        folds: k.
        seed: the seed of the folds and of the classifier.
        classes: [C] names; ``y`` then contains their places. By default the values of ``y`` are the names. A
            class_weight in the settings uses these names.

    Raises:
        ConfigError: there is no such classifier or metric, or there are fewer than two folds.
        AlignmentError: there are fewer rows than folds, there is a single class, or a class would be absent from a
            fold.

    """
    labels = np.asarray(y)
    check_folds(labels, folds)
    if metric not in (scorers := get_scorer_names()):
        raise ConfigError(f"cross-validation: no metric {metric!r}{nearest(metric, scorers)}")
    known = unique_labels(labels)
    task = Task(kind="classification", classes=tuple(map(str, known if classes is None else classes)))
    model = estimator(classifier, task, settings or {}, seed)
    if isinstance(weights := model.get_params().get("class_weight"), Mapping):  # keys are places, but y holds labels
        values = known if classes is None else range(len(classes))
        model.set_params(class_weight={values[place]: weight for place, weight in weights.items()})
    made = make_pipeline(*(scaler() for scaler in SCALERS[scale]), model)
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)  # about a score without a value, which is reported below
            found = cross_val_score(made, np.asarray(x, dtype=np.float64), labels, cv=parts, scoring=metric)
    except ValueError as error:
        raise ConfigError(f"cross-validation: {str(error).strip().splitlines()[0]}") from None
    if not np.isfinite(found).all():
        raise ConfigError(f"cross-validation: {metric} has no value with {len(task.classes)} classes and {classifier}; "
                          f"for more than two classes there are f1_macro and roc_auc_ovr")  # fmt: skip
    return np.asarray(found, dtype=np.float64)


def check_folds(labels: NDArray[Any], folds: int) -> None:
    """Reject labels [n] that cannot be split into this number of stratified folds.

    Raises:
        ConfigError: there are fewer than two folds.
        AlignmentError: there are fewer rows than folds, there is a single class, or a class would be absent from a
            fold.
    """
    if folds < 2:
        raise ConfigError(f"cross-validation: folds must be at least 2, got {folds}")
    if len(labels) < folds:
        raise AlignmentError(f"cross-validation: {len(labels)} rows are fewer than {folds} folds; lower --folds")
    names, counts = np.unique(labels, return_counts=True)
    if len(names) < 2:
        raise AlignmentError(
            f"cross-validation: all {len(labels)} labels are {names[0]!s}: at least two classes are needed"
        )
    if counts.min() < folds:
        raise AlignmentError(f"cross-validation: class {names[counts.argmin()]!s} has {counts.min()} rows, so it would "
                             f"be absent from some of {folds} folds; lower --folds")  # fmt: skip
