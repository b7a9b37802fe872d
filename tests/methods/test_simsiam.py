"""SimSiam before a split method: every party alone, on all of its rows; then the method as ever."""

from __future__ import annotations

import pytest
import torch

from anyparty.methods.simsiam import Pretrained, SimSiam
from anyparty.methods.split import Split
from anyparty.methods.table import method
from anyparty.run.federation import Federation
from anyparty.run.model import Model
from tests import worlds
from tests.run.test_generative import tables
from tests.worlds import Table, world


def made(**parameters):
    return method("laser", embedding=6, pretrain="simsiam", **parameters)


def test_without_it_there_is_nothing_before_the_method():
    assert isinstance(method("laser", embedding=6), Split)
    assert isinstance(made(), Pretrained)
    assert made().can.unlabelled
    assert not method("laser").can.unlabelled


def test_views_take_a_share_of_their_numbers_from_other_rows_of_the_same_column():
    x = torch.arange(4000.0).view(1000, 4)
    view = SimSiam(corrupt=0.4).views(x, torch.Generator().manual_seed(0))
    assert (view != x).float().mean().item() == pytest.approx(0.4, abs=0.02)
    assert (view % 4 == torch.arange(4.0)).all()
    assert torch.equal(SimSiam(corrupt=0.0).views(x, torch.Generator()), x)


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


def test_the_loss_falls():
    of = world(N=200, echo=True)
    history = worlds.train(made(pretrain_lr=0.1, pretrain_epochs=12, pretrain_batch_size=50), of, epochs=1)["a"].history
    losses = [record["loss"] for record in history if record["stage"] == "pretrain"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.2
    assert min(losses) >= -1


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
