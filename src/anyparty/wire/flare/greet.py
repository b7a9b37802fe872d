"""What a site says on its terminal about who is connected; and a party that comes twice is not let in.

These are components of FLARE's own processes, named in every kit's ``local/resources.json``.  What they print is what
``foreground`` shows: lines with a mark, all else goes to the kit's ``site.log``.
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

from anyparty.storage import writing
from anyparty.wire.flare.answers import answer_jobs_alone, leave_out_looks

MARK = "anyparty> "
LONG_AGO = float("-inf")
CLOCK, CLOCKS = "anyparty_clock", "clocks.json"  # in a heartbeat; in the kit of whoever keeps the server
TOLD_S = 60.0  # apart, from which a clock is worth a line
TWICE = "is connected already, from another process"
CONNECTED = "is connected to"

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_component import FLComponent
    from nvflare.apis.fl_constant import RunProcessKey
    from nvflare.apis.fl_exception import NotAuthenticated
    from nvflare.fuel.f3.cellnet.fqcn import FQCN
except ImportError:  # an extra: without it nobody is greeted, and reading this file does no harm
    FLComponent = object

EVICTED = re.compile(r"is evicted for \S+ from endpoint (?P<name>\S+)")
EVICTION_S = 30.0  # between a second connection of one name and its registration, at most, on a slow machine
LOOK_S, AWAY_S = 5.0, 15.0  # between looks at connections; closed for so long, one is not about to come back
CLOSED_S = 60.0  # for so long nobody else is let in by that name
log = logging.getLogger(__name__)


def say(sentence: str) -> None:
    """Print a line for the terminal of ``anyparty party start``, whole whoever else prints just then."""
    print(f"{MARK}{sentence}\n", end="", flush=True)  # a line's end that print adds goes apart: others may come between


class Evictions(logging.Handler):
    """Listens to FLARE's log for connections that were closed because another of the same name was opened."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.at: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep when it happened to whom."""
        if found := EVICTED.search(record.getMessage()):
            self.at[found["name"]] = time.monotonic()


