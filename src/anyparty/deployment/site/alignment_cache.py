"""Store one party's knowledge of the alignment of rows, and reuse this alignment until a party's table changes.

A random number, which is the same at all parties, identifies each alignment.  A party whose table has changed since
the alignment reports no number, and then all parties make a new alignment.  They also make a new alignment if the
parties that take part, or the parties that hold columns, are not the same as in the stored alignment.

A prediction may align rows while parties are offline: only the other parties take part (a *partial* alignment), and the
rows of the offline parties are unknown.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import anyparty
from anyparty.alignment import private
from anyparty.alignment.alignment import PartyAlignment
from anyparty.alignment.alignment_state import AlignmentState
from anyparty.alignment.rounds import BlindingProgress
from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import AlignmentError, ConfigError, MessageError, ModelError, ResumeError, some
from anyparty.tables.column_types import Kind
from anyparty.tables.table import Table
from anyparty.training import checkpoint

ID_BYTES, ALIGNMENT = 16, "alignment.safetensors"
MESSAGES = (
    MessageSpec(
        tag="alignment",
        frm="passive",
        to="active",
        holds="the number of the alignment that the party keeps, if its table is still the same, and the sender's "
        "version of anyparty",
        learns="whether the parties must align again, and whether they have the same version",
    ),
    MessageSpec(
        tag="realign",
        frm="active",
        to="passive",
        holds="whether the parties must align again, the number of the new alignment, and the parties that take part",
        learns="which parties take part",
    ),
    MessageSpec(
        tag="without-cells",
        frm="passive",
        to="active",
        holds="which of the party's rows have a label but no other cell. Sent only if a passive party has both "
        "labels and columns",
        learns="in which rows the sender has a label but no features",
    ),
)
ROWS = {"rows": TensorSpec((-1,), torch.int64)}
NUMBER = {"number": TensorSpec((ID_BYTES,), torch.uint8)}
REPORT = NUMBER | {"version": TensorSpec((-1,), torch.uint8)}


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredAlignment:
    """One party's knowledge of the alignment of rows, as stored in its folder.

    Attributes:
        share: the positions of the party's rows among the aligned rows; at the active party also which party has which
            row.
        number: [16] uint8, the random number that identifies the alignment.
        table: the fingerprint of the aligned table.
        rows: the number of rows of the aligned table.
        apart: True if the alignment allows parties that have no row in common.
        parties: under "names" the parties whose rows were aligned, and under "blocks" the parties among them that held
            columns.
        kinds: the kind of each column of the aligned table, in the table's order; empty if an earlier version of
            anyparty stored the alignment.

    """

    share: PartyAlignment
    number: Tensor
    table: str
    rows: int
    apart: bool
    parties: dict[str, list[str]]
    kinds: dict[str, Kind] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> StoredAlignment:
        """Return the alignment that is stored at ``path``.

        Raises:
            ModelError: the file does not exist, is incomplete, or is not an alignment file of anyparty.
        """
        tensors, metadata = checkpoint.read(path)
        try:
            position, number = tensors["position"].numpy(), tensors["number"]
        except KeyError as error:
            raise ModelError(f"{path}: this is not an alignment file of anyparty: it has no {error}") from None
        share = PartyAlignment(position=position, observed=tensors.get("observed"), key=tensors.get("key"))
        return cls(
            share=share, number=number, table=str(metadata.get("table")), rows=int(metadata.get("rows", -1)),
            apart=bool(metadata.get("apart", False)), parties=dict(metadata.get("parties", {})),
            kinds=dict(metadata.get("kinds", {})),
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Write the alignment to the file ``path``."""
        share = self.share
        tensors = {"position": torch.from_numpy(share.position), "number": self.number}
        if share.observed is not None and share.key is not None:
            tensors |= {"observed": share.observed.contiguous(), "key": share.key}
        checkpoint.write(path, tensors, {
            "table": self.table, "rows": self.rows, "apart": self.apart, "parties": self.parties,
            "kinds": self.kinds,
        })  # fmt: skip

    def fits(self, table: Table) -> bool:
        """Return True if ``table`` is the table that was aligned, even if rows were added at its end."""
        if table.fingerprint == self.table:
            return True
        n = self.rows
        if not 0 <= n < len(table):
            return False
        label = None if table.label is None else table.label[:n]
        return replace(table, ids=table.ids[:n], columns=table.columns[:n], label=label).fingerprint == self.table


def kinds_in(path: Path) -> dict[str, Kind]:
    """Return the kind of each column of the aligned table; empty if no alignment is stored, or if it has no kinds."""
    try:
        return StoredAlignment.read(path).kinds
    except ModelError:
        return {}


