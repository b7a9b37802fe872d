"""Transposed convolutions: from a latent vector to the mean and deviation of every pixel of an image.

The decoder of images in FALSE-VFL ("transposed CNN", table 5, which gives no layers): one linear layer to a quarter of
the height and width, then two transposed convolutions that double both.  No normalisation over a batch: each vector is
decoded by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor, nn

from anyparty.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Deconvolution:
    """[B, D] -> [B, 2 C H W]: means of all pixels, flat as in a party's block, then as many for the deviations.

    Attributes:
        shape: channels, height, width.
        widths: channels before the first and before the second transposed convolution.

    """

    shape: tuple[int, int, int]
    widths: tuple[int, int] = (64, 32)

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a fresh network.

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
            nn.Linear(inputs, prod(start)), nn.ReLU(), nn.Unflatten(1, start),
            nn.ConvTranspose2d(widths[0], widths[1], 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(widths[1], 2 * shape[0], 4, 2, 1),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        _, height, width = self.shape
        image: Tensor = self.layers(z)[:, :, :height, :width]  # [B, 2 C, H, W]
        mean, raw = image.chunk(2, dim=1)
        return torch.cat([mean.flatten(1), raw.flatten(1)], dim=1)
