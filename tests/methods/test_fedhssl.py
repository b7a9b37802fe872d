"""FedHSSL: the parties it compares, the weights it averages, and its requirements."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anyparty.errors import ConfigError, PartyLost
from anyparty.methods.method_registry import method
from anyparty.methods.split import fedhssl
from anyparty.networks.encoders import MLP
from tests import worlds
from tests.worlds import Table, world

SHARED = ("encoder/top.", "projector/", "predictor/")


def pretrain(of, states, at=None, number=0, rows=None):
    wanted = of.places() if rows is None else rows
    return worlds.step(method("fedhssl", embedding=4), of, states, wanted, at=at, number=number, stage="pretrain")


def shared(states, party):
    own = {name: tensor for name, tensor in worlds.weights({party: states[party]}).items() if "running" not in name}
    return {
        name.removeprefix(f"{party}/"): tensor
        for name, tensor in own.items()
        if name.removeprefix(f"{party}/").startswith(SHARED) and "num_batches" not in name
    }


def test_an_epoch_begins_with_one_top_encoder_for_all_the_mean_of_theirs():
    of = world(N=24)
    states = worlds.begin(method("fedhssl", embedding=4), of)
    before = {name: shared(states, name) for name in "abc"}
    pretrain(of, states, rows=of.places()[:0])  # no rows to learn from, so the mean is the only change
    for name in "abc":
        after = shared(states, name)
        assert len(after) > 10
        for key, tensor in after.items():
            assert torch.allclose(tensor, sum(before[each][key] for each in "abc") / 3, atol=1e-6), key


def test_the_first_mean_has_smaller_weights_as_its_file_says():
    of = world(N=24, K=4)
    wide = method("fedhssl", embedding=64)
    states = worlds.begin(wide, of)
    drawn = states["a"].modules["encoder"].top[1].weight.std().item()
    worlds.step(wide, of, states, of.places()[:0], stage="pretrain")
    assert states["a"].modules["encoder"].top[1].weight.std().item() == pytest.approx(drawn / 4**0.5, rel=0.05)
    assert "1 / sqrt(K) as large" in fedhssl.__doc__


def test_within_an_epoch_nothing_is_averaged():
    of, at = world(N=24), Table()
    states = worlds.begin(method("fedhssl", embedding=4), of)
    pretrain(of, states, at=at, number=3)
    assert {note[2] for note in at.notes} == {"representation"}
    assert not torch.equal(shared(states, "a")["projector/0.weight"], shared(states, "b")["projector/0.weight"])


def test_passive_parties_hear_from_the_active_one_alone_and_of_rows_that_both_have():
    of, at = world(N=24), Table()
    pretrain(of, worlds.begin(method("fedhssl", embedding=4), of), at=at, number=1)
    assert {(frm, to) for frm, to, _, _ in at.notes} == {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}
    told = next(tensors["z"] for frm, to, _, tensors in at.notes if (frm, to) == ("a", "b"))
    assert torch.equal(told.any(dim=1), of.observed[of.observed[:, 1], 0])


def test_local_encoders_are_as_deep_as_the_cross_partys_one():
    made = method("fedhssl", embedding=5)
    encoder = worlds.begin(made, world(), encoder=MLP(hidden=(7, 6)))["b"].modules["encoder"]

    def depth(*modules):
        return sum(isinstance(layer, nn.Linear) for module in modules for layer in module.modules())

    assert depth(encoder.bottom, encoder.top) == depth(encoder.cross) == 3


def test_a_server_without_columns_has_nothing_to_compare():
    of = world(server=True)
    with pytest.raises(ConfigError, match="compares every party with the active one, and 'server' holds no columns"):
        worlds.begin(method("fedhssl", embedding=4), of)


def test_it_fine_tunes_on_whole_rows_and_answers_for_any():
    of, made = world(N=28), method("fedhssl", embedding=4)
    rows = {stage.name: stage.rows(of.rows["a"]) for stage in made.stages(of.seat("a"))}
    assert bool(rows["pretrain"].all())
    assert torch.equal(rows["train"], of.observed.all(dim=1))
    assert bool(worlds.predict(made, of, worlds.begin(made, of)).answered.all())


def test_a_party_that_leaves_ends_fine_tuning_and_not_pretraining():
    of, made = world(N=24, observed=torch.ones(24, 3, dtype=torch.bool)), method("fedhssl", embedding=4)
    states = worlds.begin(made, of)
    worlds.step(made, of, states, of.places(), stage="pretrain", leaves={"b"})
    with pytest.raises(PartyLost, match="party 'b' is gone: FedHSSL cannot train without it"):
        worlds.step(made, of, states, of.places(), stage="train", leaves={"b"})
