"""Compare a classifier's k-fold scores on an encoder's embeddings with the classifier's scores on the raw columns.

Irureta et al. (APC-VFL), appendix F, algorithm 1 and equations (11), (12). One party uses this comparison to choose an
encoder before any federated run. Other parties take no part in it, and no message is sent.

Notation  n rows, d columns, H width of an embedding, k folds.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 3))
    >>> found = compare(x, x @ rng.normal(size=(3, 8)), x[:, 0] > 0, folds=5)
    >>> found.alike(0.1)
    True
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.multiclass import unique_labels

from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.errors import AlignmentError, ConfigError, Diverged, nearest
from anyparty.networks.encoders import MLP, Autoencoder, Factory
from anyparty.networks.optimizer import Optimizer
from anyparty.networks.sklearn_head import estimator
from anyparty.problem.rows import mixed

Scale = Literal["none", "standard", "minmax"]
SCALERS = {"none": (), "standard": (StandardScaler,), "minmax": (MinMaxScaler,)}


def cross_validated(
    x: ArrayLike, y: ArrayLike, *,
    classifier: str = "logistic", settings: Mapping[str, Any] | None = None, scale: Scale = "none",
    metric: str = "accuracy", folds: int = 10, seed: int = 0, classes: Sequence[str] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the scores [k] of a classifier in stratified k-fold cross-validation.

    Args:
        x: [n, d], columns or embeddings.
        y: [n], the classes.
        classifier: "logistic", or the name of a scikit-learn class.
        settings: keyword arguments of the classifier.
        scale: the scaling of the columns. "standard" scales to mean 0 and standard deviation 1, "minmax" to [0, 1]. The
            scaling is fitted to the same rows as the classifier.
        metric: name of a scikit-learn scorer: "accuracy", "f1", "f1_macro", "roc_auc" ...
        folds: k, the number of folds.
        seed: the seed of the folds and of the classifier.
        classes: [C] names of the classes; if given, ``y`` contains indices of these names. By default, the values
            of ``y`` are the class names. If ``settings`` has class_weight, its keys are class names.

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
    # The keys of class_weight are class names; scikit-learn needs class indices.
    if isinstance(weights := model.get_params().get("class_weight"), Mapping):
        values = known if classes is None else range(len(classes))
        model.set_params(class_weight={values[place]: weight for place, weight in weights.items()})
    made = make_pipeline(*(scaler() for scaler in SCALERS[scale]), model)
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)  # such as warnings of NaN scores, which raise an error below
            found = cross_val_score(made, np.asarray(x, dtype=np.float64), labels, cv=parts, scoring=metric)
    except ValueError as error:
        raise ConfigError(f"cross-validation: {str(error).strip().splitlines()[0]}") from None
    if not np.isfinite(found).all():
        raise ConfigError(f"cross-validation: {metric} has no value with {len(task.classes)} classes and {classifier}; "
                          f"for more than two classes there are f1_macro and roc_auc_ovr")  # fmt: skip
    return np.asarray(found, dtype=np.float64)


def check_folds(labels: NDArray[Any], folds: int) -> None:
    """Raise an error if labels [n] cannot be split into ``folds`` stratified folds.

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


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderComparison:
    """The scores of one classifier on columns and on embeddings, with the same folds.

    Attributes:
        raw: [k], the scores on the columns.
        embedded: [k], the scores on the embeddings.
    """

    raw: NDArray[np.float64]
    embedded: NDArray[np.float64]

    @property
    def lost(self) -> float:
        """Mean score on the columns minus mean score on the embeddings; negative if embeddings are better."""
        return float(self.raw.mean() - self.embedded.mean())

    def alike(self, r: float) -> bool:
        """Return True if the mean score on embeddings is at least the mean score on columns minus r (equation (12))."""
        return self.lost <= r


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderEpoch:
    """One epoch of an encoder's training.

    Attributes:
        epoch: the number of the epoch, counted from 1.
        loss: the reconstruction loss.
        scores: scores of a classifier on the columns and on the embeddings.
    """

    epoch: int
    loss: float
    scores: EncoderComparison


