"""One batch of training FALSE-VFL, in either stage (sections 3.3.2 and 3.3.3).

    pretrain   minus the mean of log (1/L) sum_l w_nl over all rows
    train      minus the mean of log (1/L) sum_l w_nl p_psi(y_n | z_nl) over labelled rows

Letters and symbols as in ``false_vfl`` and ``false_vfl_nets``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.methods.false_vfl_exchange import Home, Turn
from anyparty.methods.false_vfl_nets import LABEL_SIDE, feature_side, label_side, trained
from anyparty.methods.method import Batch, State
from anyparty.terms import Channel, Expect

if TYPE_CHECKING:
    from anyparty.methods.false_vfl import FalseVFL

PRETRAIN, TRAIN = "pretrain", "train"


async def step(
    method: FalseVFL, stage: str, net: Channel, state: State, rows: Rows, batch: Batch
) -> float | None:  # fmt: skip
    """Play a party's part in one batch of a stage.

    Raises:
        Diverged: something is no longer a number.
    """
    learns, loss = method.learns(stage), None
    back: dict[str, Tensor] = {}
    turn = replace(
        method.turn(net, state, rows, batch, state.seat.roster.blocks, L=method.samples),
        follows="encoder" in learns, common=False,
    )  # fmt: skip
    for name, module in state.modules.items():
        module.train(name in learns)
    if stage in state.optimizers:
        state.optimizers[stage].zero_grad()
    home = turn.encode(feature_side(state, method.floor)) if "encoder" in state.modules else None
    if state.seat.me == state.seat.roster.active:
        loss, back = await _lead(method, stage, turn, state, home)
    elif home is not None:
        await turn.answer(home)
        if turn.follows:
            back = await net.recv(state.seat.roster.active, "gradient", _comes_back(stage, turn, home))
    if home is not None and turn.follows:
        home.backward(back, trained(state, set(learns) - set(LABEL_SIDE)))
    if stage in state.optimizers:
        state.optimizers[stage].step()
    return loss


def _comes_back(stage: str, turn: Turn, home: Home) -> dict[str, Expect]:
    expect = {"g": Expect(tuple(home.views.shape))}
    return expect | {"log_p": Expect((turn.L, turn.answers_for(home)))} if stage == PRETRAIN else expect


async def _lead(
    method: FalseVFL, stage: str, turn: Turn, state: State, home: Home | None
) -> tuple[float, dict[str, Tensor]]:
    """Weigh samples, take the loss and its gradients, give the parties theirs; return it, and one's own."""
    side, seat = label_side(state, method.floor), state.seat
    weighed = await turn.weigh(side, home, learns=True)
    labels = turn.labels() if stage == TRAIN else None
    loss = side.loss(weighed.log_w, weighed.draws.z, weighed.there.observed.any(dim=1), labels)
    turn.finite(loss, "the loss is")
    mine = trained(state, set(method.learns(stage)) & set(LABEL_SIDE))
    torch.autograd.backward(loss, inputs=[*([weighed.views, weighed.log_p] if turn.follows else []), *mine])
    if not turn.follows:
        return loss.item(), {}
    assert weighed.views.grad is not None
    turn.finite(weighed.views.grad, "the gradients are")
    backs = weighed.backs(turn, likelihoods=stage == PRETRAIN)
    for name, back in backs.items():
        if name != seat.me:
            await turn.net.send(name, "gradient", back)
    return loss.item(), backs.get(seat.me, {})
