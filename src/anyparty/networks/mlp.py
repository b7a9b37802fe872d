"""Encoders of a party's own block: a multilayer perceptron, copies of an encoder, or the user's own module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyparty.errors import ConfigError, blamed, nearest
from anyparty.networks.heads import ACTIVATIONS, StackedMLP
from anyparty.networks.modules import bear_single_rows
from anyparty.networks.strict_fields import as_declared

Factory = Callable[[int, int], nn.Module]
"""A factory of encoders: (width of the prepared block, H) -> module that maps [B, width] to [B, H]."""


@dataclass(frozen=True, kw_only=True)
class MLP:
    """A multilayer perceptron: inputs -> hidden ... -> H. An activation follows every layer except the last one."""

    hidden: tuple[int, ...] = (64,)
    activation: str = "relu"
    dropout: float = 0.0
    norm: bool = False

    def __post_init__(self) -> None:
        as_declared(self, MLP, "encoder")
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"encoder: hidden widths must be at least 1, got {list(self.hidden)}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"encoder: no activation {self.activation!r}{nearest(self.activation, ACTIVATIONS)}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"encoder: dropout must lie in [0, 1), got {self.dropout}")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network [B, inputs] -> [B, outputs]."""
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
    """M encoders of one block: [B, inputs] -> [B, M, H].

    Combinatorial has one of them for every subset of the other parties.
    """

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


def _guarded(module: nn.Module, width: int, outputs: int, whose: str, holds: str) -> nn.Module:
    """Give a user's own module copies of its inputs, and check the shape of its outputs."""

    def look(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        wanted = [*given[0].shape[:-1], outputs]
        if not isinstance(made, Tensor):
            raise ConfigError(f"{whose}its encoder should give a tensor {wanted}, it gives a {type(made).__name__}")
        if list(made.shape) != wanted:
            raise ConfigError(f"{whose}its encoder should give {wanted}{holds and f', {holds}'}, it gives "
                              f"{list(made.shape)}")  # fmt: skip
        if made.dtype != given[0].dtype:
            raise ConfigError(f"{whose}its encoder should give {given[0].dtype}, it gives {made.dtype}")

    module.float()
    module.register_forward_pre_hook(lambda _, given: (given[0].clone(), *given[1:]))
    module.register_forward_hook(look)
    _try(module, width, whose)
    return module


def _try(module: nn.Module, width: int, whose: str) -> None:
    """Reject a module that fails on two rows or on one row, or whose output has no gradient.

    Lazy layers get their widths in these trials.
    """
    training = {part: part.training for part in module.modules()}
    module.eval()
    for rows in (2, 1):
        try:
            with torch.random.fork_rng(devices=[]):  # the module may draw numbers, which must not change later draws
                made = module(torch.zeros(rows, width))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{whose}its encoder fails on [{rows}, {width}] zeros, on which it is tried on the CPU "
                              f"before it is trained: {blamed(error)}") from error  # fmt: skip
        if not made.requires_grad and any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(f"{whose}its encoder gives no gradient, so that it could not be trained: detach nothing "
                              f"in its forward, and leave torch.no_grad() out")  # fmt: skip
    for part, as_before in training.items():
        part.training = as_before


def build(
    encoder: Factory, inputs: int, outputs: int, copies: int = 1, *, party: str = "", holds: str = ""
) -> nn.Module:  # fmt: skip
    """Return a party's encoder [B, inputs] -> [B, H], or [B, M, H] for M copies.

    Its batch normalisation accepts batches of a single row (see ``modules``). A user's own module computes in single
    precision on a copy of its input, so that it may change the copy. If its output has another shape, the error names
    the party. ``holds`` describes the output for that error, if it is not an embedding.

    Raises:
        ConfigError: the user's factory fails, does not return a module, is itself a module, or does not accept two
            widths; or its module fails or gives no gradient (the message includes the line).
    """
    if isinstance(encoder, nn.Module):
        raise ConfigError(f"party {party!r}: its encoder should be a function of (inputs, outputs) that makes one, "
                          f"not the module itself")  # fmt: skip

    def checked(width: int, embedding: int) -> nn.Module:
        whose = f"party {party!r}: " if party else ""
        try:
            module = encoder(width, embedding)
            if not isinstance(module, nn.Module):
                raise ConfigError(f"its encoder must make a torch.nn.Module, got {type(module).__name__}")
            bear_single_rows(module)
        except ConfigError as error:
            raise ConfigError(whose + str(error).removeprefix(whose)) from None
        except Exception as error:
            raise ConfigError(f"{whose}its encoder cannot be made of (inputs, outputs) = {(width, embedding)}: "
                              f"{blamed(error)}") from error  # fmt: skip
        return module if isinstance(encoder, MLP) else _guarded(module, width, embedding, whose, holds)

    if copies > 1:
        return Copies(encoder if isinstance(encoder, MLP) else checked, copies, inputs, outputs)
    return checked(inputs, outputs)
