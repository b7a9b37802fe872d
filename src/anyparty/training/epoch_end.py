"""Decisions after an epoch: which weights to keep, whether to stop early, and which parties are gone or rejoin.

Epochs are compared by the metric of the settings.  Accuracy and F1 change in steps: if few rows are positive, many
epochs have the same value.  The first of these epochs may come before the network has learnt anything.  Therefore

- epochs with the same metric are compared by the task's smooth score: the log loss, or the RMSE of a regression;
- all values of the metric up to the value of the best constant answer count as the same value;
- an epoch uses up patience only if neither the metric nor the smooth score improved, and only after the metric has
  changed once;
- an undefined value is neither better nor worse: the epoch is not kept and uses up no patience.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from anyparty.core.predictions import NO_NUMBER, Predictions
from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import ENDED, AnypartyError, Diverged, Stopped, note, remark
from anyparty.methods.method import HasRemarks, Stage, State
from anyparty.training import control_messages
from anyparty.training.checkpoint import RunPosition
from anyparty.training.joint import JointExecution
from anyparty.training.party_run import Criterion, PartyRun

SHORT = 5  # no remark on the best epoch after this number of scored epochs or fewer


OWN_LOSS = Criterion(metric="loss")  # for stages in which each party compares epochs by its own loss


@dataclass(frozen=True, kw_only=True)
class EpochDecision:
    """The active party's decision after an epoch.

    Attributes:
        keep: True if the weights of this epoch are to be kept, because they are better than those of earlier epochs.
        stop: True if the stage ends after this epoch.
        back: the parties that take part again from the next epoch.
        whole: True if all parties took part in this epoch.

    """

    keep: bool = False
    stop: bool = False
    whole: bool = True
    back: tuple[str, ...] = ()


def judge(
    criterion: Criterion, patience: int | None, progress: RunPosition, record: Mapping[str, Any]
) -> EpochDecision:
    """Decide from an epoch's validation scores whether to keep the weights and whether to stop.

    Args:
        criterion: the scores by which epochs are compared.
        patience: the number of epochs without an improvement after which training stops; ``None`` for no limit.
        progress: the progress of the run; this function updates it, for example the best epoch and the number of epochs
            since the last improvement.
        record: the epoch's record, with its validation scores.

    """
    scores = record["validation"]
    value, smooth = float(scores[criterion.metric]), float(scores[criterion.smooth] if criterion.smooth else 0.0)
    if math.isnan(value):
        return EpochDecision()
    new = criterion.rank(value, smooth)
    if progress.best is None:  # no best epoch yet; the search starts again when a party returns
        progress.moved, progress.lowest, better = not criterion.smooth, math.inf, True
    else:
        old = criterion.rank(progress.best, progress.best_smooth)
        progress.moved, better = progress.moved or new[0] != old[0], new > old
    lower, progress.lowest = smooth < progress.lowest, min(smooth, progress.lowest)
    if better:
        progress.best, progress.best_smooth = value, smooth
        progress.best_epoch, progress.best_stage = progress.epoch + 1, record["stage"]
    before = progress.waited if progress.epoch else 0  # every stage starts with full patience
    progress.waited = 0 if better or not progress.moved or (criterion.smooth and lower) else before + 1
    return EpochDecision(keep=better, stop=patience is not None and progress.waited >= patience)


def doubts(criterion: Criterion, progress: RunPosition, stage: str) -> Iterator[str]:
    """Yield remarks after a stage if its best epoch, whose weights are kept, is a doubtful choice."""
    metric = criterion.metric
    records = [each for each in progress.history if each["stage"] == stage and "validation" in each]
    judged = [float(each["validation"][metric]) for each in records if metric in each["validation"]]
    defined = [value for value in judged if not math.isnan(value)]
    if not defined:
        return
    also = f", or train.metric = {criterion.smooth!r}" if criterion.smooth else ""
    if len(defined) < len(judged) / 2:
        yield (
            f"the validation {metric} was undefined in {len(judged) - len(defined)} of {len(judged)} epochs, which "
            f"were not compared: use a greater train.validation{also}"
        )
    if len(judged) <= SHORT:
        return
    if not progress.moved:
        yield (
            f"the validation {metric} never rose above that of one constant answer ({defined[-1]:.3g} in the last "
            f"epoch), so that the {criterion.smooth} chose the epoch: train longer, set train.balance = true{also}"
        )
    elif progress.best_stage == stage and progress.best_epoch == records[0]["epoch"]:
        yield (
            f"no later epoch had a better validation {metric}, so that the first epoch's weights are kept: the "
            "network may have learnt little; lower the learning rate, or use a greater train.validation"
        )


async def share_decision(
    part: PartyRun,
    net: Channel,
    progress: RunPosition,
    plan: dict[str, Tensor],
    record: dict[str, Any],
    *,
    validates: bool,
    last: bool,
    joint: JointExecution | None = None,
) -> EpochDecision:
    """Return the decision on whether to keep an epoch's weights, whether to stop, and which parties rejoin.

    The active party makes the decision and sends it; every other party receives it. The decision is not sent to parties
    that rejoin after this epoch, because the next message that they expect is the plan of the stage.

    No party rejoins after the last epoch of a stage (``last`` is true), because the party could not train its networks
    further.

    In joint execution (``joint``), only the active party calls this function, and the message is only counted.
    """
    roster = part.seat.roster
    if part.leads:
        decided = judge(part.criterion, part.settings.patience, progress, record) if validates else EpochDecision()
        readmitted = await _let_in(part, net, progress, plan, record, shut=last or decided.stop)
        decided = replace(decided, back=readmitted, whole=not record.get("absent"))
        back = torch.tensor([name in decided.back for name in roster.names], dtype=torch.uint8)
        flags = torch.tensor([decided.keep, decided.stop, decided.whole], dtype=torch.uint8)
        message = {"verdict": flags, "back": back}
        for name in roster.names:
            if name in {net.me, *decided.back}:
                continue
            if joint is None:
                await net.send(name, "verdict", message)
            else:
                joint.count(net.me, name, "verdict", sum(tensor.nbytes for tensor in message.values()))
        return decided
    expect = {"verdict": TensorSpec((3,), torch.uint8), "back": TensorSpec((len(roster.names),), torch.uint8)}
    got = await net.recv(roster.active, "verdict", expect)
    keep, stop, whole = got["verdict"].bool().tolist()
    names = tuple(compress(roster.names, got["back"].tolist()))
    for name in names:
        part.hooks.membership.admit(name)
    return EpochDecision(keep=keep, stop=stop, back=names, whole=whole)


async def _let_in(
    part: PartyRun, net: Channel, progress: RunPosition, plan: dict[str, Tensor], record: dict[str, Any], *, shut: bool
) -> tuple[str, ...]:
    """Record the parties that are gone, readmit parties that came back, and return the names of the readmitted parties.

    If ``shut`` is true, no party is readmitted.  This function is called at the active party.
    """
    membership = part.hooks.membership
    gone, back = membership.gone(), []
    if gone:
        record["absent"] = gone
    for name in () if shut else membership.waiting_to_rejoin():
        if net.is_dropped(name):
            continue
        membership.admit(name)
        try:
            if part.hooks.welcome is not None:
                await part.hooks.welcome(net, name)
            await control_messages.welcome(net, name, part.agreed, (progress.stage, progress.epoch + 1))
            await net.send(name, "plan", plan)
        except AnypartyError as error:
            membership.lose(name, str(error))
            continue
        back.append(name)
    if back:
        progress.best, record["back"] = None, back
    return tuple(back)


def check_numbers(answered: Predictions, validation: int, stage: str) -> None:
    """Check that the predictions for the validation rows are not NaN, because they can be NaN even if the loss is not.

    ``validation`` is the number of validation rows. Their predictions are the first in ``answered``. If only some of
    these predictions are NaN, a remark is given.

    Raises:
        Diverged: no validation row has a usable prediction, because predictions are NaN.
    """
    broken = sum(n < validation and why == NO_NUMBER for n, why in answered.reasons.items())
    if not broken:
        return
    if not answered.answered[:validation].any():
        raise Diverged(f"{answered.predictor}: in stage {stage!r} the loss is a number, but every answer "
                       "for a validation row is NaN: lower the learning rate; in a user-defined method, check its "
                       "answers")  # fmt: skip
    remark(
        f"stage {stage!r}: the networks gave no number for some validation rows; the scores cover only the other rows"
    )


def check_ended(part: PartyRun, record: Mapping[str, Any]) -> None:
    """Check that no user and no other program stopped the run, at the active party or at another party.

    Without this check, the active party would save an epoch that other parties did not save.  A busy server reports
    the end of a job late, so the reasons why parties are absent are also checked.

    Raises:
        Stopped: the run was stopped.
    """
    absent = record.get("absent")
    others = ENDED if absent and any(ENDED in why for why in absent.values()) else ""
    if why := part.hooks.membership.stop_reason() or others:
        raise Stopped(why)


def noted(part: PartyRun, stage: Stage, state: State, progress: RunPosition, *, averages: bool) -> list[str]:
    """Report and return the remarks on a stage that has ended; ``averages`` is True if weights were averaged."""
    remarks = list(_remarks(part, stage, state, progress, averages=averages)) if part.leads else []
    if remarks:
        note(f"stage {stage.name!r}: {'; '.join(remarks)}")
    if part.leads and part.settings.keep == "best" and stage.loss is None:
        for sentence in doubts(part.criterion, progress, stage.name):
            remark(f"stage {stage.name!r}: {sentence}")
    return remarks


def _remarks(part: PartyRun, stage: Stage, state: State, progress: RunPosition, *, averages: bool) -> Iterator[str]:
    if stage.remark is not None and (sentence := stage.remark(part.rows)):
        yield sentence
    if sentence := _unjudged(part, stage, progress):
        yield sentence
    last = progress.stage == len(part.method.stages(part.seat)) - 1
    if last and isinstance(part.method, HasRemarks):
        yield from part.method.remarks(state, part.rows, part.training)
    if part.settings.keep == "average" and not averages:
        yield "before the last quarter of the epochs, so that there is nothing to average: the last weights are kept"


def _unjudged(part: PartyRun, stage: Stage, progress: RunPosition) -> str:
    """Return a remark if no epoch of a stage had a validation score, and an empty string if an epoch had one."""
    judged = [each["validation"] for each in progress.history if each["stage"] == stage.name and "validation" in each]
    if not judged or part.settings.keep != "best":
        return ""
    name = part.criterion.metric if stage.loss is None else "loss"
    if any(not math.isnan(float(scores[name])) for scores in judged):
        return ""
    return f"no epoch had a {name} on the validation rows, so that none was chosen: the last one's weights are kept"
