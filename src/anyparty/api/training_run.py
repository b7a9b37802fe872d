"""Train with all parties in one process, in the same steps as at a party's own site: prepare, train, save.

1. ``TrainingRun.of`` validates the settings and describes the method.
2. ``TrainingRun.party`` prepares one party, and returns the coroutine function that trains as this party.
3. ``TrainingRun.about`` and ``member`` return the data to save: facts that all parties share, and one party's networks.

``train`` runs all parties in one process, over the in-memory transport.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyparty.alignment.alignment import Alignment, PartyAlignment
from anyparty.alignment.overlap import Overlap
from anyparty.api.embeddings import LiveEmbeddings
from anyparty.api.model import Model
from anyparty.artifacts.model_files import Member, ModelSummary, write_model
from anyparty.artifacts.recorder import LocalRecorder, counted_costs
from anyparty.artifacts.trackers import trackers
from anyparty.config import Config, Encoder, PartySettings
from anyparty.config.method_factory import chosen, scheduled
from anyparty.core.object_description import code_hashes, described, name_of
from anyparty.core.types import Channel, MessageSpec, Roster
from anyparty.data.blocks import row_keys
from anyparty.data.splits import TEST, TRAIN
from anyparty.data.task import predicted, teaching
from anyparty.errors import ConfigError
from anyparty.methods.method import Method, predictor_of
from anyparty.methods.method_registry import settings_of
from anyparty.networks.encoders import Factory, describe
from anyparty.networks.objective import Loss
from anyparty.networks.optimizer import CustomOptimizer, Optimizer
from anyparty.tables.table import Table
from anyparty.training import control_messages
from anyparty.training.callbacks import Bar, Callback, CallbackList, reporting
from anyparty.training.joint import JointExecution
from anyparty.training.loop import device_of
from anyparty.training.party import PartyInputs, PartyResult, take_part
from anyparty.training.party_run import RunHooks, check_require
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The facts of a training run that all its parties know.

    Attributes:
        config: the settings.
        method: the method to train, wrapped in its schedule if it has one.
        roster: the parties in their fixed order, and which of them is active.
        resume: whether to resume from checkpoints.
        answers: the method without its schedule; it makes the predictions.
        named: the name and all parameters of ``answers``; ``None`` if this method is user-defined.
        own: the description of the method ``answers`` before training, if this method is user-defined.

    """

    config: Config
    method: Method
    roster: Roster
    resume: bool
    answers: Method
    named: dict[str, Any] | None
    own: Mapping[str, Any] | None = field(repr=False)

    @classmethod
    def of(cls, config: Config, method: Method, roster: Roster, *, resume: bool = False) -> TrainingRun:
        """Build a run from its settings, its method and its parties.

        Raises:
            ConfigError: ``train.require`` is greater than the number of parties.
        """
        check_require(config.train.require, roster.names)
        answers = predictor_of(method)
        named = settings_of(answers, with_defaults=True)
        own = described(answers) if named is None else None
        return cls(config=config, method=method, roster=roster, resume=resume, answers=answers, named=named, own=own)

    @property
    def messages(self) -> tuple[MessageSpec, ...]:
        """The declarations of all messages that parties may send in training."""
        return (*self.method.can.messages, *control_messages.MESSAGES)

    def party(
        self,
        name: str,
        table: Table,
        known: PartyAlignment,
        *,
        folder: Path | None = None,
        hooks: RunHooks | None = None,
        encoder: Factory | None = None,
        optimizer: Optimizer | None = None,
        loss: Loss | None = None,
    ) -> Callable[[Channel], Coroutine[Any, Any, PartyResult]]:
        """Return the coroutine function that trains as one party; its only argument is the party's channel.

        Args:
            name: the party.
            table: the party's validated table.
            known: the index of each aligned row in the party's table; at the active party also which parties have it.
            folder: the party's checkpoint folder; ``None`` keeps no checkpoints.
            hooks: callbacks and values that the caller passes to this party's training, such as the party's secret.
            encoder: the function that makes the party's network; by default the encoder of the settings.
            optimizer: the optimizer of the party's network; by default the optimizer of the settings.
            loss: a user's loss, at parties that hold labels.

        Raises:
            ConfigError: the encoder or the optimizer of the settings cannot be made.

        """
        own = self.config.parties.get(name, PartySettings())
        inputs = PartyInputs(
            name=name,
            table=table,
            known=known,
            encoder=encoder or self.config.encoder_of(name),
            optimizer=optimizer or self.config.optimizer_of(name),
            loss=loss,
            scale=own.scale,
            max_levels=own.max_levels,
            folder=folder,
            hooks=hooks or RunHooks(),
        )
        return partial(
            take_part, inputs=inputs, roster=self.roster, config=self.config, method=self.method, resume=self.resume
        )

    def member(self, outcome: PartyResult) -> Member:
        """Return the data to save for one party: its networks, its preprocessing, and how its table is read."""
        return Member(
            state=outcome.trained.state, prepare=outcome.prepare, label=outcome.label, rules=outcome.rules,
            **self.config.reading(outcome.seat.me),
        )  # fmt: skip

    def about(self, outcome: PartyResult) -> ModelSummary:
        """Return the facts about the model that all parties may know; ``outcome`` is one party's result of training."""
        return ModelSummary(
            method=self.named,
            roster=self.roster,
            task=outcome.seat.task,
            seed=self.config.train.seed,
            best_epoch=outcome.trained.best_epoch,
            parts={},
            own=None if self.own is None else dict(self.own),
        )


