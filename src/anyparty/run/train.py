"""One party's part in training: stages, epochs, batches, validation, when to stop, what to keep.

Every party plays the same ``play``; the active party leads: it draws the plan of a stage, scores validation rows,
says when to keep the weights and when to stop.  A method's own messages cross inside its steps.

A party that dies is missed by the steps themselves; where it comes back, the active party lets it in between two
epochs (see ``door``), and the best epoch is looked for anew: its networks are not those of the best one before.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anyparty import metrics
from anyparty.blocks.batches import by_pattern, mixed, patterns
from anyparty.errors import AlignmentError, Diverged
from anyparty.methods.exchange import moment
from anyparty.methods.method import Batch, Stage, State, checked_begin, checked_step
from anyparty.run import agree, quiet
from anyparty.run.agree import Verdict
from anyparty.run.checkpoint import Progress, load_module, tensors_of
from anyparty.run.part import Part, Trained
from anyparty.run.predict import predict_rows
from anyparty.run.verdict import alone, check_ended, check_numbers, noted, verdict
from anyparty.terms import Channel
from anyparty.wire.guard import at_moment

Kept = dict[str, dict[str, Tensor]]
AVERAGED = 0.25  # of the epochs, the last ones, whose weights are averaged where that is asked for


async def play(part: Part, net: Channel) -> Trained:
    """Play one party's part of a training run to its end.

    Raises:
        ConfigError: the parties' settings differ, or the method cannot serve them.
        AlignmentError: a stage has no rows to train on.
        PartyLost, MessageError, Diverged: see ``anyparty.errors``.
    """
    state = checked_begin(part.method, part.seat, part.seeds)
    progress = Progress()
    best: Kept = {}
    moments = part.checkpoints.begin(part.door.run, resume=part.resume) if part.checkpoints else []
    stages = part.method.stages(part.seat)
    own = {quiet.meeting(stages, moment): moment for moment in moments}  # the latest of those that meet in one
    start = await agree.begin(net, part.seat.roster, part.agreed, list(own), resume=part.resume)
    if start.own is not None:
        assert part.checkpoints is not None
        progress, best = part.checkpoints.load(state, own[start.own])
    if start.now != quiet.meeting(stages, (progress.stage, progress.epoch)):  # it was away in between
        best, (progress.stage, progress.epoch) = {}, start.now
    try:
        for number, stage in enumerate(stages):
            if number == progress.stage:
                if part.leads or stage.parties == "all":
                    best = await _stage(part, stage, net, state, progress, best)
                progress.stage, progress.epoch = number + 1, 0
                if not any(following.continues for following in stages[number + 1 : number + 2]):
                    progress.best = None
    except Diverged as error:
        if part.checkpoints is None:
            raise
        raise type(error)(f"{error}; {part.checkpoints.last_good()}") from None
    state.train(False)
    at_moment(net, "", training=False)
    return Trained(state, progress.history, _chosen(part, progress))


def _chosen(part: Part, progress: Progress) -> int:
    """Return the place in the history of the epoch that validation chose; without a history, its number; or -1."""
    if part.settings.keep != "best":
        return -1
    moment = progress.best_stage, progress.best_epoch + 1
    places = [place for place, record in enumerate(progress.history) if (record["stage"], record["epoch"]) == moment]
    return places[-1] if places else progress.best_epoch


async def _stage(part: Part, stage: Stage, net: Channel, state: State, progress: Progress, best: Kept) -> Kept:
    plan = _plan(part, stage) if part.leads else None
    if plan is None or stage.parties == "all":
        plan = await agree.share_plan(net, part.seat.roster, plan)
    if not len(plan["train"]):
        return {}
    if stage.epochs == 0:
        await _exchange(part, stage, net, state, progress, plan)
    else:
        if stage.continues and not progress.epoch and len(plan["validation"]) and part.settings.keep == "best":
            best = {name: tensors_of(module) for name, module in state.modules.items()}
        await _repeat(part, stage, net, state, progress, best, plan)
    return {}


async def _repeat(
    part: Part, stage: Stage, net: Channel, state: State, progress: Progress, best: Kept, plan: dict[str, Tensor]
) -> None:
    """Play a stage epoch by epoch."""
    epochs, stop = _epochs(part, stage), False
    part.watch.on_stage_begin(stage.name, epochs, len(plan["train"]), progress.epoch)
    while progress.epoch < epochs and not stop:
        record = await _epoch(part, stage, net, state, progress.epoch, plan)
        said = await _judged(part, stage, net, state, progress, plan, record)
        stop = said.stop
        check_ended(part, record)
        if part.settings.keep == "average":
            begun = progress.epoch >= int((1 - AVERAGED) * epochs)
            before = progress.averaged if best else 0  # a party that was away begins anew
            best = averaged(best, state, before if begun else -1)
            progress.averaged = before + 1
        elif said.keep:
            best = {name: tensors_of(module) for name, module in state.modules.items()}
        progress.epoch += 1
        if part.leads:
            progress.history.append(record)
            part.watch.on_epoch_end(record)
        if part.checkpoints and (
            progress.epoch % part.settings.checkpoint_every == 0 or progress.epoch == epochs or stop
        ):
            if stop:
                progress.epoch = epochs
            part.checkpoints.save(state, progress, best)
            if part.kept is not None:
                part.kept(progress.history, _chosen(part, progress))
    if best and part.settings.keep != "last":
        for name, kept in best.items():
            load_module(state.modules[name], kept, f"the {part.settings.keep} of the epochs")
    reason = "no better for a while" if stop else "all epochs done"
    part.watch.on_stage_end(stage.name, "; ".join([reason, *noted(part, stage, state, progress, averages=bool(best))]))


def averaged(mean: Kept, state: State, before: int) -> Kept:
    """Return the mean of a party's weights over the epochs since averaging began, ``before`` of them so far.

    Whole numbers, such as a count of batches, are the last ones.
    """
    if before < 0:
        return {}
    now = {name: tensors_of(module) for name, module in state.modules.items()}
    return now if before == 0 or not mean else {
        name: {
            key: mean[name][key] + (new - mean[name][key]) / (before + 1) if new.is_floating_point() else new
            for key, new in tensors.items()
        }
        for name, tensors in now.items()
    }  # fmt: skip


async def _judged(
    part: Part, stage: Stage, net: Channel, state: State, progress: Progress, plan: dict[str, Tensor],
    record: dict[str, Any],
) -> Verdict:  # fmt: skip
    """Score an epoch on validation rows into its record; say whether to keep its weights, and whether to stop.

    All follow the active party's verdict, but where each party trains for itself.
    """
    validates = stage.loss is None and stage.validates and len(plan["validation"]) > 0
    if validates:
        record |= await _validate(part, stage.name, progress.epoch, net, state, plan)
    record |= quiet.score(stage, state, part.rows, plan["validation"], part.seeds)
    if quiet.is_quiet(stage):
        return alone(part, stage, progress, record)
    last = progress.epoch + 1 == _epochs(part, stage)
    return await verdict(part, net, progress, plan, record, validates=validates, last=last)


async def _exchange(
    part: Part, stage: Stage, net: Channel, state: State, progress: Progress, plan: dict[str, Tensor]
) -> None:
    """Play a stage of a single step over all of its rows."""
    rows, began = plan["train"], time.perf_counter()
    part.watch.on_stage_begin(stage.name, 1, len(rows), 0)
    state.train(True)
    batch = Batch(rows, part.seeds, (stage.name, 0, 0), held_out=plan["validation"])
    at_moment(net, moment(batch), training=True)
    loss = await checked_step(part.method, stage, net, state, part.rows, batch)
    seconds = time.perf_counter() - began
    record = {"stage": stage.name, "epoch": 1, **_loss(loss), "seconds": seconds}
    if stage.validates and len(plan["validation"]):
        record |= await _validate(part, stage.name, 0, net, state, plan)
    if part.leads:
        progress.history.append(record)
        part.watch.on_epoch_end(record)
    progress.stage, progress.epoch, progress.best = progress.stage + 1, 0, None
    if part.checkpoints:
        part.checkpoints.save(state, progress, {})
        if part.kept is not None:
            part.kept(progress.history, _chosen(part, progress))
    part.watch.on_stage_end(stage.name, "done")


def _plan(part: Part, stage: Stage) -> dict[str, Tensor]:
    """Choose the rows of a stage, at the active party."""
    rows = part.rows
    assert part.training is not None
    assert part.validation is not None
    assert rows.observed is not None
    training = part.training.to(rows.observed.device)
    if stage.with_validation:
        training = training.index_fill(0, part.validation.to(training.device), True)
    train = (stage.rows(rows) & training).nonzero().squeeze(1)
    if not len(train) and not stage.optional:
        raise AlignmentError(
            f"{part.method.can.title} trains on {part.method.can.trains_on}, and there is none among "
            f"{int(part.training.sum())} training rows; see the overlap table, or choose another method"
        )
    numbers = patterns(rows.observed[train]) if part.settings.batches == "by-pattern" else train.new_empty(0)
    validation = part.validation.to(train.device)
    return {"train": train, "patterns": numbers, "validation": validation, "scored": _scored(part, stage, train)}


def _scored(part: Part, stage: Stage, train: Tensor) -> Tensor:
    """Draw the training rows that are scored with the validation rows, at the active party."""
    assert part.rows.labeled is not None
    assert part.validation is not None
    if not stage.validates or stage.loss is not None:
        return train[:0]
    known = train[part.rows.labeled[train]]
    drawn = torch.randperm(len(known), generator=part.seeds.torch("scored", stage.name))
    return known[drawn.to(known.device)[: min(part.settings.score_training, len(part.validation))]].sort().values


def _epochs(part: Part, stage: Stage) -> int:
    return part.settings.epochs if stage.epochs is None else stage.epochs


def _batches(part: Part, stage: Stage, epoch: int, plan: Mapping[str, Tensor]) -> Iterator[Tensor]:
    generator = part.seeds.torch("batches", stage.name, epoch)
    size = part.settings.batch_size if stage.batch_size is None else stage.batch_size
    if part.settings.batches == "by-pattern":
        return by_pattern(plan["train"], plan["patterns"], size, generator)
    return mixed(plan["train"], size, generator)


async def _epoch(
    part: Part, stage: Stage, net: Channel, state: State, epoch: int, plan: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Train one epoch; return its record."""
    began, total, seen = time.perf_counter(), 0.0, 0
    state.train(True)
    for optimizer in state.optimizers.values():
        (stage.optimizer or part.seat.optimizer).set_rate(optimizer, epoch, _epochs(part, stage))
    batches = list(_batches(part, stage, epoch, plan))  # as many in every epoch
    for step, rows in enumerate(batches):
        share = len(rows) * len(batches) / len(plan["train"]) if part.settings.batches == "by-pattern" else 1.0
        batch = Batch(rows, part.seeds, (stage.name, epoch, step), number=epoch * len(batches) + step, share=share)
        at_moment(net, moment(batch), training=True)
        loss = await checked_step(part.method, stage, net, state, part.rows, batch)
        if loss is not None:
            total, seen = total + loss * len(rows), seen + len(rows)
        part.watch.on_batch_end(len(rows), math.nan if loss is None else loss)
        await asyncio.sleep(0)  # a party that waits for nobody hears Ctrl-C here
    if stage.finish is not None:
        await stage.finish(net, state, part.rows)
    seconds = time.perf_counter() - began
    record = {"stage": stage.name, "epoch": epoch + 1, **_loss(total / seen if seen else None), "seconds": seconds}
    return record if stage.record is None else record | dict(stage.record(state))


def _loss(loss: float | None) -> dict[str, float]:
    """Return the loss for a record; a stage that has none, as a mere exchange, leaves it out."""
    return {} if loss is None else {"loss": loss}


async def _validate(
    part: Part, stage: str, epoch: int, net: Channel, state: State, plan: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Score validation rows, and some training rows, with everybody's blocks; at the other parties, help to."""
    rows = torch.cat([plan["validation"], plan["scored"]])
    at_moment(net, f"stage {stage!r}, epoch {epoch + 1}, validation", training=False)
    answered = await predict_rows(part.method, net, state, part.rows, rows, part.seat.roster.blocks, part.seeds)
    if answered is None:
        return {}
    assert part.rows.y is not None
    assert part.seat.task is not None
    metric, _ = part.settings.metric_for(part.seat.task)
    shown = sorted({metric, "accuracy" if part.seat.task.kind == "classification" else "mae"})
    check_numbers(answered, len(plan["validation"]), stage)
    y, validation = part.rows.y[rows].cpu(), torch.arange(len(rows)) < len(plan["validation"])
    sets = {"validation": validation} | ({"training": ~validation} if len(plan["scored"]) else {})
    return {of: {name: metrics.selection(answered, y, which, name) for name in shown} for of, which in sets.items()}
