"""Gaussians: distributions as network outputs, and the combination of several parties' views of one latent vector.

All covariances are diagonal. Sources: Kingma, Welling 2014 (networks that output mean and deviation); FALSE-VFL,
equation (1) and appendix B (``aggregate``).

Notation  B rows, K parties, D width of the vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian N(mean, diag std^2) over vectors: mean and std [..., D]."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, outputs: Tensor, floor: float) -> Gaussian:
        """Convert a network's outputs [..., 2 D] to a Gaussian over [..., D].

        The first half is the mean. The deviation is softplus of the second half, plus ``floor``.
        """
        mean, raw = outputs.chunk(2, dim=-1)
        return cls(mean, functional.softplus(raw) + floor)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of x [..., D] -> [...]; leading dimensions are broadcast.

        >>> Gaussian(torch.zeros(2), torch.ones(2)).log_prob(torch.zeros(2))  # log 1 / (2 pi)
        tensor(-1.8379)
        """
        away = (x - self.mean) / self.std
        return -(0.5 * away.square() + self.std.log()).sum(dim=-1) - x.shape[-1] * HALF_LOG_2PI

    def at(self, noise: Tensor) -> Tensor:
        """Return the sample mean + std * noise, for standard normal ``noise`` [..., D]."""
        return self.mean + self.std * noise


class LogProb(torch.autograd.Function):
    """``Gaussian.of(outputs, floor).log_prob(x)``: outputs [..., 2 D], x [..., D] -> [...], without a gradient for x.

    If ``known`` [..., D] is given, the sum includes only the known numbers. The others may have any finite value.

    The gradient is computed here and not by autograd, because these tensors are as large as a decoder's outputs. One
    tensor of the outputs' width is stored instead of six tensors of half the width. A backward pass is a single
    product, and a batch takes two backward passes.
        a = (x - mean) / std        d/d mean = a / std      d/d raw = (a^2 - 1) / std * (1 - exp(floor - std))
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, x: Tensor, floor: float, known: Tensor | None = None) -> Tensor:
        """Return the log-density."""
        mean, raw = outputs.chunk(2, dim=-1)
        std = functional.softplus(raw).add_(floor)
        precise = std.reciprocal()
        away = (x - mean).mul_(precise)
        square = away.square()
        each = (0.5 * square).add_(std.log())
        count = x.shape[-1] if known is None else known.sum(dim=-1, dtype=x.dtype)
        if known is not None:
            each.mul_(known)
        found: Tensor = each.sum(dim=-1).neg_() - count * HALF_LOG_2PI
        if ctx.needs_input_grad[0]:
            slope = (floor - std).expm1_().neg_()  # derivative of softplus: sigmoid(raw) = 1 - exp(-softplus(raw))
            if known is not None:
                away.mul_(known)
                slope.mul_(known)
            by_raw = square.sub_(1).mul_(slope).mul_(precise)
            ctx.save_for_backward(torch.cat([away.mul_(precise), by_raw], dim=-1))
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient with respect to the network's outputs."""
        (by_outputs,) = ctx.saved_tensors
        return gradients[0].unsqueeze(-1) * by_outputs, None, None, None


def standard(x: Tensor) -> Tensor:
    """Return the log-density of x [..., D] under N(0, I) -> [...]."""
    return -0.5 * x.square().sum(dim=-1) - x.shape[-1] * HALF_LOG_2PI


def aggregate(mean: Tensor, variance: Tensor, observed: Tensor) -> Gaussian:
    """Return the Gaussian q(z | x^O) of FALSE-VFL's equation (1).

    Its mean is the mean of the observed parties' means. Its variance is the inverse of their summed precisions.

    Args:
        mean: [B, K, D], any value if not observed.
        variance: [B, K, D], any value if not observed.
        observed: [B, K] bool.

    Returns:
        A Gaussian over [B, D]; N(0, I) for a row that no party has.

    >>> one = torch.ones(1, 1, 1)
    >>> both = aggregate(torch.cat([one, 3 * one], 1), torch.cat([one, one / 3], 1), torch.tensor([[True, True]]))
    >>> both.mean.item(), both.std.square().item()  # precisions 1 + 3
    (2.0, 0.25)

    """
    seen = observed.unsqueeze(2)
    count = observed.sum(dim=1, keepdim=True)
    center = torch.where(seen, mean, 0.0).sum(dim=1) / count.clamp(min=1)
    precision = torch.where(seen, 1 / torch.where(seen, variance, 1.0), 0.0).sum(dim=1)
    return Gaussian(center, torch.where(count > 0, precision, 1.0).rsqrt())
