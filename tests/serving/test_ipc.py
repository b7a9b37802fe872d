"""The local socket between the service and the active party's process in a job."""

import asyncio
import contextlib
import json
import shutil
import stat
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from anyparty.artifacts.model_files import Manifest
from anyparty.config import Config
from anyparty.core.storage import write_json
from anyparty.errors import ConfigError
from anyparty.serving.backends import OBSERVER
from anyparty.serving.ipc import ADDRESS_FILE, FOLDER_PREFIX, OPEN, FrameStream, IpcServer, encode_text, relay
from anyparty.serving.loaded_party import load_party
from anyparty.serving.peer_group import PeerGroup
from anyparty.serving.responder import Responder, receive_timeout_s, serve_at_site
from anyparty.transport import memory
from anyparty.transport.ledger import Ledger, MeteredChannel
from anyparty.transport.reliable_session import Timeouts
from tests.deployment.test_site_training import NAMES, Site
from tests.serving.trained_parties import LONG_S, TrainedParties, play
from tests.transport.test_reliable import Air


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return TrainedParties.train(tmp_path_factory.mktemp("houses"))


@dataclass(frozen=True)
class SiteWithPatience(Site):
    """A site whose settings say how long it waits for others."""

    patience: Timeouts = Timeouts()


class Net:
    """A transport that reports rejoining parties."""

    run = "a run"

    def __init__(self, channel, hub):
        self.channel, self.hub, self.me, self.membership, self.at = channel, hub, channel.me, self, []
        self.send, self.recv, self.close = channel.send, channel.recv, channel.close

    def gone(self):
        return dict.fromkeys(self.hub.gone, "it left")

    def waiting_to_rejoin(self):
        return list(self.at)

    def admit(self, name):
        self.at.remove(name)
        self.hub.gone.discard(name)


@contextlib.asynccontextmanager
async def listening_server(folder, joined):
    """Listen for the process of one job."""
    server = IpcServer(folder, "bank", joined)
    server.sessions.add("one")
    await server.open()
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def using_job(folder, predictor):
    """Use the process of one job; set ``ended`` when it has disconnected."""
    ended = asyncio.Event()

    async def joined(_, net):
        peers = PeerGroup(predictor.party, net, Ledger(), predictor.message_arrived)
        net.on_rejoin = peers.rejoin
        predictor.peer_groups.append(peers)
        running = asyncio.create_task(peers.run())
        await net.read()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        predictor.peer_groups.remove(peers)
        ended.set()

    async with listening_server(folder, joined) as server:
        yield server, ended


@contextlib.asynccontextmanager
async def connected(trained, predictor):
    """Run everything in one process, with a real socket."""
    hub, folder = memory.MemoryHub(("bank", "shop", "clinic", OBSERVER)), trained.sites["bank"].folder
    async with using_job(folder, predictor) as (server, ended):
        net = Net(hub.channel("bank"), hub)
        relaying = asyncio.create_task(relay(folder, net, "one"))
        parts = {name: asyncio.create_task(respond(trained, hub, name)) for name in ("shop", "clinic")}
        try:
            await until(lambda: predictor.connected() == {"shop", "clinic"})
            yield server, relaying, net, parts, ended
        finally:
            for task in parts.values():
                task.cancel()
            await server.close()
            await asyncio.gather(relaying, *parts.values(), return_exceptions=True)


@contextlib.contextmanager
def posts_in_memory(names, patience):
    """Run the reliable transport of real jobs in memory."""
    air = Air()
    posts = {name: air.endpoint(name, names, patience) for name in names}
    for name, post in posts.items():
        post.start([other for other in names if other != name])
    try:
        yield posts
    finally:
        for post in posts.values():
            post.leave()
        air.close()


async def respond(trained, hub, name):
    kept, _, _ = load_party(trained.sites[name])
    await Responder(kept, hub.channel(name)).run()


async def until(happens):
    while not happens():
        await asyncio.sleep(0.005)


def test_all_parties_answer_over_the_socket(trained):
    async def work():
        predictor = trained.predictor()
        async with connected(trained, predictor) as (server, relaying, *_, ended):
            where = json.loads((trained.sites["bank"].folder / "serve.json").read_text())["socket"]
            assert stat.S_IMODE(Path(where).stat().st_mode) == 0o600
            assert stat.S_IMODE(Path(where).parent.stat().st_mode) == 0o700
            assert server.sessions == set()
            predictions = await predictor.predict(trained.ids("bank"), budget_s=LONG_S)
            assert {len(each.took_part) for each in predictions} == {1, 2, 3}
            assert not any(each.silent for each in predictions)
            peers = predictor.best_peers()
            await peers.end()
            await peers.channel.close()
            await ended.wait()
            assert (await relaying)["handed_on"] == 4  # two parties: one request and the end each
        assert not Path(where).parent.exists()
        assert not (trained.sites["bank"].folder / "serve.json").exists()

    play(work())


