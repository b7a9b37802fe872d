"""FALSE-VFL does not model the fill values of empty cells, in one process, across sites and in the service."""

import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run
from anyparty.config import Config
from anyparty.serving.backends import in_process_peers, load_run
from anyparty.tables.preprocessing import Features, Prepare
from tests.deployment import test_site_prediction as together
from tests.deployment.test_site_training import NAMES, run, settings, world
from tests.serving.test_predictor import predict_ids
from tests.serving.trained_parties import TrainedParties, play

FALSE = {"embedding": 4, "top": 2, "hidden": (8,), "head_hidden": (8,), "samples": 3, "pretrain_epochs": 2}


def with_gaps(home):
    """Create three sites; every third cell of each of the shop's columns is empty, but no whole row is."""
    sites = {name: together.Site(**vars(site)) for name, site in world(home).items()}
    shop = pl.read_csv(sites["shop"].table).with_row_index()
    gap = [
        pl.when(pl.col("index") % 3 != k).then(pl.col(name)).alias(name) for k, name in enumerate(("spent", "visits"))
    ]
    shop.select("id", *gap).write_csv(sites["shop"].table)
    return sites


def config(name):
    return Config.of(settings(epochs=2, test=0.2).model_dump(exclude_none=True) | {"method": {"name": name, **FALSE}})


def _impute_all_cells(patch: pytest.MonkeyPatch) -> None:
    """Let methods see the imputed numbers as if the table held them."""
    features = Prepare.features
    patch.setattr(Prepare, "features", lambda self, table, **how: Features(features(self, table, **how).x))


@pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
def test_sites_and_service_predict_rows_with_empty_cells_alike(tmp_path, name, monkeypatch):
    sites = with_gaps(tmp_path / "home")
    run(sites, config(name))
    tables = {of: site.table for of, site in sites.items()}
    _, got = together.predict(sites)
    expected = together.expected(tmp_path, sites, tables)
    together.assert_same_answers(got, expected)
    houses = TrainedParties(sites)
    said = {each.id: each.probabilities["1"] for each in play(predict_ids(houses, houses.ids("bank")))}
    for row in expected.iter_rows(named=True):
        assert said[row["id"]] == pytest.approx(row["p(1)"], abs=1e-5)
    _impute_all_cells(monkeypatch)
    other = together.expected(tmp_path, sites, tables)
    assert (other["p(1)"] - expected["p(1)"]).abs().max() > 1e-4, "as if the means had been seen"


def test_a_stored_run_scores_rows_with_empty_cells_as_training_did(tmp_path, monkeypatch):
    tables = {name: site.table for name, site in with_gaps(tmp_path / "home").items()}
    made, filled = (tmp_path / "made", tmp_path / "filled")
    model = Federation.from_config(config("false-vfl-1"), tables).train(folder=made)
    assert evaluate_run(made).overall == model.evaluate().overall
    with monkeypatch.context() as without:
        _impute_all_cells(without)
        Federation.from_config(config("false-vfl-1"), tables).train(folder=filled)
    weights = [[(of / "parties" / name / "model.safetensors").read_bytes() for name in NAMES] for of in (made, filled)]
    assert weights[0] != weights[1]


def test_a_service_predicts_rows_with_empty_cells(tmp_path):
    tables = {name: site.table for name, site in with_gaps(tmp_path / "home").items()}
    model = Federation.from_config(config("false-vfl-1"), tables).train(folder=tmp_path / "run")
    service, others = load_run(tmp_path / "run")
    expected = model.predict(tables).frame()

    async def request_all():
        async with in_process_peers(service, others):
            return await service.predict(expected["id"].to_list(), None, budget_s=20.0)

    for each, row in zip(play(request_all()), expected.iter_rows(named=True), strict=True):
        assert each.probabilities["1"] == pytest.approx(row["p(1)"], abs=1e-5)
