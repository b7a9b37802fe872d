"""What training has reached: parties, or sets of parties, whose predictors a labelled row has changed at least once.

Networks that no labelled row ever reached still give numbers: those of their first weights.  A host keeps here what it
has trained, beside its heads, so that an answer never rests on the others.

Letters   B rows, K parties with columns, T sets of parties.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Sets = Callable[[Tensor], Tensor]
"""Which sets of parties rows train: observed [B, K] bool -> [T] bool."""


class Taught(nn.Module):
    """The parties whose blocks training has reached, and the sets, where a rule has a predictor for every one.

    Args:
        parties: K.
        sets: T, and which of them rows train; none without.

    """

    parties: Tensor
    sets: Tensor

    def __init__(self, parties: int, sets: tuple[int, Sets] | None = None) -> None:
        super().__init__()
        self._sets = sets
        self.register_buffer("parties", torch.zeros(parties, dtype=torch.bool))
        self.register_buffer("sets", torch.zeros(0 if sets is None else sets[0], dtype=torch.bool))

    @property
    def missed(self) -> list[int]:
        """The parties k that no row has reached; none before the first row of a training."""
        return (~self.parties).nonzero().squeeze(1).tolist() if self.parties.any() else []

    def note(self, observed: Tensor) -> None:
        """Note rows [B, K] that have trained."""
        self.parties |= observed.any(dim=0)
        if self._sets is not None and not bool(self.sets.all()):
            self.sets |= self._sets[1](observed)
