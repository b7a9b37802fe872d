"""Training with all parties in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

import anyparty
from anyparty.blocks.blocks import Rows
from anyparty.blocks.splits import TEST, TRAIN, VALIDATION
from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.methods.method import Method, Seat
from anyparty.methods.table import method as method_by_name
from anyparty.nets.mlp import MLP, Factory
from anyparty.nets.optimizer import Optimizer
from anyparty.run import agree
from anyparty.run.checkpoint import Checkpoints
from anyparty.run.model import Member, Model
from anyparty.run.progress import Bar
from anyparty.run.record import Record
from anyparty.run.rows import assemble
from anyparty.run.train import Part, Trained, play
from anyparty.run.watch import All, Watch
from anyparty.tables.labels import encode
from anyparty.tables.prepare import Prepare
from anyparty.terms import Channel, Task
from anyparty.wire import inproc
from anyparty.wire.guard import Guarded
from anyparty.wire.ledger import Counted, Ledger

if TYPE_CHECKING:
    from anyparty.run.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A federation ready to train: rows split, tables prepared, seats taken."""

    use: NDArray[np.int8]
    task: Task
    method: Method
    prepares: Mapping[str, Prepare]
    rows: Mapping[str, Rows]
    seats: Mapping[str, Seat]


def train(
    federation: Federation,
    config: Config,
    *,
    method: Method | None = None,
    encoders: Mapping[str, MLP | Factory] | None = None,
    optimizers: Mapping[str, Optimizer] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    progress: bool = False,
) -> Model:
    """Train with all parties in this process; see ``Federation.train``."""
    ready = prepare(federation, config, method, encoders or {}, optimizers or {})
    record = None if folder is None else Record.begin(folder, federation, config, resume=resume)
    ledger = Ledger() if record is None else record.ledger
    watches = [each for each in (watch, Bar() if progress else None, record) if each is not None]
    parts = {
        name: _part(name, ready, config, folder, resume=resume, watch=All(watches)) for name in federation.roster.names
    }
    wrap = partial(_wrapped, ready=ready, ledger=ledger)
    trained = inproc.play({name: partial(play, part) for name, part in parts.items()}, wrap)
    model = _model(federation, config, ready, trained, ledger, named=method is None)
    if record is not None:
        model.save(record.folder)
        record.finish(model)
    return model


def prepare(
    federation: Federation,
    config: Config,
    method: Method | None,
    encoders: Mapping[str, MLP | Factory],
    optimizers: Mapping[str, Optimizer],
) -> Prepared:
    """Split the rows, fit each party's preparation on its own training rows, give everybody a seat."""
    roster, alignment, settings = federation.roster, federation.alignment, config.train
    made = method or method_by_name(config.method.name, **config.method.parameters)
    use = federation.split(settings)
    task = federation.task(use)
    settings.metric_for(task)  # a metric that does not fit is named now, not after the first epoch
    prepares, features = {}, {}
    for name in roster.blocks:
        at = alignment.position[name]
        own = config.parties.get(name)
        scale = own is None or own.scale
        prepares[name] = Prepare.fit(federation.tables[name], at[(at >= 0) & (use == TRAIN)], scale=scale)
        features[name] = prepares[name].apply(federation.tables[name])
    device = device_of(settings.device)
    labels = {name: encode(federation.label(name), task, name) for name in roster.labelers}
    seats = {
        name: Seat(
            me=name,
            roster=roster,
            task=task if name in roster.labelers else None,
            inputs=prepares[name].width if name in prepares else 0,
            encoder=encoders.get(name) or config.encoder_of(name),
            optimizer=optimizers.get(name) or config.optimizer_of(name),
            device=device,
        )
        for name in roster.names
    }
    rows = assemble(alignment, roster, features, labels, device)
    return Prepared(use=use, task=task, method=made, prepares=prepares, rows=rows, seats=seats)


def _part(name: str, ready: Prepared, config: Config, folder: Path | None, *, resume: bool, watch: Watch) -> Part:
    seat = ready.seats[name]
    lead = name == seat.roster.active
    return Part(
        seat=seat,
        method=ready.method,
        rows=ready.rows[name],
        settings=config.train,
        agreed={
            "version": anyparty.__version__,
            "method": repr(ready.method),
            "train": config.train.model_dump_json(exclude={"device"}),
            "roster": repr(seat.roster),
            "number of rows": str(ready.rows[name].n),
        },
        validation=torch.from_numpy(np.flatnonzero(ready.use == VALIDATION)) if lead else None,
        training=torch.from_numpy(ready.use == TRAIN) if lead else None,
        checkpoints=None if folder is None else Checkpoints(folder / "parties" / name / "checkpoints"),
        resume=resume,
        watch=watch if lead else Watch(),
    )


def _wrapped(channel: Channel, *, ready: Prepared, ledger: Ledger) -> Channel:
    roster = ready.seats[channel.me].roster
    return Guarded(Counted(channel, ledger), roster, (*ready.method.can.messages, *agree.MESSAGES))


def _model(
    federation: Federation,
    config: Config,
    ready: Prepared,
    trained: Mapping[str, Trained],
    ledger: Ledger,
    *,
    named: bool,
) -> Model:
    def member(name: str) -> Member:
        own = config.parties.get(name)
        label = federation.tables[name].label
        return Member(
            state=trained[name].state,
            prepare=ready.prepares.get(name),
            id=(own and own.id) or config.federation.id,
            label=None if label is None else label.name,
        )

    lead = trained[federation.roster.active]
    tests = torch.from_numpy(np.flatnonzero(ready.use == TEST))
    return Model(
        method=ready.method,
        named={"name": config.method.name, **config.method.parameters} if named else None,
        roster=federation.roster,
        task=ready.task,
        members={name: member(name) for name in federation.roster.names},
        seed=config.train.seed,
        history=lead.history,
        best_epoch=lead.best_epoch,
        ledger=ledger,
        held_out=(dict(ready.rows), federation.alignment, tests),
    )


def device_of(name: str) -> torch.device:
    """Return the torch device ``name``.

    Raises:
        ConfigError: this machine has none such.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"train.device: {name!r} cannot be used here ({str(error).splitlines()[0]}); try 'cpu'"
        ) from None
    return device
