"""Other users of the machine cannot connect to the sockets between a site's process and its jobs' processes.

The part below runs in the parties' own processes, which find it by ``PYTHONPATH``.
"""

import asyncio
import contextlib
import os
import socket
import stat
import time
from pathlib import Path

import pytest
import torch

from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import federation_folder
from anyparty.deployment.flare.admin import read_federation
from anyparty.deployment.flare.drivers.anyparty_unix import UnixDriver, reached
from anyparty.deployment.flare.gateway import SERVER

ROSTER = Roster((Party(name="bank"), Party(name="shop")), "bank")


async def waits(site, config, net):
    """Wait until the test has written a file, then exchange a message; return its sum."""
    site.folder.mkdir(parents=True, exist_ok=True)
    (site.folder / "waits").touch()
    while not (site.folder / "go").exists():
        await asyncio.sleep(0.1)
    other = next(name for name in site.parties if name != net.me)
    await net.send(other, "number", {"x": torch.full((3,), 7.0)})
    return float((await net.recv(other, "number", {}))["x"].sum())


def listeners(folder: Path) -> tuple[set[int], set[Path]]:
    """Return the ports on which the federation's processes listen, and their open Unix sockets."""
    psutil = pytest.importorskip("psutil")
    mine = {process.pid for process in federation_folder.processes(folder)}
    ports = {each.laddr.port for each in psutil.net_connections("inet") if each.pid in mine and each.status == "LISTEN"}
    sockets = (path for path in (folder / "kits").glob("*/internal/**/*") if path.is_socket())
    return ports, {path for path in sockets if path.name == SERVER or int(path.name) in mine}


@contextlib.contextmanager
def another_user():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def wait_for(happens, timeout_s=240.0):
    end = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.net
def test_another_user_of_the_machine_reaches_no_job(tmp_path, monkeypatch):
    pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
    from tests.ports import free_port  # noqa: PLC0415 - the parties' processes, which import this file, have no tests

    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(federation_folder.__file__).parents[3]}")
    folder = tmp_path / "fed"
    federation_folder.init(
        folder, ROSTER, port=free_port(), site={"parts": {"train": "test_internal_sockets:waits"}, "threads": 1}
    )
    kits = {name: folder / "kits" / name for name in ROSTER.names}
    stack = contextlib.ExitStack()
    try:
        federation_folder.start(folder, 240.0)
        _, open_at = listeners(folder)
        for path in open_at:  # idle connections must not block others
            with reached(path) as address:
                stack.enter_context(socket.socket(socket.AF_UNIX)).connect(address)
        job = federation_folder.submit(folder, "")
        wait_for(lambda: all((kit / "runs" / "waits").exists() for kit in kits.values()))
        assert len(federation_folder.processes(folder)) == 5  # two sites, with a job's process each, and the gateway
        ports, open_at = listeners(folder)
        assert ports == {read_federation(folder)["port"]}  # only the server listens on a port, with mutual TLS
        assert len(open_at) >= 3
        for path in open_at:
            held = path.parent.stat()
            assert (stat.S_IMODE(held.st_mode), held.st_uid) == (0o700, os.getuid())
            if os.getuid() == 0:  # root can test as another user
                with (
                    contextlib.closing(socket.socket(socket.AF_UNIX)) as line,
                    another_user(),
                    pytest.raises(PermissionError),
                    reached(path) as address,
                ):
                    line.connect(address)
        for kit in kits.values():
            (kit / "runs" / "go").touch()
        assert federation_folder.wait(folder, job, 240) == "FINISHED:COMPLETED"
        assert {federation_folder.outcome(folder, name, job)["result"] for name in kits} == {21.0}
    finally:
        stack.close()
        federation_folder.stop(folder)


def test_sockets_of_processes_that_ended_are_removed_and_the_folder_is_closed_to_others(tmp_path):
    folder = tmp_path / "internal"
    folder.mkdir(mode=0o755)
    for name in ("4194305", "other", str(os.getpid())):  # process ids are never so high
        (folder / name).touch()
    urls = UnixDriver.get_urls("anyparty-unix", {"folder": str(folder)})
    assert urls == (f"anyparty-unix://0{folder}/{os.getpid()}",) * 2
    assert [each.name for each in folder.iterdir()] == [str(os.getpid())]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_long_path_has_a_socket_too(tmp_path):
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        listens, line = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        with reached(folder / "1") as address:
            listens.bind(address)
            listens.listen()
            line.connect(address)
    assert (folder / "1").is_socket()
