"""Random numbers for FALSE-VFL's samples in prediction, which depend only on the row and not on its batch.

The active party draws the samples of z. Every row has its own numbers. Numbers common to all rows would give all rows
the same sampling error, which a mean over rows would not remove. A row's numbers are independent: they are neither
pairs of opposite sign nor balanced otherwise. With balanced numbers, a party that gets a row's samples could compute
the posterior's mean, which may be another party's embedding of the row (decision 14).

A party draws its own block in rows that it does not have. These numbers are common to all rows, and balanced. The party
does not know these rows' ids, and sends no sample.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import torch
from torch import Generator, Tensor, nn

from anyparty.core.seeds import Seeds

KEY = 32


class SampleStreams(nn.Module):
    """The active party's key to the random numbers of z, saved with its part of the model.

    Attributes:
        key: [32] uint8. The key is zero if the run has no secret, and in models of earlier versions. The numbers then
            follow from the run's seed.

    """

    key: Tensor

    def __init__(self, seeds: Seeds) -> None:
        super().__init__()
        key = torch.zeros(KEY, dtype=torch.uint8)
        if seeds.secret:
            key = torch.randint(256, (KEY,), dtype=torch.uint8, generator=seeds.own.torch("predictions"))
        self.register_buffer("key", key)

    @property
    def secret(self) -> bool:
        """True if there is a key."""
        return bool(self.key.any())

    def normal(self, seeds: Seeds, there: Tensor, names: pl.Series | None, L: int, width: int) -> Tensor:
        """Return standard normal numbers for rows: [L, B, width].

        The numbers of a row depend on its id in ``names`` [B] and on the parties that have the row, ``there`` [B, K]. A
        party that alone has a row can compute the row's numbers. It must not know the numbers that are used if other
        parties also have the row. Rows without an id have the same numbers if the same parties have them. Without a
        key, the numbers follow from ``seeds``.
        """
        own = Seeds(0, self.key.cpu().numpy().tobytes()).own if self.secret else seeds
        drawn = torch.empty(len(there), L, width)
        ids = [None] * len(there) if names is None else names.to_list()
        for n, (parties, name) in enumerate(zip(there.tolist(), ids, strict=True)):
            row = ["samples", "".join("1" if here else "0" for here in parties)] + ([] if name is None else [name])
            torch.randn(L, width, generator=own.torch(*row), out=drawn[n])
        return drawn.transpose(0, 1).contiguous().to(there.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}key", torch.zeros_like(self.key))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def balanced(L: int, width: int, generator: Generator) -> Tensor:
    """Return L balanced vectors of standard normal numbers, [L, width]; each single vector is standard normal.

    In each dimension, each of L intervals of equal probability contains one of the L numbers (Latin hypercube; McKay,
    Beckman, Conover, Technometrics 1979). The mean over the vectors is therefore nearly exact for a function that is a
    sum of functions of one dimension each.
    """
    lots = torch.rand(L, width, 2, generator=generator, dtype=torch.float64)
    share = (lots[..., 0].argsort(dim=0) + lots[..., 1]) / L
    drawn: Tensor = torch.special.ndtri(share.clamp(min=1e-12))
    return drawn.float()