def test_a_lost_party_rejoins(trained):
    async def work():
        predictor = trained.predictor()
        async with connected(trained, predictor) as (_, _, net, parts, _):
            parts.pop("shop").cancel()
            await net.hub.channel("shop").close()
            await until(lambda: predictor.connected() == {"clinic"})
            predictions = await predictor.predict(trained.ids("bank"), budget_s=LONG_S)
            assert {each.silent["shop"] for each in predictions if each.silent} <= {
                f"it left while 'bank' waited for {tag!r}" for tag in ("embedding", "serve-hello")
            }
            net.at.append("shop")
            await until(lambda: "shop" not in net.hub.gone)
            parts["shop"] = asyncio.create_task(respond(trained, net.hub, "shop"))
            await until(lambda: predictor.connected() == {"shop", "clinic"})
            predictions = await predictor.predict(trained.ids("bank"), budget_s=LONG_S)
            assert not any(each.silent for each in predictions)

    play(work())


def test_no_party_is_lost_during_a_long_idle_time(trained):
    """Over the transport of real jobs, for twice its longest wait for a message of a party that is alive."""
    patience = Timeouts(join_s=0.1, silent_s=0.1, message_s=1.2, retry_s=0.05, receipt_s=0.02)
    long = replace(patience, join_s=LONG_S, silent_s=LONG_S)  # for busy machines
    sites = [SiteWithPatience(**vars(trained.sites[name]), patience=patience) for name in NAMES]
    predictor = trained.predictor()

    async def work(posts):
        async with using_job(sites[0].folder, predictor) as (_, ended):
            parts = [serve_at_site(site, Config(), posts[site.party], session="one") for site in sites]
            tasks = [asyncio.create_task(part) for part in parts]
            await until(lambda: predictor.connected() == {"shop", "clinic"})
            await asyncio.sleep(2 * patience.message_s)
            predictions = await predictor.predict(trained.ids("bank"), budget_s=LONG_S)
            assert not any(each.silent for each in predictions)
            assert {len(each.took_part) for each in predictions} == {1, 2, 3}
            peers = predictor.best_peers()
            await peers.end()
            await peers.channel.close()
            await ended.wait()
            _, *others = await asyncio.gather(*tasks)
            assert [each["requests"] for each in others] == [1, 1]

    with posts_in_memory(NAMES, long) as posts:
        play(work(posts))


def test_no_message_is_lost_between_two_receives(trained):
    """A relay that restarts its receives all the time still relays every message, in order."""
    many, long = 300, Timeouts(join_s=LONG_S, silent_s=LONG_S, retry_s=0.05, receipt_s=0.02)
    folder, nets = trained.sites["bank"].folder, asyncio.Queue()

    async def joined(_, net):
        nets.put_nowait(net)
        await net.read()

    async def work(bank, shop):
        async with listening_server(folder, joined):
            relaying = asyncio.create_task(relay(folder, bank, "one", receive_timeout_s=1e-4))
            net = await nets.get()
            for number in range(many):
                await shop.send("bank", "embedding", {"value": torch.tensor([number])})
                await asyncio.sleep(1e-4)
            got = [int((await net.recv("shop", "embedding", {}))["value"]) for _ in range(many)]
            assert got == list(range(many))
            await net.close()
            await relaying

    with posts_in_memory(("bank", "shop"), long) as posts:
        play(work(*posts.values()))


@pytest.mark.parametrize(
    ("join_s", "silent_s", "message_s", "expected"),
    [(120, 10, 3600, 1200), (120, 10, 360, 180), (10, 120, 360, 180), (120, 10, 120, 80), (1, 1, 90, 30)],
)
def test_the_receive_timeout_lies_between_the_timeouts_of_the_transport(trained, join_s, silent_s, message_s, expected):
    patience = Timeouts(join_s=join_s, silent_s=silent_s, message_s=message_s)
    assert receive_timeout_s(SiteWithPatience(**vars(trained.sites["shop"]), patience=patience)) == expected


def test_all_parties_are_lost_when_the_job_ends(trained):
    async def work():
        predictor = trained.predictor()
        async with connected(trained, predictor) as (_, relaying, *_, ended):
            relaying.cancel()
            await ended.wait()
            predictions = await predictor.predict(trained.ids("bank"), budget_s=LONG_S)
            assert {each.took_part for each in predictions} == {("bank",)}

    play(work())


