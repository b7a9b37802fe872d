"""The formats in which data sets are published: idx, CIFAR's binary records, Unix compress, columns of text.

Nothing here unpickles.  A file that is not what it should be raises ValueError, OSError or EOFError, which ``load``
turns into a sentence.
"""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_IDX_UINT8 = 0x08


def idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of bytes (MNIST's format): two zeros, type, dimensions, sizes (big-endian), values."""
    raw = gzip.decompress(path.read_bytes())
    if len(raw) < 4 or raw[:3] != bytes((0, 0, _IDX_UINT8)):
        raise ValueError("this is no idx file of bytes")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], dtype=">u4"))
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


def cifar(raw: bytes, labels: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read CIFAR's binary records, ``labels`` bytes (the last is the class) and 3 x 32 x 32 of red, green, blue.

    Returns:
        images [n, 3, 32, 32] and classes [n].
    """
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, labels + 3 * 32 * 32)
    return records[:, labels:].reshape(-1, 3, 32, 32).copy(), records[:, labels - 1].astype(np.int64)


def numbers(raw: bytes, columns: int, separator: str = " ") -> NDArray[np.float32]:
    """Read lines of ``columns`` numbers each, between spaces or commas: [n, columns]."""
    text = raw.decode("ascii").strip()
    if separator != " ":
        text = text.replace("\n", separator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns where a cell is no number
        try:
            cells = np.fromstring(text, sep=separator)
        except DeprecationWarning as warning:
            raise ValueError("a cell is not a number") from warning
    return cells.astype(np.float32).reshape(-1, columns)


def uncompress(data: bytes) -> bytes:
    """Undo Unix ``compress`` (.Z, LZW), in which UCI stores Isolet.

    Codes grow from 9 to at most 16 bits and lie in groups of eight, low bits first; when their width changes, or the
    dictionary is emptied (code 256), the rest of the group is skipped.
    """
    most, clears = _header(data)
    letters = [bytes((letter,)) for letter in range(256)]
    table, width, position = letters + [b""] * clears, 9, 3
    out: list[bytes] = []
    before = b""
    while position < len(data):
        restart = False
        for code in _codes(data, position, width):
            if clears and code == 256:
                restart = True
                break
            if code > len(table) or (code == len(table) and not before):
                raise ValueError("a code points beyond the dictionary")
            word = table[code] if code < len(table) else before + before[:1]
            out.append(word)
            if before and len(table) < 1 << most:
                table.append(before + word[:1])
            before = word
            if len(table) >= 1 << width and width < most:
                break
        position += width
        if restart:
            table, width = letters.copy(), 9  # the next word takes the place of the clearing code
        elif len(table) >= 1 << width and width < most:
            width += 1
    return b"".join(out)


def _header(data: bytes) -> tuple[int, bool]:
    """Return the most bits that a code may have, and whether code 256 empties the dictionary."""
    if data[:2] != b"\x1f\x9d" or len(data) < 3:
        raise ValueError("this is no file of Unix compress")
    most = data[2] & 0x1F
    if not 9 <= most <= 16:
        raise ValueError(f"codes of {most} bits, expected 9 to 16")
    return most, bool(data[2] & 0x80)


def _codes(data: bytes, position: int, width: int) -> Iterator[int]:
    """Yield the up to eight codes of the group that begins at ``position``."""
    group = data[position : position + width]
    bits, mask = int.from_bytes(group, "little"), (1 << width) - 1
    for _ in range(len(group) * 8 // width):
        yield bits & mask
        bits >>= width
