"""An incomplete training or prediction is never reported as a success."""

import errno
import json
import os
import shutil
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from anyparty.api.federation import Federation
from anyparty.artifacts import model_files
from anyparty.artifacts.model_files import ModelSummary
from anyparty.artifacts.record import FILE
from anyparty.config import Config
from anyparty.core.types import ChannelWrapper
from anyparty.deployment.site import site_training
from anyparty.deployment.site.site_prediction import predict_at_site
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import ConfigError, Incomplete, ModelError, StorageError
from anyparty.report.recorded_runs import find_runs
from anyparty.report.sections import remarks_section
from anyparty.training.party_run import Attendance
from anyparty.transport import memory
from tests.deployment.test_site_training import NAMES, settings, weights, world


class Killed(BaseException):
    """A process that ends without a message."""


@dataclass
class Line(ChannelWrapper):
    """One end of a channel that knows which parties have died."""

    run = "job 1"

    @property
    def membership(self):
        return self

    def gone(self):
        return dict.fromkeys(self.channel.hub.gone, "it gave no sign of life for 10 s")

    def waiting_to_rejoin(self):
        return []

    def stop_reason(self):
        return ""


def play(sites, part, wrap=lambda channel: channel):
    """Run every party's part; a failing one does not stop the others. Return results and errors by party."""

    ended = {}

    async def alone(site, net):
        try:
            ended[site.party] = await part(site, net)
        except (Exception, Killed) as error:
            ended[site.party] = error

    memory.play({name: partial(alone, site) for name, site in sites.items()}, lambda end: wrap(Line(end)))
    return ended


def train(sites, config=None, wrap=lambda channel: channel, **how):
    return play(sites, lambda site, net: train_at_site(site, config or settings(epochs=2), net, **how), wrap)


def record(site) -> dict:
    return json.loads((site.folder / FILE).read_text(encoding="utf-8"))


@pytest.mark.parametrize("error", [StorageError("parties/shop/model.safetensors: cannot be written"), Killed()])
def test_a_party_that_does_not_save_its_part_fails_the_training_and_resume_repairs_it(tmp_path, monkeypatch, error):
    sites, whole = world(tmp_path), model_files.save_member

    def save(home, member):
        if home.name == "shop":
            raise error
        return whole(home, member)

    monkeypatch.setattr(model_files, "save_member", save)
    ended = train(sites)
    monkeypatch.undo()
    assert isinstance(ended["bank"], Incomplete)
    said = "party 'shop' trained until the end but did not save its part of the model"
    assert said in str(ended["bank"])
    assert "train with --resume: it saves the missing part" in str(ended["bank"])
    kept = record(sites["bank"])
    assert (kept["status"], said in kept["error"]) == ("failed", True)
    assert kept["evaluation"]["overall"]["rows"] > 0
    assert "shop" not in ModelSummary.load(sites["bank"].folder / "model.json").parts
    (run,) = find_runs([sites["bank"].folder, sites["clinic"].folder])
    assert run.outcome.startswith(f"failed: bank: Incomplete: {said}")

    again = train(sites, resume=True)
    assert again["bank"]["attendance"] == []
    kept = record(sites["bank"])
    assert (kept["status"], kept["error"]) == ("done", "")
    assert set(ModelSummary.load(sites["bank"].folder / "model.json").parts) == set(NAMES)
    repaired = weights(sites)
    whole = world(tmp_path / "whole")
    for name in NAMES:
        for file in ("alignment.safetensors", "secret"):
            (whole[name].folder).mkdir(parents=True, exist_ok=True)
            (whole[name].folder / file).write_bytes((sites[name].folder / file).read_bytes())
    train(whole)
    assert repaired == weights(whole)


def test_a_party_that_stops_after_its_part_was_saved_fails_the_training(tmp_path, monkeypatch):
    """It is killed before it has answered for its share of the test rows."""
    sites, whole = world(tmp_path), site_training._keep

    async def keeps(home, outcome, net):
        lost = await whole(home, outcome, net)
        if home.site.party == "shop":
            raise Killed
        return lost

    monkeypatch.setattr(site_training, "_keep", keeps)
    ended = train(sites)
    assert isinstance(ended["bank"], Incomplete)
    assert "party 'shop' saved its part of the model but stopped before it had finished" in str(ended["bank"])
    assert set(ModelSummary.load(sites["bank"].folder / "model.json").parts) == set(NAMES)
    assert record(sites["bank"])["status"] == "failed"


