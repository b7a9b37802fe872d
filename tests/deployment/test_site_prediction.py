"""Parties at separate sites predict together: answers equal those of the whole model with the available parties."""

import json
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch

from anyparty.api.model import Model
from anyparty.artifacts.model_files import write_manifest
from anyparty.config import Config
from anyparty.core.types import ChannelWrapper
from anyparty.deployment.site.alignment_cache import ALIGNMENT
from anyparty.deployment.site.site_prediction import ANSWERS, NEW, predict_at_site
from anyparty.errors import ConfigError, ModelError, PartyLost, PredictionError
from anyparty.serving.loaded_party import build_index, load_party
from anyparty.transport import memory
from tests.artifacts.test_site_recorder import FailingChannel
from tests.deployment import test_site_training as site_training_tests
from tests.deployment.test_site_training import (
    NAMES,
    replace_federation,
    run,
    settings,
    trained_again,
    with_two_id_columns,
    world,
)


@dataclass(frozen=True)
class Site(site_training_tests.Site):
    new: Path | None = None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("predict")
    sites = {name: Site(**vars(site)) for name, site in world(home).items()}
    run(sites, settings(epochs=3))
    return home, sites


def play(sites, wrap=lambda channel: channel, up=NAMES, **asked):
    there = {name: partial(predict_at_site, sites[name], settings(), **asked) for name in up}
    return memory.play({name: (lambda net, part=part: part(net)) for name, part in there.items()}, wrap)


def predict(sites, up=NAMES, **asked):
    told = play(sites, up=up, **asked)
    return told, pl.read_parquet(sites["bank"].folder / ANSWERS)


def whole_model(home, sites):
    """Combine the model parts of all sites, which is possible only in a test."""
    folder = home / "whole"
    shutil.rmtree(folder, ignore_errors=True)
    for name, site in sites.items():
        shutil.copytree(site.folder / "parties" / name, folder / "parties" / name)
    shutil.copy(sites["bank"].folder / "model.json", folder)
    write_manifest(folder, sites)
    return Model.load(folder)


def expected(home, sites, tables, parties=None):
    answers = whole_model(home, sites).predict(tables, parties).frame()
    return answers.filter(pl.col("id").is_in(pl.read_csv(tables["bank"])["id"].to_list())).sort("id")


def assert_same_answers(got, want):
    got = got.sort("id")
    assert got["id"].to_list() == want["id"].to_list()
    assert got["prediction"].to_list() == want["prediction"].to_list()
    assert got["parties"].to_list() == want["parties"].to_list()
    for column in ("p(0)", "p(1)"):
        assert torch.allclose(got[column].to_torch(), want[column].to_torch(), atol=1e-6)


def test_predictions_equal_those_of_the_whole_model(trained):
    home, sites = trained
    told, got = predict(sites)
    assert told["bank"] == {"rows": 192, "answered": 192, "silent": [], "file": ANSWERS}
    assert told["shop"] == {"rows": 192}
    asked = pl.read_csv(sites["bank"].table)["id"].cast(str).to_list()
    assert got["id"].to_list() == [name for name in asked if name in set(got["id"])], "in the order of the bank's table"
    assert_same_answers(got, expected(home, sites, {name: site.table for name, site in sites.items()}))
    assert not (sites["shop"].folder / ANSWERS).exists()


def test_new_columns_or_a_missing_label_do_not_change_predictions(tmp_path):
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path, n=60).items()}
    run(sites, settings(epochs=1))
    _, before = predict(sites)
    shop, bank = sites["shop"].table, sites["bank"].table
    table = pl.read_csv(shop)
    words = pl.Series("comment", [f"free text, no. {n}" for n in range(len(table))])  # rejected as a feature
    table.with_columns(words).select("visits", "comment", "id", "spent").write_csv(shop)
    numbers = [(site.folder / ALIGNMENT).read_bytes() for site in sites.values()]
    _, after = predict(sites)
    assert_same_answers(after, before.sort("id"))
    assert numbers == [(site.folder / ALIGNMENT).read_bytes() for site in sites.values()], "none was made anew"
    pl.read_csv(bank).drop("y").write_csv(bank)
    _, after = predict(sites)
    assert_same_answers(after, before.sort("id"))


def test_a_category_with_only_numeric_levels_left_stays_a_category(tmp_path):
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path, n=60).items()}
    shop = sites["shop"].table
    ward = pl.Series("ward", ["012", "013", "14A"])
    pl.read_csv(shop).with_columns(ward=ward.gather(pl.Series(range(48)) % 3)).write_csv(shop)
    run(sites, settings(epochs=1))
    _, before = predict(sites)
    table = pl.read_csv(shop, schema_overrides={"ward": pl.String}).filter(pl.col("ward") != "14A")
    table.write_csv(shop)
    _, after = predict(sites)
    there = table["id"].to_list()
    assert len(after.filter(pl.col("id").is_in(there)))
    assert_same_answers(after.filter(pl.col("id").is_in(there)), before.filter(pl.col("id").is_in(there)).sort("id"))