def compare(x: ArrayLike, z: ArrayLike, y: ArrayLike, **scoring: Any) -> EncoderComparison:
    """Score a classifier on columns x [n, d] and on embeddings z [n, H] of the same rows, with the same folds.

    Args:
        x: the prepared columns.
        z: the embeddings.
        y: [n] the classes.
        scoring: keyword arguments of ``cross_validated``, such as classifier, settings, metric, folds and seed.

    Raises:
        ConfigError, AlignmentError: for the reasons given in ``cross_validated``.

    """
    return EncoderComparison(raw=cross_validated(x, y, **scoring), embedded=cross_validated(z, y, **scoring))


def inspect(
    x: ArrayLike,
    y: ArrayLike,
    *,
    encoder: Factory = MLP(activation="selu"),  # noqa: B008 - an immutable default
    embedding: int = 64,
    activation: str = "selu",
    optimizer: Optimizer = Optimizer(),  # noqa: B008 - an immutable default
    epochs: int = 200,
    every: int = 1,
    batch_size: int = 128,
    seed: int = 0,
    **scoring: Any,
) -> Iterator[EncoderEpoch]:
    """Train an autoencoder of the columns x [n, d] and score its embeddings during training (algorithm 1).

    Args:
        x: the prepared columns.
        y: [n] the classes, used for the scores only.
        encoder: factory of the encoder.
        embedding: H, the width of an embedding.
        activation: name of the activation that is applied to the embedding; no activation if empty.
        optimizer: settings of the optimizer; its learning-rate schedule ends after ``epochs`` epochs.
        epochs: number of epochs.
        every: the number of epochs from one scoring to the next. The last epoch is always followed by a scoring.
        batch_size: number of rows of a batch.
        seed: seed of all random choices.
        scoring: keyword arguments of ``cross_validated``, such as classifier, settings, metric and folds.

    Raises:
        ConfigError, AlignmentError: for the reasons given in ``cross_validated``.
        ConfigError: epochs, every, batch_size or embedding is below 1.
        Diverged: the loss or the embeddings are not finite.

    """
    if min(epochs, every, batch_size, embedding) < 1:
        raise ConfigError(f"encoder check: epochs, every, batch_size and embedding must be at least 1, got {epochs}, "
                          f"{every}, {batch_size}, {embedding}")  # fmt: skip
    raw = cross_validated(x, y, seed=seed, **scoring)
    rows, seeds = torch.as_tensor(np.asarray(x, dtype=np.float32)), Seeds(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.number("encoder"))
        net = Autoencoder(encoder, rows.shape[1], embedding, activation=activation)
    trains = optimizer.build(net.parameters())
    for epoch in range(epochs):
        total = 0.0
        optimizer.set_rate(trains, epoch, epochs)
        with torch.random.fork_rng(devices=[]):  # dropout must not change torch's global random state
            torch.manual_seed(seeds.number("encoder draws", epoch))
            for places in mixed(torch.arange(len(rows)), batch_size, seeds.torch("batches", epoch)):
                trains.zero_grad()
                loss = ((net(rows[places])[1] - rows[places]) ** 2).mean()
                loss.backward()
                trains.step()
                total += loss.item() * len(places)
        if (epoch + 1) % every and epoch + 1 < epochs:
            continue
        net.eval()
        with torch.no_grad():
            z = net.encode(rows).numpy()
        net.train()
        if not (np.isfinite(total) and np.isfinite(z).all()):
            raise Diverged(f"encoder check: embeddings are no longer numbers after epoch {epoch + 1}: lower the "
                           f"learning rate ({optimizer.lr:g})")  # fmt: skip
        scores = EncoderComparison(raw=raw, embedded=cross_validated(z, y, seed=seed, **scoring))
        yield EncoderEpoch(epoch=epoch + 1, loss=total / len(rows), scores=scores)
