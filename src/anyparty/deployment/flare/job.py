"""The classes that FLARE starts for a job: one class in each party's process does the party's share of the work.

The active party's class is the job's workflow, in the server's job process.  Every passive party's class is the job's
executor, in its client's job process.  A message passes one relay (the server) between active and passive parties, and
two relays between two passive parties.

    server's job process  ⇄  server  ⇄  TLS  ⇄  client's job process
    ActiveJobParty                              PassiveJobParty

Packets are sent as single cell messages of FLARE (``core_cell.fire_and_forget``).  Single cell messages are five times
faster than FLARE's streams.  ``ReliableEndpoint`` adds receipts, order and deadlines.

A packet's header names its sender.  FLARE's server accepts a message only with a token that it signed for a client, and
compares the header with that client's registration.  FLARE 2.9 skips the comparison for a token of an earlier
registration (``FederatedServer._resolve_client_fqcn_for_auth``).  With such a token, a client with modified code can
impersonate another one; a semi-honest party does not (``docs/explanation/privacy.md``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from anyparty.config import Config
from anyparty.core.seeds import usual_torch
from anyparty.core.storage import writing
from anyparty.deployment.flare.server_health import lost_sites
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.errors import ENDED, AnypartyError, PartyLost, RunError
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from anyparty.transport.reliable_session import Timeouts

try:
    from nvflare.apis.controller_spec import ClientTask, Task
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.apis.signal import Signal
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message
except ImportError:  # FLARE is an extra: without it this module can be imported, but not used
    Controller = Executor = object

CHANNEL, TOPIC, HEADER = "anyparty", "parcel", "anyparty"  # the FLARE channel, topic and header of packets
AWAY = "its site was stopped"  # the reason that a stopped party sends to the other parties
FLUSH_S = 1.0  # pause for FLARE to send the last packets, because FLARE does not report that they are sent
GOODBYE_S = 4.0  # time limit of a farewell; the process of a stopped site is killed after 5 s
RETURNS = 5  # how often a party tries to rejoin after the other parties have given up on it
TASK, CONFIG = "take_part", "anyparty.toml"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FlareCarrier:
    """A carrier that sends packets between the parties' job processes, which are cells of FLARE."""

    core: Any
    job: str
    active: str

    def put(self, to: str, envelope: str, data: bytes) -> None:
        """Send a packet as one cell message of FLARE, without waiting for a result."""
        try:
            self.core.fire_and_forget(
                CHANNEL, TOPIC, self.address(to), Message({HEADER: envelope}, data), optional=True
            )
        except RuntimeError as error:  # the cell is stopping
            log.debug("a packet to %s was not sent: %s", to, error)

    def address(self, party: str) -> str:
        """Return the name of the cell of a party's job process."""
        return f"{'server' if party == self.active else party}.{self.job}"

    def listen(self, endpoint: ReliableEndpoint) -> None:
        """Pass each arriving packet to ``endpoint``; FLARE calls ``endpoint.arrived`` on FLARE's own threads."""
        parties = {self.address(name): name for name in (endpoint.me, *endpoint.sessions)}

        def arrived(request: Message) -> None:
            origin = request.get_header(MessageHeaderKey.ORIGIN)
            endpoint.arrived(parties.get(origin, str(origin)), request.get_header(HEADER), request.payload or b"")

        self.core.register_request_cb(CHANNEL, TOPIC, arrived)


