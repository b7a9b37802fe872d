"""Refuse to read tables in a forked process, in which polars would wait for ever.

A fork copies a process without its threads.  If polars had started its threads before the fork, the child waits for
threads that do not exist.  Python forks by default on Linux up to version 3.13 (``multiprocessing.Pool``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from anyparty.errors import ConfigError

_THREADS = Path("/proc/self/task")
_state = {"threads before the fork": False, "forked": False}


def check_not_forked() -> None:
    """Check that polars can work in this process.

    Raises:
        ConfigError: the process was forked after polars had started its threads.
    """
    if _state["forked"]:
        raise ConfigError("this process was forked after tables had been read, and reading or training would never "
                          "end here: start processes with multiprocessing.get_context('spawn'), or fork before the "
                          "first table is read")  # fmt: skip


def _before() -> None:
    _state["threads before the fork"] = _polars_runs()


def _in_child() -> None:
    _state["forked"] = _state["forked"] or _state["threads before the fork"]


def _polars_runs() -> bool:
    """Return True if polars has started its threads, or if the system does not list the threads of this process."""
    if not _THREADS.is_dir():
        return True
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # the thread has ended
            name = (thread / "comm").read_text(encoding="utf-8").strip()
            if name.startswith("polars-") and name.removeprefix("polars-").isdecimal():
                return True
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
