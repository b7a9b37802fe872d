"""Boosting: residuals and bins recomputed by hand, stored trees that were tampered with, resume, and subsets."""

import itertools
import re
import sys
from dataclasses import replace

import lightgbm
import numpy as np
import polars as pl
import pytest
import torch

from anyparty import Federation, Model
from anyparty.core.seeds import Seeds
from anyparty.errors import ConfigError, MessageError, ModelError
from anyparty.methods.method_registry import method
from anyparty.methods.one_exchange import boosting
from anyparty.networks.boosted_trees import Bins, BoostedTrees, TreeSettings, fit_trees
from anyparty.networks.table_encoder import bounds_of
from anyparty.training.callbacks import Callback
from tests import worlds
from tests.worlds import Table

FEW = {"trees": 20, "score_trees": 10}
BINS = {"trees": 20, "exchange": "bins"}


def notes_of(of, **parameters):
    at = Table()
    trained = worlds.train(method("boosting", **parameters), of, at=at)
    return trained, at


def sent(at, tag, name, to):
    return [tensors[name] for _, receiver, each, tensors in at.notes if (each, receiver) == (tag, to)]


class TestScores:
    def test_residuals_are_labels_minus_frequencies_and_then_minus_estimates(self):
        of = worlds.world(N=90, classes=3)
        _, at = notes_of(of, **FEW)
        first, second = sent(at, "residual", "residual", "b")
        y = of.y[of.usable & of.observed[:, 1]]
        counts = torch.bincount(of.y[of.usable], minlength=3) + 1.0
        p = counts / counts.sum()
        assert torch.allclose(first, torch.nn.functional.one_hot(y, 3) - p)
        assert torch.allclose(sent(at, "residual", "curvature", "b")[0], (p * (1 - p)).expand(len(y), 3))
        assert torch.equal(first.argmax(1), y), "a passive party learns every label"
        assert torch.equal(second.argmax(1), y)
        assert not torch.allclose(first, second)

    def test_class_weights_multiply_residuals_of_two_classes(self):
        of = worlds.world(N=60, classes=2)
        of = replace(of, task=replace(of.task, weights=(0.5, 2.0)))
        _, at = notes_of(of, **FEW, rounds=1)
        (found,) = sent(at, "residual", "residual", "b")
        y = of.y[of.usable & of.observed[:, 1]]
        counts = torch.bincount(of.y[of.usable], minlength=2) * torch.tensor([0.5, 2.0]) + 1
        weight = torch.where(y == 1, 2.0, 0.5)
        assert torch.allclose(found[:, 0], (y - counts[1] / counts.sum()) * weight)

    def test_eight_bytes_go_down_and_four_come_up_for_a_row_and_round(self):
        of = worlds.world(N=60, classes=2)
        _, at = notes_of(of, **FEW)
        rows = int((of.usable & of.observed[:, 1]).sum())
        size = {
            tag: sum(row["bytes_sent"] for row in at.ledger.rows() if row["tag"] == tag and "b" in row.values())
            for tag in ("residual", "score")
        }
        assert size == {"residual": 2 * 8 * rows, "score": 2 * 4 * rows}

    def test_a_score_comes_from_trees_that_did_not_see_the_row(self):
        """Scores of noise do not follow the labels of their own rows."""
        of = worlds.world(N=1200, classes=2, shuffled=True, observed=torch.ones(1200, 3, dtype=torch.bool))
        _, at = notes_of(of, **FEW, rounds=1)
        score = sent(at, "score", "score", "a")[0][:, 0]
        assert abs(float(torch.corrcoef(torch.stack([score, of.y.float()]))[0, 1])) < 0.1

    def test_a_curvature_that_is_not_positive_is_refused(self, monkeypatch):
        right = boosting.Boosting._residuals
        monkeypatch.setattr(boosting.Boosting, "_residuals", lambda *given: [right(*given)[0], 0 * right(*given)[1]])
        with pytest.raises(MessageError, match=r"message 'residual' from 'a' to '.'.* positive curvature"):
            notes_of(worlds.world(), **FEW)