def test_a_record_that_cannot_be_written_fails_the_training(tmp_path, monkeypatch):
    sites = world(tmp_path)
    whole = site_training.SiteRecorder.write

    def write(self):
        if self.path.parent == sites["shop"].folder and self.record.status == "done":
            raise StorageError(f"{self.path}: cannot be written")
        whole(self)

    monkeypatch.setattr(site_training.SiteRecorder, "write", write)
    ended = train(sites)
    assert isinstance(ended["shop"], StorageError)
    assert "'shop' saved its part of the model but stopped before it had finished" in str(ended["bank"])


@dataclass
class Leaves(ChannelWrapper):
    """Ends the shop's process when it sends its n-th embedding."""

    at: int
    sent: int = 0

    async def send(self, to, tag, tensors):
        self.sent += self.channel.me == "shop" and tag == "embedding"
        if self.sent == self.at:
            raise Killed
        return await super().send(to, tag, tensors)


def left_after(sites, epochs, of, **how):
    """Train ``of`` epochs; the shop leaves after ``epochs``, each of which is one batch and one validation."""
    config = settings(epochs=of, batch_size=4096, checkpoint_every=1, keep="last", test=0, **how)
    return train(sites, config, lambda end: Leaves(end, 2 * epochs + 1))


LEFT = r"party 'shop' took no part in 4 of 6 epochs \(it gave no sign of life for 10 s\), and the saved model lacks"


def test_a_party_that_leaves_is_named_in_a_warning_that_record_and_report_carry(tmp_path):
    sites = world(tmp_path)
    ended = left_after(sites, 2, of=6)
    (said,) = ended["bank"]["attendance"]
    assert said.startswith(LEFT.replace("\\", ""))
    assert record(sites["bank"])["attendance"] == [said]
    assert record(sites["bank"])["status"] == "done"
    (run,) = find_runs([sites["bank"].folder])
    (section,) = remarks_section(run)
    assert said in section.text


@pytest.mark.parametrize(
    ("require", "epochs", "met"),
    [("all", 2, False), (3, 2, False), (2, 2, True), (1, 0, True), ("all", 5, False), (None, 2, True)],
)
def test_too_few_parties_are_an_error_after_the_model_was_saved(tmp_path, require, epochs, met):
    sites = world(tmp_path)
    ended = left_after(sites, epochs, of=6, require=require)
    assert set(ModelSummary.load(sites["bank"].folder / "model.json").parts) == {"bank", "clinic"}
    if met:
        assert len(ended["bank"]["attendance"]) == 1
        return
    assert isinstance(ended["bank"], Incomplete)
    shown = '"all"' if require == "all" else require
    assert str(ended["bank"]).startswith(f"train.require = {shown}, and only 2 of 3 parties took part in at least half")
    assert f"'shop' missed {6 - epochs} of 6 epochs and did not save its part of the model" in str(ended["bank"])
    assert record(sites["bank"])["status"] == "failed"
    assert record(sites["bank"])["attendance"]


@pytest.mark.parametrize(("missed", "met"), [(0, True), (2, True), (3, False), (4, False)])
def test_a_party_counts_with_half_of_the_epochs(missed, met):
    history = [{"stage": "train", "epoch": n, "absent": {"shop": "away"} if n <= missed else {}} for n in range(1, 5)]
    quiet = [{"stage": "local", "epoch": n} for n in range(1, 100)]
    found = Attendance.of([*quiet, *history], {"local"}, NAMES, {}, {})
    assert found.epochs == 4
    assert len(found.warnings()) == (missed > 0)
    found.check(None)
    found.check(2)
    if met:
        found.check("all")
        return
    with pytest.raises(Incomplete, match=rf"'shop' missed {missed} of 4 epochs\. Nothing that was trained is lost"):
        found.check("all")


def test_a_requirement_may_be_lowered_on_resume(tmp_path):
    sites = world(tmp_path)
    assert isinstance(left_after(sites, 2, of=6, require="all")["bank"], Incomplete)
    config = settings(epochs=6, batch_size=4096, checkpoint_every=1, keep="last", test=0, require=2)
    ended = train(sites, config, resume=True)
    assert ended["bank"]["attendance"] == [], "the shop makes up for the epochs that it missed"
    assert set(ModelSummary.load(sites["bank"].folder / "model.json").parts) == set(NAMES)


