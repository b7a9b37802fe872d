"""Vectors by id: what is known of rows that have been seen, in whichever table and place they come back.

Letters   n rows that are remembered, B rows that are asked for, K parties with columns, M width of a vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from anyparty.nets.buffers import any_length


class Remembered(nn.Module):
    """A vector for every id that was given, and the parties that it rests on; saved and loaded like any weights.

    Ids are kept as numbers of 64 bits, of their text by BLAKE2b, and found again by those.

    Args:
        width: M.
        parties: K.

    """

    keys: Tensor
    vectors: Tensor
    took_part: Tensor

    def __init__(self, width: int, parties: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("vectors", torch.zeros(0, width))
        self.register_buffer("took_part", torch.zeros(0, parties, dtype=torch.bool))
        any_length(self, "keys", "vectors", "took_part")

    def remember(self, ids: Iterable[str], vectors: Tensor, took_part: Tensor) -> None:
        """Keep vectors [n, M] and the parties they rest on [n, K] under ids [n], in place of all that was kept."""
        keys, order = _keys(ids).sort()
        self.keys = keys.to(vectors.device)
        self.vectors, self.took_part = vectors[order].clone(), took_part[order].clone()

    def find(self, ids: Iterable[str]) -> Tensor:
        """Return where each id stands among what is remembered, -1 where it does not: [B] int64."""
        asked = _keys(ids).to(self.keys.device)
        if not len(self.keys):
            return torch.full_like(asked, -1)
        at = torch.searchsorted(self.keys, asked).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[at] == asked, at, -1)


def _keys(ids: Iterable[str]) -> Tensor:
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))
