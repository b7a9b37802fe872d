"""Embeddings of a party's rows, with the ids of these rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from torch import Tensor

from anyparty.alignment.alignment import Alignment
from anyparty.artifacts.model_files import Member
from anyparty.core.predictions import named_ids
from anyparty.data.blocks import Rows
from anyparty.methods.method import HasEmbeddings, Method
from anyparty.training.loop import ROWS_AT_ONCE


def embeddings(method: Method, member: Member, rows: Rows, alignment: Alignment, wanted: Tensor) -> pl.DataFrame | None:
    """Return a party's embeddings of those ``wanted`` rows [n] that its table has, in the order of its table.

    Args:
        method: the trained method.
        member: the party's part of the model.
        rows: the party's rows.
        alignment: the alignment of ``rows``.
        wanted: places among the aligned rows.

    Returns:
        The columns id and h0, h1, ...; the numbers of a row without cells are null.  ``None`` if the method computes no
        embeddings at this party.

    """
    if not isinstance(method, HasEmbeddings):
        return None
    position = alignment.position[member.state.seat.me][wanted.numpy()]
    own = np.flatnonzero(position >= 0)
    places = wanted[torch.from_numpy(own[position[own].argsort()])]
    member.state.train(False)
    values: list[tuple[Tensor, Tensor]] = []
    for start, chunk in enumerate(torch.split(places, ROWS_AT_ONCE)):
        found = method.embed(member.state, rows, chunk)
        if found is not None and len(found[0]):
            values.append((found[0].cpu() + start * ROWS_AT_ONCE, found[1].flatten(1).cpu()))
    if not values:
        return None
    held, h = (torch.cat(parts) for parts in zip(*values, strict=True))
    whole = torch.full((len(places), h.shape[1]), torch.nan)
    whole[held] = h
    identities = alignment.identities(places.numpy())
    assert identities is not None
    ids = named_ids(identities).values()
    return pl.DataFrame([*ids, *pl.from_numpy(whole.numpy(), [f"h{c}" for c in range(h.shape[1])]).fill_nan(None)])
