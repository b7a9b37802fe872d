"""Real sites on loopback, each with its own terminal: error messages, and no processes left behind.

The parts below run in the parties' own processes, which find them by ``PYTHONPATH``.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
import tomli_w

import anyparty
from anyparty.deployment.flare import federation_folder, provisioning, site_process
from anyparty.deployment.flare.preflight import ServerAddress, await_server
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import ConfigError, RunError
from tests.deployment.test_site_training import world

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from tests.deployment.test_preflight import NOW, ROSTER, reissue, wait_for
from tests.ports import free_port

pytestmark = pytest.mark.net
NAMES = ROSTER.names
SETTINGS = (
    '[federation]\nlabel = "y"\n[parties.bank]\n[parties.shop]\n[train]\nepochs = 1\n'
    '[method]\nname = "laser"\nembedding = 4\n'
)


async def with_another_version(site, config, net, *, resume=False):
    if net.me == "shop":
        anyparty.__version__ = "0.0.9"
    return await train_at_site(site, config, net, resume=resume)


class Terminal:
    """A process of ``anyparty party start KIT`` and its output."""

    def __init__(self, kit, *words):
        self.path = kit.parent / f"{kit.name}.terminal"
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "anyparty", "party", "start", str(kit), *words], stdout=out, stderr=out
            )

    @property
    def said(self):
        return self.path.read_text()

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("bad")
    tables = {name: site.table for name, site in world(home / "tables").items() if name in NAMES}
    federation_folder.init(home / "fed", ROSTER, port=free_port(), tables=tables, site={"threads": 1})
    yield home / "fed"
    left = federation_folder.processes(home / "fed")
    federation_folder.stop(home / "fed")
    assert left == []


@pytest.fixture(scope="module")
def terminals(folder):
    """Start the sites of both parties; the passive party starts first and waits."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell and their children ignore it
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as ended:
        patch.setenv(
            "PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parents[2]}", prepend=os.pathsep
        )
        patch.setenv("OMP_NUM_THREADS", "1")
        every = {}
        for name, comes in (("shop", "waiting for"), ("bank", "shop is connected; there are 1 of 1 others: shop")):
            every[name] = Terminal(folder / "kits" / name, "--wait", "120")
            ended.callback(every[name].end)
            wait_for(lambda name=name, comes=comes: comes in every[name].said, 150)
        wait_for(lambda: "shop is connected to 127.0.0.1" in every["shop"].said, 150)
        yield every


def test_terminals_show_which_sites_are_connected(folder, terminals):
    place = ServerAddress.of(folder / "kits" / "shop").place
    waiting = rf"waiting for {re.escape(place)} \(connection refused\); next try in 1 s, giving up in 1(20|[01]\d) s"
    assert re.search(waiting, terminals["shop"].said)
    lines = terminals["bank"].said.splitlines()
    assert lines[0].startswith("bank: starting; details go to ")
    assert lines[1:] == ["ready; waiting for 1 other parties", "shop is connected; there are 1 of 1 others: shop"]
    assert federation_folder.status(folder)["sites"] == ["shop"]


def test_parties_with_different_versions_are_refused(folder, terminals):
    for name in NAMES:
        path = folder / "kits" / name / "local" / "anyparty.toml"
        own = tomllib.loads(path.read_text()) | {"parts": {"train": f"{Path(__file__).stem}:with_another_version"}}
        path.write_text(tomli_w.dumps(own))
    job = federation_folder.submit(folder, SETTINGS, asked={"resume": False})
    assert federation_folder.wait(folder, job, 300) == "FINISHED:EXECUTION_EXCEPTION"
    wait_for(lambda: all(federation_folder.outcome(folder, name, job) for name in NAMES), 150)
    ended = {name: federation_folder.outcome(folder, name, job) for name in NAMES}
    assert ended["bank"]["error"] == "ConfigError"
    assert "party 'shop' runs anyparty " in ended["bank"]["sentence"]
    assert "install the same version at both" in ended["bank"]["sentence"]
    assert "party 'bank' is gone: it left: it stopped with ConfigError" in ended["shop"]["sentence"]


