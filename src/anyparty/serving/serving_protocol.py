"""Messages of the prediction service, and many requests over one channel.

The messages, in addition to the method's own messages, are

active party                                every other connected party
  ◀── serve-hello: hashes ─────────────────   once, when a serving job begins
  ──── serve-ask: request number, rows ───▶   for every request
  ◀── the method's own messages ───────────   with the request number
  ──── serve-ask: END as request number ──▶   once, when the job ends

Each message carries the number of its request.

    Multiplexer      reads all messages for one party and passes each one to its request
    RequestChannel   the channel of one request, which a method's ``predict`` uses

A message whose request has ended is counted as late and dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyparty.core.types import Channel, MessageSpec, Roster, Tensors, TensorSpec, check
from anyparty.errors import MessageError, PartyLost, RunError
from anyparty.transport.contract import Bounds, roles

NUMBER_KEY = "request"  # name of the tensor that holds the number of the request
MAX_QUEUED = 8  # maximum number of unread messages of one request from one sender with one tag
MAX_EARLY = 256  # maximum number of stored messages for requests that are not open yet
RECEIVE_TIMEOUT_S = 600.0  # a call of ``recv`` is restarted after this time, in seconds

BUSY_LOOP_S = 0.02  # the event loop is busy if it notices a deadline later than this, in seconds
BUSY_LOOP_TURNS = 16  # after so many event-loop turns, a message that has reached the socket is in its queue

Route = tuple[str, str]  # (sender, tag)


def routes_to(me: str, roster: Roster, declared: Iterable[MessageSpec]) -> list[Route]:
    """List the routes (sender, tag) on which the party ``me`` may receive messages; ``declared`` describes them.

    >>> from anyparty.core.types import MessageSpec, Party
    >>> both = Roster((Party(name="bank", labels=True), Party(name="shop")), "bank")
    >>> routes_to("bank", both, [MessageSpec(tag="embedding", frm="block", to="host", holds="", learns="")])
    [('shop', 'embedding')]
    """
    receiver = roles(roster, me)
    senders = [(name, roles(roster, name)) for name in roster.names if name != me]
    return sorted({(name, message.tag) for message in declared if message.to in receiver for name, sender in senders
                   if message.frm in sender})  # fmt: skip


@dataclass
class Multiplexer:
    """A reader of all messages for one party, which passes each message to its request.

    Attributes:
        channel: the channel that all requests share.
        routes: the routes to read.
        keep_early: whether to store messages of requests that are not open yet.
        on_message: function that is called for each numbered message with (sender, number).
        receive_timeout_s: time in seconds after which a receive is restarted.
        lost: reason for each party that left.
        unnumbered: number of messages without a request number, by sender.
        late: number of messages of requests that had ended, by sender.
        bounds: limits on the values that other parties send, learned from all requests.

    """

    channel: Channel
    routes: Iterable[Route]
    keep_early: bool = False
    on_message: Callable[[str, int], None] = lambda party, number: None  # noqa: ARG005
    receive_timeout_s: float = RECEIVE_TIMEOUT_S
    lost: dict[str, str] = field(default_factory=dict)
    unnumbered: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    bounds: Bounds = field(default_factory=Bounds)
    _readers: asyncio.TaskGroup | None = None
    _open: dict[int, RequestChannel] = field(default_factory=dict)
    _highest: int = -1
    _early: deque[tuple[int, Route, dict[str, Tensor]]] = field(default_factory=lambda: deque(maxlen=MAX_EARLY))

    @property
    def busy(self) -> bool:
        """True if a request is open."""
        return bool(self._open)

    async def run(self) -> None:
        """Read the messages on all routes, and pass them to their requests, until cancelled."""
        async with asyncio.TaskGroup() as self._readers:
            for sender, tag in self.routes:
                self._readers.create_task(self._read(sender, tag))
            await asyncio.Event().wait()

    def resume(self, party: str) -> None:
        """Read messages of a party again after it has rejoined."""
        self.lost.pop(party, None)
        assert self._readers is not None
        for sender, tag in self.routes:
            if sender == party:
                self._readers.create_task(self._read(sender, tag))

    def open(
        self, number: int, deadline: float, budget_s: float = 0.0, absent: Mapping[str, str] | None = None,
        ignored: Collection[str] = (),
    ) -> RequestChannel:  # fmt: skip
        """Open a request, and return its channel.

        Args:
            number: the number of the request.
            deadline: when to stop waiting for other parties, in seconds of the event loop's clock.
            budget_s: the length of this wait in seconds, for error texts.
            absent: parties that the request does not wait for, with the reason.
            ignored: absent parties whose messages are not used even if they arrive, because the other hosts of heads
                do not use them.

        """
        request = RequestChannel(self, number, deadline, budget_s, {**(absent or {}), **self.lost}, frozenset(ignored))
        self._open[number] = request
        self._highest = max(self._highest, number)
        early, self._early = self._early, deque(maxlen=MAX_EARLY)
        for item in early:
            if item[0] == number:
                request.put(item[1], item[2])
            elif item[0] > number:
                self._early.append(item)
        return request

    def end(self, number: int) -> None:
        """End a request; its messages that arrive afterwards are late."""
        self._open.pop(number, None)

    def lose(self, party: str, reason: str) -> None:
        """Mark a party as lost and notify the open requests."""
        if party not in self.lost:
            self.lost[party] = reason
            for request in self._open.values():
                request.lose(party, reason)

    async def _read(self, sender: str, tag: str) -> None:
        while True:
            try:
                async with asyncio.timeout(self.receive_timeout_s):  # asyncio.wait_for can swallow a cancellation
                    tensors = await self.channel.recv(sender, tag, {})
            except TimeoutError:
                continue
            except PartyLost as error:
                self.lose(sender, error.why)
                return
            except RunError as error:
                self.lose(sender, f"what it sent was refused: {error}")
                return
            self._dispatch((sender, tag), tensors)

    def _dispatch(self, route: Route, tensors: dict[str, Tensor]) -> None:
        sender, number = route[0], take_number(tensors)
        if number is None:
            self.unnumbered[sender] += 1
            return
        self.on_message(sender, number)
        if number in self._open:
            self._open[number].put(route, tensors)
        elif self.keep_early and number > self._highest:
            self._early.append((number, route, tensors))
        else:
            self.late[sender] += 1


def take_number(tensors: dict[str, Tensor]) -> int | None:
    """Remove the request's number from a message, and return it; ``None`` if the number is missing or malformed."""
    number = tensors.pop(NUMBER_KEY, None)
    if number is None or number.dtype != torch.int64 or number.shape != (1,):
        return None
    return int(number)


