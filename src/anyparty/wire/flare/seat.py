"""What FLARE starts in every organisation's process for a job: the party's part, run to its end.

The active party's seat is the job's workflow, in the server's job process; every other party's is the job's executor,
in its client's.  So active and passive are one relay apart (the server's own), two passive parties two.

    server's job process  ⇄  server  ⇄  TLS  ⇄  client's job process
    Active: the active party's part             Passive: a passive party's part

Messages are bytes of ours in FLARE's single cell messages (``core_cell.fire_and_forget``), which cross five times
faster than its streams and leave acknowledging, ordering and deadlines to ``post``.

The organisation that a message is from is the one that its header names.  FLARE's server lets no message in without a
token that it signed for a client, and holds the header against where that client is registered.  But FLARE 2.9 leaves
the second out for a token of a former registration (``FederatedServer._resolve_client_fqcn_for_auth``): with one, a
client whose code was changed can pass for another, which a semi-honest party does not (``docs/privacy.md``).
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
from anyparty.errors import ENDED, AnypartyError, RunError
from anyparty.storage import writing
from anyparty.wire.flare.channel import Posted
from anyparty.wire.flare.peer import Patience
from anyparty.wire.flare.post import Post
from anyparty.wire.flare.site import Site

try:
    from nvflare.apis.controller_spec import ClientTask, Task
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.apis.signal import Signal
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message
except ImportError:  # an extra: without it nobody sits here, and reading this file does no harm
    Controller = Executor = object

CHANNEL, TOPIC, NOTE = "anyparty", "parcel", "anyparty"
AWAY = "its site was stopped"  # why a party left that will say no more
FLUSH_S = 1.0  # for what was handed to FLARE to be on the wire: it does not say when
GOODBYE_S = 4.0  # to say goodbye in; whoever stops a site kills it after five
KNOCKS = 5  # times that a party which was given up tries to come back
TASK, CONFIG = "take_part", "anyparty.toml"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cells:
    """The parties' job processes, as FLARE's cells: a carrier of parcels."""

    core: Any
    job: str
    active: str

    def put(self, to: str, note: str, data: bytes) -> None:
        """Send one cell message and forget it."""
        try:
            self.core.fire_and_forget(CHANNEL, TOPIC, self.address(to), Message({NOTE: note}, data), optional=True)
        except RuntimeError as error:  # the cell is stopping
            log.debug("a parcel to %s was not sent: %s", to, error)

    def address(self, party: str) -> str:
        """Return the cell of a party's job process."""
        return f"{'server' if party == self.active else party}.{self.job}"

    def listen(self, post: Post) -> None:
        """Hand what arrives to a post, on FLARE's threads."""
        parties = {self.address(name): name for name in (post.me, *post.peers)}

        def arrived(request: Message) -> None:
            origin = request.get_header(MessageHeaderKey.ORIGIN)
            post.arrived(parties.get(origin, str(origin)), request.get_header(NOTE), request.payload or b"")

        self.core.register_request_cb(CHANNEL, TOPIC, arrived)


@dataclass(frozen=True)
class Order:
    """What a job asks of every party: the kind of work, and the words that go to its part."""

    work: str
    asked: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a party's part ended.

    Attributes:
        party, job: whose, in which job.
        error: the kind of error that ended it; empty when it came to its end.
        sentence: what that error says.
        result: what the part returned, where that can be written as JSON.
        gone: which parties were lost or left, and why.
        traffic: what went to each party: messages, bytes, repeated.

    """

    party: str
    job: str
    error: str = ""
    sentence: str = ""
    result: Any = None
    gone: dict[str, str] = field(default_factory=dict)
    traffic: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A party's place in a job."""

    site: Site
    config: str
    job: str
    core: Any

    @classmethod
    def at(cls, context: FLContext) -> Seat:
        """Find the site's own settings, and the job's."""
        engine, job = context.get_engine(), context.get_job_id()
        workspace = engine.get_workspace()
        config = Path(workspace.get_app_config_dir(job), CONFIG).read_text(encoding="utf-8")
        return cls(site=Site.read(Path(workspace.get_root_dir())), config=config, job=job,
                   core=engine.get_cell().core_cell)  # fmt: skip

    def play(self, order: Order, news: Callable[[], str]) -> Outcome:
        """Run the party's part to its end; keep a record of how it ended at home."""
        site = self.site
        if site.threads:
            torch.set_num_threads(site.threads)
        for patience in (site.patience, *[replace(site.patience, join_s=site.patience.back_s)] * KNOCKS):
            post, said = self._once(order, news, patience)
            if site.party == site.active or not said.get("error") or news() or not post.lost_to(site.active):
                break
            log.warning("%s: %s; it tries to come back", site.party, said["sentence"])
        traffic = {name: asdict(each) for name, each in post.traffic().items()}
        outcome = Outcome(party=site.party, job=self.job, gone=post.gone(), traffic=traffic, **said)
        with writing(site.folder / f"{self.job}.json") as beside:
            beside.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")
        return outcome

    def _once(self, order: Order, news: Callable[[], str], patience: Patience) -> tuple[Post, dict[str, Any]]:
        """Run the party's part once; a passive party that was lost on the way may try again."""
        site = self.site
        cells = Cells(self.core, self.job, site.active)
        post = Post(site.party, site.parties, self.job, cells, patience, news=news)
        cells.listen(post)
        post.start([site.active] if site.party != site.active else [])
        said: dict[str, Any] = {}
        try:
            config = Config.of(tomllib.loads(self.config), f"the settings of job {self.job}")
            said["result"] = _plain(asyncio.run(_run(site, config, post, order)))
        except Exception as error:
            said |= {"error": type(error).__name__, "sentence": str(error)}
            log.error("%s: %s", site.party, error, exc_info=not isinstance(error, AnypartyError))
        post.close(farewell(said.get("error", ""), news()))
        return post, said


