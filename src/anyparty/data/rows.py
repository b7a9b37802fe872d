"""Build each party's ``Rows`` from an alignment and the party's preprocessed features."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.alignment.alignment import Alignment
from anyparty.core.types import Roster
from anyparty.data.blocks import Block, Rows
from anyparty.tables.preprocessing import Features

PartyLabels = Mapping[str, tuple[Tensor, Tensor]]


def own_rows(
    position: NDArray[np.int64],
    *,
    blocks: NDArray[np.int64] | None = None,
    features: Features | None = None,
    labels: tuple[Tensor, Tensor] | None = None,
    observed: Tensor | None = None,
    key: Tensor | None = None,
    ids: pl.Series | None = None,
    names: pl.Series | None = None,
    device: torch.device | str = "cpu",
) -> Rows:
    """Return one party's ``Rows`` for N aligned rows.

    Args:
        position: [N], the party's own row of each aligned row, -1 if it has none.
        blocks: [N], ``position`` with -1 also for rows whose cells are all empty; by default ``position``.
        features: the preprocessed features of the party's n_k rows; ``None`` if the party has no columns.
        labels: the labels of the party's own rows, (y [n_k], labeled [n_k]); ``None`` if the party has no labels.
        observed: [N, K], True if party k holds row n; given at label holders.
        key: [N], a number that identifies each row; given at the active party.
        ids: [n_k], the ids of the party's own rows; given at the active party.
        names: [N], the ids of the aligned rows, at the active party. By default they are taken from ``ids``, and null
            for rows that the party does not hold.
        device: the device for the tensors.

    """
    block = y = labeled = None
    if features is not None:
        block = block_of(features, torch.from_numpy(position if blocks is None else blocks), device)
    if labels is not None:
        y, labeled = (part.to(device) for part in _spread(labels, position))
    return Rows(
        n=len(position),
        block=block,
        y=y,
        labeled=labeled,
        observed=None if observed is None else observed.to(device),
        key=None if key is None else key.to(device),
        ids=ids,
        names=names if names is not None or ids is None else named(ids, position),
    )


def block_of(features: Features, position: Tensor, device: torch.device | str = "cpu") -> Block:
    """Return the block of preprocessed rows, with the ``position`` [N] of each aligned row among the party's own."""
    gaps = None if features.gaps is None else torch.from_numpy(features.gaps).to(device)
    return Block(torch.from_numpy(features.x).to(device), position.to(device), gaps)


def assemble(
    alignment: Alignment,
    roster: Roster,
    features: Mapping[str, Features],
    labels: PartyLabels | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Rows]:
    """Return every party's ``Rows``, for a process that knows the whole alignment.

    Args:
        alignment: the alignment of all parties.
        roster: the parties.
        features: by party, the preprocessed features of its n_k rows; a party that is not a key holds no row.
        labels: by label holder, the labels of its own rows, (y [n_k], labeled [n_k]).
        device: the device for the tensors.

    """
    nobody, key = np.full(alignment.n, -1), row_keys(alignment)
    held = [alignment.blocks[name] if name in features else nobody for name in roster.blocks]
    observed = torch.from_numpy(np.stack(held, axis=1) >= 0)
    found = {}
    for name in roster.names:
        there, leads = name in features, name == roster.active
        found[name] = own_rows(
            alignment.position[name] if there else nobody,
            blocks=alignment.blocks[name] if there else nobody,
            features=features.get(name) if name in roster.blocks else None,
            labels=(labels or {}).get(name),
            observed=observed if name in roster.labelers else None,
            key=key if leads else None,
            ids=own_ids(alignment, name) if leads and there else None,
            names=alignment.ids if leads else None,
            device=device,
        )
    return found


def _spread(labels: tuple[Tensor, Tensor], position: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return a party's labels and their mask in the order of the N aligned rows, from the order of its own rows."""
    (y, labeled), at = labels, torch.from_numpy(position)
    held = at >= 0
    whole_y, whole_labeled = torch.zeros(len(at), dtype=y.dtype), torch.zeros(len(at), dtype=torch.bool)
    whole_y[held], whole_labeled[held] = y[at[held]], labeled[at[held]]
    return whole_y, whole_labeled


def own_ids(alignment: Alignment, name: str) -> pl.Series | None:
    """Return a party's ids [n_k] in the order of its own rows, null for a row without any cell or label.

    The result is ``None`` after a private alignment, which reveals no ids.
    """
    if alignment.ids is None:
        return None
    position = alignment.position[name]
    at = np.full(position.max(initial=-1) + 1, alignment.n)
    at[position[position >= 0]] = np.flatnonzero(position >= 0)
    return alignment.ids.extend_constant(None, 1).gather(at)


def named(ids: pl.Series, position: NDArray[np.int64]) -> pl.Series:
    """Return the ids [N] at ``position`` [N] among ``ids`` [n_k], null if the position is -1."""
    return ids.extend_constant(None, 1).gather(np.where(position < 0, len(ids), position))


def row_keys(alignment: Alignment) -> Tensor:
    """Return a number for each row that depends only on the row's id: [N] int64.

    After a private alignment, which has no ids, the number is the row's position in the alignment.
    """
    if alignment.ids is None:
        return torch.arange(alignment.n)
    hashed = alignment.ids.cast(pl.String).hash(seed=0).to_numpy()
    return torch.from_numpy(hashed.astype(np.int64, copy=True))
