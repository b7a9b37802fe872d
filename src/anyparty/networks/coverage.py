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


class TrainedParties(nn.Module):
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


class Connectivity(nn.Module):
    """Which parties share rows of training, and which have rows with a label, where rows without one teach too.

    Args:
        parties: K.

    """

    together: Tensor
    labelled: Tensor

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.register_buffer("together", torch.zeros(parties, parties, dtype=torch.bool))
        self.register_buffer("labelled", torch.zeros(parties, dtype=torch.bool))

    @property
    def missed(self) -> list[int]:
        """The parties k that no shared rows tie, by way of others or not, to one that has labelled rows."""
        return untied(self.together, self.labelled)

    def note(self, observed: Tensor, known: Tensor | None = None) -> None:
        """Note rows [B, K] that have trained, and which of them had a label that is ``known`` [B]."""
        if not bool(self.together.all()):
            self.together |= shared(observed)
        if known is not None:
            self.labelled |= observed[known].any(dim=0)


def shared(observed: Tensor) -> Tensor:
    """Return which parties have rows in common: [N, K] bool -> [K, K] bool."""
    there = observed.float()
    return there.T @ there > 0


def untied(together: Tensor, labelled: Tensor) -> list[int]:
    """Return the parties k that shared rows do not tie to a labelled one; none where no row has a label.

    >>> untied(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool), torch.tensor([True, False, False]))
    [2]
    """
    reached = labelled
    for _ in range(len(together)):
        reached = reached | together[reached].any(dim=0)
    return (~reached).nonzero().squeeze(1).tolist() if bool(labelled.any()) else []
