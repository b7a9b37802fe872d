"""Vertical federated learning that works when data is missing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from anyparty.methods.table import METHODS, method
    from anyparty.nets.mlp import MLP
    from anyparty.nets.optimizer import Optimizer
    from anyparty.predictions import Predictions
    from anyparty.run.federation import Federation
    from anyparty.run.generative import impute, log_likelihood
    from anyparty.run.model import Model
    from anyparty.run.watch import Watch

_PUBLIC = {
    "METHODS": "anyparty.methods.table",
    "method": "anyparty.methods.table",
    "MLP": "anyparty.nets.mlp",
    "Optimizer": "anyparty.nets.optimizer",
    "Predictions": "anyparty.predictions",
    "Federation": "anyparty.run.federation",
    "impute": "anyparty.run.generative",
    "log_likelihood": "anyparty.run.generative",
    "Model": "anyparty.run.model",
    "Watch": "anyparty.run.watch",
}

__all__ = [
    "METHODS", "MLP", "Federation", "Model", "Optimizer", "Predictions", "Watch", "__version__", "impute",
    "log_likelihood", "method",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: importing anyparty alone imports no torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'anyparty' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
