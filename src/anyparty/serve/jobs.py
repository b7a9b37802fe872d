"""Keeps a job of work "serve" running with all parties that are connected, as long as the service lives.

A job reaches the parties that were connected when it began.  When another comes, or one comes back, a new job begins
with all of them; requests go to the new one once it reaches more, and the old one is ended.  While the server is down
the service goes on alone, and tries again after growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyparty.errors import AnypartyError, RunError
from anyparty.run.allowed import Site
from anyparty.run.meanwhile import meanwhile
from anyparty.serve.bridge import Bridge, Bridged
from anyparty.serve.home import renew_s
from anyparty.serve.link import Link
from anyparty.serve.service import Service
from anyparty.serve.tab import Tab
from anyparty.wire.flare import federation

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """How long to wait for what, in seconds.

    Attributes:
        server: before a server that could not be reached is tried again; doubles up to ``most``.
        job: after a job that brought nobody new, before the next; doubles up to ``most``.
        most: the longest pause.
        vain: the longest before a job for those alone who could not serve in the last one; above ``most``.
        start: for a job that was submitted to appear.
        join: for the parties of a job that appeared.
        rejoin: for a party that was lost to come back into the same job.
        end: for a job to end by itself.

    """

    server: float = 1.0
    job: float = 5.0
    most: float = 300.0
    vain: float = 3600.0
    start: float = 60.0
    join: float = 20.0
    rejoin: float = 30.0
    end: float = 5.0


@dataclass
class Jobs:
    """The jobs of one service.

    Attributes:
        folder: the federation's folder.
        site: the active party's own settings.
        config: the settings that go with a job, as TOML.
        service: what gets the links.
        tab: counts what is sent.
        connected: the parties whose sites are connected now.
        unreached: why the federation's server cannot be reached; empty while it can.
        failed: why the last job did not begin; empty once one does, or none is needed.

    """

    folder: Path
    site: Site
    config: str
    service: Service
    tab: Tab = field(init=False)
    pauses: Pauses = field(default_factory=Pauses)
    connected: set[str] = field(default_factory=set)
    unreached: str = "the federation's server was not reached yet"
    failed: str = ""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _submitted: dict[str, str] = field(default_factory=dict)  # jobs that have not appeared, by session
    _lacking: dict[str, float] = field(default_factory=dict)  # connected and out of reach, since when
    _begun: float = -math.inf  # the last job
    _came: set[str] = field(default_factory=set)  # connected since then, perhaps anew
    _pause: float = 0.0
    _desk: asyncio.subprocess.Process | None = None
    _submitting: asyncio.Task[None] | None = None
    _stopping: bool = False

    def __post_init__(self) -> None:
        self.tab = Tab(self.site.folder, self.site.party)
        self.bridge = Bridge(self.site.folder, self.site.party, self._joined)

    @property
    def trouble(self) -> str:
        """Why other parties cannot be reached by way of the federation; empty while they can."""
        return self.unreached or self.failed

    @asynccontextmanager
    async def work(self) -> AsyncIterator[None]:
        """Reach the other parties while the body is at work; what is sent is counted in the party's folder.

        Raises:
            ConfigError: another service runs beside this kit.
        """
        await self.start()
        async with meanwhile(self.tab.write):
            try:
                yield
            finally:
                await self.stop()

    async def start(self) -> None:
        """Begin.

        Raises:
            ConfigError: another service runs beside this kit.
        """
        await self.bridge.open()
        self._task(self._watch())

    async def stop(self) -> None:
        """End all jobs and processes."""
        self._stopping = True
        if self._submitting is not None:
            await asyncio.gather(self._submitting, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._leave_desk()
        for session, job in list(self._submitted.items()):
            self._forget(session)
            with contextlib.suppress(AnypartyError, OSError):
                await asyncio.to_thread(federation.abort, self.folder, job)
        for link in list(self.service.links):
            await self._end(link)
        await self.bridge.close()

    async def _leave_desk(self) -> None:
        if self._desk is not None and self._desk.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._desk.terminate()
            await self._desk.wait()

    def _task(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- who is connected

    async def _watch(self) -> None:
        pause = self.pauses.server
        while True:
            began = time.monotonic()
            try:
                await self._look()
            except Exception as error:
                self.unreached, self.connected = self._why(error), set()
            pause = self.pauses.server if time.monotonic() - began > self.pauses.most else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.pauses.most)

    async def _look(self) -> None:
        """Follow one process that watches the server, to its end.

        Raises:
            RunError: why it ended.
        """
        kit = (self.folder / "kits" / "admin").resolve()
        self._desk = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "anyparty.serve.desk", str(kit), cwd=kit, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self._desk.stdout is not None
        try:
            while line := await self._desk.stdout.readline():
                said = json.loads(line)
                if "error" in said:
                    raise RunError(f"the federation's server cannot be reached: {said['error']}")
                self._came |= set(said["sites"]) - self.connected
                self.unreached, self.connected = "", set(said["sites"])
                await self._decide()
            raise RunError("the process that watches the federation's server has ended")
        finally:
            await self._leave_desk()

    def _why(self, error: Exception) -> str:
        """Log an error; return what is told of it."""
        log.warning("%s: %s", self.site.party, error, exc_info=not isinstance(error, AnypartyError))
        return str(error) if isinstance(error, AnypartyError) else f"{type(error).__name__}: {error}"

    # ---- jobs

    async def _decide(self) -> None:
        """Begin a job where a party is connected that no job reaches; end those that are not needed any more."""
        best, now = self.service.link(), time.monotonic()
        there = best.there if best else set()
        joining = [link for link in self.service.links
                   if now - link.began < self.pauses.join and self.connected - link.met]  # fmt: skip
        for link in self.service.links:
            older = best is not None and link.began < best.began
            if link is not best and link.there <= there and (older or link not in joining):
                self._task(self._end(link))
        lacking = self.connected - there
        self._lacking = {name: self._lacking.get(name, now) for name in lacking}
        if not lacking:
            self._pause, self.failed = 0.0, ""
        elif best is not None and all(
            name in best.lanes.gone and now - since < self.pauses.rejoin for name, since in self._lacking.items()
        ):
            return  # their processes may come back into the job
        elif best is not None and lacking <= best.refused.keys() and now - best.began < self.pauses.most:
            return  # they would be refused again
        elif not joining and not self._submitted:
            vain = best is not None and lacking <= best.unfit - self._came
            most = self.pauses.vain if vain else self.pauses.most
            if now - self._begun >= min(max(self.pauses.job, self._pause), most):
                await self._begin(now, most)

    async def _begin(self, now: float, most: float) -> None:
        self._begun, self._pause = now, min(max(self.pauses.job, 2 * self._pause), most)
        self._came.clear()
        session = secrets.token_hex(8)
        self.bridge.sessions.add(session)
        self._submitted[session] = ""
        self._submitting = asyncio.create_task(self._submit(session))
        await asyncio.shield(self._submitting)

    async def _submit(self, session: str) -> None:
        try:
            job = await asyncio.to_thread(
                federation.submit, self.folder, self.config, work="serve", asked={"session": session}, least=1
            )
        except Exception as error:  # whatever it was, the next job is to be tried
            self._forget(session)
            self.failed = f"no job can begin: {self._why(error)}"
            return
        if session in self._submitted:  # else it has appeared already
            self._submitted[session] = job
            self._task(self._missing(session, job))

    async def _missing(self, session: str, job: str) -> None:
        """Give up a job that does not appear."""
        await asyncio.sleep(self.pauses.start)
        if session in self._submitted:
            self._forget(session)
            self.failed = f"job {job} did not begin within {self.pauses.start:g} s"
            log.warning("%s: %s", self.site.party, self.failed)
            with contextlib.suppress(AnypartyError, OSError):
                await asyncio.to_thread(federation.abort, self.folder, job)

    def _forget(self, session: str) -> None:
        self._submitted.pop(session, None)
        self.bridge.sessions.discard(session)

    async def _joined(self, session: str, net: Bridged) -> None:
        """Use a job's seat until it ends."""
        self._submitted.pop(session, None)
        self.failed = ""
        link = Link(self.service.kept, net, self.tab.ledger, self.service.heard, renew_s=renew_s(self.site))
        for name in link.others:
            self.service.breaker.forget(name)
        net.returned = partial(self._returned, link)
        self.service.links.append(link)
        reading, running = asyncio.create_task(net.read()), asyncio.create_task(link.run())
        try:
            if self._stopping:
                await self._end(link)
            await reading
        finally:
            if link in self.service.links:
                self.service.links.remove(link)
            for task in (reading, running):
                task.cancel()
            await asyncio.gather(reading, running, return_exceptions=True)

    def _returned(self, link: Link, party: str) -> None:
        """Begin anew with a party whose process in a job was started again."""
        self.service.breaker.forget(party)
        link.again(party)

    async def _end(self, link: Link) -> None:
        """Let a job end: requests that are on their way there are answered first."""
        if link in self.service.links:
            self.service.links.remove(link)
            end = time.monotonic() + self.pauses.end
            while link.lanes.busy and time.monotonic() < end:
                await asyncio.sleep(0.01)
            await link.end()
            await link.net.close()
