"""Attacks on labels by gradients, without any known label.  The attacker is a party that receives gradients.

G [n, H] are the gradients of the loss by the attacker's embeddings, one row for each training row, from the first epoch
of a stage.  In a model whose last layer is linear, the gradient of a row is (p - y) W: its direction depends on the
class, its length on how wrong the prediction was.

Sources
- Li, Sun, Yang, Gao, Zhang, Xie, Wang, "Label Leakage and Protection in Two-Party Split Learning", ICLR 2022: norm and
  cosine.
- Fu et al., "Label Inference Attacks Against Vertical Federated Learning", USENIX Security 2022: the sign of gradients
  of the last layer (direct label inference).
- Sun, Yang, Yao, Wang, "Label Leakage and Protection from Forward Embedding in Vertical Federated Learning", 2022: the
  first singular direction.
- Liu, Lyu, "Clustering Label Inference Attack against Practical Split Learning", 2022: clusters, for several classes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from anyparty.threats.attack import Aid, Attack, Guess, Indices, gradients, source_of
from anyparty.threats.view import Floats, ReceivedView


class GradientAttack(Attack):
    """An attack that computes one number for each gradient; it separates two classes."""

    def infer(self, view: ReceivedView, aid: Aid) -> list[Guess]:
        """Return the scores of the rows, for each stage and sender of gradients."""
        found = []
        for received in gradients(view):
            values = np.asarray(self.scores(received.values))
            classes = split(values, self.threshold, aid.seed) if aid.classes else None
            found.append(Guess(rows=received.rows, values=values, classes=classes, named=False,
                               source=source_of(received), other=received.other))  # fmt: skip
        return found

    threshold: ClassVar[float | None] = 0.0  # the score between the two classes; None: searched by 2-means

    @abstractmethod
    def scores(self, G: Floats) -> Floats:
        """Return a score [n] for each gradient of G [n, H]."""

    def applies(self, classes: int) -> bool:
        """Return True for labels of two classes."""
        return classes == 2


class GradientNorm(GradientAttack):
    """Score = |g_n|: the gradients of the rare class are longer, because the model expects the frequent class."""

    name = "gradient-norm"
    paper = "Li et al. 2022"
    threshold = None

    def scores(self, G: Floats) -> Floats:
        """Return the logarithms of the gradients' lengths."""
        return np.asarray(np.log(np.linalg.norm(G, axis=1) + np.finfo(np.float64).tiny))


class GradientCosine(GradientAttack):
    """Score = cosine of g_n and the longest gradient: rows of one class have a positive cosine."""

    name = "gradient-cosine"
    paper = "Li et al. 2022"

    def scores(self, G: Floats) -> Floats:
        """Return the cosines of the gradients and the longest gradient; 0 for a gradient of zeros."""
        unit = unit_rows(G)
        return np.asarray(unit @ unit[np.linalg.norm(G, axis=1).argmax()])


class GradientSign(GradientAttack):
    """Score = sign of one coordinate of g_n, the one that is largest on average."""

    name = "gradient-sign"
    paper = "Fu et al. 2022"

    def scores(self, G: Floats) -> Floats:
        """Return the signs of the coordinate with the greatest mean absolute value."""
        return np.asarray(np.sign(G[:, np.abs(G).mean(axis=0).argmax()]))


class GradientDirection(GradientAttack):
    """Score = g_n . v, where v is the first right singular vector of G; also for labels that are numbers."""

    name = "gradient-direction"
    paper = "Sun et al. 2022"

    def scores(self, G: Floats) -> Floats:
        """Return the projections of the gradients on the first singular direction (not centred)."""
        return first_direction(G)

    def applies(self, classes: int) -> bool:
        """Return True for labels of two classes, and for numbers."""
        return classes in {0, 2}


class GradientClusters(Attack):
    """Cluster = k-means of the directions g_n / |g_n|, with as many clusters as classes."""

    name = "gradient-clusters"
    paper = "Liu, Lyu 2022"
    assumes = "the number of classes"

    def infer(self, view: ReceivedView, aid: Aid) -> list[Guess]:
        """Return the cluster of each row whose gradient is not zero, for each stage and sender of gradients."""
        found = []
        for received in gradients(view):
            moved = received.values.any(axis=1)
            unit = unit_rows(received.values[moved])
            if len(unit) > aid.classes:
                cluster = clusters(unit, aid.classes, aid.seed)
                found.append(Guess(rows=received.rows[moved], values=cluster.astype(np.float64), named=False,
                                   classes=cluster if aid.classes == 2 else None,
                                   source=source_of(received), other=received.other))  # fmt: skip
        return found

    def applies(self, classes: int) -> bool:
        """Return True for classes."""
        return classes > 0


def first_direction(G: Floats) -> Floats:
    """Project the rows of G [n, H] on its first right singular vector; return the scores [n]."""
    return np.asarray(G @ np.linalg.svd(G, full_matrices=False)[2][0])


def unit_rows(G: Floats) -> Floats:
    """Return the rows of G [n, H] with length 1; rows of zeros are unchanged."""
    norm = np.linalg.norm(G, axis=1, keepdims=True)
    return G / np.where(norm > 0, norm, 1.0)


def clusters(values: Floats, number: int, seed: int) -> Indices:
    """Return the cluster [n] of each row of ``values`` [n, D], by k-means."""
    from sklearn.cluster import KMeans  # noqa: PLC0415 - takes a second

    return np.asarray(KMeans(number, n_init=10, random_state=seed).fit_predict(values), dtype=np.int64)


def split(values: Floats, threshold: float | None, seed: int) -> Indices:
    """Return 1 for scores above the threshold, else 0: [n]; without a threshold, the cluster by 2-means."""
    if threshold is not None:
        return (values > threshold).astype(np.int64)
    return clusters(values[:, None], 2, seed)
