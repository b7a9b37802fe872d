"""Is an encoder worth training?  A classifier's k-fold scores on its embeddings, beside those on the raw columns.

Irureta et al. (APC-VFL), appendix F, algorithm 1 and equations (11), (12): a tool for choosing an architecture at home,
before any federated run.  Nothing here is sent or asked of anybody.

Letters   n rows, d columns, H width of an embedding, k folds.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 3))
    >>> found = compare(x, x @ rng.normal(size=(3, 8)), x[:, 0] > 0, folds=5)
    >>> found.alike(0.1)
    True
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.utils.multiclass import unique_labels

from anyparty.blocks.batches import mixed
from anyparty.errors import AlignmentError, ConfigError
from anyparty.nets.autoencoder import Autoencoder
from anyparty.nets.estimator import estimator
from anyparty.nets.mlp import MLP, Factory
from anyparty.nets.optimizer import Optimizer
from anyparty.seeds import Seeds
from anyparty.terms import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Scores of the same classifier on the same folds.

    Attributes:
        raw: [k], on the columns.
        embedded: [k], on the embeddings.

    """

    raw: NDArray[np.float64]
    embedded: NDArray[np.float64]

    @property
    def lost(self) -> float:
        """The mean score on the columns less that on the embeddings; below zero where the encoder helps."""
        return float(self.raw.mean() - self.embedded.mean())

    def alike(self, r: float) -> bool:
        """Return whether embeddings are as good as the columns, to a threshold r (12)."""
        return self.lost <= r


@dataclass(frozen=True, kw_only=True, eq=False)
class Epoch:
    """One epoch of an encoder's training: its loss, and the scores after it."""

    epoch: int
    loss: float
    scores: Comparison


def compare(
    x: ArrayLike, z: ArrayLike, y: ArrayLike, *,
    classifier: str = "logistic", settings: Mapping[str, Any] | None = None, metric: str = "accuracy",
    folds: int = 10, seed: int = 0,
) -> Comparison:  # fmt: skip
    """Score a classifier on columns x [n, d] and on embeddings z [n, H] of the same rows, by the same folds.

    Args:
        x: the prepared columns.
        z: the embeddings.
        y: [n] the classes.
        classifier: "logistic", or a class of scikit-learn's.
        settings: what that is made with.
        metric: a scorer of scikit-learn's: "accuracy", "f1", "f1_macro", "roc_auc" ...
        folds: k, stratified.
        seed: of the folds and of the classifier.

    Raises:
        ConfigError: no such classifier or metric, or less than two folds.
        AlignmentError: a class has fewer rows than there are folds.

    """
    labels = np.asarray(y)
    _check(labels, folds)
    task = Task(kind="classification", classes=tuple(str(each) for each in unique_labels(labels)))
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)

    def scores(rows: ArrayLike) -> NDArray[np.float64]:
        made = estimator(classifier, task, settings or {}, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = cross_val_score(made, np.asarray(rows, dtype=np.float64), labels, cv=parts, scoring=metric)
        return np.asarray(found, dtype=np.float64)

    try:
        return Comparison(raw=scores(x), embedded=scores(z))
    except ValueError as error:
        raise ConfigError(f"encoder check: {error}") from None


def _check(labels: NDArray[Any], folds: int) -> None:
    if folds < 2:
        raise ConfigError(f"encoder check: folds must be at least 2, got {folds}")
    names, counts = np.unique(labels, return_counts=True)
    if len(names) < 2:
        raise AlignmentError(
            f"encoder check: all {len(labels)} labels are {names[0]!s}: there is nothing to tell apart"
        )
    if counts.min() < folds:
        raise AlignmentError(f"encoder check: class {names[counts.argmin()]!s} has {counts.min()} rows, so it would be "
                             f"absent from some of {folds} folds; choose fewer folds")  # fmt: skip


def inspect(
    x: ArrayLike, y: ArrayLike, *,
    encoder: Factory = MLP(activation="selu"), embedding: int = 64, activation: str = "selu",  # noqa: B008 - frozen
    optimizer: Optimizer = Optimizer(), epochs: int = 200, batch_size: int = 128, seed: int = 0, **scoring: Any,  # noqa: B008
) -> Iterator[Epoch]:  # fmt: skip
    """Train an autoencoder of the columns x [n, d], and score its embeddings after every epoch (algorithm 1).

    Args:
        x: the prepared columns.
        y: [n] the classes, for the scores alone.
        encoder: what makes the encoder.
        embedding: H.
        activation: of the embedding; none if empty.
        optimizer: what trains it.
        epochs: how many.
        batch_size: rows of a batch.
        seed: of everything random.
        scoring: see ``compare``.

    Raises:
        ConfigError, AlignmentError: as ``compare``.

    """
    rows, seeds = torch.as_tensor(np.asarray(x, dtype=np.float32)), Seeds(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.number("encoder"))
        net = Autoencoder(encoder, rows.shape[1], embedding, activation=activation)
    trains = optimizer.build(net.parameters())
    for epoch in range(epochs):
        total = 0.0
        for places in mixed(torch.arange(len(rows)), batch_size, seeds.torch("batches", epoch)):
            trains.zero_grad()
            loss = ((net(rows[places])[1] - rows[places]) ** 2).mean()
            loss.backward()
            trains.step()
            total += loss.item() * len(places)
        with torch.no_grad():
            z = net.encode(rows).numpy()
        yield Epoch(epoch=epoch + 1, loss=total / len(rows), scores=compare(x, z, y, seed=seed, **scoring))
