"""Attacks on a party's columns by a party that receives its embeddings, and knows the columns of some of its rows.

Sources
- He, Zhang, Lee, "Model Inversion Attacks Against Collaborative Inference", ACSAC 2019: a decoder of embeddings.
- Luo, Wu, Xiao, Ooi, "Feature Inference Attack on Model Predictions in Vertical Federated Learning", ICDE 2021:
  equality solving for linear models.
- Song, Shmatikov, "Overlearning Reveals Sensitive Attributes", ICLR 2020: attributes from embeddings.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from anyparty.threats.attack import Aid, Attack, Guess, Indices, Target, source_of
from anyparty.threats.known_labels import MIN_KNOWN, PENALTIES
from anyparty.threats.view import GRADIENT, Floats, ReceivedView


class ColumnAttack(Attack):
    """An attack that fits a model from a victim's messages to the victim's columns, on the known rows."""

    target: ClassVar[Target] = "columns"
    informed = True
    assumes = "the victim's columns of some rows"

    def infer(self, view: ReceivedView, aid: Aid) -> list[Guess]:
        """Return one guess for each stage in which the victim sent values of rows, from the stage's last epoch."""
        found = []
        for received in view.row_values("last"):
            if received.other == aid.victim and received.tag != GRADIENT:
                where, known = aid.of(received.rows)
                if len(where) >= MIN_KNOWN and received.values.std(axis=0).any():
                    values = self.decoded(received.values, where, known, aid.seed)
                    found.append(Guess(rows=received.rows, values=values, source=source_of(received)))
        return found

    def alone(self, view: ReceivedView, aid: Aid, rows: Indices) -> Guess | None:
        """Return the guess of the same model from the attacker's own columns of the rows that it has."""
        own = np.intersect1d(np.union1d(rows, aid.rows), view.held)
        where, known = aid.of(own)
        if len(where) < MIN_KNOWN:
            return None
        return Guess(rows=own, values=self.decoded(view.columns(own), where, known, aid.seed), source="own columns")

    @abstractmethod
    def decoded(self, h: Floats, where: Indices, known: Floats, seed: int) -> Floats:
        """Return the guess [n, D] from embeddings h [n, H]; rows h[where] have the columns ``known`` [k, D]."""


class EmbeddingInversion(ColumnAttack):
    """Decode the columns: linearly, and if enough rows are known, with a network that corrects the linear decoder."""

    name = "embedding-inversion"
    paper = "He, Zhang, Lee 2019"

    def decoded(self, h: Floats, where: Indices, known: Floats, seed: int) -> Floats:
        """Return the linear decoder's guess, corrected by a network that is fitted to its errors."""
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - takes a second
        from sklearn.linear_model import RidgeCV  # noqa: PLC0415
        from sklearn.neural_network import MLPRegressor  # noqa: PLC0415
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        z = StandardScaler().fit(h[where]).transform(h)
        linear = RidgeCV(PENALTIES).fit(z[where], known)
        guess = np.reshape(linear.predict(z), (len(z), -1))
        if len(where) < 100:  # too few rows for the network's own validation rows
            return guess
        network = MLPRegressor(hidden_layer_sizes=(64,), alpha=0.1, early_stopping=True, n_iter_no_change=20,
                               random_state=seed, max_iter=300)  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(z[where], known - guess[where])
        return np.asarray(guess + np.reshape(network.predict(z), guess.shape))


class EqualitySolving(ColumnAttack):
    """Solve the linear equations [h, 1] M = x of H + 1 known rows: exact if the encoder is linear and has H >= D."""

    name = "equality-solving"
    paper = "Luo et al. 2021"

    def decoded(self, h: Floats, where: Indices, known: Floats, seed: int) -> Floats:  # noqa: ARG002
        """Return the solution with the smallest norm from the first H + 1 known rows, or from all of them."""
        few = where[: h.shape[1] + 1]
        extended = np.column_stack([h, np.ones(len(h))])
        solution = np.linalg.lstsq(extended[few], known[: len(few)], rcond=1e-6)[0]
        return np.asarray(extended @ solution)


class AttributeInference(ColumnAttack):
    """Guess yes/no attributes, each by a logistic regression on embeddings, from few known rows."""

    name = "attribute-inference"
    paper = "Song, Shmatikov 2020"
    target = "attributes"

    def decoded(self, h: Floats, where: Indices, known: Floats, seed: int) -> Floats:  # noqa: ARG002
        """Return each attribute's probability [n, A]; one half if the known rows do not differ in the attribute."""
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        z = StandardScaler().fit(h).transform(h)
        guess = np.full((len(h), known.shape[1]), 0.5)
        for attribute, column in enumerate(known.T):
            if len(np.unique(column)) == 2:
                logistic = LogisticRegression(max_iter=2000, class_weight="balanced").fit(z[where], column)
                guess[:, attribute] = logistic.predict_proba(z)[:, 1]
        return guess
