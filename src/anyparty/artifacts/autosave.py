"""Save state regularly while a task runs, so that a crash loses little of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anyparty.errors import StorageError

EVERY_S = 30.0
log = logging.getLogger(__name__)


@asynccontextmanager
async def meanwhile(write: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``write`` every ``EVERY_S`` seconds while the body runs, and once when the body ends or fails.

    Raises:
        StorageError: the body did not fail, but the last ``write`` did.  Other failures of ``write`` are only logged.
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
