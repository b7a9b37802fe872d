"""One root seed, many named streams.

Every random choice asks for a stream by name, so that adding one choice never moves another, and a run that
resumes at epoch 7 draws what the uninterrupted run drew there.

    >>> Seeds(7).numpy("split").integers(100) == Seeds(7).numpy("split").integers(100)
    np.True_
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Seeds:
    """The root of all named random streams of a run."""

    root: int

    def number(self, *name: str | int) -> int:
        """Return the 63-bit seed of the stream ``name``."""
        text = "/".join(str(part) for part in (self.root, *name))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1

    def torch(self, *name: str | int) -> torch.Generator:
        """Return a fresh torch generator (CPU) for the stream ``name``."""
        return torch.Generator().manual_seed(self.number(*name))

    def numpy(self, *name: str | int) -> np.random.Generator:
        """Return a fresh numpy generator for the stream ``name``."""
        return np.random.default_rng(self.number(*name))
