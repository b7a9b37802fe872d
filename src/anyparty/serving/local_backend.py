"""Serve a run of ``anyparty train`` with all parties in one process.

This suits a team that has all parties' tables, and a trial of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from anyparty.alignment import join
from anyparty.alignment.alignment import Alignment
from anyparty.api.model import Model
from anyparty.api.runs import model_for_run, settings_of
from anyparty.artifacts.model_files import ModelSummary
from anyparty.artifacts.table_like import read_again
from anyparty.core.types import Channel
from anyparty.data.rows import row_keys
from anyparty.errors import ModelError, PartyLost, PredictionError, nearest
from anyparty.serving.loaded_party import LoadedParty, RowIndex
from anyparty.serving.peer_group import PeerGroup
from anyparty.serving.predictor import Predictor
from anyparty.serving.responder import Responder
from anyparty.tables.preprocessing import Features
from anyparty.transport import memory
from anyparty.transport.ledger import Ledger

OBSERVER = "the service"  # a member of the hub that never waits, so that waiting parties are not reported as a deadlock


def load_run(
    folder: Path, tables: Mapping[str, Any] | None = None, *, allow_code: Sequence[str] = ()
) -> tuple[Predictor, dict[str, LoadedParty]]:
    """Load a run: the predictor of the active party, and the other parties by name.

    Args:
        folder: the run's folder.
        tables: by party, a file name or data frame; by default the run's own tables.
        allow_code: modules that the run's settings may import; see ``model_for_run``.

    Raises:
        ModelError: there is no such run, or it was trained from data frames and ``tables`` is missing.
        PredictionError: a table belongs to a party that the model does not have.
        TableError: a table is invalid.

    """
    model = model_for_run(folder, device="cpu", allow_code=allow_code)
    about = ModelSummary.load(folder / "model.json")
    sources = dict(tables or {name: own.table for name, own in settings_of(folder).parties.items() if own.table})
    if not sources:
        raise ModelError(f"{folder}: the run was trained from data frames, not files: its tables are not on disk; "
                         "give tables, --table party=file or in Python {party: frame}")  # fmt: skip
    for name in sources:
        if name not in model.roster.names:
            raise PredictionError(f"the model has no party {name!r}{nearest(name, model.roster.names)}")
    return _load(model, about, sources)


def _load(model: Model, about: ModelSummary, sources: Mapping[str, Any]) -> tuple[Predictor, dict[str, LoadedParty]]:
    roster, active = model.roster, model.roster.active
    tables = {name: read_again(model.members[name], name, sources[name]) for name in roster.names if name in sources}
    alignment = join.align(list(tables.values()), apart=True, first=active if active in tables else None)
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
                me=name, method=model.method, about=about, state=member.state, features=features, number="",
                mark=about.parts.get(name, ""), id_normalize=member.id_normalize,
                ids=(pl.Series(dtype=pl.String) if table is None else table.ids) if name == active else None,
                position=torch.from_numpy(alignment.blocks.get(name, no_rows)),
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
    """Run the other parties in this process while the body runs, over channels in memory."""
    hub = memory.MemoryHub((*predictor.party.roster.names, OBSERVER))
    responders = {name: Responder(party, hub.channel(name)) for name, party in others.items()}
    async with peers_over(predictor, hub.channel(predictor.party.me), Ledger()):
        tasks = [asyncio.create_task(responder.run()) for responder in responders.values()]
        while not all(task.done() for task in tasks) and len(predictor.connected()) < len(responders):
            await asyncio.sleep(0)  # until the hello messages of all responders have arrived
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def peers_over(predictor: Predictor, channel: Channel, ledger: Ledger) -> AsyncIterator[PeerGroup]:
    """Connect a predictor to the parties behind a channel while the body runs."""
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
