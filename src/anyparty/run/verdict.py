"""After an epoch: which weights to keep, whether to stop, who is gone and who takes part again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from anyparty.errors import ENDED, AnypartyError, Diverged, Stopped, note, remark
from anyparty.methods.method import Stage, State
from anyparty.nets.taught import Taught
from anyparty.predictions import NO_NUMBER, Predictions
from anyparty.run import agree
from anyparty.run.agree import Verdict
from anyparty.run.checkpoint import Progress
from anyparty.run.labels import untaught
from anyparty.run.part import Part
from anyparty.terms import Channel
from anyparty.wire.guard import is_dropped


async def verdict(
    part: Part, net: Channel, progress: Progress, plan: dict[str, Tensor], record: dict[str, Any], *,
    validates: bool, last: bool,
) -> Verdict:  # fmt: skip
    """Decide, at the active party; hear what was decided, at the others.

    After the ``last`` epoch of a stage nobody is let in: its networks could not follow the others' any more.
    """
    if part.leads:
        said = _judge(part, progress, record) if validates else Verdict()
        said = replace(said, back=await _let_in(part, net, progress, plan, record, shut=last or said.stop))
        return await agree.share_verdict(net, part.seat.roster, said)
    said = await agree.share_verdict(net, part.seat.roster, None)
    for name in said.back:
        part.door.admit(name)
    return said


async def _let_in(
    part: Part, net: Channel, progress: Progress, plan: dict[str, Tensor], record: dict[str, Any], *, shut: bool
) -> tuple[str, ...]:
    """Note who is gone, and let in who has come back, at the active party; return who takes part again."""
    gone, back = part.door.gone(), []
    if gone:
        record["absent"] = gone
    for name in () if shut else part.door.waiting_to_rejoin():
        if is_dropped(net, name):
            continue
        part.door.admit(name)
        try:
            if part.welcome is not None:
                await part.welcome(net, name)
            await agree.welcome(net, name, part.agreed, (progress.stage, progress.epoch + 1))
            await net.send(name, "plan", plan)
        except AnypartyError as error:
            part.door.lose(name, str(error))
            continue
        back.append(name)
    if back:
        progress.best, record["back"] = None, back
    return tuple(back)


def alone(part: Part, stage: Stage, progress: Progress, record: dict[str, Any]) -> Verdict:
    """Decide for oneself, where nothing crosses: by the stage's own loss, or the active party by its metric."""
    if "validation" not in record:
        return Verdict()
    if stage.loss is None:
        return _judge(part, progress, record)
    return _better(part, progress, record, record["validation"]["loss"], greater=False)


def _judge(part: Part, progress: Progress, record: dict[str, Any]) -> Verdict:
    """Say whether this epoch is the best so far, and whether to stop, at the active party."""
    assert part.seat.task is not None
    metric, greater = part.settings.metric_for(part.seat.task)
    return _better(part, progress, record, float(record["validation"][metric]), greater=greater)


def unjudged(part: Part, stage: Stage, progress: Progress) -> str:
    """Say so where no epoch of a stage had a number to be judged by, at the active party; else nothing."""
    judged = [each["validation"] for each in progress.history if each["stage"] == stage.name and "validation" in each]
    if not judged or part.settings.keep != "best":
        return ""
    name = "loss"
    if stage.loss is None:
        assert part.seat.task is not None
        name, _ = part.settings.metric_for(part.seat.task)
    if any(not math.isnan(float(scores[name])) for scores in judged):
        return ""
    return f"no epoch had a {name} on the validation rows, so that none was chosen: the last one's weights are kept"


def check_numbers(answered: Predictions, validation: int, stage: str) -> None:
    """Look at the answers for the validation rows, which stand first: networks may give none where a loss is a number.

    Raises:
        Diverged: no validation row has a number, and networks have given none for some of them.
    """
    broken = sum(n < validation and why == NO_NUMBER for n, why in answered.reasons.items())
    if not broken:
        return
    if not answered.answered[:validation].any():
        raise Diverged(f"{answered.predictor}: in stage {stage!r} the loss is a number, and no answer for a "
                       f"validation row is: lower the learning rate; of a method of your own, look at what it "
                       f"answers")  # fmt: skip
    remark(f"stage {stage!r}: the networks gave no number for some validation rows; their scores are of the others")


def _better(part: Part, progress: Progress, record: dict[str, Any], value: float, *, greater: bool) -> Verdict:
    better = not math.isnan(value) and (
        progress.best is None or (value > progress.best if greater else value < progress.best)
    )
    if better:
        progress.best, progress.best_epoch, progress.best_stage = value, progress.epoch, record["stage"]
    if math.isnan(value):
        return Verdict()
    waited = progress.epoch - (progress.best_epoch if progress.best_stage == record["stage"] else -1)
    return Verdict(keep=better, stop=part.settings.patience is not None and waited >= part.settings.patience)


def check_ended(part: Part, record: Mapping[str, Any]) -> None:
    """Stop the active party, before it keeps an epoch that others have not, if the run was ended, here or for another.

    Word that a job was ended comes late to a busy server.

    Raises:
        Stopped: it was.
    """
    others = ENDED if any(ENDED in why for why in record.get("absent", {}).values()) else ""
    if part.leads and (why := part.door.told() or others):
        raise Stopped(why)


def noted(part: Part, stage: Stage, state: State, progress: Progress, *, averages: bool) -> list[str]:
    """Return what is to be said of a stage at its end, noted in its record; ``averages``: whether there are any."""
    remarks = list(_remarks(part, stage, state, progress, averages=averages))
    if remarks:
        note(f"stage {stage.name!r}: {'; '.join(remarks)}")
    return remarks


def _remarks(part: Part, stage: Stage, state: State, progress: Progress, *, averages: bool) -> Iterator[str]:
    """Yield what is to be said of a stage at its end, at the active party."""
    if not part.leads:
        return
    yield from filter(None, (stage.remark(part.rows) if stage.remark else "", unjudged(part, stage, progress)))
    taught = state.modules.get("taught")
    if isinstance(taught, Taught) and progress.stage == len(part.method.stages(part.seat)) - 1:
        yield from untaught(part, taught.missed)
    if part.settings.keep == "average" and not averages:
        yield "before the last quarter of the epochs, so that there is nothing to average: the last weights stay"
