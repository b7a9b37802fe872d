"""The cases in which every method is checked: a method, its parameters and its world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anyparty.methods.method import Method
from anyparty.methods.method_registry import method
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.networks.table_encoder import TableEncoder
from tests import worlds
from tests.methods.reference import joint_gradients
from tests.methods.reference_false_vfl import joint_gradients as false_vfl
from tests.methods.reference_fedhssl import joint_gradients as fedhssl
from tests.methods.reference_pseudo import joint_gradients as pseudo
from tests.methods.reference_self_supervised import joint_gradients as self_supervised
from tests.worlds import SGD, SMALL, World, world

ADAM = Optimizer(name="adam", lr=0.02)


class OwnEncoder(nn.Module):
    """A user's own encoder, with a buffer that training changes and a parameter that it does not."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(inputs, 6), nn.Linear(6, outputs)
        self.outer.bias.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.outer(torch.sin(self.inner(x)))


class OwnHead(nn.Module):
    """A user's own head, of a kind that the package does not know."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.rand(inputs) + 0.5), nn.Linear(inputs, outputs)

    def forward(self, u: Tensor) -> Tensor:
        return self.out(torch.tanh(u * self.scale))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method, its parameters, and its world.

    Attributes:
        title: name of the method, with its special settings if it has any.
        of: name of the method in ``METHODS``.
        parameters: parameters of the method.
        world: changes to the default world (``worlds.world``).
        joint: slow version: the loss of a batch and its gradients, in one graph.
        rounding: allowed difference of a gradient from the slow one's, caused by single precision.
        encoder: factory of the parties' networks.
        optimizer: optimizer, unless a check uses another.
        own: factory of a method that is not in ``METHODS``; ``of`` is then any name for it.
    """

    title: str
    of: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    world: Mapping[str, Any] = field(default_factory=dict)
    joint: Callable[..., tuple[float, dict[str, Tensor]]] = joint_gradients
    rounding: float = 1e-5
    encoder: Callable[[int, int], nn.Module] = SMALL
    optimizer: Optimizer = SGD
    own: Callable[[], Method] | None = None

    def make(self) -> Method:
        if self.own is not None:
            return self.own()
        return method(self.of, **({} if self.of == "boosting" else {"embedding": 5}) | self.parameters)

    def draw(self, **changes: Any) -> World:
        return world(**{**self.world, **changes})

    def stages(self, of: World) -> list[str]:
        """Return the names of the training stages."""
        return [stage.name for stage in self.make().stages(of.seat(of.roster.active))]

    def trainable(self, of: World, stage: str | None = None) -> Tensor:
        """Return the rows on which the method, or one of its stages, trains."""
        rows = worlds.stage_of(self.make(), of.seat(of.roster.active), stage).rows(of.rows[of.roster.active])
        return rows.nonzero().squeeze(1).cpu()

    def train(self, of: World, **settings: Any) -> dict[str, Any]:
        return worlds.train(self.make(), of, **{"encoder": self.encoder, "optimizer": self.optimizer, **settings})

    def begin(self, of: World, **settings: Any) -> dict[str, Any]:
        return worlds.begin(self.make(), of, **{"encoder": self.encoder, "optimizer": self.optimizer, **settings})


