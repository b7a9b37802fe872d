"""Requests on lanes: every message carries its request's number, every request has a deadline, many are open at once.

    lanes      reads all that comes for one party, and gives each message to the request that it belongs to
    Request    one request's channel: what a method's ``predict`` speaks over

A message whose request has ended is late: it is counted and forgotten, and disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyparty.errors import MessageError, PartyLost, RunError
from anyparty.terms import Channel, Declared, Expect, Roster, Tensors, check
from anyparty.wire.bounds import Bounds
from anyparty.wire.guard import roles

NUMBER = "request"
MOST_WAITING = 8  # messages of one lane that one request may hold
MOST_EARLY = 256  # messages of requests that this party has not heard of yet
RENEW_S = 600.0  # a lane on which nothing came for so long is waited for anew: carriers give up on long silence

BUSY_S = 0.02  # a deadline that is heard of so much later was heard of by a loop that had other work
TURNS = 16  # of the loop, from a socket to a request's inbox

Lane = tuple[str, str]  # sender, tag


def lanes_to(me: str, roster: Roster, declared: Iterable[Declared]) -> list[Lane]:
    """Return the lanes on which a party may be sent something.

    >>> from anyparty.terms import Party
    >>> both = Roster((Party(name="bank", labels=True), Party(name="shop")), "bank")
    >>> lanes_to("bank", both, [Declared(tag="embedding", frm="block", to="host", holds="", learns="")])
    [('shop', 'embedding')]
    """
    mine = roles(roster, me)
    others = [(name, roles(roster, name)) for name in roster.names if name != me]
    return sorted({(name, each.tag) for each in declared if each.to in mine for name, theirs in others
                   if each.frm in theirs})  # fmt: skip


@dataclass
class Lanes:
    """All lanes that lead to one party.

    Attributes:
        net: what carries them.
        lanes: whose, and which tags.
        early: whether others may be ahead: messages of requests that are still to come here are kept for them.
        heard: told of every numbered message, (sender, number).
        renew_s: see ``RENEW_S``.
        gone: the parties that are lost for good, and why.
        refused: by sender, messages without a number.
        late: by sender, messages of requests that had ended.
        bounds: on the numbers that others send, from all requests so far.

    """

    net: Channel
    lanes: Iterable[Lane]
    early: bool = False
    heard: Callable[[str, int], None] = lambda party, number: None  # noqa: ARG005
    renew_s: float = RENEW_S
    gone: dict[str, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    bounds: Bounds = field(default_factory=Bounds)
    _group: asyncio.TaskGroup | None = None
    _open: dict[int, Request] = field(default_factory=dict)
    _highest: int = -1
    _ahead: deque[tuple[int, Lane, dict[str, Tensor]]] = field(default_factory=lambda: deque(maxlen=MOST_EARLY))

    @property
    def busy(self) -> bool:
        """Whether a request is on its way."""
        return bool(self._open)

    async def run(self) -> None:
        """Read all lanes, until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for frm, tag in self.lanes:
                self._group.create_task(self._read(frm, tag))
            await asyncio.Event().wait()

    def again(self, party: str) -> None:
        """Read the lanes of a party that was lost and is there again."""
        self.gone.pop(party, None)
        assert self._group is not None
        for frm, tag in self.lanes:
            if frm == party:
                self._group.create_task(self._read(frm, tag))

    def open(
        self, number: int, deadline: float, budget_s: float = 0.0, absent: Mapping[str, str] | None = None,
        unheard: Collection[str] = (),
    ) -> Request:  # fmt: skip
        """Begin a request.

        Args:
            number: of the request.
            deadline: until when others are waited for, in seconds of the loop's clock.
            budget_s: how long that is, for sentences.
            absent: those that nobody waits for, and why.
            unheard: those of them that are not heard either, should they answer at once: other hosts do without them.

        """
        request = Request(self, number, deadline, budget_s, {**(absent or {}), **self.gone}, frozenset(unheard))
        self._open[number] = request
        self._highest = max(self._highest, number)
        ahead, self._ahead = self._ahead, deque(maxlen=MOST_EARLY)
        for item in ahead:
            if item[0] == number:
                request.put(item[1], item[2])
            elif item[0] > number:
                self._ahead.append(item)
        return request

    def end(self, number: int) -> None:
        """Forget a request: what still comes for it is late."""
        self._open.pop(number, None)

    def lose(self, party: str, why: str) -> None:
        """Give a party up: whoever waits for it hears so."""
        if party not in self.gone:
            self.gone[party] = why
            for request in self._open.values():
                request.lose(party, why)

    async def _read(self, frm: str, tag: str) -> None:
        while True:
            try:
                async with asyncio.timeout(self.renew_s):  # wait_for may swallow that its task is cancelled
                    tensors = await self.net.recv(frm, tag, {})
            except TimeoutError:
                continue
            except PartyLost as error:
                self.lose(frm, str(error).removeprefix(f"party {frm!r} is gone: "))
                return
            except RunError as error:
                self.lose(frm, f"what it sent was refused: {error}")
                return
            self._file((frm, tag), tensors)

    def _file(self, lane: Lane, tensors: dict[str, Tensor]) -> None:
        number = number_of(tensors)
        if number is None:
            self.refused[lane[0]] += 1
            return
        self.heard(lane[0], number)
        if number in self._open:
            self._open[number].put(lane, tensors)
        elif self.early and number > self._highest:
            self._ahead.append((number, lane, tensors))
        else:
            self.late[lane[0]] += 1