async def aligned(
    path: Path,
    net: Channel,
    roster: Roster,
    table: Table,
    *,
    salt: str,
    normalize: Sequence[str] = (),
    resume: bool = False,
    there: Sequence[str] | None = None,
    apart: bool = False,
    incremental: bool = False,
    progress: BlindingProgress | None = None,
) -> tuple[PartyAlignment, Tensor]:
    """Align the parties' rows if necessary; return this party's view of the alignment, and the alignment's number.

    If all parties have stored the same alignment, this alignment is used. If not, the parties make a new alignment.

    A passive party aligns only its rows with at least one cell or a label. The active party aligns all its rows,
    because it may ask for a prediction of a row that only other parties know. At the active party, ``there`` lists the
    parties that take part; by default, all parties. A stored alignment can be used while parties are offline. ``apart``
    allows parties that have no row in common, as in prediction, and new alignments in which only some parties take
    part.

    If a new alignment is interrupted, the next call continues it from the folder ``state_folder(path)``. The folder is
    deleted at the end, except with ``incremental``: the next alignment then processes only new ids. A partial alignment
    keeps no such folder, and is not stored if ``path`` is the training's alignment. ``progress`` is called during the
    alignment.

    Raises:
        AlignmentError: a new alignment is needed, and a party is offline, unless ``apart`` is true.
        ConfigError: a party has another version of anyparty.
        ResumeError: with ``resume``, a party's table has changed or its alignment is missing.
    """
    kept = _usable(path, table, roster, apart=apart)
    number = torch.zeros(ID_BYTES, dtype=torch.uint8) if kept is None else kept.number
    again, present = await _agree_on_alignment(net, roster, number, resume=resume, there=there, apart=apart)
    if again is None:
        assert kept is not None
        return kept.share, number
    whole, partial = roster, present != roster.names
    state = None if partial else state_folder(path)
    if partial:
        roster = Roster(tuple(each for each in roster.parties if each.name in present), roster.active)
    own = np.arange(len(table)) if net.me == roster.active else np.flatnonzero(table.has_content)
    fresh = await private.align(
        net, roster, table.ids.gather(own), salt=salt, apart=apart, normalize=normalize, progress=progress,
        state=state,
    )  # fmt: skip
    position = np.full(fresh.n, -1)
    position[fresh.position >= 0] = own[fresh.position[fresh.position >= 0]]
    share = PartyAlignment(
        position=position,
        observed=await _observed(net, roster, whole, fresh, position >= 0, table.blocks_at(position) >= 0),
        key=None if fresh.key is None else torch.from_numpy(fresh.key),
    )
    kept = StoredAlignment(
        share=share,
        number=again,
        table=table.fingerprint,
        rows=len(table),
        apart=apart,
        parties=_parties(roster),
        kinds=table.kinds,
    )
    if not partial or path.name != ALIGNMENT:  # a partial alignment does not replace that of the training
        kept.write(path)
    if state is not None and not incremental:
        AlignmentState(state, b"").delete()
    return share, again


def state_folder(path: Path) -> Path:
    """Return the folder with the state from which the alignment in the file ``path`` can be continued."""
    return path.with_suffix(".state")


async def _observed(
    net: Channel,
    roster: Roster,
    whole: Roster,
    fresh: private.PrivateAlignment,
    aligned: NDArray[np.bool_],
    with_cells: NDArray[np.bool_],
) -> Tensor | None:
    """Return at the active party a mask [N, K], True if party k has a cell of row n; elsewhere, return ``None``.

    ``roster`` has the parties that took part in the alignment, and ``whole`` all parties, of which K hold columns.
    ``aligned`` [N] marks the rows that this party aligned, and ``with_cells`` [N] its rows with at least one cell.
    Label holders may have aligned rows without cells.
    """
    both = [name for name in roster.labelers if name in roster.blocks]
    if net.me != roster.active:
        if net.me in both:
            await net.send(
                roster.active, "without-cells", {"rows": torch.from_numpy(np.flatnonzero(aligned & ~with_cells))}
            )
        return None
    observed = torch.zeros(fresh.n, whole.K, dtype=torch.bool)
    observed[:, [whole.blocks.index(name) for name in roster.blocks]] = torch.from_numpy(fresh.observed(roster.blocks))
    if net.me in roster.blocks:
        observed[:, whole.blocks.index(net.me)] &= torch.from_numpy(with_cells)
    for name in both:
        if name != net.me:
            column = observed[:, whole.blocks.index(name)]
            rows = (await net.recv(name, "without-cells", ROWS))["rows"]
            if len(rows) and (not 0 <= rows.min() <= rows.max() < fresh.n or not column[rows].all()):
                raise MessageError(f"party {name!r} reports empty rows that are not its own rows")
            column[rows] = False
    return observed


