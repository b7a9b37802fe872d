"""A slow version of FedHSSL's self-supervised loss, in double precision; fine-tuning uses the split method's."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from anyparty.methods.method import Batch, State
from anyparty.methods.split.fedhssl import FedHSSL
from anyparty.methods.split.plug import Plug
from tests.methods.reference import joint_gradients as split_gradients
from tests.methods.reference_self_supervised import cut, unlike
from tests.worlds import World

SHARED = ("encoder.top.", "projector.", "predictor.")


def joint_gradients(
    method: FedHSSL, of: World, states: Mapping[str, State], batch: Batch
) -> tuple[float, dict[str, Tensor]]:
    """Return the active party's loss of a batch, and the derivatives of each party's loss for its own parameters."""
    if batch.step_id[0] != "pretrain":
        return split_gradients(replace(method.split, rule=Plug(dropout=0.0)), of, states, batch)  # all have its rows
    roster, active = of.roster, of.roster.active
    nets = {
        name: nn.ModuleDict({key: deepcopy(module).double() for key, module in states[name].modules.items()})
        for name in roster.blocks
    }
    if batch.step_id[-1] == 0:
        _aggregate(list(nets.values()))
    rows = {name: [n for n in batch.rows.tolist() if of.observed[n, k]] for k, name in enumerate(roster.blocks)}
    x = {name: of.x[name][own] for name, own in rows.items()}
    z = {name: nets[name]["cross_projector"](nets[name]["encoder"].cross(x[name].double())) for name in roster.blocks}
    p = {name: nets[name]["cross_predictor"](z[name]) for name in roster.blocks}
    t = {name: z[name] if method.pretrain == "simsiam" else _followed(nets[name], x[name]) for name in roster.blocks}
    losses, found = {}, {}
    for name in roster.blocks:
        losses[name] = _within(method, nets[name], x[name], t[name], batch.generator(f"views of {name}"))
        others = [other for other in roster.blocks if other != active] if name == active else [active]
        across = []
        for other in others:
            both = [n for n in rows[name] if n in rows[other]]
            ours, theirs = ([rows[who].index(n) for n in both] for who in (name, other))
            across.append(unlike(method, p[name][ours], t[other][theirs]))
        losses[name] = losses[name] + sum(across) / len(across)
        named = {
            f"{name}/{key.replace('.', '/', 1)}": parameter
            for key, parameter in nets[name].named_parameters()
            if not key.startswith("heads") and parameter.requires_grad
        }
        gradients = torch.autograd.grad(losses[name], list(named.values()), retain_graph=True, allow_unused=True)
        found |= cut(method, named, gradients)
    return losses[active].item(), found


def _aggregate(nets: list[nn.ModuleDict]) -> None:
    every = [dict(net.named_parameters()) for net in nets]
    for key in every[0]:
        if key.startswith(SHARED):
            mean = torch.stack([own[key].detach().float() for own in every]).mean(0).double()
            for own in every:
                own[key].data = mean.clone()


def _followed(net: nn.ModuleDict, x: Tensor) -> Tensor:
    return net["target_cross_projector"](net["target_encoder"].module.cross(x.double())).detach()


def _within(method: FedHSSL, net: nn.ModuleDict, x: Tensor, cross: Tensor, generator: torch.Generator) -> Tensor:
    p, t = [], []
    for view in method.views(x, generator):
        z = net["projector"](net["encoder"].top(net["encoder"].bottom(view.double())))
        p.append(net["predictor"](z))
        if method.pretrain != "simsiam":
            followed = net["target_encoder"].module
            z = net["target_projector"](followed.top(followed.bottom(view.double())))
        t.append(z)
    alike = unlike(method, p[0], t[1]) + unlike(method, p[1], t[0])
    guided = unlike(method, p[0], cross) + unlike(method, p[1], cross)
    return (alike + method.guide * guided) / 2
