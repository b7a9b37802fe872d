"""One party's part in training: stages, epochs, batches, validation, when to stop, what to keep.

Every party plays the same ``play``; the active party leads: it draws the plan of a stage, scores validation rows,
says when to keep the weights and when to stop.  A method's own messages cross inside its steps.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from anyparty import metrics
from anyparty.blocks.batches import by_pattern, mixed, patterns
from anyparty.blocks.blocks import Rows
from anyparty.config import TrainSettings
from anyparty.errors import AlignmentError
from anyparty.methods.method import Batch, Method, Seat, Stage, State
from anyparty.run import agree
from anyparty.run.checkpoint import Checkpoints, Progress, load_module, tensors_of
from anyparty.run.predict import predict_rows
from anyparty.run.watch import Watch
from anyparty.seeds import Seeds
from anyparty.terms import Channel

Kept = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one party brings to a training run.

    Attributes:
        seat: who it is.
        method: what is trained.
        rows: its part of the aligned rows.
        settings: of training, the same at every party.
        agreed: groups of settings as text, by name, that all parties must share.
        validation: [n] int64, rows to validate on, at the active party.
        training: [N] bool, rows that training may use, at the active party.
        checkpoints: its folder; ``None`` keeps nothing.
        resume: go on from the checkpoints that all parties have.
        watch: who is told of progress (at the active party).

    """

    seat: Seat
    method: Method
    rows: Rows
    settings: TrainSettings
    agreed: Mapping[str, str] = field(default_factory=dict)
    validation: Tensor | None = None
    training: Tensor | None = None
    checkpoints: Checkpoints | None = None
    resume: bool = False
    watch: Watch = field(default_factory=Watch)

    @property
    def leads(self) -> bool:
        """Whether this is the active party."""
        return self.seat.me == self.seat.roster.active

    @property
    def seeds(self) -> Seeds:
        """The root of the run's random streams."""
        return Seeds(self.settings.seed)


@dataclass
class Trained:
    """What a party has after training: its networks, and at the active party the history of the run."""

    state: State
    history: list[dict[str, Any]]
    best_epoch: int


async def play(part: Part, net: Channel) -> Trained:
    """Play one party's part of a training run to its end.

    Raises:
        ConfigError: the parties' settings differ, or the method cannot serve them.
        AlignmentError: a stage has no rows to train on.
        PartyLost, MessageError, Diverged: see ``anyparty.errors``.
    """
    state = part.method.begin(part.seat, part.seeds)
    progress = Progress()
    best: Kept = {}
    moments = part.checkpoints.moments() if part.checkpoints and part.resume else []
    start = await agree.begin(net, part.seat.roster, part.agreed, moments)
    if start is not None:
        assert part.checkpoints is not None
        progress, best = part.checkpoints.load(state, start)
    for number, stage in enumerate(part.method.stages(part.seat)):
        if number == progress.stage:
            best = await _stage(part, stage, net, state, progress, best)
            progress.stage, progress.epoch, progress.best = number + 1, 0, None
    state.train(False)
    chosen = progress.best_epoch if part.settings.keep == "best" else -1
    return Trained(state, progress.history, chosen)


async def _stage(part: Part, stage: Stage, net: Channel, state: State, progress: Progress, best: Kept) -> Kept:
    plan = await agree.share_plan(net, part.seat.roster, _plan(part, stage) if part.leads else None)
    epochs, stop = part.settings.epochs, False
    part.watch.on_stage_begin(stage.name, epochs, len(plan["train"]), progress.epoch)
    while progress.epoch < epochs and not stop:
        record = await _epoch(part, stage, net, state, progress.epoch, plan)
        validates = stage.validates and len(plan["validation"]) > 0
        if validates:
            record |= await _validate(part, net, state, plan["validation"])
        keep, stop = await agree.share_verdict(
            net, part.seat.roster, _verdict(part, progress, record, validates) if part.leads else None
        )
        if keep and validates:
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
    if best and part.settings.keep == "best":
        for name, kept in best.items():
            load_module(state.modules[name], kept, "the best epoch")
    part.watch.on_stage_end(stage.name, "no better for a while" if stop else "all epochs done")
    return {}


def _plan(part: Part, stage: Stage) -> dict[str, Tensor]:
    """Choose the rows of a stage, at the active party."""
    rows = part.rows
    assert part.training is not None
    assert part.validation is not None
    assert rows.observed is not None
    train = (stage.rows(rows) & part.training.to(rows.observed.device)).nonzero().squeeze(1)
    if not len(train):
        raise AlignmentError(
            f"{part.method.can.title} trains on {part.method.can.trains_on}, and there is none among "
            f"{int(part.training.sum())} training rows; see the overlap table, or choose another method"
        )
    numbers = patterns(rows.observed[train]) if part.settings.batches == "by-pattern" else train.new_empty(0)
    return {"train": train, "patterns": numbers, "validation": part.validation.to(train.device)}


def _batches(part: Part, stage: Stage, epoch: int, plan: Mapping[str, Tensor]) -> Iterator[Tensor]:
    generator = part.seeds.torch("batches", stage.name, epoch)
    if part.settings.batches == "by-pattern":
        return by_pattern(plan["train"], plan["patterns"], part.settings.batch_size, generator)
    return mixed(plan["train"], part.settings.batch_size, generator)


async def _epoch(
    part: Part, stage: Stage, net: Channel, state: State, epoch: int, plan: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Train one epoch; return its record."""
    began, total, seen = time.perf_counter(), 0.0, 0
    state.train(True)
    for optimizer in state.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = part.seat.optimizer.rate(epoch, part.settings.epochs)
    for step, rows in enumerate(_batches(part, stage, epoch, plan)):
        loss = await stage.step(net, state, part.rows, Batch(rows, part.seeds, (stage.name, epoch, step)))
        if loss is not None:
            total, seen = total + loss * len(rows), seen + len(rows)
            part.watch.on_batch_end(len(rows), loss)
        await asyncio.sleep(0)  # a party that waits for nobody hears Ctrl-C here
    seconds = time.perf_counter() - began
    return {"stage": stage.name, "epoch": epoch + 1, "loss": total / max(seen, 1), "seconds": seconds}


async def _validate(part: Part, net: Channel, state: State, rows: Tensor) -> dict[str, Any]:
    """Score the validation rows with everybody's blocks; at the other parties, help to."""
    answered = await predict_rows(part.method, net, state, part.rows, rows, part.seat.roster.blocks, part.seeds)
    if answered is None:
        return {}
    assert part.rows.y is not None
    assert part.seat.task is not None
    metric, _ = part.settings.metric_for(part.seat.task)
    shown = {metric, "accuracy" if part.seat.task.kind == "classification" else "mae"}
    y = part.rows.y[rows].cpu()
    return {"validation": {name: metrics.selection(answered, y, None, name) for name in sorted(shown)}}


def _verdict(part: Part, progress: Progress, record: dict[str, Any], validates: bool) -> tuple[bool, bool]:
    """Say whether this epoch is the best so far, and whether to stop, at the active party."""
    if not validates:
        return False, False
    assert part.seat.task is not None
    metric, greater = part.settings.metric_for(part.seat.task)
    value = float(record["validation"][metric])
    better = not math.isnan(value) and (
        progress.best is None or (value > progress.best if greater else value < progress.best)
    )
    if better:
        progress.best, progress.best_epoch = value, progress.epoch
    waited = progress.epoch - max(progress.best_epoch, 0)
    return better, part.settings.patience is not None and waited >= part.settings.patience
