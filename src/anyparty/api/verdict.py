"""Score a model beside boosted trees on the active party's own columns, and on all columns if one process has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from anyparty.core.predictions import Predictions
from anyparty.core.types import Roster, Task
from anyparty.errors import ConfigError, remark
from anyparty.metrics.baselines import BoosterBaseline, Floats
from anyparty.metrics.scores import LabelledPredictions
from anyparty.metrics.worth import Worth, is_better, line_of, worth_of
from anyparty.problem.rows import Rows
from anyparty.problem.splits import TRAIN, VALIDATION, Part

MOST_CELLS = 20_000_000  # of the training rows; with more, the trees would train longer than some networks
MOST_OFFLINE = 6


@dataclass(frozen=True, kw_only=True)
class BaselineComparison:
    """The rows that a model was trained on, and the boosters that were trained on the same rows.

    Attributes:
        rows: the rows of all parties or, at a site of its own, of the active party.
        training: [n], indices of the labelled training rows.
        validation: [m], indices of the labelled validation rows.
        roster: the parties.
        task: the task.
        seed: the seed of the training run.
        trained: the boosters by the parties whose columns they use.
    """

    rows: Mapping[str, Rows]
    training: Tensor
    validation: Tensor
    roster: Roster
    task: Task
    seed: int
    trained: dict[tuple[str, ...], BoosterBaseline] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[str, Rows], use: Part, roster: Roster, task: Task, seed: int) -> BaselineComparison:
        """Return a comparison without boosters, from the use [N] of each row."""
        labeled = rows[roster.active].labeled
        assert labeled is not None
        training, validation = (
            (torch.from_numpy(use == wanted) & labeled.cpu()).nonzero().squeeze(1) for wanted in (TRAIN, VALIDATION)
        )
        return cls(rows=rows, training=training, validation=validation, roster=roster, task=task, seed=seed)

    def worth(
        self, rows: Mapping[str, Rows], wanted: Tensor, asked: Sequence[str], whole: LabelledPredictions,
        answer: Callable[[list[str]], Predictions] | None = None,
    ) -> Worth | None:  # fmt: skip
        """Return the comparison on test rows; ``None`` if no passive party was asked, or no row has an answer.

        It is also ``None`` if the training rows are too many for trees, or if LightGBM cannot be imported; a remark
        then gives the reason.

        Args:
            rows: each party's rows, of which some are scored.
            wanted: [n], indices of the scored rows.
            asked: the parties that the model asked.
            whole: [n], the model's predictions.
            answer: a function that returns the model's predictions for the scored rows by some parties; without it,
                no party is left out.
        """
        try:
            return self._worth(rows, wanted, asked, whole, answer)
        except ConfigError as error:
            remark(str(error))
            return None

    def _worth(
        self, rows: Mapping[str, Rows], wanted: Tensor, asked: Sequence[str], whole: LabelledPredictions,
        answer: Callable[[list[str]], Predictions] | None,
    ) -> Worth | None:  # fmt: skip
        active, passive = self.roster.active, [name for name in asked if name != self.roster.active]
        good = whole.answered
        if not passive or not bool(good.any()) or not len(self.training):
            return None
        cells = len(self.training) * sum(map(_width, self.rows.values()))
        if cells > MOST_CELLS:
            raise ConfigError(f"no boosted trees stand beside the scores: the training rows have {cells:,} numbers, "
                              f"and trees are trained on at most {MOST_CELLS:,}")  # fmt: skip
        kept, notes = whole.where(good), []
        if not bool(good.all()):
            notes.append(f"compared on the {int(good.sum()):,} of {len(good):,} rows that the model answers")
        own = replace(kept, scores=self._scores(self.own, rows, wanted[good], whole))
        held = active in self.roster.blocks
        if not held:
            notes.append(f"{active} holds no columns: alone, it could only guess the training rows' "
                         f"{'mean' if self.task.kind == 'regression' else 'class shares'}")  # fmt: skip
        lines = [
            line_of(f"{active}'s own columns (boosted trees)" if held else f"{active}, a constant guess", "own", own),
            line_of("all parties" if set(asked) == set(self.roster.blocks) else " + ".join(asked), "all", kept),
        ]
        reference, best = "own", own
        left_out = [(f"{name} offline", "without", [each for each in asked if each != name]) for name in passive]
        left_out = left_out if len(passive) <= MOST_OFFLINE and len(asked) > 2 else []
        if held:
            left_out.append((f"{active} alone, all others offline", "alone", [active]))
        for name, kind, parties in left_out if answer is not None else ():
            part = answer(parties)  # type: ignore[misc]
            scored = replace(whole, scores=functional.pad(part.scores, (0, whole.unseen)),
                             answered=part.answered & good)  # fmt: skip
            lines.append(line_of(name, kind, scored))
            if kind == "alone" and bool(part.answered[good].all()) and is_better(lines[-1], lines[0], whole.task):
                reference, best = "alone", scored.where(good)
        if set(self.roster.blocks) <= rows.keys():
            pooled = replace(kept, scores=self._scores(self.roster.blocks, rows, wanted[good], whole))
            lines.append(line_of("all columns in one place (no federation can)", "pooled", pooled))
        every = set(passive) == set(self.roster.blocks) - {active}
        return worth_of(active, passive, lines, kept, best, every=every, seed=self.seed, reference=reference,
                        notes=notes)  # fmt: skip

    @property
    def own(self) -> tuple[str, ...]:
        """The active party, if it holds columns."""
        return tuple(name for name in self.roster.blocks if name == self.roster.active)

    def _scores(
        self, parties: tuple[str, ...], rows: Mapping[str, Rows], wanted: Tensor, whole: LabelledPredictions
    ) -> Tensor:
        """Return the scores of rows by trees on the columns of ``parties``, or constants without columns."""
        y = self.rows[self.roster.active].y
        assert y is not None
        labels = y.cpu().numpy()
        training, validation = self.training.numpy(), self.validation.numpy()
        if not parties:
            constant = (
                np.array([labels[training].mean() * self.task.scale + self.task.mean])
                if self.task.kind == "regression"
                else np.bincount(labels[training], minlength=self.task.outputs) / len(training)
            )
            found = np.tile(constant, (len(wanted), 1))
        else:
            if parties not in self.trained:
                x = columns_of(self.rows, parties, self.training)
                held = columns_of(self.rows, parties, self.validation), labels[validation]
                self.trained[parties] = BoosterBaseline.fit(x, labels[training], self.task, validation=held,
                                                            seed=self.seed)  # fmt: skip
            found = self.trained[parties].predict(columns_of(rows, parties, wanted))
        return functional.pad(torch.from_numpy(found).to(whole.scores.dtype), (0, whole.unseen))


def _width(rows: Rows) -> int:
    return 0 if rows.block is None else int(rows.block.x[:1].numel())


def columns_of(rows: Mapping[str, Rows], parties: Iterable[str], wanted: Tensor) -> Floats:
    """Return the prepared columns of some parties side by side, [n, F]; NaN if a row or a number is missing."""
    found = []
    for name in parties:
        block = rows[name].block
        assert block is not None
        x = block.x.detach().cpu().flatten(1).clone()
        if block.gaps is not None:
            x[block.gaps.cpu()] = torch.nan
        x = torch.cat([x, x.new_full((1, x.shape[1]), torch.nan)])  # the position -1 finds the row without numbers
        found.append(x[block.position.cpu()[wanted]])
    joined: Floats = torch.cat(found, dim=1).numpy()
    return joined
