"""Try a user's rule or heads on rows of the first batch of a training, for mistakes that no loss would show.

The trial costs a few calls of the rule on at most 64 rows. ``anyparty.testing.check_method`` has all checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor

from anyparty.errors import UserError
from anyparty.methods.method import Batch
from anyparty.methods.split.rule import HeadPlan, Host, Rule, draw_noise, losses_of, outputs_of
from anyparty.networks.heads import Heads

ROWS = 64
TOLERANCE = 1e-3  # relative to the largest loss, because embeddings are in single precision


def mistakes(
    rule: Rule, plan: HeadPlan, host: Host, heads: Heads, batch: Batch, h: Tensor, observed: Tensor, y: Tensor,
    use: Tensor, loss: Tensor,
) -> Iterator[str]:  # fmt: skip
    """Yield a sentence for each mistake of a rule that the rows of a batch show.

    Args:
        rule: the rule.
        plan: the rule's plan.
        host: the host of the heads.
        heads: the heads; they are copied, so that no statistic of batch normalisation changes.
        batch: the batch.
        h: [B, K, H] embeddings.
        observed: [B, K] bool, the parties that have each row.
        y: [B] labels.
        use: [B] bool, the rows that have a weight.
        loss: the loss of the batch.

    """
    title = f"{rule.can.title}:"
    if h.requires_grad and loss.requires_grad:
        gradient: Tensor | None = torch.autograd.grad(loss, h, retain_graph=True, allow_unused=True)[0]
        if gradient is None:
            yield (f"{title} the loss has no gradient for the embeddings, so that no encoder is trained: use h without "
                   "detach, also in the heads")  # fmt: skip
    rows = use.nonzero().squeeze(1)[:ROWS]
    noise = batch.noise
    if noise is None:
        noise = draw_noise(plan, host, [batch], batch.rows.to(h.device).unsqueeze(0), observed.shape[1])[0]
    try:
        heads = deepcopy(heads).eval()
    except Exception:  # a user's module may hold anything
        return

    def losses(at: Tensor, absent: float = 0.0) -> tuple[Tensor, Tensor]:
        drawn = {name: each[at] if "rows" in plan.noise[name] else each for name, each in noise.items()}
        cells = observed[at].view(-1, observed.shape[1], *[1] * (h.ndim - 2))
        given = torch.where(cells, h.detach()[at], absent).requires_grad_()
        each, counts = losses_of(rule, host, heads, given, observed[at], y[at], drawn)
        return torch.where(counts, each, 0.0).detach(), counts

    whole, counts = losses(rows)
    if not _alike(losses(rows[::2])[0], whole[::2]):
        yield f"{title} the losses of a row change if other rows are left out: compute each row alone, take no mean"
    if not _alike(torch.where(counts, losses(rows, absent=100.0)[0], 0.0), whole):
        yield (f"{title} the embedding of an absent party changes the losses: select embeddings by observed, as "
               "torch.where(observed.unsqueeze(2), h, 0.0) does")  # fmt: skip
    try:
        with torch.no_grad():
            valid = outputs_of(rule, plan, host, heads, torch.zeros_like(h[:1]), torch.zeros_like(observed[:1]))[1]
    except UserError:
        return  # the first prediction raises the error
    if bool(valid.any()):
        yield f"{title} a row that no party has gets an answer: mark it in valid, as observed.any(dim=1) does"


def _alike(one: Tensor, other: Tensor) -> bool:
    scale = float(other.abs().nan_to_num(posinf=0.0).max().clamp(min=1.0)) if other.numel() else 1.0
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE * scale, equal_nan=True)
