"""scikit-learn's estimators as heads: fitted once to embeddings, saved without pickle, and used like a network.

Notation  n rows, H width of an embedding, C outputs.

A linear estimator (``logistic``, ``ridge``) is saved as its weights. Any other estimator is saved as its training rows,
all of which are the active party's own. When a saved model first predicts, the estimator is fitted to these rows again
with the same seed.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyparty.core.types import Task
from anyparty.errors import AlignmentError, ConfigError, PredictionError, nearest, some
from anyparty.networks.modules import any_length

NEVER = -1e4  # the logit of a class without training rows, so that its probability is zero
LINEAR = ("logistic", "ridge")


def estimator(name: str, task: Task, settings: Mapping[str, Any], seed: int) -> Any:
    """Return an unfitted scikit-learn estimator; ``name`` is the name of a class, "logistic" or "ridge".

    Raises:
        ConfigError: there is no estimator of this name for the task, or it does not accept these settings.
    """
    from sklearn.linear_model import LogisticRegression, Ridge  # noqa: PLC0415 - slow, and few runs need it
    from sklearn.utils import all_estimators  # noqa: PLC0415

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
    """Convert weights by class name to weights by class index.

    Settings use the names of classes, and estimators know only their indices.

    Raises:
        ConfigError: a class has no weight, or there is a weight for a class that does not exist.
    """
    named = {str(name): weight for name, weight in weights.items()}
    if named.keys() != set(task.classes):
        raise ConfigError(f"classifier: class_weight has a weight for each class by its name, here for "
                          f"{some(sorted(named))}, and the classes are {some(task.classes)}")  # fmt: skip
    return {place: named[name] for place, name in enumerate(task.classes)}


class FittedEstimator(nn.Module):
    """An estimator that is fitted once, and returns outputs [n, C] for embeddings [n, H].

    Args:
        name: the name of the estimator.
        task: the prediction task.
        inputs: H, the width of an embedding.
        settings: keyword arguments of the estimator.
        seed: seed of the estimator.

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
        """Fit the estimator to embeddings u [n, H] and labels y [n].

        Raises:
            AlignmentError: all labels have the same class, or the estimator rejects the rows.
        """
        if self.name in LINEAR:
            self.made = self._fit(u, y)
            self._keep_weights(self.made)
        else:
            self.rows, self.labels = u.detach().clone(), y.double()
            # The call of ``fit_again``, so that both give the same estimator.
            self.made = self._fit(self.rows, self.labels)

    def _fit(self, u: Tensor, y: Tensor) -> Any:
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415

        made = estimator(self.name, self.task, self.settings, int(self.seed))
        labels, extra = y.cpu().numpy(), {}
        if self.task.weights:
            if "sample_weight" not in inspect.signature(made.fit).parameters:
                raise ConfigError(f"train.balance = true weights rows, but scikit-learn's {self.name} takes no "
                                  "weights: leave it out, or take another classifier")  # fmt: skip
            extra["sample_weight"] = np.asarray(self.task.weights)[labels.astype(int)]
        if self.task.kind == "classification":
            labels = labels.astype(int)
            if len(np.unique(labels)) < 2:
                only = self.task.classes[labels[0]] if len(labels) else "none"
                raise AlignmentError(f"the classifier's {len(labels)} rows are all of one class, {only!r}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # an estimator that has not converged is usable
                return made.fit(u.detach().cpu().double().numpy(), labels, **extra)
        except ValueError as error:
            raise AlignmentError(f"classifier: {self.name!r} refuses its {len(labels)} rows: {error}") from None

    def _keep_weights(self, made: Any) -> None:
        weight, bias = torch.as_tensor(made.coef_).float(), torch.as_tensor(made.intercept_).float()
        if self.task.kind == "regression":
            self.weight, self.bias = weight.view(1, -1), bias.view(1)
        else:
            if len(made.classes_) == 2:  # the sigmoid of sklearn's single score equals the softmax of (0, score)
                weight, bias = torch.stack([0 * weight[0], weight[0]]), torch.stack([0 * bias[0], bias[0]])
            self.weight = weight.new_zeros(self.task.outputs, weight.shape[1])
            self.bias = bias.new_full((self.task.outputs,), NEVER)
            self.weight[made.classes_], self.bias[made.classes_] = weight, bias
        self.to(self.seed.device)

    def fit_again(self) -> None:
        """Fit a loaded estimator to its saved rows; do nothing if the estimator is already fitted or is linear."""
        if self.name not in LINEAR and self.made is None and len(self.rows):
            self.made = self._fit(self.rows, self.labels)

    def forward(self, u: Tensor) -> Tensor:
        """Return outputs [n, C]: logits, or in regression the standardised number."""
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
