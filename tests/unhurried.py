"""Clocks that a busy machine does not hurry: no outcome of a test is how long it waited for a processor."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

MOST_S = 0.1  # that ``Steady`` moves on between two looks


class Own(asyncio.SelectorEventLoop):
    """A loop with a clock of its own, in seconds, which moves on in ``select`` alone: never while anybody works."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.really = 0.0, self._selector.select
        self._selector.select = self.select

    def time(self) -> float:
        return self.now


class Standing(Own):
    """Its clock moves on to the next moment when all wait; it does not wait for threads and sockets."""

    def select(self, timeout: float | None = None) -> Any:
        found = self.really(timeout if timeout is None else 0)
        self.now += 0 if found else timeout or 0
        return found


class Waiting(Own):
    """Its clock goes while it waits, also for threads and sockets, and no further than it meant to wait."""

    def select(self, timeout: float | None = None) -> Any:
        began = time.monotonic()
        found = self.really(timeout)
        waited = time.monotonic() - began
        self.now += waited if timeout is None else min(waited, max(timeout, 0.0))
        return found


def run(work: Coroutine[Any, Any, Any], loop: type[Own] = Standing) -> Any:
    """Run a coroutine to its end, as ``asyncio.run`` does, on a loop of this kind."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


class Steady:
    """Seconds for threads that look at it again and again; a time in which none of them could look hardly counts."""

    def __init__(self) -> None:
        self.now, self.seen, self.lock = 0.0, time.monotonic(), threading.Lock()

    def __call__(self) -> float:
        with self.lock:
            real = time.monotonic()
            self.now += min(real - self.seen, MOST_S)
            self.seen = real
            return self.now
