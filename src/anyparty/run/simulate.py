"""Training with all parties in one process: each plays ``party.take_part`` over the in-process carrier."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from anyparty.align.alignment import Known
from anyparty.blocks.splits import TEST
from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.methods.method import Method
from anyparty.methods.table import settings_of
from anyparty.nets.mlp import Factory
from anyparty.nets.optimizer import Optimizer
from anyparty.run import agree, costs, own_method, saving
from anyparty.run.as_trained import as_trained
from anyparty.run.attendance import check_require
from anyparty.run.chosen import chosen
from anyparty.run.device import device_of
from anyparty.run.files import Member
from anyparty.run.model import Model
from anyparty.run.party import House, Outcome, take_part
from anyparty.run.progress import Bar
from anyparty.run.record import Record
from anyparty.run.rows import row_keys
from anyparty.run.trackers import trackers
from anyparty.run.watch import All, Watch, told
from anyparty.schedules.scheduled import Scheduled
from anyparty.schedules.table import scheduled
from anyparty.terms import Channel
from anyparty.wire import inproc
from anyparty.wire.guard import Guarded
from anyparty.wire.ledger import Ledger

if TYPE_CHECKING:
    from anyparty.run.federation import Federation


def check(config: Config) -> None:
    """Refuse a method, its parameters, a schedule, a device or a setting that cannot be, before any table is read.

    Raises:
        ConfigError: naming it.
    """
    scheduled(chosen(config), config)
    device_of(config.train.device)
    _check_extreme(config)


def _check_extreme(config: Config) -> None:
    if config.train.extreme == "drop":
        raise ConfigError("train.extreme = 'drop' goes on without a party, which is possible only where parties run on "
                          "their own machines; with all parties in one process use train.extreme = 'stop'")  # fmt: skip


def train(
    federation: Federation,
    config: Config,
    *,
    method: Method | None = None,
    encoders: Mapping[str, Factory] | None = None,
    optimizers: Mapping[str, Optimizer] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    progress: bool = False,
) -> Model:
    """Train with all parties in this process; see ``Federation.train``."""
    _check_extreme(config)
    functions = [key for key, value in config.method.parameters.items() if method is None and callable(value)]
    if functions:
        raise ConfigError(f"method: {functions[0]} is a function, which no settings can hold; give the method itself, "
                          f"train(method({config.method.name!r}, {functions[0]}=...))")  # fmt: skip
    plain = method or chosen(config)
    made = scheduled(plain, config)
    check_require(config.train.require, federation.roster.names)
    if isinstance(made, Scheduled):
        plain = made.split  # the schedule is training's
    observed, key = torch.from_numpy(federation.observed), row_keys(federation.alignment)
    kept = as_trained(config, method, plain, encoders or {}, optimizers or {})
    watches = All([])

    def house(name: str) -> House:
        own, leads = config.parties.get(name), name == federation.roster.active
        return House(
            name=name,
            table=federation.tables[name],
            known=Known(
                position=federation.alignment.position[name],
                observed=observed if leads else None,
                key=key if leads else None,
            ),
            encoder=(encoders or {}).get(name) or config.encoder_of(name),
            optimizer=(optimizers or {}).get(name) or config.optimizer_of(name),
            scale=own is None or own.scale,
            folder=None if folder is None else folder / "parties" / name / "checkpoints",
            watch=watches if leads else Watch(),
        )

    part = partial(take_part, roster=federation.roster, config=config, method=made, resume=resume)
    parts = {name: partial(part, house=house(name)) for name in federation.roster.names}
    declared = (*made.can.messages, *agree.MESSAGES)
    # What settings may be refused for is behind us: the folder is held from here on, and let go by record.open() alone.
    own = plain if settings_of(plain) is None else None
    about = None if own is None else own_method.described(plain)  # as given, whatever training changes
    record = None if folder is None else Record.begin(
        folder, federation, kept, resume=resume, own=own, can=made.can
    )  # fmt: skip
    ledger = Ledger() if record is None else record.ledger

    def wrap(channel: Channel) -> Channel:
        return Guarded(channel, federation.roster, declared, ledger=ledger)

    with nullcontext() if record is None else record.open():
        bar = Bar() if progress else None
        watches.each.extend(All([each for each in (record, bar, watch) if each is not None]).each)
        watches.each.extend(trackers(config, folder, resume=resume))
        with told(watches, kept.model_dump(mode="json", exclude_none=True)) as scores:
            watches.on_aligned(federation.overlap, federation.predicted())
            try:
                outcomes = inproc.play(parts, wrap)
            finally:
                if bar is not None:
                    bar.close()
            model = _model(federation, kept, plain, about, outcomes, ledger)
            model.costs = costs.of(made, outcomes, config.train.batch_size, ledger)
            if record is not None:
                saving.write(record.folder, model)
                scores["evaluation"] = model.evaluate().to_json() if model.test_rows else None
                record.finish(model, scores["evaluation"])
    return model


def _model(
    federation: Federation,
    config: Config,
    method: Method,
    own: dict[str, Any] | None,
    outcomes: Mapping[str, Outcome],
    ledger: Ledger,
) -> Model:
    def member(name: str) -> Member:
        own, label = config.parties.get(name), federation.tables[name].label
        return Member(
            state=outcomes[name].trained.state,
            prepare=outcomes[name].prepare,
            id=(own and own.id) or config.federation.id,
            label=None if label is None else label.name,
            max_cell_bytes=config.federation.max_cell_bytes,
        )

    lead = outcomes[federation.roster.active]
    assert lead.seat.task is not None
    return Model(
        method=method,
        named=settings_of(method, whole=True),
        own=own,
        roster=federation.roster,
        task=lead.seat.task,
        members={name: member(name) for name in federation.roster.names},
        seed=config.train.seed,
        history=lead.trained.history,
        best_epoch=lead.trained.best_epoch,
        ledger=ledger,
        held_out=(
            {name: outcome.rows for name, outcome in outcomes.items()},
            federation.alignment,
            torch.from_numpy(np.flatnonzero(lead.use == TEST)),
        ),
    )