def check(config: Config) -> None:
    """Validate the method, its parameters, the schedule, the device and ``train.extreme`` before any table is read.

    Raises:
        ConfigError: one of these settings is invalid; the error names it.
    """
    scheduled(chosen(config), config)
    device_of(config.train.device)
    _check_extreme(config)


def _check_extreme(config: Config) -> None:
    if config.train.extreme == "drop":
        raise ConfigError("train.extreme = 'drop' goes on without a party, which is possible only where parties run on "
                          "their own machines; with all parties in one process use train.extreme = 'stop'")  # fmt: skip


def _check_loss(loss: Loss | None, method: Method) -> None:
    if loss is not None and not callable(loss):
        raise ConfigError("loss: expected a function of outputs [n, C] and labels [n], such as "
                          f"torch.nn.functional.cross_entropy, got {loss!r}")  # fmt: skip
    if loss is not None and method.can.without_labels:
        raise ConfigError(f"loss: {method.can.title} models the likelihood of labels, so it takes no other loss")


def train(
    tables: Mapping[str, Table],
    roster: Roster,
    alignment: Alignment,
    overlap: Overlap,
    config: Config,
    *,
    method: Method | None = None,
    encoders: Mapping[str, Factory] | None = None,
    optimizers: Mapping[str, Optimizer] | None = None,
    loss: Loss | None = None,
    folder: Path | None = None,
    resume: bool = False,
    watch: Callback | None = None,
    progress: bool = False,
) -> Model:
    """Train a model with all parties in this process.

    Args:
        tables: each party's table.
        roster: the parties in their fixed order, and which of them is active.
        alignment: the alignment of the tables: which of the N rows each party has.
        overlap: the number of rows that each set of parties shares.
        config: the settings.
        method: the method that replaces the method of the settings.
        encoders: for each party, the function that makes its encoder in place of the settings' encoder.
        optimizers: for each party, the optimizer that replaces the settings' optimizer.
        loss: a function of outputs [n, C] and labels [n] that replaces the built-in loss.
        folder: the folder for checkpoints, model and record; ``None`` keeps the model in memory only.
        resume: whether to resume from the folder's checkpoints.
        watch: a callback; its hooks are called during the run.
        progress: whether to show a progress bar.

    Raises:
        ConfigError: a setting cannot be used, or another run is in progress in ``folder``.
        TableError: the labels cannot be used, or a class has too few rows for training, validation and test.
        AlignmentError: the method cannot train on the rows that the parties share.
        ResumeError: ``folder`` already holds a run and ``resume`` is false, or ``resume`` is true and ``folder`` does
            not hold this run.
        Diverged: the loss became infinite or NaN.
    """
    _check_extreme(config)
    functions = [key for key, value in config.method.parameters.items() if method is None and callable(value)]
    if functions:
        raise ConfigError(f"method: {functions[0]} is a function, which settings cannot store; pass the method "
                          f"itself, train(method({config.method.name!r}, {functions[0]}=...))")  # fmt: skip
    run = TrainingRun.of(config, scheduled(method or chosen(config), config), roster, resume=resume)
    _check_loss(loss, run.method)
    encoders, optimizers, active = encoders or {}, optimizers or {}, roster.active
    observed, key = torch.from_numpy(alignment.observed(roster.blocks)), row_keys(alignment)
    kept = as_trained(config, method, run.own, encoders, optimizers)
    callbacks, parts, live = CallbackList([]), {}, LiveEmbeddings(run.answers, alignment)
    wanted = config.train.execution
    joint = None if wanted == "protocol" else JointExecution(roster.names, active, Ledger(), wanted)
    for name in roster.names:
        position, leads = alignment.position[name], name == active
        known = PartyAlignment(position=position, observed=observed if leads else None, key=key if leads else None)
        parts[name] = run.party(
            name, tables[name], known,
            folder=None if folder is None else folder / "parties" / name / "checkpoints",
            hooks=RunHooks(callback=callbacks if leads else Callback(), on_begin=live.add, joint=joint),
            encoder=encoders.get(name), optimizer=optimizers.get(name), loss=loss,
        )  # fmt: skip
    # Begin the record after all checks, because begin() locks the folder until the block of open() ends.
    recorder = None if folder is None else LocalRecorder.begin(
        folder, kept, tables={name: table.fingerprint for name, table in tables.items()}, overlap=overlap,
        active=active, can=run.method.can, own=None if run.own is None else run.answers,
        loss="" if loss is None else name_of(loss),
        code=code_hashes(_functions(config, roster, encoders, optimizers, loss)), resume=resume,
    )  # fmt: skip
    ledger = Ledger() if recorder is None else recorder.ledger
    if joint is not None:
        joint.ledger = ledger
    if recorder is not None:  # stages are noted as they begin, so that a resumed run keeps the earlier notes
        noted = recorder.record.execution | ({"all": "protocol"} if joint is None else {})
        recorder.record.execution = noted
        if joint is not None:
            joint.ran = noted
    wrap = partial(ContractChannel, roster=roster, declared=run.messages, ledger=ledger)
    with nullcontext() if recorder is None else recorder.open():
        bar = Bar() if progress else None
        callbacks.each += CallbackList([each for each in (recorder, bar, watch) if each is not None]).each
        callbacks.each += trackers(config, folder, resume=resume)
        for each in callbacks.each:
            each.embedder = live
        with reporting(callbacks, kept.model_dump(mode="json", exclude_none=True)) as scores:
            labelled = teaching(tables[active], alignment.position[active], observed.numpy())
            callbacks.on_aligned(overlap, predicted(labelled, config.federation.task, config.federation.positive))
            try:
                outcomes = memory.play(parts, wrap)
            finally:
                if bar is not None:
                    bar.close()
            lead = outcomes[active]
            test = torch.from_numpy(np.flatnonzero(lead.use == TEST))
            assert lead.rows.labeled is not None
            taught = (torch.from_numpy(lead.use == TRAIN) & lead.rows.labeled.cpu()).nonzero().squeeze(1)
            model = Model.of(
                run.about(lead),
                run.answers,
                {name: run.member(outcomes[name]) for name in roster.names},
                history=lead.trained.history,
                ledger=ledger,
                costs=counted_costs(run.method, outcomes, config.train.batch_size, ledger),
                held_out=({name: outcome.rows for name, outcome in outcomes.items()}, alignment, test),
                taught=taught,
            )
            if recorder is not None:
                write_model(recorder.path.parent, model.about, model.members)
                scores["evaluation"] = model.evaluate().to_json() if model.test_rows else None
                recorder.finish(lead.trained, scores["evaluation"], model.costs)
    return model


