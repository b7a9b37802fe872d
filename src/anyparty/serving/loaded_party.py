"""A party's trained part of the model, loaded for prediction, and the active party's index of row ids."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import torch
from numpy.typing import NDArray
from torch import Tensor

import anyparty
from anyparty.alignment.alignment import PartyAlignment
from anyparty.artifacts.model_files import ModelSummary, read_again
from anyparty.config import Config
from anyparty.core.types import Roster
from anyparty.deployment.site import alignment_cache
from anyparty.deployment.site.alignment_cache import ALIGNMENT
from anyparty.deployment.site.policy import SiteSettings
from anyparty.deployment.site.site_prediction import StoredPart
from anyparty.errors import ModelError, PredictionError, remarks_to, some
from anyparty.methods.method import Method, State
from anyparty.problem.rows import Rows, block_of
from anyparty.serving.serving_protocol import NO_ROW
from anyparty.tables import cells
from anyparty.tables.checks import RowRemarks
from anyparty.tables.ids import INVISIBLE, JOINT, normalized, rounded
from anyparty.tables.preprocessing import Features
from anyparty.tables.table import Table
from anyparty.training import control_messages

PART = "part of the model"
log = logging.getLogger(__name__)
RequestedId = str | int | float | Mapping[str, str | int | float]
"""The id of a requested row: a value of the single id column, or the values of several id columns by name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedParty:
    """One party, ready to predict.

    Attributes:
        me: the party's name.
        method: the trained method.
        summary: the model's description.
        state: the party's networks.
        features: the party's n preprocessed rows; ``None`` if the party has no feature columns.
        ids: [n] ids of these rows, for the active party only.
        position: [N] int64, the party's own row number of each aligned row, -1 for a row that it does not hold.
        number: identifier of the alignment in hexadecimal; empty without an alignment.
        weights_hash: identifier of the party's part of the model.
        id_normalize: names of the changes that ids get before they are compared, as in training.
        remarks: remarks on the rows of the party's own table, which only the active party puts into its answers;
            ``None`` if the party has no feature columns.

    """

    me: str
    method: Method
    summary: ModelSummary
    state: State
    features: Features | None
    ids: pl.Series | None
    position: Tensor
    number: str
    weights_hash: str
    id_normalize: tuple[str, ...] = ()
    remarks: RowRemarks | None = None

    @property
    def roster(self) -> Roster:
        """All parties."""
        return self.summary.roster

    @property
    def hashes(self) -> dict[str, Tensor]:
        """Hashes of the party's alignment, model, version and part of the model, by name; [32] uint8 each."""
        return self.expected_hashes(self.me) | {PART: control_messages.hash_tensor(self.weights_hash)}

    @property
    def fingerprints(self) -> dict[str, str]:
        """The party's ``hashes`` in hexadecimal, by name, without the hash of an unknown alignment or model part.

        A run in one process does not know the alignment's number, for example.
        """
        known = {"alignment": bool(self.number), PART: bool(self.weights_hash)}
        return {name: digest.numpy().tobytes().hex() for name, digest in self.hashes.items() if known.get(name, True)}

    def expected_hashes(self, party: str) -> dict[str, Tensor]:
        """Return the hashes, by name, that a party must have.

        Only the active party knows the hashes of the other parties' parts of the model.
        """
        # All parties must compute the same hash, so None replaces values that only some parties know.
        shared = {**asdict(self.summary), "task": None, "best_epoch": None, "parts": None}
        return {
            "alignment": control_messages.fingerprint(self.number),
            "model": control_messages.fingerprint(json.dumps(shared, sort_keys=True)),
            "version of anyparty": control_messages.fingerprint(anyparty.__version__),
            PART: control_messages.hash_tensor(self.summary.parts.get(party)),
        }

    def rows(
        self, own: Tensor, observed: Tensor | None = None, key: Tensor | None = None, names: pl.Series | None = None
    ) -> Rows:
        """Return the party's data for B rows.

        ``own`` [B] holds the party's own row numbers, -1 for a row that the party does not hold.  The other arguments
        become the fields of ``Rows`` with the same names.
        """
        block = None if self.features is None else block_of(self.features, own)
        return Rows(n=len(own), block=block, observed=observed, key=key, ids=self.ids, names=names)

    def own_rows(self, rows: Tensor) -> Tensor:
        """Map positions [B] in the alignment to the party's own row numbers [B], -1 for rows that it does not hold."""
        if not len(self.position):
            return torch.full_like(rows, -1)
        return torch.where(rows == NO_ROW, -1, self.position[rows.clamp(min=0)])