def test_ids_of_several_columns_are_returned_with_their_types(tmp_path):
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path, n=60).items()}
    sites = {name: replace(site, table=with_two_id_columns(site.table)) for name, site in sites.items()}
    config = replace_federation(settings(epochs=1), id=("branch", "account"))
    run(sites, config)
    told = memory.play({name: partial(_predicted, site, config) for name, site in sites.items()})
    own = pl.read_parquet(sites["bank"].table).select("branch", "account")
    got = pl.read_parquet(sites["bank"].folder / ANSWERS)
    assert got.select("branch", "account").equals(own)
    assert told["bank"]["answered"] == len(own)
    party, table, alignment = load_party(sites["bank"])
    index = build_index(alignment.share, party.roster.K, table, table)
    asked = own.to_dicts()
    assert index.find(asked) == index.find([{"account": each["account"], "branch": each["branch"]} for each in asked])
    places = torch.tensor(index.find(asked))
    assert index.identities(places, asked) == asked
    assert index.own[places].tolist() == list(range(len(own)))
    with pytest.raises(PredictionError, match=r"ids\.0: expected an object with the id columns"):
        index.find(["001\x1f2"])


def _predicted(site, config, net):
    return predict_at_site(site, config, net)


def test_a_prediction_may_use_only_some_parties(trained):
    home, sites = trained
    _, got = predict(sites, asked=["bank", "shop"])
    assert_same_answers(
        got, expected(home, sites, {name: site.table for name, site in sites.items()}, ["bank", "shop"])
    )


def test_a_prediction_works_without_an_unavailable_party(trained):
    home, sites = trained
    told, got = predict(sites, up=("bank", "clinic"), there=["bank", "clinic"])
    assert told["bank"]["silent"] == ["shop"]
    assert_same_answers(got, expected(home, sites, {name: sites[name].table for name in ("bank", "clinic")}))


def test_a_model_part_of_another_run_is_refused_if_it_is_used(tmp_path):
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path).items()}
    run(sites, settings(epochs=2))
    trained_again(sites, "shop")
    with pytest.raises(ModelError, match="'shop' has a part of the model from another run than 'bank'"):
        predict(sites)
    told, _ = predict(sites, asked=["bank", "clinic"])
    assert told["bank"]["answered"] == told["bank"]["rows"]


def test_a_party_with_files_of_two_runs_is_reported(tmp_path):
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path).items()}
    run(sites, settings(epochs=2))
    weights = sites["shop"].folder / "parties" / "shop" / "model.safetensors"
    before = weights.read_bytes()
    run(sites, settings(epochs=4, keep="last"))
    weights.write_bytes(before)
    with pytest.raises(ModelError, match=r"shop/model\.safetensors: this is not the file that the model was saved"):
        predict(sites)
    write_manifest(sites["shop"].folder, ["shop"])
    with pytest.raises(ModelError, match=r"not the weights of party 'shop' that the model was saved with"):
        predict(sites)


def test_new_rows_are_aligned_and_predicted(trained, tmp_path):
    home, sites = trained
    ids = [f"new {i}" for i in range(6)]
    frames = {
        "bank": pl.DataFrame({"id": ids[:4], "income": [0.1, -1.0, 2.0, 0.3]}),
        "shop": pl.DataFrame({"visits": [1.0, 0.0, -1.0], "id": [ids[5], ids[3], ids[0]], "spent": [1.0, -2.0, 3.0]}),
        "clinic": pl.DataFrame({"id": ids[2:4], "pulse": [0.5, 0.6]}),
    }
    new = {}
    for name, frame in frames.items():
        frame.write_csv(tmp_path / f"{name}.csv")
        new[name] = replace(sites[name], new=tmp_path / f"{name}.csv")
    before = (sites["bank"].folder / "alignment.safetensors").read_bytes()
    _, got = predict(new)
    assert set(got["id"]) == set(ids[:4])
    assert_same_answers(got, expected(home, sites, {name: site.new for name, site in new.items()}))
    assert (sites["bank"].folder / "alignment.safetensors").read_bytes() == before


def new_rows(sites, home, n=6):
    """Return the sites with tables of new rows: the bank has all of them, and every other party some."""
    ids, new = [f"new {i}" for i in range(n)], {}
    columns = {"bank": ["income"], "shop": ["spent", "visits"], "clinic": ["pulse"]}
    for place, (name, named) in enumerate(columns.items()):
        rows = ids[place:] if name != "bank" else ids
        frame = pl.DataFrame({"id": rows} | {column: [0.1 * k for k, _ in enumerate(rows)] for column in named})
        frame.write_csv(home / f"{name}.csv")
        shutil.copytree(sites[name].folder, home / name)
        new[name] = replace(sites[name], new=home / f"{name}.csv", folder=home / name)
    return new


def tables(sites, *names):
    return {name: sites[name].new for name in names}


