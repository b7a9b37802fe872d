"""A party's traffic while serving is logged in its folder, however the job ends."""

import asyncio
import contextlib
import json

import pytest
from filelock import FileLock

from anyparty.artifacts import run_folder
from anyparty.config import Config
from anyparty.errors import AnypartyWarning, ConfigError, PartyLost, StorageError
from anyparty.serving import ipc
from anyparty.serving.backends import OBSERVER, peers_over
from anyparty.serving.job_manager import JobManager
from anyparty.serving.responder import TrafficLog, serve_at_site
from anyparty.transport import memory
from anyparty.transport.ledger import Flow, Ledger
from tests.serving.trained_parties import LONG_S, TrainedParties

UP = Flow("shop", "bank", "embedding")


@pytest.fixture
def trained(tmp_path):
    return TrainedParties.train(tmp_path)


def stored(folder):
    return json.loads((folder / "served.json").read_text(encoding="utf-8"))


def count(folder, tag):
    return sum(row["messages"] for row in stored(folder)["ledger"] if row["tag"] == tag)


def served(trained, *, meanwhile=lambda: None):
    """Let the shop answer a request, then lose the active party."""

    async def work():
        hub, predictor = memory.MemoryHub(("bank", "shop", "clinic", OBSERVER)), trained.predictor()
        await hub.channel("clinic").close()
        responding = asyncio.create_task(
            serve_at_site(trained.sites["shop"], Config(), hub.channel("shop"), session="one")
        )
        async with peers_over(predictor, hub.channel("bank"), Ledger()) as link:
            while not link.connected:
                await asyncio.sleep(0.005)
            await predictor.predict(trained.ids("bank"), budget_s=LONG_S)
            await asyncio.sleep(0.1)
            meanwhile()
            await hub.channel("bank").close()
            with contextlib.suppress(PartyLost):
                await responding

    asyncio.run(asyncio.wait_for(work(), 2 * LONG_S))


def test_a_failed_job_is_logged_and_the_next_adds_to_it(trained):
    folder = trained.sites["shop"].folder
    served(trained)
    assert stored(folder)["party"] == "shop"
    assert (count(folder, "serve-hello"), count(folder, "embedding")) == (1, 1)
    long_ago = "2020-01-01T00:00:00+00:00"  # times are stored in seconds
    (folder / "served.json").write_text(json.dumps(stored(folder) | {"began": long_ago}), encoding="utf-8")
    served(trained)
    assert (count(folder, "serve-hello"), count(folder, "embedding")) == (2, 2)
    assert stored(folder)["began"] == long_ago


def test_the_log_is_written_while_the_party_serves(trained, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY_S", 0.02)
    folder, seen = trained.sites["shop"].folder, []
    served(trained, meanwhile=lambda: seen.append(count(folder, "embedding")))  # what a process killed here would leave
    assert seen == [1]
    assert count(folder, "embedding") == 1


def test_two_processes_add_up(tmp_path):
    one, two = TrafficLog(tmp_path, "shop"), TrafficLog(tmp_path, "shop")
    for log in (one, two, one):
        log.ledger.add(UP, 10)
        log.write()
        log.write()
    assert [(row["messages"], row["bytes_sent"]) for row in stored(tmp_path)["ledger"]] == [(3, 30)]


def test_the_lock_of_another_process_is_respected(tmp_path, monkeypatch):
    monkeypatch.setattr("anyparty.serving.responder.LOCK_TIMEOUT_S", 0.05)
    log = TrafficLog(tmp_path, "shop")
    log.ledger.add(UP, 10)
    with FileLock(tmp_path / ".served.json.lock"), pytest.raises(StorageError, match="cannot be written"):
        log.write()
    log.write()
    assert count(tmp_path, "embedding") == 1


INVALID = {
    "empty": b"",
    "cut short": b'{"party": "shop", "began": "2020-01-01T00:00:00+00:00", "ledger": [{"sen',
    "of another coding": b"\xff",
    "no object": b"[]",
    "without a ledger": b"{}",
    "no rows": b'{"ledger": 7}',
    "another kind of row": b'{"ledger": [7]}',
    "half a row": b'{"ledger": [{"sender": "shop"}]}',
}


@pytest.mark.parametrize("invalid", INVALID)
def test_an_unreadable_log_is_renamed_and_a_new_one_begins(tmp_path, invalid):
    (tmp_path / "served.json").write_bytes(INVALID[invalid])
    log = TrafficLog(tmp_path, "shop")
    log.ledger.add(UP, 10)
    with pytest.warns(AnypartyWarning, match=r"not readable as a log .* renamed to served\..*\.json, and a new one"):
        log.write()
    (aside,) = set(tmp_path.glob("served.*.json"))
    assert aside.read_bytes() == INVALID[invalid]
    log.ledger.add(UP, 10)
    log.write()
    assert stored(tmp_path)["party"] == "shop"
    assert stored(tmp_path)["began"] > "2020-01-01T00:00:00+00:00"
    assert [(row["messages"], row["bytes_sent"]) for row in stored(tmp_path)["ledger"]] == [(2, 20)]


def test_a_log_that_cannot_be_written_does_not_fail_the_job(tmp_path, caplog):
    (tmp_path / "runs").write_text("mine")
    log = TrafficLog(tmp_path / "runs", "shop")
    log.ledger.add(UP, 10)

    async def work():
        async with run_folder.meanwhile(log.write):
            raise PartyLost("bank", "the line was cut")

    with pytest.raises(PartyLost):
        asyncio.run(work())
    assert "served.json: cannot be written" in caplog.text
    with pytest.raises(StorageError, match=r"served\.json: cannot be written"):
        log.write()


def test_a_service_that_fails_writes_its_log(trained, monkeypatch):
    site = trained.sites["bank"]
    jobs = JobManager(trained.sites["bank"].folder, site, "", trained.predictor())

    async def nothing(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(JobManager, "_watch", nothing)

    closes = ipc.IpcServer.close

    async def breaks(self):
        await closes(self)
        raise ConfigError("it breaks")

    async def work():
        async with jobs.running():
            jobs.traffic.ledger.add(Flow("bank", "shop", "serve-ask"), 8)
            monkeypatch.setattr(ipc.IpcServer, "close", breaks)

    with pytest.raises(ConfigError, match="it breaks"):
        asyncio.run(work())
    assert count(site.folder, "serve-ask") == 1
