"""Whether what is served still lies on disk: a training may have put another model there, and a training or a
prediction another alignment, which the other parties then have, too, and are refused for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from anyparty.run.kept_alignment import ALIGNMENT

LOOK_S = 30.0
FILES = ("model.json", "model.safetensors", "parties/*/model.safetensors", ALIGNMENT)
Stamp = frozenset[tuple[str, int, int]]


class Newer:
    """A model's folder, as it is now, when the service is about to read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = self._stamp()

    def __call__(self) -> str:
        """Return a sentence if the model there is another by now, else nothing."""
        if self._stamp() == self.before:
            return ""
        return f"{self.folder} holds another model or alignment by now than what is served; start the service again"

    def _stamp(self) -> Stamp:
        found = set()
        for path in (path for name in FILES for path in self.folder.glob(name)):
            try:
                at = path.stat()
            except OSError:  # taken away in the meantime
                continue
            found.add((str(path), at.st_ino, at.st_mtime_ns))
        return frozenset(found)

    @asynccontextmanager
    async def told(self, say: Callable[[str], None]) -> AsyncIterator[None]:
        """Say it once, when it happens, while the body is at work."""

        async def look() -> None:
            while not (sentence := self()):
                await asyncio.sleep(LOOK_S)
            say(sentence)

        task = asyncio.create_task(look())
        try:
            yield
        finally:
            task.cancel()
