"""Writing a file in one move: whole or not at all, and a sentence where the disk will not have it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from polars.exceptions import ComputeError
from safetensors import SafetensorError

from anyparty.errors import ConfigError, StorageError

PART = ".part"  # ends the name of what is not whole yet


def refuse_file(folder: Path) -> None:
    """Refuse a folder that is a file, or would lie in one.

    Raises:
        StorageError: it is.
    """
    for each in (folder, *folder.parents):
        if each.is_file():
            raise StorageError(f"{each}: this is a file; name a folder")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give a place beside ``path`` to write to, and move it there at the end; what stood there stays until then.

    The place is this writer's alone, whatever else is written beside it, or to ``path`` itself; and nobody but its user
    may read what is written: records name a table's categories, and sentences of errors may name ids.

    Raises:
        StorageError: the disk is full, the folder cannot be written to.
    """
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch(mode=0o600)
        yield beside
        beside.chmod(0o600)
        beside.replace(path)
    except (OSError, SafetensorError, ComputeError) as error:  # polars says so of a full disk
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StorageError(
            f"{path}: cannot be written ({reason}); what was there before is whole. Make room, or let the folder be "
            f"written to, and start again (a training with --resume, or "
            f"resume=True)"
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def take(path: Path, otherwise: str) -> FileLock:
    """Take a lock for oneself, at once; ``release`` gives it back, and the system does where its process is killed.

    Raises:
        ConfigError: somebody has it; ``otherwise`` says so.
        StorageError: the folder cannot be written to.
    """
    lock = FileLock(path, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(otherwise) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}); let the folder be written "
                           f"to") from None  # fmt: skip
    return lock


def sweep(folder: Path, names: Collection[str]) -> None:
    """Take away what a killed process left half written of these files; nobody may be at writing them now."""
    for left in folder.glob(f"*{PART}"):
        name, _, mark = left.stem.rpartition(".")
        if name in names and re.fullmatch("[0-9a-f]{8}", mark):
            with suppress(OSError):
                left.unlink()
