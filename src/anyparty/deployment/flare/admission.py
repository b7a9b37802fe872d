"""FLARE components that report connections and admit each party only once; functions that limit what FLARE does.

The components are listed in ``local/resources.json`` of every kit. ``site_process`` shows the lines that the components
print, which start with ``MARK``. The kit's ``site.log`` has these lines and all other output.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyparty.core.storage import writing
from anyparty.deployment.flare.server_health import HealthFile, JobRunnerGuard

MARK = "anyparty> "
LONG_AGO = float("-inf")
CLOCK, CLOCKS = "anyparty_clock", "clocks.json"  # a header of heartbeats, and a file with clock differences
TOLD_S = 60.0  # a larger clock difference, in seconds, is reported
TWICE = "is connected already, from another process"
CONNECTED = "is connected to"

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_component import FLComponent
    from nvflare.apis.fl_constant import RunProcessKey
    from nvflare.apis.fl_exception import NotAuthenticated
    from nvflare.fuel.f3.cellnet.fqcn import FQCN
except ImportError:  # FLARE is an extra: without it this module can be imported, but not used
    FLComponent = object

EVICTED = re.compile(r"is evicted for \S+ from endpoint (?P<name>\S+)")
EVICTION_S = 30.0  # time, after a party opened a second connection, in which its registrations are rejected
CHECK_S, AWAY_S = 2.0, 15.0  # time between two checks; time until a closed connection is reported
# Time after which 'federate status' shows a site as absent: with a closed connection, and without a heartbeat, which
# the site sends every ``HEARTBEAT_S`` seconds.
LOST_S, SILENT_S, HEARTBEAT_S = 8.0, 12.0, 4.0
CLOSED_S = 60.0  # time, after a party's second site was rejected, in which no site of the party is admitted
log = logging.getLogger(__name__)


def say(sentence: str) -> None:
    """Print a line for the terminal of ``anyparty party start``, in one write."""
    # The text includes the line end, because ``print`` would write the line end separately.
    print(f"{MARK}{sentence}\n", end="", flush=True)


class Evictions(logging.Handler):
    """A log handler that records connections which FLARE closed because a second one with the same name was opened."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.at: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Record a connection's name and the time, if the log record reports that FLARE closed the connection."""
        if found := EVICTED.search(record.getMessage()):
            self.at[found["name"]] = time.monotonic()


