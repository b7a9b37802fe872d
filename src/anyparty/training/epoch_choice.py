"""Choose the epoch whose weights are kept, and decide when training stops early.

Epochs are compared by the metric of the settings.  Accuracy and F1 change in steps: if few rows are positive, many
epochs have the same value, the first of them before the network has learnt anything.  Therefore

- epochs with the same metric are compared by the task's smooth score: the log loss, or the RMSE of a regression;
- all values of the metric up to the value of the best constant answer count as the same value;
- an epoch uses up patience only if neither the metric nor the smooth score improved, and only after the metric has
  changed once;
- an undefined value is neither better nor worse: the epoch is not kept and uses up no patience.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anyparty.training.checkpoint import RunPosition
from anyparty.training.control_messages import EpochDecision

SHORT = 5  # no remarks up to this many scored epochs, because the first of a few epochs may well be the best


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """The comparison of epochs by their validation scores.

    Attributes:
        metric: the name of the score to compare.
        greater: True if greater values of the metric are better.
        smooth: the name of the score that breaks ties, smaller values being better; empty if the metric is smooth.
        floor: the metric of the best constant answer; all values up to the floor count as the same value.

    """

    metric: str
    greater: bool = False
    smooth: str = ""
    floor: float = -math.inf

    def rank(self, value: float, smooth: float) -> tuple[float, float]:
        """Return a pair of numbers for an epoch's two scores; the pair of a better epoch is greater."""
        return (max(value, self.floor) if self.greater else -value), -smooth


OWN_LOSS = Criterion(metric="loss")  # the epochs of a stage with a loss of its own are compared by this loss


def judge(
    criterion: Criterion, patience: int | None, progress: RunPosition, record: Mapping[str, Any]
) -> EpochDecision:
    """Return the decision, from an epoch's validation scores, whether to keep the weights and whether to stop.

    Args:
        criterion: the comparison of epochs.
        patience: the number of epochs without an improvement after which training stops; ``None`` for no limit.
        progress: the progress of the run; this function updates its best epoch and its patience.
        record: the epoch's record, with its validation scores.

    """
    scores = record["validation"]
    value, smooth = float(scores[criterion.metric]), float(scores[criterion.smooth] if criterion.smooth else 0.0)
    if math.isnan(value):
        return EpochDecision()
    new = criterion.rank(value, smooth)
    if progress.best is None:  # the search for the best epoch starts, or restarts because a party returned
        progress.moved, progress.lowest, better = not criterion.smooth, math.inf, True
    else:
        old = criterion.rank(progress.best, progress.best_smooth)
        progress.moved, better = progress.moved or new[0] != old[0], new > old
    lower, progress.lowest = smooth < progress.lowest, min(smooth, progress.lowest)
    if better:
        progress.best, progress.best_smooth = value, smooth
        progress.best_epoch, progress.best_stage = progress.epoch + 1, record["stage"]
    before = progress.waited if progress.epoch else 0  # patience starts again with every stage
    progress.waited = 0 if better or not progress.moved or (criterion.smooth and lower) else before + 1
    return EpochDecision(keep=better, stop=patience is not None and progress.waited >= patience)


def doubts(criterion: Criterion, progress: RunPosition, stage: str) -> Iterator[str]:
    """Yield remarks if the choice of the epoch whose weights are kept is doubtful, after the stage named ``stage``."""
    metric = criterion.metric
    records = [each for each in progress.history if each["stage"] == stage and "validation" in each]
    judged = [float(each["validation"][metric]) for each in records if metric in each["validation"]]
    defined = [value for value in judged if not math.isnan(value)]
    if not defined:
        return
    also = f", or train.metric = {criterion.smooth!r}" if criterion.smooth else ""
    if len(defined) < len(judged) / 2:
        yield (
            f"the validation {metric} was undefined in {len(judged) - len(defined)} of {len(judged)} epochs, which "
            f"were not compared: use a greater train.validation{also}"
        )
    if len(judged) <= SHORT:
        return
    if not progress.moved:
        yield (
            f"the validation {metric} never rose above that of one constant answer ({defined[-1]:.3g} in the last "
            f"epoch), so that the {criterion.smooth} chose the epoch: train longer, set train.balance = true{also}"
        )
    elif progress.best_stage == stage and progress.best_epoch == records[0]["epoch"]:
        yield (
            f"no later epoch had a better validation {metric}, so that the first epoch's weights are kept: the "
            "network may have learnt little; lower the learning rate, or use a greater train.validation"
        )
