"""A party's part in a job of work "serve": at a passive party it answers, at the active one it relays.

The active party's predictions are made beside the HTTP service, a process of its own; its seat in the job only hands
messages on (``bridge``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import torch

from anyparty.config import Config
from anyparty.errors import MessageError, ModelError, PartyLost
from anyparty.methods.method import Batch
from anyparty.run.allowed import Site
from anyparty.run.meanwhile import meanwhile
from anyparty.seeds import Seeds
from anyparty.serve import ask as asking
from anyparty.serve.ask import Ask
from anyparty.serve.bridge import relay
from anyparty.serve.kept import Kept, open_kept
from anyparty.serve.lanes import RENEW_S, Lanes, lanes_to
from anyparty.serve.tab import Tab
from anyparty.serve.worker import Worker
from anyparty.terms import Channel
from anyparty.wire.guard import Guarded
from anyparty.wire.ledger import Counted, Ledger

SHARE = 0.7  # of the time there is, that a host which is not the active party waits for others
MOST_AT_ONCE = 256  # requests that a party works on
log = logging.getLogger(__name__)


async def serve_at_home(site: Site, config: Config, net: Channel, *, session: str) -> dict[str, Any]:
    """Play one party's part in a serving job; return what it sent and how much it answered.

    ``session`` is the word by which the active party's service knows the job.

    Raises:
        ModelError: nothing was trained here, or the party's table is not the one that was aligned.
        ConfigError: at the active party, no service runs beside its kit.
        PartyLost: the active party is gone.
    """
    if net.me == site.active:
        return await relay(site.folder, net, session, renew_s=renew_s(site))
    kept, table, alignment = await asyncio.to_thread(open_kept, site, config)
    if not alignment.fits(table):
        raise ModelError(f"party {site.party!r}: {table.source} is not the table that was aligned (a row was changed "
                         f"or taken out); put that one back, or train again")  # fmt: skip
    tab = Tab(site.folder, net.me)
    async with meanwhile(tab.write):
        return await Answering(kept, net, renew_s=renew_s(site), ledger=tab.ledger).run()


def renew_s(site: Site) -> float:
    """Return how long to wait on a lane before it is waited for anew.

    That is well within the carrier's own patience with a party that is alive and sends nothing, and beyond that with
    one that does not appear or falls silent: each wait counts from its beginning.
    """
    patience = getattr(site, "patience", None)
    if patience is None:
        return RENEW_S
    message_s: float = patience.message_s
    gone_s: float = max(patience.join_s, patience.silent_s)
    return min(max(message_s / 3, 1.5 * gone_s), 2 * message_s / 3)


class Answering:
    """A passive party at work: it takes requests, and plays its method's part in each."""

    def __init__(self, kept: Kept, net: Channel, *, renew_s: float = RENEW_S, ledger: Ledger | None = None) -> None:
        """Prepare; ``run`` begins.  What is sent is counted in ``ledger``."""
        self.kept, self.ledger, self.renew_s = kept, Ledger() if ledger is None else ledger, renew_s
        messages = kept.method.can.messages
        counted = Counted(net, self.ledger)
        self.net = Guarded(counted, kept.roster, asking.MESSAGES)
        self.lanes = Lanes(counted, lanes_to(net.me, kept.roster, messages), early=True, renew_s=renew_s)
        self.requests = self.refused = 0
        self.worker = Worker()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        """Answer until the active party ends it.

        Raises:
            PartyLost: the active party is gone.
        """
        self.kept.state.train(False)
        await self.net.send(self.kept.roster.active, asking.HELLO, asking.hello(self.kept.marks))
        reader = asyncio.create_task(self.lanes.run())
        try:
            while (ask := await self._next()) is not None:
                self._begin(ask)
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(reader, *self._tasks, return_exceptions=True)
        return {"requests": self.requests, "refused": self.refused, "ledger": self.ledger.rows()}

    async def _next(self) -> Ask | None:
        while True:
            try:
                async with asyncio.timeout(self.renew_s):
                    return await asking.receive(self.net, self.kept.roster, len(self.kept.position))
            except TimeoutError:
                continue
            except MessageError as error:
                self.refused += 1
                log.warning("%s: refused: %s", self.kept.me, error)
                if self.refused > MOST_AT_ONCE:
                    raise PartyLost(self.kept.roster.active, f"too much of what it sent was refused: {error}") from None

    def _begin(self, ask: Ask) -> None:
        if len(self._tasks) >= MOST_AT_ONCE:
            return  # nobody waits any more by the time that its turn would come
        self.requests += 1
        task = asyncio.create_task(self._answer(ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, ask: Ask) -> None:
        kept = self.kept
        deadline = asyncio.get_running_loop().time() + SHARE * ask.within_s
        request = self.lanes.open(ask.number, deadline, ask.within_s)
        net = Guarded(request, kept.roster, kept.method.can.messages, bounds=None)  # the lanes have some
        observed = ask.observed
        if observed is None and kept.me in kept.roster.labelers:
            observed = torch.zeros(len(ask.rows), kept.roster.K, dtype=torch.bool)
        B = len(ask.rows)
        rows, batch = kept.rows(kept.own(ask.rows), observed), Batch(torch.arange(B), Seeds(kept.about.seed))
        try:
            with contextlib.suppress(PartyLost):
                await self.worker.play(lambda way: kept.method.predict(way, kept.state, rows, batch, ask.asked), net, B)
        except Exception:
            log.exception("%s: request %d could not be answered", kept.me, ask.number)
        finally:
            self.lanes.end(ask.number)
