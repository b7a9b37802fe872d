"""Rows that are empty except for the id, as after an outer join, count as rows that the party does not have."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from anyparty.alignment.alignment import align
from anyparty.api.federation import Federation, read_party
from anyparty.api.imputation import impute
from anyparty.api.model import Model
from anyparty.api.runs import hold_out
from anyparty.config import Config
from anyparty.deployment.site import alignment_cache
from anyparty.deployment.site.alignment_cache import StoredAlignment
from anyparty.deployment.site.site_prediction import ANSWERS
from anyparty.errors import AlignmentError, AnypartyWarning, MessageError, PredictionError, TableError
from anyparty.serving.backends import in_process_peers, load_run
from anyparty.tables.table import read_table
from anyparty.transport import memory
from tests.deployment import test_site_prediction as together
from tests.deployment.test_site_training import NAMES, run, settings, world
from tests.serving.test_predictor import predict_ids
from tests.serving.trained_parties import TrainedParties, play

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are empty except for the id:anyparty.errors.AnypartyWarning")

METHODS = {
    "laser": {},
    "apc": {"embedding": 8, "classify_on": "either"},
    "false-vfl-2": {"embedding": 4, "top": 2, "hidden": (8,), "head_hidden": (8,), "samples": 2},
    "standard": {"absent": "zeros"},
    "local": {},
}


def frames(home):
    return {name: pl.read_csv(site.table) for name, site in world(home).items()}


def joined(given, *, label=False):
    """Give each table the ids of all parties; ``label`` fills in every third label of the rows that the bank lacks."""
    ids = pl.concat([frame.select("id") for frame in given.values()]).unique().sort("id")
    whole = {name: ids.join(frame, on="id", how="left") for name, frame in given.items()}
    if label:
        filled = pl.when(pl.int_range(pl.len()) % 3 == 0).then(pl.int_range(pl.len()) % 2)
        whole["bank"] = whole["bank"].with_columns(pl.col("y").fill_null(filled))
    return whole


def federation(given):
    config = settings(epochs=2, validation=0.2, test=0.2)
    return Federation.from_config(config, given)


def with_unknown_row(given):
    """Put a row on top of each table whose id has no data at any party."""
    nobody = pl.DataFrame({"id": ["nobody 0"]})
    return {name: pl.concat([nobody, frame], how="diagonal") for name, frame in given.items()}


@pytest.mark.parametrize("name", METHODS)
def test_blank_rows_of_an_outer_join_change_no_results(tmp_path, name):
    given = frames(tmp_path / "world")
    whole = with_unknown_row(joined(given))
    trained = [
        federation(each).train(name, parameters=METHODS[name], folder=tmp_path / str(n))
        for n, each in enumerate((given, whole))
    ]
    for member in NAMES:
        one, other = ((tmp_path / n / "parties" / member / "model.safetensors").read_bytes() for n in "01")
        assert one == other
    assert trained[0].evaluate() == trained[1].evaluate()
    again = Model.load(tmp_path / "1")
    hold_out(again, federation(whole))
    assert again.evaluate() == trained[0].evaluate()
    for asked in (NAMES, ("bank",), ("shop", "clinic")):
        want, got = trained[0].predict(given, asked).frame(), trained[1].predict(whole, asked).frame()
        assert got.row(0, named=True).items() >= {"id": "nobody 0", "parties": "", "prediction": None}.items()
        # the ids are those of all three tables; products of another number of rows may have other last bits
        assert_frame_equal(got[1:].sort("id"), want.sort("id"))


def test_a_table_with_only_ids_causes_a_warning(tmp_path):
    given = frames(tmp_path)
    model = federation(given).train(epochs=1)
    mine = joined(given)["shop"].filter(pl.col("id").is_in(given["shop"]["id"].implode()).not_())
    with pytest.warns(AnypartyWarning, match=f"{mine.height} of {mine.height} rows are empty except for the id"):
        answers = model.predict({"shop": mine}).frame()
    assert answers["id"].to_list() == mine["id"].sort().to_list()
    assert answers["prediction"].null_count() == answers.height
    assert set(answers["parties"]) == {""}


def test_a_label_of_a_row_without_own_cells_is_used_in_training(tmp_path):
    """Other parties describe the row, so its label is used."""
    given = frames(tmp_path)
    without, taught = federation(given), federation(joined(given, label=True))
    more = joined(given, label=True)["bank"]["y"].drop_nulls().len() - given["bank"].height
    assert more > 10
    assert taught.overlap.labelled == without.overlap.labelled + more
    assert taught.overlap.held == without.overlap.held
    assert taught.train(epochs=1).evaluate().overall["rows"] > without.train(epochs=1).evaluate().overall["rows"]


@pytest.mark.parametrize(
    ("label", "train"),
    [(7, {}), (1, {"balance": True}), (1e6, {"task": "regression"})],
    ids=["class", "weight", "number"],
)
def test_a_label_of_a_row_without_cells_anywhere_is_not_used(tmp_path, label, train):
    """Such labels change neither the classes, nor the class weights, nor the mean and spread of numbers."""
    given = frames(tmp_path)
    blank = pl.DataFrame({"id": [f"z{n}" for n in range(150)], "y": [label] * 150})
    more = given | {"bank": pl.concat([given["bank"], blank], how="diagonal_relaxed")}
    values = settings(epochs=1, test=0.2, **{key: value for key, value in train.items() if key != "task"})
    values = values.model_dump(exclude_none=True)
    values["federation"] |= {key: value for key, value in train.items() if key == "task"}
    values["split"] = {"kind": "random"}  # a stratified split depends on all labels
    of = [Federation.from_config(Config.of(values), each) for each in (given, more)]
    assert of[0].predicted() == of[1].predicted()
    models = [each.train(folder=tmp_path / str(n)) for n, each in enumerate(of)]
    assert models[0].task == models[1].task
    again = Model.load(tmp_path / "1")
    hold_out(again, of[1])
    assert again.evaluate() == models[1].evaluate()


def test_a_party_with_only_labels_holds_the_rows_that_have_a_label():
    frame = pl.DataFrame({"id": ["a", "b"], "y": ["yes", None]})
    assert read_table(frame, party="lab", id="id", label="y").has_content.tolist() == [True, False]
    assert read_table(frame.select("id"), party="server", id="id").has_content.tolist() == [True, True]


def test_the_error_about_a_misspelt_label_does_not_mention_scores():
    """The error is the same for a party that holds only labels and needs no columns."""
    bank = pl.DataFrame({"id": ["a", "b"], "y": ["yes", "no"]})
    for columns in (True, False):
        config = Config.of({"federation": {"label": "yy", "active": "bank"}, "parties": {"bank": {"columns": columns}}})
        with pytest.raises(TableError, match="'yy', named as label") as refused:
            read_party(config, "bank", bank, "yy", leads=True)
        assert "scored" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:shop shares no row")
def test_a_party_without_any_cell_is_refused(tmp_path):
    given = frames(tmp_path)
    given["shop"] = given["shop"].with_columns(spent=pl.lit(None), visits=pl.lit(None))
    with pytest.raises(TableError, match="all 192 rows are empty except for the id: leave the party out"):
        federation(given).train(epochs=1)


def test_a_column_named_sample_is_refused_for_samples(tmp_path):
    given = frames(tmp_path)
    given["shop"] = given["shop"].rename({"spent": "sample"})
    model = federation(given).train("false-vfl-1", parameters=METHODS["false-vfl-2"])
    filled = impute(model, given, "shop", samples=2)
    assert "sample" in filled.table().columns
    with pytest.raises(PredictionError, match="party 'shop' has a column named 'sample'"):
        filled.table(samples=True)


def test_ids_shared_only_by_blank_rows_are_not_an_overlap():
    bank = read_table(pl.DataFrame({"id": ["a", "b"], "x": [1.0, None]}), party="bank", id="id")
    shop = read_table(pl.DataFrame({"id": ["a", "b"], "z": [None, 2.0]}), party="shop", id="id")
    with pytest.raises(
        AlignmentError, match=r"no id is known to two parties.*party 'bank', data frame: 1 of 2 rows are"
    ):
        align([bank, shop])
    both = align([bank, shop], apart=True)
    assert both.observed(["bank", "shop"]).tolist() == [[True, False], [False, True]]
    assert both.position["shop"].tolist() == [0, 1]


def test_blank_rows_are_imputed_like_missing_ones(tmp_path):
    given = frames(tmp_path)
    model = federation(given).train("false-vfl-1", parameters=METHODS["false-vfl-2"])
    lacking, whole = impute(model, given, "shop"), impute(model, joined(given), "shop")
    assert sorted(whole.ids) == sorted(lacking.ids)
    assert np.allclose(whole.mean, lacking.mean[[lacking.ids.index(one) for one in whole.ids]], equal_nan=True)


# ---- each party at its own site


def sites_of(home, given, kind=together.Site):
    sites = {name: kind(**vars(site)) for name, site in world(home).items()}
    for name, site in sites.items():
        given[name].write_csv(site.table)
    return sites


def with_labels_at_the_shop():
    values = settings(epochs=2).model_dump(exclude_none=True)
    values["parties"]["shop"]["label"] = "y"
    values["method"] = {"name": "laser", "embedding": 8, "hosting": "labelers"}
    return Config.of(values)


def test_sites_do_not_align_blank_rows(tmp_path):
    given = frames(tmp_path / "world")
    sites = sites_of(tmp_path / "home", joined(given))
    run(sites, settings(epochs=2))
    kept = {name: StoredAlignment.read(site.folder / "alignment.safetensors") for name, site in sites.items()}
    total = pl.concat([frame["id"] for frame in given.values()]).n_unique()
    assert all(len(each.share.position) == total for each in kept.values())
    for k, name in enumerate(NAMES):
        assert int(kept["bank"].share.observed[:, k].sum()) == given[name].height
        assert kept[name].rows == total
        aligned = total if name == "bank" else given[name].height
        assert int((kept[name].share.position >= 0).sum()) == aligned
        label = "y" if name == "bank" else None
        assert kept[name].fits(read_table(sites[name].table, party=name, id="id", label=label))
    first = {name: (site.folder / "alignment.safetensors").read_bytes() for name, site in sites.items()}
    run(sites, settings(epochs=2))
    assert first == {name: (site.folder / "alignment.safetensors").read_bytes() for name, site in sites.items()}


def test_an_alignment_of_an_earlier_version_is_replaced(tmp_path):
    """Alignment files of earlier versions counted blank rows as present, and did not store the number of rows."""
    sites = sites_of(tmp_path, frames(tmp_path / "world"))
    run(sites, settings(epochs=1))
    path = sites["shop"].folder / "alignment.safetensors"
    replace(StoredAlignment.read(path), rows=-1).write(path)
    before = path.read_bytes()
    run(sites, settings(epochs=1))
    assert path.read_bytes() != before
    assert StoredAlignment.read(path).rows == 192


@pytest.mark.parametrize("label", [False, True])
def test_sites_predict_blank_rows_as_the_whole_model_does(tmp_path, label):
    given = joined(frames(tmp_path / "world"), label=label)
    sites = sites_of(tmp_path / "home", given)
    run(sites, settings(epochs=2))
    told, got = together.predict(sites)
    tables = {name: site.table for name, site in sites.items()}
    together.assert_same_answers(got, together.expected(tmp_path, sites, tables))
    assert got.height == given["bank"].height == told["bank"]["answered"]
    _, got = together.predict(sites, asked=["bank"])
    assert got["prediction"].null_count() == given["bank"]["income"].null_count() > 0


def test_sites_report_rows_with_a_label_but_no_cell(tmp_path):
    whole = joined(frames(tmp_path / "world"))
    labels = whole["bank"].select("id", y=pl.int_range(pl.len()) % 2)
    whole["shop"] = whole["shop"].join(labels, on="id")
    sites = sites_of(tmp_path / "home", whole)
    config = with_labels_at_the_shop()
    run(sites, config)
    observed = StoredAlignment.read(sites["bank"].folder / "alignment.safetensors").share.observed
    assert observed.sum(dim=0).tolist() == [whole[name].drop_nulls().height for name in NAMES]
    shop = StoredAlignment.read(sites["shop"].folder / "alignment.safetensors")
    assert int((shop.share.position >= 0).sum()) == whole["shop"].height, "all have a label there"
    told = memory.play(
        {
            name: partial(lambda net, site: together.predict_at_site(site, config, net), site=site)
            for name, site in sites.items()
        }
    )
    assert told["bank"]["answered"] == whole["bank"].height
    got = pl.read_parquet(sites["bank"].folder / ANSWERS)
    together.assert_same_answers(
        got, together.expected(tmp_path, sites, {name: site.table for name, site in sites.items()})
    )


def test_a_report_of_empty_rows_of_another_party_is_refused(tmp_path, monkeypatch):
    sites = sites_of(tmp_path, {name: pl.read_csv(site.table) for name, site in world(tmp_path / "other").items()})
    shop = pl.read_csv(sites["shop"].table).with_columns(y=pl.int_range(pl.len()) % 2)
    shop.write_csv(sites["shop"].table)
    wrong = vars(np) | {"flatnonzero": lambda mask: np.arange(len(mask))}
    monkeypatch.setattr(alignment_cache, "np", SimpleNamespace(**wrong))
    with pytest.raises(MessageError, match="party 'shop' reports empty rows that are not its own rows"):
        run(sites, with_labels_at_the_shop())


def test_a_new_row_of_the_active_party_alone_is_predicted(tmp_path):
    """No row is shared by two parties; the active party's row is still answered."""
    given = frames(tmp_path / "world")
    sites = sites_of(tmp_path / "home", given)
    run(sites, settings(epochs=2))
    new = dict(sites)
    for name, column in (("bank", "income"), ("shop", "spent"), ("clinic", "pulse")):
        frame = pl.DataFrame({"id": [f"new {name}", "blank 0"], column: [0.5, None]})
        if name == "shop":
            frame = frame.with_columns(visits=pl.lit(None))
        frame.write_csv(tmp_path / f"{name}.csv")
        new[name] = replace(sites[name], new=tmp_path / f"{name}.csv")
    with pytest.warns(AnypartyWarning, match="under 1% of the ids of"):
        told, got = together.predict(new)
    assert told["bank"]["answered"] == 1
    assert dict(got.select("id", "parties").iter_rows()) == {"new bank": "bank", "blank 0": ""}


