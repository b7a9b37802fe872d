"""What a party sent while serving is in its folder, however the job ended."""

import asyncio
import contextlib
import json

import pytest
from filelock import FileLock

from anyparty.config import Config
from anyparty.errors import AnypartyWarning, ConfigError, PartyLost, StorageError
from anyparty.run import meanwhile
from anyparty.serving import ipc as bridge
from anyparty.serving.job_manager import Jobs
from anyparty.serving.local_backend import OUTSIDE, linked
from anyparty.serving.responder import serve_at_home
from anyparty.serving.traffic_log import Tab
from anyparty.wire import inproc
from anyparty.wire.ledger import Flow, Ledger
from tests.serving.trained_parties import LONG_S, Houses

UP = Flow("shop", "bank", "embedding")


@pytest.fixture
def houses(tmp_path):
    return Houses.trained(tmp_path)


def kept(folder):
    return json.loads((folder / "served.json").read_text(encoding="utf-8"))


def count(folder, tag):
    return sum(row["messages"] for row in kept(folder)["ledger"] if row["tag"] == tag)


def served(houses, *, meanwhile=lambda: None):
    """Let the shop serve a request, then lose the active party."""

    async def work():
        hub, service = inproc.Hub(("bank", "shop", "clinic", OUTSIDE)), houses.service()
        await hub.channel("clinic").close()
        part = asyncio.create_task(serve_at_home(houses.sites["shop"], Config(), hub.channel("shop"), session="one"))
        async with linked(service, hub.channel("bank"), Ledger()) as link:
            while not link.there:
                await asyncio.sleep(0.005)
            await service.predict(houses.ids("bank"), budget_s=LONG_S)
            await asyncio.sleep(0.1)
            meanwhile()
            await hub.channel("bank").close()
            with contextlib.suppress(PartyLost):
                await part

    asyncio.run(asyncio.wait_for(work(), 2 * LONG_S))


def test_a_job_that_ended_badly_leaves_what_was_sent_and_the_next_adds_to_it(houses):
    folder = houses.sites["shop"].folder
    served(houses)
    assert kept(folder)["party"] == "shop"
    assert (count(folder, "serve-hello"), count(folder, "embedding")) == (1, 1)
    long_ago = "2020-01-01T00:00:00+00:00"  # moments are kept to the second
    (folder / "served.json").write_text(json.dumps(kept(folder) | {"began": long_ago}), encoding="utf-8")
    served(houses)
    assert (count(folder, "serve-hello"), count(folder, "embedding")) == (2, 2)
    assert kept(folder)["began"] == long_ago


def test_it_is_written_while_the_party_serves(houses, monkeypatch):
    monkeypatch.setattr(meanwhile, "EVERY_S", 0.02)
    folder, seen = houses.sites["shop"].folder, []
    served(houses, meanwhile=lambda: seen.append(count(folder, "embedding")))  # as a process killed here leaves it
    assert seen == [1]
    assert count(folder, "embedding") == 1


def test_two_processes_add_up(tmp_path):
    one, two = Tab(tmp_path, "shop"), Tab(tmp_path, "shop")
    for tab in (one, two, one):
        tab.ledger.add(UP, 10)
        tab.write()
        tab.write()
    assert [(row["messages"], row["bytes_sent"]) for row in kept(tmp_path)["ledger"]] == [(3, 30)]


def test_another_process_that_writes_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("anyparty.serving.traffic_log.PATIENCE_S", 0.05)
    tab = Tab(tmp_path, "shop")
    tab.ledger.add(UP, 10)
    with FileLock(tmp_path / ".served.json.lock"), pytest.raises(StorageError, match="cannot be written"):
        tab.write()
    tab.write()
    assert count(tmp_path, "embedding") == 1


SPOILT = {
    "empty": b"",
    "cut short": b'{"party": "shop", "began": "2020-01-01T00:00:00+00:00", "ledger": [{"sen',
    "of another coding": b"\xff",
    "no object": b"[]",
    "without a ledger": b"{}",
    "no rows": b'{"ledger": 7}',
    "another kind of row": b'{"ledger": [7]}',
    "half a row": b'{"ledger": [{"sender": "shop"}]}',
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_an_account_that_cannot_be_read_is_kept_aside_and_a_new_one_begins(tmp_path, spoilt):
    (tmp_path / "served.json").write_bytes(SPOILT[spoilt])
    tab = Tab(tmp_path, "shop")
    tab.ledger.add(UP, 10)
    with pytest.warns(AnypartyWarning, match=r"not readable as an account .* kept as served\..*\.json, and a new one"):
        tab.write()
    (aside,) = set(tmp_path.glob("served.*.json"))
    assert aside.read_bytes() == SPOILT[spoilt]
    tab.ledger.add(UP, 10)
    tab.write()
    assert kept(tmp_path)["party"] == "shop"
    assert kept(tmp_path)["began"] > "2020-01-01T00:00:00+00:00"
    assert [(row["messages"], row["bytes_sent"]) for row in kept(tmp_path)["ledger"]] == [(2, 20)]


def test_a_tab_that_cannot_be_written_spoils_no_job(tmp_path, caplog):
    (tmp_path / "runs").write_text("mine")
    tab = Tab(tmp_path / "runs", "shop")
    tab.ledger.add(UP, 10)

    async def work():
        async with meanwhile.meanwhile(tab.write):
            raise PartyLost("bank", "the line was cut")

    with pytest.raises(PartyLost):
        asyncio.run(work())
    assert "served.json: cannot be written" in caplog.text
    with pytest.raises(StorageError, match=r"served\.json: cannot be written"):
        tab.write()


def test_a_service_that_fails_leaves_what_was_sent(houses, monkeypatch):
    site = houses.sites["bank"]
    jobs = Jobs(houses.sites["bank"].folder, site, "", houses.service())

    async def nothing(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(Jobs, "_watch", nothing)

    closes = bridge.Bridge.close

    async def breaks(self):
        await closes(self)
        raise ConfigError("it breaks")

    async def work():
        async with jobs.work():
            jobs.tab.ledger.add(Flow("bank", "shop", "serve-ask"), 8)
            monkeypatch.setattr(bridge.Bridge, "close", breaks)

    with pytest.raises(ConfigError, match="it breaks"):
        asyncio.run(work())
    assert count(site.folder, "serve-ask") == 1
