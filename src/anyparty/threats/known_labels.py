"""Attacks on labels by a party that knows the labels of some of its rows: it fits a model to them.

Each attack fits the same kind of model, to other inputs.  The comparison is a model of the attacker's own columns and
the same known labels, which needs no federation (``Attack.alone``).

Source: Fu et al., "Label Inference Attacks Against Vertical Federated Learning", USENIX Security 2022 (model
completion).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from anyparty.threats.attack import Aid, Attack, Guess, Indices, source_of
from anyparty.threats.view import Floats, ReceivedView

MIN_KNOWN = 4  # least number of known rows to which a model is fitted
PENALTIES = np.logspace(-3, 4, 15)
Input = tuple[str, Indices, Floats]  # the source in words, the rows [n], and their values [n, D]


class KnownLabelsAttack(Attack):
    """An attack that fits a linear model to the known labels."""

    informed = True
    assumes = "labels of some of its rows"

    @abstractmethod
    def inputs(self, view: ReceivedView) -> list[Input]:
        """Return the inputs of the models, one for each guess."""

    def infer(self, view: ReceivedView, aid: Aid) -> list[Guess]:
        """Return one guess for each input that has known rows."""
        guesses = (fitted(self.model(aid), *each, aid) for each in self.inputs(view))
        return [guess for guess in guesses if guess is not None]

    def alone(self, view: ReceivedView, aid: Aid, rows: Indices) -> Guess | None:
        """Return the guess from the attacker's own columns and the same known labels."""
        own = np.intersect1d(np.union1d(rows, aid.rows), view.held)
        return fitted(linear_model(aid), "own columns", own, view.columns(own), aid) if len(own) else None

    def model(self, aid: Aid) -> Any:
        """Return the unfitted model, as in scikit-learn."""
        return linear_model(aid)


def linear_model(aid: Aid) -> Any:
    """Return an unfitted logistic regression with equal weights of the classes; for numbers, a ridge regression."""
    from sklearn.linear_model import LogisticRegression, RidgeCV  # noqa: PLC0415 - takes a second
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    linear = LogisticRegression(max_iter=2000, class_weight="balanced") if aid.classes else RidgeCV(PENALTIES)
    return make_pipeline(StandardScaler(), linear)


def fitted(model: Any, source: str, rows: Indices, values: Floats, aid: Aid) -> Guess | None:
    """Fit a model to the known rows, and return its guess; ``None`` if a class has no known row."""
    where, known = aid.of(rows)
    if len(where) < MIN_KNOWN or (aid.classes and len(np.unique(known)) < aid.classes):
        return None
    model.fit(values[where], known)
    if not aid.classes:
        return Guess(rows=rows, values=model.predict(values), source=source)
    share = model.predict_proba(values)
    best = share.argmax(axis=1).astype(np.int64)
    if aid.classes == 2:
        return Guess(rows=rows, values=share[:, 1], classes=best, source=source)
    return Guess(rows=rows, values=best.astype(np.float64), source=source)


class ModelCompletion(KnownLabelsAttack):
    """Fit a head on the embeddings of the attacker's own trained network: the passive form of model completion."""

    name = "model-completion"
    paper = "Fu et al. 2022"

    def inputs(self, view: ReceivedView) -> list[Input]:
        """Return the embeddings that the party sent in the last epoch of the last stage in which it sent some."""
        sent = [each for each in view.row_values("last", sent=True) if each.tag in {"embedding", "representation"}]
        return [(source_of(each), each.rows, each.values) for each in sent[-1:]]


class MessageRegression(KnownLabelsAttack):
    """Fit a model on all values that the party received of a row, joined over stages, senders and tags."""

    name = "message-regression"
    paper = "this project"

    def inputs(self, view: ReceivedView) -> list[Input]:
        """Return all received values of the rows that every kind of message is about."""
        received = [each for each in view.row_values("first") if each.values.std(axis=0).any()]
        if not received:
            return []
        rows = received[0].rows
        for each in received[1:]:
            rows = np.intersect1d(rows, each.rows)
        joined = [each.values[np.searchsorted(each.rows, rows)] for each in received]
        return [("all messages", rows, np.concatenate(joined, axis=1))] if len(rows) else []


class RowUse(KnownLabelsAttack):
    """Fit a forest on what training announces of a row: its use, its stages, its set of parties, and its position.

    This attack asks whether the split, the choice of training rows, the pattern of missing blocks (only sent with
    ``train.batches = "by-pattern"``) or the order of the aligned rows reveal labels.
    """

    name = "row-use"
    paper = "this project"

    def inputs(self, view: ReceivedView) -> list[Input]:
        """Return the entries of the messages ``setup`` and ``plan`` about the party's own rows."""
        if view.rows is None or not view.announced:
            return []
        features = [np.arange(view.rows.n, dtype=np.float64)]
        for message in view.announced:
            if "use" in message:
                features.append(message["use"].double().numpy())
            for name in ("train", "validation", "scored"):
                if name in message:
                    features.append(np.isin(features[0], message[name].numpy()).astype(np.float64))
            if len(message.get("patterns", ())):
                pattern = np.full(view.rows.n, -1.0)
                pattern[message["train"].numpy()] = message["patterns"].numpy()
                features.append(pattern)
        return [("messages setup and plan", view.held, np.stack(features, axis=1)[view.held])]

    def model(self, aid: Aid) -> Any:
        """Return an unfitted random forest."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor  # noqa: PLC0415 - takes a second

        kind = RandomForestClassifier if aid.classes else RandomForestRegressor
        return kind(100, min_samples_leaf=2, random_state=aid.seed)
