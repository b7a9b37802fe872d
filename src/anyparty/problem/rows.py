"""One party's data of the aligned rows: built from the party's preprocessed features, and divided into batches.

A batch contains the same rows at every party, because all parties share the seed. A mask marks the rows that a party
holds. No zeros take the place of missing rows, and nothing is computed for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyparty.alignment.alignment import Alignment
from anyparty.core.types import Roster
from anyparty.tables.preprocessing import Features


@dataclass(frozen=True)
class Block:
    """The features of the rows that one party holds.

    Attributes:
        x: [N_k, ...] float32, the party's own rows in its own order.
        position: [N] int64, the index in ``x`` of each aligned row; -1 if the party does not hold the row.
        gaps: [N_k, width] bool, True for cells that were empty and have been imputed; ``None`` if no cell was empty.
    """

    x: Tensor
    position: Tensor
    gaps: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.position.dtype == torch.int64
        assert self.position.ndim == 1

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features [B_k, ...] of those ``rows`` [B] that the party holds, and their indices in ``rows``."""
        own = self.position[rows]
        held = (own >= 0).nonzero().squeeze(1)
        if len(held) == len(rows):
            return self.x[own], held
        return self.x[own[held]], held

    def known(self, rows: Tensor, held: Tensor) -> Tensor | None:
        """Return the mask [B_k, width] of non-empty cells in the result of ``take``; ``None`` if the block has no gaps.

        ``held`` [B_k] contains the indices in ``rows`` that ``take`` returned, on the block's device. ``rows`` [B] may
        be on the CPU, as in prediction.
        """
        return None if self.gaps is None else ~self.gaps[self.position[rows][held]]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One party's data for N aligned rows.

    Attributes:
        n: N, known to all parties.
        block: the party's features, if it holds columns.
        y: [N] labels, at parties that hold labels: int64 index of the class, or float32 standardized number; arbitrary
            for unlabelled rows.
        labeled: [N] bool, at parties that hold labels: True if the party has a label of the row.
        observed: [N, K] bool, at label holders, whose heads need it: True if party k holds row n.
        key: [N] int64, at the active party: a number that identifies the row and depends only on its id.
        ids: [N_k] String, at the active party: the ids of its own rows, in the order of its block. They never leave the
            party.
        names: [N] String, at the active party: the ids of the aligned rows, null for ids that it does not know. They
            never leave the party.
        labeled_at: at the active party, for each host of heads, [N] bool: the rows for which this host reports a label.
    """

    n: int
    block: Block | None = None
    y: Tensor | None = None
    labeled: Tensor | None = None
    observed: Tensor | None = None
    key: Tensor | None = None
    ids: pl.Series | None = None
    names: pl.Series | None = None
    labeled_at: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def teaching(self) -> Tensor:
        """The mask [N] bool of the rows that have a label at this party or, as far as it knows, at another party."""
        assert self.labeled is not None
        return torch.stack([self.labeled, *self.labeled_at.values()]).any(dim=0)


def mixed(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of ``rows`` [n] in random order, regardless of the parties that hold a row.

    The last batch may be smaller.
    """
    if len(rows):
        yield from torch.split(rows[torch.randperm(len(rows), generator=generator)], min(size, len(rows)))


def by_pattern(rows: Tensor, pattern: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of ``rows`` [n] in random order, so that the same parties hold all rows of a batch.

    This is line 2 of LASER-VFL's Algorithm 1. ``pattern`` [n] has for each row the index of its pattern, which is the
    set of parties that hold the row. The last batch of a pattern may be smaller than ``size``.
    """
    pattern = pattern.cpu()  # the random permutation is on the CPU
    shuffled, size = torch.randperm(len(rows), generator=generator), min(size, max(1, len(rows)))
    shuffled = shuffled[pattern[shuffled].argsort(stable=True)]
    counts = torch.unique_consecutive(pattern[shuffled], return_counts=True)[1]
    batches = [batch for group in torch.split(rows[shuffled], counts.tolist()) for batch in torch.split(group, size)]
    for b in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[b]


def patterns(observed: Tensor) -> Tensor:
    """Return an index [n] for each row of ``observed`` [n, K]; rows that the same parties hold have equal indices.

    >>> patterns(torch.tensor([[True, False], [True, True], [True, False]]))
    tensor([0, 1, 0])
    """
    numbers: Tensor = torch.unique(observed, dim=0, return_inverse=True)[1]
    return numbers


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
        position: [N], the index of each aligned row among the party's own rows; -1 if the party lacks the row.
        blocks: [N], ``position`` with -1 also for rows whose cells are all empty; by default ``position``.
        features: the preprocessed features of the party's n_k rows; ``None`` if the party has no columns.
        labels: the pair (y [n_k], labeled [n_k]) of the party's own rows; ``None`` if the party has no labels.
        observed: [N, K], True if party k holds row n; given at label holders.
        key: [N], a number that identifies each row; given at the active party.
        ids: [n_k], the ids of the party's own rows; given at the active party.
        names: [N], the ids of the aligned rows; given at the active party. By default they are taken from ``ids``, and
            are null for rows that the party does not hold.
        device: the device for the tensors.

    """
    block = y = labeled = None
    if features is not None:
        block = block_of(features, torch.from_numpy(position if blocks is None else blocks), device)
    if names is None and ids is not None:
        names = ids.extend_constant(None, 1).gather(np.where(position < 0, len(ids), position))
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
        names=names,
    )


def block_of(features: Features, position: Tensor, device: torch.device | str = "cpu") -> Block:
    """Return a party's block; ``position`` [N] has, for each aligned row, its index in ``features``."""
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
        features: for each party, the preprocessed features of its n_k rows; a party that is absent here holds no row.
        labels: for each label holder, the pair (y [n_k], labeled [n_k]) of its own rows.
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
    """Convert a party's labels and their mask from its own n_k rows to the N aligned rows."""
    (y, labeled), at = labels, torch.from_numpy(position)
    held = at >= 0
    whole_y, whole_labeled = torch.zeros(len(at), dtype=y.dtype), torch.zeros(len(at), dtype=torch.bool)
    whole_y[held], whole_labeled[held] = y[at[held]], labeled[at[held]]
    return whole_y, whole_labeled


def own_ids(alignment: Alignment, name: str) -> pl.Series | None:
    """Return the ids [n_k] of a party's own rows, in their order; ``None`` after a private alignment.

    The id is null for a row that has neither cells nor a label.
    """
    if alignment.ids is None:
        return None
    position = alignment.position[name]
    at = np.full(position.max(initial=-1) + 1, alignment.n)
    at[position[position >= 0]] = np.flatnonzero(position >= 0)
    return alignment.ids.extend_constant(None, 1).gather(at)


def row_keys(alignment: Alignment) -> Tensor:
    """Return a number for each row that depends only on the row's id: [N] int64.

    After a private alignment, which gives no ids, it is the row's index.
    """
    if alignment.ids is None:
        return torch.arange(alignment.n)
    hashed = alignment.ids.cast(pl.String).hash(seed=0).to_numpy()
    return torch.from_numpy(hashed.astype(np.int64, copy=True))
