"""From the service's process to the active party's seat in a job: a socket of one's own, and what comes over it."""

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

from anyparty.config import Config
from anyparty.errors import ConfigError
from anyparty.run.manifest import Manifest
from anyparty.serve.bridge import OPEN, PLACE, WHERE, Bridge, relay
from anyparty.serve.frames import Frames, text
from anyparty.serve.home import Answering, renew_s, serve_at_home
from anyparty.serve.kept import open_kept
from anyparty.serve.link import Link
from anyparty.serve.together import OUTSIDE
from anyparty.storage import write_json
from anyparty.wire import inproc
from anyparty.wire.flare.session import Patience
from anyparty.wire.ledger import Counted, Ledger
from tests.run.test_house import NAMES, Site
from tests.serve.houses import LONG_S, Houses, play
from tests.wire.test_flare_post import Air


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    return Houses.trained(tmp_path_factory.mktemp("houses"))


@dataclass(frozen=True)
class Patient(Site):
    """A site that says how long it waits for others."""

    patience: Patience = Patience()


class Net:
    """A carrier that says when somebody is there again."""

    run = "a run"

    def __init__(self, channel, hub):
        self.channel, self.hub, self.me, self.door, self.at = channel, hub, channel.me, self, []
        self.send, self.recv, self.close = channel.send, channel.recv, channel.close

    def gone(self):
        return dict.fromkeys(self.hub.gone, "it left")

    def knocking(self):
        return list(self.at)

    def admit(self, name):
        self.at.remove(name)
        self.hub.gone.discard(name)


@contextlib.asynccontextmanager
async def listening(folder, joined):
    """A service that listens for the seat of one job."""
    bridge = Bridge(folder, "bank", joined)
    bridge.sessions.add("one")
    await bridge.open()
    try:
        yield bridge
    finally:
        await bridge.close()


@contextlib.asynccontextmanager
async def linking(folder, service):
    """A service that uses the seat; sets ``ended`` when that has gone."""
    ended = asyncio.Event()

    async def joined(_, net):
        link = Link(service.kept, net, Ledger(), service.heard)
        net.returned = link.again
        service.links.append(link)
        running = asyncio.create_task(link.run())
        await net.read()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        service.links.remove(link)
        ended.set()

    async with listening(folder, joined) as bridge:
        yield bridge, ended


@contextlib.asynccontextmanager
async def bridged(houses, service):
    """Everything in one process; only the bridge is real."""
    hub, folder = inproc.Hub(("bank", "shop", "clinic", OUTSIDE)), houses.sites["bank"].folder
    async with linking(folder, service) as (bridge, ended):
        net = Net(hub.channel("bank"), hub)
        seat = asyncio.create_task(relay(folder, net, "one"))
        parts = {name: asyncio.create_task(answering(houses, hub, name)) for name in ("shop", "clinic")}
        try:
            await until(lambda: service.there() == {"shop", "clinic"})
            yield bridge, seat, net, parts, ended
        finally:
            for task in parts.values():
                task.cancel()
            await bridge.close()
            await asyncio.gather(seat, *parts.values(), return_exceptions=True)


@contextlib.contextmanager
def posted(names, patience):
    """The carrier of real jobs, in memory: each party's post, at work."""
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


async def answering(houses, hub, name):
    kept, _, _ = open_kept(houses.sites[name])
    await Answering(kept, hub.channel(name)).run()


async def until(happens):
    while not happens():
        await asyncio.sleep(0.005)


def test_all_answer_over_the_bridge(houses):
    async def work():
        service = houses.service()
        async with bridged(houses, service) as (bridge, seat, *_, ended):
            where = json.loads((houses.sites["bank"].folder / "serve.json").read_text())["socket"]
            assert stat.S_IMODE(Path(where).stat().st_mode) == 0o600
            assert stat.S_IMODE(Path(where).parent.stat().st_mode) == 0o700
            assert bridge.sessions == set()
            said = await service.predict(houses.ids("bank"), budget_s=LONG_S)
            assert {len(each.took_part) for each in said} == {1, 2, 3}
            assert not any(each.silent for each in said)
            link = service.link()
            await link.end()
            await link.net.close()
            await ended.wait()
            assert (await seat)["handed_on"] == 4  # two parties, asked once and told of the end
        assert not Path(where).parent.exists()
        assert not (houses.sites["bank"].folder / "serve.json").exists()

    play(work())


