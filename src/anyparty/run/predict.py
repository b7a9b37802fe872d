"""Predicting many rows in batches, and putting the answers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.methods.method import Batch, Method, State, checked_answer
from anyparty.predictions import NO_ANSWER, Predictions
from anyparty.seeds import Seeds
from anyparty.terms import Channel

ROWS_AT_ONCE = 4096


async def predict_rows(
    method: Method, net: Channel, state: State, rows: Rows, wanted: Tensor, asked: Sequence[str], seeds: Seeds
) -> Predictions | None:
    """Play a party's part in predicting ``wanted`` [n]; the active party gets all answers, in that order."""
    state.train(False)
    parts = [
        checked_answer(method, state, await method.predict(net, state, rows, Batch(chunk, seeds), asked))
        for chunk in (torch.split(wanted, ROWS_AT_ONCE) if len(wanted) else [wanted])
    ]
    answered = [_explained(part) for part in parts if part is not None]
    return join(answered) if answered else None


def _explained(part: Predictions) -> Predictions:
    """Return answers in which each row without a number has a reason, also by a user's own method that gives none."""
    lacking = (~part.answered).nonzero().squeeze(1).tolist()
    return replace(part, reasons=dict.fromkeys(lacking, NO_ANSWER) | part.reasons) if lacking else part


def join(parts: Sequence[Predictions]) -> Predictions:
    """Put the answers to consecutive batches together."""
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
