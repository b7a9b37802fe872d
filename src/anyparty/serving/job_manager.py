"""Keep a serving job running with all connected parties, as long as the prediction service runs.

A serving job is a job of NVIDIA FLARE in which the parties answer the service's requests.  A job reaches only the
parties that were connected when the job began.  When another party connects or reconnects, a new job begins with all
connected parties.  Once the new job reaches more parties than the old one, requests use the new job, and the old job
ends.  While the federation's server is down, the active party answers alone, and it retries the connection with
increasing delays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyparty.artifacts.run_folder import meanwhile
from anyparty.deployment.flare import admin, federation_folder
from anyparty.deployment.site.policy import SiteSettings
from anyparty.errors import AnypartyError, RunError
from anyparty.serving.ipc import IpcChannel, IpcServer
from anyparty.serving.peer_group import PeerGroup
from anyparty.serving.predictor import Predictor
from anyparty.serving.responder import TrafficLog, receive_timeout_s

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JobDelays:
    """Delays and timeouts of jobs, in seconds.

    Attributes:
        server: delay before reconnecting to a server that could not be reached; doubles up to ``most``.
        job: shortest time between the beginnings of two jobs; doubles with each job up to ``most``, until the current
            job reaches all connected parties.
        most: the longest delay.
        vain: the longest delay before a new job, used instead of ``most`` if none of the missing parties could serve
            in the current job; exceeds ``most``.
        start: timeout for a submitted job to begin.
        join: timeout for the parties to join a job that has begun.
        rejoin: timeout for a lost party to rejoin the same job.
        end: timeout for open requests to finish before a job ends.

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
class JobManager:
    """The jobs of one prediction service.

    Attributes:
        folder: the federation's folder.
        site: the active party's own settings.
        config: the settings that a job carries, as TOML.
        predictor: answers the requests; it reaches the other parties through the ``PeerGroup`` of each job.
        traffic: counts the messages that the active party sends.
        delays: delays and timeouts.
        connected: the parties whose sites are connected to the federation's server now.
        unreachable: why the federation's server cannot be reached; empty while it can.
        failed: why the last job did not begin; empty once a job begins or no connected party is missing.

    """

    folder: Path
    site: SiteSettings
    config: str
    predictor: Predictor
    traffic: TrafficLog = field(init=False)
    delays: JobDelays = field(default_factory=JobDelays)
    connected: set[str] = field(default_factory=set)
    unreachable: str = "the federation's server was not reached yet"
    failed: str = ""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _submitted: dict[str, str] = field(default_factory=dict)  # ids of jobs that have not begun, by session
    _missing_since: dict[str, float] = field(default_factory=dict)  # connected parties outside the current job
    _last_began: float = -math.inf
    _reconnected: set[str] = field(default_factory=set)  # parties that connected since ``_last_began``
    _delay: float = 0.0
    _watcher: asyncio.subprocess.Process | None = None
    _submitting: asyncio.Task[None] | None = None
    _stopping: bool = False

    def __post_init__(self) -> None:
        self.traffic = TrafficLog(self.site.folder, self.site.party)
        self.ipc = IpcServer(self.site.folder, self.site.party, self._serve_job)

    @property
    def trouble(self) -> str:
        """The reason why the federation does not reach the other parties; empty while it reaches them."""
        return self.unreachable or self.failed

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep serving jobs running during an ``async with`` block, and log the traffic in the party's folder.

        Raises:
            ConfigError: another service runs for this party's folder.
        """
        await self.start()
        async with meanwhile(self.traffic.write):
            try:
                yield
            finally:
                await self.stop()

    async def start(self) -> None:
        """Open the socket for the active party's processes in jobs, and start to watch the federation's server.

        Raises:
            ConfigError: another service runs for this party's folder.
        """
        await self.ipc.open()
        self._spawn(self._watch())

    async def stop(self) -> None:
        """End all jobs and the process that watches the federation's server."""
        self._stopping = True
        if self._submitting is not None:
            await asyncio.gather(self._submitting, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stop_watcher()
        for session, job in list(self._submitted.items()):
            self._forget(session)
            with contextlib.suppress(AnypartyError, OSError):
                await asyncio.to_thread(federation_folder.abort, self.folder, job)
        for peers in list(self.predictor.peer_groups):
            await self._end(peers)
        await self.ipc.close()

    async def _stop_watcher(self) -> None:
        if self._watcher is not None and self._watcher.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._watcher.terminate()
            await self._watcher.wait()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- connected sites

    async def _watch(self) -> None:
        delay = self.delays.server
        while True:
            began = time.monotonic()
            try:
                await self._follow_watcher()
            except Exception as error:
                self.unreachable, self.connected = self._log(error), set()
            delay = self.delays.server if time.monotonic() - began > self.delays.most else delay
            await asyncio.sleep(delay)
            delay = min(2 * delay, self.delays.most)

    async def _follow_watcher(self) -> None:
        """Start an admin client that reports the connected sites; update the jobs after each report.

        Raises:
            RunError: the client cannot reach the server, or the client has ended.
        """
        kit = admin.admin_kit(self.folder)
        self._watcher = await asyncio.create_subprocess_exec(
            *admin.command_line(kit, "watch"), cwd=kit, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self._watcher.stdout is not None
        try:
            while line := await self._watcher.stdout.readline():
                report = json.loads(line)
                if "error" in report:
                    raise RunError(f"the federation's server cannot be reached: {report['error']}")
                self._reconnected |= set(report["sites"]) - self.connected
                self.unreachable, self.connected = "", set(report["sites"])
                await self._update_jobs()
            raise RunError("the process that watches the federation's server has ended")
        finally:
            await self._stop_watcher()

    def _log(self, error: Exception) -> str:
        """Log an error as a warning, and return its text."""
        log.warning("%s: %s", self.site.party, error, exc_info=not isinstance(error, AnypartyError))
        return str(error) if isinstance(error, AnypartyError) else f"{type(error).__name__}: {error}"

    # ---- jobs

    async def _update_jobs(self) -> None:
        """Begin a job if the best job lacks a connected party; end jobs that are no longer needed.

        The best job is the one that reaches the most parties.
        """
        best, now = self.predictor.best_peers(), time.monotonic()
        reached = best.connected if best else set()
        joining = [peers for peers in self.predictor.peer_groups
                   if now - peers.began < self.delays.join and self.connected - peers.settled]  # fmt: skip
        for peers in self.predictor.peer_groups:
            older = best is not None and peers.began < best.began
            if peers is not best and peers.connected <= reached and (older or peers not in joining):
                self._spawn(self._end(peers))
        missing = self.connected - reached
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        if not missing:
            self._delay, self.failed = 0.0, ""
        elif best is not None and all(
            name in best.multiplexer.lost and now - since < self.delays.rejoin
            for name, since in self._missing_since.items()
        ):
            return  # begin no job yet: the missing parties may rejoin the current job
        elif best is not None and missing <= best.refused.keys() and now - best.began < self.delays.most:
            return  # begin no job yet: it would refuse the missing parties again
        elif not joining and not self._submitted:
            vain = best is not None and missing <= best.unfit - self._reconnected
            most = self.delays.vain if vain else self.delays.most
            if now - self._last_began >= min(max(self.delays.job, self._delay), most):
                await self._begin(now, most)

    async def _begin(self, now: float, most: float) -> None:
        self._last_began, self._delay = now, min(max(self.delays.job, 2 * self._delay), most)
        self._reconnected.clear()
        session = secrets.token_hex(8)
        self.ipc.sessions.add(session)
        self._submitted[session] = ""
        self._submitting = asyncio.create_task(self._submit(session))
        await asyncio.shield(self._submitting)

    async def _submit(self, session: str) -> None:
        try:
            job = await asyncio.to_thread(
                federation_folder.submit, self.folder, self.config, work="serve", asked={"session": session}, least=1
            )
        except Exception as error:  # after any error, ``_update_jobs`` begins another job later
            self._forget(session)
            self.failed = f"no job can begin: {self._log(error)}"
            return
        if session in self._submitted:  # false if the job has already begun
            self._submitted[session] = job
            self._spawn(self._abort_if_missing(session, job))

    async def _abort_if_missing(self, session: str, job: str) -> None:
        """Wait for ``delays.start`` seconds, then abort the job if it has not begun."""
        await asyncio.sleep(self.delays.start)
        if session in self._submitted:
            self._forget(session)
            self.failed = f"job {job} did not begin within {self.delays.start:g} s"
            log.warning("%s: %s", self.site.party, self.failed)
            with contextlib.suppress(AnypartyError, OSError):
                await asyncio.to_thread(federation_folder.abort, self.folder, job)

    def _forget(self, session: str) -> None:
        self._submitted.pop(session, None)
        self.ipc.sessions.discard(session)

    async def _serve_job(self, session: str, channel: IpcChannel) -> None:
        """Let the predictor use the channel of a job that has begun, until the job ends."""
        self._submitted.pop(session, None)
        self.failed = ""
        peers = PeerGroup(self.predictor.party, channel, self.traffic.ledger, self.predictor.message_arrived,
                          receive_timeout_s=receive_timeout_s(self.site))  # fmt: skip
        for name in peers.others:
            self.predictor.breaker.reset(name)
        channel.on_rejoin = partial(self._rejoined, peers)
        self.predictor.peer_groups.append(peers)
        reading, running = asyncio.create_task(channel.read()), asyncio.create_task(peers.run())
        try:
            if self._stopping:
                await self._end(peers)
            await reading
        finally:
            if peers in self.predictor.peer_groups:
                self.predictor.peer_groups.remove(peers)
            for task in (reading, running):
                task.cancel()
            await asyncio.gather(reading, running, return_exceptions=True)

    def _rejoined(self, peers: PeerGroup, party: str) -> None:
        """Accept a party of a job again after the party's process was restarted."""
        self.predictor.breaker.reset(party)
        peers.rejoin(party)

    async def _end(self, peers: PeerGroup) -> None:
        """Stop new requests to a job, wait at most ``delays.end`` seconds for its open requests, then end the job."""
        if peers in self.predictor.peer_groups:
            self.predictor.peer_groups.remove(peers)
            end = time.monotonic() + self.delays.end
            while peers.multiplexer.busy and time.monotonic() < end:
                await asyncio.sleep(0.01)
            await peers.end()
            await peers.channel.close()
