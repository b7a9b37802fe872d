"""``anyparty attack`` on real trainings: what it finds, what it must not find, and its words."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

import anyparty.threats
from anyparty import Federation
from anyparty.errors import ConfigError
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.threats.audit import Audit, ThreatReport
from anyparty.threats.view import ReceivedView, recording
from tests.conftest import adopt

QUICK = {"epochs": 2, "batch_size": 64, "seed": 1}
N = 400


def federation(kind, *, hidden=0):
    """Return two parties whose columns say nothing about the labels of a kind."""
    random = np.random.default_rng(8)
    x = random.normal(size=(N, 6))
    y = {"two": random.choice(2, N, p=[0.7, 0.3]), "four": random.integers(4, size=N), "numbers": random.normal(size=N)}
    ids = np.arange(N)
    bank = pl.DataFrame({"id": ids, "income": x[:, 0], "age": x[:, 1], "y": y[kind]})
    shop = pl.DataFrame({"id": ids, "visits": x[:, 2], "spent": x[:, 3], "town": np.where(x[:, 4] > 0, "Ulm", "Bonn")})
    task = "regression" if kind == "numbers" else "classification"
    return Federation.from_tables({"bank": bank, "shop": shop}, label="y", task=task)


def by_name(report):
    return {(each.attacker, each.attack): each for each in report.results}


@pytest.mark.parametrize(
    ("kind", "attack"),
    [("two", "gradient-direction"), ("four", "gradient-clusters"), ("numbers", "gradient-direction")],
)
def test_gradients_tell_random_labels_of_training_rows(kind, attack):
    found = anyparty.threats.run(federation(kind), "standard", attacks=[attack], resamples=50, **QUICK)
    (result,) = found.results
    assert result.informs
    assert result.score.value > 0.9
    assert found.strongest() == [result]
    assert "With no known label, shop" in result.sentence


@pytest.mark.parametrize("method", ["standard", "apc", "vfedtrans"])
def test_permuted_labels_and_methods_without_gradients_give_chance(method):
    """The labels are permuted after the training, so no message can depend on them."""
    given = federation("two")
    view = ReceivedView(me="shop", roster=given.roster)
    model = given.train(method, channel=partial(recording, {"shop": view}), execution="protocol", **QUICK)
    rows, *rest = model.held_out
    if method == "standard":
        permuted = np.random.default_rng(1).permutation(N)
        rows = rows | {"bank": replace(rows["bank"], y=rows["bank"].y[permuted])}
    audit = Audit(replace(model, held_out=(rows, *rest)), {"shop": view}, known=10, auxiliary=0.1, resamples=50)
    names = [name for name, attack in anyparty.threats.ATTACKS.items() if attack.target == "labels"]
    results = list(audit.results(names))
    assert {each.attack for each in results} == set(names)
    assert [each.attack for each in results if each.informs] == []
    made = {each.attack for each in results if each.score is not None}
    assert made == set(names) if method == "standard" else made <= {"model-completion", "row-use"}


def test_the_active_party_reconstructs_columns_of_a_linear_encoder():
    found = anyparty.threats.run(federation("two"), "laser", encoder=MLP(hidden=()), resamples=50, **QUICK)
    results = by_name(found)
    solved = results["bank", "equality-solving"]
    assert solved.columns.keys() == {"visits", "spent", "town"}
    assert solved.score.value > 0.99
    assert results["bank", "attribute-inference"].informs
    assert "no message has values" in results["shop", "embedding-inversion"].skipped
    assert not results["a reader of answers", "membership"].score.value > 0.7


def test_membership_is_found_in_a_model_that_learns_its_rows_by_heart():
    random, n, d = np.random.default_rng(3), 160, 20
    halves = [pl.DataFrame(random.normal(size=(n, d))).insert_column(0, pl.Series("id", np.arange(n))) for _ in "ab"]
    bank = halves[0].with_columns(y=pl.Series(random.integers(2, size=n)))
    found = anyparty.threats.run(
        Federation.from_tables({"bank": bank, "shop": halves[1]}, label="y", task="classification"), "standard",
        attacks=["membership"], epochs=60, batch_size=32, test=0.4, validation=0.0, keep="last", patience=None,
        encoder=MLP(hidden=(64,)), optimizer=Optimizer(lr=0.003), resamples=50,
    )  # fmt: skip
    (result,) = found.results
    assert result.informs
    assert result.score.value > 0.75
    assert "which rows were used for training" in result.sentence


def test_same_seed_same_report():
    first, second = (
        anyparty.threats.run(federation("two"), "laser", attackers=["shop"], resamples=20, **QUICK) for _ in range(2)
    )
    assert first.to_json() == second.to_json()
    assert ThreatReport.of_json(json.loads(json.dumps(first.to_json()))).to_json() == first.to_json()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"attackers": ["shp"]}, "there is no party 'shp'.*'shop'"),
        ({"attacks": ["gradient-nrm"]}, "there is no attack 'gradient-nrm'.*gradient-norm"),
        ({"known": 0}, "expected known and resamples of at least 1"),
        ({"auxiliary": 1.0}, "auxiliary between 0 and 1"),
    ],
)
def test_wrong_arguments_are_named(wrong, sentence):
    with pytest.raises(ConfigError, match=sentence):
        anyparty.threats.run(federation("two"), **wrong)


def test_the_command_attacks_a_run_and_the_report_shows_it(run, tmp_path, call):
    folder = shutil.copytree(run, tmp_path / "runs" / run.name)
    for name in ("bank.csv", "shop.csv"):
        shutil.copy(run.parents[1] / name, tmp_path / name)
    adopt(folder)
    before = (folder / "record.json").read_bytes()
    shown = call("attack", folder, "--only", "gradient-direction", "--only", "embedding-inversion")
    assert shown.exit_code == 0, shown.stderr
    assert "With no known label, shop tells the label of" in shown.stdout
    assert (folder / "record.json").read_bytes() == before
    saved = json.loads((folder / "threats.json").read_text())
    assert {each["attack"] for each in saved["results"]} == {"gradient-direction", "embedding-inversion"}
    page = tmp_path / "page.html"
    assert call("report", folder, "--no-model", "--out", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "What parties can infer" in text
    (folder / "threats.json").write_text("{}")
    failed = call("report", folder, "--no-model", "--out", page)
    assert failed.exit_code == 2
    assert "write it again, or delete it" in " ".join(failed.stderr.split())


def test_a_run_takes_no_changes(run, call):
    shown = call("attack", run, "--set", "train.epochs=1")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "settings of a run cannot be changed" in " ".join(shown.stderr.split())
