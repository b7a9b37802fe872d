"""Read and write files: a file is written atomically, and a path that leads out of its folder is rejected.

Files of runs and models may come from other people.  ``read_bytes`` therefore reads only regular files of limited size:
a named pipe in place of a file would block the process, and a huge file would fill its memory.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from polars.exceptions import ComputeError
from safetensors import SafetensorError

from anyparty.errors import ConfigError, ModelError, StorageError

_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}|%\w+%")  # a variable of a shell
PART = ".part"  # the suffix of incomplete files
MAX_TEXT_BYTES = 16 << 20  # maximum size of a file of text, such as a record
MAX_WEIGHTS_BYTES = 16 << 30  # maximum size of a file of weights


def user_path(named: Path | str) -> Path:
    """Return a path that a user gave, with ``~`` and ``~user`` replaced by the home folder.

    Raises:
        ConfigError: there is no such home folder, or no file can have this name.
    """
    try:
        path = Path(named).expanduser()
        if "\0" in str(path):
            raise ValueError("it has a NUL character")
        path.exists()
    except RuntimeError:
        raise ConfigError(f"{named}: there is no home folder for this user; write the whole path") from None
    except (OSError, ValueError) as error:  # the name is too long, or the folder above cannot be read
        reason = getattr(error, "strerror", None) or error
        shown = repr(str(named)[:60])[1:-1] + "..." * (len(str(named)) > 60)
        raise ConfigError(f"{shown}: this is not a path of a file or folder ({reason}); write another one") from None
    return path


def path_hint(path: Path) -> str:
    """Return a reason why a path that does not exist is wrong, such as a variable of a shell; "" if unknown."""
    if path.exists():
        return ""
    if os.sep == "/" and "\\" in str(path):
        return "\\ does not separate folders on this system; write /"
    if found := _VARIABLE.search(str(path)):
        return f"{found.group()} is not replaced by a value; write the folder itself"
    if re.search(r"(^|/)\w{2,}:/", str(path)):
        return "this is an address; give a path on this machine, and download a table first"
    return ""


def refuse_file(folder: Path) -> None:
    """Raise an error if a folder, or one of its parents, is a file, or if its name is a mistake.

    Raises:
        StorageError: the folder or a parent is a file, or its name has a variable or separators of another system.
    """
    if hint := path_hint(folder):
        raise StorageError(f"{folder}: {hint}")
    for each in (folder, *folder.parents):
        if each.is_file():
            raise StorageError(f"{each}: this is a file; name a folder")


def check_format(path: Path, found: object, known: range, what: str, wrote: str = "") -> None:
    """Check that this version of anyparty reads the format of a file.

    Args:
        path: the file.
        found: the number of its format.
        known: the numbers of the formats that this version reads.
        what: the kind of the file, for the error: "a record".
        wrote: the version of anyparty that wrote the file, if it is known.

    Raises:
        ModelError: the format is older or newer than those in ``known``, or is not a number.
    """
    if type(found) is int and found in known:
        return
    age = "unknown" if type(found) is not int else "older" if found < known[0] else "newer"
    reads = f"format {known[0]}" if len(known) == 1 else f"formats {known[0]} to {known[-1]}"
    advice = {
        "unknown": "the file was changed: copy the folder again",
        "older": f"use the version of anyparty that wrote it{wrote and f', {wrote}'}, or train again",
        "newer": f"install the version of anyparty that wrote it{wrote and f', {wrote}'}, or a later one",
    }
    raise ModelError(f"{path}: {what} in the {age} format {found!r}; this version reads {reads}; {advice[age]}")


def inside(folder: Path, relative: Path | str) -> Path:
    """Return the path ``folder / relative``, and check that it is inside the folder.

    Raises:
        ModelError: a symbolic link leads out of the folder.
    """
    path = folder / relative
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(f"{path}: a symbolic link leads out of the folder, to {path.resolve()}; put the file itself "
                         f"there")  # fmt: skip
    return path


def open_regular(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> BufferedReader:
    """Open a regular file of at most ``max_bytes`` bytes for reading.

    Raises:
        FileNotFoundError: the file does not exist.
        OSError: the file cannot be read, is not a regular file, or is larger.
    """
    # O_NONBLOCK: opening a named pipe would otherwise wait until another process writes to it
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    status = os.fstat(file.fileno())
    reason = "" if stat.S_ISREG(status.st_mode) else "it is not a regular file"
    if not reason and status.st_size > max_bytes:
        reason = f"it has {status.st_size:,} bytes, and the limit is {max_bytes:,}"
    if reason:
        file.close()
        raise OSError(errno.EINVAL, reason)
    return file


def read_bytes(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a regular file of at most ``max_bytes`` bytes.

    Raises:
        OSError: as ``open_regular``.
    """
    with open_regular(path, max_bytes) as file:
        return file.read(max_bytes)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN and infinity become null.

    Raises:
        StorageError: the file cannot be written.
    """
    with writing(path) as beside:
        beside.write_text(json.dumps(finite(value), indent=1, allow_nan=False), encoding="utf-8")


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by ``None``, also inside lists and mappings."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ModelError: the file does not exist, is not a JSON object of at most ``MAX_TEXT_BYTES`` bytes in a regular file,
            or is nested too deeply.
    """
    try:
        value = json.loads(read_bytes(path).decode())
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; is {path.parent} a saved model or a run's folder?") from None
    except RecursionError:
        raise ModelError(f"{path}: its values are nested too deeply for a file of anyparty; copy the folder "
                         f"again") from None  # fmt: skip
    except NotADirectoryError:
        raise ModelError(f"{path.parent} is a file; name the folder of a saved model or a run") from None
    except (ValueError, OSError) as error:  # not JSON, not UTF-8, or a number with too many digits
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path}: not readable as JSON ({reason}); copy the folder again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the lists of a mapping to tuples, which JSON stores as lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, and rename the temporary file to ``path`` at the end.

    The temporary name is unique, so that several writers do not collide. Only the user may read the file, because
    records contain a table's categories, and errors may contain ids.

    Raises:
        StorageError: the disk is full, or the folder is not writable.
    """
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch(mode=0o600)
        yield beside
        beside.chmod(0o600)
        beside.replace(path)
    except (OSError, SafetensorError, ComputeError) as error:  # polars raises ComputeError if the disk is full
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StorageError(
            f"{path}: cannot be written ({reason}); the previous version of the file is intact. Free some space, or "
            "make the folder writable, and start again (resume a training with --resume, or resume=True)"
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def take(path: Path, otherwise: str) -> FileLock:
    """Acquire an exclusive lock on a file without waiting, and return the lock.

    The method ``release`` frees the lock. If the process dies, the operating system frees the lock.

    Raises:
        ConfigError: another process holds the lock; the message is ``otherwise``.
        StorageError: the folder is not writable.
    """
    lock = FileLock(path, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(otherwise) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}); make "
                           "the folder writable") from None  # fmt: skip
    return lock


def sweep(folder: Path, names: Collection[str]) -> None:
    """Delete incomplete files that killed processes left in a folder: the ``.part`` files of the given names.

    No other process may be writing these files.
    """
    for left in folder.glob(f"*{PART}"):
        name, _, mark = left.stem.rpartition(".")
        if name in names and re.fullmatch("[0-9a-f]{8}", mark):
            with suppress(OSError):
                left.unlink()
