"""Collect small requests that arrive at about the same time, so that they are predicted together.

The requests that arrive in one pass of the event loop form a batch.  While ``MAX_OPEN`` batches are open, further
requests wait until one of these batches ends, but at most ``WAIT_SHARE`` of their budget and at most ``MAX_WAIT_S``.
Batches therefore become larger under load, and a party that hangs hardly delays other requests.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from anyparty.serving.batch_executor import INLINE_ROWS
from anyparty.serving.loaded_party import RequestedId

MAX_OPEN = 2
WAIT_SHARE, MAX_WAIT_S = 0.1, 0.02

T = TypeVar("T")


@dataclass(frozen=True)
class TimeBudget:
    """The time that a request waits in the service and for other parties.

    Attributes:
        seconds: the length of this time.
        arrived: when the request arrived, in the event loop's time.
        deadline: when the request stops waiting, in the event loop's time.

    """

    seconds: float
    arrived: float
    deadline: float


@dataclass(frozen=True, eq=False)
class PendingRequest(Generic[T]):
    """A request that waits for its predictions.

    Attributes:
        ids: the requested ids.
        allowed: the parties that may take part.
        budget: the time that the request waits.
        answer: the future that gets one prediction for each id.

    """

    ids: Sequence[RequestedId]
    allowed: tuple[str, ...]
    budget: TimeBudget
    answer: asyncio.Future[list[T]]

    def complete(self, predictions: list[T]) -> None:
        """Answer the request, unless it was cancelled."""
        if not self.answer.done():
            self.answer.set_result(predictions)

    def fail(self, error: Exception) -> None:
        """Raise an error in the coroutine that waits for the answer."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass
class RequestBatcher(Generic[T]):
    """A queue of requests, which ``work`` answers in batches of at most ``INLINE_ROWS`` ids.

    Attributes:
        work: answers a batch of requests that have the same parties and the same length of the budget.

    """

    work: Callable[[Sequence[PendingRequest[T]]], Coroutine[Any, Any, None]]
    _pending: deque[PendingRequest[T]] = field(default_factory=deque)
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _timer: asyncio.Handle | None = None

    async def predict(self, request: PendingRequest[T]) -> list[T]:
        """Return the predictions of a request, in the order of its ids."""
        if len(request.ids) >= INLINE_ROWS:  # the request is a batch by itself, and is cancelled with its caller
            await self.work([request])
        else:
            self._pending.append(request)
            self._flush_at(None)
        return await request.answer

    def _flush_at(self, when: float | None) -> None:
        """Call ``_flush`` at a time, or in the next pass of the event loop."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_soon(self._flush) if when is None else loop.call_at(when, self._flush)

    def _flush(self) -> None:
        """Start the batches of all pending requests, or wait because enough batches are open."""
        self._timer, now = None, asyncio.get_running_loop().time()
        if not self._pending:
            return
        if len(self._open) >= MAX_OPEN:
            until = min(
                each.budget.arrived + min(WAIT_SHARE * each.budget.seconds, MAX_WAIT_S) for each in self._pending
            )
            if now < until and sum(len(each.ids) for each in self._pending) < INLINE_ROWS:
                self._flush_at(until)
                return
        for batch in self._batches():
            task = asyncio.create_task(self._run(batch))
            self._open.add(task)
            task.add_done_callback(self._ended)

    def _batches(self) -> list[list[PendingRequest[T]]]:
        """Group the pending requests by parties and budget, and split groups of too many ids."""
        groups, full, ids = defaultdict[Any, list[PendingRequest[T]]](list), [], defaultdict[Any, int](int)
        while self._pending:
            request = self._pending.popleft()
            key = (request.allowed, request.budget.seconds)
            if ids[key] + len(request.ids) > INLINE_ROWS:
                full.append(groups.pop(key))
                ids[key] = 0
            groups[key].append(request)
            ids[key] += len(request.ids)
        return full + list(groups.values())

    async def _run(self, batch: Sequence[PendingRequest[T]]) -> None:
        try:
            await self.work(batch)
        except Exception as error:
            for request in batch:
                request.fail(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if self._pending:
            self._flush_at(None)
