"""The active party's view of the other parties on one channel: which are connected, and requests to them.

A circuit breaker for each party stops requests to a party that missed several requests in a row. A party that hangs
delays only a few requests. The party is probed in the background until it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anyparty.core.types import Channel
from anyparty.errors import MessageError, PartyLost
from anyparty.serving.loaded_party import LoadedParty
from anyparty.serving.multiplexer import RECEIVE_TIMEOUT_S, Multiplexer, routes_to
from anyparty.serving.serving_protocol import MESSAGES, RowRequest, receive_hello, send_end, send_request
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel

NOT_CONNECTED = "it is not connected"
REJOIN_DELAY_S = 0.05  # lets all pending receives notice that the party's former process is gone


class PeerGroup:
    """The other parties of one job, or of one process.

    Attributes:
        ready: the parties that serve with the same model and alignment.
        refused: by party, the reason why its hello message was refused.
        multiplexer: distributes the other parties' messages.
        began: when the group was created, by ``time.monotonic``.

    """

    def __init__(
        self, party: LoadedParty, channel: Channel, ledger: Ledger, on_message: Callable[[str, int], None], *,
        receive_timeout_s: float = RECEIVE_TIMEOUT_S,
    ) -> None:  # fmt: skip
        """Prepare the group; ``run`` reads messages.

        Args:
            party: the active party.
            channel: the active party's channel.
            ledger: counts what the active party sends.
            on_message: callback for each message, with (party, number of its request).
            receive_timeout_s: see ``multiplexer.RECEIVE_TIMEOUT_S``.

        """
        self.party, self.channel, self.began = party, channel, time.monotonic()
        self.ready: set[str] = set()
        self.refused: dict[str, str] = {}
        self._receive_timeout_s = receive_timeout_s
        self._tasks: asyncio.TaskGroup | None = None
        counted = MeteredChannel(channel, ledger)
        self._control = ContractChannel(counted, party.roster, MESSAGES)
        routes = routes_to(channel.me, party.roster, party.method.can.messages)
        self.multiplexer = Multiplexer(counted, routes, on_message=on_message, receive_timeout_s=receive_timeout_s)

    @property
    def others(self) -> list[str]:
        """All other parties."""
        return [name for name in self.party.roster.names if name != self.party.me]

    @property
    def connected(self) -> set[str]:
        """The parties that can be asked now."""
        return self.ready - self.multiplexer.lost.keys()

    @property
    def settled(self) -> set[str]:
        """The parties that have sent their hello message, or will not send it."""
        return self.ready | self.refused.keys() | self.multiplexer.lost.keys()

    @property
    def unfit(self) -> set[str]:
        """The parties that cannot serve now: those refused, and those lost before their hello message."""
        return self.refused.keys() | (self.multiplexer.lost.keys() - self.ready)

    def unavailable(self, party: str) -> str:
        """Return the reason why a party cannot be asked; empty if the party can be asked."""
        if party in self.refused:
            return self.refused[party]
        if party in self.multiplexer.lost:
            return self.multiplexer.lost[party]
        return "" if party in self.ready else NOT_CONNECTED

    async def run(self) -> None:
        """Read messages until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            for name in self.others:
                self._tasks.create_task(self._await_hello(name))
            self._tasks.create_task(self.multiplexer.run())

    def rejoin(self, party: str) -> None:
        """Reconnect a party whose new process has joined."""
        assert self._tasks is not None
        self._tasks.create_task(self._rejoin(party))

    async def _rejoin(self, party: str) -> None:
        self.ready.discard(party)
        self.refused.pop(party, None)
        await asyncio.sleep(REJOIN_DELAY_S)
        self.multiplexer.resume(party)
        await self._await_hello(party)

    async def ask(self, request: RowRequest, parties: Sequence[str]) -> None:
        """Send a request to these parties."""
        for name in parties:
            await send_request(self._control, name, self.party.roster, request)

    async def end(self) -> None:
        """Notify all parties that no further request follows."""
        for name in self.others:
            with contextlib.suppress(PartyLost):
                await send_end(self._control, name, self.party.roster)

    async def _await_hello(self, name: str) -> None:
        while True:
            try:
                async with asyncio.timeout(self._receive_timeout_s):
                    differing = await receive_hello(self._control, name, self.party.expected_hashes(name))
                break
            except TimeoutError:
                continue
            except MessageError as error:
                self.refused[name] = f"what it sent was refused: {error}"
                return
            except PartyLost as error:
                self.multiplexer.lose(name, error.why)
                return
        if differing:
            verb = "does" if len(differing) == 1 else "do"
            self.refused[name] = f"its {' and '.join(differing)} {verb} not fit what {self.party.me!r} serves"
        else:
            self.ready.add(name)


@dataclass(frozen=True)
class Probe:
    """A background request to a party; an answer after ``until`` is late."""

    number: int
    until: float


@dataclass
class CircuitBreaker:
    """Count consecutive misses by party.  Times are in seconds, and all calls must use the same clock.

    Attributes:
        after: number of consecutive misses after which requests stop waiting for the party.
        every_s: pause between two probes, in seconds.
        misses: consecutive misses by party.

    """

    after: int = 3
    every_s: float = 1.0
    misses: Counter[str] = field(default_factory=Counter)
    _probes: dict[str, Probe] = field(default_factory=dict)
    _next: dict[str, float] = field(default_factory=dict)

    def waits_for(self, party: str) -> bool:
        """Check whether requests wait for a party."""
        return self.misses[party] < self.after

    def reason(self, party: str) -> str:
        """Explain why requests do not wait for a party."""
        return (f"it missed its last {self.misses[party]} requests; it is asked in the background, and takes part "
                f"again once it answers in time")  # fmt: skip

    def probe_due(self, party: str, now: float) -> bool:
        """Check whether a party can be probed again."""
        return now >= self._next.get(party, 0.0)

    def probe(self, party: str, number: int, now: float, until: float) -> None:
        """Record a probe."""
        self._probes[party] = Probe(number, until)
        self._next[party] = max(now + self.every_s, until)

    def message_arrived(self, party: str, number: int, now: float) -> None:
        """Record a message.  If the message answers a probe in time, the breaker closes."""
        probe = self._probes.get(party)
        if probe is not None and probe.number == number and now <= probe.until:
            del self._probes[party]
            self.misses[party] = self.after - 1  # one more miss opens the breaker again

    def answered(self, party: str) -> None:
        """Record that a party answered in time."""
        self.misses[party] = 0

    def missed(self, party: str) -> None:
        """Record that a party missed a deadline."""
        self.misses[party] += 1

    def reset(self, party: str) -> None:
        """Forget a party's misses, because a new process now answers for it."""
        self.misses[party] = 0
        self._probes.pop(party, None)
        self._next.pop(party, None)
