"""Many rows are computed in a thread beside the service's own loop, where a request for a few does not wait for them.

    own loop    HTTP, lanes, deadlines; a method's part in requests of at most ``FEW`` rows
    worker      a loop in a thread, for as long as there are requests of more: a method's part in those; whatever it
                sends and waits for goes over the own loop

torch lets go of Python's lock while it computes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from anyparty.serving.service_settings import Limits
from anyparty.terms import Channel, Expect, Tensors

FEW = Limits().ids

T = TypeVar("T")
Part = Callable[[Channel], Coroutine[Any, Any, T]]


@dataclass
class Worker:
    """A thread with a loop, which begins with its first work and ends with its last.

    One request at a time computes, so that memory is that of one; while it waits for a party, others go on.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _end: asyncio.Event | None = None
    _at_work: int = 0

    async def play(self, part: Part[T], net: Channel, rows: int) -> T:
        """Return what a part over ``net`` comes to: played here for few ``rows``, in the thread for many."""
        if rows <= FEW:
            return await part(net)
        if self._loop is None:
            self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
            threading.Thread(target=_work, args=(self._loop, self._end), name="anyparty-worker").start()
        loop, end = self._loop, self._end
        assert end is not None
        self._at_work += 1
        try:
            return await _played(loop, part, net)
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._loop = None
                loop.call_soon_threadsafe(end.set)


def _work(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(end.wait())


async def _played(loop: asyncio.AbstractEventLoop, part: Part[T], net: Channel) -> T:
    """Play a part on another thread's loop; where this is cancelled, wait until that has ended too."""
    here, ended, tasks = asyncio.get_running_loop(), asyncio.Event(), list[asyncio.Task[T]]()

    def begin() -> None:
        tasks.append(loop.create_task(part(OverThere(net, here))))
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
            tasks[0].exception()  # nobody is left to hear of it
        raise
    return tasks[0].result()


@dataclass(frozen=True)
class OverThere:
    """A channel that lives on another thread's loop."""

    net: Channel
    loop: asyncio.AbstractEventLoop

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""
        return self.net.me

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send, over there."""
        return await self._do(self.net.send(to, tag, tensors))

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        """Wait, over there."""
        return await self._do(self.net.recv(frm, tag, expect))

    async def close(self) -> None:
        """Close, over there."""
        await self._do(self.net.close())

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))
