"""Slow versions of the losses of SimSiam, BYOL and MoCo: row by row, in double precision.

The later stage uses the split method's slow version.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor

from anyparty.methods.method import Batch, State
from anyparty.methods.split.pretraining import Pretrained, SelfSupervised
from tests.methods.reference import joint_gradients as split_gradients
from tests.worlds import World


def joint_gradients(
    method: Pretrained, of: World, states: Mapping[str, State], batch: Batch
) -> tuple[float, dict[str, Tensor]]:
    """Return the active party's loss of a batch, and the derivatives of each party's loss for its own parameters."""
    if batch.step_id[0] != "pretrain":
        return split_gradients(method.method, of, states, batch)
    found: dict[str, Tensor] = {}
    losses = dict.fromkeys(of.roster.names, 0.0)
    for k, name in enumerate(of.roster.blocks):
        nets = {key: deepcopy(module).double() for key, module in states[name].modules.items()}
        rows = [n for n in batch.rows.tolist() if of.observed[n, k]]
        named = {
            f"{name}/{key}/{place}": p
            for key in ("encoder", "projector", "predictor")
            for place, p in nets[key].named_parameters()
            if p.requires_grad
        }
        loss = _loss(method, nets, of.x[name][rows], batch.generator(f"views of {name}"))
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        found |= cut(method.first, named, gradients)
        losses[name] = loss.item()
    return losses[of.roster.active], found


def cut(first: SelfSupervised, named: Mapping[str, Tensor], gradients: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    """Return a step's gradient, with its norm over all parameters limited as in the method."""
    whole = {key: torch.zeros_like(p) if g is None else g for (key, p), g in zip(named.items(), gradients, strict=True)}
    length = sum(float((g**2).sum()) for g in whole.values()) ** 0.5
    return {key: g * min(1.0, first.pretrain_clip / (length + 1e-6)) for key, g in whole.items()}


def _loss(method: Pretrained, nets: Mapping[str, torch.nn.Module], x: Tensor, generator: torch.Generator) -> Tensor:
    p, t = [], []
    for view in method.first.views(x, generator):
        z = _of_rows(nets["projector"], nets["encoder"](view.double()))
        p.append(_of_rows(nets["predictor"], z))
        if "target_encoder" in nets:
            z = _of_rows(nets["target_projector"], nets["target_encoder"](view.double()))
        t.append(z)
    copies = [slice(None)] if p[0].dim() == 2 else [(slice(None), c) for c in range(p[0].shape[1])]
    pairs = [(p[one][c], t[1 - one][c]) for one in (0, 1) for c in copies]
    return torch.stack([unlike(method.first, *pair) for pair in pairs]).mean()


def _of_rows(module: torch.nn.Module, h: Tensor) -> Tensor:
    return module(h.reshape(-1, h.shape[-1])).view(h.shape)


def unlike(first: SelfSupervised, p: Tensor, t: Tensor) -> Tensor:
    """Return the mean of l(p, t), computed row by row."""
    total, t = torch.zeros((), dtype=torch.float64), t.detach()
    for b in range(len(p)):
        cosines = [p[b] @ t[c] / (p[b].norm() * t[c].norm()) for c in range(len(p))]
        if first.pretrain == "moco":
            scores = [torch.exp(cosine / first.pretrain_temperature) for cosine in cosines]
            total = total - torch.log(scores[b] / sum(scores))
        else:
            total = total - cosines[b]
    return total / len(p)
