"""A run folder of ``anyparty train``, served with all parties in one process: one team's own data, or a first look."""

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

from anyparty.align import plain
from anyparty.align.alignment import Alignment
from anyparty.errors import ModelError, PartyLost, PredictionError, nearest
from anyparty.run.files import About
from anyparty.run.model import Model
from anyparty.run.read_again import read_again
from anyparty.run.rows import row_keys
from anyparty.run.runs import model_for_run, settings_of
from anyparty.serving.loaded_party import Directory, Kept
from anyparty.serving.peer_group import Link
from anyparty.serving.predictor import Service
from anyparty.serving.responder import Answering
from anyparty.tables.prepare import Features
from anyparty.terms import Channel
from anyparty.wire import inproc
from anyparty.wire.ledger import Ledger

OUTSIDE = "the service"  # never waits in the hub: that all parties wait is no deadlock here


def open_run(
    folder: Path, tables: Mapping[str, Any] | None = None, *, allow_code: Sequence[str] = ()
) -> tuple[Service, dict[str, Kept]]:
    """Return the service of a run, and the other parties, from the run's own tables or these.

    ``allow_code`` names modules that the run's settings may load: see ``model_for_run``.

    Raises:
        ModelError: no such run, or one that was trained from data frames without ``tables``.
        PredictionError: a table of a party that the model does not know.
        TableError: a table cannot be used.
    """
    model = model_for_run(folder, device="cpu", allow_code=allow_code)
    about = About.load(folder / "model.json")
    sources = dict(tables or {name: own.table for name, own in settings_of(folder).parties.items() if own.table})
    if not sources:
        raise ModelError(f"{folder}: the run was trained from data frames, not files: its tables are not on disk; "
                         "give tables, --table party=file or in Python {party: frame}, where one may")  # fmt: skip
    for name in sources:
        if name not in model.roster.names:
            raise PredictionError(f"the model has no party {name!r}{nearest(name, model.roster.names)}")
    return _open(model, about, sources)


def _open(model: Model, about: About, sources: Mapping[str, Any]) -> tuple[Service, dict[str, Kept]]:
    roster, active = model.roster, model.roster.active
    read = {name: read_again(model.members[name], name, sources[name]) for name in roster.names if name in sources}
    alignment = plain.align(list(read.values()), apart=True)
    assert alignment.ids is not None
    nobody = np.full(alignment.n, -1)
    kept = {}
    for name in roster.names:
        member, table = model.members[name], read.get(name)
        features = None
        if member.prepare is not None:
            empty = Features(np.empty((0, member.prepare.width), np.float32))
            features = empty if table is None else member.prepare.features(table)
        if table is not None or name == active:
            kept[name] = Kept(
                me=name, method=model.method, about=about, state=member.state, features=features, number="",
                mark=about.parts.get(name, ""),
                ids=(pl.Series(dtype=pl.String) if table is None else table.ids) if name == active else None,
                position=torch.from_numpy(alignment.blocks.get(name, nobody)),
            )  # fmt: skip
    lead = kept.pop(active)
    return Service(lead, _directory(alignment, lead)), kept


def _directory(alignment: Alignment, lead: Kept) -> Directory:
    n, nobody = alignment.n, np.full(alignment.n, -1)
    blocks = [alignment.blocks.get(name, nobody) for name in lead.roster.blocks]
    return Directory(
        ids={name: place for place, name in enumerate(alignment.ids.cast(pl.String))},  # type: ignore[union-attr]
        own=lead.position, aligned=torch.arange(n), key=row_keys(alignment),
        unknown="no party here has a row with this id",
        observed=torch.from_numpy(np.stack([each >= 0 for each in blocks], axis=1)),
    )  # fmt: skip


@asynccontextmanager
async def answering(service: Service, others: Mapping[str, Kept]) -> AsyncIterator[None]:
    """Let the other parties answer in this process, over channels in memory."""
    hub = inproc.Hub((*service.kept.roster.names, OUTSIDE))
    parts = {name: Answering(kept, hub.channel(name)) for name, kept in others.items()}
    async with linked(service, hub.channel(service.kept.me), Ledger()):
        tasks = [asyncio.create_task(part.run()) for part in parts.values()]
        while not all(task.done() for task in tasks) and len(service.there()) < len(parts):
            await asyncio.sleep(0)  # their hellos are on the way
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def linked(service: Service, net: Channel, ledger: Ledger) -> AsyncIterator[Link]:
    """Give a service a way to the others for a while."""
    link = Link(service.kept, net, ledger, service.heard)
    service.links.append(link)
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        service.links.remove(link)
        with contextlib.suppress(PartyLost):
            await link.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
