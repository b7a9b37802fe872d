"""One batch of training FALSE-VFL, in either stage (sections 3.3.2 and 3.3.3).

    pretrain   minus the mean of log (1/L) sum_l w_nl over all rows
    train      minus the mean of log (1/L) sum_l w_nl p_psi(y_n | z_nl) over labelled rows

Letters and symbols as in ``false_vfl`` and ``false_vfl_nets``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from anyparty.blocks.blocks import Rows
from anyparty.methods.false_vfl_exchange import Home, Turn
from anyparty.methods.false_vfl_lead import labels, learn, weigh
from anyparty.methods.false_vfl_nets import LABEL_SIDE, bound, feature_side, followed, label_side, trained
from anyparty.methods.method import Batch, State
from anyparty.nets.taught import Tied
from anyparty.terms import Channel

if TYPE_CHECKING:
    from anyparty.methods.false_vfl import FalseVFL

PRETRAIN, TRAIN = "pretrain", "train"
ENCODES, DECODES = ("encoder",), ("decoder", "indicator")


async def step(
    method: FalseVFL, stage: str, net: Channel, state: State, rows: Rows, batch: Batch
) -> float | None:  # fmt: skip
    """Play a party's part in one batch of a stage.

    Raises:
        Diverged: something is no longer a number.
    """
    learns, loss = method.learns(stage), None
    turn = replace(
        method.turn(net, state, rows, batch, state.seat.roster.blocks, L=method.samples),
        follows="encoder" in learns, common=False,
    )  # fmt: skip
    for name, module in state.modules.items():
        module.train(name in learns)
    if stage in state.optimizers:
        state.optimizers[stage].zero_grad()
    home = None
    if "encoder" in state.modules:
        encoder, decoder = (trained(state, set(learns) & set(names)) for names in (ENCODES, DECODES))
        home = turn.encode(feature_side(state, method.floor), encoder, decoder)
    if state.seat.me == state.seat.roster.active:
        loss = await _lead(method, stage, turn, state, home)
    elif home is not None:
        await turn.answer(home)
    if stage in state.optimizers:
        state.optimizers[stage].step()
    return loss


async def _lead(method: FalseVFL, stage: str, turn: Turn, state: State, home: Home | None) -> float:
    """Weigh samples, take the loss, and carry it back through those samples that weigh something."""
    side = label_side(state, method.floor)
    weighed = await weigh(turn, side, home)
    known, log_w = labels(turn) if stage == TRAIN else None, weighed.log_w
    tied = state.modules["tied"]
    assert isinstance(tied, Tied)
    tied.note(weighed.there.observed, None if known is None else known[1])
    if known is not None:
        with torch.no_grad():
            log_w = log_w + side.log_label(weighed.z, known[0])
    share = side.share(weighed.there.observed.any(dim=1), known)
    loss = -(share * bound(log_w)).sum()
    turn.finite(loss, "the loss is")
    u = -turn.batch.share * share * followed(log_w, method.negligible if known is None else 0.0)
    mine = trained(state, set(method.learns(stage)) & set(LABEL_SIDE))
    await learn(turn, side, home, weighed, u, mine, known)
    return loss.item()
