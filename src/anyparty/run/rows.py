"""From an alignment and each party's prepared features to what each party knows of the aligned rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.align.alignment import Alignment
from anyparty.blocks.blocks import Block, Rows
from anyparty.terms import Roster

Labels = Mapping[str, tuple[Tensor, Tensor]]


def assemble(
    alignment: Alignment,
    roster: Roster,
    features: Mapping[str, NDArray[np.float32]],
    labels: Labels | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Rows]:
    """Return each party's ``Rows``.

    Args:
        alignment: who has which of N rows.
        roster: the parties.
        features: each party's prepared block [n_k, width]; a party that is not there has no rows.
        labels: of label holders, for their own rows: (y [n_k], labeled [n_k]).
        device: where tensors go.

    """
    here = {name: torch.from_numpy(alignment.position[name]) for name in features}
    nobody = torch.full((alignment.n,), -1)
    observed = torch.stack([here.get(name, nobody) >= 0 for name in roster.blocks], dim=1).to(device)
    key = row_keys(alignment).to(device)
    every: dict[str, Rows] = {}
    for name in roster.names:
        block = y = labeled = None
        if name in features and name in roster.blocks:
            block = Block(torch.from_numpy(features[name]).to(device), here[name].to(device))
        if labels and name in labels:
            y, labeled = (part.to(device) for part in _spread(labels[name], alignment.position[name]))
        host = name in roster.labelers
        every[name] = Rows(
            n=alignment.n,
            block=block,
            y=y,
            labeled=labeled,
            observed=observed if host else None,
            key=key if host else None,
        )
    return every


def _spread(labels: tuple[Tensor, Tensor], position: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Bring a party's labels from its own rows to the N aligned rows."""
    (y, labeled), at = labels, torch.from_numpy(position)
    held = at >= 0
    whole_y, whole_labeled = torch.zeros(len(at), dtype=y.dtype), torch.zeros(len(at), dtype=torch.bool)
    whole_y[held], whole_labeled[held] = y[at[held]], labeled[at[held]]
    return whole_y, whole_labeled


def row_keys(alignment: Alignment) -> Tensor:
    """Return a number for each row that follows its id, wherever the row stands: [N] int64."""
    if alignment.ids is None:
        return torch.arange(alignment.n)
    hashed = alignment.ids.cast(pl.String).hash(seed=0).to_numpy()
    return torch.from_numpy(hashed.astype(np.int64, copy=True))
