"""The embeddings of a model that is being trained, for callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import torch

from anyparty.alignment.alignment import Alignment
from anyparty.api.embeddings import embeddings
from anyparty.artifacts.model_files import Member
from anyparty.data.blocks import Rows
from anyparty.errors import ConfigError, nearest
from anyparty.methods.method import Method, State


@dataclass
class LiveEmbeddings:
    """The networks of all parties of a run in this process, while they are trained.

    Attributes:
        method: the method without its schedule.
        alignment: the alignment of the tables.
        parties: by party, its networks and its rows.

    """

    method: Method
    alignment: Alignment
    parties: dict[str, tuple[State, Rows]] = field(default_factory=dict)

    def add(self, state: State, rows: Rows) -> None:
        """Add a party when its networks exist."""
        self.parties[state.seat.me] = state, rows

    def __call__(self, parties: Sequence[str] | None = None) -> dict[str, pl.DataFrame]:
        """Return the embeddings of all rows of each party: see ``Callback.embeddings``.

        Raises:
            ConfigError: there is no such party.
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
