"""Search files and messages for raw texts and for hashes of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

SHORTEST = 8  # bytes of a needle; shorter ones occur by chance


def hashes(texts: Iterable[str]) -> dict[bytes, str]:
    """Return the common unsalted hashes of texts, in the forms that a file could hold, each with a description.

    They are all algorithms of ``hashlib``, BLAKE2 of several lengths, and the hashes of polars and pandas.  Forms are
    the first eight bytes in both byte orders, in hexadecimal, and as a decimal number with and without a sign.
    """
    texts = list(texts)
    found: dict[bytes, str] = {}
    numbers = pl.Series(texts).hash(seed=0).to_list()
    others = pd.util.hash_array(np.array(texts, dtype=object)).tolist()
    for text, number, other in zip(texts, numbers, others, strict=True):
        digests = {name: digest.to_bytes(8) for name, digest in (("polars", number), ("pandas", other))}
        digests |= dict(_digests(text.encode()))
        for name, digest in digests.items():
            begin = digest[:8]
            for raw in (begin, begin[::-1]):
                forms = {raw, raw.hex().encode(), raw.hex().upper().encode()}
                forms |= {str(int.from_bytes(raw, signed=signed)).encode() for signed in (False, True)}
                found |= {form: f"{name} of {text!r}" for form in forms if len(form) >= SHORTEST}
    return found


def _digests(data: bytes) -> Iterator[tuple[str, bytes]]:
    for name in sorted(hashlib.algorithms_guaranteed):
        made = hashlib.new(name, data, usedforsecurity=False)
        yield name, made.digest(16) if name.startswith("shake") else made.digest()
    for size in (8, 16, 20):
        yield f"blake2b-{size}", hashlib.blake2b(data, digest_size=size).digest()
        yield f"blake2s-{size}", hashlib.blake2s(data, digest_size=size).digest()


def raw(texts: Iterable[str]) -> dict[bytes, str]:
    """Return texts as they may occur in a file or a message: in UTF-8 and UTF-16."""
    return {text.encode(code): f"{text!r} itself" for text in texts for code in ("utf-8", "utf-16-le", "utf-16-be")}


def occurring(needles: dict[bytes, str], data: bytes) -> list[str]:
    """Return the descriptions of ``needles`` that occur in ``data``, in one pass over the data."""
    assert all(len(needle) >= SHORTEST for needle in needles)
    if len(data) < SHORTEST:
        return []
    begins = np.unique(np.frombuffer(b"".join(needle[:SHORTEST] for needle in needles), dtype="<u8"))
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, dtype=np.uint8), SHORTEST)
    there = np.isin(np.ascontiguousarray(windows).view("<u8").ravel(), begins)
    places = np.flatnonzero(there).tolist()
    lengths = sorted({len(needle) for needle in needles})
    found = {needles.get(data[place : place + length]) for place in places for length in lengths}
    return sorted(each for each in found if each is not None)


def in_folder(needles: dict[bytes, str], folder: Path) -> dict[str, list[str]]:
    """Return the needles that occur in each file or its name, by file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert files
    found = {
        str(path.relative_to(folder)): occurring(needles, path.read_bytes() + b"\n" + str(path.name).encode())
        for path in files
    }
    return {name: each for name, each in found.items() if each}
