"""Ensemble: the parties' own predictors vote.

The baseline of Valdeira, Wang, Chi, ICLR 2025, section 5. Training is the same as in the method Local, and "a joint
prediction is selected by majority vote, with ties broken at random". The random choice depends on the row's key and not
on its place in the batch. A row therefore gets the same answer in any batch.

Notation  B rows, K parties, H width of an embedding, C outputs.
Answer    classification: the class with most votes (``vote="hard"``, as in the paper), or with the greatest mean
          probability (``vote="soft"``); regression: the mean of the parties' numbers
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from anyparty.core.types import Capabilities
from anyparty.errors import ConfigError
from anyparty.methods.split.local import NOBODY, Local
from anyparty.methods.split.rule import HeadOutputs, RuleAnswer


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

    def support(self, given: HeadOutputs) -> Tensor:
        """Return the mean probabilities over all voters, including outvoted parties: [B, C]."""
        return replace(self, vote="soft").answer(given).scores

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the result of the vote, or the mean of the parties' answers.

        After a hard vote, the scores are the mean probabilities of the parties that voted for the winner. The winner
        therefore has the greatest score.
        """
        voters, took_part = given.valid, torch.zeros_like(given.observed)
        took_part[:, given.owners] = voters
        if self.vote == "hard" and given.task.kind == "classification":
            voted = given.answers.argmax(dim=2)  # [B, M]
            ballots = functional.one_hot(voted, given.answers.shape[2]) * voters.unsqueeze(2)
            winner = draw_winner(ballots.sum(dim=1), given.key)
            voters = voters & (voted == winner.unsqueeze(1))
        count = voters.sum(dim=1, keepdim=True).clamp(min=1)
        return RuleAnswer(
            scores=torch.where(voters.unsqueeze(2), given.answers, 0.0).sum(dim=1) / count,
            answered=given.valid.any(dim=1),
            took_part=took_part,
            reason=NOBODY,
        )


def draw_winner(votes: Tensor, key: Tensor) -> Tensor:
    """Return the class with the most votes, in a tie a class chosen by the row's key: votes [B, C], key [B] -> [B]."""
    leading = votes == votes.max(dim=1, keepdim=True).values  # [B, C]
    spread = torch.arange(1, votes.shape[1] + 1, device=key.device) * 0x9E3779B97F4A7
    lots = ((key.unsqueeze(1) ^ spread) * 0x2545F4914F6CDD1D).abs() % 1_000_003  # multiplication mixes the key's bits
    return torch.where(leading, lots, -1).argmax(dim=1)
