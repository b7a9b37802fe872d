"""ResNet-18 for small images, as a party's encoder.

He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", CVPR 2016, in the form that works on 32 x 32 and
smaller: a 3 x 3 first convolution of stride 1 and no max-pooling.  The published LASER-VFL experiments use widths
32, 64, 128, 256 for CIFAR-10 and 64, 128, 256, 512 for CIFAR-100.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from anyparty.errors import ConfigError
from anyparty.nets.declared import as_declared


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """Images of ``shape`` (channels, height, width), flat in a party's block: [B, C * H * W] -> [B, outputs].

    Attributes:
        shape: channels, height, width.
        widths: channels of the four groups of blocks; the first is also that of the first convolution.
        depths: residual blocks in each group; two each is ResNet-18.

    """

    shape: tuple[int, int, int]
    widths: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 2, 2)

    def __post_init__(self) -> None:
        as_declared(self, ResNet, "resnet")
        if min(self.shape + self.widths + self.depths) < 1 or len(self.widths) != len(self.depths):
            raise ConfigError(f"resnet: shape {self.shape}, widths {self.widths} and depths {self.depths} must be "
                              f"positive, with a width for every depth")  # fmt: skip

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a fresh network.

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
    """Two 3 x 3 convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolution(inputs, outputs, stride), nn.ReLU(), *_convolution(outputs, outputs, 1)
        )
        same = inputs == outputs and stride == 1
        around = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.around = nn.Identity() if same else nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        """Add both ways: [B, C, H, W] -> [B, C', H', W']."""
        return nn.functional.relu(self.inner(x) + self.around(x))