class Doorman(FLComponent):  # type: ignore[misc]
    """At the server: says who comes and goes, and turns away a second site of a party whose first is alive.

    It also keeps how far the others' clocks are from this machine's, in the kit's clocks.json, for ``anyparty doctor``.

    FLARE closes the first one's connection for the second's, the first comes back, and so on for ever.  So whoever
    registers right after that is refused, for a minute.  A party whose site was ended and started anew has one
    connection and is let in at once; one whose machine lost its power, at the latest after that minute.
    """

    def __init__(self, parties: int, kit: str = ".") -> None:
        super().__init__()
        self.parties, self.closed, self.evictions = parties, dict[str, float](), Evictions()
        self.told, self.away = set[str](), dict[str, float]()  # whose coming was told; closed connections, since when
        self.clocks, self.kept = dict[str, dict[str, Any]](), Path(kit) / CLOCKS
        self.keeping = threading.Lock()  # FLARE hands over heartbeats that come at once in threads of their own

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Follow who comes and goes."""
        if event_type == EventType.SYSTEM_START:
            leave_out_looks()
            connections = logging.getLogger("nvflare.fuel.f3.sfm.sfm_endpoint")
            connections.setLevel(logging.INFO)
            connections.propagate = False
            connections.addHandler(self.evictions)
            say(f"ready; waiting for {self.parties - 1} other parties")
            if fl_ctx is not None:
                engine = fl_ctx.get_engine()
                engine.job_runner.update_abnormal_finished_jobs([], fl_ctx)  # what a server before left as running
                threading.Thread(target=self._look_often, args=(engine,), daemon=True).start()
        elif event_type == EventType.CLIENT_REGISTER_RECEIVED:
            self._refuse_twice(fl_ctx)
        elif event_type == EventType.CLIENT_HEARTBEAT_RECEIVED:
            self._compare_clocks(fl_ctx)
        elif event_type == EventType.CLIENT_HEARTBEAT_PROCESSED:
            if _peer(fl_ctx) not in self.told:  # registered with a server that was here before
                self._tell(fl_ctx, left=False)
        elif event_type in {EventType.CLIENT_REGISTER_PROCESSED, EventType.CLIENT_QUIT}:
            self._tell(fl_ctx, left=event_type == EventType.CLIENT_QUIT)

    def _refuse_twice(self, fl_ctx: Any) -> None:
        name, now = _peer(fl_ctx), time.monotonic()
        if now - self.evictions.at.get(name, LONG_AGO) < EVICTION_S:
            self.closed[name] = now
        if now - self.closed.get(name, LONG_AGO) < CLOSED_S:
            say(f"{name} {TWICE}; a second one was turned away: the kit of {name} is in use twice")
            raise NotAuthenticated(f"{name} {TWICE}")  # FLARE's way to refuse a registration

    def _compare_clocks(self, fl_ctx: Any) -> None:
        name, peer, now = _peer(fl_ctx), fl_ctx.get_peer_context(), time.time()
        said = peer.get_prop(CLOCK) if peer else None
        if not isinstance(said, float):
            return
        behind, at = now - said, datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
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

    def _tell(self, fl_ctx: Any, *, left: bool) -> None:
        name, clients = _peer(fl_ctx), _clients(fl_ctx.get_engine())
        if left or name in clients:
            (self.told.discard if left else self.told.add)(name)
            self._say(name, "left" if left else "is connected", clients)

    def _say(self, name: str, what: str, there: Iterable[str]) -> None:
        names = sorted(there)
        say(f"{name} {what}; there are {len(names)} of {self.parties - 1} others: {', '.join(names)}")

    def _look_often(self, engine: Any) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                self.look(engine, time.monotonic())
            except Exception:  # FLARE's: one that is struck out may have left, or registered anew, in the meantime
                log.warning("who is connected could not be looked at; the next look follows", exc_info=True)

    def look(self, engine: Any, now: float) -> None:
        """Say whose connection has been closed for a while, and strike out who takes part in no job.

        FLARE waits ten minutes for heartbeats; until then one that was stopped would be listed, and asked to predict.
        One that comes back is listed again with its next heartbeat.
        """
        clients, cell = _clients(engine), engine.get_cell()
        closed = {name for name in clients if not cell.is_cell_connected(name)}
        self.away = {name: self.away.get(name, now) for name in closed}
        gone = {name for name, since in self.away.items() if now - since > AWAY_S}
        for name in sorted(gone & self.told):
            self.told.discard(name)
            self._say(name, "is gone, its connection is closed", clients.keys() - gone)
        works = {
            token for run in list(engine.run_processes.values()) for token in run.get(RunProcessKey.PARTICIPANTS) or ()
        }
        for name in gone:
            if clients[name].token not in works:
                engine.server.logout_client(clients[name].token)


class Visitor(FLComponent):  # type: ignore[misc]
    """At a client: says when the server has let it in, when it does not answer any more, and when it does again.

    With every heartbeat it says what its clock shows.  And where it is, requests that are no job's are not answered.
    """

    def __init__(self, party: str, place: str) -> None:
        super().__init__()
        answer_jobs_alone()
        self.party, self.place, self.asked, self.there = party, place, 0, False

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Follow the heartbeats.

        FLARE tells of one as done though no answer came in time, where the connection is known to be closed or not; if
        sending failed, the next question follows.
        """
        if event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self.asked = 0
            if fl_ctx.get_engine().get_cell().is_cell_connected(FQCN.ROOT_SERVER):
                if not self.there:
                    say(f"{self.party} {CONNECTED} {self.place}")
                self.there = True
            else:
                self._lost()
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            fl_ctx.set_prop(CLOCK, time.time(), private=False, sticky=False)
            self.asked += 1
            if self.asked == 2:
                self._lost()

    def _lost(self) -> None:
        if self.there:
            say(f"{self.place} does not answer; trying again until it does (Ctrl-C to stop)")
        self.there = False


def _peer(fl_ctx: Any) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer else ""


def _clients(engine: Any) -> dict[str, Any]:
    return {client.name: client for client in list(engine.client_manager.clients.values())}
