"""What a model answers: a score for every row that somebody present knows, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from torch import Tensor

from anyparty.terms import Task


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Answers for n rows, with their provenance.

    Attributes:
        task: what is predicted.
        blocks: the K parties that hold columns, in order.
        scores: [n, C] float32: class probabilities, or the predicted number; NaN where there is no answer.
        by_party: [n, K, C] float32, the answer of each party's own predictor (LASER-VFL, Algorithm 2), NaN where
            party k has none; ``None`` where a method has one answer for all.
        took_part: [n, K] bool, the blocks that the answer used.
        asked: [K] bool, the parties that were asked.
        silent: parties that were asked and did not answer.
        predictor: what made the answers, in words.
        reasons: why a row got no number, by row.
        ids: [n] the rows' ids as text, where the caller gave tables.
    """

    task: Task
    blocks: tuple[str, ...]
    scores: Tensor
    took_part: Tensor
    asked: Tensor
    by_party: Tensor | None = None
    silent: tuple[str, ...] = ()
    predictor: str = ""
    reasons: dict[int, str] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def answered(self) -> Tensor:
        """[n] bool: rows that got a number."""
        return ~torch.isnan(self.scores).any(dim=1)

    def labels(self) -> list[str | float | None]:
        """Return the predicted class, or number, of each row; ``None`` where there is no answer."""
        answered = self.answered.tolist()
        if self.task.kind == "regression":
            return [value if ok else None for value, ok in zip(self.scores[:, 0].tolist(), answered, strict=True)]
        best = torch.nan_to_num(self.scores, nan=-1.0).argmax(dim=1).tolist()
        return [self.task.classes[c] if ok else None for c, ok in zip(best, answered, strict=True)]

    def frame(self) -> pl.DataFrame:
        """Return one row per id: the answer, each class's probability, who took part, why there is no number."""
        scores = np.where(self.answered.numpy()[:, None], self.scores.numpy(), np.nan)
        names = [f"p({c})" for c in self.task.classes] if self.task.kind == "classification" else []
        parties = np.array(self.blocks, dtype=object)
        columns: dict[str, object] = {}
        if self.ids is not None:
            columns["id"] = list(self.ids)
        columns["prediction"] = self.labels()
        for c, name in enumerate(names):
            columns[name] = pl.Series(scores[:, c]).fill_nan(None)
        columns["parties"] = [" ".join(parties[row]) for row in self.took_part.numpy()]
        columns["reason"] = pl.Series([self.reasons.get(i) for i in range(len(self))], dtype=pl.String)
        return pl.DataFrame(columns)
