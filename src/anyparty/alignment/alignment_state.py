"""One party's state of a private alignment on its own disk, to resume the alignment or to add new ids to it.

Each party keeps its ids in a list, in a secret order. A token is an id's point on an elliptic curve, multiplied by the
secrets of all parties, so that equal ids have equal tokens. A series is a sequence of alignments with the same secrets.

At the start of an alignment, the parties compare their states:

- If every party has a state of the same series, the parties continue the series. Only ids without a stored token are
  processed: the remaining ids of an interrupted alignment, or new ids.
- If a party has no such state, or has restored an old backup of its state, all parties draw new secrets and start a
  new series. All ids are processed.

The folder of a state contains
    state.json    the party's root secret, the identifier of the series, and a hash of the salt and the roster.
    list.bin      [L, 16]: a keyed hash of each of the L ids that the party ever put into its list, in the secret order.
    rows.bin      the table row of each entry of the list, and a keyed hash of all ids in their order.
    tokens-K.bin  [at most L_k, 32], at the active party only: the tokens of the first entries of the K-th party's list.
    union.bin     at the active party only: the union of these tokens after the last complete alignment, and a keyed
                  hash of its content.

New entries are only appended to a list. An id that is no longer in the table keeps its place in the list.

Only the owner of the folder can read its files. A reader of ``list.bin`` and the root secret can test whether a guessed
id is in this party's list. The tokens reveal no id unless the secrets of all parties are known.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty.alignment.rounds import TokenUnion, each_once
from anyparty.alignment.x25519 import SIZE, Secret
from anyparty.core.storage import read_json, write_json, writing
from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import MessageError, ModelError, StorageError

ENTRY = 16
CHUNK = 65_536


@dataclass
class AlignmentState:
    """One party's state of a private alignment, in one folder.

    Attributes:
        folder: the folder.
        terms: [32] a hash of the salt and the roster, which all parties share; a state with another hash is not used.
        series: [32] the random identifier of the series of alignments with the same secrets, which is equal at all
            parties; zeros if there is no usable state.
        root: [32] the party's root secret; zeros if there is no usable state.
        entries: [L, 16] the keyed hashes of the L ids in the party's list.
        remembered: the number of ids of the last alignment, and a hash of these ids and their rows; ``None`` unless
            ``matched`` found that the stored rows are still valid.
    """

    folder: Path
    terms: bytes
    series: bytes = bytes(SIZE)
    root: bytes = bytes(SIZE)
    entries: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, ENTRY), np.uint8))
    remembered: tuple[int, _RowsHash] | None = None

    @classmethod
    def load(cls, folder: Path, terms: bytes) -> AlignmentState:
        """Read the state; return an empty one if it does not exist, is damaged, or was stored with other ``terms``."""
        empty = cls(folder, terms)
        try:
            stored_state = read_json(folder / "state.json")
            series, root = (bytes.fromhex(str(stored_state[name])) for name in ("series", "root"))
        except (ModelError, KeyError, ValueError):
            return empty
        if stored_state.get("terms") != terms.hex() or {len(series), len(root)} != {SIZE}:
            return empty
        return cls(folder, terms, series, root, _read(folder / "list.bin", ENTRY))

    def matched(self, ids: pl.Series) -> NDArray[np.int64]:
        """Return, for each entry of the list, the index of its id in ``ids``; -1 if the id is absent: [L]."""
        if not len(self.entries):
            return np.empty(0, np.int64)
        known = self._remembered(ids)
        if known is not None:
            return known
        rows = _places(self.entries, _hashes(ids, self.root))
        if not each_once(rows[rows >= 0], len(ids)):  # earlier versions could write an id twice
            self.series = bytes(SIZE)
        return rows

    def begin(self, series: bytes, root: bytes) -> None:
        """Delete the old state, and start a new series with an empty list."""
        self.delete()
        with _storing(self.folder):
            self.folder.mkdir(parents=True, mode=0o700)
        self.series, self.root, self.entries, self.remembered = series, root, np.empty((0, ENTRY), np.uint8), None
        stored_state = {"terms": self.terms.hex(), "series": series.hex(), "root": root.hex()}
        write_json(self.folder / "state.json", stored_state)

    def extend(self, ids: pl.Series) -> None:
        """Append the keyed hashes of new ``ids`` to the list, on disk and in memory."""
        added = _hashes(ids, self.root)
        _append(self.folder / "list.bin", len(self.entries), added)
        self.entries = np.concatenate([self.entries, added])

    def remember(self, ids: pl.Series, rows: NDArray[np.int64]) -> None:
        """Store the result ``rows`` [L] of ``matched``, so that the next alignment need not compute it again."""
        count, known = self.remembered or (0, _RowsHash(self.root))
        known.update(ids.slice(count), self.entries[known.length :], rows[known.length :])
        with writing(self.folder / "rows.bin") as temporary, temporary.open("wb") as file:
            file.writelines([known.digest(), np.int64(len(ids)).tobytes(), np.ascontiguousarray(rows).data])

    def _remembered(self, ids: pl.Series) -> NDArray[np.int64] | None:
        """Return the stored rows; ``None`` if ``ids`` does not begin with the ids for which they were stored."""
        try:
            raw = (self.folder / "rows.bin").read_bytes()
        except OSError:
            return None
        if len(raw) != SIZE + 8 * (1 + len(self.entries)):  # outdated, because the list has grown
            return None
        count, rows = int(np.frombuffer(raw, np.int64, 1, SIZE)[0]), np.frombuffer(raw, np.int64, offset=SIZE + 8)
        if not 0 <= count <= len(ids):
            return None
        known = _RowsHash(self.root)
        known.update(ids.head(count), self.entries, rows)
        if known.digest() != raw[:SIZE]:
            return None
        left_out = np.flatnonzero(rows < 0)
        if len(left_out) and count < len(ids):  # the new ids may include some that were left out
            places = _places(self.entries[left_out], _hashes(ids.slice(count), self.root))
            rows = rows.copy()
            rows[left_out] = np.where(places < 0, -1, places + count)
            return rows
        self.remembered = count, known
        return rows

    def token_count(self, place: int) -> int:
        """Return the number of stored tokens of the party with index ``place`` in the roster, without reading them."""
        try:
            return (self.folder / f"tokens-{place}.bin").stat().st_size // SIZE
        except FileNotFoundError:
            return 0

    def tokens(self, place: int) -> NDArray[np.uint8]:
        """Return the stored tokens [m, 32] of the party with index ``place`` in the roster."""
        return _read(self.folder / f"tokens-{place}.bin", SIZE)

    def add_tokens(self, place: int, before: int, points: NDArray[np.uint8]) -> None:
        """Write tokens of one party to its file, after the first ``before`` tokens; overwrite any later tokens.

        ``place`` is the party's index in the roster.
        """
        _append(self.folder / f"tokens-{place}.bin", before, points)

    def remember_union(self, union: TokenUnion) -> None:
        """Store the union of all stored tokens for the next alignment."""
        if not union.has_distinct_heads() or union.n > np.iinfo(np.int32).max:
            return
        counts = np.array([union.n, *map(len, union.rows.values())])
        parts = [counts, *(rows.astype(np.int32) for rows in union.rows.values()), union.head, union.key]
        with writing(self.folder / "union.bin") as temporary, temporary.open("wb") as file:
            file.writelines([_keyed(self.root, b"anyparty.union", *parts).digest(), *(part.data for part in parts)])

    def stored_union(self, most: Mapping[str, int]) -> TokenUnion | None:
        """Return the union that ``remember_union`` stored; ``None`` if it does not exist or is damaged.

        The union has tokens from the beginning of each party's list. The result is also ``None`` if the union has more
        tokens of a party than ``most`` allows for this party. The parties in ``most`` are in the roster's order.
        """
        raw = _read(self.folder / "union.bin", 1).reshape(-1)
        if _keyed(self.root, b"anyparty.union", raw[SIZE:]).digest() != raw[:SIZE].tobytes():
            return None
        begin = SIZE + 8 * (1 + len(most))
        n, *lengths = raw[SIZE:begin].view(np.int64).tolist()
        if any(length > at_most for length, at_most in zip(lengths, most.values(), strict=True)):
            return None
        sizes = [begin, *(4 * length for length in lengths), 8 * n, 8 * n]
        _, *rows, head, key = np.split(raw, list(accumulate(sizes))[:-1])
        table = {name: own.view(np.int32).astype(np.int64) for name, own in zip(most, rows, strict=True)}
        return TokenUnion(n, table, head.copy().view(np.uint64), key.copy().view(np.int64))

    def delete(self) -> None:
        """Delete the folder. ``state.json`` is deleted first, so that a half-deleted state is not used."""
        with _storing(self.folder):
            (self.folder / "state.json").unlink(missing_ok=True)
            if self.folder.exists():
                shutil.rmtree(self.folder)


class TokenLists:
    """The tokens of all parties' lists, to which an alignment adds batch after batch.

    If ``state`` is given, the tokens are also stored on disk. Tokens of earlier alignments are read only if necessary.

    Attributes:
        stored: for each party, the number of its tokens that the state has already.
        points: [sum of all further tokens, 32] uint8.
        filled: for each party, the number of its tokens, stored or appended.
    """

    def __init__(self, lengths: Mapping[str, int], state: AlignmentState | None = None) -> None:
        self.state = state
        self.stored = {name: 0 if state is None else state.token_count(place) for place, name in enumerate(lengths)}
        added = [length - self.stored[name] for name, length in lengths.items()]
        self.points = np.empty((sum(added), SIZE), dtype=np.uint8)
        self._lists = dict(zip(lengths, np.split(self.points, np.cumsum(added)[:-1]), strict=True))
        self.filled = dict(self.stored)

    def append(self, name: str, points: bytes) -> None:
        """Append a batch of tokens to the tokens of one party."""
        made = np.frombuffer(points, dtype=np.uint8).reshape(-1, SIZE)
        before = self.filled[name]
        begin = before - self.stored[name]
        self._lists[name][begin : begin + len(made)] = made
        self.filled[name] = before + len(made)
        if self.state is not None:
            self.state.add_tokens(list(self._lists).index(name), before, made)

    def union(self) -> TokenUnion:
        """Return the union of all tokens, and store it for the next alignment."""
        if self.state is None:
            return self._from(self.stored)
        known = self.state.stored_union(self.stored)
        union = known and known.extended(self._from({name: len(rows) for name, rows in known.rows.items()}))
        if union is None:
            union = self._from(dict.fromkeys(self._lists, 0))
        self.state.remember_union(union)
        return union

    def _from(self, start: Mapping[str, int]) -> TokenUnion:
        """Return the union of the tokens from index ``start[name]`` of each party's list."""
        sizes, tokens = {name: self.filled[name] - start[name] for name in self._lists}, self.points
        if self.state is not None and start != self.stored:
            tokens = np.concatenate([
                part
                for place, (name, appended) in enumerate(self._lists.items())
                for part in (self.state.tokens(place)[start[name] : self.stored[name]], appended)
            ])  # fmt: skip
        return TokenUnion.of(sizes, tokens)