class TestBins:
    def test_the_message_has_the_bin_of_each_cell_and_255_for_empty_ones(self):
        of = worlds.world(N=60, gaps=True)
        _, at = notes_of(of, **BINS)
        (codes,) = sent(at, "bins", "code", "a")[:1]
        held = of.usable & of.observed[:, 1]
        cells, empty = of.x["b"][held].numpy(), of.gaps["b"][held].numpy()
        assert (codes.dtype, codes.shape) == (torch.uint8, cells.shape)
        for column in range(cells.shape[1]):
            bounds = bounds_of(cells[~empty[:, column], column].astype(float), 253)
            expected = np.searchsorted(bounds.astype(np.float32), cells[:, column], side="right")
            assert codes[:, column].tolist() == np.where(empty[:, column], Bins.EMPTY, expected).tolist()

    def test_few_bins_are_few(self):
        of = worlds.world(N=400)
        _, at = notes_of(of, **BINS, bins=16)
        assert all(1 < len(codes.unique()) <= 16 for codes in sent(at, "bins", "code", "a"))


@pytest.mark.parametrize("parameters", [FEW, BINS], ids=["scores", "bins"])
class TestAnswers:
    def test_a_row_of_the_active_party_alone_is_answered_by_trees_on_its_columns(self, parameters):
        of = worlds.world(N=200, classes=2)
        made = method("boosting", **parameters)
        states = worlds.states_of(worlds.train(made, of))
        x, _ = of.rows["a"].block.take((of.usable & of.observed[:, 0]).nonzero().squeeze(1))
        y = of.y[of.usable & of.observed[:, 0]]
        own = fit_trees(x, y, TreeSettings(trees=20, rate=0.05, leaves=31, least=20, columns=1), 1, objective="binary")
        cells = of.rows["a"].block.take(of.places())[0]
        expected = torch.from_numpy(own.predict(cells.numpy())).float()
        found = worlds.predict(made, of, states, asked=["a"]).scores[of.observed[:, 0], 1]
        assert float(torch.corrcoef(torch.stack([expected, found]))[0, 1]) > 0.999

    def test_every_set_of_parties_answers_and_is_named(self, parameters):
        of = worlds.world(N=200, classes=2)
        made = method("boosting", **parameters)
        states = worlds.states_of(worlds.train(made, of))
        for asked in (["b"], ["c"], ["a", "c"], ["b", "c"]):
            answered = worlds.predict(made, of, states, asked=asked)
            wanted = of.observed & torch.tensor([name in asked for name in "abc"])
            assert torch.equal(answered.took_part, wanted)
            assert torch.equal(answered.answered, wanted.any(1))

    def test_a_leading_server_needs_no_columns(self, parameters):
        of = worlds.world(N=300, classes=2, server=True, observed=torch.ones(300, 3, dtype=torch.bool))
        made = method("boosting", **parameters)
        states = worlds.states_of(worlds.train(made, of))
        answered = worlds.predict(made, of, states)
        assert float((answered.scores.argmax(1) == of.y).float().mean()) > 0.75

    def test_several_messages_carry_many_rows(self, parameters, monkeypatch):
        of = worlds.world(N=150)
        results = []
        for lot in (16384, 7):
            monkeypatch.setattr(boosting, "LOT", lot)
            states = worlds.states_of(worlds.train(method("boosting", **parameters), of))
            results.append(worlds.answers_of(worlds.predict(method("boosting", **parameters), of, states)))
        assert worlds.same_bits(*results)

    def test_a_run_resumed_in_any_stage_ends_with_the_same_trees(self, parameters, tmp_path):
        of, made = worlds.world(N=90), method("boosting", **parameters)
        whole = worlds.weights(worlds.states_of(worlds.train(made, of)))
        for stage in [stage.name for stage in made.stages(of.seat("a"))]:
            with pytest.raises(KeyboardInterrupt):
                worlds.train(made, of, folder=tmp_path / stage, watch=Stops(stage))
            states = worlds.states_of(worlds.train(made, of, folder=tmp_path / stage, resume=True))
            assert worlds.same_bits(whole, worlds.weights(states))


class Stops(Callback):
    """Interrupts a run at the beginning of a stage."""

    def __init__(self, stage):
        self.stage = stage

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        if stage == self.stage:
            raise KeyboardInterrupt


