"""APC-VFL where all is aligned (figure 4): the classifier reads the joint embedding, and prediction asks the others.

Letters   B rows, K parties with columns, M width of the joint embedding z_A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from anyparty.blocks.blocks import Block, Rows
from anyparty.methods import apc_exchange as exchange
from anyparty.methods import enriched
from anyparty.methods.apc_exchange import Sharing, as_block, side_by_side
from anyparty.methods.ending import Ending
from anyparty.methods.method import Batch, State
from anyparty.predictions import Predictions
from anyparty.terms import Channel


def classify(ending: Ending, state: State, teacher: Block | None, rows: Rows, batch: Batch) -> float | None:
    """Fit the classifier to z_A of the labelled rows of a batch; return the loss."""
    assert teacher is not None
    assert rows.y is not None
    joint, held = teacher.take(places := enriched.labelled(rows, batch))
    return ending.learn(state, joint, rows.y[places[held]], batch)


async def predict(
    ending: Ending, sharing: Sharing, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
) -> Predictions | None:
    """Play a party's part in an answer from z_A, which takes the active and a passive party's Z of a row."""
    seat, batch = state.seat, replace(batch, rows=batch.rows.to(state.seat.device))
    z = exchange.local(state, rows, batch) if {seat.me, seat.roster.active} <= set(asked) else None
    if seat.me != seat.roster.active:
        await sharing.send(net, seat, z)
        return None
    there = await sharing.gather(net, seat, rows, batch, asked if seat.me in asked else (), z)
    blocks = {name: as_block(rows.n, *part) for name, part in there.parts.items()}
    joint, present = side_by_side(blocks, sharing.widths(seat.roster), batch.rows)
    a = enriched.active_block(seat.roster, ending.title)
    held = (present[:, a] & (present.sum(dim=1) > 1)).nonzero().squeeze(1)
    u, took = exchange.joint(state, joint[held], present[held]), torch.zeros_like(present)
    took[held] = present[held]
    why = f"{ending.title} on joint embeddings predicts rows that {seat.me!r} and a passive party have and were asked "
    why += "for"
    return ending.answer(state, rows, batch, asked, held=held, u=u, took_part=took, why=why, silent=there.silent)
