"""Encoders: what a party computes from its own block, as data or as the user's own module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyparty.errors import ConfigError, nearest
from anyparty.nets.norm import bear_single_rows
from anyparty.nets.stacked import ACTIVATIONS, StackedMLP

Factory = Callable[[int, int], nn.Module]
"""A user's own encoder: (width of the prepared block, H) -> module that maps [B, width] to [B, H]."""


@dataclass(frozen=True, kw_only=True)
class MLP:
    """A multilayer perceptron: inputs -> hidden ... -> H, an activation after every hidden layer, none at the end."""

    hidden: tuple[int, ...] = (64,)
    activation: str = "relu"
    dropout: float = 0.0
    norm: bool = False

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"encoder: hidden widths must be at least 1, got {list(self.hidden)}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"encoder: no activation {self.activation!r}{nearest(self.activation, ACTIVATIONS)}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"encoder: dropout must lie in [0, 1), got {self.dropout}")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a fresh network [B, inputs] -> [B, outputs]."""
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers.append(nn.Linear(inputs, width))
            if self.norm:
                layers.append(nn.LayerNorm(width))
            layers.append(ACTIVATIONS[self.activation]())
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Copies(nn.Module):
    """M encoders over one block: [B, inputs] -> [B, M, H] (Combinatorial has one for every subset of the others)."""

    def __init__(self, encoder: Factory, copies: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.copies = copies
        plain = isinstance(encoder, MLP) and not (encoder.norm or encoder.dropout)
        if plain:
            assert isinstance(encoder, MLP)
            self.stack: nn.Module = StackedMLP(copies, (inputs, *encoder.hidden, outputs), encoder.activation)
        else:
            self.stack = nn.ModuleList(encoder(inputs, outputs) for _ in range(copies))

    def forward(self, x: Tensor) -> Tensor:
        """Encode the same rows with every copy."""
        if isinstance(self.stack, nn.ModuleList):
            return torch.stack([module(x) for module in self.stack], dim=1)
        return self.stack(x.unsqueeze(1).expand(-1, self.copies, -1))  # type: ignore[no-any-return]


def build(encoder: Factory, inputs: int, outputs: int, copies: int = 1, *, party: str = "") -> nn.Module:
    """Return a party's encoder [B, inputs] -> [B, H], or [B, M, H] for M copies.

    Its batch normalisation bears batches of a single row: see ``nets.norm``.

    Raises:
        ConfigError: the user's factory makes something else than a module, or is itself one.
    """
    if isinstance(encoder, nn.Module):
        raise ConfigError(f"party {party!r}: its encoder should be a function of (inputs, outputs) that makes one, "
                          f"not the module itself")  # fmt: skip

    def checked(width: int, embedding: int) -> nn.Module:
        try:
            module = encoder(width, embedding)
        except ConfigError as error:
            raise ConfigError(f"party {party!r}: {error}" if party else str(error)) from None
        if not isinstance(module, nn.Module):
            raise ConfigError(f"party {party!r}: its encoder must make a torch.nn.Module, got {type(module).__name__}")
        return bear_single_rows(module)

    if copies > 1:
        return Copies(encoder if isinstance(encoder, MLP) else checked, copies, inputs, outputs)
    return checked(inputs, outputs)
