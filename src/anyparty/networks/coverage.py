"""Record the parties, or sets of parties, whose predictors have been trained on at least one labelled row.

A network that was never trained on a labelled row still returns numbers, which depend only on its initial weights. A
host therefore saves which of its heads it has trained, so that an answer never depends on an untrained head.

Notation  B rows, K parties with columns, T sets of parties.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Sets = Callable[[Tensor], Tensor]
"""A function that marks the sets of parties whose predictors a batch trains: observed [B, K] bool -> [T] bool."""


class TrainedParties(nn.Module):
    """A record of the parties with at least one training row, and of the sets of parties with a trained predictor.

    Only some rules have predictors for sets of parties.

    Args:
        parties: K, the number of parties with columns.
        sets: the number T, and the function that marks the sets trained by given rows; ``None`` if the rule has no
            predictors for sets.

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
        """Indices k of the parties without a training row; empty if no row has been trained on yet."""
        return (~self.parties).nonzero().squeeze(1).tolist() if self.parties.any() else []

    def note(self, observed: Tensor) -> None:
        """Add trained rows to the record; ``observed`` [B, K] bool marks the parties that have each row."""
        self.parties |= observed.any(dim=0)
        if self._sets is not None and not bool(self.sets.all()):
            self.sets |= self._sets[1](observed)


class Connectivity(nn.Module):
    """A record of the pairs of parties with common training rows, and of the parties with labelled training rows.

    Methods that also train on unlabelled rows use this record.

    Args:
        parties: K, the number of parties with columns.

    """

    together: Tensor
    labelled: Tensor

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.register_buffer("together", torch.zeros(parties, parties, dtype=torch.bool))
        self.register_buffer("labelled", torch.zeros(parties, dtype=torch.bool))

    @property
    def missed(self) -> list[int]:
        """Indices k of the parties that no chain of common rows connects to a party with labelled rows."""
        return untied(self.together, self.labelled)

    def note(self, observed: Tensor, known: Tensor | None = None) -> None:
        """Add trained rows to the record: ``observed`` [B, K] marks their parties, ``known`` [B] the labelled rows."""
        if not bool(self.together.all()):
            self.together |= shared(observed)
        if known is not None:
            self.labelled |= observed[known].any(dim=0)


def shared(observed: Tensor) -> Tensor:
    """Return a mask of the pairs of parties that have a row in common: observed [N, K] bool -> [K, K] bool."""
    there = observed.float()
    return there.T @ there > 0


def untied(together: Tensor, labelled: Tensor) -> list[int]:
    """Return the indices k of parties without a connection to a party with labels; empty if no row has a label.

    Two parties are connected if they have common rows, or if a chain of parties connects them in which neighbours have
    common rows. ``together`` [K, K] marks the pairs with common rows, and ``labelled`` [K] the parties with labels.

    >>> untied(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool), torch.tensor([True, False, False]))
    [2]
    """
    reached = labelled
    for _ in range(len(together)):
        reached = reached | together[reached].any(dim=0)
    return (~reached).nonzero().squeeze(1).tolist() if bool(labelled.any()) else []