def test_a_party_that_was_lost_and_is_there_again_takes_part_again(houses):
    async def work():
        service = houses.service()
        async with bridged(houses, service) as (_, _, net, parts, _):
            parts.pop("shop").cancel()
            await net.hub.channel("shop").close()
            await until(lambda: service.there() == {"clinic"})
            said = await service.predict(houses.ids("bank"), budget_s=LONG_S)
            assert {each.silent["shop"] for each in said if each.silent} <= {
                f"it left while 'bank' waited for {tag!r}" for tag in ("embedding", "serve-hello")
            }
            net.at.append("shop")
            await until(lambda: "shop" not in net.hub.gone)
            parts["shop"] = asyncio.create_task(answering(houses, net.hub, "shop"))
            await until(lambda: service.there() == {"shop", "clinic"})
            said = await service.predict(houses.ids("bank"), budget_s=LONG_S)
            assert not any(each.silent for each in said)

    play(work())


def test_nobody_is_lost_in_a_long_time_without_requests(houses):
    """Over the carrier of real jobs, twice as long as it waits for a message of a party that is alive."""
    theirs = Patience(join_s=0.1, silent_s=0.1, message_s=1.2, retry_s=0.05, receipt_s=0.02)
    calm = replace(theirs, join_s=LONG_S, silent_s=LONG_S)  # machines are noisy
    sites, service = [Patient(**vars(houses.sites[name]), patience=theirs) for name in NAMES], houses.service()

    async def work(posts):
        async with linking(sites[0].folder, service) as (_, ended):
            parts = [serve_at_home(site, Config(), posts[site.party], session="one") for site in sites]
            tasks = [asyncio.create_task(part) for part in parts]
            await until(lambda: service.there() == {"shop", "clinic"})
            await asyncio.sleep(2 * theirs.message_s)
            said = await service.predict(houses.ids("bank"), budget_s=LONG_S)
            assert not any(each.silent for each in said)
            assert {len(each.took_part) for each in said} == {1, 2, 3}
            link = service.link()
            await link.end()
            await link.net.close()
            await ended.wait()
            _, *others = await asyncio.gather(*tasks)
            assert [each["requests"] for each in others] == [1, 1]

    with posted(NAMES, calm) as posts:
        play(work(posts))


def test_between_two_waits_for_a_lane_no_message_is_lost(houses):
    """A seat that waits anew all the time hands on all that comes, in order."""
    many, calm = 300, Patience(join_s=LONG_S, silent_s=LONG_S, retry_s=0.05, receipt_s=0.02)
    folder, nets = houses.sites["bank"].folder, asyncio.Queue()

    async def joined(_, net):
        nets.put_nowait(net)
        await net.read()

    async def work(bank, shop):
        async with listening(folder, joined):
            seat = asyncio.create_task(relay(folder, bank, "one", renew_s=1e-4))
            net = await nets.get()
            for number in range(many):
                await shop.send("bank", "embedding", {"value": torch.tensor([number])})
                await asyncio.sleep(1e-4)
            got = [int((await net.recv("shop", "embedding", {}))["value"]) for _ in range(many)]
            assert got == list(range(many))
            await net.close()
            await seat

    with posted(("bank", "shop"), calm) as posts:
        play(work(*posts.values()))


@pytest.mark.parametrize(
    ("join_s", "silent_s", "message_s", "expected"),
    [(120, 10, 3600, 1200), (120, 10, 360, 180), (10, 120, 360, 180), (120, 10, 120, 80), (1, 1, 90, 30)],
)
def test_a_lane_is_waited_for_anew_before_its_sender_is_given_up_and_after_one_that_is_gone(
    houses, join_s, silent_s, message_s, expected
):
    patience = Patience(join_s=join_s, silent_s=silent_s, message_s=message_s)
    assert renew_s(Patient(**vars(houses.sites["shop"]), patience=patience)) == expected


def test_when_the_job_ends_everybody_is_gone(houses):
    async def work():
        service = houses.service()
        async with bridged(houses, service) as (_, seat, *_, ended):
            seat.cancel()
            await ended.wait()
            said = await service.predict(houses.ids("bank"), budget_s=LONG_S)
            assert {each.took_part for each in said} == {("bank",)}

    play(work())


