"""What falls out of a generative model: a missing block filled in at home, and rows unlike those of training.

    impute           E[x^k | x^O] = sum_l alpha_l E[x^k | z_l], and samples of p(x^k | x^O): z_l by its weight, then x^k
    log_likelihood   log (1/L) sum_l w_l, a lower estimate of log p(x^O)

Imputations are made by the party that owns the columns and stay there: the samples of z and their weights go to it.

Letters and symbols as in ``false_vfl_nets``; S samples of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyparty.blocks.blocks import Rows
from anyparty.methods.false_vfl import FalseVFL
from anyparty.methods.false_vfl_nets import bound, feature_side
from anyparty.methods.method import Batch, State
from anyparty.terms import Channel, Expect


@dataclass(frozen=True)
class Imputed:
    """A party's block as the other parties' blocks make it likely, in prepared units.

    Attributes:
        mean: [B, F]; NaN where nobody that was asked has the row.
        samples: [S, B, F], the same.

    """

    mean: Tensor
    samples: Tensor


async def impute(
    method: FalseVFL, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str], *,
    owner: str, S: int = 0,
) -> Imputed | None:  # fmt: skip
    """Play a party's part in filling in the block of ``owner``, who alone gets it, for the rows of a batch."""
    me, active = state.seat.me, state.seat.roster.active
    parts = []
    for number, chunk in enumerate(method.chunks(batch.rows)):
        part = replace(batch, rows=chunk, moment=("impute", 0, number))
        weighed = await method.weighed(net, state, rows, part, asked)
        if weighed is not None:
            known = weighed.there.observed.any(dim=1)
            told = {"z": weighed.z, "weight": torch.where(known, weighed.log_w.softmax(dim=0), 0.0)}
            if owner == active:
                parts.append(_fill(method, state, part, told, S))
            else:
                await net.send(owner, "imputation", told)
        elif me == owner:
            L = method.predict_samples
            expect = {"z": Expect((L, len(chunk), method.embedding)), "weight": Expect((L, len(chunk)))}
            parts.append(_fill(method, state, part, await net.recv(active, "imputation", expect), S))
    if not parts:
        return None
    return Imputed(torch.cat([each.mean for each in parts]), torch.cat([each.samples for each in parts], dim=1))


@torch.no_grad()
def _fill(method: FalseVFL, state: State, batch: Batch, told: dict[str, Tensor], S: int) -> Imputed:
    """Turn weighed samples of z into the party's block: mean [B, F] and samples [S, B, F]."""
    z, weight = (told[name].to(state.seat.device) for name in ("z", "weight"))
    decoded = feature_side(state, method.floor).decode(z)
    known = weight.sum(dim=0) > 0
    mean = torch.einsum("lb,lbf->bf", weight, decoded.mean)
    generator, B = batch.generator("imputation"), z.shape[1]
    chosen = torch.zeros(B, S, dtype=torch.int64)
    if S and B:
        lots = torch.where(known, weight, 1.0).T.cpu()
        chosen = torch.multinomial(lots, S, replacement=True, generator=generator)
    noise = torch.randn(S, B, mean.shape[1], generator=generator).to(z.device)
    place, row = chosen.T.to(z.device), torch.arange(B, device=z.device)
    samples = decoded.mean[place, row] + decoded.std[place, row] * noise
    unknown = ~known.unsqueeze(1)
    return Imputed(mean.masked_fill(unknown, torch.nan).cpu(), samples.masked_fill(unknown, torch.nan).cpu())


async def log_likelihood(
    method: FalseVFL, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
) -> Tensor | None:
    """Play a party's part in scoring rows; the active party gets the estimates of log p(x^O), [B], NaN if unknown."""
    parts = []
    for chunk in method.chunks(batch.rows):
        weighed = await method.weighed(net, state, rows, replace(batch, rows=chunk), asked)
        if weighed is not None:
            known = weighed.there.observed.any(dim=1)
            parts.append(torch.where(known, bound(weighed.log_w), torch.nan).cpu())
    return torch.cat(parts) if parts else None