def test_a_dropped_message_is_not_counted(trained):
    async def work():
        predictor = trained.predictor()
        async with connected(trained, predictor) as (_, relaying, *_, ended):
            (peers,) = predictor.peer_groups
            relaying.cancel()
            await ended.wait()
            ledger = Ledger()
            await peers.channel.close()
            await MeteredChannel(peers.channel, ledger).send("shop", "serve-ask", {"rows": torch.zeros(3)})
            assert not ledger.flows

    play(work())


def test_unknown_sessions_and_invalid_data_are_rejected(trained):
    async def work():
        predictor = trained.predictor()
        async with connected(trained, predictor):
            where = json.loads((trained.sites["bank"].folder / "serve.json").read_text())["socket"]
            for session, data in (("two", b""), ("one", b""), ("", b"GET / HTTP/1.1\r\n\r\n" * 9)):
                reader, writer = await asyncio.open_unix_connection(where)
                if session:
                    FrameStream(reader, writer, session).put("bank", "bank", OPEN, encode_text(session))
                writer.write(data)
                assert await reader.read() == b""
                writer.close()
            assert len(predictor.peer_groups) == 1
            assert len(predictor.connected()) == 2

    play(work())


def test_a_second_service_for_a_kit_is_refused(trained):
    async def work():
        async with connected(trained, trained.predictor()):
            other = IpcServer(trained.sites["bank"].folder, "bank", None)
            with pytest.raises(ConfigError, match=r"a prediction service already runs for .*; stop it first"):
                await other.open()

    play(work())


def test_only_one_of_two_services_that_start_together_runs(tmp_path, monkeypatch):
    first, second = IpcServer(tmp_path, "bank", None), IpcServer(tmp_path, "bank", None)
    listen, begun = asyncio.start_unix_server, []

    async def listen_later(*arguments):
        if not begun:  # start the second after the first has locked, before it listens
            begun.append(second)
            with pytest.raises(ConfigError, match=r"a prediction service already runs for .*; stop it first"):
                await second.open()
        return await listen(*arguments)

    async def work():
        await first.open()
        await second.close()
        with pytest.raises(ConfigError, match=r"already runs for .*; stop it first"):
            await second.check()
        await first.close()

    monkeypatch.setattr(asyncio, "start_unix_server", listen_later)
    play(work())
    assert begun


def test_a_service_that_starts_while_another_ends_keeps_its_address(tmp_path):
    async def work():
        first, second, opened = IpcServer(tmp_path, "bank", None), IpcServer(tmp_path, "bank", None), []

        async def job():  # when this task of the first server ends, start the second
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                with contextlib.suppress(ConfigError):
                    await second.open()
                    opened.append(second)

        await first.open()
        first._open.add(asyncio.create_task(job()))
        await asyncio.sleep(0)
        await first.close()
        if not opened:  # it was refused; the first has ended by now
            await second.open()
        assert (tmp_path / ADDRESS_FILE).is_file()
        await second.close()
        assert not (tmp_path / ADDRESS_FILE).exists()

    play(work())


def test_a_relay_without_a_service_raises_an_error(trained, tmp_path):
    site = trained.sites["bank"]
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "model.json").write_text((site.folder / "model.json").read_text())
    Manifest.write(folder, ["model.json"])
    (folder / "serve.json").write_text('{"socket": "nowhere"}')
    with pytest.raises(ConfigError, match="no prediction service runs for"):
        play(relay(folder, memory.MemoryHub(("bank",)).channel("bank"), "one"))


def test_only_the_socket_of_a_killed_service_is_removed(tmp_path, monkeypatch):
    short = Path(tempfile.mkdtemp())  # a socket's path is limited to 107 bytes; a test's own folder may be too long
    monkeypatch.setattr("tempfile.tempdir", str(short))
    left, other = short / f"{FOLDER_PREFIX}left", short / "other"
    kits = [tmp_path / "kit1", tmp_path / "kit2"]
    for place, kit in zip((left, other), kits, strict=True):
        place.mkdir()
        kit.mkdir()
        write_json(kit / ADDRESS_FILE, {"socket": str(place / "serve.sock")})

    async def opened(kit):
        server = IpcServer(kit, "bank", None)
        await server.open()
        await server.close()

    for kit in kits:
        play(opened(kit))
    assert [path.name for path in short.iterdir()] == ["other"]
    shutil.rmtree(short)