def test_what_the_seat_does_not_take_is_not_counted(houses):
    async def work():
        service = houses.service()
        async with bridged(houses, service) as (_, seat, *_, ended):
            (link,) = service.links
            seat.cancel()
            await ended.wait()
            ledger = Ledger()
            await link.net.close()
            await Counted(link.net, ledger).send("shop", "serve-ask", {"rows": torch.zeros(3)})
            assert not ledger.flows

    play(work())


def test_a_stranger_and_nonsense_are_shown_out(houses):
    async def work():
        service = houses.service()
        async with bridged(houses, service):
            where = json.loads((houses.sites["bank"].folder / "serve.json").read_text())["socket"]
            for session, data in (("two", b""), ("one", b""), ("", b"GET / HTTP/1.1\r\n\r\n" * 9)):
                reader, writer = await asyncio.open_unix_connection(where)
                if session:
                    Frames(reader, writer, session).put("bank", "bank", OPEN, text(session))
                writer.write(data)
                assert await reader.read() == b""
                writer.close()
            assert len(service.links) == 1
            assert len(service.there()) == 2

    play(work())


def test_one_service_stands_beside_a_kit(houses):
    async def work():
        async with bridged(houses, houses.service()):
            other = Bridge(houses.sites["bank"].folder, "bank", None)
            with pytest.raises(ConfigError, match=r"a prediction service runs beside .* already; stop it first"):
                await other.open()

    play(work())


def test_of_two_services_that_begin_at_once_one_stands(tmp_path, monkeypatch):
    first, second = Bridge(tmp_path, "bank", None), Bridge(tmp_path, "bank", None)
    listen, begun = asyncio.start_unix_server, []

    async def listening_later(*words):
        if not begun:  # the first has looked and found nobody, and does not listen yet: now the second one begins
            begun.append(second)
            with pytest.raises(ConfigError, match=r"a prediction service runs beside .* already; stop it first"):
                await second.open()
        return await listen(*words)

    async def work():
        await first.open()
        await second.close()
        with pytest.raises(ConfigError, match="already; stop it first"):
            await second.check()
        await first.close()

    monkeypatch.setattr(asyncio, "start_unix_server", listening_later)
    play(work())
    assert begun


def test_a_service_that_begins_while_another_ends_keeps_its_place(tmp_path):
    async def work():
        first, second, said = Bridge(tmp_path, "bank", None), Bridge(tmp_path, "bank", None), []

        async def seat():  # of the first, which does not listen any more when this ends: now the second one begins
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                with contextlib.suppress(ConfigError):
                    await second.open()
                    said.append("it listens")

        await first.open()
        first._open.add(asyncio.create_task(seat()))
        await asyncio.sleep(0)
        await first.close()
        if not said:  # it was refused: what the first one had is gone by now, and nothing is in its way
            await second.open()
        assert (tmp_path / WHERE).is_file()
        await second.close()
        assert not (tmp_path / WHERE).exists()

    play(work())


def test_a_seat_without_a_service_says_so(houses, tmp_path):
    site = houses.sites["bank"]
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "model.json").write_text((site.folder / "model.json").read_text())
    Manifest.write(folder, ["model.json"])
    (folder / "serve.json").write_text('{"socket": "nowhere"}')
    with pytest.raises(ConfigError, match="no prediction service listens beside"):
        play(relay(folder, inproc.Hub(("bank",)).channel("bank"), "one"))


def test_where_a_killed_service_listened_is_taken_away_and_nothing_else(tmp_path, monkeypatch):
    short = Path(tempfile.mkdtemp())  # a socket's path has 107 bytes, and a test's own folder may have most of them
    monkeypatch.setattr("tempfile.tempdir", str(short))
    left, other = short / f"{PLACE}left", short / "other"
    kits = [tmp_path / "kit1", tmp_path / "kit2"]
    for place, kit in zip((left, other), kits, strict=True):
        place.mkdir()
        kit.mkdir()
        write_json(kit / WHERE, {"socket": str(place / "serve.sock")})

    async def opened(kit):
        bridge = Bridge(kit, "bank", None)
        await bridge.open()
        await bridge.close()

    for kit in kits:
        play(opened(kit))
    assert [path.name for path in short.iterdir()] == ["other"]
    shutil.rmtree(short)
