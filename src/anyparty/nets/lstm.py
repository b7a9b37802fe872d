"""A long short-term memory over a time series, as a party's encoder (Hochreiter, Schmidhuber 1997)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from anyparty.errors import ConfigError
from anyparty.nets.declared import as_declared


@dataclass(frozen=True, kw_only=True)
class LSTM:
    """Series of ``steps`` times some features, flat in a party's block, step by step: [B, T * F] -> [B, outputs].

    Attributes:
        steps: T, the length of the series.
        hidden: width of the memory; the last step's state is read.

    """

    steps: int
    hidden: int = 128

    def __post_init__(self) -> None:
        as_declared(self, LSTM, "lstm")
        if self.steps < 1 or self.hidden < 1:
            raise ConfigError(f"lstm: steps {self.steps} and hidden {self.hidden} must be at least 1")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a fresh network.

        Raises:
            ConfigError: the block's width is no multiple of the number of steps.
        """
        if inputs % self.steps:
            raise ConfigError(f"lstm: a block of width {inputs} does not hold {self.steps} steps of equal width")
        return _Series(self.steps, inputs // self.steps, self.hidden, outputs)


class _Series(nn.Module):
    def __init__(self, steps: int, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.split = nn.Unflatten(1, (steps, features))
        self.memory = nn.LSTM(features, hidden, batch_first=True)
        self.read = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.memory(self.split(x))
        read: Tensor = self.read(last[-1])
        return read
