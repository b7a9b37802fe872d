"""Make a split method from one torch module, which maps the embeddings of the present parties to the answer.

    class Mean(nn.Module):
        def __init__(self, K, H, C): ...                      # parties, width of an embedding, outputs
        def forward(self, h, observed): return ...            # [B, K, H], [B, K] -> [B, C]

    federation.train(module_method(Mean, embedding=32))

``Split`` provides the encoders, messages, optimizers, checkpoints, and prediction without some parties. For several
heads, another loss or another combination of answers, write a ``Rule`` (``anyparty.methods.split.rule``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from anyparty.core.types import Capabilities, Roster, Task
from anyparty.errors import ConfigError
from anyparty.methods.split.rule import HeadPlan, Host, Noise, Rule, every_row
from anyparty.methods.split.split_method import Split
from anyparty.networks.heads import Heads

MakeModule = Callable[[int, int, int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class ModuleRule(Rule):
    """A rule with one head: a user's module that reads the embeddings of the present parties.

    Attributes:
        title: the method's name in tables.
        drop: in training, the probability that a present party is left out of a row; at least one party always stays.

    """

    title: str
    drop: float = 0.0

    @property
    def can(self) -> Capabilities:
        """The capabilities: the method trains on, and predicts for, any row that at least one party has."""
        return replace(super().can, title=self.title)

    def plan(self, roster: Roster, task: Task | None, width: int) -> HeadPlan:
        """Return the plan of one head, which reads K embeddings and one presence flag per party."""
        return HeadPlan(inputs=roster.K * (width + 1), noise={"left out": ("rows", "parties")} if self.drop else {})

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row."""
        if self.drop:
            kept = observed & (noise["left out"] >= self.drop)
            observed = torch.where(kept.any(dim=1, keepdim=True), kept, observed)
            h = torch.where(observed.unsqueeze(2), h, 0.0)
        return every_row(host.loss(heads(_joined(h, observed)).squeeze(1), y))

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the module's outputs [B, 1, C], and a mask [B, 1] of the rows that at least one party has."""
        return heads(_joined(h, observed)), observed.any(dim=1, keepdim=True)


def _joined(h: Tensor, observed: Tensor) -> Tensor:
    """Return embeddings [B, K, H] and presence flags [B, K] side by side: [B, 1, K (H + 1)].

    The module selects embeddings by the flags: a check tries it with numbers in place of absent embeddings.
    """
    return torch.cat([h.flatten(1), observed.to(h.dtype)], dim=1).unsqueeze(1)


@dataclass(frozen=True)
class ModuleHead:
    """A factory of heads that call the user's module."""

    of: MakeModule
    embedding: int

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Make the head for an input of ``inputs`` = K (H + 1) numbers."""
        return PresenceHead(self.of, inputs // (self.embedding + 1), self.embedding, outputs)


class PresenceHead(nn.Module):
    """A head that splits its input into embeddings and presence flags, and calls the user's module."""

    def __init__(self, of: MakeModule, K: int, H: int, C: int) -> None:
        super().__init__()
        self.K, self.H, self.module = K, H, of(K, H, C)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's outputs: [B, K (H + 1)] -> [B, C]."""
        h, observed = x[:, : self.K * self.H].view(len(x), self.K, self.H), x[:, self.K * self.H :] > 0.5
        outputs: Tensor = self.module(h, observed)
        return outputs


def module_method(of: MakeModule, *, embedding: int = 64, drop: float = 0.0, title: str = "") -> Split:
    """Make a split method from a module.

    Args:
        of: a class of modules, or a function that makes a module. The arguments of the class or function are K, the
            number of parties; H, the width of an embedding; and C, the number of outputs (1 for a regression). The
            module's ``forward(h, observed)`` takes embeddings [B, K, H], and a mask [B, K] of the present parties, by
            which it selects embeddings. It returns outputs [B, C].
        embedding: H, the width of an embedding.
        drop: in training, the probability that a present party is left out of a row, so that the module learns to
            answer without it.
        title: the method's name in tables; by default the name of ``of``.

    Raises:
        ConfigError: ``of`` is not a class or a function, or ``drop`` is out of range.

    """
    if not callable(of) or isinstance(of, nn.Module):
        raise ConfigError(f"module_method: expected a class of modules, or a function of (K, H, C) that makes one, got "
                          f"{of!r}")  # fmt: skip
    if not 0 <= drop < 1:
        raise ConfigError(f"module_method: drop must be at least 0 and below 1, got {drop}")
    name = title or str(getattr(of, "__name__", type(of).__name__))
    return Split(rule=ModuleRule(title=name, drop=drop), embedding=embedding, make_head=ModuleHead(of, embedding))
