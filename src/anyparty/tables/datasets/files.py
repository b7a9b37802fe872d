"""Files of the data sets: folders, checksums and the cache.

``load`` searches for a file in its ``data_dir``. Without that argument it searches the folder of the environment
variable ANYPARTY_DATA, then the cache (ANYPARTY_CACHE, or ~/.cache/anyparty). Downloads go to the cache. Files that
unpack slowly are also cached unpacked, in the folder "unpacked", which may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anyparty.errors import TableError
from anyparty.tables.datasets.dataset import Array

NAMES = "names.json"  # names of the arrays in a folder of the cache


@dataclass(frozen=True)
class File:
    """A file of a data set: its path below the data folder, and its checksum and address if known."""

    path: str
    sha256: str = ""
    url: str = ""


def cache_folder() -> Path:
    """Return the folder of the cache; it may not exist yet."""
    named = os.environ.get("ANYPARTY_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "anyparty"


def folders(data_dir: Path | None) -> list[Path]:
    """Return the folders to search, in order."""
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    named = os.environ.get("ANYPARTY_DATA")
    return ([Path(named).expanduser()] if named else []) + [cache_folder()]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, sha256: str) -> None:
    """Reject a file with a wrong checksum.

    Raises:
        TableError: the checksum differs.
    """
    found = sha256_of(path)
    if sha256 and found != sha256:
        raise TableError(
            f"{path} is damaged or another version: its sha256 is {found}, expected {sha256}; download it again, or "
            f"pass verify=False to read it anyway"
        )


def unpacked(paths: Sequence[Path], make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Return the arrays that ``make`` reads from the files ``paths``, from the cache if they were read before.

    The path, size and modification time identify a file. An error while writing the cache is ignored.
    """
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((make.__qualname__, stamps)).encode()).hexdigest()[:16]
    folder = cache_folder() / "unpacked" / f"{paths[0].name.partition('.')[0]}-{key}"
    if folder.is_dir():
        with suppress(OSError, ValueError, EOFError):
            names = json.loads((folder / NAMES).read_text(encoding="utf-8"))  # any file of the cache may be deleted
            return {name: np.load(folder / f"{name}.npy") for name in names}
        shutil.rmtree(folder, ignore_errors=True)
    arrays = make()
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            for name, array in arrays.items():
                np.save(fresh / f"{name}.npy", array)
            (fresh / NAMES).write_text(json.dumps(sorted(arrays)), encoding="utf-8")
            fresh.rename(folder)  # fails if another process was faster
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return arrays


def arrays(path: Path) -> dict[str, Array]:
    """Return all arrays of an .npz file; pickled arrays are rejected."""
    with path.open("rb") as opened, np.load(opened) as file:
        return {name: file[name] for name in file.files}


def npz(paths: Sequence[Path]) -> dict[str, Array]:
    """Return all arrays of the one .npz file in ``paths``, through the cache: decompression may take seconds."""

    def make() -> dict[str, Array]:
        return arrays(paths[0])

    return unpacked(paths, make)
