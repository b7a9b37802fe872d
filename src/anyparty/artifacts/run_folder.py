"""Lock a folder while a run writes to it, and save the run's state at regular intervals.

Without the lock, two runs in one folder would overwrite each other's record, checkpoints and model. The operating
system locks the file ``.lock`` in the folder, and releases the lock at once if the process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from filelock import FileLock

from anyparty.core import storage
from anyparty.core.storage import refuse_file, sweep
from anyparty.errors import ConfigError, StorageError

LOCK = ".lock"
LOCK_HELD = "another run is at work in this folder"
ID_HASHES = "trained.safetensors"  # earlier versions wrote this file; it is deleted
WAIT_S = 20.0  # seconds to wait for the lock, because a restarted party's old process may still be ending
LOOK_S = 0.2  # seconds between two attempts to lock the folder
WRITTEN = {  # only the process with the lock writes these files
    "record.json", "config.toml", "model.json", "manifest.json", "party.json", "model.safetensors", "run.txt",
    "alignment.safetensors", "alignment-new.safetensors", "secret", "predictions.json", "predictions.parquet",
    "predicting.json",
}  # fmt: skip


def take(folder: Path) -> FileLock:
    """Lock a run's folder without waiting, and return the lock, whose ``release`` unlocks the folder.

    Unfinished files that a killed process left in the folder are deleted.

    Raises:
        ConfigError: another run is in progress in the folder.
        StorageError: the folder cannot be written to, or is a file.
    """
    refuse_file(folder)
    lock = storage.take(folder / LOCK, f"{folder}: {LOCK_HELD}; wait for its end, stop it, "
                                       f"or name another folder")  # fmt: skip
    for place in (folder, folder / "checkpoints", *folder.glob("parties/*"), *folder.glob("parties/*/checkpoints")):
        sweep(place, WRITTEN)
    return lock


@asynccontextmanager
async def alone(folder: Path, wait_s: float | None = None) -> AsyncIterator[None]:
    """Lock a run's folder during an ``async with`` block.

    If another run is in progress in the folder, wait until it ends, for at most ``wait_s`` (by default ``WAIT_S``)
    seconds.

    Raises:
        ConfigError: another run is still in progress after ``wait_s`` seconds.
        StorageError: the folder cannot be written to.
    """
    end = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    while True:
        try:
            lock = take(folder)
            break
        except ConfigError:
            if time.monotonic() >= end:
                raise
        await asyncio.sleep(LOOK_S)
    try:
        yield
    finally:
        lock.release()


EVERY_S = 30.0
log = logging.getLogger(__name__)


@asynccontextmanager
async def meanwhile(write: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``write`` every ``EVERY_S`` seconds during an ``async with`` block, and once when the block ends or fails.

    Raises:
        StorageError: the block ended without an error, but the last call of ``write`` failed. All other failures of
            ``write`` are only logged.
    """

    async def again() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            _try(write)

    task = asyncio.create_task(again())
    try:
        yield
    except BaseException:
        _try(write)
        raise
    else:
        write()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _try(write: Callable[[], None]) -> None:
    try:
        write()
    except StorageError as error:
        log.warning("%s", error)
