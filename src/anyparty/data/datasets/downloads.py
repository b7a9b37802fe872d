"""Download files, resume interrupted downloads, reject files with a wrong checksum, and read published formats.

The package pooch was considered. It cannot resume a download, so this module would still need its own code for
downloads. Pooch would also add five packages.

No reader unpickles data. A malformed file raises ValueError, OSError or EOFError, which ``load`` converts to a
TableError.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from anyparty.data.datasets.dataset import Array
from anyparty.errors import TableError

CHUNK = 1 << 18
TIMEOUT_S = 30.0


def download(
    url: str, to: Path, *, sha256: str = "", progress: bool = True, timeout_s: float = TIMEOUT_S, verify: bool = True
) -> Path:
    """Download a file to the path ``to`` and return the path; the file appears only when it is complete and verified.

    An incomplete download is kept in the file ``to`` + ".part", and the next call requests only the missing bytes. If
    another process is downloading the same file, the call waits.

    Args:
        url: address, with https:// or http://.
        to: path of the file; an existing file is not downloaded again.
        sha256: expected checksum; if empty, any file is accepted.
        progress: whether to show a progress bar on stderr.
        timeout_s: time-out of the connection, in seconds.
        verify: whether to compare the checksum.

    Raises:
        TableError: there is no connection, the server reports an error, or the file is incomplete or wrong.

    """
    if not url.startswith(("https://", "http://")):
        raise TableError(f"cannot download {url!r}: expected an address that begins with https://")
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(to.name + ".part")
    with FileLock(part.with_name(part.name + ".lock")):
        if to.exists():
            return to
        try:
            _fetch(url, part, progress=progress, timeout_s=timeout_s)
        except (OSError, HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise TableError(
                f"cannot download {url}: {getattr(error, 'reason', error)}; check the connection and run again (the "
                f"bytes received so far are kept), or download it by other means and save it as {to}"
            ) from error
        if verify and sha256 and (found := sha256_of(part)) != sha256:
            part.unlink()
            raise TableError(
                f"{url} is not the expected file: its sha256 is {found}, expected {sha256}; the download was deleted. "
                f"If its publisher has renewed it, save it as {to} and pass verify=False"
            )
        part.replace(to)
    return to


def _fetch(url: str, part: Path, *, progress: bool, timeout_s: float) -> None:
    """Download the missing bytes of the file ``part``, or the whole file if the server does not support ranges."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - url is checked
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 - url is checked  # nosec B310
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        length = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if length != str(have):  # an outdated file, because its length is wrong
            part.unlink()
            _fetch(url, part, progress=progress, timeout_s=timeout_s)
        return
    with answer:
        resumes = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        have = have if resumes else 0
        left = answer.headers.get("Content-Length")
        total = None if left is None else have + int(left)
        with part.open("ab" if resumes else "wb") as file, _bar(part.stem, have, total, shown=progress) as advance:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                advance(len(chunk))
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


@contextmanager
def _bar(name: str, have: int, total: int | None, *, shown: bool) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(name, total=total, completed=have)
        yield lambda size: bar.update(task, advance=size)


NAMES = "names.json"  # a file with the names of the arrays in a folder of the cache


@dataclass(frozen=True)
class File:
    """A file of a data set: its path below the data folder, and its checksum and address if known."""

    path: str
    sha256: str = ""
    url: str = ""


def cache_folder() -> Path:
    """Return the folder of the cache for data sets; it may not exist yet."""
    named = os.environ.get("ANYPARTY_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "anyparty"


def folders(data_dir: Path | None) -> list[Path]:
    """Return the folders to search for the files of data sets, in order."""
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    named = os.environ.get("ANYPARTY_DATA")
    return ([Path(named).expanduser()] if named else []) + [cache_folder()]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, sha256: str) -> None:
    """Check that a file has the checksum ``sha256``; if ``sha256`` is empty, do nothing.

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
    """Return the arrays that ``make`` reads from files; if the cache has these arrays, read them from the cache.

    The cache identifies a file by its path, size and modification time. An error while writing to the cache is ignored.
    """
    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((make.__qualname__, stamps)).encode()).hexdigest()[:16]
    folder = cache_folder() / "unpacked" / f"{paths[0].name.partition('.')[0]}-{key}"
    if folder.is_dir():
        with suppress(OSError, ValueError, EOFError):
            names = json.loads((folder / NAMES).read_text(encoding="utf-8"))  # missing if a user deleted it
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
            fresh.rename(folder)  # fails if another process has just made this folder
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return arrays


def arrays(path: Path) -> dict[str, Array]:
    """Return all arrays of an .npz file by name; reject pickled arrays."""
    with path.open("rb") as opened, np.load(opened) as file:
        return {name: file[name] for name in file.files}


def npz(paths: Sequence[Path]) -> dict[str, Array]:
    """Return the arrays of an .npz file from a cache, because decompression may take seconds."""

    def make() -> dict[str, Array]:
        return arrays(paths[0])

    return unpacked(paths, make)


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
    """Read CIFAR's binary records: ``labels`` bytes, of which the last is the class, then 3 x 32 x 32 colour values.

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
        warnings.simplefilter("error")  # numpy only warns about cells that are not numbers
        try:
            cells = np.fromstring(text, sep=separator)
        except DeprecationWarning as warning:
            raise ValueError("a cell is not a number") from warning
    return cells.astype(np.float32).reshape(-1, columns)
