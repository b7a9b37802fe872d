"""Compare a classifier's k-fold scores on an encoder's embeddings with its scores on the raw columns.

Irureta et al. (APC-VFL), appendix F, algorithm 1 and equations (11), (12). One party uses this to choose an encoder
before any federated run. No other party is involved and nothing is sent.

Notation  n rows, d columns, H width of an embedding, k folds.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 3))
    >>> found = compare(x, x @ rng.normal(size=(3, 8)), x[:, 0] > 0, folds=5)
    >>> found.alike(0.1)
    True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from anyparty.core.seeds import Seeds
from anyparty.data.batching import mixed
from anyparty.errors import ConfigError, Diverged
from anyparty.networks.encoders import MLP, Autoencoder, Factory
from anyparty.networks.optimizer import Optimizer
from anyparty.networks.sklearn_head import cross_validated


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderComparison:
    """Scores of one classifier on columns and on embeddings, with the same folds.

    Attributes:
        raw: [k], the scores on the columns.
        embedded: [k], the scores on the embeddings.

    """

    raw: NDArray[np.float64]
    embedded: NDArray[np.float64]

    @property
    def lost(self) -> float:
        """Mean score on the columns minus mean score on the embeddings; negative if the encoder helps."""
        return float(self.raw.mean() - self.embedded.mean())

    def alike(self, r: float) -> bool:
        """Return whether the mean score on the embeddings is at most r below the mean score on the columns (12)."""
        return self.lost <= r


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderEpoch:
    """One epoch of an encoder's training: its number (from 1), its loss, and the scores after it."""

    epoch: int
    loss: float
    scores: EncoderComparison


def compare(x: ArrayLike, z: ArrayLike, y: ArrayLike, **scoring: Any) -> EncoderComparison:
    """Score a classifier on columns x [n, d] and on embeddings z [n, H] of the same rows, with the same folds.

    Args:
        x: the prepared columns.
        z: the embeddings.
        y: [n] the classes.
        scoring: classifier, settings, metric, folds, seed: see ``cross_validated``.

    Raises:
        ConfigError, AlignmentError: as ``cross_validated``.

    """
    return EncoderComparison(raw=cross_validated(x, y, **scoring), embedded=cross_validated(z, y, **scoring))


def inspect(
    x: ArrayLike,
    y: ArrayLike,
    *,
    encoder: Factory = MLP(activation="selu"),  # noqa: B008 - frozen
    embedding: int = 64,
    activation: str = "selu",
    optimizer: Optimizer = Optimizer(),  # noqa: B008 - frozen
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
        embedding: H.
        activation: activation of the embedding; no activation if empty.
        optimizer: the optimizer; its schedule spans ``epochs``.
        epochs: number of epochs.
        every: number of epochs from one scoring of the embeddings to the next; the last epoch is always scored.
        batch_size: number of rows of a batch.
        seed: seed of all random choices.
        scoring: classifier, settings, metric, folds: see ``cross_validated``.

    Raises:
        ConfigError, AlignmentError: as ``cross_validated``; ConfigError also if epochs, every, batch_size or embedding
            is below 1.
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
        with torch.random.fork_rng(devices=[]):  # an encoder may draw random numbers, for dropout
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
