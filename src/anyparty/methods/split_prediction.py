"""Prediction of the split family (LASER-VFL, Algorithm 2, for every rule of it).

Parties that are asked send their embeddings to the hosts of heads; every host answers for the rows that it can; the
active party makes one answer of theirs, and says which parties took part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.methods import exchange, own_rule
from anyparty.methods.exchange import Gathered
from anyparty.methods.fusion import Fusion, Given
from anyparty.methods.method import Batch, State
from anyparty.nets.objective import answers
from anyparty.predictions import NO_NUMBER, Predictions
from anyparty.terms import Channel

if TYPE_CHECKING:
    from anyparty.methods.split import Split

UNREAD = "no head reads the embedding of a party that has this row"
UNREACHED = "training reached no labelled row of a party that has this row"


async def predict(
    method: Split, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
) -> Predictions | None:
    """Play a party's part in predicting a batch; the active party has the answer.

    Raises:
        ConfigError: the rule is a user's own, and its outputs or its answer have another form.
    """
    seat, topology = state.seat, state.topology
    assert topology is not None
    with torch.no_grad():  # never around an await: other parties' coroutines share the thread
        mine = method.embed(state, rows, batch) if seat.me in asked else None
    await exchange.share(net, topology.readers[seat.me], mine)
    if seat.me not in topology.hosts:
        return None
    there = await method.gather(net, state, rows, batch, mine, asked)
    fusion = method.heads_of(state)
    near = there.without(fusion.taught.missed if fusion.taught else (), seat.roster)  # of parties reached from here
    with torch.no_grad():
        nobody = torch.zeros(*near.observed.shape, *topology.width, device=seat.device)
        h = near.scatter(seat.roster) if near.parts else nobody
        outputs, valid = own_rule.outputs(method.rule, fusion, h, near.observed)
    if seat.me != seat.roster.active:
        reached = fusion.taught is None or bool(fusion.taught.parties[fusion.owners].any())
        heard = torch.tensor([reached and name in near.parts for name in seat.roster.blocks])
        await net.send(seat.roster.active, "outputs", {"outputs": outputs, "heard": heard})
        return None
    return await _answer(method, net, state, rows, batch, asked, there, fusion, (outputs, valid, near.observed))


async def _answer(
    method: Split, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str],
    there: Gathered, fusion: Fusion, own: tuple[Tensor, Tensor, Tensor],
) -> Predictions:  # fmt: skip
    """Make one answer of what all hosts' heads say.

    ``own`` is of the active party's: outputs, where they stand, and on whom they rest [B, K], those that training has
    reached from there.  From another host it may have reached others.
    """
    seat, topology = state.seat, state.topology
    assert topology is not None
    assert seat.task is not None
    assert rows.key is not None
    assert rows.observed is not None
    known = rows.observed[batch.rows]
    outputs, valid, reached, owners = [own[0]], [own[1]], [own[2]], [fusion.owners]
    for host, ks in topology.hosts.items():
        if host != seat.me:
            owners.append(torch.tensor(ks, device=seat.device))
            shape = (len(batch.rows), len(ks), seat.task.outputs)
            theirs, stands, heard = await exchange.outputs_of(net, host, shape, there, known, seat.roster)
            outputs.append(theirs)
            reached.append(there.observed & heard)
            valid.append(stands.unsqueeze(1) & reached[-1][:, owners[-1]])
    used = [at & stands.any(dim=1, keepdim=True) for at, stands in zip(reached, valid, strict=True)]
    given = Given(
        task=seat.task, answers=answers(seat.task, torch.cat(outputs, 1)), valid=torch.cat(valid, 1),
        owners=torch.cat(owners), observed=torch.stack(used).any(dim=0), key=rows.key[batch.rows], k=fusion.k,
    )  # fmt: skip
    answer = own_rule.answer(method.rule, given)
    made = exchange.predictions(answer, seat, asked, there, method.can.title)
    if not made.reasons:
        return made
    some = there.observed.any(dim=1)
    nan = some & (given.answers.isnan().any(dim=2) & given.valid).any(dim=1)
    unreached = some & ~torch.stack(reached).any(dim=0).any(dim=1)
    unread = torch.tensor([name in asked and name in topology.unread for name in seat.roster.blocks])
    theirs = ~some & known[:, unread.to(known.device)].any(dim=1)
    reasons = dict(made.reasons)
    for why, where in ((NO_NUMBER, nan), (UNREACHED, unreached), (UNREAD, theirs)):
        reasons |= {n: why for n in where.nonzero().squeeze(1).tolist() if n in reasons}
    return replace(made, reasons=reasons)
