"""Faults at chosen moments of a real federation: each is reported, and nothing that can be restored is lost.

    moment      fault                                       what is checked
    alignment   kill -9 of a job's process                  an error names the party; the next training succeeds
    training    kill -9 of a site and its job               exit code 3; status; one site is started; resume is equal
    checkpoint  full disk                                   exit code 3, StorageError; resume is equal
    prediction  SIGSTOP of a site and its job               the others answer, also for new rows; status

``tests/deployment/test_departures.py`` has parties that rejoin, and the active party's death.
"""

import json
import os
import signal
import time
import tomllib
from pathlib import Path

import polars as pl
import pytest
import tomli_w
from typer.testing import CliRunner

from anyparty.cli.app import app
from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import federation_folder as flare
from tests.deployment.test_departures import repeat_in_one_process, saved_weights, wait_for_no_job
from tests.deployment.test_site_training import NAMES, world
from tests.faults.faulty_parts import PARTS
from tests.ports import free_port

site_process = pytest.importorskip("anyparty.deployment.flare.site_process")
pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

pytestmark = [pytest.mark.net, pytest.mark.filterwarnings("default::anyparty.errors.AnypartyWarning")]
TOML = {
    "federation": {"label": "y", "active": "bank"},
    "parties": {name: {} for name in NAMES},
    "method": {"name": "laser", "embedding": 8},
    "optimizer": {"lr": 0.01},
    "train": {"epochs": 8, "batch_size": 32, "patience": 8, "checkpoint_every": 1},
}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    place = tmp_path_factory.mktemp("faults")
    roster = Roster(tuple(Party(name=name) for name in NAMES), "bank")
    own = {"threads": 1, "patience": {"silent_s": 3.0, "flush_s": 3.0}, "parts": PARTS}
    tables = {name: site.table for name, site in world(place).items()}
    flare.init(place / "fed", roster, port=free_port(), tables=tables, site=own)
    (place / "run.toml").write_text(tomli_w.dumps(TOML))
    with pytest.MonkeyPatch.context() as patch:
        root = Path(__file__).parents[2]
        patch.setenv("PYTHONPATH", f"{root}{os.pathsep}{root / 'src'}")
        patch.setenv("COLUMNS", "200")
        try:
            flare.start(place / "fed", 240.0)
            yield place / "fed"
        finally:
            flare.stop(place / "fed")


def runs(house, name):
    return house / "kits" / name / "runs"


def call(house, command, *words, fault=None, idle=True):
    if idle:
        wait_for_no_job(house)
    if fault:
        runs(house, "shop").mkdir(exist_ok=True)
        (runs(house, "shop") / "fault.json").write_text(json.dumps(fault))
    words = ["federate", command, str(house), str(house.parent / "run.toml"), *words]
    return CliRunner().invoke(app, words)


def wait_until_absent(house, limit_s=15.0, busy_s=30.0):
    """Wait until the status lists the shop as absent; a busy machine may need ``busy_s`` seconds more."""
    began = time.monotonic()
    while "shop" not in flare.status(house)["absent"]:
        assert time.monotonic() - began < limit_s + busy_s


def resume(house, home):
    """Resume the training, which must end as an uninterrupted one; return the epoch after which it continued."""
    result = call(house, "train", "--resume")
    assert result.exit_code == 0, result.output
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("training resumes after epoch")]
    toml = tomllib.loads((house.parent / "run.toml").read_text())
    assert saved_weights(house) == repeat_in_one_process(house, toml, home)
    return int(said.split()[4])


def test_a_job_killed_in_the_alignment(house):
    result = call(house, "train", fault={"fault": "kill job", "tag": "align-ids", "number": 1})
    assert result.exit_code == 2, result.output
    assert "party 'shop' is gone" in result.stderr or "after 'shop' had left" in result.stderr


def test_a_site_killed_in_training(house, tmp_path):
    result = call(house, "train", "--again", fault={"fault": "kill site", "tag": "embedding", "number": 30})
    assert result.exit_code == 3, result.output
    assert "The model's part of shop lacks the last epochs (exit code 3)." in result.stderr
    assert "Scores on test rows" in result.stdout
    wait_until_absent(house)
    assert flare.start(house, 240.0) == ["shop"]
    assert 1 <= resume(house, tmp_path) < 7


def test_a_disk_that_is_full_at_a_checkpoint(house, tmp_path):
    result = call(house, "train", "--again", fault={"fault": "full disk", "tag": "embedding", "number": 30})
    assert result.exit_code == 3, result.output
    assert "it stopped with StorageError" in result.stderr
    assert 1 <= resume(house, tmp_path) < 7


def test_a_site_stopped_in_a_prediction_of_new_rows(house):
    if not (runs(house, "bank") / "model.json").exists():  # this test runs alone
        assert call(house, "train", "--again").exit_code == 0
    kits, before = {name: house / "kits" / name for name in NAMES}, {}
    for name, kit in kits.items():
        path = kit / "local" / "anyparty.toml"
        before[path] = path.read_text()
        new = pl.read_csv(tomllib.loads(before[path])["table"]).head(50)
        new.with_columns(pl.format("new {}", pl.int_range(50 if name == "bank" else len(new))).alias("id")).write_csv(
            kit / "new.csv"
        )
        path.write_text(f'new = "{kit / "new.csv"}"\n{before[path]}')
    try:
        result = call(house, "predict", "--json", fault={"fault": "stop site", "tag": "embedding", "number": 1})
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["silent"] == ["shop"]
        wait_until_absent(house)
        result = call(house, "predict", "--json", "--parties", "bank,clinic", idle=False)  # the shop's job hangs
        assert result.exit_code == 0, result.output
        answers = json.loads(result.stdout)
        assert (len(answers["rows"]), answers["silent"]) == (50, [])
        assert {row["parties"] for row in answers["rows"]} == {"bank clinic"}
        assert "aligning 50 rows with clinic" in result.stderr or "predicting 50 rows with clinic" in result.stderr
    finally:
        for process in site_process.at_kit(kits["shop"]):
            process.send_signal(signal.SIGCONT)
        for path, text in before.items():
            path.write_text(text)
