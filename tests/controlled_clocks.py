"""Clocks for tests on busy machines: no test's outcome depends on how long it waits for a processor."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

MOST_S = 0.1  # maximum by which ``Steady`` advances between two readings


class Own(asyncio.SelectorEventLoop):
    """A loop with its own clock in seconds, which advances only in ``select``, and never during computation."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.really = 0.0, self._selector.select
        self._selector.select = self.select

    def time(self) -> float:
        return self.now


class Standing(Own):
    """A loop whose clock jumps to the next timer when all wait; it does not wait for threads and sockets."""

    def select(self, timeout: float | None = None) -> Any:
        found = self.really(timeout if timeout is None else 0)
        self.now += 0 if found else timeout or 0
        return found


class Waiting(Own):
    """A loop whose clock runs while it waits, also for threads and sockets, but not beyond the intended wait."""

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
    """A clock for threads that read it repeatedly; periods in which no thread could read it hardly count."""

    def __init__(self) -> None:
        self.now, self.seen, self.lock = 0.0, time.monotonic(), threading.Lock()

    def __call__(self) -> float:
        with self.lock:
            real = time.monotonic()
            self.now += min(real - self.seen, MOST_S)
            self.seen = real
            return self.now
