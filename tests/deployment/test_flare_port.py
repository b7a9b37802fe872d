"""Real sites on loopback: strangers at the server's port, killed sites, and a server that hangs or cannot start jobs.

The part below runs in the parties' own processes, which find it by ``PYTHONPATH``.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyparty.cli import doctor
from anyparty.core.types import Party, Roster
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder, gateway
from anyparty.deployment.flare.admin import read_federation
from anyparty.deployment.flare.site_process import at_kit
from anyparty.errors import RunError

psutil = pytest.importorskip("psutil", reason="the extra 'flare' is not installed")
pytestmark = pytest.mark.net
ROSTER = Roster((Party(name="bank"), Party(name="shop")), "bank")
STRANGERS, FILES = 1100, 1024  # more connections than the usual limit of open files
SETTINGS = '[federation]\nlabel = "y"\nactive = "bank"\n[parties.bank]\n[parties.shop]\n'
SOON_S = 15.0


async def greet(site, config, net, *, resume=False):
    if net.me != site.active:
        await net.send(site.active, "greeting", {})
        return
    await net.recv("shop", "greeting", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tests.ports import free_port  # noqa: PLC0415 - the parties' processes, which import this file, have no tests

    home = tmp_path_factory.mktemp("port") / "fed"
    site = {"parts": {"train": f"{Path(__file__).stem}:greet"}, "threads": 1, "patience": {"silent_s": 5.0}}
    federation_folder.init(home, ROSTER, port=free_port(), site=site)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))  # the sites inherit the usual limit
            federation_folder.start(home, 240.0)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            yield home
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            federation_folder.stop(home)
    assert federation_folder.processes(home) == []


def process_of(folder, name, module):
    """Return the only process of a party's kit that runs a module."""
    (found,) = [each for each in at_kit(folder / "kits" / name) if module in each.info["cmdline"]]
    return found


def server_of(folder):
    return process_of(folder, "bank", "nvflare.private.fed.app.server.server_train")


def client_of(folder):
    return process_of(folder, "shop", "nvflare.private.fed.app.client.client_train")


def run_job(folder):
    job = federation_folder.submit(folder, SETTINGS, asked={"resume": False})
    status = federation_folder.wait(folder, job, 120)
    assert status == "FINISHED:COMPLETED"
    assert federation_folder.outcome(folder, "bank", job)["error"] == ""


def wait_for(happens, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.2)


def finds_trouble(folder, tmp_path, words):
    """Check that each command reports the server's trouble in time, with what to do."""
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    for command in (federation_folder.status, lambda folder: coordinator.train(folder, settings)):
        began = time.monotonic()
        with pytest.raises(RunError, match=f"{words}.*anyparty federate stop FOLDER"):
            command(folder)
        assert time.monotonic() - began < SOON_S
    found = {each.check: each for each in doctor.examine(folder)}
    port = found[f"bank: port {read_federation(folder)['port']}"]
    assert port.level == "fix"
    assert words in port.result


def test_jobs_run_while_strangers_hold_connections(folder):
    server, address = server_of(folder), ("127.0.0.1", read_federation(folder)["port"])
    with contextlib.ExitStack() as opened:
        lines = [opened.enter_context(socket.create_connection(address, timeout=10)) for _ in range(STRANGERS)]
        run_job(folder)
        assert federation_folder.status(folder)["sites"] == ["shop"]
        assert server.num_fds() < 100
        assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE)[0] > FILES
        assert [each.recv(1) for each in lines[-3:]] == [b""] * 3  # the time of their handshakes is over
    assert "refused" in (folder / "kits" / "bank" / "site.log").read_text()
    assert "Too many open files" not in (folder / "kits" / "bank" / "site.log").read_text()


CONNECTS = """
import sys, time
from nvflare.fuel.f3.communicator import Communicator, Mode
from nvflare.fuel.f3.endpoint import Endpoint

startup, address, name = sys.argv[1:]
files = {"ca_cert": f"{startup}/rootCA.pem", "client_cert": f"{startup}/client.crt",
         "client_key": f"{startup}/client.key"}
communicator = Communicator(Endpoint(name, {}, files))
communicator.add_connector(f"grpc://{address}", Mode.ACTIVE, secure=True)
communicator.start()
sys.stdin.read()
communicator.stop()
"""


def test_a_client_connects_only_under_the_name_in_its_certificate(folder):
    """FLARE compares the name that a client claims with the name that the gateway passes on."""
    startup, address = folder / "kits" / "shop" / "startup", f"127.0.0.1:{read_federation(folder)['port']}"
    rejected = "authenticated as 'shop' but claimed endpoint '{}' requires identity 'clinic'"
    log = folder / "kits" / "bank" / "site.log"
    with contextlib.ExitStack() as ended:
        for name in ("shop.probe", "clinic", "clinic.probe"):
            process = ended.enter_context(subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", CONNECTS, str(startup), address, name], stdin=subprocess.PIPE
            ))  # fmt: skip
            ended.callback(process.stdin.close)
        for name in ("clinic", "clinic.probe"):
            wait_for(lambda name=name: rejected.format(name) in log.read_text())
        assert "claimed endpoint 'shop" not in log.read_text()
        assert federation_folder.status(folder)["sites"] == ["shop"]


def test_the_gateway_starts_again_and_sites_reconnect(folder):
    process_of(folder, "bank", gateway.MODULE).kill()
    wait_for(lambda: "the gateway of the port ended with code -9" in (folder / "kits/bank/site.log").read_text())
    wait_for(lambda: any(gateway.MODULE in each.info["cmdline"] for each in at_kit(folder / "kits" / "bank")))
    run_job(folder)


def test_a_killed_site_is_shown_and_can_be_started_alone(folder):
    server = server_of(folder).pid
    client_of(folder).kill()
    killed = time.monotonic()
    wait_for(lambda: federation_folder.status(folder)["absent"] == ["shop"])
    assert time.monotonic() - killed < SOON_S + 10  # each answer of a busy machine takes seconds
    assert federation_folder.start(folder, 120.0) == ["shop"]
    assert server_of(folder).pid == server
    answer = federation_folder.status(folder)
    assert (answer["sites"], answer["absent"]) == (["shop"], [])


def test_a_server_that_hangs_is_reported(folder, tmp_path):
    server = server_of(folder)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        time.sleep(11)
        finds_trouble(folder, tmp_path, f"its process {server.pid} has not responded for")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    wait_for(lambda: federation_folder.status(folder)["sites"] == ["shop"])


def test_a_job_runner_that_fails_is_reported_and_recovers(folder, tmp_path):
    """A power failure can truncate a stored job; FLARE's job runner ends when it reads such a job."""
    jobs = folder / "kits" / "bank" / "flare" / "jobs-storage"
    damaged = jobs / "00000000-0000-0000-0000-000000000000"
    shutil.copytree(next(each for each in jobs.iterdir() if each.is_dir()), damaged)
    (damaged / "scheduled").unlink()
    (damaged / "meta").write_text("{")
    try:
        time.sleep(12)
        finds_trouble(folder, tmp_path, "unable to start jobs")
    finally:
        shutil.rmtree(damaged)
    wait_for(lambda: "jobs can be started again" in (folder / "kits" / "bank" / "site.log").read_text())
    run_job(folder)
