"""The demo of a federation: four processes with mutual TLS have the weights of one process, bit for bit."""

import os
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from anyparty import Federation, config
from anyparty.cli import demo_federation
from anyparty.data import datasets
from anyparty.deployment.flare import federation_folder as flare
from anyparty.errors import ConfigError
from tests.conftest import Call


@pytest.mark.net
def test_the_demo_federation_trains_on_credit_data(tmp_path: Path, call: Call) -> None:
    if "ANYPARTY_DATA" not in os.environ:
        pytest.skip("the Credit data are not here: ANYPARTY_DATA names no folder of data sets")
    pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
    folder = tmp_path / "apart"
    shown = call("federate", "demo", folder, "--epochs", 1)
    assert shown.exit_code == 0, shown.output
    assert "the most frequent class has 0.7" in shown.output
    for name in demo_federation.NAMES:
        assert f"{name}: weights equal, bit for bit" in shown.output
    answers = pl.read_parquet(folder / "house" / "kits" / "bank" / "runs" / "predictions.parquet")
    assert len(answers) == 18_000  # the bank has three quarters of the 24,000 rows
    assert answers["prediction"].null_count() == 0
    assert answers["parties"].n_unique() == 8  # the bank, and every set of the others
    assert not flare.processes(folder / "house")
    again = call("federate", "demo", folder)
    assert again.exit_code != 0
    assert "is not empty" in again.output


@pytest.mark.parametrize("seed", [0, 1])
def test_a_small_table_trains_long_enough(tmp_path: Path, seed: int) -> None:
    """Test it in one process, which is deterministic; a federation's secrets differ each time."""
    path = demo_federation.write(tmp_path, "breast-cancer", None, None)
    model = Federation.from_config(config.load(path, [f"train.seed={seed}"])).train()
    assert (
        model.evaluate().overall["accuracy"]
        > demo_federation.most_frequent_share(tmp_path / "bank" / "table.csv") + 0.1
    )


def test_the_share_of_the_most_frequent_class_ignores_missing_labels(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("id,label\na,1\nb,0\nc,1\nd,\n")
    assert demo_federation.most_frequent_share(tmp_path / "table.csv") == pytest.approx(2 / 3)


def test_a_data_set_for_regression_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = replace(datasets.load("breast-cancer"), task="regression", classes=())
    monkeypatch.setattr(datasets, "load", lambda *_, **__: numbers)
    with pytest.raises(ConfigError, match="'google-cluster' has numbers as labels, but the demo predicts classes"):
        demo_federation.write(tmp_path, "google-cluster", None, None)


def test_a_folder_that_is_not_empty_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not empty; name a new folder"):
        demo_federation.run(tmp_path)
