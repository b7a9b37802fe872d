"""LASER-VFL.  Valdeira, Wang, Chi: "Vertical Federated Learning with Missing Features During Training and
Inference", ICLR 2025, arXiv 2410.22564, Algorithms 1 and 2.

Notation  B rows, K parties, M heads at this host, T = K sizes of a set of parties, H width of an embedding, C outputs,
          D width of a head's first layer (C for a linear head).
Symbols   O_n    observed[n]   parties that hold row n                                     [B, K] bool.
          f_k    h[:, k]       embedding of block k, zero where not observed               [B, K, H].
          g_m    heads         head m, of party ``owners[m]``, on a mean embedding         [B, H] -> [B, C].
          S_mi   order[n, m]   a set of i parties for head m: the first i of a row's order [B, M, K].
          P_m(O_n)             the subsets of O_n that contain m.
Loss      L_n = sum_{m in O_n} sum_{S in P_m(O_n)} 1/|S| * loss(g_m(mean_{k in S} f_k), y_n)              (5)
          estimated with one S of each size i = 1..|O_n|, weighted a_i = comb(|O_n|-1, i-1) / i           (8)
Answer    of head m for row n: g_m(mean_{k in O_n} f_k), m in O_n                               (Algorithm 2)

Differences from the paper
- The rows of a batch may belong to different sets of parties O_n. With ``batches="by-pattern"`` in the training
  settings, all rows of a batch have the same O_n, as in Algorithm 1. Line 5 of Algorithm 1 draws one S_mi of each size
  for a whole batch; here every row has its own draw. The estimate is unbiased with both settings, because a batch whose
  rows have the same O_n is weighted by its number of rows. Two tests check this: one enumerates all subsets, the other
  adds up the batches.
- The sets S_m1, S_m2, ... of one head and row are the prefixes of one random order that begins with m. Each S_mi is
  uniform over the subsets of size i that contain m, as (8) requires. The S_mi are not independent of each other.
- ``normalize`` divides a row's loss by the sum of its weights, which is 2^|O_n| - 1 if every party has a head. Without
  ``normalize`` the loss is the paper's, and grows with that sum. With ``normalize``, each head has 1/|O_n| of the row's
  weight. Steps of SGD then shrink with K and need a larger learning rate; the size of Adam's steps does not change.
- There is one answer per row: the mean of the answers of the heads of O_n. ``by_party`` has each head's own answer.
- Heads have a hidden layer by default in regression, unlike in the paper. A head reads the mean over the present
  parties, so a linear head cannot give more weight to several parties together than to one. In a test in which y was
  the sum of four parties' columns, the predictions of linear heads had a slope of only .57.
- ``heads="one"`` replaces all g_m by one head. Then (5) is the sum over all S in O_n of loss(g(mean_{k in S} f_k),
  y_n), estimated with one S of each size weighted comb(|O_n|, i). FALSE-VFL compares with this form of LASER-VFL (Hong,
  Park, Hwang, arXiv 2505.11035, appendix D.1: "a version of LASER-VFL with only one fusion model").

Computation.  A head's first layer is linear, so it commutes with the mean over parties. W_m f_k for all m and k is one
product, and the first layer for every set of parties is a running mean of these products along ``order``. Subsets are
enumerated only with ``tasks="all"``. Memory grows with K^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from math import comb
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.errors import ConfigError
from anyparty.methods.split.combinatorial import subsets
from anyparty.methods.split.local import NOBODY
from anyparty.methods.split.rule import (
    MESSAGES,
    HeadOutputs,
    HeadPlan,
    Host,
    Noise,
    Rule,
    RuleAnswer,
    all_blocks,
    any_party,
    joint,
    mean_over,
)
from anyparty.networks.heads import Heads

MOST_EXACT = 10
WIDTH = 64  # width of the hidden layer in regression


@dataclass(frozen=True, kw_only=True)
class Laser(Rule):
    """A rule with a predictor for every party m and every set of parties that contains m.

    All predictors share the encoders. All predictors of a party m share one head, unless ``heads`` is "one".

    Attributes:
        normalize: whether a row's loss is divided by the sum of its weights; the paper's loss is not. With SGD, use a
            learning rate that grows with the number of parties; Adam needs no such change.
        tasks: the sets of parties in a row's loss. "sample" draws one set of every size; "all" uses all sets, which
            removes the sampling variance (K sigma_s^2 in Theorem 1). With "all", the training time doubles with every
            party, and at most 10 parties are allowed.
        heads: the parties that have a head: "every" party, all parties with "labels", or only the "active" party. With
            "one", one head belongs to no party and reads any set of parties, as in the FALSE-VFL tables.

    """

    without_limit: ClassVar[str] = "tasks = 'sample'"

    normalize: bool = True
    tasks: Literal["sample", "all"] = "sample"
    heads: Literal["every", "labels", "active", "one"] = "every"

    def __post_init__(self) -> None:
        if self.tasks not in {"sample", "all"}:
            raise ConfigError(f"laser: tasks is 'sample' or 'all', not {self.tasks!r}")
        if self.heads not in {"every", "labels", "active", "one"}:
            raise ConfigError(f"laser: heads is 'every', 'labels', 'active' or 'one', not {self.heads!r}")

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on any row, and predicts for any row."""
        return Capabilities(
            title="LASER-VFL",
            paper="Valdeira et al. 2025, alg. 1 and 2",
            trains_on="labelled rows that at least one party has, with every block of them",
            predicts_for="any row, by a predictor for exactly the parties that have it",
            needs="any",
            messages=MESSAGES,
            most_parties=MOST_EXACT if self.tasks == "all" else None,
        )

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head for each owner, or of a single head that belongs to no party.

        A head has a hidden layer in regression, and none in classification (see "Differences from the paper"). A row
        has a loss if at least one party with a head has it. The sum over rows is divided by the number of rows of the
        whole batch, even if this host does not know all labels. The losses of several hosts therefore add up to the
        loss that a single host would have.
        """
        owners = self._owners(roster)
        return HeadPlan(
            inputs=width,
            owners=owners,
            hidden=(WIDTH,) if task is not None and task.kind == "regression" else (),
            trains_on=any_party if owners is None else partial(_any_owner, owners),
            divisor="batch",
            noise={"order": ("rows", "heads", "parties")} if self.tasks == "sample" else {},
        )

    def _owners(self, roster: Roster) -> tuple[int, ...] | None:
        """Return the parties with a head; ``None`` if there is one head that belongs to no party."""
        if self.heads == "one":
            return None
        if self.heads == "every":
            return all_blocks(roster)
        wanted = roster.labelers if self.heads == "labels" else (roster.active,)
        owners = tuple(k for k, name in enumerate(roster.blocks) if name in wanted)
        if not owners:
            raise ConfigError(f"laser: heads={self.heads!r} asks for a head at a party that holds labels and columns, "
                              f"and none does; use heads='every'")  # fmt: skip
        return owners

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the sampled loss (7), or the exact loss (5), of each row and head, and a mask of the heads' rows."""
        products = heads.products(h)  # [B, K, M, D]
        if self.tasks == "all":
            weight, mean = self._exact_weights(host, observed, h.dtype)  # [B, M, T], [T, K]
            present = torch.where(observed.view(*observed.shape, 1, 1), products, 0.0)
            means = torch.einsum("tk,bkmd->bmtd", mean, present)
        else:
            weight = self._weights(host, observed, h.dtype)  # [B, M, T]
            means = running_means(products, order_of(noise["order"], observed, host.owners))  # [B, M, T, D]
        outputs = heads.finish(means, weight > 0)  # [B, M, T, C]
        loss = torch.where(weight > 0, host.loss(outputs, y.view(-1, 1, 1).expand(outputs.shape[:3])), 0.0)
        return (weight * loss).sum(dim=2), (weight > 0).any(dim=2)  # [B, M]

    def _weights(self, host: Host, observed: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight a_i of (8) for every row, head and set size i: [B, M, T].

        The weight is 0 if the row has fewer than i parties, or if the head's owner lacks the row. With ``heads="one"``,
        the weight is |O_n| a_i, because one head takes the place of |O_n| heads.
        """
        size = observed.sum(dim=1)  # |O_n|
        table = size_weights(observed.shape[1], self.normalize).to(observed.device, dtype)
        if self.heads == "one":
            return (table[size] * size.unsqueeze(1)).unsqueeze(1)
        weight = table[size].unsqueeze(1) * observed.index_select(1, host.owners).unsqueeze(2)
        return weight / self._share(host, observed, dtype).view(-1, 1, 1) if self.normalize else weight

    def _share(self, host: Host, observed: Tensor, dtype: torch.dtype) -> Tensor:
        """Return, for each row, the share of its parties that have a head: [B]."""
        owners = observed.index_select(1, host.everyone).sum(dim=1)
        return owners.clamp(min=1).to(dtype) / observed.sum(dim=1).clamp(min=1)

    def _exact_weights(self, host: Host, observed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weight of each row, head and subset in (5), [B, M, T], and each subset's mean over k, [T, K]."""
        members = subsets(observed.shape[1])[0].to(observed.device)  # [T, K]
        size = members.sum(dim=1).to(dtype)
        within = (observed.unsqueeze(1) | ~members).all(dim=2)  # [B, T]: S is a subset of O_n
        if self.heads == "one":
            weight = within.unsqueeze(1).to(dtype)
        else:
            task = within.unsqueeze(1) & members.T[host.owners]  # [B, M, T]: S also contains m
            weight = torch.where(task, 1 / size, 0.0)
        if self.normalize:
            total = (2.0 ** observed.sum(dim=1).to(dtype) - 1).clamp(min=1)
            share = total if self.heads == "one" else total * self._share(host, observed, dtype)
            weight = weight / share.view(-1, 1, 1)
        return weight, members.to(dtype) / size.unsqueeze(1)

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return each head's outputs [B, M, C] for the mean embedding of a row, and a mask [B, M] of valid outputs."""
        mean = mean_over(h, observed).unsqueeze(1)
        if self.heads == "one":
            return heads(mean), observed.any(dim=1, keepdim=True)
        return heads(mean.expand(-1, len(host.owners), -1)), observed.index_select(1, host.owners)

    def answer(self, given: HeadOutputs) -> RuleAnswer:
        """Return the mean answer of the heads of the parties that have the row."""
        if self.heads == "one":
            return joint(given)
        heads = given.valid.sum(dim=1, keepdim=True)
        scores = torch.where(given.valid.unsqueeze(2), given.answers, 0.0).sum(dim=1) / heads.clamp(min=1)
        return RuleAnswer(
            scores=scores,
            answered=heads.squeeze(1) > 0,
            took_part=given.observed,
            by_party=given.by_party(),
            reason=NOBODY,
        )


def _any_owner(owners: tuple[int, ...], observed: Tensor) -> Tensor:
    return observed[:, list(owners)].any(dim=1)


@cache
def size_weights(K: int, normalize: bool) -> Tensor:
    """Return a table [K + 1, K] of weights a_i of (8): entry [o, i - 1] is for o observed parties and sets of size i.

    The entry is comb(o-1, i-1) / i. With ``normalize``, the entry is divided by 2^o - 1.

    >>> size_weights(3, normalize=False)
    tensor([[0.0000, 0.0000, 0.0000],
            [1.0000, 0.0000, 0.0000],
            [1.0000, 0.5000, 0.0000],
            [1.0000, 1.0000, 0.3333]], dtype=torch.float64)
    """
    total = [2**o - 1 if normalize and o else 1 for o in range(K + 1)]
    return torch.tensor(
        [[comb(o - 1, i - 1) / i / total[o] if o else 0.0 for i in range(1, K + 1)] for o in range(K + 1)],
        dtype=torch.float64,
    )


def order_of(lots: Tensor, observed: Tensor, owners: Tensor) -> Tensor:
    """Return an order of the parties for every row and head: random numbers [B, M, K], [B, K] bool, [M] -> [B, M, K].

    An order begins with the head's owner. The other observed parties follow in the order of their random numbers, and
    absent parties are last. Without owners there is one head, and its orders begin with a random observed party.
    """
    lots = torch.where(observed.unsqueeze(1), lots, 2.0)
    if len(owners):
        lots = torch.where(torch.arange(observed.shape[1], device=owners.device) == owners.unsqueeze(1), -1.0, lots)
    return lots.argsort(dim=2, stable=True)


def running_means(products: Tensor, order: Tensor) -> Tensor:
    """Return running means of products along an order: products [B, K, M, D], order [B, M, K] -> [B, M, T, D].

    Mean t is the mean of the first t products of the order.
    """
    B, K, M, D = products.shape
    row, head = (torch.arange(n, device=order.device) for n in (B, M))
    place = (row.view(B, 1, 1) * K + order) * M + head.view(1, M, 1)  # indices among the flattened products
    sizes = torch.arange(1, K + 1, device=order.device, dtype=products.dtype).view(K, 1)
    return products.reshape(-1, D).index_select(0, place.flatten()).view(B, M, K, D).cumsum(dim=2) / sizes