def test_a_service_answers_with_the_parties_that_hold_the_row(tmp_path):
    given, (home, tables) = with_unknown_row(joined(frames(tmp_path / "world"))), (tmp_path / "run", {})
    for name, frame in given.items():
        tables[name] = tmp_path / f"{name}.csv"
        frame.write_csv(tables[name])
    model = federation(tables).train(epochs=1, folder=home)
    service, others = load_run(home)
    ids = given["bank"]["id"].to_list()

    async def request_all():
        async with in_process_peers(service, others):
            return await service.predict(ids, None, budget_s=20.0)

    want = {row["id"]: row for row in model.predict(tables).frame().iter_rows(named=True)}
    for each in play(request_all()):
        assert " ".join(each.took_part) == want[each.id]["parties"]
        assert each.prediction == want[each.id]["prediction"]
        assert (each.prediction is None) == (each.id == "nobody 0")


def test_an_alignment_without_shared_rows_suffices_only_for_prediction(tmp_path):
    """Alignment for a prediction does not check that parties share a row; training still does."""
    sites = sites_of(tmp_path, frames(tmp_path / "world"))
    run(sites, settings(epochs=1))
    for name, site in sites.items():
        pl.read_csv(site.table).with_columns(pl.col("id") + name).write_csv(site.table)
    with pytest.warns(AnypartyWarning, match="under 1% of the ids of"):
        told, _ = together.predict(sites)
    assert told["bank"]["answered"] == 192
    with pytest.raises(AlignmentError, match="no id is known to two parties"):
        run(sites, settings(epochs=1))