class _RowsHash:
    """A keyed hash of ids in their order, of a list's entries, and of the rows of these entries.

    Ids, entries and rows can only be appended, and each of them has a hash of its own. If a table grows, only its new
    rows are hashed.

    Attributes:
        length: the number of entries so far.
    """

    def __init__(self, key: bytes) -> None:
        self.length = 0
        self._whole = _keyed(key, b"anyparty.rows.2")
        self._parts = [_keyed(key, b"anyparty.rows.2") for _ in range(4)]

    def update(self, ids: pl.Series, entries: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Append ids [m], entries [e, 16] and rows [e]."""
        lengths, texts = ids.str.len_bytes().to_numpy(), (ids.str.join("").item() or "").encode()
        for part, added in zip(self._parts, (lengths, texts, entries, rows), strict=True):
            part.update(added if isinstance(added, bytes) else np.ascontiguousarray(added).data)
        self.length += len(rows)

    def digest(self) -> bytes:
        """Return the hash [32] of everything so far."""
        whole = self._whole.copy()
        for part in self._parts:
            whole.update(part.digest())
        return whole.digest()


def _keyed(key: bytes, purpose: bytes, *parts: NDArray[Any]) -> hmac.HMAC:
    """Return a keyed hash of 32 bytes of the content of ``parts``, one after the other."""
    whole = hmac.new(key, purpose, "sha256")
    for part in parts:
        whole.update(part.data)
    return whole


def _hashes(ids: pl.Series, root: bytes) -> NDArray[np.uint8]:
    keyed = hashlib.blake2b(digest_size=ENTRY, key=root, person=b"anyparty.list.1")
    out = bytearray()
    for at in range(0, len(ids), CHUNK):
        for text in ids.slice(at, CHUNK).cast(pl.Binary).to_list():
            each = keyed.copy()
            each.update(text)
            out += each.digest()
    return np.frombuffer(out, dtype=np.uint8).reshape(-1, ENTRY)


def _places(entries: NDArray[np.uint8], hashes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return, for each entry [L, 16], its index in ``hashes`` [n, 16]; -1 if it is absent."""
    rows = _frame(hashes).with_row_index("row")
    found = _frame(entries).join(rows, on=["a", "b"], how="left", maintain_order="left")["row"]
    return found.cast(pl.Int64).fill_null(-1).to_numpy()


def _frame(entries: NDArray[np.uint8]) -> pl.DataFrame:
    words = np.ascontiguousarray(entries).view("<u8").reshape(-1, 2)
    return pl.DataFrame({"a": words[:, 0], "b": words[:, 1]})


def _read(path: Path, size: int) -> NDArray[np.uint8]:
    """Read the entries of a file, with ``size`` bytes each; ignore an incomplete entry at its end."""
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError:
        raw = np.empty(0, dtype=np.uint8)
    return raw[: len(raw) // size * size].reshape(-1, size)


def _append(path: Path, before: int, entries: NDArray[np.uint8]) -> None:
    """Overwrite a file from entry number ``before`` on with ``entries``, and flush it to disk."""
    with _storing(path), os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        file.truncate(before * entries.shape[1])
        file.seek(0, os.SEEK_END)
        file.write(entries.tobytes())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}); free some space, or make the "
                           "folder writable, and start again: the alignment continues") from None  # fmt: skip