@dataclass(frozen=True, kw_only=True, eq=False)
class RowIndex:
    """An index, by id, of the rows for which the active party accepts requests.

    Attributes:
        places: for each id, the index of its row among the M rows that can be requested. The ids have the form of
            ``Table.ids``.
        id_columns: [M, m] the m id columns of these rows, with the types of a table.
        own: [M] int64, the active party's own row number; -1 if this party does not hold the row, or if all cells of
            the row are empty.
        aligned: [M] int64, index among the N aligned rows, -1 for a row outside the alignment.
        observed: [N, K] bool, True if party k holds the aligned row.
        key: [N] int64, a number that identifies the aligned row; methods use it to break ties.
        unknown: the reason that the answer gives for an id that is not in the index.
        normalize: names of the changes that ids get before they are compared, as in training.

    """

    places: Mapping[str, int]
    id_columns: pl.DataFrame
    own: Tensor
    aligned: Tensor
    observed: Tensor
    key: Tensor
    unknown: str
    normalize: tuple[str, ...] = ()

    def find(self, ids: Sequence[RequestedId]) -> list[int | None]:
        """Return the index of each id's row, ``None`` for an unknown id.

        Ids are compared as in tables: as text, trimmed, and changed by ``normalize``.

        Raises:
            PredictionError: an id does not have exactly the id columns, or is a float of 2^53 or more.
        """
        names = self.id_columns.columns
        parts: list[list[str]] = [[] for _ in names]
        for place, each in enumerate(ids):
            values = each if isinstance(each, Mapping) else {names[0]: each}
            if values.keys() != set(names):
                raise PredictionError(self._other_columns(place, each))
            for part, name in zip(parts, names, strict=True):
                part.append(str(values[name]))
        compared = [_as_in_tables(part, self.normalize) for part in parts]
        joined = pl.select(pl.concat_str(compared, separator=JOINT)).to_series() if len(names) > 1 else compared[0]
        return [self.places.get(text) if text else None for text in joined]

    def _other_columns(self, place: int, found: RequestedId) -> str:
        names = self.id_columns.columns
        example = json.dumps(dict.fromkeys(names, "..."), ensure_ascii=False)
        expected = (
            f"an object with the id columns, such as {example}" if len(names) > 1 else f"the id column {names[0]!r}"
        )
        got = f"the columns {some(found)}" if isinstance(found, Mapping) else repr(found)
        return f"ids.{place}: expected {expected}, got {got}"

    def identities(self, places: Tensor, requested: Sequence[RequestedId]) -> Sequence[RequestedId]:
        """Return the ids of the rows at ``places`` [B], with the names and types of the table's id columns.

        ``requested`` [B] holds the ids as the client wrote them.  If there is a single id column, ids that are text are
        returned as in ``requested``.
        """
        rows = (
            self.id_columns[places.numpy()]
            .with_columns((cs.temporal() | cs.decimal()).map_batches(cells.as_text))
            .to_dicts()
        )
        if self.id_columns.width > 1:
            return rows
        values = [next(iter(row.values())) for row in rows]
        return [old if isinstance(old, str) and isinstance(new, str) else new
                for old, new in zip(requested, values, strict=True)]  # fmt: skip

    def present(self, places: Tensor, k: int | None) -> Tensor:
        """Return which of the K parties with columns hold each row at ``places`` [B]: a mask [B, K] bool.

        ``k`` is the active party's index among the K parties; ``None`` if it has no columns.
        """
        aligned = self.aligned[places]
        observed = torch.zeros(len(places), self.observed.shape[1], dtype=torch.bool)
        observed[aligned >= 0] = self.observed[aligned[aligned >= 0]]
        if k is not None:
            observed[:, k] = self.own[places] >= 0
        return observed

    def keys(self, places: Tensor) -> Tensor:
        """Return a number that identifies each row at ``places`` [B]: [B] int64.

        For an aligned row, this is the row's ``key``. For any other row, it is the active party's own row number.
        """
        aligned, keys = self.aligned[places], self.own[places].clone()
        keys[aligned >= 0] = self.key[aligned[aligned >= 0]]
        return keys

    def names(self, places: Tensor) -> pl.Series:
        """Return the ids of the rows at ``places`` [B] as text."""
        return self._names.gather(places.numpy())

    @cached_property
    def _names(self) -> pl.Series:
        return pl.Series(sorted(self.places, key=self.places.__getitem__), dtype=pl.String)


