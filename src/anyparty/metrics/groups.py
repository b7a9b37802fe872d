"""The usual metrics by who was present: a model for any set of parties is as good as it is for each."""

from __future__ import annotations

import torch
from torch import Tensor

from anyparty.errors import PredictionError
from anyparty.metrics.scores import Answers, Scores, scores_of
from anyparty.predictions import Predictions, members, patterns


def by_count(predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None = None) -> dict[int, Scores]:
    """Return ``score`` of the rows that 0, 1, ... K parties are present for, most parties first.

    A party is present for a row that it has (``observed`` [n, K] bool) if it was asked.
    """
    rows, here = labelled(predictions, y, observed, labeled)
    count = here.sum(dim=1)
    counts = reversed(range(len(predictions.blocks) + 1))
    return {c: scores_of(rows.where(count == c)) for c in counts if bool((count == c).any())}


def by_pattern(
    predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None = None, *, most: int = 32
) -> dict[str, Scores]:
    """Return ``score`` by who was present (``"bank + shop"``), for the ``most`` frequent patterns, in that order."""
    rows, here = labelled(predictions, y, observed, labeled)
    distinct, which = patterns(here)
    counts = torch.bincount(which, minlength=len(distinct))
    frequent = counts.argsort(descending=True, stable=True)[:most].tolist()
    names = [" + ".join(members(row, predictions.blocks)) or "(nobody)" for row in distinct]
    return {names[p]: scores_of(rows.where(which == p)) for p in frequent}


def present(predictions: Predictions, observed: Tensor) -> Tensor:
    """[n, K] bool: O_n, the parties that have row n and were asked."""
    if observed.shape != predictions.took_part.shape:
        n, K = predictions.took_part.shape
        raise PredictionError(f"observed is {tuple(observed.shape)}; {n} predictions of {K} parties need {(n, K)}")
    return observed & predictions.asked


def labelled(predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None) -> tuple[Answers, Tensor]:
    """Return the labelled rows and who is present for them."""
    here = present(predictions, observed)
    return Answers.of(predictions, y, labeled), here if labeled is None else here[labeled]
