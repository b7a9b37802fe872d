"""What a split method's own file says: a ``Rule`` over heads and embeddings, and the records it works with.

Letters   B rows of the batch, B_k those that party k holds, K parties with columns, H width of an embedding,
          M heads at a host, C outputs.
Symbols   h[n, k] = f_k(x_k^n)   embeddings as a host sees them, zero where not observed   [B, K, H]
                                 ([B, K, copies, H] for a rule with several encoders a party)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from anyparty.methods.method import Batch
from anyparty.nets.objective import losses
from anyparty.nets.stacked import Heads
from anyparty.nets.taught import Taught
from anyparty.terms import SEVERAL_HOSTS, Capabilities, Declared, Roster, Task

SOME = 1e-6  # below any number of rows but none


def embedding(to: Literal["host", "active"], holds: str) -> Declared:
    """Return the declaration of what a party sends of its rows first, in this family and in others."""
    who = "the host" if to == "host" else "the active party"
    learns = (f"{who} sees an embedding of every row it trains or predicts on: no raw feature, but whatever of it the "
              f"embedding keeps")  # fmt: skip
    return Declared(tag="embedding", frm="block", to=to, holds=holds, learns=learns)


EMBEDDING = embedding("host", "h_k = f_k(x_k) of those rows of the batch that party k has, [B_k, H]")
GRADIENT = Declared(
    tag="gradient", frm="host", to="block",
    holds="the derivative of the loss by h_k, [B_k, H]",
    learns="with two classes, the labels of party k's training rows: one direction of the gradients separated them in "
           "the first epoch, with no label known",
)  # fmt: skip
OUTPUTS = Declared(
    tag="outputs", frm="host", to="active",
    holds="what another label holder's heads answer for the rows asked for, [B, M, C], and whose embeddings they had, "
          "[K] (nobody's, if training never reached them)",
    learns="the active party sees the other label holders' predictions, and who answered them in time",
    when=SEVERAL_HOSTS,
)  # fmt: skip
MESSAGES = (EMBEDDING, GRADIENT, OUTPUTS)


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """What a host fuses embeddings with.

    Attributes:
        heads: M networks.
        owners: [M] int64, the party k that each head belongs to; -1 where heads belong to nobody.
        everyone: the owners of the heads at all hosts together.
        task: what is predicted.
        k: the host's own place among the K parties; -1 if it holds no columns.
        taught: what training has reached, where the heads are the host's own.
        chosen_from: [B*, K] bool, who has the rows of which those of a loss were chosen, where a mean is over all of
            them and the others count as 0 (``methods.pseudo``); ``None``: all were.

    """

    heads: Heads
    owners: Tensor
    everyone: Tensor
    task: Task
    k: int
    taught: Taught | None = None
    chosen_from: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a rule combines at the active party, from the heads of all hosts.

    Attributes:
        task: what is predicted.
        answers: [B, M, C], probabilities or numbers.
        valid: [B, M] bool, whether that head has an answer for that row.
        owners: [M] int64, as in ``Fusion``.
        observed: [B, K] bool, the blocks that the valid answers rest on.
        key: [B] int64, a number that belongs to the row: random choices follow it, not the row's place.
        k: the active party's place among the K; -1 if it holds no columns.

    """

    task: Task
    answers: Tensor
    valid: Tensor
    owners: Tensor
    observed: Tensor
    key: Tensor
    k: int

    def by_party(self) -> Tensor:
        """Return each party's own answer, [B, K, C], NaN where it has none."""
        B, _, C = self.answers.shape
        whole = self.answers.new_full((B, self.observed.shape[1], C), torch.nan)
        whole[:, self.owners] = torch.where(self.valid.unsqueeze(2), self.answers, torch.nan)
        return whole


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer per row.

    Attributes:
        scores: [B, C].
        answered: [B] bool.
        took_part: [B, K] bool.
        by_party: [B, K, C] if each party has an answer of its own, NaN where it has none.
        reason: why rows that somebody has, but without an answer, have none.

    """

    scores: Tensor
    answered: Tensor
    took_part: Tensor
    by_party: Tensor | None = None
    reason: str = ""


class Rule(Protocol):
    """What is left of a split method when encoders, exchange and optimisers are taken out.

    A rule with a predictor for every set of parties also says which of them rows train, ``sets(roster)``: how many, and
    a function of who has the rows (``nets.taught``); what no row has trained gives no answer.  One whose heads ask for
    hidden layers says which for a task, ``hidden(task)``.  One whose scores are not of all who had a say
    gives what all of them think of every class, ``support(given)`` [B, C]: by that pseudo-labels are sure.
    """

    @property
    def can(self) -> Capabilities:
        """What the method can do."""

    def copies(self, roster: Roster) -> int:
        """Return how many encoders each party has."""

    def owners(self, roster: Roster) -> tuple[int, ...] | None:
        """Return the parties k that have a head of their own, or ``None`` if heads belong to nobody."""

    def reads(self, roster: Roster, owners: tuple[int, ...]) -> tuple[int, ...]:
        """Return the parties k whose embeddings a host with the heads of ``owners`` reads."""

    def head(self, roster: Roster, width: int) -> tuple[int, int]:
        """Return how many heads there are if they belong to nobody, and the width of a head's input."""

    def trains_on(self, roster: Roster, observed: Tensor) -> Tensor:
        """Return which rows serve in training, by who has them: [N, K] -> [N] bool."""

    def loss(self, fusion: Fusion, h: Tensor, observed: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the batch's loss, a scalar, over rows [B] with labels y [B].

        They are those rows of the batch that have a label and whose parties are there: where a party is late or lost,
        or a host knows fewer labels, fewer than ``len(batch.rows)``.  Draw by the shape of ``observed``.
        """

    def outputs(self, fusion: Fusion, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return what heads answer, [B, M, C], and for which rows they have an answer, [B, M] bool."""

    def answer(self, given: Given) -> Answer:
        """Combine the heads' answers into one per row."""


def all_blocks(roster: Roster) -> tuple[int, ...]:
    """Return every party k."""
    return tuple(range(roster.K))


def mean_over(h: Tensor, observed: Tensor) -> Tensor:
    """Return the mean embedding over the observed parties: [B, K, H], [B, K] -> [B, H]; zero where nobody has a row."""
    return h.sum(dim=1) / observed.sum(dim=1, keepdim=True).clamp(min=1)


def own_rows(fusion: Fusion, outputs: Tensor, observed: Tensor, y: Tensor) -> Tensor:
    """Return the sum over heads of the mean loss over the rows that the head's own party has, a scalar.

    No head's loss depends on another's rows.  outputs [B, M, C], observed [B, K], y [B].
    """
    each = losses(fusion.task, outputs, y.unsqueeze(1).expand(outputs.shape[:2]))  # [B, M]
    return means(fusion, each, observed, lambda observed: observed[:, fusion.owners])


def means(fusion: Fusion, each: Tensor, observed: Tensor, has: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum over predictors of the mean loss over the rows that each has, a scalar.

    each [B, M], observed [B, K]; ``has`` says which rows a predictor has, [B, K] -> [B, M].
    """
    mine = has(observed)
    count = mine.sum(dim=0)
    if fusion.chosen_from is not None:  # of a mean over all, the share that is here: ``pseudo`` counts that anew
        count = has(fusion.chosen_from).sum(dim=0) * (len(observed) / len(fusion.chosen_from))
    return (torch.where(mine, each, 0.0).sum(dim=0) / count.clamp(min=SOME)).sum()


def joint(given: Given, reason: str = "") -> Answer:
    """Return the answer of a method with one predictor for all that are present."""
    return Answer(scores=given.answers[:, 0], answered=given.valid[:, 0], took_part=given.observed, reason=reason)
