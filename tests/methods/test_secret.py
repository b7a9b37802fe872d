"""A party's private draws come from its own secret streams, with every method: see decision 14."""

from dataclasses import replace
from functools import partial

import polars as pl
import pytest
import torch

from anyparty.core.draws import normal
from anyparty.core.seeds import Seeds
from anyparty.methods.false_vfl.distributions import SampleStreams, feature_side
from anyparty.methods.method import Batch
from anyparty.methods.method_registry import METHODS, method
from tests import worlds
from tests.worlds import train, world

SECRET, OTHER = bytes(32), bytes(range(32))
PLAIN = [(name, {}) for name in METHODS if name != "boosting"]  # trees have no first weights
MORE = [("laser", {"pretrain": "simsiam"}), ("laser", {"unlabelled": "pseudo"}), ("false-vfl-2", {"hidden": (3,)})]


def weights(made, party, secret):
    state = made.begin(world().seat(party), Seeds(0, secret))
    return {
        f"{name}.{key}": value for name, module in state.modules.items() for key, value in module.named_parameters()
    }


@pytest.mark.parametrize(("name", "parameters"), [*PLAIN, *MORE])
def test_first_weights_are_of_the_secret(name, parameters):
    made = method(name, **parameters)
    for party in ("a", "b"):
        first, again, other, seeded = (weights(made, party, each) for each in (SECRET, SECRET, OTHER, b""))
        assert all(torch.equal(first[key], again[key]) for key in first)
        drawn = [key for key, value in first.items() if len(value.unique()) > 1]  # ones and zeros are not secret
        assert drawn or (party == "b" and name == "vfedtrans")
        assert not [key for key in drawn if torch.equal(first[key], other[key]) or torch.equal(first[key], seeded[key])]


def test_dropout_and_views_are_of_the_secret_and_common_lots_are_not():
    def draws(secret):
        batch = Batch(torch.arange(2), Seeds(0, secret), ("train", 0, 0))
        with batch.drawing("encoder draws", "a", device=torch.device("cpu")):
            inside = torch.rand(3).tolist()
        return (
            inside,
            torch.rand(3, generator=batch.own("views of a")).tolist(),
            torch.rand(3, generator=batch.generator("tasks")).tolist(),
        )

    first, again, other, seeded = map(draws, (SECRET, SECRET, OTHER, b""))
    assert first == again
    assert all(first[place] != each[place] for each in (other, seeded) for place in (0, 1))
    assert first[2] == other[2] == seeded[2]


@pytest.mark.parametrize(("name", "parameters"), [("laser", {"pretrain": "simsiam"}), ("fedhssl", {})])
def test_views_of_rows_are_no_common_lots(name, parameters, monkeypatch):
    asked, common = [], Batch.generator
    monkeypatch.setattr(Batch, "generator", lambda batch, stream: asked.append(stream) or common(batch, stream))
    train(method(name, embedding=4, **parameters), world(), epochs=1)
    assert not [stream for stream in asked if stream.startswith("views")]


