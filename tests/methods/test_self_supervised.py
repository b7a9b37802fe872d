"""Self-supervised pretraining before a split method: each party trains alone on all of its rows, then as usual."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.methods.method_registry import SPLIT, method
from anyparty.methods.split.pretraining import Pretrained, SelfSupervised
from anyparty.methods.split.split_method import Split
from tests import worlds
from tests.api.test_imputation import tables
from tests.worlds import Table, world

TARGETS = ("target_encoder", "target_projector")


def made(pretrain="simsiam", **parameters):
    return method("laser", embedding=6, pretrain=pretrain, **parameters)


def test_without_it_there_is_nothing_before_the_method():
    assert isinstance(method("laser", embedding=6), Split)
    assert isinstance(made(), Pretrained)
    assert made().can.unlabelled
    assert not method("laser").can.unlabelled


def test_one_view_is_the_row_the_other_takes_a_share_of_numbers_from_other_rows_of_the_same_column():
    x = torch.arange(4000.0).view(1000, 4)
    same, view = SelfSupervised(corrupt=0.4).views(x, torch.Generator().manual_seed(0))
    assert torch.equal(same, x)
    assert (view != x).float().mean().item() == pytest.approx(0.4, abs=0.02)
    assert (view % 4 == torch.arange(4.0)).all()
    assert torch.equal(SelfSupervised(corrupt=0.0).views(x, torch.Generator())[1], x)


def test_the_rate_falls_but_for_the_predictors():
    first, modules = SelfSupervised(pretrain_lr=0.4), {name: nn.Linear(2, 2) for name in ("encoder", "predictor")}
    optimizer = first.build(modules)
    first.optimizer.set_rate(optimizer, 5, 10)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert [rate[id(p)] for p in modules["encoder"].parameters()] == pytest.approx([0.2, 0.2])
    assert [rate[id(p)] for p in modules["predictor"].parameters()] == [0.4, 0.4]


def test_a_long_gradient_is_cut():
    first = SelfSupervised(pretrain_lr=1.0, pretrain_clip=0.5, pretrain_weight_decay=0.0)
    weight = nn.Parameter(torch.zeros(2))
    first.descend(first.optimizer.build([weight]), (weight * torch.tensor([30.0, 40.0])).sum())
    assert torch.allclose(weight, torch.tensor([-0.3, -0.4]))


def test_no_message_crosses_and_every_encoder_learns_from_rows_without_labels():
    of, at = world(N=40, labeled=torch.zeros(40, dtype=torch.bool), echo=True), Table()
    states = worlds.begin(made(), of)
    before = worlds.weights(states)
    for number in range(2):
        worlds.step(made(), of, states, of.places(), at=at, number=number, stage="pretrain")
    after = worlds.weights(states)
    assert at.notes == []
    for name in "abc":
        assert not torch.equal(before[f"{name}/encoder/0.weight"], after[f"{name}/encoder/0.weight"])
    assert torch.equal(before["a/heads/first.weight"], after["a/heads/first.weight"])


@pytest.mark.parametrize(("form", "least"), [("simsiam", -1), ("byol", -1), ("moco", 0)])
def test_the_loss_falls(form, least):
    of = world(N=200, echo=True)
    first = made(form, pretrain_lr=0.1, pretrain_epochs=12, pretrain_batch_size=50)
    history = worlds.train(first, of, epochs=1)["a"].history
    losses = [record["loss"] for record in history if record["stage"] == "pretrain"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.2
    assert min(losses) >= least


@pytest.mark.parametrize("how", [made, partial(method, "fedhssl", embedding=4)], ids=["laser", "fedhssl"])
@pytest.mark.parametrize("form", ["byol", "moco"])
def test_targets_follow_after_every_step_and_learn_nothing_else(form, how):
    of, first = world(N=40, echo=True), how(pretrain=form, pretrain_follow=0.75)
    states = worlds.begin(first, of)
    target = {name: dict(states["b"].modules[name].module.named_parameters()) for name in TARGETS}
    for number in (1, 2):
        before = {name: {key: p.clone() for key, p in of_it.items()} for name, of_it in target.items()}
        worlds.step(first, of, states, of.places(), number=number, stage="pretrain")
        for name, of_it in target.items():
            own = dict(states["b"].modules[name.removeprefix("target_")].named_parameters())
            for key, p in of_it.items():
                assert torch.allclose(p, 0.75 * before[name][key] + 0.25 * own[key], atol=1e-7), (name, key)
                assert not p.requires_grad
        assert not all(torch.equal(p, before["target_encoder"][key]) for key, p in target["target_encoder"].items())


def test_simsiam_has_nothing_that_follows():
    assert not [name for name in worlds.begin(made(), world())["a"].modules if name.startswith("target_")]


def test_from_tables_to_disk_and_back(tmp_path):
    given = tables(rows=80)[0]
    model = Federation.from_tables(given, label="bad").train(
        "laser", parameters={"embedding": 4, "pretrain": "simsiam"}, epochs=2, batch_size=16
    )
    assert {record["stage"] for record in model.history} == {"pretrain", "train"}
    model.save(tmp_path)
    loaded = Model.load(tmp_path)
    assert loaded.method == model.method
    assert torch.equal(loaded.predict(given).scores, model.predict(given).scores)


@pytest.mark.parametrize(
    ("name", "form"), [*((name, "simsiam") for name in sorted(SPLIT)), ("laser", "byol"), ("plug", "moco")]
)
def test_every_split_method_takes_every_form(name, form):
    of, first = world(N=40, echo=True), method(name, embedding=6, pretrain=form)
    states = worlds.begin(first, of)
    before = worlds.weights(states)
    loss = worlds.step(first, of, states, of.places(), number=1, stage="pretrain")
    after = worlds.weights(states)
    assert not all(torch.equal(before[key], after[key]) for key in before if key.startswith("b/encoder"))
    assert isinstance(loss, float)


@pytest.mark.parametrize("form", ["simsiam", "moco"])
def test_copies_of_an_encoder_do_not_compete(form):
    p, t = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))  # three copies, five rows
    first = SelfSupervised(pretrain=form)
    each = [first.loss(*pair) for pair in zip(p, t, strict=True)]
    assert torch.allclose(first.loss(p, t), torch.stack(each).mean())
