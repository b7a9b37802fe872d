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
from functools import cache, partial

import torch
from torch import Tensor

from anyparty.core.types import Capabilities, Roster
from anyparty.methods.method import Batch
from anyparty.methods.split.rule import EMBEDDING, GRADIENT, Fusion, HeadOutputs, Rule, RuleAnswer, joint, means
from anyparty.networks.heads import Sets
from anyparty.networks.objective import losses

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

    def copies(self, roster: Roster) -> int:
        """Return the number of a party's encoders: one for every subset that contains the party."""
        return int(2 ** (roster.K - 1))

    def head(self, roster: Roster, width: int) -> tuple[int, int]:
        """Return the number of heads (one per subset), and the width of a head's input (a mean embedding)."""
        return int(2**roster.K - 1), width

    def sets(self, roster: Roster) -> tuple[int, Sets]:
        """Return T, the number of subsets, and a function that marks the subsets that a batch trains: [B, K] -> [T].

        A row trains all subsets of the parties that have it.
        """

        def of(observed: Tensor) -> Tensor:
            members = subsets(roster.K)[0].to(observed.device)
            return _having(members, observed).any(dim=0)

        return int(2**roster.K - 1), of

    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:  # noqa: ARG002
        """Return the loss (3): the sum over subsets of the mean loss over rows that all parties of the subset have."""
        h, K = _with_slots(h), observed.shape[1]
        members, slot = (part.to(h.device) for part in subsets(K))
        total = h.new_zeros(len(h), len(members), h.shape[-1])  # [B, T, H]
        for k in range(K):
            of_k = members[:, k].nonzero().squeeze(1)
            total = total.index_add(1, of_k, h[:, k, slot[k, of_k]])
        outputs = fusion.heads(total / members.sum(1, keepdim=True), _having(members, observed))
        each = losses(fusion.task, outputs, y[:, None].expand(-1, len(members)))
        return means(fusion, each, observed, partial(_having, members))

    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs [B, 1, C] of the predictor for each row's set of parties, and a mask [B, 1] of valid rows."""
        h, (B, K) = _with_slots(h), observed.shape
        _, slot = (part.to(h.device) for part in subsets(K))
        rows, S = torch.arange(B, device=h.device), (observed.long() << torch.arange(K, device=h.device)).sum(1)
        subset = (S - 1).clamp(min=0)  # 0 for a row that no party has; ``valid`` marks this row as not answered
        own = h[rows.unsqueeze(1), torch.arange(K, device=h.device), slot[:, subset].T.clamp(min=0)]  # [B, K, H]
        mean = torch.where(observed.unsqueeze(2), own, 0.0).sum(1) / observed.sum(1, keepdim=True).clamp(min=1)
        everyone = fusion.heads(mean.unsqueeze(1).expand(-1, 2**K - 1, -1))  # [B, T, C]
        valid = observed.any(dim=1)
        if fusion.trained is not None and fusion.trained.sets.any():
            valid = valid & fusion.trained.sets[subset]
        return everyone[rows, subset].unsqueeze(1), valid.unsqueeze(1)

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the predictors' answers; rows whose set of parties has no trained predictor get a reason instead."""
        return joint(given, UNTRAINED)


def _having(members: Tensor, observed: Tensor) -> Tensor:
    """Return a mask, True if all parties of subset t have row b: members [T, K], observed [B, K] -> [B, T]."""
    return (observed.unsqueeze(1) | ~members).all(dim=2)


def _with_slots(h: Tensor) -> Tensor:
    return h if h.ndim == 4 else h.unsqueeze(2)  # h has no axis of encoders if each party has one encoder
