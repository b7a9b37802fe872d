"""Cases 12, 13 and 15 to 18: traps of training and prediction, as a user of Python meets them."""

import multiprocessing
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from anyparty import Model
from anyparty.api.federation import Federation
from anyparty.errors import AnypartyError


def tables(n: int, share: float = 0.5, classes: int = 2, noise: float = 0.1) -> dict[str, pd.DataFrame]:
    """Return the tables of a bank and a shop; ``share`` of the rows are of the last class, which ``u`` tells apart."""
    random = np.random.default_rng(0)
    ids = [f"k{row:04d}" for row in range(n)]
    bank = pd.DataFrame({"id": ids, "u": random.normal(size=n), "v": random.normal(size=n)})
    shop = pd.DataFrame({"id": ids, "w": random.normal(size=n)})
    rank = (bank.u + noise * random.normal(size=n)).rank(pct=True)
    bank["y"] = np.where(rank > 1 - share, classes - 1, np.minimum((rank * classes).astype(int), classes - 2))
    return {"bank": bank, "shop": shop}


def federation(given: dict[str, pd.DataFrame], **options) -> Federation:
    return Federation.from_tables(given, id="id", label="y", **options)


@cache
def trained() -> Model:
    return federation(tables(60)).train("laser", epochs=1)


def unlabelled(given: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {"bank": given["bank"].drop(columns="y"), "shop": given["shop"]}


class TestCase12MetricPlateauKeepsEpoch0:
    @pytest.mark.parametrize(
        ("metric", "seed"),
        [
            ("macro_f1", 0),
            *(
                pytest.param(metric, seed, marks=pytest.mark.slow)
                for metric in ("f1", "macro_f1", "accuracy", "auroc", "log_loss")
                for seed in (1, 2, 3)
            ),
        ],
    )
    def test_the_kept_epoch_tells_the_rare_class_apart(self, metric, seed):
        given = tables(600, share=0.03)
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            model = federation(given).train("laser", epochs=60, patience=10, seed=seed, metric=metric)
        scores = model.predict(unlabelled(given)).scores[:, 1].numpy()
        assert roc_auc_score(given["bank"].y, scores) >= 0.95
        assert model.best_epoch > 0 or remarks

    @pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1"])
    def test_a_metric_that_never_moves_gets_a_remark(self, metric):
        given = tables(240, share=0.03)
        with pytest.warns(UserWarning, match=metric):
            federation(given).train("laser", epochs=12, seed=0, metric=metric)


class TestCase13FrameEditedInPlace:
    @staticmethod
    def _assign(frame):
        frame.loc[:, "u"] = 0.0
        frame.loc[:, "y"] = 1 - frame["y"].to_numpy()

    @staticmethod
    def _at(frame):
        for row in range(200):
            frame.iloc[row, 1] = -9.0
            frame.iat[row, 3] = 0

    @staticmethod
    def _memory(frame):
        frame["u"].array._ndarray[:] = 0.0
        del frame["v"]

    @staticmethod
    def _order(frame):
        frame.loc[:, "u"] = np.sort(frame["u"])
        frame.columns = ["id", "z", "v", "y"]

    @pytest.mark.parametrize("edit", ["_assign", "_at", "_memory", "_order"])
    def test_the_federation_is_what_its_tables_were(self, edit):
        given = tables(240)
        untouched = tables(240)
        made = federation(given)
        getattr(self, edit)(given["bank"])
        assert made.tables["bank"].fingerprint == federation(untouched).tables["bank"].fingerprint
        scores = [each.train("laser", epochs=1, seed=1).predict(unlabelled(untouched)).scores
                  for each in (made, federation(untouched))]  # fmt: skip
        assert scores[0].equal(scores[1])

    def test_polars_and_numpy(self):
        frame = pl.from_pandas(tables(240)["bank"])
        shop = tables(240)["shop"].to_records(index=False)
        made = federation({"bank": frame, "shop": np.array(shop, dtype=[("id", "U5"), ("w", "f8")])})
        before = {name: table.fingerprint for name, table in made.tables.items()}
        frame[0, "u"] = 1e6
        made.tables["shop"].__dict__.pop("fingerprint")
        made.tables["bank"].__dict__.pop("fingerprint")
        assert {name: table.fingerprint for name, table in made.tables.items()} == before


class TestCase15BalanceProbabilities:
    @pytest.mark.parametrize(("share", "classes"), [(0.05, 2), (0.1, 2), (0.05, 3), (0.5, 2)])
    def test_probabilities_are_shares_of_the_table(self, share, classes):
        given = tables(1200, share, classes, noise=1.0)
        made = federation(given)
        plain, balanced = (made.train("laser", epochs=8, seed=1, balance=balance) for balance in (False, True))
        rare = f"p({classes - 1})"
        share = float((given["bank"].y == classes - 1).mean())
        found = balanced.predict(unlabelled(given)).frame()[rare].mean()
        assert abs(found - share) < 0.04
        both = plain.evaluate().overall, balanced.evaluate().overall
        assert abs(both[0]["log_loss"] - both[1]["log_loss"]) < 0.1

    def test_the_ranking_does_not_change(self):
        given = tables(1200, 0.05, noise=1.0)
        balanced = federation(given).train("laser", epochs=25, seed=1, balance=True)
        scores = balanced.predict(unlabelled(given)).frame()["p(1)"].to_numpy()
        plain = (
            federation(given).train("laser", epochs=25, seed=1).predict(unlabelled(given)).frame()["p(1)"].to_numpy()
        )
        label = given["bank"].y
        assert abs(roc_auc_score(label, scores) - roc_auc_score(label, plain)) < 0.05


class TestCase16ValidationRoundsToNoRow:
    @pytest.mark.parametrize(
        ("rows", "validation", "split"), [(60, 0.005, "random"), (240, 0.001, "stratified"), (30, 0.01, "stratified")]
    )
    def test_a_share_above_0_has_rows(self, rows, validation, split):
        made = federation(tables(rows), split=split)
        model = made.train("laser", epochs=2, seed=1, validation=validation, metric="accuracy", patience=2)
        assert "validation" in model.history[-1]

    @pytest.mark.parametrize("test", [0.005, 0.01])
    def test_so_has_the_test_part(self, test):
        made = federation(tables(60), split="random")
        assert made.train("laser", epochs=1, seed=1, test=test).evaluate().overall["rows"] >= 1


FORKED = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import pandas as pd
from anyparty import Federation, Model

def made(_=0):
    return Federation.from_tables({"bank": bank, "shop": shop}, id="id", label="y")

def said(work):
    try:
        return str(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def a_federation(_): return said(lambda: made().train("laser", epochs=1).evaluate().overall["accuracy"])
def a_prediction(_): return said(lambda: model.predict({"bank": bank.drop(columns="y"), "shop": shop}))
def a_saved_model(_): return said(lambda: Model.load("saved").predict({"bank": bank.drop(columns="y")}))
def a_file(_): return said(lambda: Federation.from_tables({"bank": "bank.csv", "shop": "shop.csv"}, label="y"))

bank, shop = pd.read_csv("bank.csv"), pd.read_csv("shop.csv")
model = made().train("laser", epochs=1)
model.save("saved")
for work in (a_federation, a_prediction, a_saved_model, a_file):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(work.__name__, pool.map_async(work, [0]).get(timeout=60)[0])
"""


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_case_17_fork_hangs(tmp_path):
    for name, frame in tables(60).items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    made = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", FORKED], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    answers = dict(line.split(" ", 1) for line in made.stdout.splitlines())
    assert len(answers) == 4, made.stderr[-2000:]
    for answer in answers.values():
        assert "spawn" in answer, answers


class TestCase18TildeFolder:
    @pytest.fixture
    def here(self, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        (tmp_path / "home").mkdir()
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path / "here")
        for name, frame in tables(60).items():
            frame.to_csv(tmp_path / "home" / f"{name}.csv", index=False)
        yield tmp_path
        assert not Path("~").exists(), "a folder that is really called ~"

    def test_in_python(self, here):
        made = federation({name: f"~/{name}.csv" for name in ("bank", "shop")})
        model = made.train("laser", epochs=1, folder="~/x")
        model.save("~/models/one")
        model.predict().write("~/answers.csv")
        assert {"x", "models", "answers.csv"} <= {each.name for each in (here / "home").iterdir()}
        assert Model.load("~/models/one").predict({"bank": "~/bank.csv", "shop": "~/shop.csv"}).ids

    @pytest.mark.parametrize(
        ("folder", "said"),
        [
            ("$HOME/x", "$HOME is not replaced by a value"),
            ("%USERPROFILE%/x", "%USERPROFILE% is not replaced by a value"),
            ("runs\\x", "write /"),
            ("C:\\runs\\x", "write /"),
            ("https://example.org/x", "this is an address"),
            ("x" * 300, "is not a path"),
            ("a\0b", "is not a path"),
            ("~\\x", "home folder"),
        ],
    )
    def test_a_folder_that_is_written_in_another_way(self, here, folder, said):
        if "\\" in folder and os.sep != "/":
            pytest.skip("this system separates folders by a backslash")
        made = federation(tables(60))
        before = set(Path.cwd().iterdir())
        for use in (lambda: made.train("laser", epochs=1, folder=folder), lambda: trained().save(folder)):
            with pytest.raises(AnypartyError) as stopped:
                use()
            assert said in str(stopped.value)
        assert set(Path.cwd().iterdir()) == before

    @pytest.mark.parametrize(
        ("table", "said"),
        [("$DATA/bank.csv", "$DATA is not replaced"), ("x" * 5000, "is not a path"), ("a\\b.csv", "write /")],
    )
    def test_a_table_that_is_written_in_another_way(self, here, table, said):
        with pytest.raises(AnypartyError) as stopped:
            federation(tables(60) | {"bank": table})
        assert said in str(stopped.value)
        assert len(str(stopped.value)) < 300

    def test_a_model_in_place_of_a_run(self, here, call):
        trained().save("model")
        said = " ".join(call("predict", "model").output.split())
        assert "model is a saved model, not the folder of a run" in said

    def test_a_file_in_place_of_a_model(self, here):
        Path("model.csv").write_text("id\n", encoding="utf-8")
        with pytest.raises(AnypartyError, match=r"model\.csv is a file; name the folder"):
            Model.load("model.csv")

    def test_on_the_command_line(self, here, call):
        (here / "here" / "case.toml").write_text(
            '[federation]\nid = "id"\nlabel = "y"\n[parties.bank]\ntable = "~/bank.csv"\n'
            '[parties.shop]\ntable = "~/shop.csv"\n[train]\nepochs = 1\n[run]\nfolder = "~/a"\n',
            encoding="utf-8",
        )
        for words in (["case.toml"], ["case.toml", "--set", "run.folder=~/b"]):
            result = call("train", *words)
            assert result.exit_code == 0, result.output
        result = call("predict", "~/a", "--table", "bank=~/bank.csv", "--out", "~/answers.csv")
        assert result.exit_code == 0, result.output
        assert {"a", "b", "answers.csv"} <= {each.name for each in (here / "home").iterdir()}
