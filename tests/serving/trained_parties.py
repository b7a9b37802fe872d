"""Three houses that trained together in one process, and their prediction service over channels in memory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyparty.config import Config
from anyparty.run.files import write_manifest
from anyparty.run.model import Model
from anyparty.serving.loaded_party import directory, open_kept
from anyparty.serving.local_backend import OUTSIDE, linked
from anyparty.serving.peer_group import Link
from anyparty.serving.predictor import Service
from anyparty.serving.responder import Answering
from anyparty.terms import Channel
from anyparty.wire import inproc
from anyparty.wire.ledger import Ledger
from tests.run.test_house import Site, run, settings, world

LONG_S = 20.0  # no test waits so long: what it waits for comes
SHORT_S = 0.05  # what a test waits for in vain


@dataclass(frozen=True)
class Houses:
    """Three parties' homes, after a training."""

    sites: dict[str, Site]

    @classmethod
    def trained(cls, home: Path, **method: object) -> Houses:
        """Train for two epochs."""
        sites = world(home, n=60)
        values = settings(epochs=2).model_dump(exclude_none=True)
        own = {"method": {"embedding": 8, **method}} if method else {}
        run(sites, Config.of(values | own))
        return cls(sites)

    def service(self) -> Service:
        """The bank's service, with nobody else there."""
        kept, table, alignment = open_kept(self.sites["bank"])
        return Service(kept, directory(alignment.known, kept.roster.K, table if alignment.fits(table) else None, table))

    def model(self, folder: Path) -> Model:
        """All parts put together, as one team would have them."""
        for name, site in self.sites.items():
            shutil.copytree(site.folder / "parties" / name, folder / "parties" / name)
        shutil.copy(self.sites["bank"].folder / "model.json", folder)
        write_manifest(folder, self.sites)
        return Model.load(folder)

    def ids(self, name: str) -> list[str]:
        """A party's ids, in the order of its table."""
        return [line.split(",")[0] for line in (self.sites[name].table or Path()).read_text().splitlines()[1:]]


@dataclass
class Door:
    """A channel whose party sends nothing of a tag while the door is shut."""

    channel: Channel
    tag: str = "embedding"
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def me(self):
        return self.channel.me

    async def send(self, to, tag, tensors):
        if tag == self.tag:
            await self.opened.wait()
        await self.channel.send(to, tag, tensors)

    async def recv(self, *what):
        return await self.channel.recv(*what)

    async def close(self):
        await self.channel.close()


def play(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, also with threads at work."""
    return asyncio.run(asyncio.wait_for(work, LONG_S))


@asynccontextmanager
async def serving(
    houses: Houses, service: Service, wrap: Mapping[str, Callable[[Channel], Channel]] | None = None,
    absent: tuple[str, ...] = (), channel: Callable[[Channel], Channel] = lambda channel: channel,
) -> AsyncIterator[Link]:  # fmt: skip
    """Let the other parties answer, each behind a channel that may be bad; wait until those have said hello."""
    hub = inproc.Hub(("bank", "shop", "clinic", OUTSIDE))
    parts = {}
    for name in ("shop", "clinic"):
        if name in absent:
            await hub.channel(name).close()
        else:
            kept, _, _ = open_kept(houses.sites[name])
            parts[name] = Answering(kept, (wrap or {}).get(name, lambda net: net)(hub.channel(name)))
    async with linked(service, channel(hub.channel("bank")), Ledger()) as link:
        tasks = {name: asyncio.create_task(part.run()) for name, part in parts.items()}
        async with asyncio.timeout(LONG_S):
            while link.met != {"shop", "clinic"}:
                await asyncio.sleep(0.001)
        try:
            yield link
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
