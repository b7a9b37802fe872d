"""From a head's outputs to a loss per row, and to an answer: the one place that knows the kinds of task."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from anyparty.terms import Task


def losses(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Return each output's own loss: outputs [..., C], y [...] -> [...].

    Cross-entropy for classes; squared error of the standardised number for regression.
    """
    if task.kind == "regression":
        return (outputs.squeeze(-1) - y) ** 2
    flat = functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
    return flat.view(y.shape)


def answers(task: Task, outputs: Tensor) -> Tensor:
    """Return class probabilities, or the number in the label's own units: [..., C] -> [..., C]."""
    if task.kind == "regression":
        return outputs * task.scale + task.mean
    return outputs.softmax(dim=-1)