def _parties(roster: Roster) -> dict[str, list[str]]:
    return {"names": list(roster.names), "blocks": list(roster.blocks)}


def _usable(path: Path, table: Table, roster: Roster, *, apart: bool) -> StoredAlignment | None:
    """Return the alignment stored at ``path`` if it was made for this table and these parties, else None.

    If the stored alignment allows parties that have no row in common, it can be used only if ``apart`` is True. Then
    it may also be partial: a party that did not take part in it has another number, or none.
    """
    try:
        kept = StoredAlignment.read(path)
    except ModelError:
        return None
    names, blocks = kept.parties.get("names", []), kept.parties.get("blocks", [])
    same = kept.table == table.fingerprint and kept.rows == len(table)
    same = same and (names == list(roster.names) or (apart and set(names) < set(roster.names)))
    same = same and blocks == [name for name in roster.blocks if name in names]
    return kept if same and (apart or not kept.apart) else None


async def _agree_on_alignment(
    net: Channel, roster: Roster, number: Tensor, *, resume: bool, there: Sequence[str] | None, apart: bool
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of the alignment to make, and the parties that take part.

    The number is ``None`` if all these parties have stored the same alignment.
    """
    others = [name for name in roster.names if name != net.me and (there is None or name in there)]
    if net.me != roster.active:
        await net.send(roster.active, "alignment", {"number": number, "version": _version()})
        expect = NUMBER | {"present": TensorSpec((len(roster.names),), torch.uint8)}
        answer = await net.recv(roster.active, "realign", expect)
        present = tuple(compress(roster.names, answer["present"].tolist()))
        return None if torch.equal(answer["number"], number) else answer["number"], present
    numbers = {name: await _reported_number(net, name) for name in others}
    unlike = [name for name, each in numbers.items() if not torch.equal(each, number)]
    same = bool(number.any()) and not unlike
    if resume and not number.any() and not unlike:
        raise ResumeError("cannot resume: the alignment is not complete; start without --resume (resume=True): an "
                          "interrupted alignment continues")  # fmt: skip
    if resume and not same:
        raise ResumeError(f"cannot resume: {some(unlike or [net.me])} has another alignment than the run (its table or "
                          "folder changed, or its alignment is from an earlier version); "
                          f"start without --resume (resume=True)")  # fmt: skip
    absent = [name for name in roster.names if name not in {net.me, *others}]
    if absent and not same and not apart:
        raise AlignmentError(f"{some(absent)} is not connected, and the rows must be aligned again (a table changed, "
                             f"or {some(unlike or [net.me])} has no alignment yet); start all parties")  # fmt: skip
    fresh = number if same else torch.frombuffer(bytearray(secrets.token_bytes(ID_BYTES)), dtype=torch.uint8)
    for name in others:
        await net.send(name, "realign", _realign(roster, fresh, absent))
    return None if same else fresh, tuple(name for name in roster.names if name not in absent)


def _realign(roster: Roster, number: Tensor, absent: Sequence[str] = ()) -> dict[str, Tensor]:
    present = torch.tensor([name not in absent for name in roster.names], dtype=torch.uint8)
    return {"number": number, "present": present}


def _version() -> Tensor:
    return torch.frombuffer(bytearray(anyparty.__version__.encode()), dtype=torch.uint8)


async def _reported_number(net: Channel, name: str) -> Tensor:
    """Receive the number of the alignment that a party has stored.

    Raises:
        ConfigError: the party has another version of anyparty.
    """
    got = await net.recv(name, "alignment", REPORT)
    if not torch.equal(got["version"], _version()):
        theirs = got["version"].numpy().tobytes()[:40].decode(errors="replace")
        raise ConfigError(f"party {name!r} runs anyparty {theirs!r}, and {net.me!r} runs {anyparty.__version__!r}: "
                          "install the same version at both")  # fmt: skip
    return got["number"]


async def welcome(number: Tensor, roster: Roster, net: Channel, name: str) -> None:
    """Check that a party that rejoins a run has stored the run's alignment, and send the party a confirmation.

    Raises:
        AlignmentError: the party has another alignment.
    """
    if not torch.equal(await _reported_number(net, name), number):
        raise AlignmentError(f"party {name!r} rejoined with another alignment (its table or folder changed); it can "
                             "take part in the next run")  # fmt: skip
    await net.send(name, "realign", _realign(roster, number))
