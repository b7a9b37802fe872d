"""APC-VFL that keeps received embeddings: which rows use the joint embedding, and how much better it is."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.methods.one_exchange import distillation
from anyparty.methods.one_exchange.apc import Apc
from anyparty.problem.splits import TRAIN
from tests import worlds
from tests.methods.two_party_data import ADAM, pair, split
from tests.slow_parameters import slow_but
from tests.worlds import Table, world

SMALL = {"embedding": 6, "active_embedding": 4, "passive_embedding": 5, "joint_hidden": (7,), "student_hidden": (7,)}


def train(of, *, parameters=None, **settings):
    made = Apc(**SMALL | {"classify_on": "either"} | (parameters or {}))
    return made, worlds.train(made, of, **{"optimizer": ADAM, "epochs": 2} | settings)


def crossed(of):
    return distillation.aligned(of.rows["a"], of.roster)


def test_only_one_exchange_is_sent_and_predictions_send_nothing():
    of, at, later = world(K=3, N=60), Table(), Table()
    made, trained = train(of, at=at, **split(60))
    assert [sender for sender, _, tag, _ in at.notes if tag == "representation"] == ["b", "c"]
    worlds.predict(made, of, worlds.states_of(trained), at=later)
    assert later.notes == []


def test_a_prediction_names_the_parties_whose_columns_it_uses():
    of = world(K=3)
    made, trained = train(of)
    states, own = worlds.states_of(trained), of.observed[:, 0]
    for answered in (worlds.predict(made, of, states), worlds.predict(made, of, states, leaves={"b", "c"})):
        assert torch.equal(answered.answered, own)
        assert torch.equal(answered.took_part[crossed(of)], of.observed[crossed(of)])
        assert not answered.took_part[own & ~crossed(of), 1:].any()


def test_exchanged_rows_use_the_joint_embedding_and_others_the_student():
    """Compare u row by row, and the answers with scikit-learn's classifier on u."""
    of = world(K=3, N=70)
    made, trained = train(of)
    states = worlds.states_of(trained)
    states["a"].modules["g2"].train(False)
    u = torch.zeros(70, 2 * 6 + 1)
    for n in range(70):
        there = of.observed[n]
        if there[0] and there[1:].any():
            z = [
                distillation.embed(states[name], "g1", of.x[name][n : n + 1]) * there[k] for k, name in enumerate("abc")
            ]
            u[n, 6:12], u[n, 12] = states["a"].modules["g2"].encode(torch.cat(z, 1), there.unsqueeze(0))[0].detach(), 1
        elif there[0]:
            u[n, :6] = distillation.embed(states["a"], "g3", of.x["a"][n : n + 1])[0]
    own = of.observed[:, 0].nonzero().squeeze(1)
    found = made.classified(states["a"], of.rows["a"], torch.arange(70))
    assert torch.equal(found.held, own)
    assert torch.allclose(found.u, u[own], atol=1e-5)
    fit = own[of.labeled[own]]
    new = torch.zeros(70, 2 * 6 + 1)  # the same rows as if they were new
    new[own, :6] = distillation.embed(states["a"], "g3", of.x["a"][own])
    twice = fit[crossed(of)[fit]]
    both = torch.cat([u[fit], new[twice]]).double().numpy(), of.y[torch.cat([fit, twice])].numpy()
    expected = LogisticRegression(max_iter=1000).fit(*both)
    scores = worlds.predict(made, of, states).scores[own]
    assert np.allclose(scores, expected.predict_proba(u[own].double().numpy()), atol=1e-3)


@pytest.mark.parametrize("classifier", slow_but(["logistic", "head"], {"logistic"}))
def test_new_rows_are_recognised_if_all_training_rows_were_exchanged(classifier):
    of = pair(N=300, aligned=200, d=2, signal=0, classes=2)
    of.rows["a"] = replace(of.rows["a"], labeled=of.rows["a"].labeled & (torch.arange(300) < 200))
    made, trained = train(of, parameters={"classifier": classifier}, epochs=30, batch_size=32)
    scores = worlds.predict(made, of, worlds.states_of(trained)).scores
    assert (scores.argmax(dim=1) == of.y)[200:].float().mean() > 0.85