@dataclass
class RequestChannel(Channel):
    """The channel of one request.

    ``recv`` raises ``PartyLost`` if the sender is absent, leaves, misses the deadline or sends an invalid message.
    ``Multiplexer.open`` describes ``number``, ``deadline``, ``budget_s``, ``absent`` and ``ignored``.

    Attributes:
        silent: reason for each party that did not answer.
        late: parties that missed the deadline.
        responded: parties that sent a message.

    """

    multiplexer: Multiplexer
    number: int
    deadline: float
    budget_s: float
    absent: dict[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    silent: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    responded: set[str] = field(default_factory=set)
    _queues: dict[Route, deque[dict[str, Tensor]]] = field(default_factory=lambda: defaultdict(deque))
    _waiting: dict[Route, asyncio.Event] = field(default_factory=dict)
    me: str = field(init=False)

    def __post_init__(self) -> None:
        self.me = self.multiplexer.channel.me

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send a message with the request's number."""
        assert NUMBER_KEY not in tensors, f"{NUMBER_KEY!r} is reserved for the request's number"
        await self.multiplexer.channel.send(to, tag, {**tensors, NUMBER_KEY: torch.tensor([self.number])})

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Return the next message with a tag from a party, if this message arrives before the deadline."""
        try:
            tensors = await self._next((frm, tag))
            message = f"message {tag!r} from {frm!r} to {self.me!r}"
            check(tensors, expect, message)
            extreme = self.multiplexer.bounds.check(frm, tag, tensors, expect, training=False)
            if extreme is not None:
                raise MessageError(f"{message}: {extreme}")
        except MessageError as error:
            self.silent[frm] = f"what it sent was refused: {error}"
        except PartyLost as error:
            self.silent[frm] = error.why
        else:
            return tensors
        raise PartyLost(frm, self.silent[frm])

    async def close(self) -> None:
        """Do nothing: the shared channel stays open."""

    def put(self, route: Route, tensors: dict[str, Tensor]) -> None:
        """Store a message that arrived on a route, and wake the coroutine that waits for it."""
        self.responded.add(route[0])
        if len(self._queues[route]) < MAX_QUEUED:
            self._queues[route].append(tensors)
        self._wake(route)

    def lose(self, party: str, reason: str) -> None:
        """Record that a party has left, and end the waits for its messages."""
        self.absent.setdefault(party, reason)
        for route in [route for route in self._waiting if route[0] == party]:
            self._wake(route)

    def _wake(self, route: Route) -> None:
        if route in self._waiting:
            self._waiting[route].set()

    async def _next(self, route: Route) -> dict[str, Tensor]:
        sender, queue = route[0], self._queues[route]
        while not queue or sender in self.ignored:
            if sender in self.absent:
                raise PartyLost(sender, self.absent[sender])
            event = self._waiting[route] = asyncio.Event()
            try:
                async with asyncio.timeout_at(self.deadline):
                    await event.wait()
            except TimeoutError:
                if await self._arrived_in_time(queue):
                    break
                self.late.add(sender)
                raise PartyLost(sender, f"it did not answer within {1e3 * self.budget_s:.0f} ms") from None
            finally:
                del self._waiting[route]
        return queue.popleft()

    async def _arrived_in_time(self, queue: Sequence[object]) -> bool:
        """Return True if ``queue`` has a message at the deadline.

        A busy event loop notices the deadline before it has read messages that arrived in time.  The loop therefore
        gets some turns to read these messages, so that their sender is not blamed for the delay.
        """
        loop = asyncio.get_running_loop()
        for _ in range(BUSY_LOOP_TURNS if loop.time() - self.deadline > BUSY_LOOP_S else 0):
            if queue:
                break
            await asyncio.sleep(0)
        return bool(queue)


HELLO, ASK, END = "serve-hello", "serve-ask", -1
MAX_ROWS = 4096  # maximum number of rows in one message; larger requests are sent in chunks, one after the other
NO_ROW = -1  # replaces the number of a row that is outside the alignment or that the receiver does not hold
MESSAGES = (
    MessageSpec(
        tag=HELLO,
        frm="passive",
        to="active",
        holds="hashes of the sender's alignment, model settings, weights and version of anyparty",
        learns="whether the sender can serve this model",
    ),
    MessageSpec(
        tag=ASK,
        frm="active",
        to="passive",
        holds="for one request: the request number, the indices of the requested rows (-1 for a row that the receiver "
        "lacks), the parties that may take part, and the time limit; for other label holders also which party "
        "holds which of these rows",
        learns="which of its own rows are requested, when, and how many other rows are requested (not which ones); "
        "other label holders also which parties hold each row",
        when="the prediction service runs",
    ),
)


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """One request, as a party receives it.

    Attributes:
        number: the request's number, which increases with each request.
        rows: [B] int64, the positions of the B requested rows in the alignment.  ``NO_ROW`` marks a row outside the
            alignment; in the message to a party, it also marks a row that this party does not hold.
        allowed: the parties whose blocks may take part.
        within_s: how long the active party waits, in seconds.
        observed: [B, K] bool, True if party k holds the row; only hosts of heads receive it.

    """

    number: int
    rows: Tensor
    allowed: tuple[str, ...]
    within_s: float
    observed: Tensor | None = None


async def send_request(channel: Channel, to: str, roster: Roster, request: RowRequest) -> None:
    """Send a request to a party; a label holder also receives ``observed``, because it may host heads."""
    observed = torch.empty(0, dtype=torch.uint8)
    if to in roster.labelers and request.observed is not None:
        observed = request.observed.flatten().byte()
    await channel.send(to, ASK, {
        NUMBER_KEY: torch.tensor([request.number]), "rows": _rows_of(to, request, roster), "observed": observed,
        "asked": torch.tensor([name in request.allowed for name in roster.blocks]),
        "within_s": torch.tensor([request.within_s], dtype=torch.float64),
    })  # fmt: skip


def _rows_of(party: str, request: RowRequest, roster: Roster) -> Tensor:
    """Return the request's row numbers [B], with ``NO_ROW`` for each row that the party does not hold."""
    if request.observed is None:
        return request.rows
    if party not in roster.blocks:
        return torch.full_like(request.rows, NO_ROW)
    return torch.where(request.observed[:, roster.blocks.index(party)], request.rows, NO_ROW)


async def send_end(channel: Channel, to: str, roster: Roster) -> None:
    """Notify a party that no further request follows."""
    end = RowRequest(number=END, rows=torch.empty(0, dtype=torch.int64), allowed=(), within_s=0.0)
    await send_request(channel, to, roster, end)


async def receive_request(channel: Channel, roster: Roster, n: int) -> RowRequest | None:
    """Wait for the next request; return ``None`` if no further request follows.

    Args:
        channel: the party's channel.
        roster: all parties.
        n: number of aligned rows.

    Raises:
        MessageError: the message is invalid or requests a row outside the alignment.

    """
    got = await channel.recv(
        roster.active,
        ASK,
        {
            NUMBER_KEY: TensorSpec((1,), torch.int64),
            "rows": TensorSpec((-1,), torch.int64),
            "observed": TensorSpec((-1,), torch.uint8),
            "asked": TensorSpec((roster.K,), torch.bool),
            "within_s": TensorSpec((1,), torch.float64),
        },
    )
    rows, number = got["rows"], int(got[NUMBER_KEY])
    if number == END:
        return None
    if len(rows) > MAX_ROWS or (rows < NO_ROW).any() or (rows >= n).any():
        raise MessageError(f"request {number} of {roster.active!r} asks for {len(rows)} rows; expected at most "
                           f"{MAX_ROWS}, each one of the {n} aligned ones")  # fmt: skip
    if len(got["observed"]) not in {0, len(rows) * roster.K}:
        raise MessageError(f"request {number} of {roster.active!r} has {len(got['observed'])} cells in 'observed'; "
                           f"expected {len(rows)} rows x {roster.K} parties")  # fmt: skip
    observed = got["observed"].bool().view(len(rows), roster.K) if len(got["observed"]) else None
    allowed = tuple(name for name, may in zip(roster.blocks, got["asked"].tolist(), strict=True) if may)
    return RowRequest(number=number, rows=rows, allowed=allowed, within_s=float(got["within_s"]), observed=observed)


def hello(hashes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Build the hello message, which is the first message of a party in a serving job, from the party's hashes."""
    return {"marks": torch.stack(list(hashes.values()))}


async def receive_hello(channel: Channel, frm: str, hashes: Mapping[str, Tensor]) -> Sequence[str]:
    """Wait for a party's hello message; return the names of the hashes that differ from the expected ``hashes``."""
    got = await channel.recv(frm, HELLO, {"marks": TensorSpec((len(hashes), 32), torch.uint8)})
    differs = (got["marks"] != torch.stack(list(hashes.values()))).any(dim=1).tolist()
    return [name for name, other in zip(hashes, differs, strict=True) if other]
