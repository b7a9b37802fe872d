"""Where the files of data sets lie: folders, checksums, and what is kept unpacked.

A file is looked for in the folder that ``load`` was given, else in that of the environment variable ANYPARTY_DATA
and then in the cache (ANYPARTY_CACHE, or ~/.cache/anyparty); downloads go to the cache.  What takes long to unpack is
also kept there unpacked (folder "unpacked", which may be deleted at any time).
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


@dataclass(frozen=True)
class File:
    """A file of a data set: its place below the data folder, its checksum and address where there are such."""

    path: str
    sha256: str = ""
    url: str = ""


def cache_folder() -> Path:
    """Return the folder for downloads; it need not exist."""
    named = os.environ.get("ANYPARTY_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "anyparty"


NAMES = "names.json"


def folders(data_dir: Path | None) -> list[Path]:
    """Return the folders where files are looked for, in order."""
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    named = os.environ.get("ANYPARTY_DATA")
    return ([Path(named).expanduser()] if named else []) + [cache_folder()]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, as text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, sha256: str) -> None:
    """Refuse a file whose content is not what it should be.

    Raises:
        TableError: the checksum differs.
    """
    found = sha256_of(path)
    if sha256 and found != sha256:
        raise TableError(
            f"{path} is damaged or another version: its sha256 is {found}, expected {sha256}; get it again, or pass "
            f"verify=False to read it as it is"
        )


def unpacked(paths: Sequence[Path], make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Return the arrays that ``make`` reads from the files ``paths``, from the cache if it has read them before.

    A file is known again by its place, size and time of change.  A cache that cannot be written is done without.
    """
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((make.__qualname__, stamps)).encode()).hexdigest()[:16]
    folder = cache_folder() / "unpacked" / f"{paths[0].name.partition('.')[0]}-{key}"
    if folder.is_dir():
        with suppress(OSError, ValueError, EOFError):
            names = json.loads((folder / NAMES).read_text(encoding="utf-8"))  # of a cache, anybody may delete a file
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
            fresh.rename(folder)  # another process may have been faster
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return arrays


def arrays(path: Path) -> dict[str, Array]:
    """Return all arrays of an .npz file; pickled ones are refused."""
    with path.open("rb") as opened, np.load(opened) as file:
        return {name: file[name] for name in file.files}


def npz(paths: Sequence[Path]) -> dict[str, Array]:
    """Return all arrays of the one .npz in ``paths``, whose LZMA may take seconds to undo: ``unpacked``."""

    def make() -> dict[str, Array]:
        return arrays(paths[0])

    return unpacked(paths, make)
