"""The last stage of methods with one exchange: fit a classifier to the active party's embeddings, and answer with it.

Notation  B rows, I width of the active party's block, M width of an embedding, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, Task
from anyparty.methods.method import Batch, Stage, State
from anyparty.methods.one_exchange import distillation
from anyparty.networks.encoders import MLP
from anyparty.networks.objective import answers, losses
from anyparty.networks.sklearn_head import FittedEstimator
from anyparty.problem.rows import Rows


@dataclass(frozen=True)
class EmbeddedRows:
    """A classifier's input for some rows.

    Attributes:
        held: [n] int64, the indices of the n rows among the requested rows.
        u: [n, M], the embeddings of these rows.
        took_part: [n, K] bool, the blocks that each embedding depends on.

    """

    held: Tensor
    u: Tensor
    took_part: Tensor


Classified = Callable[[State, Rows, Tensor], EmbeddedRows]

NOBODY = "no party that was asked and answered has this row"
NO_NUMBER = "the classifier gave no number for this row"


class ClassifierParameters(Protocol):
    """The parameters with which a method describes the classifier of a ``ClassifierStage``."""

    @property
    def classifier(self) -> str:
        """The name of the classifier."""

    @property
    def classifier_settings(self) -> Mapping[str, Any]:
        """The keyword arguments of the classifier."""

    @property
    def head_hidden(self) -> tuple[int, ...]:
        """The widths of the hidden layers, if the classifier is a network."""

    def classified(self, state: State, rows: Rows, places: Tensor) -> EmbeddedRows:
        """Return the classifier's input for the active party's rows among ``places`` [B]."""


@dataclass(frozen=True, kw_only=True)
class ClassifierStage:
    """The last stage of training, which fits a classifier to embeddings, and the answers from this classifier.

    Attributes:
        title: title of the method.
        classified: function that returns the classifier's input for the rows that the active party has.
        classifier: "logistic" ("ridge" in regression), the name of a scikit-learn class, or "head": a network.
        settings: keyword arguments of the estimator.
        head_hidden: hidden widths of the head.
        fitted_to: function that returns the inputs to which the classifier is fitted, if they differ from the inputs
            that ``classified`` returns. This function may return two inputs for one row.

    """

    title: str
    classified: Classified
    classifier: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    head_hidden: tuple[int, ...] = ()
    fitted_to: Classified | None = None

    @classmethod
    def of(cls, method: ClassifierParameters, title: str, fitted_to: Classified | None = None) -> ClassifierStage:
        """Return the classifier stage with the parameters that ``method`` has."""
        return cls(title=title, classified=method.classified, classifier=method.classifier,
                   settings=method.classifier_settings, head_hidden=method.head_hidden,
                   fitted_to=fitted_to)  # fmt: skip

    def module(self, task: Task, inputs: int, seeds: Seeds) -> nn.Module:
        """Return an untrained classifier of embeddings of width ``inputs``.

        Raises:
            ConfigError: scikit-learn has no such estimator, or it does not accept these settings.
        """
        if self.classifier == "head":
            return MLP(hidden=self.head_hidden)(inputs, task.outputs)
        name = "ridge" if self.classifier == "logistic" and task.kind == "regression" else self.classifier
        return FittedEstimator(name, task, inputs, self.settings, seeds.number("classifier"))

    def stage(self, rows: Callable[[Rows], Tensor]) -> Stage:
        """Return the training stage in which the active party fits the classifier to the rows that ``rows`` returns.

        A head (a network) trains for the number of epochs in the settings. A scikit-learn estimator is fitted in a
        single step.
        """
        epochs = None if self.classifier == "head" else 0
        return Stage(name="classify", step=self.step, rows=rows, epochs=epochs, parties="active")

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Fit the classifier to the labelled rows of a batch."""
        assert rows.y is not None
        places = distillation.labelled(rows, batch)
        known = (self.fitted_to or self.classified)(state, rows, places)
        return self.learn(state, known.u, rows.y[places[known.held]], batch)

    def learn(self, state: State, u: Tensor, y: Tensor, batch: Batch) -> float | None:
        """Fit the classifier to embeddings u [B, M] and labels y [B]; return the loss, ``None`` if B is 0."""
        if not len(y):
            return None
        task, module = state.seat.task, state.modules["classifier"]
        assert task is not None
        if isinstance(module, FittedEstimator):
            module.fit(u, y)
            return losses(task, module(u), y, state.seat.loss).mean().item()
        return distillation.fit(state, "classifier", batch, lambda: losses(task, module(u), y, state.seat.loss).mean())

    def alone(self, state: State, rows: Rows, batch: Batch, asked: Sequence[str]) -> Predictions:
        """Return the answers to a batch that the active party computes without messages to other parties."""
        seat = state.seat
        took = torch.zeros(len(batch.rows), seat.roster.K, dtype=torch.bool, device=seat.device)
        known = EmbeddedRows(batch.rows[:0], torch.zeros(0, 0), took[:0])
        if seat.me in asked:  # a party that is not in ``asked`` may have no table
            known = self.classified(state, rows, batch.rows)
        took[known.held] = known.took_part
        why = f"{self.title} predicts from the block of {seat.me!r}, which "
        why += "does not have this row" if seat.me in asked else "was not asked"
        return self.answer(state, rows, batch, asked, held=known.held, u=known.u, took_part=took, why=why)

    def answer(
        self, state: State, rows: Rows, batch: Batch, asked: Sequence[str], *,
        held: Tensor, u: Tensor, took_part: Tensor, why: str, silent: Sequence[str] = (),
    ) -> Predictions:  # fmt: skip
        """Return the answers to a batch, computed from features u [n, M] of the rows with the indices ``held`` [n].

        All other rows get a reason in place of an answer. The reason is ``why`` if a party in ``asked`` has the row.
        """
        task, blocks = state.seat.task, state.seat.roster.blocks
        assert task is not None
        assert rows.observed is not None
        outputs = torch.full((len(batch.rows), task.outputs), torch.nan, device=state.seat.device)
        if len(held):
            with torch.no_grad():
                outputs[held] = state.modules["classifier"](u)
        scores = answers(task, outputs)
        observed = rows.observed[batch.rows].cpu() & torch.tensor([name in asked for name in blocks])
        known, answered = observed.any(dim=1).tolist(), ~torch.isnan(scores).any(dim=1).cpu()
        lacking, asked_it = (~answered).nonzero().squeeze(1).tolist(), set(held.tolist())
        reasons = {n: NO_NUMBER if n in asked_it else why if known[n] else NOBODY for n in lacking}
        return Predictions(
            task=task, blocks=blocks, scores=scores.cpu(), took_part=took_part.cpu() & answered.unsqueeze(1),
            asked=torch.tensor([name in asked for name in blocks]), silent=tuple(silent), predictor=self.title,
            reasons=reasons,
        )  # fmt: skip


def of_block(state: State, rows: Rows, places: Tensor, features: Callable[[State, Tensor], Tensor]) -> EmbeddedRows:
    """Return embeddings of the active party's rows at ``places`` [B], computed from this party's block alone.

    ``features`` computes the embeddings: [n, I] -> [n, M].
    """
    assert rows.block is not None
    seat = state.seat
    x, held = rows.block.take(places)
    took = torch.zeros(len(held), seat.roster.K, dtype=torch.bool, device=held.device)
    took[:, seat.roster.blocks.index(seat.me)] = True
    return EmbeddedRows(held, features(state, x), took)
