"""Predict many rows in batches, and join the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.data.blocks import Rows
from anyparty.methods.method import Batch, Method, State, checked_answer

ROWS_AT_ONCE = 4096


async def predict_rows(
    method: Method, net: Channel, state: State, rows: Rows, wanted: Tensor, asked: Sequence[str], seeds: Seeds
) -> Predictions | None:
    """Predict the rows ``wanted`` [n] as one party; only the active party gets the predictions, in this order.

    With class weights, the probabilities are those of the training rows' shares: see ``Predictions.unweighted``.
    """
    state.train(False)
    answered = []
    for chunk in torch.split(wanted, ROWS_AT_ONCE) if len(wanted) else [wanted]:
        part = checked_answer(method, state, await method.predict(net, state, rows, Batch(chunk, seeds), asked))
        if part is not None:
            answered.append(part.unweighted())
    return join(answered) if answered else None


def join(parts: Sequence[Predictions]) -> Predictions:
    """Join the predictions for consecutive batches."""
    first, offset = parts[0], 0
    if len(parts) == 1:
        return first
    reasons: dict[int, str] = {}
    for part in parts:
        reasons |= {offset + row: reason for row, reason in part.reasons.items()}
        offset += len(part)
    by_party = [part.by_party for part in parts if part.by_party is not None]
    return replace(
        first,
        scores=torch.cat([part.scores for part in parts]),
        took_part=torch.cat([part.took_part for part in parts]),
        by_party=torch.cat(by_party) if by_party else None,
        silent=tuple(dict.fromkeys(name for part in parts for name in part.silent)),
        reasons=reasons,
    )
