"""Vertical federated learning that works when data is missing."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from anyparty.api import runs
    from anyparty.api.federation import Federation
    from anyparty.api.imputation import impute, log_likelihood
    from anyparty.api.model import Model
    from anyparty.core.predictions import Predictions
    from anyparty.data import datasets
    from anyparty.experiments.compare import compare
    from anyparty.experiments.comparison import Comparison
    from anyparty.methods.method_registry import METHODS, method
    from anyparty.networks.encoders import MLP
    from anyparty.networks.optimizer import Optimizer
    from anyparty.training.callbacks import Callback

_PUBLIC = {
    "METHODS": "anyparty.methods.method_registry",
    "method": "anyparty.methods.method_registry",
    "MLP": "anyparty.networks.encoders",
    "Optimizer": "anyparty.networks.optimizer",
    "Predictions": "anyparty.core.predictions",
    "Federation": "anyparty.api.federation",
    "compare": "anyparty.experiments.compare",
    "Comparison": "anyparty.experiments.comparison",
    "impute": "anyparty.api.imputation",
    "log_likelihood": "anyparty.api.imputation",
    "Model": "anyparty.api.model",
    "Callback": "anyparty.training.callbacks",
}

_MODULES = {"runs": "anyparty.api.runs", "datasets": "anyparty.data.datasets"}

_RENAMED = {"Watch": "Callback"}  # former public name -> new name; former names still work

__all__ = [
    "METHODS",
    "MLP",
    "Callback",
    "Comparison",
    "Federation",
    "Model",
    "Optimizer",
    "Predictions",
    "__version__",
    "compare",
    "datasets",
    "impute",
    "log_likelihood",
    "method",
    "runs",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import anyparty`` does not import torch."""
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"anyparty.{name} is now called anyparty.{new}", DeprecationWarning, stacklevel=2)
        return __getattr__(new)
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module 'anyparty' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