@dataclass(frozen=True)
class JobOrder:
    """A job's request to every party: the kind of work, and the arguments of the function that does the work."""

    work: str
    asked: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """The outcome of a job at one party.

    Attributes:
        party: the party's name.
        job: FLARE's name for the job.
        error: the type of the error that ended the job at this party; empty after success.
        sentence: the error's message.
        result: the result of the party's work, if it can be written as JSON.
        gone: the reason for each lost party: it left, or this party has stopped waiting for it.
        traffic: for each receiving party, the numbers of messages, bytes and repeated packets that this party sent.

    """

    party: str
    job: str
    error: str = ""
    sentence: str = ""
    result: Any = None
    gone: dict[str, str] = field(default_factory=dict)
    traffic: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A job at one party: the settings of the site and of the job, and FLARE's cell for sending messages."""

    site: SiteConfig
    config: str
    job: str
    core: Any
    kit: Path = Path()

    @classmethod
    def at(cls, context: FLContext) -> JobRun:
        """Return the job at one party, with the settings of the site and of the job, which are read from files."""
        engine, job = context.get_engine(), context.get_job_id()
        workspace = engine.get_workspace()
        config = Path(workspace.get_app_config_dir(job), CONFIG).read_text(encoding="utf-8")
        return cls(
            site=SiteConfig.read(Path(workspace.get_root_dir())),
            config=config,
            job=job,
            core=engine.get_cell().core_cell,
            kit=Path(workspace.get_root_dir()),
        )

    def play(self, order: JobOrder, stop_reason: Callable[[], str]) -> JobOutcome:
        """Do the party's work for the job, write its outcome into the site's folder, and return the outcome."""
        site = self.site
        if site.threads:
            torch.set_num_threads(site.threads)
        for patience in (site.patience, *[replace(site.patience, join_s=site.patience.back_s)] * RETURNS):
            endpoint, end = self._once(order, stop_reason, patience)
            if site.party == site.active or not end.get("error") or stop_reason():
                break
            if not endpoint.is_cut_off_from(site.active):
                break
            log.warning("%s: %s; it tries to rejoin", site.party, end["sentence"])
        traffic = {name: asdict(each) for name, each in endpoint.traffic().items()}
        outcome = JobOutcome(party=site.party, job=self.job, gone=endpoint.gone(), traffic=traffic, **end)
        with writing(site.folder / f"{self.job}.json") as beside:
            beside.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")
        return outcome

    def _once(
        self, order: JobOrder, stop_reason: Callable[[], str], patience: Timeouts
    ) -> tuple[ReliableEndpoint, dict[str, Any]]:
        """Do the party's work once; return the endpoint, and the result or the error.

        After a passive party was cut off from the active party, the caller may call this function again.
        """
        site = self.site
        carrier = FlareCarrier(self.core, self.job, site.active)
        endpoint = ReliableEndpoint(site.party, site.parties, self.job, carrier, patience, stop_reason=stop_reason)
        carrier.listen(endpoint)
        endpoint.start([site.active] if site.party != site.active else [])
        end, ended, lost = dict[str, Any](), threading.Event(), ""
        if site.party == site.active and order.work != "serve":
            threading.Thread(target=_lose_unconnected, args=(endpoint, self.kit, ended), daemon=True).start()
        try:
            config = Config.of(tomllib.loads(self.config), f"the settings of job {self.job}")
            with usual_torch():  # code that the site loads may have changed torch's settings
                end["result"] = _plain(asyncio.run(_run(site, config, endpoint, order)))
        except Exception as error:
            end |= {"error": type(error).__name__, "sentence": str(error)}
            lost = error.party if isinstance(error, PartyLost) else ""
            log.error("%s: %s", site.party, error, exc_info=not isinstance(error, AnypartyError))
        ended.set()
        endpoint.leave(farewell(end.get("error", ""), stop_reason(), lost))
        return endpoint, end


def _lose_unconnected(endpoint: ReliableEndpoint, kit: Path, ended: threading.Event) -> None:
    """Give up on parties that have not appeared in the job, as soon as the server reports that their site is lost.

    Without this function, the job waits ``Timeouts.join_s`` for a site that died shortly before the job began.
    """
    while not ended.wait(1.0):
        for name in lost_sites(kit):
            if name in endpoint.sessions and endpoint.sessions[name].last_heard is None:
                endpoint.lose(name, "its site is not connected")


async def _run(site: SiteConfig, config: Config, endpoint: ReliableEndpoint, order: JobOrder) -> Any:
    return await site.load_part(order.work)(site, config, endpoint, **order.asked)