@pytest.mark.parametrize("require", [0, -1, "most", True, 1.5, "2"])
def test_a_requirement_that_means_nothing_is_refused(require):
    with pytest.raises(ConfigError, match=r"train\.require: expected"):
        settings(require=require)


def test_a_requirement_of_more_parties_than_there_are_is_refused(tmp_path):
    sites = world(tmp_path)
    said = r'train\.require = 4: there are 3 parties; write a number from 1 to 3, or "all"'
    with pytest.raises(ConfigError, match=said):
        raise train(sites, settings(require=4))["bank"]
    with pytest.raises(ConfigError, match=said):
        Federation.from_config(settings(require=4), {n: site.table for n, site in sites.items()}).train()


def test_a_requirement_is_kept_with_a_runs_settings():
    for require in ("all", 2, None):
        assert Config.of(tomllib.loads(settings(require=require).to_toml())).train.require == require


def predict(sites, **asked):
    return play(sites, lambda site, net: predict_at_site(site, settings(epochs=2), net, **asked))


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
def test_a_prediction_with_a_party_whose_part_is_missing_fails_unless_it_is_left_out(tmp_path):
    sites = world(tmp_path)
    train(sites)
    (sites["shop"].folder / "parties" / "shop" / "model.safetensors").unlink()
    ended = predict(sites)
    assert isinstance(ended["bank"], ModelError)
    assert "party 'shop' cannot load its part of the model" in str(ended["bank"])
    assert "train with --resume, or predict without it (--parties)" in str(ended["bank"])
    assert "model.safetensors" in str(ended["shop"])
    assert predict(sites, asked=["bank", "clinic"])["bank"]["answered"] > 0


class Full:
    """A disk that is full from the n-th file on that is moved into a folder."""

    def __init__(self, monkeypatch, within):
        self.within, self.files, self.at = within, [], 0
        moves = Path.replace

        def move(path, target):
            if self.within.absolute() in Path(target).absolute().parents:
                self.files.append(Path(target))
                if len(self.files) >= self.at > 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return moves(path, target)

        monkeypatch.setattr(Path, "replace", move)

    def after(self, n):
        self.files, self.at = [], n


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_file_of_a_run_in_one_process_is_an_error_that_names_it(work, call, monkeypatch):
    words = ("train", "credit.toml", "--quiet", "--set", "train.checkpoint_every=1", "--set", "train.epochs=2")
    full = Full(monkeypatch, work / "runs")
    assert call(*words).exit_code == 0
    number = len(full.files)
    assert {path.name for path in full.files} >= {
        "config.toml", "record.json", "model.json", "manifest.json", "party.json", "model.safetensors", "run.txt",
    }  # fmt: skip
    for n in range(1, number + 1):
        shutil.rmtree(work / "runs")
        full.after(n)
        ended = call(*words)
        assert ended.exit_code == 2, (n, full.files[n - 1])
        assert any(f"{each}: cannot be written (No space left on device)" in ended.stderr for each in full.files)
        full.after(0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
def test_a_disk_that_is_full_at_any_file_of_a_passive_party_is_an_error_or_a_warning(tmp_path, monkeypatch):
    config = settings(epochs=3, checkpoint_every=1)
    sites = world(tmp_path / "whole")
    full = Full(monkeypatch, sites["shop"].folder)
    train(sites, config)
    number, warned = len(full.files), []
    for n in range(1, number + 1):
        sites = world(tmp_path / str(n))
        full.within = sites["shop"].folder
        full.after(n)
        ended = train(sites, config)
        file = full.files[n - 1]
        assert isinstance(ended["shop"], StorageError), (n, file)
        assert any(f"{each}: cannot be written" in str(ended["shop"]) for each in full.files)
        full.after(0)
        if isinstance(ended["bank"], dict):  # the shop left during training, and the method works without it
            warned.append(file.name)
            assert "'shop' took no part in" in ended["bank"]["attendance"][0], (n, file)
        else:
            assert "'shop'" in str(ended["bank"]), (n, file)
            assert record(sites["bank"])["status"] == "failed"
    assert 0 < len(warned) < number - 5, warned


@pytest.mark.parametrize("words", [("predict", "--out", "full/answers.csv"), ("report", "--no-model", "--out", "full")])
def test_answers_and_pages_on_a_full_disk(run, tmp_path, call, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    full, (command, *more) = Full(monkeypatch, Path("full")), words
    full.after(1)
    ended = call(command, run, *more)
    assert ended.exit_code == 2
    assert f"{full.files[0]}: cannot be written (No space left on device)" in ended.stderr
