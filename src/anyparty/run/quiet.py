"""Stages in which nothing crosses: each party for itself, or the active party alone.

A party in such a stage waits for nobody, so that parties may be at different epochs of it, and one may have gone home
while another is still at work.  A run that was stopped there goes on wherever each party stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.methods.method import Batch, Stage, State
from anyparty.seeds import Seeds

Moment = tuple[int, int]  # stage, epoch


def is_quiet(stage: Stage) -> bool:
    """Return whether nothing crosses in a stage."""
    return stage.loss is not None or stage.parties == "active"


def meeting(stages: Sequence[Stage], moment: Moment) -> Moment:
    """Return the moment at which parties meet from which this one can go on by itself.

    All moments of consecutive quiet stages, and the end of the run after them, are one such: where the first begins.
    """
    stage, epoch = moment
    first = stage
    while first > 0 and (first == len(stages) or is_quiet(stages[first])) and is_quiet(stages[first - 1]):
        first -= 1
    quiet = first < len(stages) and is_quiet(stages[first])
    return (first, 0) if quiet else (stage, epoch)


def score(stage: Stage, state: State, rows: Rows, wanted: Tensor, seeds: Seeds) -> dict[str, Any]:
    """Return the party's own loss on those of the ``wanted`` rows that it holds, as a part of an epoch's record."""
    if stage.loss is None or not len(wanted):
        return {}
    state.train(False)
    with torch.no_grad():
        value = stage.loss(state, rows, Batch(wanted, seeds, (stage.name,)))
    return {} if value is None else {"validation": {"loss": value}}