class TestSamplesOfFalseVFL:
    """Two samples and their random numbers would give the posterior, and from it another party's view of a row."""

    MADE = method("false-vfl-1", embedding=4, top=3, hidden=(8,), head_hidden=(8,), samples=10, predict_samples=10)

    def world(self):
        return worlds.world(K=2, N=16)  # only b has a third of the rows

    def states(self, of, secret):
        seeds = {"a": Seeds(0, secret), "b": Seeds(0, secret and OTHER)}
        return {name: self.MADE.begin(of.seat(name), seeds[name]) for name in of.roster.names}

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize(("secret", "worst"), [(b"", False), (SECRET, True)])
    def test_another_party_cannot_compute_a_view_of_a_row(self, training, secret, worst):
        of, at = self.world(), worlds.Table()
        states, rows = self.states(of, secret), of.places()
        if training:
            batch = worlds.batch_of(rows, stage="pretrain")
            stage = worlds.stage_of(self.MADE, of.seat("a"), "pretrain")
            seeded = replace(batch, seeds=Seeds(0, secret))
            parts = {
                name: partial(worlds._step, stage, states[name], of.rows[name], seeded if name == "a" else batch)
                for name in of.roster.names
            }
            at.play(of.roster, self.MADE.can.messages, parts)
            key = Seeds(0).number("z", "pretrain", 0, 0)
            drawn = normal(key, rows, torch.arange(10), torch.arange(4)).transpose(0, 1)
        else:
            worlds.predict(self.MADE, of, states, at=at)
            whose = ["".join(str(int(here)) for here in row) for row in of.observed]
            names = [("samples", who, *([f"row {n}"] if who[0] == "1" else [])) for n, who in enumerate(whose)]
            each = [torch.randn(10, 7, generator=Seeds(0).torch(*name)) for name in names]
            drawn = torch.stack(each, dim=1)[..., :4]
        z = next(tensors["z"] for _, to, tag, tensors in at.notes if (to, tag) == ("b", "samples"))
        sent = next(tensors["h"] for frm, _, tag, tensors in at.notes if (frm, tag) == ("b", "embedding"))
        both, own = of.observed.all(dim=1), of.observed[:, 1]
        drawn, here = drawn[:, own], both[own]
        std = (z[0] - z[1]) / (drawn[0] - drawn[1])
        found = (2 * (z[0] - std * drawn[0]) - sent.chunk(2, dim=1)[0])[here]
        x, _ = of.rows["a"].block.take(both.nonzero().squeeze(1))
        with torch.no_grad():
            told = feature_side(self.states(of, secret)["a"], self.MADE.floor).encode(x).chunk(2, dim=1)[0]
        assert ((found - told).abs().max() > 0.5 * told.std()) == worst

    def test_with_a_key_too_an_answer_depends_on_the_row_alone(self):
        of = self.world()
        states = self.states(of, SECRET)
        whole = worlds.predict(self.MADE, of, states).scores
        order = torch.randperm(16)
        parts = torch.cat([worlds.predict(self.MADE, of, states, rows).scores for rows in order.split(5)])
        assert torch.allclose(parts, whole[order], atol=1e-6)
        other = self.states(of, SECRET)
        other["a"].modules["draws"].key += 1
        assert not torch.allclose(worlds.predict(self.MADE, of, other).scores, whole, atol=1e-4)

    def test_a_row_has_numbers_of_its_own_by_its_id_and_who_has_it(self):
        there = torch.tensor([[True, True], [True, False], [True, True], [False, True], [False, True], [True, True]])
        names = pl.Series(["1", "1", "2", None, None, "1"])
        drawn = SampleStreams(Seeds(0, SECRET)).normal(Seeds(0), there, names, 50, 40)
        assert drawn.shape == (50, 6, 40)
        assert drawn.mean().abs() < 0.1
        assert abs(float(drawn.std()) - 1) < 0.05
        assert torch.equal(drawn[:, 0], drawn[:, 5])
        assert torch.equal(drawn[:, 3], drawn[:, 4]), "without an id, those of rows that the same parties have"
        assert torch.corrcoef(drawn[:, :4].transpose(0, 1).flatten(1)).fill_diagonal_(0).abs().max() < 0.1
        alone = SampleStreams(Seeds(0, SECRET)).normal(Seeds(1), there[1:2], names[1:2], 50, 40)
        assert torch.equal(alone[:, 0], drawn[:, 1]), "whatever else is in the batch, whatever the run's seed"
        for seeds in (Seeds(0), Seeds(1)):
            plain = [SampleStreams(Seeds(5)).normal(seeds, there, names, 50, 40) for _ in range(2)]
            assert torch.equal(*plain)
            assert not torch.equal(plain[0], drawn)

    @pytest.mark.parametrize("secret", [b"", SECRET])
    def test_samples_are_off_by_as_much_as_independent_ones_row_by_row(self, secret):
        """Smaller errors, as of antithetic pairs, would reveal a row's posterior; errors equal in all rows add up."""
        names, there = pl.Series([f"row {n}" for n in range(300)]), torch.ones(300, 2, dtype=torch.bool)
        means = 50**0.5 * SampleStreams(Seeds(0, secret)).normal(Seeds(0), there, names, 50, 20).mean(dim=0)
        assert float(means.std()) == pytest.approx(1, abs=0.05)  # over 300 rows and 20 numbers
        assert means.mean(dim=0).abs().max() < 5 / 300**0.5

    def test_no_two_rows_of_a_prediction_share_numbers(self):
        of, at = self.world(), worlds.Table()
        states = self.states(of, SECRET)
        for state in states.values():
            for parameter in state.modules["encoder"].parameters():
                parameter.data.zero_()  # makes all posteriors equal for a set of parties
        worlds.predict(self.MADE, of, states, at=at)
        z = next(tensors["z"] for _, to, tag, tensors in at.notes if (to, tag) == ("b", "samples"))
        both = of.observed.all(dim=1)[of.observed[:, 1]]
        assert both.sum() > 2
        assert len(z[:, both].flatten(0, 1).unique(dim=0)) == 10 * both.sum()

    def test_a_model_from_before_keys_loads_without_one(self):
        draws = SampleStreams(Seeds(0, SECRET))
        assert draws.secret
        draws.load_state_dict({})
        assert not draws.secret
        assert not SampleStreams(Seeds(0)).secret
