"""The active party's connections to the other parties over one channel: which are connected, and requests to them.

After a party has missed the deadlines of several requests in a row, a circuit breaker stops requests from waiting for
this party.  A party that hangs therefore delays only a few requests.  The active party sends probes to the party that
hangs, until this party answers a probe in time.  A probe is a request whose answer no prediction waits for.
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
from anyparty.serving.serving_protocol import (
    MESSAGES,
    RECEIVE_TIMEOUT_S,
    Multiplexer,
    RowRequest,
    receive_hello,
    routes_to,
    send_end,
    send_request,
)
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel

NOT_CONNECTED = "it is not connected"
REJOIN_DELAY_S = 0.05  # time for pending ``recv`` calls to end after the party's former process is gone


class PeerGroup:
    """The group of all parties except the active one, in one serving job or in one process.

    Attributes:
        ready: the parties that serve with the active party's model and alignment.
        refused: for each refused party, the reason why its hello message was refused.
        multiplexer: distributes the other parties' messages.
        began: the time when the group was created, as ``time.monotonic`` returned it.

    """

    def __init__(
        self, party: LoadedParty, channel: Channel, ledger: Ledger, on_message: Callable[[str, int], None], *,
        receive_timeout_s: float = RECEIVE_TIMEOUT_S,
    ) -> None:  # fmt: skip
        """Store the arguments; ``run`` starts to read messages.

        Args:
            party: the active party.
            channel: the active party's channel.
            ledger: counts the messages that the active party sends.
            on_message: function that is called for each message with the sender and the number of the request.
            receive_timeout_s: time in seconds after which a receive is restarted.

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
        """All parties except the active one."""
        return [name for name in self.party.roster.names if name != self.party.me]

    @property
    def connected(self) -> set[str]:
        """The parties to which requests can be sent now."""
        return self.ready - self.multiplexer.lost.keys()

    @property
    def settled(self) -> set[str]:
        """The parties that have sent their hello message, or are lost and will not send it."""
        return self.ready | self.refused.keys() | self.multiplexer.lost.keys()

    @property
    def unfit(self) -> set[str]:
        """The parties that could not serve: their hello message was refused, or they were lost before they sent it."""
        return self.refused.keys() | (self.multiplexer.lost.keys() - self.ready)

    def unavailable(self, party: str) -> str:
        """Return the reason why no request can be sent to a party; empty if requests can be sent."""
        if party in self.refused:
            return self.refused[party]
        if party in self.multiplexer.lost:
            return self.multiplexer.lost[party]
        return "" if party in self.ready else NOT_CONNECTED

    async def run(self) -> None:
        """Wait for the hello message of each party, and read all other messages, until cancelled."""
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
        """Send a request to each of the given parties."""
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
    """A request to a party; no prediction waits for the answer. An answer after the time ``until`` is late."""

    number: int
    until: float


@dataclass
class CircuitBreaker:
    """A counter of consecutive misses by party; a miss is a request that the party did not answer in time.

    Times are in seconds, and all calls must use the same clock.

    Attributes:
        after: number of consecutive misses after which requests stop waiting for the party.
        every_s: shortest time between two probes of a party, in seconds.
        misses: number of consecutive misses by party.

    """

    after: int = 3
    every_s: float = 1.0
    misses: Counter[str] = field(default_factory=Counter)
    _probes: dict[str, Probe] = field(default_factory=dict)
    _next: dict[str, float] = field(default_factory=dict)

    def waits_for(self, party: str) -> bool:
        """Return True if requests wait for the answer of a party."""
        return self.misses[party] < self.after

    def reason(self, party: str) -> str:
        """Return a sentence that explains why requests do not wait for a party."""
        return (f"it missed its last {self.misses[party]} requests; it is asked in the background, and takes part "
                f"again once it answers in time")  # fmt: skip

    def probe_due(self, party: str, now: float) -> bool:
        """Return True if a party may be probed again, because its last probe was long enough ago."""
        return now >= self._next.get(party, 0.0)

    def probe(self, party: str, number: int, now: float, until: float) -> None:
        """Record that request ``number`` was sent to a party as a probe; an answer after ``until`` is late."""
        self._probes[party] = Probe(number, until)
        self._next[party] = max(now + self.every_s, until)

    def message_arrived(self, party: str, number: int, now: float) -> None:
        """Record a message of request ``number``; if the message answers a probe in time, wait for the party again."""
        probe = self._probes.get(party)
        if probe is not None and probe.number == number and now <= probe.until:
            del self._probes[party]
            self.misses[party] = self.after - 1  # after one more miss, requests do not wait for the party

    def answered(self, party: str) -> None:
        """Record that a party answered in time."""
        self.misses[party] = 0

    def missed(self, party: str) -> None:
        """Record that a party missed a deadline."""
        self.misses[party] += 1

    def reset(self, party: str) -> None:
        """Forget the misses and probes of a party, because a new process now answers for the party."""
        self.misses[party] = 0
        self._probes.pop(party, None)
        self._next.pop(party, None)