def farewell(error: str, stop_reason: str = "", lost: str = "") -> str:
    """Return the reason that a leaving party sends to the other parties.

    The reason names at most the type of an error, because the error's message may hold data, and ``lost``, the party
    that had left before.  If the site or the job was stopped on purpose, the party sends ``stop_reason`` in place of
    the error, because the stop caused the error.
    """
    if stop_reason:
        return stop_reason
    after = f" after {lost!r} had left" if lost else ""
    return f"it stopped with {error}{after}; site.log in its kit says why" if error else "its part is done"


def _plain(result: Any) -> Any:
    try:
        return json.loads(json.dumps(result))
    except (TypeError, ValueError):
        return None


class GracefulExit:
    """A handler of SIGTERM: during the party's work for a job, the party sends a farewell before the process ends.

    FLARE creates this object on the main thread, the only thread that can install signal handlers.  The party's work
    may run on any thread.
    """

    def __init__(self) -> None:
        self.why, self.playing = "", False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        if not self.playing:
            self._at_once()
        self.why = AWAY
        watchdog = threading.Timer(GOODBYE_S, self._at_once)
        watchdog.daemon = True
        watchdog.start()

    @staticmethod
    def _at_once() -> None:
        os._exit(128 + signal.SIGTERM)

    @contextmanager
    def softly(self) -> Iterator[None]:
        """On SIGTERM, let the body of the ``with`` statement finish within seconds, then end the process."""
        self.playing = True
        try:
            yield
        finally:
            self.playing = False
            if self.why:
                time.sleep(FLUSH_S)
                self._at_once()


class ActiveJobParty(Controller):  # type: ignore[misc]
    """The active party in a job; the job ends when the active party's work ends."""

    def __init__(self, work: str, asked: dict[str, Any]) -> None:
        super().__init__()
        self.order, self.graceful_exit = JobOrder(work, asked), GracefulExit()
        self.ended: dict[str, str] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: required by FLARE."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: required by FLARE."""

    def process_result_of_unknown_task(self, client: Any, task_name: str, client_task_id: str, result: Shareable,
                                       fl_ctx: FLContext) -> None:  # fmt: skip
        """Ignore a party's result, because the job no longer waits for this party."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Start the job at the other parties, do this party's work, then wait until the other parties have ended."""
        run = JobRun.at(fl_ctx)
        task = Task(name=TASK, data=Shareable(), result_received_cb=self._ended)
        others = len(run.site.parties) - 1
        self.broadcast(task, fl_ctx, min_responses=others)
        with self.graceful_exit.softly():
            outcome = run.play(self.order, lambda: ENDED if abort_signal.triggered else self.graceful_exit.why)
        end = time.monotonic() + run.site.patience.flush_s
        lost = {name for name, why in outcome.gone.items() if not why.startswith("it left") or AWAY in why}
        while len(self.ended.keys() | lost) < others and time.monotonic() < end and not abort_signal.triggered:
            time.sleep(0.1)
        self.cancel_task(task, fl_ctx=fl_ctx)
        if outcome.error:
            raise RunError(f"{outcome.error}: {outcome.sentence}")

    def _ended(self, client_task: ClientTask, fl_ctx: FLContext) -> None:  # noqa: ARG002
        self.ended[client_task.client.name] = str((client_task.result or {}).get("error", "no result"))


class PassiveJobParty(Executor):  # type: ignore[misc]
    """A passive party in a job, as an executor of FLARE."""

    def __init__(self, work: str, asked: dict[str, Any]) -> None:
        super().__init__()
        self.order, self.graceful_exit = JobOrder(work, asked), GracefulExit()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:  # noqa: ARG002
        """Do the party's work; reply with the type of an error, but not with its message, which may hold data."""
        with self.graceful_exit.softly():
            outcome = JobRun.at(fl_ctx).play(
                self.order, lambda: ENDED if abort_signal.triggered else self.graceful_exit.why
            )
        reply = make_reply("OK")
        reply["error"] = outcome.error
        return reply
