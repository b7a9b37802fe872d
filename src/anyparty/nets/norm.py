"""Batch normalisation where a batch has a single row of a party.

The mean and deviation over rows of one number are none, and torch refuses to train on them.  In vertical data such
batches are common: a party may have one row of a batch, or the last batch be of one row.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from anyparty.errors import ConfigError


def bear_single_rows(module: nn.Module) -> nn.Module:
    """Let a module's batch normalisation use its running statistics wherever a batch gives one number a channel.

    Raises:
        ConfigError: it keeps none.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            if not layer.track_running_stats:
                raise ConfigError(f"{layer} answers for a row by which others are in its batch, also in prediction, "
                                  f"and a batch may be of one: leave track_running_stats on")  # fmt: skip
            layer.register_forward_pre_hook(_rest, with_kwargs=True)
            layer.register_forward_hook(_resume, always_call=True)
    return module


def _rest(layer: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
    (x,) = *given, *named.values()
    if layer.training and x.numel() == x.shape[1]:
        layer.train(False)
        layer.resting = True  # type: ignore[assignment]


def _resume(layer: nn.Module, given: Any, made: Any) -> None:  # noqa: ARG001
    if layer.__dict__.pop("resting", False):
        layer.train()
