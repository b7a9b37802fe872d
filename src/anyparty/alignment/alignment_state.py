"""One party's state of a private alignment on its own disk, to resume the alignment or to add new ids to it.

A series is a sequence of alignments with the same secrets. The folder of a state contains
    state.json    the party's root secret, the identifier of the series, and a hash of the alignment's terms
    list.bin      [L, 16]: a keyed hash of each id that the party ever put into its list, in the secret order.
    rows.bin      the table row of each entry of the list, and a keyed hash of all ids in their order.
    tokens-K.bin  [at most L_k, 32], at the active party only: the tokens of the list of the K-th party, from its start

New entries are only appended to a list. The active party therefore needs new tokens only for the entries after the last
one whose token it has, both after an interruption and for new ids. An id that is no longer in the table keeps its place
in the list.

The folder and its files are readable for their owner only. A reader of ``list.bin`` and the root secret can test
whether a guessed id is in this party's list. The tokens reveal no id unless the secrets of all parties are known.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anyparty.alignment.x25519 import SIZE
from anyparty.core.storage import read_json, write_json, writing
from anyparty.errors import ModelError, StorageError

ENTRY = 16
CHUNK = 65_536


@dataclass
class AlignmentState:
    """One party's state of a private alignment, in one folder.

    Attributes:
        folder: the folder.
        terms: [32] a hash of the terms that all parties must share; a state with other terms is not used.
        series: [32] the random identifier of the series of alignments with the same secrets, which is equal at all
            parties; zeros if there is no usable state.
        root: [32] the party's root secret; zeros if there is no usable state.
        entries: [L, 16] the keyed hashes of the list's ids.
    """

    folder: Path
    terms: bytes
    series: bytes = bytes(SIZE)
    root: bytes = bytes(SIZE)
    entries: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, ENTRY), np.uint8))

    @classmethod
    def load(cls, folder: Path, terms: bytes) -> AlignmentState:
        """Read the state; return an empty one if it does not exist, is damaged or has other terms."""
        empty = cls(folder, terms)
        try:
            about = read_json(folder / "state.json")
            series, root = (bytes.fromhex(str(about[name])) for name in ("series", "root"))
        except (ModelError, KeyError, ValueError):
            return empty
        if about.get("terms") != terms.hex() or {len(series), len(root)} != {SIZE}:
            return empty
        return cls(folder, terms, series, root, _read(folder / "list.bin", ENTRY))

    def matched(self, ids: pl.Series) -> NDArray[np.int64]:
        """Return, for each of the L entries of the list, the index of its id in ``ids``; -1 if the id is absent.

        If ``ids`` begin with the ids of the last alignment, the stored indices are returned, which saves time.
        """
        if not len(self.entries):
            return np.empty(0, np.int64)
        known = self._remembered(ids)
        if known is not None:
            return known
        rows = _frame(_hashes(ids, self.root)).with_row_index("row")
        found = _frame(self.entries).join(rows, on=["a", "b"], how="left", maintain_order="left")["row"]
        return found.cast(pl.Int64).fill_null(-1).to_numpy()

    def begin(self, series: bytes, root: bytes) -> None:
        """Delete the old state, and start a new series with an empty list."""
        self.delete()
        with _storing(self.folder):
            self.folder.mkdir(parents=True, mode=0o700)
        self.series, self.root, self.entries = series, root, np.empty((0, ENTRY), np.uint8)
        about = {"terms": self.terms.hex(), "series": series.hex(), "root": root.hex()}
        write_json(self.folder / "state.json", about)

    def extend(self, ids: pl.Series) -> None:
        """Append keyed hashes of new ids to the list, in the given order, on disk and in memory."""
        added = _hashes(ids, self.root)
        _append(self.folder / "list.bin", len(self.entries), added)
        self.entries = np.concatenate([self.entries, added])

    def remember(self, ids: pl.Series, rows: NDArray[np.int64]) -> None:
        """Store ``rows`` [L], the index in ``ids`` of the id of each list entry, for the next alignment."""
        with writing(self.folder / "rows.bin") as temporary:
            temporary.write_bytes(self._digest(ids, rows) + np.int64(len(ids)).tobytes() + rows.tobytes())

    def _remembered(self, ids: pl.Series) -> NDArray[np.int64] | None:
        """Return the indices that ``remember`` stored; ``None`` if ``ids`` do not begin with the same ids as then."""
        try:
            raw = (self.folder / "rows.bin").read_bytes()
        except OSError:
            return None
        if len(raw) != SIZE + 8 * (1 + len(self.entries)):  # the list was extended after these rows were stored
            return None
        count, rows = int(np.frombuffer(raw, np.int64, 1, SIZE)[0]), np.frombuffer(raw, np.int64, offset=SIZE + 8)
        if not 0 <= count <= len(ids) or self._digest(ids.head(count), rows) != raw[:SIZE]:
            return None
        return rows

    def _digest(self, ids: pl.Series, rows: NDArray[np.int64]) -> bytes:
        """Return a keyed hash [32] of the ids in their order, of the list and of the rows."""
        whole = hashlib.blake2b(digest_size=SIZE, key=self.root, person=b"anyparty.rows.1")
        lengths, joined = ids.str.len_bytes().to_numpy(), ids.str.join("").item() or ""
        for part in (lengths.tobytes(), joined.encode(), self.entries.tobytes(), rows.tobytes()):
            whole.update(len(part).to_bytes(8, "little") + part)
        return whole.digest()

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
        """Store tokens of the party with index ``place`` in the roster, after its first ``before`` stored tokens."""
        _append(self.folder / f"tokens-{place}.bin", before, points)

    def delete(self) -> None:
        """Delete the folder. ``state.json`` is deleted first, so that a half-deleted state is not used."""
        with _storing(self.folder):
            (self.folder / "state.json").unlink(missing_ok=True)
            if self.folder.exists():
                shutil.rmtree(self.folder)


class TokenLists:
    """The tokens of all parties' lists in one array, filled batch by batch; a state also stores them on disk.

    Attributes:
        points: [sum of all lengths, 32] uint8.
        filled: the number of tokens of each party so far.
    """

    def __init__(self, lengths: Mapping[str, int], state: AlignmentState | None = None) -> None:
        self.state = state
        self.points = np.empty((sum(lengths.values()), SIZE), dtype=np.uint8)
        ends = np.cumsum(list(lengths.values()))
        self._lists = dict(zip(lengths, np.split(self.points, ends[:-1]), strict=True))
        self.filled = dict.fromkeys(lengths, 0)
        for place, (name, own) in enumerate(self._lists.items()):
            stored = np.empty((0, SIZE), np.uint8) if state is None else state.tokens(place)
            own[: len(stored)] = stored
            self.filled[name] = len(stored)

    def append(self, name: str, points: bytes) -> None:
        """Append a batch of tokens to the list of the party ``name``."""
        made = np.frombuffer(points, dtype=np.uint8).reshape(-1, SIZE)
        before = self.filled[name]
        self._lists[name][before : before + len(made)] = made
        self.filled[name] = before + len(made)
        if self.state is not None:
            self.state.add_tokens(list(self._lists).index(name), before, made)


def _hashes(ids: pl.Series, root: bytes) -> NDArray[np.uint8]:
    """Return a keyed hash [n, 16] of each id."""
    keyed = hashlib.blake2b(digest_size=ENTRY, key=root, person=b"anyparty.list.1")
    out = bytearray()
    for at in range(0, len(ids), CHUNK):
        for text in ids.slice(at, CHUNK).cast(pl.Binary).to_list():
            each = keyed.copy()  # the copy already contains the key
            each.update(text)
            out += each.digest()
    return np.frombuffer(out, dtype=np.uint8).reshape(-1, ENTRY)


def _frame(entries: NDArray[np.uint8]) -> pl.DataFrame:
    words = np.ascontiguousarray(entries).view("<u8").reshape(-1, 2)
    return pl.DataFrame({"a": words[:, 0], "b": words[:, 1]})


def _read(path: Path, size: int) -> NDArray[np.uint8]:
    """Read the complete entries of a file; a missing file is empty."""
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError:
        raw = np.empty(0, dtype=np.uint8)
    return raw[: len(raw) // size * size].reshape(-1, size)


def _append(path: Path, before: int, entries: NDArray[np.uint8]) -> None:
    """Keep the first ``before`` entries of a file, append ``entries``, and wait until they are on the disk."""
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