LABELERS = {"labelers": (0, 2)}
NUMBERS = {"kind": "regression"}
NARROW = {"active_embedding": 4, "passive_embedding": 6, "joint_hidden": (7,), "student_hidden": (7,)}
SEEDED = {"student_hidden": (7,), "masks": "seeded"}
SHARED = {"echo": True}  # a model of the columns can only find what columns share
SCARCE = {"scarce": True}
LATENT = {"top": 3, "hidden": (8,), "head_hidden": (8,), "samples": 4, "predict_samples": 16}
MISSING = LATENT | {"indicator_hidden": (8, 8)}
FEW_TREES = {"trees": 40, "score_trees": 20}
CASES = (
    Case(title="local", of="local"),
    Case(title="standard", of="standard"),
    Case(title="ensemble", of="ensemble"),
    Case(title="combinatorial", of="combinatorial"),
    Case(title="plug", of="plug"),
    Case(title="laser", of="laser"),
    Case(title="sum", of="sum", parameters={"head_hidden": ()}),
    Case(title="sum of numbers", of="sum", world=NUMBERS, optimizer=ADAM),
    Case(title="sum with table encoders and a server", of="sum", world={"server": True}, optimizer=ADAM,
         parameters={"keep": 0.3, "head_hidden": (4,)}, encoder=TableEncoder(units=7, bins=4, drop=0.0)),
    Case(title="local at label holders", of="local", parameters={"hosting": "labelers"}, world=LABELERS),
    Case(title="local of numbers", of="local", world=NUMBERS),
    Case(title="standard with a server", of="standard", world={"server": True}, optimizer=ADAM),
    Case(title="standard with zeros", of="standard", parameters={"absent": "zeros"}),
    Case(title="standard with own modules", of="standard", parameters={"make_head": OwnHead}, encoder=OwnEncoder),
    Case(title="standard of numbers", of="standard", world=NUMBERS),
    Case(title="ensemble, soft", of="ensemble", parameters={"vote": "soft"}),
    Case(title="ensemble at label holders", of="ensemble", parameters={"hosting": "labelers"}, world=LABELERS),
    Case(title="ensemble of numbers", of="ensemble", world=NUMBERS),
    Case(title="combinatorial, hidden heads", of="combinatorial", parameters={"head_hidden": (4,)}),
    Case(title="combinatorial with own modules", of="combinatorial",
         parameters={"make_head": OwnHead}, encoder=OwnEncoder),
    Case(title="combinatorial of numbers", of="combinatorial", world=NUMBERS),
    Case(title="plug, dropout 0.5", of="plug", parameters={"dropout": 0.5}, optimizer=ADAM),
    Case(title="plug with a server", of="plug", parameters={"head_hidden": (4,)}, world={"server": True}),
    Case(title="plug of numbers", of="plug", parameters={"dropout": 0.0}, world=NUMBERS),
    Case(title="laser, not normalized", of="laser", parameters={"normalize": False}),
    Case(title="laser, all tasks", of="laser", parameters={"tasks": "all"}, optimizer=ADAM),
    Case(title="laser, all tasks, not normalized", of="laser", parameters={"tasks": "all", "normalize": False}),
    Case(title="laser, active head", of="laser", parameters={"heads": "active"}),
    Case(title="laser, one head", of="laser", parameters={"heads": "one", "normalize": False}, world={"server": True}),
    Case(title="laser, one head, all tasks", of="laser", parameters={"heads": "one", "tasks": "all"}),
    Case(title="laser, heads with labels", of="laser", parameters={"heads": "labels"}, world=LABELERS),
    Case(title="laser at label holders", of="laser", parameters={"hosting": "labelers"}, world=LABELERS),
    Case(title="laser at label holders, all tasks", of="laser",
         parameters={"hosting": "labelers", "tasks": "all", "normalize": False}, world=LABELERS),
    Case(title="laser with a server", of="laser", world={"server": True}),
    Case(title="laser, hidden heads", of="laser", parameters={"head_hidden": (4, 3)}),
    Case(title="laser with own modules", of="laser", parameters={"make_head": OwnHead}, encoder=OwnEncoder),
    Case(title="laser of numbers", of="laser", world=NUMBERS),
    Case(title="laser, encoders that draw", of="laser", encoder=MLP(hidden=(7,), dropout=0.3, norm=True),
         optimizer=ADAM),
    Case(title="apc", of="apc", parameters=NARROW, optimizer=ADAM),
    Case(title="apc, nothing shared", of="apc", parameters={"distillation": 0.0, "student_hidden": (7,)},
         optimizer=ADAM),
    Case(title="apc on joint embeddings", of="apc", optimizer=ADAM, parameters={"classify_on": "joint", "embedding": 64,
         "joint_hidden": (64,), "active_embedding": 16, "passive_embedding": 16}),
    Case(title="apc, what crossed is kept", of="apc", parameters=NARROW | {"classify_on": "either"}, optimizer=ADAM),
    Case(title="apc, mae, half precision, a head", of="apc", optimizer=ADAM,
         parameters=NARROW | {"distance": "mae", "precision": "float16", "classifier": "head", "head_hidden": (4,)}),
    Case(title="apc, a forest", of="apc", optimizer=ADAM,
         parameters=NARROW | {"classifier": "RandomForestClassifier", "classifier_settings": {"n_estimators": 5}}),
    Case(title="apc of numbers", of="apc", parameters=NARROW, world=NUMBERS, optimizer=ADAM),
    Case(title="apc with own modules", of="apc", parameters=NARROW, encoder=OwnEncoder, optimizer=ADAM),
    Case(title="vfedtrans", of="vfedtrans", parameters=SEEDED, optimizer=ADAM),
    Case(title="vfedtrans with a head", of="vfedtrans", parameters=SEEDED | {"classifier": "head", "append": False},
         optimizer=ADAM),
    Case(title="vfedtrans of numbers", of="vfedtrans", parameters=SEEDED, world=NUMBERS, optimizer=ADAM),
    Case(title="boosting", of="boosting", parameters=FEW_TREES),
    Case(title="boosting, one round", of="boosting", parameters=FEW_TREES | {"rounds": 1}, world={"gaps": True}),
    Case(title="boosting of numbers", of="boosting", parameters=FEW_TREES, world=NUMBERS),
    Case(title="boosting by bins", of="boosting", parameters={"exchange": "bins", "trees": 40}, world={"gaps": True}),
    Case(title="fedhssl", of="fedhssl", joint=fedhssl, rounding=2e-4),
    Case(title="fedhssl by BYOL", of="fedhssl", parameters={"pretrain": "byol"}, joint=fedhssl, rounding=2e-4),
    Case(title="fedhssl by MoCo", of="fedhssl", parameters={"pretrain": "moco", "pretrain_temperature": 0.5},
         joint=fedhssl, rounding=2e-4),
    Case(title="fedhssl of numbers", of="fedhssl", parameters={"guide": 0.0, "head_hidden": (4,)}, world=NUMBERS,
         joint=fedhssl, rounding=2e-4),
    Case(title="laser, pretrained", of="laser", parameters={"pretrain": "simsiam", "pretrain_lr": 0.1},
         joint=self_supervised, rounding=2e-4),
    Case(title="standard, pretrained", of="standard", parameters={"pretrain": "simsiam", "corrupt": 0.6},
         world={"server": True}, joint=self_supervised, rounding=2e-4),
    Case(title="laser, pretrained by BYOL", of="laser", parameters={"pretrain": "byol"}, joint=self_supervised,
         rounding=2e-4),
    Case(title="combinatorial, pretrained by MoCo", of="combinatorial", parameters={"pretrain": "moco"},
         joint=self_supervised, rounding=2e-4),
    Case(title="laser, pseudo-labels", of="laser", parameters={"unlabelled": "pseudo", "sure": 0.35}, world=SCARCE,
         joint=pseudo),
    Case(title="laser, one head, pseudo-labels", of="laser", joint=pseudo, world=SCARCE | {"server": True},
         parameters={"unlabelled": "pseudo", "sure": 0.0, "unlabelled_weight": 0.5, "heads": "one"}),
    Case(title="plug, pseudo-labels", of="plug", parameters={"unlabelled": "pseudo", "sure": 0.3}, world=SCARCE,
         joint=pseudo),
    Case(title="false-vfl-1", of="false-vfl-1", parameters=LATENT, world=SHARED, joint=false_vfl),
    Case(title="false-vfl-2", of="false-vfl-2", parameters=MISSING, world=SHARED, joint=false_vfl),
    Case(title="false-vfl-1, empty cells", of="false-vfl-1", parameters=LATENT, world=SHARED | {"gaps": True},
         joint=false_vfl),
    Case(title="false-vfl-2, empty cells", of="false-vfl-2", parameters=MISSING, world=SHARED | {"gaps": True},
         joint=false_vfl),
    Case(title="false-vfl-2, much is negligible", of="false-vfl-2", parameters=MISSING | {"negligible": 0.2},
         world=SHARED, joint=false_vfl),
    Case(title="false-vfl-1, encoders fixed", of="false-vfl-1", parameters=LATENT | {"train_encoders": False},
         world=SHARED, joint=false_vfl),
    Case(title="false-vfl-1 with a server", of="false-vfl-1", parameters=LATENT, world=SHARED | {"server": True},
         joint=false_vfl),
    Case(title="false-vfl-1 of numbers", of="false-vfl-1", parameters=LATENT, world=SHARED | NUMBERS, joint=false_vfl),
    Case(title="false-vfl-2 of numbers", of="false-vfl-2", parameters=LATENT | {"indicator_hidden": (4,)},
         world=SHARED | NUMBERS | LABELERS, joint=false_vfl),
    Case(title="false-vfl-1 with own modules", of="false-vfl-1", parameters=LATENT | {"make_decoder": OwnEncoder},
         world=SHARED, encoder=OwnEncoder, joint=false_vfl),
)  # fmt: skip

