"""Parties that die, hang and rejoin in the middle of a run, as real processes over FLARE."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from functools import partial
from pathlib import Path

import pytest
import tomli_w

from anyparty.config import Config
from anyparty.core.storage import read_json
from anyparty.core.types import Party, Roster
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.deployment.flare.site_process import environment, site_command
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import RunError
from anyparty.transport import memory
from tests.deployment.test_site_training import NAMES, weights, world
from tests.ports import free_port

psutil = pytest.importorskip("psutil", reason="the extra 'flare' is not installed")
pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

pytestmark = pytest.mark.filterwarnings("default:party '.+' took no part in:anyparty.errors.AnypartyWarning")
HERE = "tests.deployment.test_departures"
SILENT_S = 3.0
MESSAGE_S = 15.0  # a busy machine takes seconds to start: alignment must not look like a timeout
TOML = {
    "federation": {"label": "y", "active": "bank"},
    "parties": {name: {} for name in NAMES},
    "method": {"name": "laser", "embedding": 8},
    "optimizer": {"lr": 0.01},
    "train": {"epochs": 40, "batch_size": 4, "patience": 40},
}


async def patient_bank(site, config, net, **asked):
    """Let the bank wait after its 20th epoch until the lost party asks to rejoin; starting a process may take long."""
    if site.party == "bank":
        send, sent = net.send, []

        async def send_after_rejoin_request(to, tag, tensors):
            sent.extend([tag] if tag == "verdict" and to == "clinic" else [])
            while len(sent) == 20 and net.membership.gone() and not net.membership.waiting_to_rejoin():
                await asyncio.sleep(0.1)
            await send(to, tag, tensors)

        net.send = send_after_rejoin_request
    return await train_at_site(site, config, net, **asked)


async def slow_shop(site, config, net, **asked):
    """Make the shop too slow once: it holds back its hundredth embedding until the bank continues without it."""
    if site.party == "shop" and not (site.folder / "slept").exists():
        send, sent = net.send, []

        async def delayed_send(to, tag, tensors):
            if tag == "embedding":
                sent.append(tag)
                if len(sent) == 100:
                    (site.folder / "slept").touch()
                    record = site.folder.parents[1] / "bank" / "runs" / "record.json"
                    while not absent(read_json(record)["history"]):
                        await asyncio.sleep(0.1)
            await send(to, tag, tensors)

        net.send = delayed_send
    return await train_at_site(site, config, net, **asked)


@pytest.fixture(scope="module")
def fed_folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("departures")
    sites = world(home)
    roster = Roster(tuple(Party(name=name) for name in NAMES), "bank")
    own = {"threads": 1, "patience": {"silent_s": SILENT_S}, "parts": {"train": f"{HERE}:patient_bank"}}
    flare.init(home / "fed", roster, port=free_port(), tables={n: site.table for n, site in sites.items()}, site=own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        try:
            flare.start(home / "fed", 240.0)
            yield home / "fed"
        finally:
            flare.stop(home / "fed")
    assert flare.processes(home / "fed") == []


class Run:
    """A federation's training in a thread, while the test interferes with its processes."""

    def __init__(self, fed_folder, **how):
        self.fed_folder, self.ended, self.error = fed_folder, None, None
        changes = how.pop("changes", {})
        toml = TOML | {group: TOML.get(group, {}) | values for group, values in changes.items()}
        (fed_folder / "run.toml").write_text(tomli_w.dumps(toml))
        wait_for_no_job(fed_folder)  # an earlier run's job
        if not how.get("resume"):
            for name in NAMES:
                shutil.rmtree(fed_folder / "kits" / name / "runs", ignore_errors=True)
        self.thread = threading.Thread(target=self.play, kwargs=how)
        self.thread.start()

    def play(self, **how):
        try:
            self.ended = coordinator.train(self.fed_folder, self.fed_folder / "run.toml", timeout_s=300, **how)
        except RunError as error:
            self.error = error

    def end(self):
        self.thread.join(400)
        assert not self.thread.is_alive()
        return self.ended

    def checkpoint(self, name="bank"):
        files = sorted((self.fed_folder / "kits" / name / "runs" / "checkpoints").glob("*.safetensors"))
        return int(files[-1].stem[3:]) if files else 0

    def at(self, epoch, name="bank", timeout_s=200):
        """Wait until a party has finished an epoch."""
        end = time.monotonic() + timeout_s
        while self.checkpoint(name) < epoch:
            assert time.monotonic() < end
            assert self.thread.is_alive()
            time.sleep(0.02)

    def history(self):
        return read_json(self.fed_folder / "kits" / "bank" / "runs" / "record.json")["history"]


def wait_for_no_job(fed_folder):
    end = time.monotonic() + 150
    while any(
        re.search("(worker|runner)_process", " ".join(each.info["cmdline"])) for each in flare.processes(fed_folder)
    ):
        assert time.monotonic() < end
        time.sleep(0.2)


def job_process(fed_folder, name):
    """Return the process of a party's part in the job."""
    module = "runner_process" if name == "bank" else "worker_process"
    kit = str(fed_folder / "kits" / name)
    (found,) = [
        process
        for process in flare.processes(fed_folder)
        if any(module in word for word in process.info["cmdline"]) and kit in process.info["cmdline"]
    ]
    return found


def repeat_in_one_process(fed_folder, toml, home):
    """Repeat the run in one process with only the parties' tables, alignments and secrets; return the weights."""
    sites = {name: SiteConfig.read(fed_folder / "kits" / name) for name in NAMES}
    for name, site in sites.items():
        (home / name / "runs").mkdir(parents=True)
        for file_name in ("alignment.safetensors", "secret"):
            shutil.copy(site.folder / file_name, home / name / "runs")
        sites[name] = site.model_copy(update={"folder": home / name / "runs"})
    config = Config.of(toml)
    memory.play({name: partial(train_at_site, site, config) for name, site in sites.items()})
    return weights(sites)


