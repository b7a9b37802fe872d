"""Compute the embeddings of a party's rows, with the rows' ids, after training or during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from torch import Tensor

from anyparty.alignment.alignment import Alignment
from anyparty.artifacts.model_files import Member
from anyparty.core.display import named_ids
from anyparty.errors import ConfigError, nearest
from anyparty.methods.method import HasEmbeddings, Method, State
from anyparty.problem.rows import Rows
from anyparty.training.loop import ROWS_AT_ONCE


def embeddings(method: Method, member: Member, rows: Rows, alignment: Alignment, wanted: Tensor) -> pl.DataFrame | None:
    """Return a party's embeddings of the selected rows, in the order of the party's table.

    Args:
        method: the trained method.
        member: the party's share of the model, with its networks.
        rows: the party's prepared rows.
        alignment: the index of each aligned row in each party's table.
        wanted: [n], the indices of the selected aligned rows; rows that the party lacks are left out.

    Returns:
        A frame with the columns id, h0, h1, ... In a row whose cells are all empty, all columns except id are null.
        ``None`` if the method computes no embeddings at this party.

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


@dataclass
class LiveEmbeddings:
    """The networks and rows of all parties during a run in this process, to compute embeddings during training.

    Attributes:
        method: the method without its schedule.
        alignment: the alignment of the tables.
        parties: for each party, its networks and its rows.
    """

    method: Method
    alignment: Alignment
    parties: dict[str, tuple[State, Rows]] = field(default_factory=dict)

    def add(self, state: State, rows: Rows) -> None:
        """Store a party's networks and rows. Training calls this function when a party's networks exist."""
        self.parties[state.seat.me] = state, rows

    def __call__(self, parties: Sequence[str] | None = None) -> dict[str, pl.DataFrame]:
        """Compute each party's embeddings of all its rows with the present weights: columns id, h0, h1, ...

        ``parties`` selects some of the parties.  A party whose networks compute no embeddings is left out.

        Raises:
            ConfigError: a name in ``parties`` is not the name of a party.
        """
        for name in parties or ():
            if name not in self.parties:
                raise ConfigError(f"embeddings: there is no party {name!r}{nearest(name, self.parties)}")
        found = {}
        for name, (state, rows) in self.parties.items():
            if parties is None or name in parties:
                modes = {each: each.training for module in state.modules.values() for each in module.modules()}
                with torch.no_grad():
                    frame = embeddings(self.method, _member(state), rows, self.alignment, torch.arange(rows.n))
                for module, mode in modes.items():
                    module.training = mode
                if frame is not None:
                    found[name] = frame
        return found


def _member(state: State) -> Member:
    return Member(state=state, prepare=None, id="", label=None, max_cell_bytes=1)
