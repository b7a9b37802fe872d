"""Ctrl-C and SIGTERM: they end a command at once while Python imports, and are heard as Ctrl-C from then on.

An exception from within an import can be lost, or end in a stack trace of somebody else's code; nothing has begun by
then, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

_later: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}  # who is to hear once all is imported


def end_at_once() -> None:
    """Let Ctrl-C and SIGTERM end this process as the system does, until they are ``heard``."""
    _later[signal.SIGTERM] = _as_ctrl_c
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in a shell's background jobs
        _later[signal.SIGINT] = signal.default_int_handler
    _end()


def heard() -> None:
    """Import the libraries that take long, then let Ctrl-C and SIGTERM interrupt the command.

    No method is imported here: a command that reads records alone must not load one.
    """
    if _later:
        with contextlib.suppress(ImportError, OSError):  # whoever needs it says what is wrong
            import_module("polars")  # takes Ctrl-C for itself
            _end()
            import_module("torch")
            import_module("sklearn.linear_model")
    for number, handler in _later.items():
        signal.signal(number, handler)
    _later.clear()


def _end() -> None:
    for number in _later:
        signal.signal(number, signal.SIG_DFL)


def _as_ctrl_c(_: int, frame: FrameType | None) -> None:
    """Hear a request to end (SIGTERM: ``kill``, a batch system, a container) as Ctrl-C."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):  # ignored, as in a shell's background jobs, or not Python's
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)
