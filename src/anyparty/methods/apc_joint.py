"""APC-VFL where all is aligned (figure 4): the classifier reads the joint embedding, and prediction asks the others.

Letters   B rows, K parties with columns, M width of the joint embedding z_A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.errors import AlignmentError
from anyparty.methods import apc_exchange as exchange
from anyparty.methods import enriched
from anyparty.methods.apc_exchange import Sharing, as_block, side_by_side
from anyparty.methods.ending import Ending
from anyparty.methods.method import Batch, Stage, State
from anyparty.nets.objective import losses
from anyparty.predictions import Predictions
from anyparty.terms import Channel


def stage(ending: Ending, teacher: str, labelled: Callable[[Rows], Tensor]) -> Stage:
    """Return the stage that fits the classifier to z_A, which is kept under the name ``teacher`` (figure 4).

    A head keeps weights and stops by its own loss on validation rows: their z_A came with the others', and for answers
    to be scored the passive parties, who may have gone home, would have to be asked.
    """

    def known(state: State, rows: Rows, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return z_A [n, M] and labels [n] of those rows of a batch that have both."""
        kept = enriched.kept(state, teacher)
        assert kept is not None
        assert rows.y is not None
        assert rows.labeled is not None
        if not (rows.labeled & (kept.position >= 0)).any():
            raise AlignmentError(f"{ending.title} on joint embeddings: no labelled row is left that the active and a "
                                 f"passive party have: who has them was lost before it sent its part")  # fmt: skip
        joint, held = kept.take(places := enriched.labelled(rows, batch))
        return joint, rows.y[places[held]]

    async def classify(net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG001
        return ending.learn(state, *known(state, rows, batch), batch)

    def classified(state: State, rows: Rows, batch: Batch) -> float | None:
        joint, y = known(state, rows, batch)
        assert state.seat.task is not None
        return losses(state.seat.task, state.modules["classifier"](joint), y).mean().item() if len(y) else None

    head = ending.classifier == "head"
    return Stage(name="classify", step=classify, rows=labelled, parties="active", validates=False,
                 epochs=None if head else 0, loss=classified if head else None)  # fmt: skip


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
