"""One party's training loop: stages, epochs, batches, validation, checkpoints, and predictions.

Every party runs ``play``.  The active party plans each stage, scores the validation rows, and decides which weights to
keep and when to stop.  A training step of a method sends the method's own messages.

If a party is lost, the training steps continue without it.  If the party returns, the active party readmits it between
two epochs, as the module ``party_run`` describes.  The search for the best epoch then starts again, because the
networks of the returned party are older.

A *local stage* sends no messages: each party trains by itself, or only the active party trains.  In a local stage,
parties may be at different epochs, and one may finish before another.  If a run is stopped in a local stage, each
party resumes from its own position.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyparty import metrics
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.errors import AlignmentError, ConfigError, Diverged
from anyparty.methods.method import (
    Batch,
    JointStage,
    Method,
    Stage,
    State,
    checked_answer,
    checked_begin,
    checked_step,
    predictor_of,
)
from anyparty.metrics.calibration import temperature_of
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Rows, by_pattern, mixed, patterns
from anyparty.training import control_messages
from anyparty.training.checkpoint import RunPosition, load_module, tensors_of
from anyparty.training.control_messages import StageEpoch
from anyparty.training.epoch_end import (
    OWN_LOSS,
    EpochDecision,
    check_ended,
    check_numbers,
    judge,
    noted,
    share_decision,
)
from anyparty.training.joint import JointExecution
from anyparty.training.party_run import PartyRun, TrainedParty

StoredStages = dict[str, dict[str, Tensor]]
AVERAGED = 0.25  # share of the epochs, at the end, whose weights are averaged with train.keep = "average"


async def play(part: PartyRun, net: Channel) -> TrainedParty:
    """Train as one party until all stages have ended, and return the party's networks.

    Raises:
        ConfigError: the parties' settings differ, or the method does not support these parties.
        AlignmentError: a stage has no rows to train on.
        PartyLost: a party left or did not answer in time, and the training cannot continue without this party.
        MessageError: a received message does not match its declaration.
        Diverged: the loss, a weight or a prediction is NaN or infinite.
    """
    stages, state, progress, best = await _begin(part, net)
    try:
        for number, stage in enumerate(stages):
            if number != progress.stage:
                continue
            if part.leads or stage.parties == "all":
                plan = _plan(part, stage) if part.leads else None
                if plan is None or stage.parties == "all":
                    plan = await control_messages.share_plan(net, part.seat.roster, plan)
                if len(plan["train"]) and stage.epochs == 0:
                    await _exchange(part, stage, net, state, progress, plan)
                elif len(plan["train"]):
                    await _repeat(part, stage, net, state, progress, best, plan)
                best = {}
            progress.stage, progress.epoch = number + 1, 0
            if number + 1 == len(stages) or not stages[number + 1].continues:
                progress.best = None
    except Diverged as error:
        if part.checkpoints is None:
            raise
        raise type(error)(f"{error}; {part.checkpoints.last_good()}") from None
    state.train(False)
    net.set_step("", training=False)
    chosen = _chosen(part, progress)
    _set_temperature(state, progress.history[chosen - 1 :])  # of the last epoch if none was chosen
    return TrainedParty(state, progress.history, chosen)


def _set_temperature(state: State, history: Sequence[Mapping[str, Any]]) -> None:
    """Set the temperature of the task to that of the first epoch in ``history``, if it has one."""
    if history and state.seat.task is not None and "temperature" in history[0]:
        state.seat = replace(state.seat, task=replace(state.seat.task, temperature=history[0]["temperature"]))


async def _begin(part: PartyRun, net: Channel) -> tuple[Sequence[Stage], State, RunPosition, StoredStages]:
    """Make the party's networks or load its checkpoint; return stages, networks, progress and best weights."""
    state = checked_begin(part.method, part.seat, part.seeds)
    if part.hooks.on_begin is not None:
        part.hooks.on_begin(state, part.rows)
    progress, best = RunPosition(), StoredStages()
    stage_epochs = part.checkpoints.begin(part.hooks.membership.run, resume=part.resume) if part.checkpoints else []
    stages = part.method.stages(part.seat)
    if part.leads and part.hooks.joint is not None:
        part.hooks.joint.check(stages)
    # Each key is a (stage, epoch) that all parties reach together, each value this party's latest checkpoint there.
    own = {last_common(stages, stage_epoch): stage_epoch for stage_epoch in stage_epochs}
    start = await control_messages.begin(net, part.seat.roster, part.agreed, list(own), resume=part.resume)
    if start.own is not None:
        assert part.checkpoints is not None
        progress, best = part.checkpoints.load(state, own[start.own])
    if start.now != last_common(stages, (progress.stage, progress.epoch)):  # this party has missed epochs
        best, (progress.stage, progress.epoch) = {}, start.now
    return stages, state, progress, best