def test_the_server_rejects_certificates_that_kit_checks_would_reject(folder, terminals, tmp_path):
    """FLARE itself rejects expired certificates and those of another authority; our own checks are left out here."""
    forged = tmp_path / "forged"
    federation_folder.init(forged, ROSTER, port=ServerAddress.of(folder / "kits" / "shop").port)
    with pytest.raises(ConfigError, match="has a certificate that does not match this kit"):
        await_server(ServerAddress.of(forged / "kits" / "shop"))
    shutil.copy(folder / "kits" / "shop" / "startup" / "rootCA.pem", forged / "kits" / "shop" / "startup")
    with pytest.raises(ConfigError, match="rejects the certificate"):
        await_server(ServerAddress.of(forged / "kits" / "shop"))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.fl", "flare", "internal"))
    kit = reissue(copy, "shop", NOW - timedelta(days=20), NOW - timedelta(days=2))
    with pytest.raises(ConfigError, match="rejects the certificate"):
        await_server(ServerAddress.of(kit))


def test_a_running_kit_is_not_started_again(folder, terminals):
    with pytest.raises(ConfigError, match=r"this party's site runs already \(process \d+\); stop that one first"):
        federation_folder.run_site(folder / "kits" / "shop")


def test_a_second_site_with_a_copy_of_a_kit_is_rejected(folder, terminals, tmp_path, monkeypatch):
    monkeypatch.setattr(site_process, "AGAIN_S", 1.0)
    copy, said = tmp_path / "elsewhere", []
    shutil.copytree(
        folder / "kits" / "shop", copy, ignore=shutil.ignore_patterns("*.fl", "runs", "site.log", "internal")
    )
    with pytest.raises(RunError, match=r"did not admit 'shop', 3 times: a site with a copy of this kit is connected"):
        federation_folder.run_site(copy, 5, said.append)
    assert "the kit of shop is in use twice" in terminals["bank"].said
    assert terminals["shop"].process.poll() is None
    wait_for(lambda: federation_folder.status(folder)["sites"] == ["shop"], 150)  # it may have to register again


EVIL = """
from pathlib import Path
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import make_reply


class Evil(Executor):
    def __init__(self):
        super().__init__()
        Path({ran!r}).touch()

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return make_reply("OK")
"""


def test_a_job_cannot_run_its_own_code_at_a_passive_party(folder, terminals, tmp_path):
    """Not even a job of the administrator may do so, although FLARE's own rules would allow it."""
    said, ran = federation_folder.read_federation(folder), tmp_path / "ran"
    job = folder / "kits" / "admin" / "jobs" / "evil"
    federation_folder._write_job(job, said, federation_folder.public(SETTINGS), work="train", asked={}, least=1)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "evil.py").write_text(EVIL.format(ran=str(ran)))
    executors = [{"tasks": ["take_part"], "executor": {"path": "evil.Evil", "args": {}}}]
    federation_folder._json(
        job / "app" / "config" / "config_fed_client.json", {"format_version": 2, "executors": executors}
    )
    number = str(federation_folder.ask_server(folder, "submit", path=str(job))["job"])
    assert federation_folder.wait(folder, number, 300) != "FINISHED:COMPLETED"
    federation_folder.abort(folder, number)
    assert not ran.exists()


def test_the_administrator_cannot_read_files_of_a_passive_party(folder, terminals):
    flare_api = pytest.importorskip("nvflare.fuel.flare_api.flare_api")
    kit = folder / "kits" / "admin"
    session = flare_api.new_secure_session(provisioning.ADMIN, str(kit), timeout=60.0)
    try:
        session.set_timeout(60.0)
        said = {command: _answer(session, command) for command in ("head shop site.log", "ls shop .")}
    finally:
        session.close()
    assert all("invalid_request" in answer for answer in said.values()), said


def _answer(session, command):
    """Return the site's answer; a busy machine's site may take longer than the 10 s for which FLARE's server waits."""
    said = ""
    for _ in range(12):
        said = str(session.api.do_command(command))
        if "no reply from client" not in said:
            break
    return said


def test_a_stopped_site_leaves_no_process_behind(folder, terminals):
    assert terminals["shop"].end() == 128 + signal.SIGTERM
    assert "Traceback" not in terminals["shop"].said
    assert site_process.at_kit(folder / "kits" / "shop") == []
    # The bank's site and its gateway stay; its process of the last job may still be ending.
    wait_for(lambda: len(federation_folder.processes(folder)) == 2)
    wait_for(lambda: federation_folder.status(folder)["sites"] == [])
    wait_for(lambda: "shop is gone, its connection is closed; there are 0 of 1 others" in terminals["bank"].said)
    assert terminals["bank"].end(signal.SIGINT) == 130
    assert "Stopped." in terminals["bank"].said
    assert federation_folder.processes(folder) == []
