"""Run predictions of many rows in a thread, so that requests for a few rows do not wait for them.

    main event loop  HTTP, messages and deadlines; the method's computation for up to ``INLINE_ROWS`` rows
    thread           the method's computation for more rows, in a second event loop; its messages pass through the
                     main event loop

PyTorch releases Python's global interpreter lock while it computes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from anyparty.core.types import Channel, ChannelWrapper, Tensors, TensorSpec
from anyparty.serving.service_settings import ServiceLimits

INLINE_ROWS = ServiceLimits().ids

T = TypeVar("T")


@dataclass
class BatchExecutor:
    """A thread with an event loop for requests of many rows.

    The thread runs only while such requests are open.  It computes one request at a time, which limits memory.  While
    one request waits for a party, the thread computes another.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _end: asyncio.Event | None = None
    _open: int = 0

    async def run(self, work: Callable[[Channel], Coroutine[Any, Any, T]], channel: Channel, rows: int) -> T:
        """Run ``work(channel)`` and return its result.

        ``work`` runs in the caller's event loop if ``rows`` is at most ``INLINE_ROWS``.  If ``rows`` is greater,
        ``work`` runs in the thread.
        """
        if rows <= INLINE_ROWS:
            return await work(channel)
        if self._loop is None:
            self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
            threading.Thread(target=_run_loop, args=(self._loop, self._end), name="anyparty-worker").start()
        loop, end = self._loop, self._end
        assert end is not None
        self._open += 1
        try:
            return await _run_in(loop, work, channel)
        finally:
            self._open -= 1
            if not self._open:
                self._loop = None
                loop.call_soon_threadsafe(end.set)


def _run_loop(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(end.wait())


async def _run_in(
    loop: asyncio.AbstractEventLoop, work: Callable[[Channel], Coroutine[Any, Any, T]], channel: Channel
) -> T:
    """Run ``work(channel)`` on the event loop of another thread, and return the result.

    On cancellation, cancel ``work`` and wait until it has ended.
    """
    here, ended, tasks = asyncio.get_running_loop(), asyncio.Event(), list[asyncio.Task[T]]()

    def begin() -> None:
        tasks.append(loop.create_task(work(CrossThreadChannel(channel, here))))
        tasks[0].add_done_callback(lambda _: here.call_soon_threadsafe(ended.set))

    def stop() -> None:
        tasks[0].cancel()

    loop.call_soon_threadsafe(begin)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(stop)
        await ended.wait()
        if not tasks[0].cancelled():
            tasks[0].exception()  # marks the exception as retrieved, so that asyncio does not log it
        raise
    return tasks[0].result()


@dataclass
class CrossThreadChannel(ChannelWrapper):
    """A wrapper through which one thread uses a channel that belongs to the event loop of another thread."""

    loop: asyncio.AbstractEventLoop

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send a message in the event loop to which the channel belongs."""
        return await self._call(self.channel.send(to, tag, tensors))

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        """Return the next message, which is received in the event loop to which the channel belongs."""
        return await self._call(self.channel.recv(frm, tag, expect))

    async def close(self) -> None:
        """Close the channel in the event loop to which it belongs."""
        await self._call(self.channel.close())

    def set_step(self, step: object, *, training: bool) -> None:
        """Announce the step in the event loop to which the channel belongs, before messages that are sent later."""
        self.loop.call_soon_threadsafe(partial(self.channel.set_step, step, training=training))

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))