def last_common(stages: Sequence[Stage], stage_epoch: StageEpoch) -> StageEpoch:
    """Return the last (stage, epoch), up to ``stage_epoch``, that all parties reached together.

    Parties do not wait for each other in local stages.  If ``stage_epoch`` is in a local stage, or is the end of a run
    whose last stage is local, the result is therefore the start of the first stage in this series of local stages.
    """
    stage, epoch = stage_epoch
    first = stage
    while first > 0 and (first == len(stages) or stages[first].is_local) and stages[first - 1].is_local:
        first -= 1
    local = first < len(stages) and stages[first].is_local
    return (first, 0) if local else (stage, epoch)


def _chosen(part: PartyRun, progress: RunPosition) -> int:
    """Return the best epoch's position in the history, counted from 1, or 0 if no epoch was chosen.

    Passive parties have no history.  At a passive party, the result is the position of the best epoch in its
    stage, or 0.
    """
    if part.settings.keep != "best":
        return 0
    best = progress.best_stage, progress.best_epoch
    places = [place for place, record in enumerate(progress.history, 1) if (record["stage"], record["epoch"]) == best]
    return places[-1] if places else progress.best_epoch


async def _repeat(
    part: PartyRun,
    stage: Stage,
    net: Channel,
    state: State,
    progress: RunPosition,
    best: StoredStages,
    plan: dict[str, Tensor],
) -> None:
    """Train a stage epoch by epoch, save checkpoints, and finally load the weights to keep."""
    epochs = part.settings.epochs if stage.epochs is None else stage.epochs
    keep, callback = part.settings.keep, part.hooks.callback
    if stage.continues and not progress.epoch and len(plan["validation"]) and keep == "best":
        best = _weights(state)
    stop, joint = False, await _joint(part, stage, state)
    callback.on_stage_begin(stage.name, epochs, len(plan["train"]), progress.epoch)
    while progress.epoch < epochs and not stop:
        record = await _epoch(part, stage, net, state, progress.epoch, epochs, plan, joint)
        last = progress.epoch + 1 == epochs
        decided = await _decide(part, stage, net, state, progress, plan, record, joint, last=last)
        stop = decided.stop
        if part.leads:
            check_ended(part, record)
        if keep == "average":
            best = _averaged(best, state, progress, epochs)
        elif decided.keep:
            best = _weights(state)
        progress.epoch += 1
        if part.leads:
            progress.history.append(record)
            callback.on_epoch_end(record)
        if part.checkpoints and (
            progress.epoch % part.settings.checkpoint_every == 0 or progress.epoch == epochs or stop
        ):
            if stop:
                progress.epoch = epochs
            _checkpoint(part, state, progress, best, whole=None if stage.is_local else decided.whole)
    for name, kept in best.items() if keep != "last" else ():
        load_module(state.modules[name], kept, f"the {keep} of the epochs")
    reason = "no improvement" if stop else "all epochs done"
    callback.on_stage_end(stage.name, "; ".join([reason, *noted(part, stage, state, progress, averages=bool(best))]))


async def _joint(part: PartyRun, stage: Stage, state: State) -> JointExecution | None:
    """Return the joint execution of a stage; ``None`` if the parties train by messages, or each by itself."""
    joint = part.hooks.joint
    if joint is None or stage.is_local:
        return None
    await joint.enter(part.seat.me, stage, state, part.rows)
    return None if joint.steps is None else joint


def _weights(state: State) -> StoredStages:
    return {name: tensors_of(module) for name, module in state.modules.items()}


def _averaged(mean: StoredStages, state: State, progress: RunPosition, epochs: int) -> StoredStages:
    """Return the mean of the weights over those finished epochs that belong to the last quarter of a stage.

    ``epochs`` is the number of the stage's epochs. The result is empty before the last quarter.
    """
    begun = progress.epoch >= int((1 - AVERAGED) * epochs)
    # Without earlier weights, for example after an absence, the mean starts again.
    before = progress.averaged if mean else 0
    progress.averaged = before + 1
    return averaged(mean, state, before if begun else -1)