async def _run(site: Site, config: Config, post: Post, order: Order) -> Any:
    return await site.load_part(order.work)(site, config, Posted(post), **order.asked)


def farewell(error: str, news: str = "") -> str:
    """Return what a party tells the others when it leaves: the kind of error at most, whose words may hold data.

    ``news`` says why it was told to stop, if it was: whatever error that led to is none.
    """
    if news:
        return news
    return f"it stopped with {error}, and its own site.log, in its kit, says why" if error else "its part is done"


def _plain(result: Any) -> Any:
    try:
        return json.loads(json.dumps(result))
    except (TypeError, ValueError):
        return None


class Goodbye:
    """A request to end this process (SIGTERM): while a part is played, it says goodbye first.

    FLARE makes a seat on the process's main thread, where alone signals can be had, and plays on any.
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
        """Let the body come to its end when the process is asked to, within seconds; then it ends."""
        self.playing = True
        try:
            yield
        finally:
            self.playing = False
            if self.why:
                time.sleep(FLUSH_S)
                self._at_once()


class Active(Controller):  # type: ignore[misc]
    """The active party's seat; the job lasts as long as its part."""

    def __init__(self, work: str, asked: dict[str, Any]) -> None:
        super().__init__()
        self.order, self.goodbye = Order(work, asked), Goodbye()
        self.ended: dict[str, str] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to undo."""

    def process_result_of_unknown_task(self, client: Any, task_name: str, client_task_id: str, result: Shareable,
                                       fl_ctx: FLContext) -> None:  # fmt: skip
        """Ignore what a party says after the job has stopped waiting for it."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Ask the others to take part, play one's own part, wait for theirs to end."""
        seat = Seat.at(fl_ctx)
        task = Task(name=TASK, data=Shareable(), result_received_cb=self._ended)
        others = len(seat.site.parties) - 1
        self.broadcast(task, fl_ctx, min_responses=others)
        with self.goodbye.softly():
            outcome = seat.play(self.order, lambda: ENDED if abort_signal.triggered else self.goodbye.why)
        end = time.monotonic() + seat.site.patience.flush_s
        lost = {name for name, why in outcome.gone.items() if not why.startswith("it left") or AWAY in why}
        while len(self.ended.keys() | lost) < others and time.monotonic() < end and not abort_signal.triggered:
            time.sleep(0.1)
        self.cancel_task(task, fl_ctx=fl_ctx)
        if outcome.error:
            raise RunError(f"{outcome.error}: {outcome.sentence}")

    def _ended(self, client_task: ClientTask, fl_ctx: FLContext) -> None:  # noqa: ARG002
        self.ended[client_task.client.name] = str((client_task.result or {}).get("error", "no result"))


class Passive(Executor):  # type: ignore[misc]
    """A passive party's seat."""

    def __init__(self, work: str, asked: dict[str, Any]) -> None:
        super().__init__()
        self.order, self.goodbye = Order(work, asked), Goodbye()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:  # noqa: ARG002
        """Play the party's part; tell the server how it ended, by the error's kind alone: its words stay at home."""
        with self.goodbye.softly():
            outcome = Seat.at(fl_ctx).play(self.order, lambda: ENDED if abort_signal.triggered else self.goodbye.why)
        reply = make_reply("OK")
        reply["error"] = outcome.error
        return reply
