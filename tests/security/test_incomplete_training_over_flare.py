"""Parties that fail at the end of a training, or leave it, as real processes: the command exits with an error."""

import os
import re
import resource
import shutil
import signal
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from anyparty.artifacts import model_files
from anyparty.artifacts.model_files import ModelSummary, read_json
from anyparty.cli.app import app
from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import TableError
from tests.deployment.test_departures import wait_for_no_job
from tests.deployment.test_site_training import NAMES, world
from tests.ports import free_port

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

HERE = "tests.security.test_incomplete_training_over_flare"
pytestmark = pytest.mark.net
SETTINGS = {
    "federation": {"label": "y", "active": "bank"},
    "parties": {name: {} for name in NAMES},
    "method": {"embedding": 8},
    "train": {"epochs": 6, "batch_size": 4, "checkpoint_every": 1},
}


def full_disk(site):
    """Allow this process only small files from now on, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))


async def fails_as_told(site, config, net, **asked):
    """Train; the shop fails once, in the way that the file "fails" in its folder names, or forges its embeddings."""
    told = site.folder / "fails"
    how = told.read_text() if told.exists() else ""
    told.unlink(missing_ok=True)
    if how == "full_disk":
        save = model_files.save_member

        def fails(*what):
            full_disk(site)
            return save(*what)

        model_files.save_member = fails
    if how == "leaves":
        recv, verdicts = net.recv, []

        async def leaves(frm, tag, expect):
            verdicts.extend([tag] if tag == "verdict" else [])
            if len(verdicts) == 2:  # the verdict of the second epoch: the others miss it in the third
                raise TableError("row 7 is not a number")
            return await recv(frm, tag, expect)

        net.recv = leaves
    if how == "forges":
        send, sent = net.send, []

        async def forges(to, tag, tensors):
            sent.extend([tag] if tag == "embedding" else [])
            wild = tag == "embedding" and len(sent) > 40
            return await send(to, tag, {name: tensor * 1e30 for name, tensor in tensors.items()} if wild else tensors)

        net.send = forges
    return await train_at_site(site, config, net, **asked)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    place = tmp_path_factory.mktemp("silent")
    sites = world(place)
    roster = Roster(tuple(Party(name=name) for name in NAMES), "bank")
    own = {"threads": 1, "patience": {"silent_s": 3.0, "flush_s": 3.0}, "parts": {"train": f"{HERE}:fails_as_told"}}
    flare.init(place / "fed", roster, port=free_port(), tables={n: site.table for n, site in sites.items()}, site=own)
    with pytest.MonkeyPatch.context() as patch:
        root = Path(__file__).parents[2]
        patch.setenv("PYTHONPATH", f"{root}{os.pathsep}{root / 'src'}")
        try:
            flare.start(place / "fed", 240.0)
            yield place / "fed"
        finally:
            flare.stop(place / "fed")


@pytest.fixture
def train(house, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    wait_for_no_job(house)
    for name in NAMES:
        shutil.rmtree(house / "kits" / name / "runs", ignore_errors=True)

    def trains(*words, fails=""):
        wait_for_no_job(house)
        (house / "run.toml").write_text(tomli_w.dumps(SETTINGS))
        if fails:
            (house / "kits" / "shop" / "runs").mkdir(exist_ok=True)
            (house / "kits" / "shop" / "runs" / "fails").write_text(fails)
        return CliRunner().invoke(app, ["federate", "train", str(house), str(house / "run.toml"), *words])

    return trains


def kept(house, name="bank"):
    return house / "kits" / name / "runs"


def test_a_party_that_does_not_save_its_part(house, train):
    result = train(fails="full_disk")
    assert result.exit_code == 2, result.output
    assert "party 'shop' trained until the end but did not save its part of the model" in result.stderr
    assert "then train with --resume" in result.stderr
    assert re.search(r"'shop' ended with StorageError: \S+/kits/shop/runs/\S+: cannot be written", result.stderr)
    record = read_json(kept(house) / "record.json")
    assert (record["status"], "'shop' trained until the end" in record["error"]) == ("failed", True)
    assert set(ModelSummary.load(kept(house) / "model.json").parts) == {"bank", "clinic"}
    report = CliRunner().invoke(app, ["report", str(house), "--out", str(house / "report"), "--no-model"])
    assert report.exit_code == 0, report.output
    assert "shop&#39; trained until the end but did not save" in (house / "report" / "index.html").read_text()

    result = train("--resume")
    assert result.exit_code == 0, result.output
    assert set(ModelSummary.load(kept(house) / "model.json").parts) == set(NAMES)
    assert read_json(kept(house) / "record.json")["status"] == "done"


@pytest.mark.filterwarnings("default::anyparty.errors.AnypartyWarning")
def test_a_party_that_leaves(house, train):
    result = train(fails="leaves")
    assert result.exit_code == 3, result.output
    assert "The model's part of shop lacks the last epochs (exit code 3)." in result.stderr
    said = "party 'shop' took no part in 4 of 6 epochs (it left: it stopped with TableError"
    assert said in result.stderr
    assert "and the saved model lacks its part. To add that part, start 'shop' and train with --resume" in result.stderr
    (warned,) = read_json(kept(house) / "record.json")["attendance"]
    assert warned.startswith(said)
    result = train("--again", "--set", "train.require=all", fails="leaves")
    assert result.exit_code == 2, result.output
    assert 'train.require = "all", and only 2 of 3 parties took part in at least half of the epochs' in result.stderr
    assert "'shop' missed 4 of 6 epochs and did not save its part of the model" in result.stderr
    assert read_json(kept(house) / "record.json")["status"] == "failed"
    result = train("--resume", "--set", "train.require=2")
    assert result.exit_code == 0, result.output
    assert "training resumes after epoch" in result.stderr, "the shop makes up for the epochs that it missed"
    assert "took no part in" not in result.stderr


@pytest.mark.filterwarnings("default::anyparty.errors.AnypartyWarning")
def test_a_party_that_sends_huge_numbers_is_dropped_or_ends_the_run(house, train):
    result = train("--set", "train.extreme=drop", fails="forges")
    assert result.exit_code == 3, result.output
    assert "party 'shop' took no part in 5 of 6 epochs" in result.stderr
    record = read_json(kept(house) / "record.json")
    assert record["status"] == "done"
    away = [epoch.get("absent", {}).get("shop", "") for epoch in record["history"]]
    assert not away[0]
    assert "message 'embedding' from 'shop' to 'bank' at stage 'train', epoch" in away[-1]
    assert ", the bound for messages of this party is" in away[-1]
    assert not any("back" in epoch for epoch in record["history"])
    result = train("--again", "--set", "train.extreme=stop", fails="forges")
    assert result.exit_code == 2, result.output
    assert re.search(r"ExtremeMessage.*message 'embedding' from 'shop' to 'bank' at stage 'train'", result.stderr)
