"""What a party kept of training, made ready to predict: its networks, its block, its places in the alignment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

import anyparty
from anyparty.align.alignment import Known
from anyparty.blocks.blocks import Rows
from anyparty.config import Config
from anyparty.errors import ModelError
from anyparty.methods.method import Method, State
from anyparty.run import agree, kept_alignment, parts
from anyparty.run.allowed import Site
from anyparty.run.files import About
from anyparty.run.kept_alignment import ALIGNMENT
from anyparty.run.predict_home import Part
from anyparty.run.read_again import read_again
from anyparty.run.rows import block_of
from anyparty.serve.ask import NOWHERE
from anyparty.tables import cells
from anyparty.tables.prepare import Features
from anyparty.tables.table import Table
from anyparty.terms import Roster

PART = "part of the model"


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """One party, ready to predict.

    Attributes:
        me: the party.
        method, about: what was trained.
        state: its networks.
        features: its n prepared rows; ``None`` without columns.
        ids: [n] their ids, at the active party.
        position: [N] int64, its row of each aligned row, -1 where it has none.
        number: what names the alignment, as bytes in hexadecimal; empty without one.
        mark: what names its part of the model.

    """

    me: str
    method: Method
    about: About
    state: State
    features: Features | None
    ids: pl.Series | None
    position: Tensor
    number: str
    mark: str

    @property
    def roster(self) -> Roster:
        """All parties."""
        return self.about.roster

    @property
    def marks(self) -> dict[str, Tensor]:
        """What the party serves with, as hashes: [32] uint8 each."""
        return self.expected(self.me) | {PART: parts.as_tensor(self.mark)}

    @property
    def fingerprints(self) -> dict[str, str]:
        """What there is of ``marks``, in hexadecimal: a run of one process has no number of an alignment."""
        there = {"alignment": bool(self.number), PART: bool(self.mark)}
        return {name: mark.numpy().tobytes().hex() for name, mark in self.marks.items() if there.get(name, True)}

    def expected(self, party: str) -> dict[str, Tensor]:
        """Return what a party has to serve with, as far as is known here: its own part, at the active party."""
        shared = {**asdict(self.about), "task": None, "best_epoch": None, "parts": None}  # label holders alone know
        return {
            "alignment": agree.fingerprint(self.number),
            "model": agree.fingerprint(json.dumps(shared, sort_keys=True)),
            "version of anyparty": agree.fingerprint(anyparty.__version__),
            PART: parts.as_tensor(self.about.parts.get(party)),
        }

    def rows(
        self, own: Tensor, observed: Tensor | None = None, key: Tensor | None = None, names: pl.Series | None = None
    ) -> Rows:
        """Return what the party knows of B rows: ``own`` [B] are its own places for them, -1 where it has none."""
        block = None if self.features is None else block_of(self.features, own)
        return Rows(n=len(own), block=block, observed=observed, key=key, ids=self.ids, names=names)

    def own(self, rows: Tensor) -> Tensor:
        """Return the party's own places [B] of aligned rows [B], -1 where it has none."""
        if not len(self.position):
            return torch.full_like(rows, -1)
        return torch.where(rows == NOWHERE, -1, self.position[rows.clamp(min=0)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Directory:
    """Whose rows a service knows: at the active party, by id.

    Attributes:
        ids: the place of every id in what follows.
        own: [M] int64, the active party's own row, -1 where it has none or no cell in it.
        aligned: [M] int64, the place among the N aligned rows, -1 for a row that is not in the alignment.
        observed: [N, K] bool, who has which aligned row.
        key: [N] int64, a number that belongs to the row.
        unknown: why an id that is not here gets no number.

    """

    ids: Mapping[str, int]
    own: Tensor
    aligned: Tensor
    observed: Tensor
    key: Tensor
    unknown: str

    def find(self, ids: Sequence[str]) -> list[int | None]:
        """Return the place of each id, compared as tables compare ids: as text, trimmed; ``None`` if unknown.

        Half a letter (a lone surrogate), which JSON can hold, is in no table.
        """
        text = [name.encode(errors="ignore").decode() for name in ids]
        found = [self.ids.get(name) if name else None for name in cells.as_text(pl.Series(text, dtype=pl.String))]
        return [place if text[n] == ids[n] else None for n, place in enumerate(found)]

    def present(self, places: Tensor, k: int | None) -> Tensor:
        """Return who has the rows at ``places`` [B]: [B, K] bool; ``k`` is the active party's place among the K."""
        aligned = self.aligned[places]
        known = torch.zeros(len(places), self.observed.shape[1], dtype=torch.bool)
        known[aligned >= 0] = self.observed[aligned[aligned >= 0]]
        if k is not None:
            known[:, k] = self.own[places] >= 0
        return known

    def keys(self, places: Tensor) -> Tensor:
        """Return a number for each row at ``places`` [B]: [B] int64."""
        aligned, keys = self.aligned[places], self.own[places].clone()
        keys[aligned >= 0] = self.key[aligned[aligned >= 0]]
        return keys

    def names(self, places: Tensor) -> pl.Series:
        """Return the ids of the rows at ``places`` [B]: [B] String."""
        return self._names.gather(places.numpy())

    @cached_property
    def _names(self) -> pl.Series:
        return pl.Series(sorted(self.ids, key=self.ids.__getitem__), dtype=pl.String)


def open_kept(site: Site, config: Config | None = None, source: Any = None) -> tuple[Kept, Table, kept_alignment.Kept]:
    """Read what a party kept, and its table: ``source``, or the one that its settings name.

    Raises:
        ModelError: nothing was trained here, files are cut short or foreign, or there is no table.
        TableError: the table cannot be used.
    """
    part = Part.of(site, config)
    member, about = part.member, part.about
    if source is None and site.table is None:
        raise ModelError(f'party {site.party!r}: its own settings name no table; write table = "file.csv"')
    alignment = kept_alignment.Kept.read(site.folder / ALIGNMENT)
    table = read_again(member, site.party, site.table if source is None else source, alignment.kinds)
    features = None if member.prepare is None else member.prepare.features(table)
    kept = Kept(
        me=site.party, method=part.method, about=about, state=member.state, features=features,
        ids=table.ids if site.party == about.roster.active else None,
        position=torch.from_numpy(alignment.known.position), number=alignment.number.numpy().tobytes().hex(),
        mark=part.mark,
    )  # fmt: skip
    return kept, table, alignment


def directory(known: Known, blocks: int, aligned: Table | None, current: Table) -> Directory:
    """Return where the ids of the active party stand.

    ``known`` is what it knows of the alignment, ``blocks`` how many parties have columns; ``aligned`` is its table as
    it was aligned (rows may have been added below), ``None`` if that is not there any more; ``current`` has its
    features.
    """
    places = np.full(0 if aligned is None else len(aligned), -1)
    if aligned is not None:
        (held,) = (known.position >= 0).nonzero()
        places[known.position[held]] = held
    ids: dict[str, int] = {}
    for name in (*current.ids, *(aligned.ids if aligned is not None else ())):
        ids.setdefault(name, len(ids))
    own, at = np.full(len(ids), -1), np.full(len(ids), -1)
    own[_places(ids, current)] = np.arange(len(current))
    if aligned is not None:
        at[_places(ids, aligned)] = places
    n = len(known.position)
    return Directory(
        ids=ids, own=torch.from_numpy(current.blocks_at(own)), aligned=torch.from_numpy(at),
        observed=torch.zeros(n, blocks, dtype=torch.bool) if known.observed is None else known.observed,
        key=torch.zeros(n, dtype=torch.int64) if known.key is None else known.key,
        unknown=f"{current.party!r}, which is asked, has no row with this id",
    )  # fmt: skip


def _places(ids: Mapping[str, int], table: Table) -> NDArray[np.int64]:
    return np.fromiter((ids[name] for name in table.ids), dtype=np.int64, count=len(table))