def test_a_site_warns_about_its_own_blank_rows(tmp_path):
    sites = sites_of(tmp_path, joined(frames(tmp_path / "world")))
    with pytest.warns(AnypartyWarning) as told:
        run(sites, settings(epochs=1))
    said = [str(each.message) for each in told]
    assert [sum(name in each for each in said) for name in ("'bank'", "'shop'", "'clinic'")] == [0, 1, 1]
    with pytest.warns(AnypartyWarning, match="party 'clinic', table.csv: 45 of 237 rows are empty except for the id"):
        together.predict(sites)


def test_a_service_has_no_prediction_for_blank_rows(tmp_path):
    given = joined(frames(tmp_path / "world"))
    nobody = pl.DataFrame({"id": ["blank 0"]})
    given["bank"] = pl.concat([given["bank"], nobody], how="diagonal")
    of = TrainedParties(sites_of(tmp_path / "home", given))
    run(of.sites, settings(epochs=2))
    ids = of.ids("bank")
    said = play(predict_ids(of, ids))
    want = of.model(tmp_path / "model").predict({name: site.table for name, site in of.sites.items()}).frame()
    rows = {row["id"]: row for row in want.iter_rows(named=True)}
    for each in said:
        assert " ".join(each.took_part) == rows[each.id]["parties"]
        assert each.prediction == rows[each.id]["prediction"]
    assert [each.id for each in said if each.prediction is None] == ["blank 0"]
    assert said[-1].reason