def test_new_rows_are_predicted_without_an_unavailable_party(trained, tmp_path):
    home, sites = trained
    new = new_rows(sites, tmp_path)
    told, got = predict(new, up=("bank", "clinic"), there=["bank", "clinic"])
    assert told["bank"]["silent"] == ["shop"]
    assert_same_answers(got, expected(home, sites, tables(new, "bank", "clinic")))
    number = (new["bank"].folder / NEW).read_bytes()
    _, again = predict(new, up=("bank", "clinic"), there=["bank", "clinic"])
    assert again.equals(got)
    assert (new["bank"].folder / NEW).read_bytes() == number, "the partial alignment is used again"
    told, alone = predict(new, up=("bank",), there=["bank"])
    assert told["bank"]["silent"] == ["shop", "clinic"]
    assert_same_answers(alone, expected(home, sites, tables(new, "bank")))
    told, whole = predict(new)
    assert told["bank"]["silent"] == []
    assert_same_answers(whole, expected(home, sites, tables(new, *NAMES)))


def test_new_rows_of_unnamed_parties_are_not_aligned(trained, tmp_path):
    home, sites = trained
    new, sent = new_rows(sites, tmp_path), []

    class Spy(ChannelWrapper):
        async def send(self, to, tag, tensors):
            sent.append((self.me, to))
            return await self.channel.send(to, tag, tensors)

    _, got = predict_with(new, Spy, asked=["bank", "shop"])
    assert_same_answers(got, expected(home, sites, tables(new, *NAMES), ["bank", "shop"]))
    assert sent
    assert not [pair for pair in sent if "clinic" in pair]


def predict_with(sites, wrap, **asked):
    return play(sites, wrap, **asked), pl.read_parquet(sites["bank"].folder / ANSWERS)


def test_a_partial_alignment_does_not_replace_that_of_the_training(trained, tmp_path):
    home, sites = trained
    own = {}
    for name, site in sites.items():
        own[name] = replace(site, table=tmp_path / f"{name}.csv", folder=tmp_path / name)
        shutil.copytree(site.folder, own[name].folder)
        shutil.copy(site.table, own[name].table)
    with own["bank"].table.open("a") as file:
        file.write("person 900,0.3,0\n")
    before = [(site.folder / ALIGNMENT).read_bytes() for site in own.values()]
    told, got = predict(own, up=("bank", "clinic"), there=["bank", "clinic"])
    assert told["bank"]["rows"] == 193
    assert_same_answers(got, expected(home, sites, {name: own[name].table for name in ("bank", "clinic")}))
    assert before == [(site.folder / ALIGNMENT).read_bytes() for site in own.values()]


class OldVersion(ChannelWrapper):
    async def send(self, to, tag, tensors):
        if (self.me, tag) == ("clinic", "alignment"):
            tensors = {**tensors, "version": torch.tensor(list(b"0.0.9"), dtype=torch.uint8)}
        return await self.channel.send(to, tag, tensors)


def test_versions_are_compared_before_ids_are_sent(trained):
    _, sites = trained
    with pytest.raises(ConfigError, match=r"party 'clinic' runs anyparty '0\.0\.9', and 'bank' runs"):
        play(sites, OldVersion)


def test_trained_rows_are_recognised_without_the_other_parties(tmp_path):
    """The active party recognises them by its own ids, after any alignment, even if no other party is available."""
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path).items()}
    kept = {"method": {"name": "apc", "embedding": 8, "classify_on": "either"}}
    run(sites, Config.of(settings(epochs=2).model_dump(exclude_none=True) | kept))
    _, got = predict(sites)
    assert_same_answers(got, expected(tmp_path, sites, {name: site.table for name, site in sites.items()}))
    assert {"bank", "bank shop", "bank shop clinic"} <= set(got["parties"])
    told, alone = predict(sites, up=("bank",), there=["bank"])
    assert told["bank"]["silent"] == []  # no other party would have been asked
    assert alone.sort("id").equals(got.sort("id"))


def test_invalid_prediction_requests_are_reported(trained, tmp_path):
    _, sites = trained
    with pytest.raises(PredictionError, match="the model has no party 'shpo'; did you mean 'shop'"):
        predict(sites, asked=["shpo"])
    with pytest.raises(PredictionError, match="no connected party with columns was selected"):
        predict(sites, up=("bank", "clinic"), there=["bank", "clinic"], asked=["shop"])
    with pytest.raises(ModelError, match=r"model.json: no such file"):
        predict(sites | {"shop": replace(sites["shop"], folder=tmp_path)})


def test_a_failed_prediction_stores_its_ledger_and_its_error(tmp_path):
    sites = {name: Site(**vars(site)) for name, site in world(tmp_path).items()}
    run(sites, settings(epochs=1))
    with pytest.raises(PartyLost):
        play(sites, lambda channel: FailingChannel(channel, ("shop", "embedding", 1)))
    shop = json.loads((sites["shop"].folder / "predictions.json").read_text())
    assert (shop["status"], shop["error"]) == ("failed", "PartyLost: party 'bank' is gone: the line was cut")
    assert {"part", "alignment"} <= {row["tag"] for row in shop["ledger"]}
    play(sites)
    assert json.loads((sites["shop"].folder / "predictions.json").read_text())["status"] == "done"
