"""Use FALSE-VFL's generative model to impute a party's missing block, and to score how unusual a row is.

    impute           MAR   mean: E[x^k | x^O] = sum_l alpha_l E[x^k | z_l]; for a sample, one of the L vectors z_l is
                           chosen with probability alpha_l, and x^k is drawn from p(x^k | z_l)
                     MNAR  mean: E[x^k | x^O, m] = sum_l alpha_l x^k_l; for a sample, one of the L blocks x^k_l is
                           chosen with probability alpha_l; here w_l includes the probability that this block is
                           missing (not-MIWAE; Ipsen, Mattei, Frellsen, ICLR 2021)
    log_likelihood   log (1/L) sum_l w_l, whose expectation is a lower bound of log p(x^O); under MNAR, of
                     log p(x^O, m)

The party that owns the columns receives the samples of z and their weights, computes the imputations and keeps them.

Notation as in ``distributions``; w_l is the weight of sample z_l, alpha_l = w_l / sum_j w_j, m says which blocks are
missing, and S is the number of samples of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyparty.core.types import Channel, TensorSpec
from anyparty.methods.false_vfl.distributions import bound, feature_side
from anyparty.methods.false_vfl.false_vfl import FalseVFL
from anyparty.methods.false_vfl.passive_party import BatchTurn
from anyparty.methods.method import Batch, State
from anyparty.problem.rows import Rows


@dataclass(frozen=True)
class Imputed:
    """A party's block, imputed from the other parties' blocks, in prepared units.

    Attributes:
        mean: [B, F], the expected block; NaN if no party whose block may be used has the row.
        samples: [S, B, F], samples of the block; NaN if no party whose block may be used has the row.
        centers: [S, B, F], the means of the decoder's distributions from which the samples were drawn. They give the
            probabilities of category levels.

    """

    mean: Tensor
    samples: Tensor
    centers: Tensor


async def impute(
    method: FalseVFL, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str], *,
    owner: str, S: int = 0, lacks: bool = True,
) -> Imputed | None:  # fmt: skip
    """Impute the block of the party ``owner`` for a batch, together with the other parties.

    Only the owner gets the imputed block; at all other parties, the result is ``None``. Only blocks of the parties in
    ``asked`` are used. ``S`` is the number of samples of the block. If ``lacks`` is true, the owner has none of these
    rows. If ``lacks`` is false, the owner has all of them, and some of their cells are empty.
    """
    me, active = state.seat.me, state.seat.roster.active
    counts = method.mnar and lacks and owner in asked  # whether weights include the missing block's probability
    parts: list[Imputed] = []

    def fill(part: Batch, message: dict[str, Tensor]) -> None:
        turn = method.turn(net, state, rows, part, asked, L=method.predict_samples)
        parts.append(_fill(method, turn, state, message, S, counts=counts))

    for number, chunk in enumerate(method.chunks(batch.rows)):
        part = replace(batch, rows=chunk, step_id=("impute", 0, number))
        weighed = await method.weighed(net, state, rows, part, asked)
        if weighed is not None:
            known = weighed.known(state.seat.roster).any(dim=1)
            message = {"z": weighed.z, "weight": torch.where(known, weighed.log_w.softmax(dim=0), 0.0)}
            if owner == active:
                fill(part, message)
            else:
                await net.send(owner, "imputation", message)
        elif me == owner:
            L = method.predict_samples
            expect = {"z": TensorSpec((L, len(chunk), method.embedding)), "weight": TensorSpec((L, len(chunk)))}
            fill(part, await net.recv(active, "imputation", expect))
    if not parts:
        return None
    mean = torch.cat([each.mean for each in parts])
    return Imputed(mean, *(torch.cat(of, dim=1) for of in zip(*((p.samples, p.centers) for p in parts), strict=True)))


@torch.no_grad()
def _fill(
    method: FalseVFL, turn: BatchTurn, state: State, message: dict[str, Tensor], S: int, *, counts: bool
) -> Imputed:
    """Return the imputed block, computed from the samples ``message["z"]`` and their weights ``message["weight"]``.

    If ``counts`` is true, the weights include the probability that the block is missing. Each weight then belongs to
    one sample of the block, which is drawn with ``turn.block_noise``.
    """
    z, weight = (message[name].to(state.seat.device) for name in ("z", "weight"))
    decoded = feature_side(state, method.floor).decode(z)
    blocks = decoded.at(turn.block_noise(torch.arange(z.shape[1]), decoded.mean.shape[2])) if counts else decoded.mean
    known = weight.sum(dim=0) > 0
    mean = torch.einsum("lb,lbf->bf", weight, blocks)
    generator, B = turn.batch.generator("imputation"), z.shape[1]
    chosen = torch.zeros(B, S, dtype=torch.int64)
    if S and B:
        lots = torch.where(known, weight, 1.0).T.cpu()
        chosen = torch.multinomial(lots, S, replacement=True, generator=generator)
    place, row = chosen.T.to(z.device), torch.arange(B, device=z.device)
    samples = blocks[place, row]
    if not counts:
        samples = samples + decoded.std[place, row] * torch.randn(samples.shape, generator=generator).to(z.device)
    each, unknown = (mean, samples, decoded.mean[place, row]), ~known.unsqueeze(1)
    return Imputed(*(one.masked_fill(unknown, torch.nan).cpu() for one in each))


async def log_likelihood(
    method: FalseVFL, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
) -> Tensor | None:
    """Run one party's side of scoring rows; at the active party, return estimates of log p(x^O) [B].

    An estimate is NaN if no party in ``asked`` has the row.
    """
    parts = []
    for chunk in method.chunks(batch.rows):
        weighed = await method.weighed(net, state, rows, replace(batch, rows=chunk), asked)
        if weighed is not None:
            known = weighed.known(state.seat.roster).any(dim=1)
            parts.append(torch.where(known, bound(weighed.log_w), torch.nan).cpu())
    return torch.cat(parts) if parts else None
