"""Combinatorial: a separate predictor for every subset of parties.

The baseline of Valdeira, Wang, Chi, ICLR 2025, equation (3). The 2^K - 1 predictors share no weights. Each row of a
batch trains the predictors of all subsets of the parties that have the row. Time and memory double with every party.

Notation  B rows, K parties, H width of an embedding, C outputs. S is one of the T = 2^K - 1 non-empty subsets, written
          as a number with bit k set for party k. Party k has an encoder for each of the 2^(K-1) subsets that contain k.
          O_n is the set of parties that have row n.
Symbols   h     embeddings, one per encoder [B, K, 2^(K-1), H].
          slot  index of party k's encoder for subset S [K, T], -1 if k is not in S.
Loss      sum_S mean over the rows n with S in O_n of loss(g_S(1/|S| sum_{k in S} h[n, k, slot(k, S)]), y_n)   (3)
Answer    from the predictor for exactly the parties that have the row
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.methods.split.rule import (
    EMBEDDING,
    GRADIENT,
    HeadOutputs,
    HeadPlan,
    Host,
    Noise,
    Rule,
    RuleAnswer,
    joint,
)
from anyparty.networks.heads import Heads, PartySets

MOST = 8
UNTRAINED = "no labelled training row had the blocks of all parties that have this row: ask fewer parties"


@cache
def subsets(K: int) -> tuple[Tensor, Tensor]:
    """Return members [T, K] bool and slot [K, T] int64 of all T non-empty subsets of K parties.

    ``members`` marks the parties of each subset. ``slot`` is the index of party k's encoder for each subset, -1 if the
    subset does not contain party k.
    """
    S = torch.arange(1, 2**K)
    k = torch.arange(K).unsqueeze(1)
    members = (S.unsqueeze(1) >> torch.arange(K)) & 1 == 1
    slot = ((S >> (k + 1)) << k) | (S & ((1 << k) - 1))  # the subset's number with bit k removed
    return members, torch.where(members.T, slot, -1)


@dataclass(frozen=True, kw_only=True)
class Combinatorial(Rule):
    """A rule with a predictor for each of the 2^K - 1 sets of parties; the predictors share no weights."""

    @property
    def can(self) -> Capabilities:
        """The capabilities: the predictor of a subset trains on the rows that all parties of the subset have."""
        return Capabilities(
            title="Combinatorial",
            paper="Valdeira et al. 2025, eq. (3)",
            trains_on="labelled rows that at least one party has; each row trains the predictors of its subsets of "
            "parties",
            predicts_for="any row, by the predictor for exactly the parties that have it",
            needs="any",
            messages=(EMBEDDING, GRADIENT),
            most_parties=MOST,
        )

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head for each subset, and one encoder of a party for each subset that contains it.

        A row trains the predictors of all subsets of the parties that have it.
        """
        sets = PartySets(count=2**roster.K - 1, trained_by=_trained_by, of_row=_subset_of)
        return HeadPlan(inputs=width, heads=sets.count, encoders=2 ** (roster.K - 1), sets=sets, divisor="predictor")

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the losses in (3) of each row and subset, and a mask of the rows that all parties of a subset have."""
        h, K = _with_slots(h), observed.shape[1]
        members, slot = (part.to(h.device) for part in subsets(K))
        total = h.new_zeros(len(h), len(members), h.shape[-1])  # [B, T, H]
        for k, of_k in enumerate(_subsets_with(K)):
            total = total.index_add(1, of_k.to(h.device), h[:, k, slot[k, of_k]])
        having = _having(members, observed)
        outputs = heads(total / members.sum(1, keepdim=True), having)
        return host.loss(outputs, y[:, None].expand(-1, len(members))), having

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [B, 1, C] of the predictor for each row's set of parties, and a mask [B, 1] of valid rows."""
        h, (B, K) = _with_slots(h), observed.shape
        slot = subsets(K)[1].to(h.device)
        rows, subset = torch.arange(B, device=h.device), _subset_of(observed)
        own = h[rows.unsqueeze(1), torch.arange(K, device=h.device), slot[:, subset].T.clamp(min=0)]  # [B, K, H]
        mean = torch.where(observed.unsqueeze(2), own, 0.0).sum(1) / observed.sum(1, keepdim=True).clamp(min=1)
        everyone = heads(mean.unsqueeze(1).expand(-1, 2**K - 1, -1))  # [B, T, C]
        return everyone[rows, subset].unsqueeze(1), observed.any(dim=1, keepdim=True)

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the predictors' answers; rows whose set of parties has no trained predictor get a reason instead."""
        return joint(given, UNTRAINED)


@cache
def _subsets_with(K: int) -> tuple[Tensor, ...]:
    """Return, for each party k, the indices of the subsets that contain k: [2^(K-1)] int64."""
    return tuple(torch.tensor([t for t in range(2**K - 1) if (t + 1) >> k & 1]) for k in range(K))


def _trained_by(observed: Tensor) -> Tensor:
    """Return a mask of the subsets that the rows of a batch train: [B, K] -> [T] bool."""
    return _having(subsets(observed.shape[1])[0].to(observed.device), observed).any(dim=0)


def _subset_of(observed: Tensor) -> Tensor:
    """Return the index of each row's set of parties: [B, K] -> [B] int64; 0 for a row that no party has."""
    powers = torch.arange(observed.shape[1], device=observed.device)
    return ((observed.long() << powers).sum(dim=1) - 1).clamp(min=0)


def _having(members: Tensor, observed: Tensor) -> Tensor:
    """Return a mask, True if all parties of subset t have row b: members [T, K], observed [B, K] -> [B, T]."""
    return (observed.unsqueeze(1) | ~members).all(dim=2)


def _with_slots(h: Tensor) -> Tensor:
    return h if h.ndim == 4 else h.unsqueeze(2)  # h has no axis of encoders if each party has one encoder
