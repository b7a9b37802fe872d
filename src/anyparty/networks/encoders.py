"""Encoders for series and images: LSTM (Hochreiter, Schmidhuber 1997), ResNet, and a decoder of images."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor, nn

from anyparty.errors import ConfigError
from anyparty.networks.strict_fields import as_declared


@dataclass(frozen=True, kw_only=True)
class LSTM:
    """An LSTM on a series of T ``steps`` with F features each, flattened step by step: [B, T * F] -> [B, outputs].

    Attributes:
        steps: T, the length of the series.
        hidden: width of the state; the state of the last step is the output layer's input.

    """

    steps: int
    hidden: int = 128

    def __post_init__(self) -> None:
        as_declared(self, LSTM, "lstm")
        if self.steps < 1 or self.hidden < 1:
            raise ConfigError(f"lstm: steps {self.steps} and hidden {self.hidden} must be at least 1")

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network.

        Raises:
            ConfigError: the block's width is not a multiple of the number of steps.
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


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """A residual network on images of ``shape``, flattened in a party's block: [B, C * H * W] -> [B, outputs].

    Attributes:
        shape: channels, height, width.
        widths: the number of channels of each group of blocks; the first is also that of the first convolution.
        depths: the number of residual blocks in each group; the default is that of ResNet-18.

    """

    shape: tuple[int, int, int]
    widths: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        as_declared(self, ResNet, "resnet")
        if min(self.shape + self.widths + self.depths) < 1 or len(self.widths) != len(self.depths):
            raise ConfigError(
                f"resnet: shape {self.shape}, widths {self.widths} and depths {self.depths} must be "
                f"positive, with a width for every depth"
            )

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network.

        Raises:
            ConfigError: the block's width is not that of the images.
        """
        if inputs != prod(self.shape):
            raise ConfigError(
                f"resnet: images of shape {self.shape} have {prod(self.shape)} numbers, the block {inputs}"
            )
        before, stride = self.widths[0], 1
        layers: list[nn.Module] = [nn.Unflatten(1, self.shape), *_convolution(self.shape[0], before, 1), nn.ReLU()]
        for width, depth in zip(self.widths, self.depths, strict=True):
            for place in range(depth):
                layers.append(Residual(before, width, stride if place == 0 else 1))
                before = width
            stride = 2
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


def _convolution(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)


class Residual(nn.Module):
    """Two 3 x 3 convolutions with a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(inputs, outputs, stride), nn.ReLU(), *_convolution(outputs, outputs, 1)
        )
        same = inputs == outputs and stride == 1
        around = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.around = nn.Identity() if same else nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions' output to the skip connection: [B, C, H, W] -> [B, C', H', W']."""
        return nn.functional.relu(self.inner(x) + self.around(x))


@dataclass(frozen=True, kw_only=True)
class Deconvolution:
    """A decoder of images: latent vectors [B, D] -> [B, 2 C H W].

    The outputs are the flattened means of all pixels, followed by as many raw deviations.

    Attributes:
        shape: channels, height, width.
        widths: the number of channels before the first and before the second transposed convolution.

    """

    shape: tuple[int, int, int]
    widths: tuple[int, int] = (64, 32)

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a new network.

        Raises:
            ConfigError: the block's width is not that of the images.
        """
        if outputs != 2 * prod(self.shape):
            raise ConfigError(
                f"decoder: images of shape {self.shape} have {prod(self.shape)} numbers, the block {outputs // 2}"
            )
        return _Up(self.shape, self.widths, inputs)


class _Up(nn.Module):
    def __init__(self, shape: tuple[int, int, int], widths: tuple[int, int], inputs: int) -> None:
        super().__init__()
        self.shape = shape
        start = (widths[0], ceil(shape[1] / 4), ceil(shape[2] / 4))
        self.layers = nn.Sequential(
            nn.Linear(inputs, prod(start)),
            nn.ReLU(),
            nn.Unflatten(1, start),
            nn.ConvTranspose2d(widths[0], widths[1], 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(widths[1], 2 * shape[0], 4, 2, 1),
        )

    def forward(self, z: Tensor) -> Tensor:
        _, height, width = self.shape
        image: Tensor = self.layers(z)[:, :, :height, :width]  # [B, 2 C, H, W]
        mean, raw = image.chunk(2, dim=1)
        return torch.cat([mean.flatten(1), raw.flatten(1)], dim=1)
