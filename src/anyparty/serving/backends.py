"""The two backends of the prediction service: a run with all parties in one process, or a federation.

A run in one process is for a team that has the tables of all parties, and for trying out the service.  In a federation,
the service runs at the active party.

A training replaces the model.  A training or a prediction may replace the alignment at all parties.  A running service
still uses the former alignment, and refuses parties that have the new alignment.  ``StalenessCheck`` warns
if the model or the alignment was replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w
import torch

from anyparty.alignment.alignment import Alignment, align
from anyparty.api.model import Model
from anyparty.api.runs import check_named_tables, model_for_run, settings_of
from anyparty.artifacts.model_files import ModelSummary, read_again
from anyparty.config import Config
from anyparty.core.types import Channel
from anyparty.deployment.flare.admin import read_federation
from anyparty.deployment.flare.site_config import FILE, SiteConfig
from anyparty.deployment.site import alignment_cache
from anyparty.deployment.site.alignment_cache import ALIGNMENT
from anyparty.deployment.site.site_prediction import StoredPart
from anyparty.errors import ConfigError, ModelError, PartyLost, PredictionError, nearest
from anyparty.problem.rows import row_keys
from anyparty.serving.http_app import ServingBackend
from anyparty.serving.job_manager import JobDelays, JobManager
from anyparty.serving.loaded_party import LoadedParty, RowIndex, build_index, load_party
from anyparty.serving.peer_group import PeerGroup
from anyparty.serving.predictor import Predictor
from anyparty.serving.responder import Responder
from anyparty.tables import readers
from anyparty.tables.preprocessing import Features
from anyparty.tables.table import Table
from anyparty.transport import memory
from anyparty.transport.ledger import Ledger

NO_FEDERATION = (
    "this folder has no administrator's kit, so no other party is asked; serve the federation's whole folder"
)


@dataclass(frozen=True)
class KitLocation:
    """The active party's own settings, and the federation's folder (``None`` if no job can be submitted)."""

    site: SiteConfig
    folder: Path | None

    @classmethod
    def of(cls, path: Path) -> KitLocation:
        """Return the location of the active party's kit, which is the folder from which the party starts.

        Raises:
            ConfigError: ``path`` is neither a federation's folder nor a kit, or it is a passive party's kit.
        """
        if (path / "federation.toml").exists():
            kit = path / "kits" / str(read_federation(path)["active"])
        elif (path / "local" / FILE).exists():
            kit = path
        else:
            raise ConfigError(f"{path} is neither a run ('anyparty train' makes one), nor a federation's folder "
                              f"('anyparty federate init'), nor a party's kit")  # fmt: skip
        kit = kit.resolve()
        site, folder = SiteConfig.read(kit), kit.parent.parent
        if site.party != site.active:
            raise ConfigError(f"{path} is the kit of {site.party!r}; predictions are served at the active party, "
                              f"{site.active!r}. Here, only run 'anyparty party start'")  # fmt: skip
        is_federation = (folder / "federation.toml").exists() and (folder / "kits" / "admin").exists()
        return cls(site, folder if is_federation else None)


def open_federation(
    path: Path, table: Any = None, config: Config | None = None, delays: JobDelays | None = None
) -> tuple[ServingBackend, str]:
    """Load a federation's model at the active party; return the backend and a warning, which may be empty.

    Args:
        path: the federation's folder, or the active party's kit: the folder from which that party starts.
        table: the active party's current table; by default the table in the party's settings.
        config: settings of the training, if its method or encoders are user code.
        delays: delays and timeouts of jobs.

    Raises:
        ConfigError: ``path`` is neither a federation's folder nor a kit, or it is a passive party's kit.
        ModelError: the active party has no trained model.
        TableError: the table is invalid.

    """
    location = KitLocation.of(path)
    site = location.site
    party, current, alignment = load_party(site, config, table)
    aligned, warning = _aligned_table(site, config, alignment, current, own=table is None)
    predictor = Predictor(party, build_index(alignment.share, party.roster.K, aligned, current, party.id_normalize))
    if location.folder is None:
        backend = ServingBackend(predictor=predictor, running=nullcontext, trouble=lambda: NO_FEDERATION)
        return backend, warning or NO_FEDERATION
    jobs = JobManager(location.folder, site, _job_settings(site, config), predictor, delays=delays or JobDelays())
    backend = ServingBackend(
        predictor=predictor, running=jobs.running, trouble=lambda: jobs.trouble, check=jobs.ipc.check
    )
    return backend, warning


def _aligned_table(
    site: SiteConfig, config: Config | None, alignment: alignment_cache.StoredAlignment, current: Table, *, own: bool
) -> tuple[Table | None, str]:
    """Find the table that was aligned; return this table and an empty text, or ``None`` and a warning.

    ``current`` is examined first. If ``current`` is not the table from the settings (``own`` is False), the table from
    the settings is examined next.
    """
    effect = "so every id is answered from the active party's block alone"
    if alignment.fits(current):
        return current, ""
    if not own:
        if site.table is None or not readers.exists(site.table):
            return None, f"{site.party}: the table that was aligned does not exist, {effect}; name it in local/{FILE}"
        current = read_again(StoredPart.of(site, config).member, site.party, site.table, alignment.kinds)
        if alignment.fits(current):
            return current, ""
    return None, (f"{site.party}: {current.source} is not the table that was aligned (a row was changed or removed), "
                  f"{effect}; restore that table and give new rows with --table, or train again")  # fmt: skip


def _job_settings(site: SiteConfig, config: Config | None) -> str:
    """Return a job's settings as TOML: ``config``, or only the parties' names if ``config`` is ``None``."""
    if config is not None:
        return config.to_toml()
    return tomli_w.dumps({"federation": {"active": site.active}, "parties": {name: {} for name in site.parties}})


CHECK_EVERY_S = 30.0
FILES = ("model.json", "model.safetensors", "parties/*/model.safetensors", ALIGNMENT)
FileVersions = frozenset[tuple[str, int, int]]


class StalenessCheck:
    """A check whether a model's files have been replaced since this object was created.

    The object must be created before the model is loaded.
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
            except OSError:  # the file was deleted after ``glob`` had found it
                continue
            found.add((str(path), status.st_ino, status.st_mtime_ns))
        return frozenset(found)

    @asynccontextmanager
    async def watch(self, warn: Callable[[str], None]) -> AsyncIterator[None]:
        """Call ``warn`` once if the model is replaced during the ``async with`` block."""

        async def poll() -> None:
            while not (warning := self()):
                await asyncio.sleep(CHECK_EVERY_S)
            warn(warning)

        task = asyncio.create_task(poll())
        try:
            yield
        finally:
            task.cancel()