def fitted(x=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    trees = BoostedTrees()
    settings = TreeSettings(trees=3, rate=0.1, leaves=4, least=5, columns=1.0)
    trees.set_trees([[fit_trees(x, y, settings, 1, objective="binary")]])
    return trees, x


CHANGES = {
    "another header": ("tree\nversion=v4", "tree\nversion=v3"),
    "more columns": ("max_feature_idx=2", "max_feature_idx=9"),
    "more outputs": ("num_class=1", "num_class=7"),
    "another objective": ("objective=binary", "objective=custom"),
    "a further key": ("label_index=0", "label_index=0\nmonotone=1"),
    "a column that does not exist": (r"split_feature=\d+ ", "split_feature=9 "),
    "a child that does not exist": (r"left_child=\S+", "left_child=77"),
    "a cycle": (r"left_child=\S+", "left_child=0"),
    "many leaves": (r"num_leaves=4", "num_leaves=4000"),
    "a category": (r"num_cat=0", "num_cat=1"),
    "not a number": (r"leaf_value=\S+", "leaf_value=nan"),
    "text": (r"leaf_value=\S+", "leaf_value=abc"),
    "too few numbers": (r"threshold=\S+ ", "threshold="),
    "a missing end": ("end of trees\n", ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stored_text_that_was_changed_is_refused_before_it_is_parsed(change, monkeypatch):
    trees, _ = fitted()
    text = bytes(trees.text.numpy()).decode()
    found, new = CHANGES[change]
    changed = re.sub(found, new, text, count=1)
    assert changed != text
    sizes = re.search(r"tree_sizes=(.*)\n", changed)
    if "tree_sizes" in changed and change != "a missing end":  # sizes fit, so that only the change is wrong
        starts = [m.start() for m in re.finditer(r"Tree=\d", changed)] + [changed.index("end of trees")]
        fitting = " ".join(str(b - a) for a, b in itertools.pairwise(starts))
        changed = changed.replace(sizes[0], f"tree_sizes={fitting}\n")
    stored = {"text": torch.tensor(list(changed.encode()), dtype=torch.uint8), "shape": trees.shape,
              "sizes": torch.tensor([[len(changed)]])}  # fmt: skip
    monkeypatch.setattr(lightgbm, "Booster", None)  # would be called to parse
    with pytest.raises(ModelError, match="boosted trees: "):
        BoostedTrees().load_state_dict(stored)


def test_sizes_that_do_not_fit_the_text_are_refused():
    trees, _ = fitted()
    stored = {**trees.state_dict(), "sizes": torch.tensor([[2**40]])}
    with pytest.raises(ModelError, match="sizes of their texts do not fit"):
        BoostedTrees().load_state_dict(stored)


def test_loaded_trees_predict_the_same_bits():
    trees, x = fitted()
    again = BoostedTrees()
    again.load_state_dict(trees.state_dict())
    assert torch.equal(again(x), trees(x))
    assert len(bytes(trees.text.numpy()).split(b"parameters")) == 1, "parameters of training are not stored"


def test_without_lightgbm_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ConfigError, match=r"need LightGBM, which cannot be loaded here.*pip install lightgbm"):
        method("boosting").begin(worlds.world().seat("a"), Seeds(0))


def test_a_loss_of_the_user_is_refused():
    with pytest.raises(ConfigError, match="loss: Boosting has losses of its own"):
        method("boosting").begin(replace(worlds.world().seat("a"), loss=torch.sub), Seeds(0))


@pytest.mark.parametrize("parameters", [{}, {"exchange": "bins"}], ids=["scores", "bins"])
def test_columns_of_another_party_help_and_the_model_is_saved(parameters, tmp_path):
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(2, 1500))
    bad = np.where(a + 2 * b + draw.normal(size=1500) > 0, "yes", "no")
    kinds = draw.choice(["x", "y", "z"], 1500)
    ids = [f"p{n * 7919 % 1500}" for n in range(1500)]
    bank = pl.DataFrame({"id": ids, "income": a, "bad": bad})
    shop = pl.DataFrame({"id": ids, "spent": b, "kind": kinds})[:1200]
    model = Federation.from_tables({"bank": bank, "shop": shop}, label="bad").train("boosting", parameters=parameters)
    model.save(tmp_path)
    loaded = Model.load(tmp_path)
    new = {"bank": bank.drop("bad"), "shop": shop}
    answers = loaded.predict(new)
    assert worlds.same_bits(worlds.answers_of(answers), worlds.answers_of(model.predict(new)))
    assert answers.frame()["parties"].unique().sort().to_list() == ["bank", "bank shop"]
    scores = model.evaluate().overall
    assert scores["auroc"] > 0.85
    assert b"lightgbm" not in (tmp_path / "parties" / "bank" / "model.safetensors").read_bytes()
