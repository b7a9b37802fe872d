"""Read the formats in which data sets are published: idx, CIFAR's binary records, and columns of text.

No reader unpickles data. A malformed file raises ValueError, OSError or EOFError, which ``load`` converts to a
TableError.
"""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_IDX_UINT8 = 0x08


def idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of bytes, the format of MNIST.

    The file contains two zeros, the type, the number of dimensions, the big-endian sizes, and the values.
    """
    raw = gzip.decompress(path.read_bytes())
    if len(raw) < 4 or raw[:3] != bytes((0, 0, _IDX_UINT8)):
        raise ValueError("this is not an idx file of bytes")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(raw[4:start], dtype=">u4"))
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape).copy()


def cifar(raw: bytes, labels: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read CIFAR's binary records: ``labels`` bytes, the last of which is the class, then 3 x 32 x 32 color values.

    Returns:
        images [n, 3, 32, 32] and classes [n].
    """
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, labels + 3 * 32 * 32)
    return records[:, labels:].reshape(-1, 3, 32, 32).copy(), records[:, labels - 1].astype(np.int64)


def numbers(raw: bytes, columns: int, separator: str = " ") -> NDArray[np.float32]:
    """Read lines of ``columns`` numbers, separated by spaces or commas: [n, columns]."""
    text = raw.decode("ascii").strip()
    if separator != " ":
        text = text.replace("\n", separator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy reports a cell that is not a number by a mere warning
        try:
            cells = np.fromstring(text, sep=separator)
        except DeprecationWarning as warning:
            raise ValueError("a cell is not a number") from warning
    return cells.astype(np.float32).reshape(-1, columns)