def averaged(mean: StoredStages, state: State, before: int) -> StoredStages:
    """Return the mean of the weights over ``before`` earlier epochs and the current epoch.

    ``mean`` is the mean over the earlier epochs.  The result is empty if ``before`` is negative.  Integer tensors, such
    as a count of batches, are not averaged; they have their current value.
    """
    if before < 0:
        return {}
    now = _weights(state)
    return now if before == 0 or not mean else {
        name: {
            key: mean[name][key] + (new - mean[name][key]) / (before + 1) if new.is_floating_point() else new
            for key, new in tensors.items()
        }
        for name, tensors in now.items()
    }  # fmt: skip


def _checkpoint(
    part: PartyRun, state: State, progress: RunPosition, best: StoredStages, *, whole: bool | None = None
) -> None:
    """Save a checkpoint; ``whole`` is the active party's statement whether all parties took part, if it made one."""
    assert part.checkpoints is not None
    whole = not part.hooks.membership.gone() if whole is None else whole
    part.checkpoints.save(state, progress, best, whole=whole)
    if part.hooks.on_checkpoint is not None:
        part.hooks.on_checkpoint(progress.history, _chosen(part, progress))


async def _decide(
    part: PartyRun,
    stage: Stage,
    net: Channel,
    state: State,
    progress: RunPosition,
    plan: dict[str, Tensor],
    record: dict[str, Any],
    joint: JointExecution | None,
    *,
    last: bool,
) -> EpochDecision:
    """Add an epoch's validation scores to its record; return whether to keep the weights and whether to stop.

    In a local stage, each party decides for itself.  In all other stages, the active party decides for all parties.
    """
    validates = stage.loss is None and stage.validates and len(plan["validation"]) > 0
    if validates:
        record |= await _validate(part, stage.name, progress.epoch, net, state, plan, joint)
    elif stage.loss is not None and len(plan["validation"]):
        record |= _own_loss(stage, state, part, plan["validation"])
    if not stage.is_local:
        decide = partial(share_decision, part, net, progress, plan, record, validates=validates, last=last, joint=joint)
        return await decide() if joint is None else await joint.together(part.seat.me, decide)
    if "validation" not in record:
        return EpochDecision()
    return judge(part.criterion if stage.loss is None else OWN_LOSS, part.settings.patience, progress, record)


def _own_loss(stage: Stage, state: State, part: PartyRun, wanted: Tensor) -> dict[str, Any]:
    """Return a local stage's loss on the party's rows among ``wanted``, as an entry for the epoch's record."""
    assert stage.loss is not None
    state.train(False)
    with torch.no_grad():
        value = stage.loss(state, part.rows, Batch(wanted, part.seeds, (stage.name,)))
    return {} if value is None else {"validation": {"loss": value}}


async def _exchange(
    part: PartyRun, stage: Stage, net: Channel, state: State, progress: RunPosition, plan: dict[str, Tensor]
) -> None:
    """Run a stage that consists of a single step over all rows of the stage."""
    rows, began = plan["train"], time.perf_counter()
    part.hooks.callback.on_stage_begin(stage.name, 1, len(rows), 0)
    state.train(True)
    batch = Batch(rows, part.seeds, (stage.name, 0, 0), held_out=plan["validation"])
    net.set_step(batch, training=True)
    loss = await checked_step(part.method, stage, net, state, part.rows, batch)
    record = _record(stage, 0, loss, began)
    if stage.validates and len(plan["validation"]):
        record |= await _validate(part, stage.name, 0, net, state, plan)
    if part.leads:
        progress.history.append(record)
        part.hooks.callback.on_epoch_end(record)
    progress.stage, progress.epoch, progress.best = progress.stage + 1, 0, None
    if part.checkpoints:
        _checkpoint(part, state, progress, {})
    part.hooks.callback.on_stage_end(stage.name, "done")


def _record(stage: Stage, epoch: int, loss: float | None, began: float) -> dict[str, Any]:
    """Return an epoch's record, which lacks the key "loss" if ``loss`` is ``None``; ``began`` is the start time."""
    seconds = time.perf_counter() - began
    shown = {} if loss is None else {"loss": loss}
    return {"stage": stage.name, "epoch": epoch + 1, **shown, "seconds": seconds}