def test_a_party_lost_before_it_sent_does_not_take_part():
    of = world(K=3)
    made = Apc(**SMALL, classify_on="either")
    states, rows = worlds.begin(made, of, optimizer=ADAM), crossed(of).nonzero().squeeze(1)
    worlds.step(made, of, states, rows, stage="represent")
    worlds.step(made, of, states, rows, stage="share", leaves={"b"})
    worlds.step(made, of, states, rows, stage="teach")
    found, shared = made.classified(states["a"], of.rows["a"], torch.arange(of.n)), of.observed[of.observed[:, 0], 2]
    assert torch.equal(found.took_part[:, 2], shared)
    assert not found.took_part[:, 1].any()
    assert torch.equal(found.u[:, -1] == 1, shared), "a row that only the lost party shares is read by the student's"


@pytest.mark.slow
@pytest.mark.parametrize("classifier", slow_but(["logistic", "head", "DecisionTreeClassifier"], {"logistic"}))
def test_exchanged_rows_are_predicted_from_the_passive_partys_signal(classifier):
    of = pair(N=600, aligned=450, d=2, signal=1, classes=2)
    secret = torch.arange(600) % 4 == 0  # rows without labels, with and without a received embedding
    of.rows["a"] = replace(of.rows["a"], labeled=of.rows["a"].labeled & ~secret)
    wide = {"embedding": 16, "joint_hidden": (16,), "student_hidden": (16,), "classifier": classifier}
    right = {}
    for reads in ("own", "either"):
        made, trained = train(of, parameters=wide | {"classify_on": reads}, epochs=30, batch_size=32)
        scores = worlds.predict(made, of, worlds.states_of(trained)).scores
        hit = (scores.argmax(dim=1) == of.y)[secret]
        there = torch.arange(600)[secret] < 450
        right[reads] = hit[there].float().mean().item(), hit[~there].float().mean().item()
    assert right["either"][0] > 0.8
    assert right["own"][0] < 0.7
    assert abs(right["either"][1] - right["own"][1]) < 0.2  # rows without a received embedding gain nothing


@pytest.fixture
def tables():
    draw = np.random.default_rng(0)
    x, ids = draw.normal(size=(300, 4)).astype(np.float32), [f"client {n}" for n in range(300)]
    bank = pl.DataFrame({"id": ids, "a": x[:, 0], "b": x[:, 1], "label": np.where(x[:, 2] > 0, "yes", "no")})
    shop = pl.DataFrame({"id": ids, "c": x[:, 2], "d": x[:, 3]})[:200]
    return {"bank": bank, "shop": shop}


def test_a_loaded_model_recognises_exchanged_rows_by_id(tables, tmp_path):
    made = Federation.from_tables(tables, label="label").train(
        "apc", parameters=SMALL | {"classify_on": "either"}, epochs=3, test=0.2, validation=0.1, seed=1
    )
    made.save(tmp_path)
    alone = {"bank": tables["bank"].drop("label").sample(fraction=1.0, shuffle=True, seed=3)}
    new = alone["bank"].with_columns(id="new " + pl.col("id"))
    loaded, frames = Model.load(tmp_path), []
    for model in (made, loaded):
        frames.append(model.predict(alone).frame())
        assert set(model.predict({"bank": new}).frame()["parties"]) == {"bank"}
    assert frames[0].equals(frames[1])
    assert frames[0]["parties"].value_counts().sort("parties")["parties"].to_list() == ["bank", "bank shop"]
    used = frames[0].filter(pl.col("parties") == "bank shop")["id"]
    assert set(used) <= set(tables["shop"]["id"])
    assert 100 < len(used) < 200  # the run's test rows were not sent


def test_validation_rows_are_scored_as_new_rows_and_not_stored(tables):
    of, how = Federation.from_tables(tables, label="label"), {"test": 0.2, "validation": 0.2, "seed": 1}
    made = of.train("apc", parameters=SMALL | {"classify_on": "either"}, epochs=3, **how)
    answers = made.predict({"bank": tables["bank"].drop("label")}).frame()
    kept = answers.filter(pl.col("parties") == "bank shop")["id"]
    training = of.alignment.ids.filter(pl.Series(of.split(of.config.train.model_copy(update=how)) == TRAIN))
    assert set(kept) == set(tables["shop"]["id"]) & set(training)
