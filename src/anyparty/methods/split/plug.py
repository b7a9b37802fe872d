"""PlugVFL: one split network that is trained with parties dropped at random.

Sun et al.: "PlugVFL: Robust and IP-protecting vertical federated learning against unexpected quitting of parties",
2024. Valdeira, Wang, Chi, ICLR 2025, section 5 and appendix D, extend it to more than two parties and to blocks that
are missing in training: the fusion model reads zeros for their embeddings.

Notation  B rows, K parties, H width of an embedding, C outputs.
Symbols   h     embeddings, zero where not observed              [B, K, H].
          keep  1 for parties that stay in this iteration, else 0 [K]; a passive party is dropped with probability
                ``dropout``.
Loss      mean_n loss(g(concat_k keep_k h[n, k]), y_n)
Answer    for any row that at least one party has
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.errors import ConfigError
from anyparty.methods.split.rule import EMBEDDING, GRADIENT, HeadPlan, Host, Noise, Rule, every_row
from anyparty.networks.heads import Heads


@dataclass(frozen=True, kw_only=True)
class Plug(Rule):
    """A rule with one predictor, which reads concatenated embeddings, with zeros for absent parties.

    Attributes:
        dropout: the probability that a passive party is dropped from an iteration. The published comparison describes
            dropout, but its experiments used 0.

    """

    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"plug: dropout must lie in [0, 1), got {self.dropout}")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on any row, and predicts for any row."""
        return Capabilities(
            title="PlugVFL",
            paper="Sun et al. 2024; Valdeira et al. 2025, app. D",
            trains_on="labelled rows that at least one party has",
            predicts_for="any row, with zeros in place of absent embeddings",
            needs="any",
            messages=(EMBEDDING, GRADIENT),
        )

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head, which reads all embeddings side by side."""
        return HeadPlan(inputs=roster.K * width, noise={"party dropout": ("parties",)} if self.dropout else {})

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, with some passive parties dropped from this iteration."""
        if self.dropout:
            active = torch.arange(h.shape[1], device=h.device) == host.k
            observed = observed & ((noise["party dropout"] >= self.dropout) | active)
        return every_row(host.loss(heads(_joined(h, observed)).squeeze(1), y))

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictor's outputs [B, 1, C], and a mask [B, 1] of the rows that at least one party has."""
        return heads(_joined(h, observed)), observed.any(dim=1, keepdim=True)


def _joined(h: Tensor, observed: Tensor) -> Tensor:
    """Return embeddings side by side, zero if absent: [B, K, H], [B, K] -> [B, 1, K H]."""
    return torch.where(observed.unsqueeze(2), h, 0.0).flatten(1).unsqueeze(1)