def _plan(part: PartyRun, stage: Stage) -> dict[str, Tensor]:
    """Return the rows that a stage trains on, validates on and scores; called at the active party."""
    rows = part.rows
    assert rows.observed is not None
    training = part.training.to(rows.observed.device)
    if stage.with_validation:
        training = training.index_fill(0, part.validation.to(training.device), True)
        if part.joined is not None:
            training &= part.joined.to(training.device)
    train = (stage.rows(rows) & training).nonzero().squeeze(1)
    if not len(train) and not stage.optional:
        raise AlignmentError(
            f"{part.method.can.title} trains on {part.method.can.trains_on}, and there is none among "
            f"{int(part.training.sum())} training rows; see the overlap table, or choose another method"
        )
    numbers = patterns(rows.observed[train]) if part.settings.batches == "by-pattern" else train.new_empty(0)
    validation = part.validation.to(train.device)
    return {"train": train, "patterns": numbers, "validation": validation, "scored": _scored(part, stage, train)}


def _scored(part: PartyRun, stage: Stage, train: Tensor) -> Tensor:
    """Return a random sample of the labelled training rows, which are scored after every epoch; at the active party.

    Training scores are computed only in stages with validation scores, so in all other stages the sample is empty.
    """
    assert part.rows.labeled is not None
    if not stage.validates or stage.loss is not None:
        return train[:0]
    known = train[part.rows.labeled[train]]
    drawn = torch.randperm(len(known), generator=part.seeds.torch("scored", stage.name))
    return known[drawn.to(known.device)[: min(part.settings.score_training, len(part.validation))]].sort().values