def _as_in_tables(texts: Sequence[str], normalize: Sequence[str]) -> pl.Series:
    """Convert the texts [B] of one id column to the form that ids have in tables; null for text that no table holds.

    Text from JSON may hold control characters or lone surrogates, but no table holds them.
    """
    valid = [text.encode(errors="ignore").decode() for text in texts]
    series = pl.Series("", [new if new == old else None for new, old in zip(valid, texts, strict=True)], pl.String)
    if (floats := rounded(series)).any():
        place = floats.arg_max() or 0
        raise PredictionError(f"ids.{place}: {texts[place]!r} was rounded to a float: send the id as text, without a "
                              "point or an exponent")  # fmt: skip
    series = cells.as_text(series)
    return normalized(series.set(series.str.contains(INVISIBLE), None), normalize)


def load_party(
    site: SiteSettings, config: Config | None = None, source: Any = None
) -> tuple[LoadedParty, Table, alignment_cache.StoredAlignment]:
    """Return a party's part of the model, its table and its alignment from its folder; log remarks on the table.

    Args:
        site: the party's own settings.
        config: settings of the training, if its method or encoders are user code.
        source: the party's table; by default the table in the party's settings.

    Raises:
        ModelError: the party's folder has no trained model, a file is incomplete or belongs to another model, or the
            settings do not contain a table.
        TableError: the table is invalid.

    """
    part = StoredPart.of(site, config)
    member, summary = part.member, part.summary
    if source is None and site.table is None:
        raise ModelError(f'party {site.party!r}: its own settings name no table; write table = "file.csv"')
    alignment = alignment_cache.StoredAlignment.read(site.folder / ALIGNMENT)
    new_remarks = list[str]()
    with remarks_to(new_remarks.append):
        table = read_again(member, site.party, site.table if source is None else source, alignment.kinds)
        features = None if member.prepare is None else member.prepare.features(table)
    for sentence in dict.fromkeys((*table.notes, *new_remarks)):
        log.warning("%s", sentence)
    party = LoadedParty(
        me=site.party, method=part.method, summary=summary, state=member.state, features=features,
        ids=table.ids if site.party == summary.roster.active else None,
        position=torch.from_numpy(alignment.share.position), number=alignment.number.numpy().tobytes().hex(),
        weights_hash=part.weights_hash, id_normalize=member.id_normalize,
        remarks=None if member.prepare is None else member.prepare.row_remarks(table),
    )  # fmt: skip
    return party, table, alignment


def build_index(
    share: PartyAlignment, blocks: int, aligned: Table | None, current: Table, normalize: tuple[str, ...] = ()
) -> RowIndex:
    """Return an index, by id, of the rows for which the active party accepts requests.

    Args:
        share: the active party's share of the alignment.
        blocks: number of parties with columns, K.
        aligned: the table that was aligned, to which rows may have been appended; ``None`` if it is lost.
        current: the table that predictions use.
        normalize: names of the changes that ids get before they are compared, as in training.

    """
    positions = np.full(0 if aligned is None else len(aligned), -1)
    if aligned is not None:
        (held,) = (share.position >= 0).nonzero()
        positions[share.position[held]] = held
    places: dict[str, int] = {}
    for name in (*current.ids, *(aligned.ids if aligned is not None else ())):
        places.setdefault(name, len(places))
    own, at = np.full(len(places), -1), np.full(len(places), -1)
    own[_places_of(places, current)] = np.arange(len(current))
    if aligned is not None:
        at[_places_of(places, aligned)] = positions
    n = len(share.position)
    return RowIndex(
        places=places, id_columns=_id_columns(places, [current] if aligned is None else [current, aligned]),
        own=torch.from_numpy(current.blocks_at(own)), aligned=torch.from_numpy(at),
        observed=torch.zeros(n, blocks, dtype=torch.bool) if share.observed is None else share.observed,
        key=torch.zeros(n, dtype=torch.int64) if share.key is None else share.key,
        unknown=f"{current.party!r}, which is asked, has no row with this id", normalize=normalize,
    )  # fmt: skip


def _id_columns(places: Mapping[str, int], tables: Sequence[Table]) -> pl.DataFrame:
    """Return the id columns of all rows in ``places``, in the order of ``places``.

    The ids of a row that several tables hold are taken from the first of these tables.
    """
    held = [table.ids.alias("id").to_frame() if table.id_columns is None else table.id_columns for table in tables]
    named = [each.rename(dict(zip(each.columns, held[0].columns, strict=True))) for each in held]
    if any(each.schema != named[0].schema for each in named):
        named = [each.select(pl.all().map_batches(cells.as_text)) for each in named]
    at = np.concatenate([_places_of(places, table) for table in tables])
    first = np.unique(at, return_index=True)[1]
    return pl.concat(named)[first]


def _places_of(places: Mapping[str, int], table: Table) -> NDArray[np.int64]:
    return np.fromiter((places[name] for name in table.ids), dtype=np.int64, count=len(table))
