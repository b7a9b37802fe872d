"""Only one run at a time may use a folder: a second one waits briefly, then fails without changing the folder."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from anyparty.api.federation import Federation
from anyparty.api.runs import model_for_run
from anyparty.artifacts import run_folder
from anyparty.config import Config
from anyparty.deployment.site.site_prediction import predict_at_site
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import ConfigError, StorageError
from anyparty.training.callbacks import Callback
from anyparty.transport import memory
from tests.api.test_train_tables import tables, train
from tests.deployment.test_site_training import run, settings, world

BUSY = r"{}: another run is at work in this folder; wait for its end, stop it, or name another folder"


class Idle:
    """A party's channel that must not be used."""

    me = "bank"

    async def send(self, to, tag, tensors):
        raise AssertionError

    async def recv(self, frm, tag, expect):
        raise AssertionError

    async def close(self):
        pass


@pytest.mark.parametrize("work", [train_at_site, predict_at_site])
def test_a_second_job_in_a_kit_is_refused_and_changes_no_file(tmp_path, monkeypatch, work):
    sites = world(tmp_path)
    run(sites, settings(epochs=2))
    monkeypatch.setattr(run_folder, "WAIT_S", 0.5)
    folder = sites["bank"].folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    lock = run_folder.take(folder)
    with pytest.raises(ConfigError, match=BUSY.format(folder)):
        asyncio.run(work(sites["bank"], settings(epochs=2), Idle()))
    lock.release()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_job_waits_for_an_earlier_one_without_blocking_the_loop(tmp_path):
    sites = world(tmp_path)
    lock, at_work = run_folder.take(sites["shop"].folder), []

    async def ends(net):
        """Release the shop's folder on the event loop on which the shop's part waits for it."""
        await asyncio.sleep(0.5)
        at_work.append((sites["shop"].folder / "record.json").exists())
        lock.release()
        return await train_at_site(sites["bank"], settings(epochs=1), net)

    parts = {name: partial(train_at_site, site, settings(epochs=1)) for name, site in sites.items()}
    memory.play(parts | {"bank": ends})
    assert at_work == [False]
    assert json.loads((sites["shop"].folder / "record.json").read_text())["status"] == "done"


def test_a_failed_job_releases_its_folder(tmp_path):
    sites = world(tmp_path)
    sites["shop"].table.write_text("nothing")
    with pytest.raises(ValueError, match="shop"):
        run(sites, settings(epochs=1))
    for site in sites.values():
        run_folder.take(site.folder).release()


def test_a_killed_process_releases_its_folder(tmp_path):
    code = "import time, pathlib; from anyparty.artifacts import run_folder; "
    code += f"a = run_folder.take(pathlib.Path({str(tmp_path)!r})); "
    with subprocess.Popen([sys.executable, "-c", code + "print('in', flush=True); time.sleep(60)"],  # noqa: S603
                          stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "in\n"
        with pytest.raises(ConfigError, match=BUSY.format(tmp_path)):
            run_folder.take(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_folder.take(tmp_path).release()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(StorageError, match=r"runs: this is a file; name a folder$"):
        run_folder.take(tmp_path / "runs")
    with pytest.raises(StorageError, match=r"runs/\.lock: cannot be written"):
        run_folder.take(Path("/proc/runs"))


class StartsSecondRun(Callback):
    """Starts another run in the same folder during the first one."""

    def __init__(self, **how):
        self.how = how

    def on_epoch_end(self, record):
        train(**self.how)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, resume):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=BUSY.format(folder)):
        train(folder=folder, watch=StartsSecondRun(folder=folder, resume=resume))
    train(folder=folder, resume=True)  # the folder is free again


def test_a_refused_run_creates_no_files_and_releases_its_folder(tmp_path):
    """An encoder that cannot be imported is detected before the folder is locked."""
    nobodys = {"parties": {"bank": {}, "shop": {"encoder": {"factory": "nowhere.nets:make"}}}}
    config = Config.of(nobodys | {"federation": {"label": "bad"}, "train": {"epochs": 1}})
    made, folder = Federation.from_config(config, tables()), tmp_path / "run"
    held = []  # keep the errors, as Python does when it shows them: their frames keep references
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"nowhere\.nets") as caught:
            made.train(folder=folder)
        held.append(caught)
    assert not folder.exists()
    train(folder=folder)


class Saves(Callback):
    """Saves a model into a folder during a run there."""

    def __init__(self, model, folder, **how):
        self.model, self.folder, self.how = model, folder, how

    def on_epoch_end(self, record):
        self.model.save(self.folder, **self.how)


@pytest.mark.parametrize("replace", [False, True])
def test_a_model_cannot_be_saved_into_the_folder_of_an_active_run(tmp_path, replace):
    """Before, this deleted the run's settings, so that the finished run could not be loaded."""
    model, folder = train(), tmp_path / "run"
    with pytest.raises(ConfigError, match=BUSY.format(folder)):
        train(folder=folder, watch=Saves(model, folder, replace=replace))
    train(folder=folder, resume=True)
    assert model_for_run(folder).test_rows == 0
    model.save(folder, replace=True)  # the folder is free again
    run_folder.take(folder).release()
    model.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["manifest.json", "model.json", "parties"]


def files(folder):
    """Return the relative paths of a folder's files, without checkpoints and hidden files."""
    every = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in every if not re.fullmatch(r"\d+-\d+\.safetensors|\..*", path.name)}


@pytest.mark.parametrize("apart", [False, True])
def test_resuming_removes_partial_files_of_a_killed_process(tmp_path, apart):
    if apart:
        sites, how = world(tmp_path), {"epochs": 2, "checkpoint_every": 1}
        folder, resume_run = sites["bank"].folder, partial(run, sites, settings(**how))
        resume_run()
        memory.play({name: partial(predict_at_site, site, settings(**how)) for name, site in sites.items()})
    else:
        folder, resume_run = tmp_path / "run", partial(train, folder=tmp_path / "run", checkpoint_every=1)
        resume_run()
    known = files(folder)
    assert {Path(name).name for name in known} - run_folder.WRITTEN == set(), "a file that is not swept"
    for name in known:
        (folder / f"{name}.0a1b2c3d.part").write_text("half of")
    others = {"served.json.0a1b2c3d.part", "page.html.0a1b2c3d.part", "record.json.part", "mine.part"}
    for name in others:
        (folder / name).write_text("somebody else is at it")
    resume_run(resume=True)
    assert files(folder) - known == others
