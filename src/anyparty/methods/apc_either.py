"""APC-VFL where what came is kept: a row that crossed is classified by its joint embedding, any other by the student's.

The paper forgets z_A once the student has learnt from it, and classifies every row by the active party's own columns.
But z_A of the aligned rows is at the active party already: answers for them can rest on all parties' columns, with no
message more, before any label of theirs is known.

    u = (0, z_A, 1)             where z_A is known     [2 M + 1]
    u = (g3(x), 0, 0)           elsewhere

A linear classifier of u is one of each, regularised together.  It is fitted to both forms of a row that crossed: else
where all of them did, nothing would be learnt for new rows.  Letters as in ``apc``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyparty.blocks.blocks import Rows
from anyparty.methods.ending import Embedded
from anyparty.methods.method import State
from anyparty.nets.remembered import Remembered


def width(M: int) -> int:
    """Return the width of u."""
    return 2 * M + 1


def memory(M: int, parties: int) -> nn.Module:
    """Return a fresh memory of joint embeddings, at the active party."""
    return Remembered(M, parties)


def remember(
    state: State, rows: Rows, places: Tensor, joint: Tensor, there: Tensor, *, but: Tensor | None = None
) -> None:
    """Keep z_A [n, M] of the rows at ``places`` [n], of which another party's part came: ``there`` [n, K].

    Not of those at ``but`` [b], which are for validation: they are judged as rows are that never crossed.
    """
    if but is not None:
        kept = ~torch.isin(places, but.to(places.device))
        places, joint, there = places[kept], joint[kept], there[kept]
    assert rows.block is not None
    assert rows.ids is not None
    ids = rows.ids.gather(rows.block.position[places].cpu().numpy())
    _memory(state).remember(ids, joint, there)


def embed(state: State, rows: Rows, places: Tensor, own: Embedded) -> Embedded:
    """Return u of the rows at ``places`` [B] that the active party has; ``own`` are their own embeddings."""
    assert rows.block is not None
    assert rows.ids is not None
    known = _memory(state)
    at = known.find(rows.ids.gather(rows.block.position[places][own.held].cpu().numpy()))
    crossed = at >= 0
    joint, took = torch.zeros_like(own.u), own.took_part.clone()
    joint[crossed], took[crossed] = known.vectors[at[crossed]], known.took_part[at[crossed]]
    mine = torch.where(crossed.unsqueeze(1), 0.0, own.u)
    return Embedded(own.held, torch.cat([mine, joint, crossed.unsqueeze(1).to(own.u.dtype)], dim=1), took)


def both(state: State, rows: Rows, places: Tensor, own: Embedded) -> Embedded:
    """Return what the classifier is fitted to: u of rows at ``places`` [B], and of those that crossed also as new."""
    u, M = embed(state, rows, places, own), own.u.shape[1]
    crossed = u.u[:, -1] == 1
    new = torch.cat([own.u[crossed], torch.zeros_like(u.u[crossed][:, M:])], dim=1)
    return Embedded(torch.cat([u.held, u.held[crossed]]), torch.cat([u.u, new]),
                    torch.cat([u.took_part, own.took_part[crossed]]))  # fmt: skip


def _memory(state: State) -> Remembered:
    found = state.modules["memory"]
    assert isinstance(found, Remembered)
    return found