ONCE_BAD = (
    {"distillation": -0.1}, {"distillation": float("nan")}, {"distance": "far"}, {"reduction": "max"},
    {"activation": "step"}, {"student_hidden": (0,)}, {"classifier_settings": 3},
)  # fmt: skip
LATENT_BAD = (
    {"samples": 0}, {"samples": 1.5}, {"predict_samples": 0}, {"negligible": -0.1}, {"negligible": 1.0},
    {"negligible": float("nan")}, {"top": 0}, {"hidden": (0,)}, {"decoder_hidden": (-1,)},
    {"floor": 0.0}, {"floor": float("nan")}, {"pretrain_epochs": 0}, {"pretrain_lr": -1.0}, {"pretrain_batch_size": 0},
    {"train_encoders": "never"},
)  # fmt: skip
BAD: dict[str, tuple[dict[str, Any], ...]] = {
    "local": (),
    "standard": ({"absent": "guess"},),
    "ensemble": ({"vote": "loud"}, {"vote": 1}),
    "combinatorial": (),
    "plug": ({"dropout": 1.0}, {"dropout": -0.1}, {"dropout": float("nan")}, {"dropout": "often"}),
    "sum": ({"keep": 0.0}, {"keep": 1.0}, {"keep": float("nan")}),
    "laser": ({"tasks": "some"}, {"heads": "none"}, {"normalize": "perhaps"}, {"tasks": None}),
    "apc": (
        *ONCE_BAD,
        {"passive_embedding": 0},
        {"active_embedding": -1},
        {"joint_hidden": (0,)},
        {"classify_on": "theirs"},
        {"precision": "float8"},
    ),
    "vfedtrans": (*ONCE_BAD, {"masks": "none"}, {"server": "s"}, {"key_generator": "g"}, {"append": "often"}),
    "boosting": (
        {"exchange": "labels"},
        {"rounds": 0},
        {"rounds": 3},
        {"bins": 15},
        {"bins": 256},
        {"trees": 0},
        {"folds": 1},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"leaves": 1},
        {"keep": 0.0},
        {"keep": 1.0},
        {"score_trees": 0},
        {"score_leaves": 1},
    ),
    "fedhssl": ({"pretrain": "none"}, {"guide": -0.5}, {"guide": float("nan")}, {"pretrain_batch_size": 0}),
    "false-vfl-1": LATENT_BAD,
    "false-vfl-2": (*LATENT_BAD, {"indicator_hidden": (0,)}),
}
BAD_OF_ALL = (
    {"embedding": 0}, {"embedding": 2.5}, {"embedding": "wide"}, {"head_hidden": (0,)}, {"head_hidden": (-3,)},
    {"head_hidden": 8}, {"hosting": "nowhere"}, {"make_head": "linear"}, {"embeding": 8},
    {"pretrain": "dino"}, {"pretrain_follow": 1.0}, {"pretrain_temperature": 0.0}, {"corrupt": 1.0},
    {"pretrain_lr": 0.0}, {"pretrain_epochs": 0},
    {"pretrain_optimizer": "lbfgs"}, {"pretrain_weight_decay": -1.0},
    {"unlabelled": "guess"}, {"sure": 1.0}, {"sure": -0.1}, {"unlabelled_weight": 0.0}, {"unlabelled_epochs": 0},
    {"unlabelled_batch_size": 0},
)  # fmt: skip