class AdmissionController(FLComponent):  # type: ignore[misc]
    """A server component that reports connections, and rejects a party's second site while the first is connected.

    The controller also writes the differences of the parties' clocks to the kit's clocks.json, for ``anyparty doctor``.

    When a second site of a party connects, FLARE closes the first site's connection.  The first site then reconnects,
    FLARE closes the second site's connection, and so on.  The site that registers right after such a closure is
    therefore rejected, and for a minute no site of the party is admitted.  A restarted site has only one connection and
    is admitted at once.  After a power loss, a site is readmitted within a minute.
    """

    def __init__(self, parties: int, kit: str = ".") -> None:
        super().__init__()
        self.parties, self.closed, self.evictions = parties, dict[str, float](), Evictions()
        # ``reported``: parties reported as connected. ``closed_since``: for each party, when its connection was closed.
        self.reported, self.closed_since = set[str](), dict[str, float]()
        self.clocks, self.kept = dict[str, dict[str, Any]](), Path(kit) / CLOCKS
        self.keeping = threading.Lock()  # several threads can handle heartbeats at the same time
        self.health, self.job_runner_guard, self.failing = HealthFile(Path(kit)), JobRunnerGuard(), False

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Report connections, reject a party's second site, and compare the parties' clocks with the server's."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self.job_runner_guard.guard(fl_ctx.get_engine().job_runner)
        elif event_type == EventType.SYSTEM_START:
            exclude_polling_from_audit()
            connections = logging.getLogger("nvflare.fuel.f3.sfm.sfm_endpoint")
            connections.setLevel(logging.INFO)
            connections.propagate = False
            connections.addHandler(self.evictions)
            say(f"ready; waiting for {self.parties - 1} other parties")
            if fl_ctx is not None:
                engine = fl_ctx.get_engine()
                # Ends jobs of an earlier server process, which FLARE still lists as running.
                engine.job_runner.update_abnormal_finished_jobs([], fl_ctx)
                threading.Thread(target=self._check_often, args=(engine,), daemon=True).start()
        elif event_type == EventType.CLIENT_REGISTER_RECEIVED:
            self._reject_second(fl_ctx)
        elif event_type == EventType.CLIENT_HEARTBEAT_RECEIVED:
            self._compare_clocks(fl_ctx)
        elif event_type == EventType.CLIENT_HEARTBEAT_PROCESSED:
            if _peer(fl_ctx) not in self.reported:  # the party registered before the server was restarted
                self._report(fl_ctx, left=False)
        elif event_type in {EventType.CLIENT_REGISTER_PROCESSED, EventType.CLIENT_QUIT}:
            self._report(fl_ctx, left=event_type == EventType.CLIENT_QUIT)

    def _reject_second(self, fl_ctx: Any) -> None:
        name, now = _peer(fl_ctx), time.monotonic()
        if now - self.evictions.at.get(name, LONG_AGO) < EVICTION_S:
            self.closed[name] = now
        if now - self.closed.get(name, LONG_AGO) < CLOSED_S:
            say(f"{name} {TWICE}; a second connection was rejected: the kit of {name} is in use twice")
            raise NotAuthenticated(f"{name} {TWICE}")  # FLARE then rejects the registration

    def _compare_clocks(self, fl_ctx: Any) -> None:
        name, peer, now = _peer(fl_ctx), fl_ctx.get_peer_context(), time.time()
        sent = peer.get_prop(CLOCK) if peer else None
        if not isinstance(sent, float):
            return
        behind, at = now - sent, datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
        with self.keeping:
            before = self.clocks.get(name, {}).get("behind_s")
            if before is not None and abs(behind - before) < 1.0:
                return
            self.clocks[name] = {"behind_s": round(behind, 3), "at": at}
            with writing(self.kept) as beside:
                beside.write_text(json.dumps(self.clocks, indent=1), encoding="utf-8")
        if abs(behind) > TOLD_S:
            way = "behind" if behind > 0 else "ahead of"
            say(f"the clock of {name} is {abs(behind):,.0f} s {way} this one; set both")

    def _report(self, fl_ctx: Any, *, left: bool) -> None:
        name, clients = _peer(fl_ctx), _clients(fl_ctx.get_engine())
        if left or name in clients:
            (self.reported.discard if left else self.reported.add)(name)
            self._say(name, "left" if left else "is connected", clients)

    def _say(self, name: str, what: str, connected: Iterable[str]) -> None:
        names = sorted(connected)
        say(f"{name} {what}; there are {len(names)} of {self.parties - 1} others: {', '.join(names)}")

    def _check_often(self, engine: Any) -> None:
        while True:
            time.sleep(CHECK_S)
            try:
                lost = self.check_connections(engine, time.monotonic())
                self.report_health(lost | silent_sites(engine))
            except Exception:  # FLARE raises an error if a party leaves or registers at the same time
                log.warning("connections could not be checked; the next check follows", exc_info=True)

    def report_health(self, lost: set[str]) -> None:
        """Write the server's health for commands on this machine, and show when jobs cannot be started."""
        self.health.report(self.job_runner_guard, lost)
        if (error := str(self.health.content.get("error", ""))) and not self.failing:
            say(f"jobs cannot be started ({error}); trying again")
        elif self.failing and not error:
            say("jobs can be started again")
        self.failing = bool(error)

    def check_connections(self, engine: Any, now: float) -> set[str]:
        """Report parties whose connection has been closed for ``AWAY_S`` seconds; log them out if no job needs them.

        Return the parties whose connection has been closed for ``LOST_S`` seconds.

        FLARE itself logs out a party only after ten minutes without heartbeats. For that time, a stopped party would be
        listed as connected, and would be asked to take part in predictions.  A party that reconnects is listed again
        with its next heartbeat.
        """
        clients, cell = _clients(engine), engine.get_cell()
        closed = {name for name in clients if not cell.is_cell_connected(name)}
        self.closed_since = {name: self.closed_since.get(name, now) for name in closed}
        lost = {name for name, since in self.closed_since.items() if now - since > AWAY_S}
        for name in sorted(lost & self.reported):
            self.reported.discard(name)
            self._say(name, "is gone, its connection is closed", clients.keys() - lost)
        works = {
            token for run in list(engine.run_processes.values()) for token in run.get(RunProcessKey.PARTICIPANTS) or ()
        }
        for name in lost:
            if clients[name].token not in works:
                engine.server.logout_client(clients[name].token)
        return {name for name, since in self.closed_since.items() if now - since > LOST_S}


