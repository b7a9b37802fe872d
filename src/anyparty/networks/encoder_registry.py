"""List, by name, all networks that can be described as data. A saved model refers to its encoders by these names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from anyparty.networks.encoders import LSTM, ResNet
from anyparty.networks.mlp import MLP, Factory

ENCODERS: dict[str, type[MLP | ResNet | LSTM]] = {"mlp": MLP, "resnet": ResNet, "lstm": LSTM}


def describe(encoder: Factory) -> dict[str, Any] | None:
    """Return the description of an encoder as data; ``None`` for a user's own encoder.

    >>> describe(MLP(hidden=(8,)))["hidden"]
    (8,)
    """
    name = next((name for name, kind in ENCODERS.items() if isinstance(encoder, kind)), None)
    return None if name is None else {"kind": name, **asdict(encoder)}  # type: ignore[call-overload]


def restore(about: Mapping[str, Any]) -> Factory:
    """Return the encoder of a description from ``describe``, which may have been converted to JSON and back."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    return ENCODERS[values.pop("kind")](**values)