def number_of(tensors: dict[str, Tensor]) -> int | None:
    """Take the request's number out of a message; ``None`` where there is none."""
    number = tensors.pop(NUMBER, None)
    if number is None or number.dtype != torch.int64 or number.shape != (1,):
        return None
    return int(number)


@dataclass
class Request:
    """One request's channel.

    ``recv`` raises ``PartyLost`` for whoever is absent, leaves, sends what is not expected, or misses the deadline;
    ``silent`` keeps why, ``late`` who missed it, ``came`` who sent anything.
    """

    lanes: Lanes
    number: int
    deadline: float
    budget_s: float
    absent: dict[str, str] = field(default_factory=dict)
    unheard: frozenset[str] = frozenset()
    silent: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    came: set[str] = field(default_factory=set)
    _inbox: dict[Lane, deque[dict[str, Tensor]]] = field(default_factory=lambda: defaultdict(deque))
    _waiting: dict[Lane, asyncio.Event] = field(default_factory=dict)

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""
        return self.lanes.net.me

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send with the request's number."""
        assert NUMBER not in tensors, f"{NUMBER!r} names the request"
        await self.lanes.net.send(to, tag, {**tensors, NUMBER: torch.tensor([self.number])})

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        """Wait for the request's next message of a lane, at most until the deadline."""
        try:
            tensors = await self._next((frm, tag))
            what = f"message {tag!r} from {frm!r} to {self.me!r}"
            check(tensors, expect, what)
            extreme = self.lanes.bounds.check(frm, tag, tensors, expect, training=False)
            if extreme is not None:
                raise MessageError(f"{what}: {extreme}")
        except MessageError as error:
            self.silent[frm] = f"what it sent was refused: {error}"
        except PartyLost as error:
            self.silent[frm] = str(error).removeprefix(f"party {frm!r} is gone: ")
        else:
            return tensors
        raise PartyLost(frm, self.silent[frm])

    async def close(self) -> None:
        """Nothing to do: the lanes stay."""

    def put(self, lane: Lane, tensors: dict[str, Tensor]) -> None:
        """Take a message."""
        self.came.add(lane[0])
        if len(self._inbox[lane]) < MOST_WAITING:
            self._inbox[lane].append(tensors)
        self._wake(lane)

    def lose(self, party: str, why: str) -> None:
        """Let whoever waits for a party know that it is gone."""
        self.absent.setdefault(party, why)
        for lane in [lane for lane in self._waiting if lane[0] == party]:
            self._wake(lane)

    def _wake(self, lane: Lane) -> None:
        if lane in self._waiting:
            self._waiting[lane].set()

    async def _next(self, lane: Lane) -> dict[str, Tensor]:
        frm, queue = lane[0], self._inbox[lane]
        while not queue or frm in self.unheard:
            if frm in self.absent:
                raise PartyLost(frm, self.absent[frm])
            event = self._waiting[lane] = asyncio.Event()
            try:
                async with asyncio.timeout_at(self.deadline):
                    await event.wait()
            except TimeoutError:
                if await self._came_meanwhile(queue):
                    break
                self.late.add(frm)
                raise PartyLost(frm, f"it did not answer within {1e3 * self.budget_s:.0f} ms") from None
            finally:
                del self._waiting[lane]
        return queue.popleft()

    async def _came_meanwhile(self, queue: Sequence[object]) -> bool:
        """Say whether a message is there at the deadline.

        A loop that was busy hears of its deadline too late, and before it has read what came in time: that it reads
        first, so that no party is blamed for this one's work.
        """
        loop = asyncio.get_running_loop()
        for _ in range(TURNS if loop.time() - self.deadline > BUSY_S else 0):
            if queue:
                break
            await asyncio.sleep(0)
        return bool(queue)
