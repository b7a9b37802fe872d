"""The jobs of a service: begun as parties come, again after what failed, and not without end for who cannot serve.

The federation is made up here: a process that says who is connected, and jobs that begin in this process.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import os

import pytest

from anyparty.config import Config
from anyparty.errors import PartyLost, RunError
from anyparty.serving.job_manager import Jobs, Pauses
from anyparty.serving.local_backend import OUTSIDE
from anyparty.serving.responder import serve_at_home
from anyparty.wire import inproc
from anyparty.wire.flare import federation
from tests.serving.trained_parties import LONG_S, Houses

OTHERS = ("shop", "clinic")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    return Houses.trained(tmp_path_factory.mktemp("houses"))


class Desk:
    """The process that watches the server."""

    def __init__(self, world):
        self.world, self.stdout, self.returncode = world, self, None

    async def readline(self):
        await asyncio.sleep(0.005)
        return json.dumps({"sites": sorted(self.world.connected)}).encode() + b"\n"

    def terminate(self):
        self.returncode = 0

    async def wait(self):
        return self.returncode


class World:
    """A federation: who is connected, whose part fails at once, what the next submissions end with."""

    def __init__(self, houses, patch):
        self.houses, self.connected, self.unfit, self.errors = houses, set(OTHERS), set(), []
        self.began, self.parts = [], []  # when jobs began; the parts of all jobs, with their party's names

        async def desk(*_, **__):
            return Desk(self)

        patch.setattr(asyncio, "create_subprocess_exec", desk)
        patch.setattr(federation, "submit", self.submit)
        patch.setattr(federation, "abort", lambda *_: None)

    def submit(self, folder, config, *, work, asked, least):
        """Begin a job with all that are connected, as a thread of the service's asks."""
        if self.errors:
            raise self.errors.pop()
        asyncio.run_coroutine_threadsafe(self.begin(asked["session"]), self.loop).result(LONG_S)
        return "a job"

    async def begin(self, session):
        hub = inproc.Hub(("bank", *OTHERS, OUTSIDE))
        self.began.append(self.jobs._begun)
        for name in ("bank", *OTHERS):
            self.parts.append((name, asyncio.create_task(self.part(hub.channel(name), session))))

    async def part(self, net, session):
        try:
            if net.me in {"bank", *self.connected} - self.unfit:
                with contextlib.suppress(PartyLost):
                    await serve_at_home(self.houses.sites[net.me], Config(), net, session=session)
        finally:
            await net.close()

    @contextlib.asynccontextmanager
    async def served(self, **pauses):
        """A service at work."""
        self.loop, service, site = asyncio.get_running_loop(), self.houses.service(), self.houses.sites["bank"]
        pauses = Pauses(**{"server": 0.01, "job": 0.02, "most": 0.05, "end": 0.1} | pauses)
        self.jobs = jobs = Jobs(site.folder, site, "", service, pauses=pauses)
        try:
            async with asyncio.timeout(LONG_S), jobs.work():
                yield jobs, service
        finally:
            await self.end(*self.houses.sites)
            await asyncio.gather(*(part for _, part in self.parts), return_exceptions=True)

    async def end(self, *names):
        await asyncio.sleep(0)  # parts that were made just now have begun: else they would say no farewell
        for name, part in self.parts:
            if name in names:
                part.cancel()


@pytest.fixture
def world(houses, monkeypatch):
    return World(houses, monkeypatch)


async def until(happens):
    while not happens():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("error", "told"),
    [(FULL, "no job can begin: OSError: [Errno 28] No space left on device"), (RunError("no"), "no job can begin: no")],
)
def test_a_job_that_cannot_be_submitted_is_tried_again_and_its_cause_is_told_meanwhile(world, error, told):
    async def work():
        async with world.served() as (jobs, service):
            world.errors = [error] * 3
            await until(lambda: len(world.errors) < 3 and jobs.trouble)
            seen = set()
            while not service.links:
                seen.add(jobs.trouble)
                await asyncio.sleep(0.001)
            assert seen == {told}
            assert jobs.trouble == ""
            await until(lambda: service.there() == set(OTHERS))

    asyncio.run(work())


def test_the_cause_is_not_told_any_more_once_no_job_is_needed(world):
    async def work():
        async with world.served() as (jobs, _):
            world.errors = [FULL] * 1000
            await until(lambda: "No space left" in jobs.trouble)
            world.connected.clear()
            await until(lambda: not jobs.trouble)

    asyncio.run(work())


def test_a_job_that_does_not_begin_is_told(world, monkeypatch):
    monkeypatch.setattr(federation, "submit", lambda *_, **__: "seven")

    async def work():
        async with world.served(start=0.02) as (jobs, _):
            await until(lambda: jobs.trouble == "job seven did not begin within 0.02 s")

    asyncio.run(work())


def test_a_service_ends_also_where_a_job_cannot_be_ended(world, monkeypatch):
    def full(*_):
        raise FULL

    monkeypatch.setattr(federation, "submit", lambda *_, **__: "seven")
    monkeypatch.setattr(federation, "abort", full)

    async def work():
        async with world.served() as (jobs, _):
            await until(lambda: "seven" in jobs._submitted.values())
        assert not (jobs.site.folder / "serve.json").exists()

    asyncio.run(work())


def test_a_party_that_cannot_serve_costs_the_others_fewer_and_fewer_jobs(world):
    """Until it takes part again, or its site starts anew; who comes meanwhile does not wait so long."""

    async def work():
        async with world.served(rejoin=0.0, job=0.02, most=0.05, vain=1e6) as (jobs, service):
            world.unfit.add("shop")
            await until(lambda: len(world.began) == 6)
            for place, (one, two) in enumerate(itertools.pairwise(world.began)):
                assert two - one >= 0.02 * 2**place
            await until(lambda: service.there() == {"clinic"})

            jobs._pause = 1e6  # as after many more
            world.connected.discard("clinic")
            await world.end("clinic")
            await until(lambda: service.there() == set() and jobs.connected == {"shop"})
            world.connected.add("clinic")
            await until(lambda: service.there() == {"clinic"})

            jobs._pause = 1e6
            world.unfit.discard("shop")
            world.connected.discard("shop")
            await until(lambda: jobs.connected == {"clinic"} and not jobs._lacking)
            world.connected.add("shop")
            await until(lambda: service.there() == set(OTHERS))

    asyncio.run(work())


def test_a_site_that_starts_anew_is_tried_at_once(world):
    async def work():
        async with world.served(rejoin=0.0, job=0.02, most=0.05, vain=1e6) as (jobs, service):
            world.unfit |= {"shop", "clinic"}
            await until(lambda: service.link() and service.link().unfit == set(OTHERS))
            jobs._pause = 1e6
            world.connected.discard("clinic")
            await until(lambda: jobs.connected == {"shop"})
            world.unfit.discard("clinic")
            world.connected.add("clinic")
            await until(lambda: service.there() == {"clinic"})

    asyncio.run(work())


def test_a_party_that_was_lost_after_it_served_is_no_such_party(world):
    async def work():
        async with world.served(rejoin=1e6) as (_, service):
            await until(lambda: service.there() == set(OTHERS))
            await world.end("clinic")
            await until(lambda: service.there() == {"shop"})
            assert service.link().unfit == set()

    asyncio.run(work())
