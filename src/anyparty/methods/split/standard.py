"""Standard VFL: one split network over the rows that every party has.

Liu et al., TKDE 2024; the baseline of Valdeira, Wang, Chi, ICLR 2025, equation (1), and SplitNN of Ceballos et al.
2020 with mean fusion: h(x) = g(mean_k f_k(x_k)).

Notation  B rows, K parties, H width of an embedding, C outputs.
Loss      mean_n loss(g(1/K sum_k h[n, k]), y_n)                        (1)
Answer    for rows that all parties have; other rows get no answer

``absent="zeros"`` is the Vanilla VFL of the FALSE-VFL comparison (Hong, Park, Hwang, arXiv 2505.11035, appendix D.1).
This variant is trained on the rows that all parties have. It predicts for any row, with zeros in place of absent
embeddings. Its head reads all embeddings side by side, as in PlugVFL, because a mean cannot mark an embedding as
absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.errors import ConfigError
from anyparty.methods.split.plug import Plug
from anyparty.methods.split.rule import (
    EMBEDDING,
    GRADIENT,
    HeadOutputs,
    HeadPlan,
    Host,
    Noise,
    Rule,
    RuleAnswer,
    all_parties,
    every_row,
    joint,
    mean_over,
)
from anyparty.networks.heads import Heads


@dataclass(frozen=True, kw_only=True)
class Standard(Rule):
    """A rule with one predictor, which needs all parties or reads zeros for absent parties.

    Attributes:
        absent: the treatment in prediction of rows that not all parties have. "refuse" gives them no answer; "zeros"
            puts zeros in place of absent embeddings.

    """

    absent: Literal["refuse", "zeros"] = "refuse"

    def __post_init__(self) -> None:
        if self.absent not in {"refuse", "zeros"}:
            raise ConfigError(f"standard: absent is 'refuse' or 'zeros', not {self.absent!r}")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on rows that all parties have.

        It predicts for such rows, or with ``absent="zeros"`` for any row.
        """
        zeros = self.absent == "zeros"
        complete_rows = "rows that all parties have, while all are present"
        return Capabilities(
            title="Standard VFL",
            paper="Liu et al. 2024; Valdeira et al. 2025, eq. (1)",
            trains_on="labelled rows that all parties have",
            predicts_for="any row, with zeros in place of absent embeddings" if zeros else complete_rows,
            needs="any" if zeros else "all",
            trains_with="all",
            messages=(EMBEDDING, GRADIENT),
        )

    @property
    def _concatenated(self) -> Plug | None:
        return Plug(dropout=0.0) if self.absent == "zeros" else None

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head, which reads a mean or K embeddings side by side, and trains on complete rows."""
        plan = self._concatenated.plan(roster, task, width) if self._concatenated else HeadPlan(inputs=width)
        return replace(plan, trains_on=all_parties)

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the loss (1) of each row, or with ``absent="zeros"`` the loss of PlugVFL without dropout."""
        if self._concatenated:
            return self._concatenated.losses(host, heads, h, observed, y, noise)
        return every_row(host.loss(heads(mean_over(h, observed).unsqueeze(1)).squeeze(1), y))

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's outputs [B, 1, C], and a mask [B, 1] of the rows for which they are valid.

        Outputs are valid for rows that all parties have, or with ``absent="zeros"`` for rows that at least one party
        has.
        """
        if self._concatenated:
            return self._concatenated.outputs(host, heads, h, observed)
        return heads(mean_over(h, observed).unsqueeze(1)), observed.all(dim=1, keepdim=True)

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the head's answers; rows that some party lacks get a reason instead."""
        return joint(given, "Standard VFL needs every party's block of a row")
