"""Local: every party has a predictor on its own block.

The baseline of Valdeira, Wang, Chi, ICLR 2025, equation (2): h_k(x_k) = g_k(f_k(x_k)).
Difference   A party without labels cannot train alone. Its head is therefore at the active party. The exchange of
             embeddings and gradients gives the result that the party would get if it had the labels. With
             ``hosting="labelers"``, a party that holds labels sends no message to train its own predictor.

Notation  B rows, K parties, H width of an embedding, C outputs.
Symbols   h  embeddings  [B, K, H]       head k reads only h[:, k]
Loss      sum_k mean over the rows n that party k has of loss(g_k(f_k(x_k^n)), y_n)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.types import Capabilities, Roster
from anyparty.methods.method import Batch
from anyparty.methods.split.rule import MESSAGES, Fusion, HeadOutputs, Rule, RuleAnswer, all_blocks, own_rows

NOBODY = "no party that has this row answered with a trained predictor of its own"


@dataclass(frozen=True, kw_only=True)
class Local(Rule):
    """A rule with one predictor per party.

    The active party's predictor answers a row. If the active party lacks the row, the predictor of the first party with
    the row answers.
    """

    @property
    def can(self) -> Capabilities:
        """The capabilities: each party's predictor trains on the party's own rows, and one predictor answers a row."""
        return Capabilities(
            title="Local",
            paper="Valdeira et al. 2025, eq. (2)",
            trains_on="each party's own labelled rows",
            predicts_for="any row, from one party's block",
            needs="any",
            messages=MESSAGES,
        )

    def owners(self, roster: Roster) -> tuple[int, ...]:
        """Return all parties: each party has a head."""
        return all_blocks(roster)

    def reads(self, roster: Roster, owners: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the owners of the heads, because a head reads only its own party's embedding."""
        return owners

    def head(self, roster: Roster, width: int) -> tuple[int, int]:
        """Return the number of heads (one per party), and the width of a head's input (the party's own embedding)."""
        return roster.K, width

    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:  # noqa: ARG002
        """Return the loss (2): the sum of the parties' own mean losses."""
        mine = observed[:, fusion.owners]
        return own_rows(fusion, fusion.heads(h[:, fusion.owners], mine), observed, y)

    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of each party's own predictor, and a mask of the rows that the party has."""
        mine = observed[:, fusion.owners]
        return fusion.heads(h[:, fusion.owners], mine), mine

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the active party's answer to each row, or that of the first party that has the row."""
        by_party = given.by_party()
        there = ~by_party.isnan().any(dim=2)
        preferred = there.int()
        if given.k >= 0:
            preferred[:, given.k] *= 2
        chosen = preferred.argmax(dim=1)  # [B]: argmax returns the first of equal maxima
        alone = torch.nn.functional.one_hot(chosen, given.observed.shape[1]).bool()
        return RuleAnswer(
            scores=by_party[torch.arange(len(chosen), device=chosen.device), chosen],
            answered=there.any(dim=1),
            took_part=alone & given.observed,
            by_party=by_party,
            reason=NOBODY,
        )