MESSAGES = (
    MessageSpec(
        tag="align-state",
        frm="any",
        to="any",
        holds="the random number of the series of alignments that the sender can continue, a fresh random number, and "
        "how many entries its list has, with and without new ids; from the active party also how many tokens of each "
        "list it has. Sent only if parties keep states on disk",
        learns="how many ids each party has added and removed since the last alignment of the series",
    ),
    MessageSpec(
        tag="align-left-out",
        frm="passive",
        to="active",
        holds="the positions, in the sender's stored list, of ids that the sender's table no longer has. Sent only if "
        "there are such ids",
        learns="which rows the sender no longer has, which the new alignment shows, too",
    ),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class ListPlan:
    """One party's view of all parties' lists of ids, and of the list entries that need tokens.

    Attributes:
        secret: the party's secret scalars.
        rows: [L] for each entry of the party's list, the row of its id in the party's table; -1 if the id is no longer
            there.
        lengths: the number of entries of each party's list.
        start: for each party's list, the number of entries that have tokens.
        continued: True if an earlier alignment used the same secrets.
        tokens: at the active party, all parties' tokens, filled during the alignment; ``None`` at passive parties.
        left_out: for each party, the indices of list entries whose ids are no longer in that party's table. The active
            party knows them for all parties, a passive party only for itself.
    """

    secret: Secret
    rows: NDArray[np.int64]
    lengths: dict[str, int]
    start: dict[str, int]
    continued: bool = False
    tokens: TokenLists | None = None
    left_out: Mapping[str, NDArray[np.int64]]

    def todo(self) -> dict[str, int]:
        """Return, for each party's list, the number of entries that need tokens."""
        return {name: length - self.start[name] for name, length in self.lengths.items()}


async def plan_alone(net: Channel, roster: Roster, sizes: Mapping[str, int], root: bytes | None) -> ListPlan:
    """Return the plan of an alignment that stores no state on disk. All ids need tokens."""
    secret = Secret.of(root)
    return ListPlan(
        secret=secret,
        rows=await asyncio.to_thread(secret.order, sizes[net.me]),
        lengths=dict(sizes),
        start=dict.fromkeys(sizes, 0),
        tokens=TokenLists(sizes) if net.me == roster.active else None,
        left_out=dict.fromkeys(sizes, np.empty(0, np.int64)),
    )


async def plan_with_state(
    net: Channel, roster: Roster, ids: pl.Series, sizes: Mapping[str, int], state: AlignmentState, root: bytes | None
) -> ListPlan:
    """Return the plan of an alignment with a state on each party's disk, and store hashes of this party's new ids.

    Args:
        net: the party's channel to the other parties.
        roster: the parties.
        ids: the party's ids.
        sizes: the number of ids of each party.
        state: the party's state.
        root: the root from which new secrets are derived; a random one if ``None``.

    Raises:
        MessageError: a party reports numbers of ids or tokens that contradict each other.
        StorageError: the state cannot be written.
    """
    rows = await asyncio.to_thread(state.matched, ids)
    fresh = np.ones(len(ids), dtype=np.bool_)
    fresh[rows[rows >= 0]] = False
    reports = await _exchange(net, roster, state, len(rows), int(fresh.sum()))
    for name, report in reports.items():
        report.check(name, sizes[name])
    done = dict(zip(sizes, reports[roster.active].done, strict=True))
    alike = state.series != bytes(SIZE) and len({each.series for each in reports.values()}) == 1
    continued = alike and all(0 <= done[name] <= each.stored for name, each in reports.items())
    if continued:
        secret = Secret.of(state.root, secrets.token_bytes(SIZE))
    else:
        secret = Secret.of(root)
        series = hashlib.sha256(b"".join(reports[name].nonce for name in sizes)).digest()
        await asyncio.to_thread(state.begin, series, secret.root)
        rows, fresh = np.empty(0, np.int64), np.ones(len(ids), dtype=np.bool_)
    added = np.flatnonzero(fresh)[await asyncio.to_thread(secret.order, int(fresh.sum()))]
    await asyncio.to_thread(state.extend, ids.gather(added))
    rows = np.concatenate([rows, added])
    await asyncio.to_thread(state.remember, ids, rows)
    lengths = {name: each.extended for name, each in reports.items()} if continued else dict(sizes)
    leads = net.me == roster.active
    return ListPlan(
        secret=secret,
        rows=rows,
        lengths=lengths,
        start=done if continued else dict.fromkeys(sizes, 0),
        continued=continued,
        tokens=await asyncio.to_thread(TokenLists, lengths, state) if leads else None,
        left_out=await _left_out(net, roster, sizes, lengths, np.flatnonzero(rows < 0)),
    )


@dataclass(frozen=True)
class _Report:
    series: bytes
    nonce: bytes
    stored: int
    extended: int
    done: tuple[int, ...]

    def check(self, name: str, size: int) -> None:
        if not (0 <= self.stored <= self.extended and size <= self.extended):
            raise MessageError(f"party {name!r} reports a list of {self.stored} entries, or {self.extended} with its "
                               f"new ids, for {size} ids")  # fmt: skip


async def _exchange(net: Channel, roster: Roster, state: AlignmentState, stored: int, new: int) -> dict[str, _Report]:
    """Send a report of this party's state to all other parties, and return the reports of all parties."""
    done = [state.token_count(place) if net.me == roster.active else 0 for place in range(len(roster.names))]
    own = _Report(state.series, secrets.token_bytes(SIZE), stored, stored + new, tuple(done))
    others = [name for name in roster.names if name != net.me]
    for name in others:
        await net.send(name, "align-state", {
            "series": _bytes(own.series), "nonce": _bytes(own.nonce), "done": torch.tensor(done),
            "entries": torch.tensor([own.stored, own.extended]),
        })  # fmt: skip
    expect = {
        "series": TensorSpec((SIZE,), torch.uint8),
        "nonce": TensorSpec((SIZE,), torch.uint8),
        "done": TensorSpec((len(roster.names),), torch.int64),
        "entries": TensorSpec((2,), torch.int64),
    }
    reports = dict.fromkeys(roster.names, own)
    for name in others:
        got = await net.recv(name, "align-state", expect)
        series, nonce = (got[each].numpy().tobytes() for each in ("series", "nonce"))
        stored, extended = got["entries"].tolist()
        reports[name] = _Report(series, nonce, stored, extended, tuple(got["done"].tolist()))
    return reports


async def _left_out(
    net: Channel, roster: Roster, sizes: Mapping[str, int], lengths: Mapping[str, int], own: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Send the active party the list entries whose ids are no longer in this party's table.

    The active party returns these entries of all parties' lists. A passive party returns only its own entries.
    """
    places = {net.me: own}
    if net.me != roster.active:
        if len(own):
            await net.send(roster.active, "align-left-out", {"places": torch.from_numpy(own)})
        return places
    for name, size in sizes.items():
        count = lengths[name] - size
        if name != net.me:
            got = np.empty(0, np.int64)
            if count:
                expect = {"places": TensorSpec((count,), torch.int64)}
                got = (await net.recv(name, "align-left-out", expect))["places"].numpy()
            if len(np.unique(got)) < count or (count and not 0 <= got.min() <= got.max() < lengths[name]):
                raise MessageError(f"party {name!r} reports impossible places of ids that it left out")
            places[name] = got
    return places


def _bytes(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
