"""What is asked of a method, which may be a user's own: slips that would fail far from their place."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING

from anyparty.errors import ConfigError
from anyparty.predictions import Predictions

if TYPE_CHECKING:
    from anyparty.blocks.blocks import Rows
    from anyparty.methods.method import Batch, Method, Seat, Stage, State
    from anyparty.seeds import Seeds
    from anyparty.terms import Channel


def begin(method: Method, seat: Seat, seeds: Seeds) -> State:
    """Return what a party keeps of the model, untrained.

    Raises:
        ConfigError: the method makes nothing of the kind.
    """
    state: object = method.begin(seat, seeds)
    if not hasattr(state, "modules"):
        raise ConfigError(f"{method.can.title}: expected a State from begin, got a {type(state).__name__}")
    return state  # type: ignore[return-value]


async def step(method: Method, stage: Stage, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
    """Play a step of a stage.

    Raises:
        ConfigError: it is no coroutine.
    """
    played: object = stage.step(net, state, rows, batch)
    if not inspect.isawaitable(played):
        raise ConfigError(f"{method.can.title}: the step of stage {stage.name!r} must be a coroutine, async def, as "
                          f"it waits for other parties; it gives a {type(played).__name__}")  # fmt: skip
    loss: float | None = await played
    return loss


def answered(method: Method, state: State, answer: object) -> Predictions | None:
    """Return a party's answer for a batch, without a gradient; ``None`` where it does not lead.

    Raises:
        ConfigError: it is of another kind, or the active party has none.
    """
    leads = state.seat.me == state.seat.roster.active
    if answer is None and not leads:
        return None
    if not isinstance(answer, Predictions):
        raise ConfigError(f"{method.can.title}: expected predict to give Predictions at the active party"
                          f"{'' if leads else ', and None elsewhere'}, got a {type(answer).__name__}")  # fmt: skip
    by_party = answer.by_party
    if not answer.scores.requires_grad and (by_party is None or not by_party.requires_grad):
        return answer
    return replace(answer, scores=answer.scores.detach(), by_party=None if by_party is None else by_party.detach())
