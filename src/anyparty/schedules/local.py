"""Local iterations: optimizers that begin anew in every round, the proximal term, one step after another."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyparty.methods.method import State
from anyparty.schedules.schedule import Local


@dataclass
class Steps:
    """The optimizer steps of one party in one round.

    ``starts`` are the parameters at the start of the round, for the proximal term.
    """

    state: State
    local: Local
    starts: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, optimizer in self.state.optimizers.items():
            if self.local.momentum == "local" and isinstance(optimizer, torch.optim.SGD):
                optimizer.state.clear()
            if self.local.mu:
                self.starts[name] = [parameter.detach().clone() for parameter in _parameters(optimizer)]

    def step(self, name: str) -> None:
        """Take the step that the gradients of a network's parameters, and the proximal term, call for."""
        optimizer = self.state.optimizers.get(name)
        if optimizer is None:  # a user's own may have nothing to train
            return
        for parameter, start in zip(_parameters(optimizer), self.starts.get(name, ()), strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - start, alpha=self.local.mu)
        optimizer.step()


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def set_rate(state: State, rate: float) -> None:
    """Give all of a party's optimizers a learning rate."""
    for optimizer in state.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate
