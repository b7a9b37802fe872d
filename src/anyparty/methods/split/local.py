"""Local and Ensemble: every party has a predictor on its own block.  In Ensemble, the predictors vote.

The baselines of Valdeira, Wang, Chi, ICLR 2025. Local is equation (2): h_k(x_k) = g_k(f_k(x_k)). Ensemble, section 5,
trains in the same way, and "a joint prediction is selected by majority vote, with ties broken at random". The random
choice depends on the row's key and not on its place in the batch. A row therefore gets the same answer in any batch.

Difference   A party without labels cannot train alone. Its head is therefore at the active party. The exchange of
             embeddings and gradients gives the result that the party would get if it had the labels. With
             ``hosting="labelers"``, a party that holds labels sends no message to train its own predictor.

Notation  B rows, K parties, H width of an embedding, C outputs.
Symbols   h  embeddings  [B, K, H]       head k reads only h[:, k]
Loss      sum_k mean over the rows n that party k has of loss(g_k(f_k(x_k^n)), y_n)
Answer    Local: the active party's predictor, or that of the first party with the row. Ensemble, classification: the
          class with most votes (``vote="hard"``, as in the paper), or with the greatest mean probability
          (``vote="soft"``). Ensemble, regression: the mean of the parties' numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.errors import ConfigError
from anyparty.methods.split.rule import MESSAGES, HeadOutputs, HeadPlan, Host, Noise, Rule, RuleAnswer, all_blocks
from anyparty.networks.heads import Heads

NOBODY = "no party that has this row answered with a trained predictor of its own"


@dataclass(frozen=True, kw_only=True)
class Local(Rule):
    """A rule with one predictor per party, which reads only this party's columns.

    A passive party without labels sends its embeddings to the active party, and gets gradients back. The active party's
    predictor answers a row. If the active party lacks the row, the predictor of the first party with the row answers.
    """

    @property
    def can(self) -> Capabilities:
        """The capabilities: each predictor trains on its own party's rows and reads only this party's columns."""
        return Capabilities(
            title="Local",
            paper="Valdeira et al. 2025, eq. (2)",
            trains_on="each party's own labelled rows, with embeddings sent to a party that has labels",
            predicts_for="any row, from one party's block",
            needs="any",
            messages=MESSAGES,
        )

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head for each party, which reads only its own party's embedding."""
        return HeadPlan(inputs=width, owners=all_blocks(roster), reads="owner", divisor="predictor")

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return each party's own loss of each row (2), and a mask of the rows that the party has."""
        outputs, mine = self.outputs(host, heads, h, observed)
        return host.loss(outputs, y.unsqueeze(1).expand(mine.shape)), mine

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of each party's own predictor, and a mask of the rows that the party has."""
        mine = observed.index_select(1, host.owners)
        return heads(h.index_select(1, host.owners), mine), mine

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return each row's answer from the active party or, if it gives none, from the first party that gives one."""
        by_party = given.by_party()
        present = ~by_party.isnan().any(dim=2)
        preferred = present.int()
        if given.k >= 0:
            preferred[:, given.k] *= 2
        chosen = preferred.argmax(dim=1)  # [B]; argmax returns the first of several equal maxima
        alone = torch.nn.functional.one_hot(chosen, given.observed.shape[1]).bool()
        return RuleAnswer(
            scores=by_party[torch.arange(len(chosen), device=chosen.device), chosen],
            answered=present.any(dim=1),
            took_part=alone & given.observed,
            by_party=by_party,
            reason=NOBODY,
        )


@dataclass(frozen=True, kw_only=True)
class Ensemble(Local):
    """A rule with one predictor per party, whose answer is a vote of the predictors.

    Attributes:
        vote: "hard": each party votes for one class, and the most frequent class wins; "soft": the class with the
            greatest mean probability over the parties wins.

    """

    vote: Literal["hard", "soft"] = "hard"

    def __post_init__(self) -> None:
        if self.vote not in {"hard", "soft"}:
            raise ConfigError(f"ensemble: vote is 'hard' or 'soft', not {self.vote!r}")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains as Local does, and predicts by a vote of the parties that have a row."""
        return replace(
            super().can,
            title="Ensemble",
            paper="Valdeira et al. 2025, sec. 5",
            predicts_for="any row, by a vote of the parties that have it",
        )

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the result of a hard vote in classification; otherwise return the mean of the parties' answers.

        After a hard vote, the scores are the mean probabilities of the parties that voted for the winner. The winner
        therefore has the greatest score. The confidence is the mean over all voters, including outvoted parties.
        """
        voters, took_part = given.valid, torch.zeros_like(given.observed)
        took_part[:, given.owners] = voters
        if self.vote == "hard" and given.task.kind == "classification":
            voted = given.answers.argmax(dim=2)  # [B, M]
            ballots = functional.one_hot(voted, given.answers.shape[2]) * voters.unsqueeze(2)
            winner = draw_winner(ballots.sum(dim=1), given.key)
            voters = voters & (voted == winner.unsqueeze(1))
        return RuleAnswer(
            scores=_mean(given.answers, voters),
            answered=given.valid.any(dim=1),
            took_part=took_part,
            confidence=_mean(given.answers, given.valid),
            reason=NOBODY,
        )


def _mean(answers: Tensor, voters: Tensor) -> Tensor:
    """Return the mean of the voters' answers: [B, M, C], [B, M] bool -> [B, C]; 0 without voters."""
    return torch.where(voters.unsqueeze(2), answers, 0.0).sum(dim=1) / voters.sum(dim=1, keepdim=True).clamp(min=1)


def draw_winner(votes: Tensor, key: Tensor) -> Tensor:
    """Return the class with the most votes, with ties broken by the row's key: votes [B, C], key [B] -> [B]."""
    leading = votes == votes.max(dim=1, keepdim=True).values  # [B, C]
    spread = torch.arange(1, votes.shape[1] + 1, device=key.device) * 0x9E3779B97F4A7
    lots = ((key.unsqueeze(1) ^ spread) * 0x2545F4914F6CDD1D).abs() % 1_000_003  # multiplication mixes the key's bits
    return torch.where(leading, lots, -1).argmax(dim=1)