async def _epoch(
    part: PartyRun, stage: Stage, net: Channel, state: State, epoch: int, epochs: int, plan: Mapping[str, Tensor],
    joint: JointExecution | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train one epoch, by messages or together with all other parties (``joint``), and return its record."""
    began = time.perf_counter()
    state.train(True)
    optimizers = state.optimizers.values()
    for optimizer in optimizers:
        (stage.optimizer or part.seat.optimizer).set_rate(optimizer, epoch, epochs)
    train, pure = plan["train"], part.settings.batches == "by-pattern"
    generator = part.seeds.torch("batches", stage.name, epoch)
    size = part.settings.rows_per_batch(len(train)) if stage.batch_size is None else stage.batch_size
    drawn = by_pattern(train, plan["patterns"], size, generator) if pure else mixed(train, size, generator)
    batches = list(drawn)  # a list, because ``share`` needs the number of batches
    losses: list[tuple[int, float]] = []

    def note_loss(batch: Batch, loss: float | None) -> None:
        rows = len(batch.rows)
        if loss is not None:
            losses.append((rows, loss))
        part.hooks.callback.on_batch_end(rows, math.nan if loss is None else loss)

    def batch_of(step: int, rows: Tensor) -> Batch:
        share = len(rows) * len(batches) / len(train) if pure else 1.0
        return Batch(rows, part.seeds, (stage.name, epoch, step), number=epoch * len(batches) + step, share=share)

    numbered = [batch_of(step, rows) for step, rows in enumerate(batches)]

    form = None if joint is None else joint.steps
    rates = {} if joint is None else joint.set_rates
    rates[part.seat.me] = partial(_set_rates, stage.optimizer or part.seat.optimizer, optimizers, epoch, epochs,
                                  len(batches))  # fmt: skip

    async def steps() -> None:
        for step, batch in enumerate(numbered if form is None else form.batches(numbered)):
            for set_rates in rates.values():
                set_rates(step)
            if form is None:
                net.set_step(batch, training=True)
                loss = await checked_step(part.method, stage, net, state, part.rows, batch)
            else:
                loss = form.step(batch)
            note_loss(batch, loss)
            await asyncio.sleep(0)  # lets Ctrl-C stop a party that does not wait for messages

    await (steps() if joint is None else joint.together(part.seat.me, steps))
    if stage.finish is not None:
        await stage.finish(net, state, part.rows)
    seen = sum(rows for rows, _ in losses)
    record = _record(stage, epoch, sum(rows * loss for rows, loss in losses) / seen if seen else None, began)
    return record if stage.record is None else record | dict(stage.record(state))


def _set_rates(
    settings: Optimizer, optimizers: Collection[torch.optim.Optimizer], epoch: int, epochs: int, steps: int, step: int
) -> None:  # fmt: skip
    for optimizer in optimizers:
        settings.set_rate_of_step(optimizer, epoch, epochs, step, steps)


async def _validate(
    part: PartyRun, stage: str, epoch: int, net: Channel, state: State, plan: Mapping[str, Tensor],
    joint: JointExecution | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Predict the validation rows and some training rows with all parties; return their scores at the active party."""
    rows = torch.cat([plan["validation"], plan["scored"]])
    net.set_step(f"stage {stage!r}, epoch {epoch + 1}, validation", training=False)
    form = None if joint is None else joint.steps
    if form is not None and form.predictor is not predictor_of(part.method):
        form = None  # the method's own predictions need messages
    if form is not None and not part.leads:
        state.train(False)
        return {}
    answered = await predict_rows(part.method, net, state, part.rows, rows, part.seat.roster.blocks, part.seeds, form)
    if answered is None:
        return {}
    assert part.rows.y is not None
    assert part.seat.task is not None
    usual = "accuracy" if part.seat.task.kind == "classification" else "mae"
    shown = sorted({part.criterion.metric, usual, part.criterion.smooth} - {""})
    if answered.reasons:
        check_numbers(answered, len(plan["validation"]), stage)
    y, validation = part.rows.y[rows].cpu(), torch.arange(len(rows)) < len(plan["validation"])
    scores: dict[str, Any] = {"validation": metrics.selection(answered, y, validation, shown)}
    if len(plan["scored"]):
        scores["training"] = metrics.selection(answered, y, ~validation, shown)
    if part.settings.calibrate and part.seat.task.kind == "classification":
        known = validation & answered.answered & (y >= 0)
        scores["temperature"] = temperature_of(part.seat.task, answered.scores[known], y[known])
    return scores


def device_of(name: str, what: str = "train.device") -> torch.device:
    """Return the torch device called ``name``; ``what`` is the name of the setting, for error messages.

    Raises:
        ConfigError: this machine does not have the device.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on a device that cannot compute, such as "meta"
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why, instead = str(error).splitlines()[0], "'cpu'"
        if "with arguments from the" in why:  # PyTorch's message is a page long
            why = "PyTorch has no such device on this machine"
        if why.startswith("Expected one of"):  # PyTorch's message lists about twenty types of devices
            why, instead = "torch knows no such device", "'cpu', 'cuda' or 'mps'"
        raise ConfigError(f"{what}: {name!r} cannot be used here ({why}); try {instead}") from None
    return device


ROWS_AT_ONCE = 4096


async def predict_rows(
    method: Method, net: Channel, state: State, rows: Rows, wanted: Tensor, asked: Sequence[str], seeds: Seeds,
    joint: JointStage | None = None,
) -> Predictions | None:  # fmt: skip
    """Run one party's side of a prediction; at the active party, return the predictions, else ``None``.

    ``wanted`` [n] are the indices of the rows, and ``asked`` the parties that take part.  With ``joint``, the active
    party predicts for all parties, and no messages are sent.  If the model was trained with
    class weights, ``Predictions.unweighted`` corrects the probabilities to the class frequencies in the training rows.
    """
    state.train(False)
    answered = []
    for chunk in torch.split(wanted, ROWS_AT_ONCE) if len(wanted) else [wanted]:
        batch = Batch(chunk, seeds)
        given = await method.predict(net, state, rows, batch, asked) if joint is None else joint.predict(batch)
        part = checked_answer(method, state, given)
        if part is not None:
            answered.append(part.calibrated().unweighted())
    return joined(answered) if len(answered) > 1 else next(iter(answered), None)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions for consecutive batches of rows, joined in the same order."""
    offset, reasons = 0, dict[int, str]()
    for part in parts:
        reasons |= {offset + row: reason for row, reason in part.reasons.items()}
        offset += len(part)
    by_party = [part.by_party for part in parts if part.by_party is not None]
    return replace(
        parts[0],
        scores=torch.cat([part.scores for part in parts]),
        took_part=torch.cat([part.took_part for part in parts]),
        by_party=torch.cat(by_party) if by_party else None,
        silent=tuple(dict.fromkeys(name for part in parts for name in part.silent)),
        reasons=reasons,
    )
