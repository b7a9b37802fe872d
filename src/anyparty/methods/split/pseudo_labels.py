"""Pseudo-labels: after a split method's own training, confident answers become labels of unlabelled rows.

Sources: Lee, "Pseudo-Label", ICML workshop 2013; for the threshold and the harder view of the same row, Sohn et al.,
"FixMatch", NeurIPS 2020. FixMatch predicts from an image and learns from a distorted copy of it. Here the prediction is
from all parties that have the row, and the rule learns from the inputs that it always trains on. With LASER-VFL, these
are the embeddings of subsets of the parties. The subsets take the place of distorted copies. This use of subsets is our
addition; it is in no paper on which this package is based.

Notation  B_y labelled rows of a batch, B_u unlabelled rows of a batch, C classes.
Symbols   L_n(y)   the rule's own loss of row n with label y.
          p_n      the rule's answer for row n [C], as in prediction: from all parties that have the row, except parties
                   whose rows have not been used for training yet. p_n uses the current networks, and passes no
                   gradient. For Ensemble with ``vote = "hard"``, p_n is the mean over all voters, not only over the
                   majority.
          g_n      the predicted class: argmax_c p_nc, or the winner of a hard vote.
Loss      1/|B_y| sum_{n in B_y} L_n(y_n) + lambda/|B_u| sum_{n in B_u} 1[p_n,g_n >= tau] L_n(g_n).
          If each predictor has its own mean (Local, Ensemble, Combinatorial), this loss is computed for each predictor
          over the predictor's rows, and summed over predictors.

The messages are the same as in the split method's own training, but cover more rows. All predictors must be at the
active party, because no other host has the answer p_n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anyparty.core.costs import FormulaTraffic, RunShape
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities
from anyparty.errors import ConfigError
from anyparty.methods.method import Batch, PartyContext, Stage, State
from anyparty.methods.split.exchange import Gathered
from anyparty.methods.split.rule import RowWeights, answer_of, outputs_of, trained_rows
from anyparty.methods.split.split_method import Split, labels_of, trained_parties
from anyparty.networks.heads import ModuleHeads, StackedMLP
from anyparty.problem.rows import Rows

STAGE = "pseudo"
SURE, UNLABELLED = f"{STAGE}/sure", f"{STAGE}/unlabelled"
ALL_LABELLED = "every row has a label, so that the stage of pseudo-labels had no rows"


@dataclass(frozen=True, kw_only=True)
class Pseudo:
    """Parameters of an optional stage of pseudo-labels after the training of a split method.

    Attributes:
        unlabelled: "ignore" leaves rows without a label out; "pseudo" learns from them by pseudo-labels.
        sure: τ, the lowest probability at which an answer is used as a label.
        unlabelled_weight: λ, the weight of rows without a label.
        unlabelled_epochs: number of epochs of this stage; by default as many as in training.
        unlabelled_batch_size: number of rows of a batch in this stage; by default as many as in training. If few
            rows have labels, larger batches make the loss less noisy.

    """

    unlabelled: Literal["ignore", "pseudo"] = "ignore"
    sure: float = 0.95
    unlabelled_weight: float = 1.0
    unlabelled_epochs: int | None = None
    unlabelled_batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.unlabelled not in {"ignore", "pseudo"}:
            raise ConfigError(f"method: unlabelled is 'ignore' or 'pseudo', not {self.unlabelled!r}")
        if not 0 <= self.sure < 1:
            raise ConfigError(f"method: sure is a probability below 1, got {self.sure}")
        if not 0 < self.unlabelled_weight < math.inf:
            raise ConfigError(f"method: unlabelled_weight must be a number above 0, got {self.unlabelled_weight}")
        for name in ("unlabelled_epochs", "unlabelled_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"method: {name} must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class PseudoLabelled(Split):
    """A split method followed by the stage of pseudo-labels."""

    pseudo: Pseudo = field(default=Pseudo(), repr=False)

    schedule_conflict: ClassVar[str] = (
        "cannot be combined with pseudo-labels: set method.unlabelled = 'ignore', or leave out the schedule"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosting != "active":
            raise ConfigError("method: unlabelled = 'pseudo' needs all predictors at the active party: set hosting = "
                              "'active'")  # fmt: skip

    @cached_property
    def can(self) -> Capabilities:
        """The capabilities of the split method, which also learns from rows without labels."""
        can = super().can
        both = f"{can.trains_on}; then also unlabelled rows that it predicts with high confidence"
        return replace(can, title=f"{can.title}, pseudo-labels", trains_on=both, unlabelled=True)

    def published_costs(self, ran: RunShape) -> list[FormulaTraffic]:
        """Return an empty list: the formula of split learning covers only labelled rows and one stage."""
        return []

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make the networks and optimizers of the split method.

        Raises:
            ConfigError: the task is regression, in which an answer does not have a confidence.
        """
        if seat.task is not None and seat.task.kind == "regression":
            raise ConfigError("method: unlabelled = 'pseudo' needs classification: a predicted number has no "
                              "confidence")  # fmt: skip
        return super().begin(seat, seeds)

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the stages of the split method, then the stage of pseudo-labels."""

        def rows(at: Rows) -> Tensor:
            assert at.observed is not None
            read = self.topology(seat.roster).without_unread(at.observed)
            return trained_rows(self.rule, self.plan(seat.roster), read)

        def remark(at: Rows) -> str:
            assert at.labeled is not None
            return "" if (rows(at) & ~at.labeled).any() else ALL_LABELLED

        stage = Stage(name=STAGE, step=self.step, rows=rows, epochs=self.pseudo.unlabelled_epochs, remark=remark,
                      batch_size=self.pseudo.unlabelled_batch_size, record=_record, continues=True,
                      joint=self.joint)  # fmt: skip
        return (*super().stages(seat), stage)

    def learn(self, state: State, rows: Rows, batch: Batch, gathered: Gathered, h: Tensor) -> float | None:
        """Return the split method's loss; in the stage of pseudo-labels, return the loss with pseudo-labels.

        The module's docstring defines the loss with pseudo-labels.
        """
        if batch.step_id[0] != STAGE:
            return super().learn(state, rows, batch, gathered, h)
        assert rows.key is not None
        y, known = labels_of(rows, batch)
        observed = gathered.observed
        use = self.plan(state.seat.roster).trains_on(observed)
        guess, sure = self._guessed(state, h, observed, rows.key[batch.rows])
        labelled, unlabelled = use & known, use & ~known
        sure &= unlabelled
        one = torch.ones((), dtype=h.dtype, device=h.device)
        groups = [
            (share, RowWeights(weight=torch.where(chosen, one, 0.0), counted=of, total=max(1, int(of.sum()))))
            for chosen, of, share in ((labelled, labelled, 1.0), (sure, unlabelled, self.pseudo.unlabelled_weight))
        ]
        value = self.descend(state, batch, h, observed, torch.where(known, y, guess), groups)
        for name, count in ((SURE, sure), (UNLABELLED, unlabelled)):
            state.kept[name] = state.kept.get(name, torch.zeros((), dtype=torch.int64)) + count.sum().cpu()
        return 0.0 if value is None else value

    def _guessed(self, state: State, h: Tensor, observed: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's predicted class [B], and a mask [B]: True if its probability is at least tau."""
        plan, host, trained = self.plan(state.seat.roster), self.host(state.seat), trained_parties(state)
        heads = state.modules["heads"]
        assert isinstance(heads, StackedMLP | ModuleHeads)
        with torch.no_grad():
            # as in prediction, ignore the embeddings of a party until one of its rows has been used for training
            if trained.missed:
                h, observed = h.clone(), observed.clone()
                h[:, trained.missed], observed[:, trained.missed] = 0.0, False
            outputs, valid = outputs_of(self.rule, plan, host, heads, h, observed, trained)
            _, answer = answer_of(self.rule, host, outputs, valid, observed, key)
            support = answer.scores if answer.confidence is None else answer.confidence
        guess = answer.scores.argmax(dim=1)
        best = support.gather(1, guess.unsqueeze(1)).squeeze(1)
        return guess, answer.answered & (best >= self.pseudo.sure)


def _record(state: State) -> dict[str, float]:
    """Return the share of the epoch's unlabelled rows that received a pseudo-label, and reset the counts."""
    sure, unlabelled = (state.kept.pop(name, torch.zeros(())).item() for name in (SURE, UNLABELLED))
    return {"pseudo_labels": sure / unlabelled} if unlabelled else {}