class ConnectionMonitor(FLComponent):  # type: ignore[misc]
    """A client component that reports when the server admits the client, stops answering, and answers again.

    Every heartbeat carries the time of the client's clock. The client answers only those requests that are necessary
    for jobs.
    """

    def __init__(self, party: str, place: str) -> None:
        super().__init__()
        answer_only_job_requests()
        self.party, self.place, self.unanswered, self.connected = party, place, 0, False

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Report, according to the heartbeats, when the server begins to answer and when it stops.

        FLARE reports a heartbeat as done even if the server does not answer, so the connection is checked, too.  If a
        heartbeat cannot be sent, FLARE starts the next one without reporting the first one as done.
        """
        if event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self.unanswered = 0
            if fl_ctx.get_engine().get_cell().is_cell_connected(FQCN.ROOT_SERVER):
                if not self.connected:
                    say(f"{self.party} {CONNECTED} {self.place}")
                self.connected = True
            else:
                self._lost()
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            fl_ctx.set_prop(CLOCK, time.time(), private=False, sticky=False)
            self.unanswered += 1
            if self.unanswered == 2:
                self._lost()

    def _lost(self) -> None:
        if self.connected:
            say(f"{self.place} does not answer; trying again until it does (Ctrl-C to stop)")
        self.connected = False


def _peer(fl_ctx: Any) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer else ""


def silent_sites(engine: Any) -> set[str]:
    """Return the clients that have a connection, but have sent no heartbeat for ``SILENT_S`` seconds."""
    clients = list(engine.client_manager.clients.values())
    return {client.name for client in clients if time.time() - client.last_connect_time > SILENT_S}


def _clients(engine: Any) -> dict[str, Any]:
    return {client.name: client for client in list(engine.client_manager.clients.values())}


ANSWERED = {
    "AbortAppProcessor", "AbortTaskProcessor", "CancelResourceProcessor", "CheckResourceProcessor",
    "ClientStatusProcessor", "DeployProcessor", "NotifyJobStatusProcessor", "ReportResourcesProcessor",
    "StartJobProcessor",
}  # fmt: skip
"""The server's requests that a passive party's site answers: those to deploy, start, follow and stop jobs."""


def answer_only_job_requests() -> None:
    """Remove the handlers of all requests not in ``ANSWERED``, such as shell commands, logs and restarts.

    A site's ``authorization.json`` is not enough: FLARE checks it only if the request says so, and the server writes
    the request.

    Raises:
        RuntimeError: this version of FLARE lacks one of the handlers in ``ANSWERED``; the site does not start.
    """
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors  # noqa: PLC0415 - an extra

    every = ClientRequestProcessors.request_processors
    kept = [each for each in every if type(each).__name__ in ANSWERED]
    if missing := ANSWERED - {type(each).__name__ for each in kept}:
        raise RuntimeError(f"this version of FLARE has no {sorted(missing)}: use one that anyparty admits")
    every[:] = kept


POLLING = ("check_status server", "get_job_meta ")
"""Read-only commands that are sent every second or more often, to follow the connected sites and a training job."""


class Unaudited(frozenset[str]):
    """The set of commands that are not written into the server's audit.log: FLARE's own, and polling commands."""

    def __new__(cls, every: Iterable[str]) -> Unaudited:
        """Return the unaudited commands: those in ``every``, which FLARE itself excludes, and the polling commands."""
        return super().__new__(cls, every)

    def __contains__(self, command: object) -> bool:
        return super().__contains__(command) or str(command).startswith(POLLING)


def exclude_polling_from_audit() -> None:
    """Exclude polling commands from the server's audit.log; they would add more than 10 MB a day."""
    from nvflare.fuel.sec import audit  # noqa: PLC0415 - an extra

    audit.EXCLUDED_ACTIONS = Unaudited(audit.EXCLUDED_ACTIONS)