def _functions(
    config: Config, roster: Roster, encoders: Mapping[str, Factory], optimizers: Mapping[str, Optimizer],
    loss: Loss | None,
) -> dict[str, Any]:  # fmt: skip
    """Return all functions and classes that the user may have defined, with keys such as "encoder of bank"."""
    found: dict[str, Any] = {"loss": loss}
    for name in roster.blocks:
        found[f"encoder of {name}"] = encoders.get(name) or config.encoder_of(name)
    for name, each in optimizers.items():
        if isinstance(each, CustomOptimizer):
            found |= {f"optimizer of {name}": each.make, f"scheduler of {name}": each.scheduler}
    return found


def as_trained(
    config: Config, method: Method | None, own: Mapping[str, Any] | None, encoders: Mapping[str, Factory],
    optimizers: Mapping[str, Optimizer],
) -> Config:  # fmt: skip
    """Return the settings to record for a run, including the Python objects that replaced some of them.

    A built-in method, encoder or optimizer is recorded as settings.  A user-defined method is recorded with the name
    ``own: TITLE`` and a description.  A user-defined network is recorded as ``module:function``, even if this name
    cannot be imported.

    Args:
        config: the settings.
        method: the method object that the caller passed in place of the settings' method; ``None`` if no object was
            passed.
        own: the description of the settings' method without its schedule, if this method is user-defined.
        encoders: for each party, the function that the caller passed to make its encoder.
        optimizers: for each party, the optimizer that the caller passed.
    """
    parties = {}
    for name, party in config.parties.items():
        changed: dict[str, Any] = {"optimizer": optimizers[name]} if name in optimizers else {}
        if name in encoders:
            changed["encoder"] = _encoder(encoders[name])
        parties[name] = party.model_copy(update=changed)
    if method is None:
        chosen = config.method.model_copy(update={"own": own})
        return config.model_copy(update={"parties": parties, "method": chosen})
    known = settings_of(method) or {"name": f"own: {method.can.title}", "own": described(method)}
    return config.model_copy(update={"parties": parties, "method": Config.of({"method": known}, "train").method})


def _encoder(factory: Factory) -> Encoder:
    description = describe(factory)
    if description is None:
        own = getattr(factory, "__qualname__", f"<a {type(factory).__qualname__}>")
        return Encoder(factory=f"{getattr(factory, '__module__', '')}:{own}")
    if description["kind"] == "lstm":
        description["memory"] = description.pop("hidden")
    return Encoder.model_validate(description)
