"""Compute losses and answers from the outputs of heads, for classification and regression."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from anyparty.core.types import Task
from anyparty.errors import ConfigError

# If a row is shorter than a vector register, torch computes its softmax one number at a time. Rows are therefore padded
# by classes of probability zero. The loss and the gradient of 2048 rows of 12 classes then take a quarter of the time.
LANES = 16
WORTH_PADDING = 4096  # rows are padded only if there are at least this many outputs (rows x classes)

Loss = Callable[[Tensor, Tensor], Tensor]
"""A user's loss: outputs [n, C] (regression: [n]) and labels y [n] -> the loss of each row [n], or their mean."""


def _of_rows(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the value of a user's loss for each row: outputs [n, C] or [n], y [n] -> [n].

    Raises:
        ConfigError: the result of ``loss`` is neither a number nor one number for each row.
    """
    found: object = loss(outputs, y)
    if isinstance(found, Tensor) and not found.ndim:  # the loss is a mean over rows: compute it for each row alone
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            found = torch.vmap(lambda row, label: loss(row.unsqueeze(0), label.unsqueeze(0)))(outputs, y)
    if not isinstance(found, Tensor) or found.shape != y.shape:
        got = list(found.shape) if isinstance(found, Tensor) else found
        raise ConfigError(f"loss: expected one number for each of {len(y)} rows, or their mean, got {got!r}")
    return found


def losses(task: Task, outputs: Tensor, y: Tensor, function: Loss | None = None) -> Tensor:
    """Return the loss of each output: outputs [..., C], y [...] -> [...].

    In classification the loss is the cross-entropy times the weight of the class. In regression the loss is the squared
    error of the standardised number. ``function``, a user's loss, replaces both.

    Raises:
        ConfigError: the outputs do not have C numbers for each label. A user's own rule may return an axis too many or
            too few.
    """
    C = outputs.shape[-1]
    fits = C == 1 if task.kind == "regression" else C >= task.outputs
    if outputs.shape[:-1] != y.shape or not fits:
        wanted, squeezed = [*y.shape, task.outputs], ""
        if outputs.ndim == y.ndim + 2 and outputs.shape[1] == 1:
            squeezed = ": take out the axis of a single head, as heads(...).squeeze(1) does"
        raise ConfigError(f"losses: expected outputs {wanted} for labels {list(y.shape)}, got {list(outputs.shape)}"
                          f"{squeezed}")  # fmt: skip
    if function is not None:
        rows = outputs.reshape(-1) if task.kind == "regression" else outputs.flatten(0, -2)
        each = _of_rows(function, rows, y.flatten()) if y.numel() else outputs.sum(-1).flatten()
        return (each * outputs.new_tensor(task.weights)[y.flatten()] if task.weights else each).view(y.shape)
    if task.kind == "regression":
        return (outputs.squeeze(-1) - y) ** 2
    flat, weight = outputs.flatten(0, -2), outputs.new_tensor(task.weights) if task.weights else None
    lacking = LANES - flat.shape[1]
    if lacking > 0 and flat.numel() >= WORTH_PADDING:
        flat = functional.pad(flat, (0, lacking), value=-math.inf)
        weight = None if weight is None else functional.pad(weight, (0, lacking))
    return functional.cross_entropy(flat, y.flatten(), weight, reduction="none").view(y.shape)


def answers(task: Task, outputs: Tensor) -> Tensor:
    """Return class probabilities, or in regression the number in the label's own units: [..., C] -> [..., C].

    In regression, answers are float64. In single precision, numbers near 1.7e9, such as dates in seconds, would be
    rounded to multiples of 128. On Apple's GPUs (device "mps"), which support only single precision, answers are
    float32.
    """
    if task.kind == "regression":
        wide = outputs if outputs.device.type == "mps" else outputs.double()
        return wide * task.scale + task.mean
    return outputs.softmax(dim=-1)
