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
    """Call ``write`` every ``EVERY_S`` seconds while the body runs, and when it ends, also if it fails.

    Raises:
        StorageError: the last ``write`` failed after a body without an error.  All other failures are only logged.
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