def saved_weights(fed_folder):
    return weights({name: SiteConfig.read(fed_folder / "kits" / name) for name in NAMES})


def absent(history):
    return [record["epoch"] for record in history if "shop" in record.get("absent", {})]


@pytest.mark.net
def test_a_killed_party_is_recorded_as_absent_and_rejoins(fed_folder):
    run = Run(fed_folder)
    run.at(2)
    job_process(fed_folder, "shop").kill()
    ended = run.end()
    assert ended.status == "FINISHED:COMPLETED"
    assert {name: outcome["error"] for name, outcome in ended.outcomes.items()} == dict.fromkeys(NAMES, "")
    history = run.history()
    away = absent(history)
    assert away == list(range(away[0], away[-1] + 1))
    assert 2 <= away[0] < away[-1] + 1 < 40
    (back,) = [record["epoch"] for record in history if record.get("back") == ["shop"]]
    assert back == away[-1]
    assert (fed_folder / "kits" / "shop" / "runs" / "parties" / "shop" / "model.safetensors").exists()


@pytest.mark.net
def test_a_party_rejoins_after_its_site_is_restarted(fed_folder):
    run = Run(fed_folder)
    run.at(2)
    kit = fed_folder / "kits" / "shop"
    for process in flare.processes(fed_folder):
        if str(kit) in process.info["cmdline"]:
            with contextlib.suppress(psutil.NoSuchProcess):  # a job's process may end with its site
                process.kill()
    time.sleep(1)
    site = subprocess.Popen(  # noqa: S603 - our own command
        site_command(kit), env=environment(), cwd=kit, stdin=subprocess.DEVNULL, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ended = run.end()
        assert ended is not None, run.error
        assert ended.status == "FINISHED:COMPLETED"
        history = run.history()
        assert absent(history)
        assert [record for record in history if record.get("back") == ["shop"]]
        assert not absent(history[-1:])
        assert site.poll() is None
    finally:
        flare.stop(fed_folder)
        site.wait(60)
        flare.start(fed_folder, 240.0)


@pytest.mark.net
def test_a_method_that_needs_all_parties_stops_and_resumes(fed_folder, tmp_path):
    changes = {"method": {"name": "standard"}, "train": {"epochs": 20}}
    run = Run(fed_folder, changes=changes)
    run.at(2, "shop")
    job_process(fed_folder, "shop").kill()
    run.end()
    assert "party 'shop' is gone: Standard VFL cannot train without it" in str(run.error)
    assert all(run.checkpoint(name) >= 2 for name in NAMES)
    ended = Run(fed_folder, changes=changes, resume=True).end()
    assert ended.status == "FINISHED:COMPLETED"
    toml = tomllib.loads((fed_folder / "run.toml").read_text())
    assert saved_weights(fed_folder) == repeat_in_one_process(fed_folder, toml, tmp_path)


@pytest.mark.net
def test_a_run_resumes_after_the_active_party_was_killed(fed_folder, tmp_path):
    changes = {"train": {"epochs": 20}}
    run = Run(fed_folder, changes=changes)
    run.at(3)
    job_process(fed_folder, "bank").kill()
    run.end()
    wait_for_no_job(fed_folder)
    assert all(run.checkpoint(name) >= 2 for name in NAMES)
    ended = Run(fed_folder, changes=changes, resume=True).end()
    assert ended.status == "FINISHED:COMPLETED"
    assert [record["epoch"] for record in run.history()] == list(range(1, 21))
    toml = tomllib.loads((fed_folder / "run.toml").read_text())
    assert saved_weights(fed_folder) == repeat_in_one_process(fed_folder, toml, tmp_path)


@pytest.mark.net
def test_ctrl_c_stops_the_run_at_all_parties(fed_folder):
    (fed_folder / "run.toml").write_text(tomli_w.dumps(TOML | {"train": TOML["train"] | {"epochs": 10}}))
    for name in NAMES:
        shutil.rmtree(fed_folder / "kits" / name / "runs", ignore_errors=True)
    words = [sys.executable, "-m", "anyparty", "federate", "train", str(fed_folder), str(fed_folder / "run.toml")]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True)  # noqa: S603
    checkpoints = fed_folder / "kits" / "clinic" / "runs" / "checkpoints"
    end = time.monotonic() + 200
    try:
        while not list(checkpoints.glob("*.safetensors")):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Stopped at all parties; resume with --resume." in said
    assert "Traceback" not in said
    wait_for_no_job(fed_folder)


@pytest.mark.net
def test_a_party_that_is_too_slow_is_left_out_and_rejoins(fed_folder):
    before = {path: path.read_text() for path in (fed_folder / "kits" / n / "local" / "anyparty.toml" for n in NAMES)}
    for name, (path, text) in zip(NAMES, before.items(), strict=True):
        own = tomllib.loads(text)
        own["parts"] = {"train": f"{HERE}:{'slow_shop' if name == 'shop' else 'patient_bank'}"}
        own["patience"] |= {"message_s": MESSAGE_S if name == "bank" else 3600.0}
        path.write_text(tomli_w.dumps(own))
    run = Run(fed_folder)
    ended = run.end()
    for path, text in before.items():
        path.write_text(text)
    history = run.history()
    said = next(record["absent"]["shop"] for record in history if record.get("absent"))
    assert f"sent nothing for {MESSAGE_S:g} s" in said
    assert [record for record in history if record.get("back") == ["shop"]]
    assert not absent(history[-1:])
    assert ended.status == "FINISHED:COMPLETED"
