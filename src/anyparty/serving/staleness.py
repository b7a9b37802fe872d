"""Detect that the served model or alignment has been replaced on disk.

A training replaces the model.  A training or a prediction may replace the alignment at all parties.  The service, which
still has the former alignment, then refuses the other parties.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from anyparty.deployment.site.alignment_cache import ALIGNMENT

CHECK_EVERY_S = 30.0
FILES = ("model.json", "model.safetensors", "parties/*/model.safetensors", ALIGNMENT)
FileVersions = frozenset[tuple[str, int, int]]


class StalenessCheck:
    """Compare a model's folder with its earlier state, which is recorded when this object is created.

    Create the object before the model is loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = self._versions()

    def __call__(self) -> str:
        """Return a warning if the model on disk was replaced, else an empty string."""
        if self._versions() == self.before:
            return ""
        return f"{self.folder} now holds another model or alignment than the one served; restart the service"

    def _versions(self) -> FileVersions:
        found = set()
        for path in (path for name in FILES for path in self.folder.glob(name)):
            try:
                status = path.stat()
            except OSError:  # deleted in the meantime
                continue
            found.add((str(path), status.st_ino, status.st_mtime_ns))
        return frozenset(found)

    @asynccontextmanager
    async def watch(self, warn: Callable[[str], None]) -> AsyncIterator[None]:
        """Call ``warn`` once if the model is replaced while the body runs."""

        async def poll() -> None:
            while not (warning := self()):
                await asyncio.sleep(CHECK_EVERY_S)
            warn(warning)

        task = asyncio.create_task(poll())
        try:
            yield
        finally:
            task.cancel()
