"""Sum: one network on the sum of the present parties' embeddings, for business tables.

A method of this project, in no paper. Its form is that of Zaheer et al., "Deep Sets", NeurIPS 2017: a network on a sum
over a set, here the set of parties that have a row. Indicators beside the sum tell which parties these are, because a
sum alone cannot distinguish an absent party from one whose embedding is small.

Notation  B rows, K parties, H width of an embedding, C outputs.
Symbols   h     embeddings                                                               [B, K, H].
          O_n   the parties that have row n; 1[O_n] their indicators                     [K].
          R_n   a random subset of O_n: each party with probability ``keep``; O_n if no party is left
          g     the head, with one hidden layer of 64 by default                         [H + K] -> [C].
Loss      mean_n 1/2 (loss(g([sum_{k in O_n} h[n, k], 1[O_n]]), y_n) + loss(g([sum_{k in R_n} h[n, k], 1[R_n]]), y_n))
Answer    g on the parties that have the row and are asked
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.errors import ConfigError
from anyparty.methods.split.rule import EMBEDDING, GRADIENT, HeadPlan, Host, Noise, Rule, every_row
from anyparty.networks.heads import Heads

HIDDEN = 64  # width of the head's hidden layer


@dataclass(frozen=True, kw_only=True)
class Sum(Rule):
    """A rule with one predictor, which reads the sum of the present parties' embeddings and their indicators.

    Attributes:
        keep: the probability with which a party stays in the random subset of a row's second loss.

    """

    keep: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1:
            raise ConfigError(f"sum: keep must be above 0 and below 1, got {self.keep}")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on any row, and predicts for any row."""
        return Capabilities(
            title="Sum",
            paper="this project; Zaheer et al. 2017",
            trains_on="labelled rows that at least one party has",
            predicts_for="any row, from the sum of the present parties' embeddings",
            needs="any",
            messages=(EMBEDDING, GRADIENT),
        )

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head with a hidden layer, which reads a sum and K indicators."""
        return HeadPlan(inputs=width + roster.K, hidden=(HIDDEN,), noise={"subset": ("rows", "parties")})

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the mean of each row's losses from all its parties, and from a random subset of them."""
        kept = observed & (noise["subset"] < self.keep)
        subset = torch.where(kept.any(dim=1, keepdim=True), kept, observed)
        both = torch.stack([_summed(h, observed), _summed(h, subset)], dim=1)  # [B, 2, H + K]
        outputs = heads(both.flatten(0, 1).unsqueeze(1)).view(*both.shape[:2], -1)
        return every_row(host.loss(outputs, y.unsqueeze(1).expand(-1, 2)).mean(dim=1))

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictor's outputs [B, 1, C], and a mask [B, 1] of the rows that at least one party has."""
        return heads(_summed(h, observed).unsqueeze(1)), observed.any(dim=1, keepdim=True)


def _summed(h: Tensor, present: Tensor) -> Tensor:
    """Return the sum over the present parties and their indicators: [B, K, H], [B, K] -> [B, H + K]."""
    return torch.cat([torch.where(present.unsqueeze(2), h, 0.0).sum(dim=1), present.to(h.dtype)], dim=1)
