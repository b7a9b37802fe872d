"""Losses and answers from a head's outputs, for every kind of task."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional

from anyparty.core.types import Task
from anyparty.errors import ConfigError

# If a row is shorter than a vector register, torch computes its softmax number by number. With padding by classes of
# probability zero, the loss and the gradient of 2048 rows of 12 classes take a quarter of the time.
LANES = 16
WORTH_PADDING = 4096  # the smallest count of outputs for which this is worthwhile


def losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each output: outputs [..., C], y [...] -> [...].

    The loss is the cross-entropy times the weight of the class, or the squared error of the standardised number.

    Raises:
        ConfigError: outputs do not have C numbers for each label, because a user's own rule has an axis too many or too
            few.
    """
    if outputs.shape[:-1] != y.shape or not _enough(task, outputs):
        wanted, squeezed = [*y.shape, task.outputs], ""
        if outputs.ndim == y.ndim + 2 and outputs.shape[1] == 1:
            squeezed = ": take out the axis of a single head, as heads(...).squeeze(1) does"
        raise ConfigError(f"losses: expected outputs {wanted} for labels {list(y.shape)}, got {list(outputs.shape)}"
                          f"{squeezed}")  # fmt: skip
    if task.kind == "regression":
        return (outputs.squeeze(-1) - y) ** 2
    flat, weight = outputs.flatten(0, -2), outputs.new_tensor(task.weights) if task.weights else None
    lacking = LANES - flat.shape[1]
    if lacking > 0 and flat.numel() >= WORTH_PADDING:
        flat = functional.pad(flat, (0, lacking), value=-math.inf)
        weight = None if weight is None else functional.pad(weight, (0, lacking))
    return functional.cross_entropy(flat, y.flatten(), weight, reduction="none").view(y.shape)


def _enough(task: Task, outputs: Tensor) -> bool:
    """Return whether outputs have one number for a regression, or at least one number for every class."""
    return outputs.shape[-1] == 1 if task.kind == "regression" else outputs.shape[-1] >= task.outputs


def answers(task: Task, outputs: Tensor) -> Tensor:
    """Return class probabilities, or the number in the label's own units: [..., C] -> [..., C].

    Numbers are float64, because in single precision all numbers near 1.7e9, such as dates in seconds, are multiples of
    128. Apple's GPUs support single precision only.
    """
    if task.kind == "regression":
        wide = outputs if outputs.device.type == "mps" else outputs.double()
        return wide * task.scale + task.mean
    return outputs.softmax(dim=-1)
