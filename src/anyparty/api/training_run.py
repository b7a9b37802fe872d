"""Train with all parties in one process, over the in-memory transport.

``train`` takes the same steps as a party at its own site: describe the method, take part in the training, and save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anyparty.alignment.alignment import Alignment
from anyparty.alignment.overlap import Overlap
from anyparty.api.embeddings import LiveEmbeddings
from anyparty.api.model import Model
from anyparty.artifacts.model_files import Member, ModelSummary, write_model
from anyparty.artifacts.recorder import LocalRecorder, counted_costs
from anyparty.artifacts.trackers import trackers
from anyparty.config import Config, Encoder
from anyparty.config.method_factory import chosen, scheduled
from anyparty.config.schema import METHOD_DEFAULTS
from anyparty.core.object_description import code_hashes, described, name_of
from anyparty.core.types import Channel, Roster
from anyparty.errors import ConfigError
from anyparty.methods.method import Method, predictor_of
from anyparty.methods.method_registry import settings_of
from anyparty.networks.encoders import Factory, describe
from anyparty.networks.objective import Loss
from anyparty.networks.optimizer import CustomOptimizer, Optimizer
from anyparty.problem.problem import Problem
from anyparty.problem.rows import row_keys
from anyparty.tables.table import Table
from anyparty.training import control_messages
from anyparty.training.callbacks import Bar, Callback, CallbackList, reporting
from anyparty.training.joint import JointExecution
from anyparty.training.loop import device_of
from anyparty.training.party import PartyResult, context_of, take_part
from anyparty.training.party_run import RunHooks, check_require
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger


def summary_before(config: Config, method: Method, roster: Roster) -> ModelSummary:
    """Return the facts about a model that all parties may know, before the model is trained.

    A user-defined method is described before training, because training may change the object.

    Raises:
        ConfigError: ``train.require`` is greater than the number of parties.
    """
    check_require(config.train.require, roster.names)
    answers = predictor_of(method)
    named = settings_of(answers, with_defaults=True)
    return ModelSummary(
        method=named, roster=roster, task=None, seed=config.train.seed, best_epoch=0, parts={},
        own=described(answers) if named is None else None,
    )  # fmt: skip


def member_of(config: Config, outcome: PartyResult) -> Member:
    """Return the data to save for one party: its networks, its preprocessing, and how its table is read."""
    table = outcome.view.table
    return Member(
        state=outcome.trained.state, prepare=outcome.prepare, label=None if table.label is None else table.label.name,
        rules=table.rules, **config.reading(outcome.view.me),
    )  # fmt: skip


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


def _check_loss(loss: Loss, method: Method) -> None:
    if not callable(loss):
        raise ConfigError("loss: expected a function of outputs [n, C] and labels [n], such as "
                          f"torch.nn.functional.cross_entropy, got {loss!r}")  # fmt: skip
    if method.can.without_labels:
        raise ConfigError(f"loss: {method.can.title} models the likelihood of labels, so it takes no other loss")


def train(
    problem: Problem,
    tables: Mapping[str, Table],
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
    channel: Callable[[Channel], Channel] | None = None,
) -> Model:
    """Train a model with all parties in this process.

    Args:
        problem: what the training is about: the parties, the task, and the use of each row.
        tables: each party's table.
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
        channel: a function that wraps each party's channel, for example to record received messages.

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
    roster, active = problem.roster, problem.roster.active
    trained_method = scheduled(method or chosen(config), config)
    summary, answers = summary_before(config, trained_method, roster), predictor_of(trained_method)
    if loss is not None:
        _check_loss(loss, trained_method)
    problem = replace(problem, without_labels=trained_method.can.without_labels, key=row_keys(alignment))
    encoders, optimizers = encoders or {}, optimizers or {}
    kept = as_trained(config, method, summary.own, encoders, optimizers)
    contexts = {
        name: context_of(
            config, roster, name, encoder=encoders.get(name), optimizer=optimizers.get(name), loss=loss
        ) for name in roster.names
    }  # fmt: skip
    # Begin the record after all checks, because begin() locks the folder until the block of open() ends.
    recorder = None if folder is None else LocalRecorder.begin(
        folder, kept, tables={name: table.fingerprint for name, table in tables.items()}, overlap=overlap,
        active=active, can=trained_method.can, own=None if summary.own is None else answers,
        loss="" if loss is None else name_of(loss),
        code=code_hashes(_functions(config, roster, encoders, optimizers, loss)), resume=resume,
    )  # fmt: skip
    ledger = Ledger() if recorder is None else recorder.ledger
    declared = (*trained_method.can.messages, *control_messages.MESSAGES)

    def wrap(inner: Channel) -> Channel:
        checked_channel = ContractChannel(inner, roster, declared, ledger=ledger)
        return checked_channel if channel is None else channel(checked_channel)

    joint = _joint(config, roster, ledger, recorder)
    with nullcontext() if recorder is None else recorder.open():
        bar, live = Bar() if progress else None, LiveEmbeddings(answers, alignment)
        callbacks = CallbackList([each for each in (recorder, bar, watch) if each is not None])
        if config.track.tensorboard or config.track.mlflow is not None:
            callbacks.each += trackers(config, folder, resume=resume)
        for each in callbacks.each:
            each.embedder = live
        on_begin = live.add if callbacks.each else None
        hooks = dict.fromkeys(roster.names, RunHooks(on_begin=on_begin, joint=joint))
        hooks[active] = RunHooks(callback=callbacks, on_begin=on_begin, joint=joint)
        parts = {
            name: partial(
                take_part, context=contexts[name], table=tables[name], position=alignment.position[name],
                config=config, method=trained_method, problem=problem if name == active else None,
                folder=None if folder is None else folder / "parties" / name / "checkpoints", resume=resume,
                hooks=hooks[name],
            ) for name in roster.names
        }  # fmt: skip
        with reporting(callbacks, kept.model_dump(mode="json", exclude_none=True)) as scores:
            callbacks.on_aligned(overlap, problem.describe())
            try:
                outcomes = memory.play(parts, wrap)
            finally:
                if bar is not None:
                    bar.close()
            lead = outcomes[active]
            model = Model.of(
                replace(summary, task=lead.trained.state.seat.task, best_epoch=lead.trained.best_epoch),
                answers,
                {name: member_of(config, outcomes[name]) for name in roster.names},
                history=lead.trained.history,
                ledger=ledger,
                costs=counted_costs(trained_method, outcomes, config.train, ledger),
            )
            model.hold_out({name: outcome.rows for name, outcome in outcomes.items()}, alignment, lead.view.use)
            if recorder is not None:
                write_model(recorder.path.parent, model.about, model.members)
                scores["evaluation"] = model.evaluate().to_json() if model.test_rows else None
                recorder.finish(lead.trained, scores["evaluation"], model.costs)
    return model


def _joint(
    config: Config, roster: Roster, ledger: Ledger, recorder: LocalRecorder | None
) -> JointExecution | None:  # fmt: skip
    """Return the joint execution of stages, if allowed, and let the record note how each stage is executed."""
    wanted = config.train.execution
    joint = None if wanted == "protocol" else JointExecution(roster.names, roster.active, ledger, wanted)
    if recorder is not None:  # a resumed run keeps the earlier notes
        noted = recorder.record.execution | ({"all": "protocol"} if joint is None else {})
        recorder.record.execution = noted
        if joint is not None:
            joint.ran = noted
    return joint


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
    if known["name"] in METHOD_DEFAULTS:  # a parameter that is left out would get the method's own default
        known = settings_of(method, with_defaults=True) or known
    return config.model_copy(update={"parties": parties, "method": Config.of({"method": known}, "train").method})


def _encoder(factory: Factory) -> Encoder:
    description = describe(factory)
    if description is None:
        own = getattr(factory, "__qualname__", f"<a {type(factory).__qualname__}>")
        return Encoder(factory=f"{getattr(factory, '__module__', '')}:{own}")
    if description["kind"] == "lstm":
        description["memory"] = description.pop("hidden")
    return Encoder.model_validate(description)
