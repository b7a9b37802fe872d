"""Self-supervised learning before a split method: first, every party learns from its own rows, labelled or not.

SimSiam (Chen, He: "Exploring Simple Siamese Representation Learning", CVPR 2021), as in the baselines of FALSE-VFL
(Hong, Park, Hwang, arXiv 2505.11035, appendix D.1): each local model is pretrained by itself, then all are fine-tuned
on the labelled rows. No message is sent in this stage. BYOL (Grill et al., NeurIPS 2020) and the third version of MoCo
(Chen, Xie, He, ICCV 2021), which needs no queue, are also available.

Notation  B rows of the batch that the party has, F columns, H width of an embedding, T temperature.
Symbols   x, x'     two views of the same rows                                             [B, F].
          f, g, q   encoder, projector, predictor; z = g(f(x)), p = q(z)                     [B, H].
          t         target of p. For SimSiam, t = z. For BYOL and MoCo, t = g_t(f_t(x)), whose weights follow those of f
                    and g: w_t <- m w_t + (1 - m) w after every step                        [B, H].
Loss      (l(p, t') + l(p', t)) / 2, without a gradient through t. l is the mean over rows of:
          l(p, t)_b = -cos(p_b, t_b)                                            for SimSiam and BYOL;
          l(p, t)_b = -log(exp(cos(p_b, t_b) / T) / sum_c exp(cos(p_b, t_c) / T))   for MoCo, c over the batch's rows.

Rate      The learning rate falls as a cosine; the predictor's learning rate is constant. A step's gradient is clipped
          to the norm ``pretrain_clip`` (He et al., FedHSSL).

Differences   The papers do not define views of a table's row. Here the first view is the row itself. In the second, a
              share ``corrupt`` of the row's numbers is replaced by numbers of other rows of the batch (Bahri et al.:
              "SCARF", ICLR 2022). Here m is constant, while the papers of BYOL and MoCo increase it to 1. The paper of
              MoCo multiplies its loss by 2 T; this factor is omitted. SimSiam, BYOL and MoCo all use SimSiam's
              projector and predictor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, Roster
from anyparty.errors import ConfigError, Diverged
from anyparty.methods.method import Batch, PartyContext, Stage, State, Step
from anyparty.methods.split.split_method import Split
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Rows

STAGE = "pretrain"
PretrainingTask = Literal["none", "simsiam", "byol", "moco"]
FORMS: tuple[str, ...] = get_args(PretrainingTask)
TARGET = "target_"


@dataclass(frozen=True, kw_only=True)
class SelfSupervised:
    """Parameters of an optional self-supervised stage before the training of a split method.

    Attributes:
        pretrain: "none", or the loss with which every party first trains its encoder on its own rows, labelled or not:
            "simsiam", "byol" or "moco".
        pretrain_epochs: number of epochs of this stage; by default as many as in training.
        pretrain_batch_size: number of rows of a batch in this stage; by default as many as in training.
        pretrain_lr: learning rate of this stage, which falls as a cosine, except for predictors.
        pretrain_optimizer: "sgd" with momentum 0.9, or "adam".
        pretrain_weight_decay: weight decay of this optimizer.
        pretrain_follow: m, the share of its old weights that a target network of BYOL or MoCo keeps in every step.
        pretrain_temperature: T, the temperature of MoCo.
        pretrain_clip: the largest norm of a step's gradient over all parameters; a larger gradient is scaled to this
            norm.
        corrupt: the share of a row's numbers that the row's second view takes from other rows.

    """

    pretrain: PretrainingTask = "none"
    pretrain_epochs: int | None = None
    pretrain_batch_size: int | None = None
    pretrain_lr: float = 0.025
    pretrain_optimizer: Literal["sgd", "adam"] = "sgd"
    pretrain_weight_decay: float = 3e-5
    pretrain_follow: float = 0.99
    pretrain_temperature: float = 0.2
    pretrain_clip: float = 5.0
    corrupt: float = 0.3

    def __post_init__(self) -> None:
        if self.pretrain not in FORMS:
            raise ConfigError(f"method: pretrain is one of {', '.join(FORMS)}, not {self.pretrain!r}")
        for name in ("pretrain_epochs", "pretrain_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"method: {name} must be at least 1, got {value}")
        if self.pretrain_optimizer not in {"sgd", "adam"} or not 0 <= self.pretrain_weight_decay < math.inf:
            raise ConfigError(
                f"method: pretrain_optimizer {self.pretrain_optimizer!r} must be 'sgd' or 'adam', "
                f"pretrain_weight_decay {self.pretrain_weight_decay} a number and not negative"
            )
        for name in ("pretrain_lr", "pretrain_temperature", "pretrain_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"method: {name} {getattr(self, name)} must be a number above 0")
        for name in ("pretrain_follow", "corrupt"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"method: {name} {getattr(self, name)} must lie in [0, 1)")

    @property
    def optimizer(self) -> Optimizer:
        """Optimizer settings of this stage; by default SGD, as in published FedHSSL and FALSE-VFL experiments."""
        momentum = 0.9 if self.pretrain_optimizer == "sgd" else 0.0
        return Optimizer(name=self.pretrain_optimizer, lr=self.pretrain_lr, momentum=momentum,
                         weight_decay=self.pretrain_weight_decay, schedule="cosine")  # fmt: skip

    def stage(self, step: Step) -> Stage:
        """Return the stage that runs ``step`` on batches of all rows that at least one party has."""

        def rows(at: Rows) -> Tensor:
            assert at.observed is not None
            return at.observed.any(dim=1)

        return Stage(
            name=STAGE, step=step, rows=rows, validates=False, epochs=self.pretrain_epochs,
            batch_size=self.pretrain_batch_size, optimizer=self.optimizer,
        )  # fmt: skip

    def add_targets(self, modules: dict[str, nn.Module], *names: str) -> None:
        """Add a target network "target_NAME" for each name in ``names``; with SimSiam, do nothing."""
        if self.pretrain not in {"byol", "moco"}:
            return
        for name in names:
            average = get_ema_multi_avg_fn(self.pretrain_follow)  # type: ignore[no-untyped-call]
            target = AveragedModel(modules[name], multi_avg_fn=average)
            target.update_parameters(modules[name])  # the first call copies all weights to the target
            modules[f"{TARGET}{name}"] = target.requires_grad_(requires_grad=False)

    @staticmethod
    def follow(modules: Mapping[str, nn.Module]) -> None:
        """After a step, move each target network's weights towards the weights of the trained network."""
        for name, module in modules.items():
            if isinstance(module, AveragedModel):
                module.update_parameters(modules[name.removeprefix(TARGET)])

    def loss(self, p: Tensor, t: Tensor) -> Tensor:
        """Return the loss l of predictions p and targets t, a mean over rows and copies: p, t [..., B, H] -> scalar.

        If the party has several copies of its encoder, the axes before the last two are the copies.
        """
        if self.pretrain != "moco":
            return -functional.cosine_similarity(p, t.detach(), dim=-1).mean()
        like = functional.normalize(p, dim=-1) @ functional.normalize(t.detach(), dim=-1).mT
        own = torch.arange(p.shape[-2], device=p.device).expand(p.shape[:-1])
        return functional.cross_entropy((like / self.pretrain_temperature).flatten(0, -2), own.flatten())

    def build(self, modules: Mapping[str, nn.Module]) -> torch.optim.Optimizer:
        """Return an optimizer for all modules; only the learning rate of the predictors is constant."""
        of = {name: [p for p in module.parameters() if p.requires_grad] for name, module in modules.items()}
        predictors = [p for name, own in of.items() if name.endswith("predictor") for p in own]
        return self.optimizer.build((p for name, own in of.items() if not name.endswith("predictor") for p in own),
                                    predictors)  # fmt: skip

    def descend(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        """Make an optimizer step on ``loss``, with the gradient clipped to the norm ``pretrain_clip``."""
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], self.pretrain_clip)
        optimizer.step()

    def views(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return two views of rows [B, F]: the rows themselves, and a copy with some numbers drawn from other rows."""
        B, F = x.shape
        taken = torch.rand(B, F, generator=generator) < self.corrupt
        others = torch.randint(B, (B, F), generator=generator)
        return x, torch.where(taken.to(x.device), x.gather(0, others.to(x.device)), x)


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A split method with a self-supervised stage before its own stages.

    Attributes:
        first: the parameters of the self-supervised stage.
        method: the split method that follows.

    """

    first: SelfSupervised
    method: Split

    schedule_conflict: ClassVar[str] = (
        "cannot be combined with pretraining: set method.pretrain = 'none', or leave out the schedule"
    )

    @property
    def can(self) -> Capabilities:
        """The capabilities of the split method; its encoders also learn from rows without labels."""
        can = self.method.can
        return replace(can, trains_on=f"each party's own rows, then {can.trains_on}", unlabelled=True)

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make the networks of the split method, a projector, a predictor and, with BYOL and MoCo, target networks."""
        state = self.method.begin(seat, seeds)
        if "encoder" not in state.modules:
            return state
        H = self.method.embedding
        with seeds.own.drawing("projector", seat.me):
            state.modules["projector"], state.modules["predictor"] = projector(H), predictor(H)
        for name in ("projector", "predictor"):
            state.modules[name].to(seat.device)
        trained = {name: state.modules[name] for name in ("encoder", "projector", "predictor")}
        state.optimizers[STAGE] = self.first.build(trained)
        self.first.add_targets(state.modules, "encoder", "projector")
        return state

    def hosts(self, roster: Roster) -> tuple[str, ...]:
        """Return the hosts of the split method."""
        return self.method.hosts(roster)

    def label_users(self, roster: Roster) -> tuple[str, ...]:
        """Return the parties whose labels training uses: the hosts."""
        return self.hosts(roster)

    def remarks(self, state: State, rows: Rows, training: Tensor) -> Iterator[str]:
        """Return the split method's remarks on networks that training did not reach."""
        return self.method.remarks(state, rows, training)

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the self-supervised stage, then the stages of the split method."""
        return (self.first.stage(self._step), *self.method.stages(seat))

    async def _step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Train on the party's own rows of the batch; at the active party, return the loss.

        A party with fewer than two rows does nothing, because batch normalisation needs two rows.
        """
        loss: float | None = None
        if "encoder" in state.modules and rows.block is not None:
            x, held = rows.block.take(batch.rows)
            if len(held) > 1:
                loss = self._learn(state, x, batch)
        return loss if state.seat.me == state.seat.roster.active else None

    def _learn(self, state: State, x: Tensor, batch: Batch) -> float:
        me, generator = state.seat.me, batch.own(f"views of {state.seat.me}")
        views = torch.cat(self.first.views(x, generator))
        with batch.drawing("encoder draws", me, device=state.seat.device):
            h = state.modules["encoder"](views)
        z = [_of_rows(state.modules["projector"], half) for half in h.chunk(2)]
        p, p2 = (_of_rows(state.modules["predictor"], each) for each in z)
        t, t2 = self._targets(state, views, batch) or z
        p, p2, t, t2 = (each.movedim(0, -2) for each in (p, p2, t, t2))  # [B, copies, H] -> [copies, B, H]
        loss = (self.first.loss(p, t2) + self.first.loss(p2, t)) / 2
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"party {me!r}: the loss is {value} at {batch}: lower pretrain_lr, or look for "
                           f"extreme values in its columns")  # fmt: skip
        self.first.descend(state.optimizers[STAGE], batch.share * loss)
        self.first.follow(state.modules)
        return value

    def _targets(self, state: State, views: Tensor, batch: Batch) -> list[Tensor]:
        """Return the targets of the two views; an empty list with SimSiam, whose targets are the projections."""
        if f"{TARGET}encoder" not in state.modules:
            return []
        with torch.no_grad(), batch.drawing("target draws", state.seat.me, device=state.seat.device):
            h = state.modules[f"{TARGET}encoder"](views)
            return [_of_rows(state.modules[f"{TARGET}projector"], half) for half in h.chunk(2)]

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of a prediction, as in the split method without pretraining."""
        return await self.method.predict(net, state, rows, batch, asked)


def _of_rows(module: nn.Module, h: Tensor) -> Tensor:
    """Apply a module to rows [B, H], or to the rows of each copy of an encoder [B, copies, H]."""
    made: Tensor = module(h.flatten(0, -2))
    return made.view(h.shape)


def projector(H: int) -> nn.Module:
    """Return a projector of three layers with batch normalisation: [B, H] -> [B, H]."""
    return nn.Sequential(*_layer(H, H), nn.ReLU(), *_layer(H, H), nn.ReLU(), *_layer(H, H))


def predictor(H: int) -> nn.Module:
    """Return a predictor of two layers with a hidden layer of width H / 4: [B, H] -> [B, H]."""
    narrow = max(1, H // 4)
    return nn.Sequential(*_layer(H, narrow), nn.ReLU(), nn.Linear(narrow, H))


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs)
