"""Transport in memory: all parties run in one process, on one thread, so a run can be reproduced from its seed.

Messages are copied, as over a network.  If every party waits for a message that no party will send, all of them raise
``Deadlock`` at once instead of hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from torch import Tensor

from anyparty.core.types import Channel, Tensors, TensorSpec
from anyparty.errors import Deadlock, PartyLost, some

T = TypeVar("T")
Lane = tuple[str, str, str]  # (sender, receiver, tag)


@dataclass
class MemoryHub:
    """A set of queues for the messages between all parties of one process."""

    names: Sequence[str]
    queues: dict[Lane, deque[dict[str, Tensor]]] = field(default_factory=partial(defaultdict, deque))
    waiting: dict[Lane, asyncio.Future[None]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    departures: list[str] = field(default_factory=list)  # the parties that left, in the order in which they left

    def channel(self, me: str) -> MemoryChannel:
        """Return the channel of one party."""
        return MemoryChannel(me, self)

    def wake(self, lane: Lane) -> None:
        """Wake the receiver that waits for a message on ``lane``, which is a sender, a receiver and a tag."""
        future = self.waiting.pop(lane, None)
        if future is not None and not future.done():
            future.set_result(None)

    def look_for_deadlock(self) -> None:
        """Raise ``Deadlock`` in every party that has not left, if all of these parties wait."""
        if len(self.waiting) + len(self.gone) < len(self.names):
            return  # no deadlock, because at least one party is running
        waiting = {receiver for _, receiver, _ in self.waiting}
        if waiting and waiting == set(self.names) - self.gone:
            lanes = "; ".join(f"{to} waits for {tag!r} from {frm}" for frm, to, tag in sorted(self.waiting))
            for future in self.waiting.values():
                if not future.done():
                    future.set_exception(Deadlock(f"no party can go on: {lanes}"))
            self.waiting.clear()


@dataclass
class MemoryChannel(Channel):
    """One party's channel to the other parties of a hub."""

    me: str
    hub: MemoryHub

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Copy a message into the receiver's queue, without waiting.  Return False if the receiver has left."""
        if to in self.hub.gone:
            return False
        lane = (self.me, to, tag)
        self.hub.queues[lane].append({name: tensor.detach().clone() for name, tensor in tensors.items()})
        self.hub.wake(lane)
        return True

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the next message from ``frm`` with this tag; wait until it arrives."""
        lane = (frm, self.me, tag)
        queue = self.hub.queues[lane]
        while not queue:
            if frm in self.hub.gone:
                before = self.hub.departures[: self.hub.departures.index(frm)]
                earlier = [name for name in before if name in self.hub.gone]
                after = f", after {some(earlier)} had left" if earlier else ""
                raise PartyLost(frm, f"it left while {self.me!r} waited for {tag!r}{after}")
            future = asyncio.get_running_loop().create_future()
            self.hub.waiting[lane] = future
            self.hub.look_for_deadlock()
            try:
                await future
            except asyncio.CancelledError:
                if self.hub.waiting.get(lane) is future:
                    del self.hub.waiting[lane]
                raise
        return queue.popleft()

    async def close(self) -> None:
        """Leave the hub; parties that wait for this party get ``PartyLost``."""
        self.hub.gone.add(self.me)
        self.hub.departures.append(self.me)
        for lane in [lane for lane in self.hub.waiting if self.me in lane[:2]]:
            self.hub.wake(lane)
        self.hub.look_for_deadlock()


def play(
    parts: Mapping[str, Callable[[Channel], Awaitable[T]]],
    wrap: Callable[[Channel], Channel] = lambda channel: channel,
) -> dict[str, T]:
    """Run the coroutine function of each party, and return the results by party.

    If the function of one party fails, the functions of all other parties are cancelled, and the first error is raised.

    Args:
        parts: each party's coroutine function, by party. The function's argument is the party's channel.
        wrap: a function that receives a party's channel and returns the channel that the party uses.
    """
    hub = MemoryHub(tuple(parts))
    tasks: list[asyncio.Task[T]] = []
    failed: list[Exception] = []

    async def run_part(channel: Channel, part: Callable[[Channel], Awaitable[T]]) -> T:
        try:
            return await part(channel)
        except Exception as error:
            failed.append(error)
            for task in tasks:
                if task is not asyncio.current_task():
                    task.cancel()
            raise
        finally:
            await channel.close()

    async def all_parts() -> None:  # without a result, because asyncio.run would format the result as text
        for name, part in parts.items():
            tasks.append(asyncio.ensure_future(run_part(wrap(hub.channel(name)), part)))
        await asyncio.gather(*tasks, return_exceptions=True)

    _run(all_parts())
    if failed:
        raise failed[0]
    return {name: task.result() for name, task in zip(parts, tasks, strict=True) if not task.cancelled()}


def _run(work: Awaitable[T]) -> T:
    """Run a coroutine and return its result.

    The coroutine runs in another thread if an event loop is already running in this thread, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)  # type: ignore[arg-type]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def whole() -> T:
        task = asyncio.ensure_future(work)
        begun.append((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(asyncio.run, whole())
        try:
            return found.result()
        except BaseException:  # Ctrl-C interrupts only this thread; the other thread must be cancelled
            for loop, task in begun:
                with contextlib.suppress(RuntimeError):  # the other thread's event loop has already ended
                    loop.call_soon_threadsafe(task.cancel)
            raise