OBSERVER = "the service"  # a member that never waits, so that the hub never reports a deadlock


def load_run(
    folder: Path, tables: Mapping[str, Any] | None = None, *, allow_code: Sequence[str] = ()
) -> tuple[Predictor, dict[str, LoadedParty]]:
    """Load a run; return the predictor of the active party, and the other parties by name.

    Args:
        folder: the run's folder.
        tables: for each party, a file name or data frame; by default the tables in the run's settings.
        allow_code: modules that the run's settings may import, such as ``("my_methods",)``.

    Raises:
        ModelError: there is no such run, or it was trained from data frames and ``tables`` is missing.
        PredictionError: a table belongs to a party that the model does not have.
        TableError: a table is invalid.

    """
    model = model_for_run(folder, device="cpu", allow_code=allow_code)
    summary = ModelSummary.load(folder / "model.json")
    sources = dict(tables or {})
    if not sources:
        own = check_named_tables(folder, settings_of(folder)).parties
        sources = {name: party.table for name, party in own.items() if party.table}
    if not sources:
        raise ModelError(f"{folder}: the run was trained from data frames, not files: its tables are not on disk; "
                         "give tables, --table party=file or in Python {party: frame}")  # fmt: skip
    for name in sources:
        if name not in model.roster.names:
            raise PredictionError(f"the model has no party {name!r}{nearest(name, model.roster.names)}")
    return _load(model, summary, sources)


def _load(model: Model, summary: ModelSummary, sources: Mapping[str, Any]) -> tuple[Predictor, dict[str, LoadedParty]]:
    roster, active = model.roster, model.roster.active
    tables = {name: read_again(model.members[name], name, sources[name]) for name in roster.names if name in sources}
    alignment = align(list(tables.values()), apart=True, first=active if active in tables else None)
    assert alignment.ids is not None
    no_rows = np.full(alignment.n, -1)
    parties = {}
    for name in roster.names:
        member, table = model.members[name], tables.get(name)
        features = None
        if member.prepare is not None:
            empty = Features(np.empty((0, member.prepare.width), np.float32))
            features = empty if table is None else member.prepare.features(table)
        if table is not None or name == active:
            parties[name] = LoadedParty(
                me=name, method=model.method, summary=summary, state=member.state, features=features, number="",
                weights_hash=summary.parts.get(name, ""), id_normalize=member.id_normalize,
                ids=(pl.Series(dtype=pl.String) if table is None else table.ids) if name == active else None,
                position=torch.from_numpy(alignment.blocks.get(name, no_rows)),
                remarks=None if member.prepare is None or table is None else member.prepare.row_remarks(table),
            )  # fmt: skip
    lead = parties.pop(active)
    return Predictor(lead, _index(alignment, lead)), parties


def _index(alignment: Alignment, lead: LoadedParty) -> RowIndex:
    n, no_rows = alignment.n, np.full(alignment.n, -1)
    blocks = [alignment.blocks.get(name, no_rows) for name in lead.roster.blocks]
    return RowIndex(
        places={name: place for place, name in enumerate(alignment.ids.cast(pl.String))},  # type: ignore[union-attr]
        id_columns=alignment.identities(np.arange(n)),  # type: ignore[arg-type]
        own=lead.position, aligned=torch.arange(n), key=row_keys(alignment),
        unknown="no party here has a row with this id", normalize=lead.id_normalize,
        observed=torch.from_numpy(np.stack([each >= 0 for each in blocks], axis=1)),
    )  # fmt: skip


@asynccontextmanager
async def in_process_peers(predictor: Predictor, others: Mapping[str, LoadedParty]) -> AsyncIterator[None]:
    """Run the other parties in this process, over channels in memory, during an ``async with`` block."""
    hub = memory.MemoryHub((*predictor.party.roster.names, OBSERVER))
    responders = {name: Responder(party, hub.channel(name)) for name, party in others.items()}
    async with peers_over(predictor, hub.channel(predictor.party.me), Ledger()):
        tasks = [asyncio.create_task(responder.run()) for responder in responders.values()]
        while not all(task.done() for task in tasks) and len(predictor.connected()) < len(responders):
            await asyncio.sleep(0)  # let all responders send their hello messages
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def peers_over(predictor: Predictor, channel: Channel, ledger: Ledger) -> AsyncIterator[PeerGroup]:
    """Connect a predictor to the parties behind a channel during an ``async with`` block."""
    peers = PeerGroup(predictor.party, channel, ledger, predictor.message_arrived)
    predictor.peer_groups.append(peers)
    running = asyncio.create_task(peers.run())
    try:
        yield peers
    finally:
        predictor.peer_groups.remove(peers)
        with contextlib.suppress(PartyLost):
            await peers.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
