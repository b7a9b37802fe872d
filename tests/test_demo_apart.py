"""Four processes with mutual TLS on real data, by one command; the weights of one process, bit for bit."""

import os
from pathlib import Path

import polars as pl
import pytest

from anyparty.demo import apart
from anyparty.errors import ConfigError
from anyparty.wire.flare import federation as flare
from tests.conftest import Call


@pytest.mark.net
def test_credit_cut_in_four(tmp_path: Path, call: Call) -> None:
    if "ANYPARTY_DATA" not in os.environ:
        pytest.skip("the Credit data are not here: ANYPARTY_DATA names no folder of data sets")
    pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
    folder = tmp_path / "apart"
    shown = call("federate", "demo", folder, "--epochs", 1)
    assert shown.exit_code == 0, shown.output
    for name in apart.NAMES:
        assert f"{name}: weights equal, bit for bit" in shown.output
    answers = pl.read_parquet(folder / "house" / "kits" / "bank" / "runs" / "predictions.parquet")
    assert len(answers) == 18_000  # the bank's rows: 24,000 less a quarter
    assert answers["prediction"].null_count() == 0
    assert answers["parties"].n_unique() == 8  # the bank, and every set of the others
    assert not flare.processes(folder / "house")
    again = call("federate", "demo", folder)
    assert again.exit_code != 0
    assert "is not empty" in again.output


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not empty; name a new folder"):
        apart.demo(tmp_path)
