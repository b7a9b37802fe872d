"""Downloads with progress: an interrupted one resumes, and a file with a wrong checksum is rejected.

pooch was considered: it cannot resume a download, so this code would remain as its downloader, with five more packages.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from anyparty.errors import TableError
from anyparty.tables.datasets.files import sha256_of

CHUNK = 1 << 18
TIMEOUT_S = 30.0


def download(
    url: str, to: Path, *, sha256: str = "", progress: bool = True, timeout_s: float = TIMEOUT_S, verify: bool = True
) -> Path:
    """Download a file; it appears at ``to`` only when it is complete and its checksum is right.

    The bytes received so far are in ``to`` + ".part"; the next call requests the rest. Other processes wait while one
    downloads the same file.

    Args:
        url: address, with https:// or http://.
        to: path of the file; an existing file is not downloaded again.
        sha256: expected checksum; empty accepts any file.
        progress: show a progress bar on stderr.
        timeout_s: time-out of the connection.
        verify: compare the checksum.

    Raises:
        TableError: no connection, an error of the server, an incomplete or a wrong file.

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
    """Complete ``part``, starting from its present length."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - checked
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 - https, checked  # nosec B310
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        length = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if length != str(have):  # a part of the full length is complete; a longer one is another file
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
