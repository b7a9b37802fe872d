"""Impute a party's missing rows and find unlikely rows, starting from tables."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.api.imputation import impute, impute_run, log_likelihood, log_likelihood_run
from anyparty.api.model import Model
from anyparty.config import Config
from anyparty.errors import AnypartyWarning, PredictionError
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.transport.ledger import Ledger

PARAMETERS = {"embedding": 4, "top": 2, "hidden": (16,), "head_hidden": (8,), "samples": 4, "floor": 0.05}


def tables(rows=400, seed=0):
    """Create tables in which bank and shop measure the same quantity in different units; a colour depends on it too."""
    random = np.random.default_rng(seed)
    wealth = random.normal(size=rows)
    noise = random.normal(size=(4, rows)) * 0.2
    ids = np.arange(rows)
    label = np.where(wealth > 0, "yes", "no").astype(object)
    label[rows // 2 :] = None  # half of the rows have no label
    bank = pl.DataFrame({"id": ids, "income": wealth + noise[0], "savings": noise[1] - wealth, "bad": list(label)})
    spent = 500 + 100 * (wealth + noise[2])
    shop = pl.DataFrame({"id": ids, "spent": spent, "colour": np.where(wealth > 0, "gold", "grey")})
    return {"bank": bank, "shop": shop.filter(pl.col("id") % 4 != 1)}, spent


@pytest.fixture(scope="module")
def model():
    return Federation.from_tables(tables()[0], label="bad").train(
        "false-vfl-1", parameters=PARAMETERS, encoder=MLP(hidden=(16,)), optimizer=Optimizer(lr=5e-3),
        epochs=20, batch_size=50, patience=None, keep="last", validation=0.0, test=0.0,
    )  # fmt: skip


class TestImpute:
    def test_missing_rows_are_imputed_in_the_units_of_the_table(self, model):
        given, spent = tables()
        filled = impute(model, given, "shop", samples=30)
        truth = {n: spent[n] for n in range(400) if n % 4 == 1}
        assert set(filled.ids) == truth.keys()
        assert filled.columns == ("spent", "colour=gold", "colour=grey")
        found, expected = filled.mean[:, 0], np.array([truth[name] for name in filled.ids])
        assert np.corrcoef(found, expected)[0, 1] > 0.9
        assert abs(found.mean() - 500) < 40
        gold = filled.mean[:, 1] > filled.mean[:, 2]
        assert (gold == (expected > 500)).mean() > 0.85
        assert filled.samples.shape == (30, 100, 3)
        assert np.abs(filled.samples.mean(axis=0)[:, 0] - found).mean() < 30
        inside = np.abs(filled.samples[:, :, 0] - expected).min(axis=0)
        assert np.median(inside) < 20  # of thirty samples one is near
        assert filled.frame().columns == ["id", *filled.columns]

    def test_the_imputed_table_has_the_columns_of_the_original(self, model):
        given = tables()[0]
        shop = given["shop"]
        filled = impute(model, given, "shop", samples=3)
        table = filled.table()
        assert table.columns == shop.columns
        assert table["id"].to_list() == list(filled.ids)
        assert np.allclose(table["spent"], filled.mean[:, 0])
        likeliest = np.where(filled.mean[:, 1] > filled.mean[:, 2], "gold", "grey")
        assert table["colour"].to_list() == likeliest.tolist()
        drawn = filled.table(samples=True)
        assert drawn.columns == ["id", "sample", "spent", "colour"]
        assert drawn["sample"].to_list() == [s for s in (1, 2, 3) for _ in filled.ids]
        assert np.allclose(drawn["spent"], filled.samples[:, :, 0].ravel())
        whole = pl.concat([shop, table.with_columns(pl.col("id").cast(pl.Int64))])
        assert model.predict({"shop": whole}).answered.all(), "such a table is one that the model takes"
        with pytest.raises(PredictionError, match="there are no samples"):
            impute(model, given, "shop").table(samples=True)

    def test_the_repr_of_an_imputation_holds_no_cells_or_ids(self, model):
        given = tables()[0]
        for cells, said in ((False, "100 rows that it lacks"), (True, "300 rows that it has")):
            shown = repr(impute(model, given, "shop", samples=3, cells=cells))
            assert shown == f"<Imputation of party 'shop': {said}, 3 numbers a row, 3 samples>"

    def test_a_party_without_a_table_can_be_imputed(self, model):
        filled = impute(model, {"bank": tables()[0]["bank"]}, "shop")
        assert len(filled.mean) == 400
        assert np.isfinite(filled.mean).all()
        assert filled.samples.shape == (0, 400, 3)

    def test_a_row_that_no_requested_party_holds_is_null(self, model):
        given = {"bank": tables()[0]["bank"][:5], "shop": tables()[0]["shop"][:2]}
        filled = impute(model, given, "shop", parties=["shop"])
        assert filled.frame()["spent"].null_count() == len(filled.ids) > 0
        assert filled.table().null_count().row(0) == (0, len(filled.ids), len(filled.ids))

    def test_the_active_party_imputes_its_own_missing_rows(self, model):
        given = tables()[0]
        filled = impute(model, {"bank": given["bank"][:10], "shop": given["shop"]}, "bank", samples=2)
        assert len(filled.ids) == 300 - 7
        wealth = (given["shop"].filter(pl.col("id").is_in(filled.ids))["spent"].to_numpy() - 500) / 100
        order = np.argsort([int(name) for name in filled.ids])
        assert np.corrcoef(filled.mean[order, filled.columns.index("income")], wealth)[0, 1] > 0.9

    def test_columns_far_from_zero_keep_their_spread(self):
        seconds = 1.7e9 + np.arange(60.0)  # single precision can only represent multiples of 128 here
        given = tables(60)[0]
        given["shop"] = given["shop"].with_columns(spent=pl.Series(seconds[given["shop"]["id"].to_numpy()]))
        federation = Federation.from_tables(given, label="bad")
        other = federation.train("false-vfl-1", parameters=PARAMETERS, epochs=1, test=0.0)
        found = impute(other, given, "shop", samples=5).samples[:, :, 0]
        assert len(np.unique(found)) > 50

    def test_empty_cells_of_existing_rows_are_imputed(self, model):
        given = tables()[0]
        whole = given["shop"].with_columns(spend=pl.col("spent"))
        gap = pl.col("id") % 5 == 0
        shop = whole.with_columns(
            spent=pl.when(~gap).then("spent"),
            colour=pl.when(pl.col("id") == 2).then(pl.lit("pink")).when(pl.col("id") != 3).then("colour"),
        )
        with pytest.warns(UserWarning, match=r"never saw, .*: column 'colour', 1 of 299 cells, such as 'pink'"):
            filled = impute(model, given | {"shop": shop}, "shop", samples=20, cells=True)
        assert (filled.gaps, len(filled.ids)) == (shop["spent"].null_count(), 300)
        table = filled.table().with_columns(pl.col("id").cast(pl.Int64)).sort("id")
        assert table.columns == shop.columns
        assert filled.left == shop["colour"].null_count() == 1
        assert table.filter(~gap)["spent"].equals(whole.filter(~gap)["spent"]), "to the last bit"
        assert table["colour"].equals(shop.sort("id")["colour"]), "also what training never saw, and what is empty"
        found, truth = table.filter(gap)["spent"].to_numpy(), whole.sort("id").filter(gap)["spent"].to_numpy()
        assert np.corrcoef(found, truth)[0, 1] > 0.9
        drawn = filled.table(samples=True).with_columns(pl.col("id").cast(pl.Int64))
        spread = drawn.group_by("id").agg(pl.col("spent").n_unique()).with_columns(gap=pl.col("id") % 5 == 0)
        assert set(spread.filter("gap")["spent"]) == {20}
        assert set(spread.filter(~pl.col("gap"))["spent"]) == {1}
        with pytest.warns(UserWarning, match="such as 'pink'"):
            alone = impute(model, {"shop": shop}, "shop", cells=True).table()
        assert alone.height == 300, "by the colour alone"
        assert alone["spent"].null_count() == 0

    def test_the_imputed_table_keeps_all_rows_columns_and_known_cells(self, model):
        """All rows and columns are unchanged except empty cells in numeric columns; a column may be entirely empty."""
        given = tables()[0]
        shop = given["shop"].sample(fraction=1.0, shuffle=True, seed=1).select(
            note=pl.format("n{}", "id"), colour="colour", id="id", day=pl.lit(None, dtype=pl.Date), spent="spent"
        ).with_columns(
            spent=pl.when(~pl.col("id").is_in([3, 8])).then("spent"), colour=pl.when(pl.col("id") != 8).then("colour")
        )  # fmt: skip
        with pytest.warns(AnypartyWarning, match="1 of 300 rows are empty except for the id"):
            filled = impute(model, given | {"shop": shop}, "shop", cells=True, samples=2)
        whole = filled.table()
        assert (filled.gaps, filled.left, filled.blank) == (1, 0, 1)
        assert list(filled.ids) == [one for one in shop["id"] if one != 8]
        gap = pl.col("id") == 3
        assert whole.filter(gap)["spent"].null_count() == 0
        assert whole.with_columns(spent=pl.when(~gap).then("spent")).equals(shop)
        drawn = filled.table(samples=True)
        assert drawn.columns == ["note", "colour", "id", "sample", "day", "spent"]
        assert drawn["id"].to_list() == [*shop["id"], *shop["id"]]

    def test_missing_rows_are_imputed_with_the_columns_of_the_table(self, model):
        given = tables()[0]
        bank = given["bank"][::-1].select("bad", "savings", "id", "income").with_columns(
            pl.when(pl.col("id") != 7).then(pl.col("savings", "income"))
        )  # fmt: skip
        shop = given["shop"].with_columns(id=pl.col("id") + 300)  # a hundred of them are the bank's, too
        with pytest.warns(AnypartyWarning, match="1 of 400 rows are empty except for the id"):
            filled = impute(model, {"bank": bank, "shop": shop}, "bank")
        assert filled.ids[0] == 7, "a row of which it knows the label alone"
        assert list(filled.ids[1:]) == [one for one in shop["id"] if one >= 400], "in the table's order"
        table = filled.table()
        assert table.columns == bank.columns
        assert table["bad"].to_list() == [bank.filter(id=7)["bad"].item(), *[None] * (len(filled.ids) - 1)]
        assert table["income"].null_count() == 1, "nobody knows that one"

    def test_imputed_booleans_stay_booleans(self):
        given = tables(120)[0]
        shop = given["shop"].with_columns(vip=pl.when(pl.col("id") % 5 > 0).then(pl.col("spent") > 500))
        other = Federation.from_tables(given | {"shop": shop}, label="bad").train(
            "false-vfl-1", parameters=PARAMETERS, epochs=1, test=0.0
        )
        gap = shop["vip"].is_null()
        whole = impute(other, given | {"shop": shop}, "shop", cells=True).table()
        assert whole["vip"].dtype == pl.Boolean
        assert whole["vip"].null_count() == 0
        assert whole.filter(~gap).equals(shop.filter(~gap))
        lacked = impute(other, given | {"shop": shop}, "shop", samples=2)
        assert (lacked.table()["vip"].dtype, lacked.unknown) == (pl.Boolean, 0)
        assert lacked.table(samples=True)["vip"].dtype == pl.Boolean
        nobody = impute(other, given | {"shop": shop}, "shop", parties=["shop"])
        assert nobody.unknown == len(nobody.mean) > 0

    @pytest.mark.parametrize("source", ["integers", "floats", "text"])
    @pytest.mark.parametrize("cells", [False, True])
    def test_whole_numbers_stay_whole_and_in_the_range_of_training(self, source, cells, tmp_path):
        """The mean of a column of whole numbers from 0 to 8 was filled in as 3.05."""
        given, _ = tables(120)
        random = np.random.default_rng(1)
        shop = given["shop"].with_columns(
            visits=pl.Series(random.integers(9, size=90)), code=pl.Series(random.integers(100, 105, size=90))
        )
        gaps = pl.col("id") % 7 == 0
        if cells:
            shop = shop.with_columns(visits=pl.when(~gaps).then("visits"), spent=pl.when(~gaps).then("spent"))
        if source == "floats":
            shop = shop.with_columns(pl.col("visits").cast(pl.Float64))
        limits = shop["spent"].min(), shop["spent"].max()
        if source == "text":
            shop.write_csv(tmp_path / "shop.csv")
        tabled = given | {"shop": tmp_path / "shop.csv" if source == "text" else shop}
        made = Federation.from_tables(tabled, label="bad", types={"shop": {"code": "categorical"}})
        model = made.train("false-vfl-1", parameters=PARAMETERS, epochs=1, validation=0.0, test=0.0)
        found = impute(model, tabled, "shop", samples=20, cells=cells)
        for table in (found.table(), found.table(samples=True)):
            assert table["visits"].dtype == (pl.Float64 if source == "floats" else pl.Int64)
            assert set(table["visits"].drop_nulls().to_list()) <= set(range(9))
            assert table["spent"].cast(pl.Float64).is_between(*limits).all()
            assert set(table["code"].cast(pl.Int64)) <= set(range(100, 105))
            assert (table["code"].dtype == pl.Int64) == (source != "text")
        filled, table = found.filled(), found.table()
        assert filled.columns == table.columns
        assert filled["id"].equals(table["id"])
        if cells:
            assert filled["visits"].to_list() == filled["spent"].to_list() == (shop["id"] % 7 == 0).to_list()
            assert not filled["colour"].any()
            known = ~filled["visits"]
            assert table["visits"].filter(known).cast(pl.Int64).equals(shop["visits"].filter(known).cast(pl.Int64))
        else:
            assert filled.height == 30
            assert filled.drop("id").to_numpy().all()

    def test_known_cells_keep_their_values_outside_the_range_of_training(self, model):
        given, _ = tables()
        shop = given["shop"].with_columns(spent=pl.when(pl.col("id") > 8).then("spent").otherwise(pl.lit(None)))
        shop = shop.with_columns(spent=pl.when(pl.col("id") == 12).then(5000.5).otherwise("spent"))
        found = impute(model, given | {"shop": shop}, "shop", cells=True)
        assert found.table().filter(id=12)["spent"].item() == 5000.5
        assert found.filled().filter("spent")["id"].to_list() == shop.filter(pl.col("spent").is_null())["id"].to_list()

    def test_empty_cells_to_be_imputed_cause_no_remark(self, model):
        """Prediction warns that the model uses a fill value in these cells; imputation computes them."""
        given, _ = tables()
        emptied = given | {"shop": given["shop"].with_columns(spent=pl.lit(None, pl.Float64))}
        assert impute(model, emptied, "shop", cells=True).gaps == 300
        with pytest.warns(AnypartyWarning, match="more cells are empty than in training"):
            model.predict(emptied)

    def test_a_model_without_limits_imputes_the_mean(self, model):
        """Models of earlier versions do not have the range of the training cells."""
        given, _ = tables()
        found = impute(model, given, "shop")
        numeric = found.prepare.numeric.model_copy(update={"low": (), "high": (), "whole": ()})
        old = replace(found, prepare=found.prepare.model_copy(update={"numeric": numeric}))
        assert old.table()["spent"].to_list() == found.mean[:, 0].tolist()

    def test_sampled_categories_and_booleans_have_the_models_frequencies(self):
        """For all z, the decoder gives .9, .07, .03 for the levels, .1 for the truth value, and a deviation of .3."""
        given = tables(400)[0]
        kinds = np.array(["common", "some", "rare"])[np.arange(300) % 3]
        shop = given["shop"].with_columns(kind=pl.Series(kinds), vip=pl.int_range(300) % 2 == 0)
        model = Federation.from_tables(given | {"shop": shop}, label="bad").train(
            "false-vfl-1", parameters=PARAMETERS, epochs=1, test=0.0
        )
        prepare, decoder = model.members["shop"].prepare, model.members["shop"].state.modules["decoder"]
        last = [layer for layer in decoder.modules() if isinstance(layer, torch.nn.Linear)][-1]
        means = {"kind=common": 0.9, "kind=some": 0.07, "kind=rare": 0.03, "vip": 0.1}
        names = prepare.names
        at = torch.tensor([means.get(name, 0.0) for name in names])
        number = prepare.numeric.columns.index("vip")
        at[number] = (0.1 - prepare.numeric.mean[number]) / prepare.numeric.scale[number]
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.cat([at, torch.full((len(names),), 0.25).expm1().log()]))
        filled = impute(model, given | {"shop": shop}, "shop", samples=40)
        drawn = filled.table(samples=True)
        often = dict(drawn["kind"].value_counts(normalize=True).iter_rows())
        assert often["rare"] == pytest.approx(0.03, abs=0.012)  # four standard errors, sqrt(.03 / 4000)
        assert often["some"] == pytest.approx(0.07, abs=0.017)
        assert drawn["vip"].mean() == pytest.approx(0.1, abs=0.02)
        assert drawn.equals(impute(model, given | {"shop": shop}, "shop", samples=40).table(samples=True))
        assert set(filled.table()["kind"]) == {"common"}

    @pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
    def test_imputation_errors_are_not_equal_in_all_rows(self, name):
        given = tables(400)[0]
        made = Federation.from_tables(given, label="bad").train(
            name, parameters=PARAMETERS | {"predict_samples": 20}, epochs=1, test=0.0
        )
        of_seeds = np.stack([impute(replace(made, seed=seed), given, "shop").mean for seed in range(12)])
        one_row, the_mean = of_seeds.std(axis=0).mean(axis=0), of_seeds.mean(axis=1).std(axis=0)
        assert (the_mean < 0.35 * one_row).all()  # a hundred rows; equal errors in all rows would give a ratio of 1

    def test_the_imputation_of_a_row_does_not_depend_on_other_rows(self, model):
        given = tables()[0]
        whole, order = impute(model, given, "shop"), np.random.default_rng(0).permutation(400)
        few = impute(model, {"bank": given["bank"][order[:90].tolist()], "shop": given["shop"][::-1]}, "shop")
        at = [whole.ids.index(one) for one in few.ids]
        assert np.allclose(few.mean, whole.mean[at], rtol=1e-4, atol=1e-4)

    @pytest.mark.filterwarnings("ignore:.*more cells are empty than in training")
    def test_messages_do_not_reveal_which_rows_have_empty_cells(self, model):
        given = tables()[0]
        crossed = []
        for place in (3, 200):
            shop = given["shop"].with_columns(spent=pl.when(pl.int_range(pl.len()) > place).then("spent"))
            ledger = Ledger()
            impute(model, given | {"shop": shop}, "shop", cells=True, ledger=ledger)
            crossed.append({(row["sender"], row["receiver"], row["tag"]): row["bytes_sent"] for row in ledger.rows()})
        assert crossed[0] == crossed[1]
        assert ("bank", "shop", "imputation") in crossed[0]

    @pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
    def test_the_active_party_imputes_its_empty_cells_if_there_are_any(self, name):
        given = tables(80)[0]
        few = PARAMETERS | {"predict_samples": 3}
        other = Federation.from_tables(given, label="bad").train(name, parameters=few, epochs=1, test=0.0)
        bank = given["bank"].with_columns(savings=pl.when(pl.col("id") > 9).then("savings"))
        filled = impute(other, given | {"bank": bank}, "bank", cells=True, samples=9)
        drawn = filled.samples[:, np.array([int(name) < 10 for name in filled.ids]), filled.columns.index("savings")]
        assert all(len(set(row)) == 9 for row in drawn.T), "a row that is there is not drawn as one that is missing"
        assert (filled.gaps, len(filled.ids), filled.table()["savings"].null_count()) == (10, 80, 0)
        assert filled.frame()["income"].sort().equals(bank["income"].sort())
        same = impute(other, given, "shop", cells=True, samples=2)
        assert same.gaps == 0
        assert same.table().sort(pl.col("id").cast(int))["spent"].equals(given["shop"].sort("id")["spent"])

    def test_imputations_are_sent_only_to_the_owner(self, model):
        ledger = Ledger()
        impute(model, tables()[0], "shop", samples=3, ledger=ledger)
        crossed = {(row["sender"], row["receiver"], row["tag"]) for row in ledger.rows()}
        assert crossed == {("bank", "shop", "imputation")}  # shop has none of these rows, so it sends nothing

    def test_a_loaded_model_gives_the_same_imputation(self, model, tmp_path):
        model.save(tmp_path)
        one, two = (impute(each, tables()[0], "shop", samples=2) for each in (model, Model.load(tmp_path)))
        assert np.array_equal(one.mean, two.mean)
        assert np.array_equal(one.samples, two.samples)

    def test_invalid_imputation_requests_are_refused(self, model):
        with pytest.raises(PredictionError, match="no party 'shopp' with columns; did you mean 'shop'"):
            impute(model, tables()[0], "shopp")
        with pytest.raises(PredictionError, match="samples must not be below 0"):
            impute(model, tables()[0], "shop", samples=-1)
        for without in ({"parties": ["bank"]}, {"tables": {"bank": tables()[0]["bank"]}}):
            with pytest.raises(
                PredictionError, match="empty cells of 'shop' are imputed from its own other cells, too"
            ):
                impute(model, **({"tables": tables()[0]} | without), party="shop", cells=True)
        other = Federation.from_tables(tables()[0], label="bad").train("local", epochs=1)
        with pytest.raises(PredictionError, match="train false-vfl-1 or false-vfl-2, not Local"):
            impute(other, tables()[0], "shop")
        with pytest.raises(PredictionError, match="log_likelihood needs a generative model of the columns"):
            log_likelihood(other, tables()[0])


def test_rows_unlike_those_of_training_are_unlikely(model):
    given = tables(seed=7)[0]
    odd = given["bank"].with_columns(
        pl.when(pl.col("id") < 40).then(-pl.col("income")).otherwise("income").alias("income")
    )
    scores = log_likelihood(model, {"bank": odd, "shop": given["shop"]})
    assert scores.columns == ["id", "log_likelihood", "parties"]
    both = scores.filter(pl.col("parties") == "bank shop").with_columns(odd=pl.col("id").cast(int) < 40)
    low, high = (both.filter(pl.col("odd") == here)["log_likelihood"].median() for here in (True, False))
    assert low < high - 2
    assert [int(one) for one in scores["id"]] == list(range(400)), "as the table has them, not as text"
    assert set(scores["parties"]) == {"bank", "bank shop"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("command")
    given = tables(80)[0]
    config = {"federation": {"label": "bad"}, "method": {"name": "false-vfl-1", **PARAMETERS},
              "parties": {name: {"table": str(home / f"{name}.csv")} for name in given},
              "train": {"epochs": 2, "test": 0.0, "validation": 0.0}}  # fmt: skip
    for name, frame in given.items():
        frame.write_csv(home / f"{name}.csv")
    Federation.from_config(Config.of(config)).train(folder=home / "run")
    return home / "run"


class TestByCommand:
    def test_the_impute_command_writes_missing_rows(self, run, call, tmp_path):
        out = tmp_path / "filled.csv"
        shown = call("impute", run, "--party", "shop", "--out", out)
        assert shown.exit_code == 0, shown.output
        assert "20 rows that shop lacks, 2 columns" in shown.stdout
        assert "stay empty" not in shown.stdout
        found = pl.read_csv(out)
        want = impute_run(run, "shop").table()
        assert found.columns == ["id", "spent", "colour"]
        assert np.allclose(found["spent"], want["spent"])
        assert found["colour"].to_list() == want["colour"].to_list()
        drawn = call("impute", run, "--party", "shop", "--samples", 2, "--out", out)
        assert drawn.exit_code == 0, drawn.output
        assert pl.read_csv(out)["sample"].to_list() == [1] * 20 + [2] * 20
        assert "The first 8 rows" in call("impute", run, "--party", "shop").stdout

    def test_impute_cells_fills_in_only_empty_cells(self, run, call, tmp_path):
        shop = pl.read_csv(run.parent / "shop.csv").with_columns(spent=pl.when(pl.col("id") > 3).then("spent"))
        shop.write_csv(tmp_path / "shop.csv")
        words = ["--party", "shop", "--cells", "--table", f"shop={tmp_path / 'shop.csv'}"]
        shown = call("impute", run, *words, "--out", tmp_path / "whole.csv")
        assert shown.exit_code == 0, shown.output
        assert "3 empty cells of numbers filled in, in the 60 rows that shop has, 2 columns\n" in shown.stdout
        assert pl.read_csv(tmp_path / "whole.csv")["spent"].null_count() == 0
        assert pl.read_csv(tmp_path / "whole.csv")[3:].equals(shop[3:])

    @pytest.mark.filterwarnings("default")
    def test_impute_cells_reports_cells_that_stay_empty(self, run, call, tmp_path):
        shop = pl.read_csv(run.parent / "shop.csv").with_columns(
            spent=pl.when(pl.col("id") > 3).then("spent"), colour=pl.when(pl.col("id") > 6).then("colour")
        )
        shop.write_csv(tmp_path / "shop.csv")
        said = call("impute", run, "--party", "shop", "--cells", "--table", f"shop={tmp_path / 'shop.csv'}",
                    "--table", f"bank={run.parent / 'bank.csv'}", "--out", tmp_path / "whole.csv")  # fmt: skip
        assert said.stderr.startswith("party 'shop', shop.csv: 3 of 60 rows are empty except for the id")
        said = said.stdout
        assert "0 empty cells of numbers filled in, in the 57 rows that shop has, 2 columns; " in said
        assert "2 empty cells of categories, dates and texts stay empty: only numbers are imputed; " in said
        assert "3 rows without any cell are unchanged; without --cells they are filled in\n" in said
        assert pl.read_csv(tmp_path / "whole.csv").equals(shop)

    def test_the_help_of_impute_describes_what_is_imputed(self, call):
        said = " ".join(re.sub(r"[│|]", " ", call("impute", "--help").stdout).split())
        assert "Empty cells of categories, dates and texts stay empty" in said
        assert "Gaussian samples are moved into the range of training" in said

    def test_the_likelihood_command_writes_a_likelihood_per_row(self, run, call, tmp_path):
        out = tmp_path / "rows.csv"
        shown = call("likelihood", run, "--parties", "bank", "--out", out)
        assert shown.exit_code == 0, shown.output
        assert "same parties" not in shown.stdout
        assert "Compare only rows of the same parties" in call("likelihood", run).stdout
        found = pl.read_csv(out)
        assert found.columns == ["id", "log_likelihood", "parties"]
        assert found["log_likelihood"].is_sorted()
        want = log_likelihood_run(run, parties=["bank"])
        assert np.allclose(found.sort("id")["log_likelihood"], want.sort(pl.col("id").cast(int))["log_likelihood"])

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--party", "shp"], "no party 'shp' with columns; did you mean 'shop'?"),
            (["--party", "shop", "--out", "x.txt"], "name a file that ends in .parquet or .csv"),
            (["--party", "shop", "--parties", "bnk"], "the model has no party 'bnk'; did you mean 'bank'?"),
        ],
    )
    def test_invalid_commands_are_refused(self, run, call, words, said):
        shown = call("impute", run, *words)
        assert shown.exit_code == 2
        assert said in " ".join(shown.stderr.split())

    def test_commands_do_not_overwrite_a_table(self, run, call):
        for words in (["impute", run, "--party", "shop"], ["likelihood", run]):
            shown = call(*words, "--out", run.parent / "bank.csv")
            assert "this is a party's table, which would be overwritten" in " ".join(shown.stderr.split())
