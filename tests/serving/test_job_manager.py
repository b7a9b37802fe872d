"""The jobs of a service: they begin when parties connect, are retried after errors, and back off.

The federation is simulated: a process that reports connected sites, and jobs that begin in this process.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import os

import pytest

from anyparty.config import Config
from anyparty.deployment.flare import federation_folder
from anyparty.errors import PartyLost, RunError
from anyparty.serving.backends import OBSERVER
from anyparty.serving.job_manager import JobDelays, JobManager
from anyparty.serving.responder import serve_at_site
from anyparty.transport import memory
from tests.serving.trained_parties import LONG_S, TrainedParties

OTHERS = ("shop", "clinic")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return TrainedParties.train(tmp_path_factory.mktemp("houses"))


class Watcher:
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
    """A simulated federation: connected parties, unfit parties, and errors of the next submissions."""

    def __init__(self, trained, patch):
        self.trained, self.connected, self.unfit, self.errors = trained, set(OTHERS), set(), []
        self.began, self.responders = [], []  # when jobs began; (party, task) of all jobs

        async def watch(*_, **__):
            return Watcher(self)

        patch.setattr(asyncio, "create_subprocess_exec", watch)
        patch.setattr(federation_folder, "submit", self.submit)
        patch.setattr(federation_folder, "abort", lambda *_: None)

    def submit(self, folder, config, *, work, asked, least):
        """Begin a job with all connected parties; called in a thread."""
        if self.errors:
            raise self.errors.pop()
        asyncio.run_coroutine_threadsafe(self.begin(asked["session"]), self.loop).result(LONG_S)
        return "a job"

    async def begin(self, session):
        hub = memory.MemoryHub(("bank", *OTHERS, OBSERVER))
        self.began.append(self.jobs._last_began)
        for name in ("bank", *OTHERS):
            self.responders.append((name, asyncio.create_task(self.respond(hub.channel(name), session))))

    async def respond(self, net, session):
        try:
            if net.me in {"bank", *self.connected} - self.unfit:
                with contextlib.suppress(PartyLost):
                    await serve_at_site(self.trained.sites[net.me], Config(), net, session=session)
        finally:
            await net.close()

    @contextlib.asynccontextmanager
    async def served(self, **pauses):
        """Run a service."""
        self.loop, predictor, site = asyncio.get_running_loop(), self.trained.predictor(), self.trained.sites["bank"]
        pauses = JobDelays(**{"server": 0.01, "job": 0.02, "most": 0.05, "end": 0.1} | pauses)
        self.jobs = jobs = JobManager(site.folder, site, "", predictor, delays=pauses)
        try:
            async with asyncio.timeout(LONG_S), jobs.running():
                yield jobs, predictor
        finally:
            await self.end(*self.trained.sites)
            await asyncio.gather(*(respond for _, respond in self.responders), return_exceptions=True)

    async def end(self, *names):
        await asyncio.sleep(0)  # let new tasks start, so that they close their channels
        for name, respond in self.responders:
            if name in names:
                respond.cancel()


@pytest.fixture
def world(trained, monkeypatch):
    return World(trained, monkeypatch)


async def until(happens):
    while not happens():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(FULL, "no job can begin: OSError: [Errno 28] No space left on device"), (RunError("no"), "no job can begin: no")],
)
def test_a_failed_submission_is_retried_and_reported(world, error, reason):
    async def work():
        async with world.served() as (jobs, predictor):
            world.errors = [error] * 3
            await until(lambda: len(world.errors) < 3 and jobs.trouble)
            seen = set()
            while not predictor.peer_groups:
                seen.add(jobs.trouble)
                await asyncio.sleep(0.001)
            assert seen == {reason}
            assert jobs.trouble == ""
            await until(lambda: predictor.connected() == set(OTHERS))

    asyncio.run(work())


def test_the_error_is_cleared_when_no_job_is_needed(world):
    async def work():
        async with world.served() as (jobs, _):
            world.errors = [FULL] * 1000
            await until(lambda: "No space left" in jobs.trouble)
            world.connected.clear()
            await until(lambda: not jobs.trouble)

    asyncio.run(work())


def test_a_job_that_does_not_begin_is_reported(world, monkeypatch):
    monkeypatch.setattr(federation_folder, "submit", lambda *_, **__: "seven")

    async def work():
        async with world.served(start=0.02) as (jobs, _):
            await until(lambda: jobs.trouble == "job seven did not begin within 0.02 s")

    asyncio.run(work())


def test_a_service_stops_even_if_a_job_cannot_be_aborted(world, monkeypatch):
    def full(*_):
        raise FULL

    monkeypatch.setattr(federation_folder, "submit", lambda *_, **__: "seven")
    monkeypatch.setattr(federation_folder, "abort", full)

    async def work():
        async with world.served() as (jobs, _):
            await until(lambda: "seven" in jobs._submitted.values())
        assert not (jobs.site.folder / "serve.json").exists()

    asyncio.run(work())


def test_jobs_for_an_unfit_party_become_rare(world):
    """Until it serves again or its site restarts; other parties that connect do not wait so long."""

    async def work():
        async with world.served(rejoin=0.0, job=0.02, most=0.05, vain=1e6) as (jobs, predictor):
            world.unfit.add("shop")
            await until(lambda: len(world.began) == 6)
            for place, (one, two) in enumerate(itertools.pairwise(world.began)):
                assert two - one >= 0.02 * 2**place
            await until(lambda: predictor.connected() == {"clinic"})

            jobs._delay = 1e6  # as after many jobs
            world.connected.discard("clinic")
            await world.end("clinic")
            await until(lambda: predictor.connected() == set() and jobs.connected == {"shop"})
            world.connected.add("clinic")
            await until(lambda: predictor.connected() == {"clinic"})

            jobs._delay = 1e6
            world.unfit.discard("shop")
            world.connected.discard("shop")
            await until(lambda: jobs.connected == {"clinic"} and not jobs._missing_since)
            world.connected.add("shop")
            await until(lambda: predictor.connected() == set(OTHERS))

    asyncio.run(work())


def test_a_restarted_site_is_tried_immediately(world):
    async def work():
        async with world.served(rejoin=0.0, job=0.02, most=0.05, vain=1e6) as (jobs, predictor):
            world.unfit |= {"shop", "clinic"}
            await until(lambda: predictor.best_peers() and predictor.best_peers().unfit == set(OTHERS))
            jobs._delay = 1e6
            world.connected.discard("clinic")
            await until(lambda: jobs.connected == {"shop"})
            world.unfit.discard("clinic")
            world.connected.add("clinic")
            await until(lambda: predictor.connected() == {"clinic"})

    asyncio.run(work())


def test_a_party_that_was_lost_after_it_served_is_not_unfit(world):
    async def work():
        async with world.served(rejoin=1e6) as (_, predictor):
            await until(lambda: predictor.connected() == set(OTHERS))
            await world.end("clinic")
            await until(lambda: predictor.connected() == {"shop"})
            assert predictor.best_peers().unfit == set()

    asyncio.run(work())
