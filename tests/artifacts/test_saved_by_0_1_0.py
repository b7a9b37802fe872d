"""Runs that anyparty 0.1.0 saved before its packages were renamed still load, predict and report.

tests/saved/METHOD has both parties' tables, a run of one process (run/), its predictions (answers.csv), and what two
sites had after training and predicting over NVIDIA FLARE (site/PARTY).
"""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch

from anyparty.api.model import Model
from anyparty.api.runs import predict_run, settings_of
from anyparty.artifacts.model_files import ModelSummary
from anyparty.artifacts.record import RunRecord
from anyparty.deployment.site.site_prediction import ANSWERS, predict_at_site
from anyparty.training import checkpoint
from anyparty.training.checkpoint import Checkpoints
from anyparty.transport import memory
from tests.conftest import Call

SAVED = Path(__file__).parents[1] / "saved"
PARTIES = ("bank", "shop")


@dataclass(frozen=True)
class Site:
    party: str
    table: Path
    folder: Path
    active: str = "bank"
    parties: tuple[str, ...] = PARTIES


@pytest.fixture(params=["laser", "false-vfl"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAVED / request.param, tmp_path / "saved"))


def assert_same_predictions(got: pl.DataFrame, want: pl.DataFrame) -> None:
    text = [name for name in want.columns if not name.startswith("p(")]
    assert got.columns == want.columns
    assert got.select(text).rows() == want.select(text).rows()
    for name in set(want.columns) - set(text):
        assert torch.allclose(got[name].to_torch(), want[name].cast(got[name].dtype).to_torch(), atol=1e-6), name


def test_a_run_saved_by_0_1_0_gives_the_same_predictions(saved: Path) -> None:
    want = pl.read_csv(saved / "answers.csv")
    assert want["prediction"].null_count() == 0
    tables = {name: saved / f"{name}.csv" for name in PARTIES}  # the folder was copied, so it may not name files
    assert_same_predictions(predict_run(saved / "run", tables).frame(), want)


def test_sites_saved_by_0_1_0_give_the_same_predictions(saved: Path) -> None:
    want = pl.read_parquet(saved / "site" / "bank" / ANSWERS)
    (saved / "site" / "bank" / ANSWERS).unlink()
    sites = {name: Site(name, saved / f"{name}.csv", saved / "site" / name) for name in PARTIES}
    config = settings_of(saved / "run")
    memory.play({name: partial(predict_at_site, site, config) for name, site in sites.items()})
    assert_same_predictions(pl.read_parquet(saved / "site" / "bank" / ANSWERS), want)


def test_records_saved_by_0_1_0_can_be_reported(saved: Path, call: Call) -> None:
    for run in (saved / "run", saved / "site" / "bank"):
        shown = call("report", run, "--out", saved / f"report of {run.name}")
        assert shown.exit_code == 0, shown.output
        (page,) = (saved / f"report of {run.name}").glob("*.html")
        assert "bank" in page.read_text(encoding="utf-8")


def test_the_best_epoch_saved_by_0_1_0_is_read_as_counted_from_1(saved: Path) -> None:
    record = RunRecord.read(saved / "run" / "record.json")
    model = Model.load(saved / "run")
    assert model.best_epoch == record.best_epoch == len(record.history)
    model.save(saved / "again")
    assert Model.load(saved / "again").best_epoch == model.best_epoch
    assert ModelSummary.load(saved / "site" / "shop" / "model.json").best_epoch == 0
    newest = Checkpoints(saved / "run" / "parties" / "bank" / "checkpoints").files()[-1]
    progress = checkpoint._position(checkpoint.read(newest)[1])
    assert progress is not None
    last = record.history[-1].model_dump()
    assert (progress.best_stage, progress.best_epoch) == (last["stage"], last["epoch"])
    assert progress.history[-1]["epoch"] == progress.epoch
