"""Variants of APC-VFL in which the classifier reads joint embeddings: ``classify_on = "joint"`` and ``"either"``.

"joint"    The paper's variant for full alignment (figure 4): prediction asks the other parties for their Z_k.
"either"   Not in the paper: the active party stores z_A of the rows that crossed in training. The classifier reads
           u = [0, z_A, 1] for these rows, and u = [g3(x), 0, 0] for all other rows, [B, 2 M + 1].

Notation  B rows, K parties with columns, M width of the joint embedding z_A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from anyparty.core.predictions import Predictions
from anyparty.core.types import Channel
from anyparty.data.blocks import Rows
from anyparty.errors import AlignmentError
from anyparty.methods.method import Batch, Stage, State
from anyparty.methods.one_exchange import distillation
from anyparty.methods.one_exchange import exchange_once as exchange
from anyparty.methods.one_exchange.classifier import ClassifierStage, EmbeddedRows
from anyparty.methods.one_exchange.exchange_once import RepresentationSharing, as_block, side_by_side
from anyparty.networks.modules import VectorMemory
from anyparty.networks.objective import losses


def stage(ending: ClassifierStage, teacher: str, labelled: Callable[[Rows], Tensor]) -> Stage:
    """Return the stage that fits the classifier to z_A, which is stored under the name ``teacher`` (figure 4).

    For a head, its loss on validation rows decides early stopping and which weights to keep, because z_A of these rows
    is already known. Scoring answers would need messages of the passive parties, which may be offline by then.
    """

    def known(state: State, rows: Rows, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return z_A [n, M] and labels [n] of the rows of a batch for which z_A and label are known."""
        kept = distillation.kept(state, teacher)
        assert kept is not None
        assert rows.y is not None
        assert rows.labeled is not None
        if not (rows.labeled & (kept.position >= 0)).any():
            raise AlignmentError(
                f"{ending.title} on joint embeddings: no labelled row is left that the active and a "
                "passive party have: the passive parties with such rows were lost before they sent their embeddings"
            )
        joint, held = kept.take(places := distillation.labelled(rows, batch))
        return joint, rows.y[places[held]]

    async def classify(net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG001
        return ending.learn(state, *known(state, rows, batch), batch)

    def classified(state: State, rows: Rows, batch: Batch) -> float | None:
        joint, y = known(state, rows, batch)
        assert state.seat.task is not None
        return losses(state.seat.task, state.modules["classifier"](joint), y).mean().item() if len(y) else None

    head = ending.classifier == "head"
    return Stage(
        name="classify",
        step=classify,
        rows=labelled,
        parties="active",
        validates=False,
        epochs=None if head else 0,
        loss=classified if head else None,
    )


async def predict(
    ending: ClassifierStage,
    sharing: RepresentationSharing,
    net: Channel,
    state: State,
    rows: Rows,
    batch: Batch,
    asked: Sequence[str],
) -> Predictions | None:
    """Run a party's part in an answer from z_A.

    A row gets an answer if the Z_k of the active party and of at least one passive party are known.
    """
    seat, batch = state.seat, replace(batch, rows=batch.rows.to(state.seat.device))
    z = exchange.local(state, rows, batch) if {seat.me, seat.roster.active} <= set(asked) else None
    if seat.me != seat.roster.active:
        await sharing.send(net, seat, z)
        return None
    there = await sharing.gather(net, seat, rows, batch, asked if seat.me in asked else (), z)
    blocks = {name: as_block(rows.n, *part) for name, part in there.parts.items()}
    joint, present = side_by_side(blocks, sharing.widths(seat.roster), batch.rows)
    a = distillation.active_block(seat.roster, ending.title)
    held = (present[:, a] & (present.sum(dim=1) > 1)).nonzero().squeeze(1)
    u, took = exchange.joint(state, joint[held], present[held]), torch.zeros_like(present)
    took[held] = present[held]
    why = f"{ending.title} on joint embeddings predicts rows that {seat.me!r} and a passive party have and were asked "
    why += "for"
    return ending.answer(state, rows, batch, asked, held=held, u=u, took_part=took, why=why, silent=there.silent)


def width(M: int) -> int:
    """Return the width of u, 2 M + 1."""
    return 2 * M + 1


def memory(M: int, parties: int) -> nn.Module:
    """Return an empty memory of joint embeddings for the active party."""
    return VectorMemory(M, parties)


def remember(
    state: State, rows: Rows, places: Tensor, joint: Tensor, there: Tensor, *, but: Tensor | None = None
) -> None:
    """Store z_A [n, M] of the rows at ``places`` [n]; ``there`` [n, K] marks the parties whose parts arrived.

    The rows at ``but`` [b] are not stored, because they are validation rows. These are scored as rows that never
    crossed.
    """
    if but is not None:
        kept = ~torch.isin(places, but.to(places.device))
        places, joint, there = places[kept], joint[kept], there[kept]
    assert rows.block is not None
    assert rows.ids is not None
    ids = rows.ids.gather(rows.block.position[places].cpu().numpy())
    _memory(state).remember(ids, joint, there)


def embed(state: State, rows: Rows, places: Tensor, own: EmbeddedRows) -> EmbeddedRows:
    """Return u of the rows at ``places`` [B] that the active party has; ``own`` has g3(x) of these rows."""
    assert rows.block is not None
    assert rows.ids is not None
    known = _memory(state)
    at = known.find(rows.ids.gather(rows.block.position[places][own.held].cpu().numpy()))
    crossed = at >= 0
    joint, took = torch.zeros_like(own.u), own.took_part.clone()
    joint[crossed], took[crossed] = known.vectors[at[crossed]], known.took_part[at[crossed]]
    mine = torch.where(crossed.unsqueeze(1), 0.0, own.u)
    return EmbeddedRows(own.held, torch.cat([mine, joint, crossed.unsqueeze(1).to(own.u.dtype)], dim=1), took)


def both(state: State, rows: Rows, places: Tensor, own: EmbeddedRows) -> EmbeddedRows:
    """Return the inputs u to which the classifier is fitted, for the rows at ``places`` [B].

    Rows that crossed occur twice, the second time as if they had not crossed.
    """
    u, M = embed(state, rows, places, own), own.u.shape[1]
    crossed = u.u[:, -1] == 1
    new = torch.cat([own.u[crossed], torch.zeros_like(u.u[crossed][:, M:])], dim=1)
    return EmbeddedRows(
        torch.cat([u.held, u.held[crossed]]), torch.cat([u.u, new]), torch.cat([u.took_part, own.took_part[crossed]])
    )


def _memory(state: State) -> VectorMemory:
    found = state.modules["memory"]
    assert isinstance(found, VectorMemory)
    return found
