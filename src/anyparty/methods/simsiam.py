"""SimSiam before a split method: every party first learns from its own rows alone, labelled or not.

Chen, He: "Exploring Simple Siamese Representation Learning", CVPR 2021; as the baselines of FALSE-VFL have it (Hong,
Park, Hwang, arXiv 2505.11035, appendix D.1): each local model is pretrained by itself, then all are fine-tuned on the
labelled rows.  Nothing crosses in this stage.

Letters   B rows of the batch that the party has, F columns, H width of an embedding.
Symbols   x, x'   two views of the same rows                                               [B, F]
          f, g, q   encoder, projector, predictor; z = g(f(x)), p = q(z)                     [B, H]
Loss      -cos(p, stop(z')) / 2 - cos(p', stop(z)) / 2, the mean over rows

Where we differ   The paper does not say what a view of a table's row is.  Here a share ``corrupt`` of its numbers is
                  replaced by those of other rows of the batch (Bahri et al.: "SCARF", ICLR 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from anyparty.blocks.blocks import Rows
from anyparty.errors import ConfigError, Diverged
from anyparty.methods.exchange import moment
from anyparty.methods.method import Batch, Seat, Stage, State, Step
from anyparty.methods.split import Split
from anyparty.nets.optimizer import Optimizer
from anyparty.predictions import Predictions
from anyparty.seeds import Seeds
from anyparty.terms import Capabilities, Channel

STAGE = "pretrain"


@dataclass(frozen=True, kw_only=True)
class SimSiam:
    """What may come before a split method.

    Attributes:
        pretrain: "none", or "simsiam": every party first trains its encoder on its own rows, labelled or not.
        pretrain_epochs: epochs of that; without, as many as afterwards.
        pretrain_batch_size: rows of a batch; without, as many as afterwards.
        pretrain_lr: learning rate of its optimizer, which falls as a cosine.
        pretrain_optimizer: "sgd" with momentum 0.9, or "adam".
        pretrain_weight_decay: of that optimizer.
        corrupt: the share of a row's numbers that a view takes from other rows.

    """

    pretrain: Literal["none", "simsiam"] = "none"
    pretrain_epochs: int | None = None
    pretrain_batch_size: int | None = None
    pretrain_lr: float = 0.025
    pretrain_optimizer: Literal["sgd", "adam"] = "sgd"
    pretrain_weight_decay: float = 3e-5
    corrupt: float = 0.3

    def __post_init__(self) -> None:
        if self.pretrain not in {"none", "simsiam"}:
            raise ConfigError(f"method: pretrain is 'none' or 'simsiam', not {self.pretrain!r}")
        for name in ("pretrain_epochs", "pretrain_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"method: {name} must be at least 1, got {value}")
        if self.pretrain_optimizer not in {"sgd", "adam"} or not 0 <= self.pretrain_weight_decay < math.inf:
            raise ConfigError(
                f"method: pretrain_optimizer {self.pretrain_optimizer!r} must be 'sgd' or 'adam', "
                f"pretrain_weight_decay {self.pretrain_weight_decay} a number and not negative"
            )
        if not 0 < self.pretrain_lr < math.inf or not 0 <= self.corrupt < 1:
            raise ConfigError(f"method: pretrain_lr {self.pretrain_lr} must be a number above 0, "
                              f"corrupt {self.corrupt} lie in [0, 1)")  # fmt: skip

    @property
    def optimizer(self) -> Optimizer:
        """What trains: by default SGD as in the published FedHSSL and FALSE-VFL experiments."""
        momentum = 0.9 if self.pretrain_optimizer == "sgd" else 0.0
        return Optimizer(name=self.pretrain_optimizer, lr=self.pretrain_lr, momentum=momentum,
                         weight_decay=self.pretrain_weight_decay, schedule="cosine")  # fmt: skip

    def stage(self, step: Step) -> Stage:
        """Return the stage that ``step`` plays a batch of: over every row that anybody has."""

        def rows(at: Rows) -> Tensor:
            assert at.observed is not None
            return at.observed.any(dim=1)

        return Stage(
            name=STAGE, step=step, rows=rows, validates=False, epochs=self.pretrain_epochs,
            batch_size=self.pretrain_batch_size, optimizer=self.optimizer,
        )  # fmt: skip

    def views(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a view of rows: [B, F] -> [B, F]."""
        B, F = x.shape
        taken = torch.rand(B, F, generator=generator) < self.corrupt
        others = torch.randint(B, (B, F), generator=generator)
        return torch.where(taken.to(x.device), x.gather(0, others.to(x.device)), x)


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A split method with a stage before its own.

    Attributes:
        first: that stage.
        method: what follows.

    """

    first: SimSiam
    method: Split

    @property
    def can(self) -> Capabilities:
        """What the method can do; its encoders also learn from rows without labels."""
        can = self.method.can
        return replace(can, trains_on=f"each party's own rows, then {can.trains_on}", unlabelled=True)

    def begin(self, seat: Seat, seeds: Seeds) -> State:
        """Make what the method needs, and a projector and a predictor."""
        state = self.method.begin(seat, seeds)
        if "encoder" not in state.modules:
            return state
        H = self.method.embedding
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.number("projector", seat.me))
            state.modules["projector"], state.modules["predictor"] = projector(H), predictor(H)
        for name in ("projector", "predictor"):
            state.modules[name].to(seat.device)
        parameters = [
            parameter
            for name in ("encoder", "projector", "predictor")
            for parameter in state.modules[name].parameters()
            if parameter.requires_grad
        ]
        state.optimizers[STAGE] = self.first.optimizer.build(parameters)
        return state

    def stages(self, seat: Seat) -> Sequence[Stage]:
        """Return SimSiam's stage and the method's own."""
        return (self.first.stage(self._step), *self.method.stages(seat))

    async def _step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:  # noqa: ARG002
        """Train on the party's own rows of the batch, if they are two at least: the normalisation needs others."""
        loss = 0.0
        if "encoder" in state.modules and rows.block is not None:
            x, held = rows.block.take(batch.rows)
            if len(held) > 1:
                loss = self._learn(state, x, batch)
        return loss if state.seat.me == state.seat.roster.active else None

    def _learn(self, state: State, x: Tensor, batch: Batch) -> float:
        me, generator = state.seat.me, batch.generator(f"views of {state.seat.me}")
        views = torch.cat([self.first.views(x, generator), self.first.views(x, generator)])
        with batch.drawing("encoder draws", me, device=state.seat.device):
            h = state.modules["encoder"](views)
        (z, z2), (p, p2) = zip(*(self._ends(state, half) for half in h.chunk(2)), strict=True)
        loss = -(likeness(p, z2) + likeness(p2, z)) / 2
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"party {me!r}: the loss is {value} at {moment(batch)}: lower pretrain_lr, or look for "
                           f"extreme values in its columns")  # fmt: skip
        state.optimizers[STAGE].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        state.optimizers[STAGE].step()
        return value

    def _ends(self, state: State, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return projections and predictions of one view, copies of an encoder as rows: z, p [B, H]."""
        z = state.modules["projector"](h.flatten(0, -2))
        return z, state.modules["predictor"](z)

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Predict as the method does."""
        return await self.method.predict(net, state, rows, batch, asked)


def projector(H: int) -> nn.Module:
    """Return a projector of three layers, normalised over the rows of a batch: [B, H] -> [B, H]."""
    return nn.Sequential(*_layer(H, H), nn.ReLU(), *_layer(H, H), nn.ReLU(), *_layer(H, H))


def predictor(H: int) -> nn.Module:
    """Return a predictor of two layers, a quarter as wide between them: [B, H] -> [B, H]."""
    narrow = max(1, H // 4)
    return nn.Sequential(*_layer(H, narrow), nn.ReLU(), nn.Linear(narrow, H))


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs)


def likeness(p: Tensor, z: Tensor) -> Tensor:
    """Return the mean cosine of predictions and what they should be, which learns nothing from it."""
    return functional.cosine_similarity(p, z.detach(), dim=1).mean()
