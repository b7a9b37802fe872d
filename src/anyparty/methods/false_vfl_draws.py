"""What FALSE-VFL's samples are drawn with in prediction, where an answer must depend on the row alone.

Whoever knows these numbers reads the posterior from two samples, and takes his own view out of it (decision 14).  So
every set of parties that may have a row has numbers of its own: those of rows that one party has alone, who can compute
them, tell nothing of rows that another has, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyparty.seeds import Seeds

KEY = 32


class Draws(nn.Module):
    """The active party's key to these numbers, kept with its part of the model.

    Attributes:
        key: [32] uint8; zeros where the run keeps no secret, and in models of before it was kept: then all rows share
            numbers that follow from the run's seed.

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
        """Whether there is a key."""
        return bool(self.key.any())

    def normal(self, there: Tensor, L: int, width: int) -> Tensor:
        """Return standard normal numbers of rows by who is ``there`` [B, K]: [L, B, width]."""
        own = Seeds(0, self.key.cpu().numpy().tobytes()).own
        sets, which = torch.unique(there, dim=0, return_inverse=True)
        drawn = np.empty((len(sets), L, width), dtype=np.float32)
        for number, parties in enumerate(sets.tolist()):
            who = "".join("1" if here else "0" for here in parties)
            own.numpy("samples", who).standard_normal(out=drawn[number], dtype=np.float32)
        return torch.from_numpy(drawn).to(there.device)[which].transpose(0, 1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}key", torch.zeros_like(self.key))
        super()._load_from_state_dict(state_dict, prefix, *rest)
