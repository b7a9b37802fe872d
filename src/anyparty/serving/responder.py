"""A party's side of a job that serves predictions, and the log of the messages that the party sends.

A passive party answers requests.  The active party predicts in its HTTP service, which is a process outside the job.
The active party's process in the job only relays messages between the service and the other parties (``ipc``).

``TrafficLog`` counts the messages of all jobs in a file of the party's folder, with these keys:

    party, began     the party's name and the time of the first entry
    ledger           the numbers of messages and bytes sent, as in a run's record

Two jobs may run at the same time in two processes.  Each process adds the messages that it sent since its last entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from anyparty.artifacts.run_folder import meanwhile
from anyparty.config import Config
from anyparty.core.seeds import Seeds
from anyparty.core.storage import read_json, write_json
from anyparty.core.types import Channel
from anyparty.deployment.site.policy import SiteSettings
from anyparty.errors import MessageError, ModelError, PartyLost, StorageError, remark
from anyparty.methods.method import Batch
from anyparty.serving.batch_executor import BatchExecutor
from anyparty.serving.ipc import relay
from anyparty.serving.loaded_party import LoadedParty, load_party
from anyparty.serving.serving_protocol import (
    HELLO,
    MESSAGES,
    RECEIVE_TIMEOUT_S,
    Multiplexer,
    RowRequest,
    hello,
    receive_request,
    routes_to,
)
from anyparty.training.callbacks import now
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Flow, Ledger, MeteredChannel, Tally

FILE_NAME = "served.json"
LOCK_TIMEOUT_S = 5.0  # seconds to wait for the file's lock while another process writes


@dataclass
class TrafficLog:
    """A counter of the messages that one process sends, which adds the counts to a file in the party's folder.

    Attributes:
        folder: the party's folder.
        party: the party's name.
        ledger: the messages that this process sent.

    """

    folder: Path
    party: str
    ledger: Ledger = field(default_factory=Ledger)
    _written: dict[Flow, Tally] = field(default_factory=dict)

    def write(self) -> None:
        """Add to the party's file the messages that were sent since the last call.

        Raises:
            StorageError: the file cannot be written, or another process holds the file's lock for too long.
        """
        new = self._unwritten()
        if not new.flows:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{FILE_NAME}.lock", timeout=LOCK_TIMEOUT_S):
                self._add(new)
        except (Timeout, OSError) as error:
            raise StorageError(f"{self.folder / FILE_NAME}: cannot be written ({error})") from None
        self._written = {flow: Tally(tally.messages, tally.bytes_sent) for flow, tally in self.ledger.flows.items()}

    def _unwritten(self) -> Ledger:
        new = Ledger()
        for flow, tally in self.ledger.flows.items():
            before = self._written.get(flow, Tally())
            if tally != before:
                new.flows[flow] = Tally(tally.messages - before.messages, tally.bytes_sent - before.bytes_sent)
        return new

    def _add(self, new: Ledger) -> None:
        path = self.folder / FILE_NAME
        old: dict[str, Any] = {}
        total = Ledger()
        if path.exists():
            try:
                old = read_json(path)
                if not isinstance(old["ledger"], list):
                    raise TypeError("the ledger is not a list of rows")
                total = Ledger.of(old["ledger"])
            except (ModelError, KeyError, TypeError, ValueError):
                aside = path.with_suffix(f".{now().replace(':', '')}.json")
                path.replace(aside)
                remark(f"{path}: not readable as a log of what was sent; it is renamed to {aside.name}, and a new one "
                       f"begins")  # fmt: skip
                old, total = {}, Ledger()
        total.merge(new)
        write_json(path, {"party": self.party, "began": old.get("began", now()), "ledger": total.rows()})


HOST_SHARE = 0.7  # share of a request's time budget that a passive host of heads waits for other parties
MAX_REQUESTS = 256  # maximum number of concurrent requests, and of refused requests per job
log = logging.getLogger(__name__)


async def serve_at_site(site: SiteSettings, config: Config, net: Channel, *, session: str) -> dict[str, Any]:
    """Take part in a serving job as one party, until the job ends.

    Args:
        site: the party's own settings.
        config: settings that the job carries.
        net: the channel to the other parties.
        session: identifies the job to the active party's service.

    Returns:
        For a passive party, the number of requests, the number of refused requests, and the ledger of sent messages.
        For the active party, the number of messages that were relayed to the other parties.

    Raises:
        ModelError: the party has no trained model, or its table is not the one that was aligned.
        ConfigError: the active party runs no service.
        PartyLost: the active party is gone.

    """
    if net.me == site.active:
        return await relay(site.folder, net, session, receive_timeout_s=receive_timeout_s(site))
    party, table, alignment = await asyncio.to_thread(load_party, site, config)
    if not alignment.fits(table):
        raise ModelError(f"party {site.party!r}: {table.source} is not the table that was aligned (a row was changed "
                         f"or removed); restore that table, or train again")  # fmt: skip
    traffic = TrafficLog(site.folder, net.me)
    async with meanwhile(traffic.write):
        timeout_s = receive_timeout_s(site)
        return await Responder(party, net, receive_timeout_s=timeout_s, ledger=traffic.ledger).run()


def receive_timeout_s(site: SiteSettings) -> float:
    """Return the time in seconds after which a receive is restarted.

    The transport gives up on a party that sends nothing for ``message_s``. The returned time is shorter, so that a
    party is not lost only because there is no request for it. If possible, the returned time exceeds ``join_s`` and
    ``silent_s``, which are measured again in every receive.
    """
    patience = getattr(site, "patience", None)
    if patience is None:
        return RECEIVE_TIMEOUT_S
    message_s: float = patience.message_s
    gone_s: float = max(patience.join_s, patience.silent_s)
    return min(max(message_s / 3, 1.5 * gone_s), 2 * message_s / 3)


class Responder:
    """A passive party that runs its side of the method's ``predict`` for each request of the active party."""

    def __init__(
        self, party: LoadedParty, channel: Channel, *, receive_timeout_s: float = RECEIVE_TIMEOUT_S,
        ledger: Ledger | None = None,
    ) -> None:  # fmt: skip
        """Store the arguments; ``run`` answers requests.  ``ledger`` counts the messages that this party sends."""
        self.party, self.ledger = party, Ledger() if ledger is None else ledger
        self.receive_timeout_s = receive_timeout_s
        counted = MeteredChannel(channel, self.ledger)
        self.control = ContractChannel(counted, party.roster, MESSAGES)
        routes = routes_to(channel.me, party.roster, party.method.can.messages)
        self.multiplexer = Multiplexer(counted, routes, keep_early=True, receive_timeout_s=receive_timeout_s)
        self.requests = self.refused = 0
        self.executor = BatchExecutor()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        """Answer requests until the active party ends the job; return the counts of requests and of sent messages.

        Raises:
            PartyLost: the active party is gone.
        """
        self.party.state.train(False)
        await self.control.send(self.party.roster.active, HELLO, hello(self.party.hashes))
        reader = asyncio.create_task(self.multiplexer.run())
        try:
            while (request := await self._next_request()) is not None:
                self._start(request)
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(reader, *self._tasks, return_exceptions=True)
        return {"requests": self.requests, "refused": self.refused, "ledger": self.ledger.rows()}

    async def _next_request(self) -> RowRequest | None:
        while True:
            try:
                async with asyncio.timeout(self.receive_timeout_s):
                    return await receive_request(self.control, self.party.roster, len(self.party.position))
            except TimeoutError:
                continue
            except MessageError as error:
                self.refused += 1
                log.warning("%s: refused: %s", self.party.me, error)
                if self.refused > MAX_REQUESTS:
                    raise PartyLost(
                        self.party.roster.active, f"too much of what it sent was refused: {error}"
                    ) from None

    def _start(self, request: RowRequest) -> None:
        if len(self._tasks) >= MAX_REQUESTS:
            return  # drop the request, because it would miss its deadline
        self.requests += 1
        task = asyncio.create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: RowRequest) -> None:
        party, B = self.party, len(request.rows)
        deadline = asyncio.get_running_loop().time() + HOST_SHARE * request.within_s
        channel = self.multiplexer.open(request.number, deadline, request.within_s)
        # The multiplexer has already checked the bounds on numbers.
        guarded = ContractChannel(channel, party.roster, party.method.can.messages, bounds=None)
        observed = request.observed
        if observed is None and party.me in party.roster.labelers:
            observed = torch.zeros(B, party.roster.K, dtype=torch.bool)
        rows = party.rows(party.own_rows(request.rows), observed)
        batch = Batch(torch.arange(B), Seeds(party.summary.seed))
        try:
            with contextlib.suppress(PartyLost):
                await self.executor.run(
                    lambda way: party.method.predict(way, party.state, rows, batch, request.allowed), guarded, B
                )
        except Exception:
            log.exception("%s: request %d could not be answered", party.me, request.number)
        finally:
            self.multiplexer.end(request.number)
