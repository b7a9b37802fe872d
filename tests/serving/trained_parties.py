"""Three parties that were trained together in one process, and their prediction service over channels in memory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyparty.api.model import Model
from anyparty.artifacts.model_files import write_manifest
from anyparty.config import Config
from anyparty.core.types import Channel, ChannelWrapper
from anyparty.serving.backends import OBSERVER, peers_over
from anyparty.serving.loaded_party import build_index, load_party
from anyparty.serving.peer_group import PeerGroup
from anyparty.serving.predictor import Predictor
from anyparty.serving.responder import Responder
from anyparty.transport import memory
from anyparty.transport.ledger import Ledger
from tests.deployment.test_site_training import Site, run, settings, world

LONG_S = 20.0  # far longer than any test waits for something that happens
SHORT_S = 0.05  # how long a test waits for something that does not happen


@dataclass(frozen=True)
class TrainedParties:
    """The folders of three parties after a training."""

    sites: dict[str, Site]

    @classmethod
    def train(cls, home: Path, **method: object) -> TrainedParties:
        """Train for two epochs."""
        sites = world(home, n=60)
        values = settings(epochs=2).model_dump(exclude_none=True)
        run(sites, Config.of(values | {"method": {"name": "laser", "embedding": 8, **method}}))
        return cls(sites)

    def predictor(self) -> Predictor:
        """Load the bank's predictor, without other parties."""
        party, table, alignment = load_party(self.sites["bank"])
        aligned = table if alignment.fits(table) else None
        return Predictor(party, build_index(alignment.share, party.roster.K, aligned, table))

    def model(self, folder: Path) -> Model:
        """Combine all parts of the model."""
        for name, site in self.sites.items():
            shutil.copytree(site.folder / "parties" / name, folder / "parties" / name)
        shutil.copy(self.sites["bank"].folder / "model.json", folder)
        write_manifest(folder, self.sites)
        return Model.load(folder)

    def ids(self, name: str) -> list[str]:
        """Return a party's ids, in the order of its table."""
        return [line.split(",")[0] for line in (self.sites[name].table or Path()).read_text().splitlines()[1:]]


@dataclass
class GatedChannel(ChannelWrapper):
    """A channel that holds back messages of one tag until it is opened."""

    tag: str = "embedding"
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, to, tag, tensors):
        if tag == self.tag:
            await self.opened.wait()
        return await super().send(to, tag, tensors)


def play(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, also one that uses threads."""
    return asyncio.run(asyncio.wait_for(work, LONG_S))


@asynccontextmanager
async def responding(
    parties: TrainedParties, predictor: Predictor, wrap: Mapping[str, Callable[[Channel], Channel]] | None = None,
    absent: tuple[str, ...] = (), channel: Callable[[Channel], Channel] = lambda channel: channel,
) -> AsyncIterator[PeerGroup]:  # fmt: skip
    """Let the other parties respond, each over a channel that ``wrap`` may spoil; wait for their hellos."""
    hub = memory.MemoryHub(("bank", "shop", "clinic", OBSERVER))
    responders = {}
    for name in ("shop", "clinic"):
        if name in absent:
            await hub.channel(name).close()
        else:
            party, _, _ = load_party(parties.sites[name])
            responders[name] = Responder(party, (wrap or {}).get(name, lambda channel: channel)(hub.channel(name)))
    async with peers_over(predictor, channel(hub.channel("bank")), Ledger()) as peers:
        tasks = {name: asyncio.create_task(responder.run()) for name, responder in responders.items()}
        async with asyncio.timeout(LONG_S):
            while peers.settled != {"shop", "clinic"}:
                await asyncio.sleep(0.001)
        try:
            yield peers
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
