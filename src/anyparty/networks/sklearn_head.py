"""scikit-learn's estimators as heads: fitted once to embeddings, saved without pickle, answering like any network.

Letters   n rows, H width of an embedding, C outputs.

A linear one (``logistic``, ``ridge``) is kept as its weights.  Any other is kept as the rows that it was fitted to, all
of them the active party's own, and fitted to them again by the same seed when a saved model first predicts.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import all_estimators
from torch import Tensor, nn

from anyparty.core.types import Task
from anyparty.errors import AlignmentError, ConfigError, PredictionError, nearest, some
from anyparty.networks.modules import any_length

NEVER = -1e4  # the output of a class that no training row has: its probability is zero
LINEAR = ("logistic", "ridge")


def estimator(name: str, task: Task, settings: Mapping[str, Any], seed: int) -> Any:
    """Return an unfitted scikit-learn estimator by its class's name, or "logistic" or "ridge".

    Raises:
        ConfigError: there is none of this name for the task, or it takes no such settings.
    """
    kind = "classifier" if task.kind == "classification" else "regressor"
    known = dict(all_estimators(type_filter=kind)) if name not in LINEAR else {}
    known |= {"logistic": LogisticRegression} if kind == "classifier" else {"ridge": Ridge}
    if name not in known:
        raise ConfigError(f"classifier: scikit-learn has no {kind} {name!r}{nearest(name, known)}")
    takes = inspect.signature(known[name]).parameters
    values = {"max_iter": 1000} if name == "logistic" else {}
    values |= {"random_state": seed % 2**32} if "random_state" in takes else {}
    own = dict(settings)
    if isinstance(own.get("class_weight"), Mapping):
        own["class_weight"] = _by_place(own["class_weight"], task)
    try:
        return known[name](**{**values, **own})
    except TypeError as error:
        raise ConfigError(f"classifier: {name!r} cannot be made with {dict(settings)}: {error}") from None


def _by_place(weights: Mapping[Any, Any], task: Task) -> dict[int, Any]:
    """Return weights by the place of their class: estimators see places, settings name classes.

    Raises:
        ConfigError: a class that the labels do not have, or one without a weight.
    """
    named = {str(name): weight for name, weight in weights.items()}
    if named.keys() != set(task.classes):
        raise ConfigError(f"classifier: class_weight has a weight for each class by its name, here for "
                          f"{some(sorted(named))}, and the classes are {some(task.classes)}")  # fmt: skip
    return {place: named[name] for place, name in enumerate(task.classes)}


class FittedEstimator(nn.Module):
    """An estimator that is fitted once, and gives outputs [n, C] for embeddings [n, H].

    Args:
        name: of the estimator.
        task: what is predicted.
        inputs: H.
        settings: the estimator's own.
        seed: what it draws from.

    """

    seed: Tensor
    weight: Tensor
    bias: Tensor
    rows: Tensor
    labels: Tensor

    def __init__(self, name: str, task: Task, inputs: int, settings: Mapping[str, Any], seed: int) -> None:
        super().__init__()
        self.name, self.task, self.settings = name, task, settings
        self.made: Any = None
        estimator(name, task, settings, seed)
        self.register_buffer("seed", torch.tensor(seed % 2**32))
        if name in LINEAR:
            self.register_buffer("weight", torch.zeros(task.outputs, inputs))
            self.register_buffer("bias", torch.zeros(task.outputs))
        else:
            self.register_buffer("rows", torch.zeros(0, inputs))
            self.register_buffer("labels", torch.zeros(0, dtype=torch.float64))
            any_length(self, "rows", "labels")

    def fit(self, u: Tensor, y: Tensor) -> None:
        """Fit to embeddings u [n, H] and labels y [n].

        Raises:
            AlignmentError: the labels are all of one class, or the estimator refuses the rows.
        """
        if self.name in LINEAR:
            self.made = self._fit(u, y)
            self._keep_weights(self.made)
        else:
            self.rows, self.labels = u.detach().clone(), y.double()
            self.made = self._fit(self.rows, self.labels)  # as it is fitted again when it is loaded

    def _fit(self, u: Tensor, y: Tensor) -> Any:
        made = estimator(self.name, self.task, self.settings, int(self.seed))
        labels, extra = y.cpu().numpy(), {}
        if self.task.weights:
            if "sample_weight" not in inspect.signature(made.fit).parameters:
                raise ConfigError(f"train.balance = true weighs rows, and scikit-learn's {self.name} takes no weights: "
                                  f"leave it out, or take another classifier")  # fmt: skip
            extra["sample_weight"] = np.asarray(self.task.weights)[labels.astype(int)]
        if self.task.kind == "classification":
            labels = labels.astype(int)
            if len(np.unique(labels)) < 2:
                only = self.task.classes[labels[0]] if len(labels) else "none"
                raise AlignmentError(f"the classifier's {len(labels)} rows are all of one class, {only!r}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the weights reached are as good as any epoch's
                return made.fit(u.detach().cpu().double().numpy(), labels, **extra)
        except ValueError as error:
            raise AlignmentError(f"classifier: {self.name!r} refuses its {len(labels)} rows: {error}") from None

    def _keep_weights(self, made: Any) -> None:
        weight, bias = torch.as_tensor(made.coef_).float(), torch.as_tensor(made.intercept_).float()
        if self.task.kind == "regression":
            self.weight, self.bias = weight.view(1, -1), bias.view(1)
        else:
            if len(made.classes_) == 2:  # sklearn's sigmoid of one score is the softmax of (0, score)
                weight, bias = torch.stack([0 * weight[0], weight[0]]), torch.stack([0 * bias[0], bias[0]])
            self.weight = weight.new_zeros(self.task.outputs, weight.shape[1])
            self.bias = bias.new_full((self.task.outputs,), NEVER)
            self.weight[made.classes_], self.bias[made.classes_] = weight, bias
        self.to(self.seed.device)

    def fit_again(self) -> None:
        """Fit what was loaded to the rows that it was fitted to; where it is fitted, or linear, that is nothing."""
        if self.name not in LINEAR and self.made is None and len(self.rows):
            self.made = self._fit(self.rows, self.labels)

    def forward(self, u: Tensor) -> Tensor:
        """Return outputs [n, C]: logits, or the standardised number."""
        if self.name in LINEAR:
            return nn.functional.linear(u, self.weight, self.bias)
        if not len(self.rows) or not len(u):
            return u.new_zeros(len(u), self.task.outputs)
        self.fit_again()
        given = u.detach().cpu().double().numpy()
        chances = np.zeros((len(u), self.task.outputs))
        try:
            if self.task.kind == "regression":
                return torch.as_tensor(self.made.predict(given)).float().view(-1, 1).to(u.device)
            if hasattr(self.made, "predict_proba"):
                chances[:, self.made.classes_] = self.made.predict_proba(given)
            else:
                chances[np.arange(len(u)), self.made.predict(given)] = 1
        except ValueError as error:
            raise PredictionError(f"classifier: {self.name!r}, fitted to {len(self.rows)} rows, gives no answer for "
                                  f"{len(u)}: {error}") from None  # fmt: skip
        return torch.as_tensor(chances).log().clamp(min=NEVER).float().to(u.device)
