"""The health of FLARE's server: the server writes it into its kit, and commands on the same machine read it.

The server has a ``JobRunnerGuard``, which restarts FLARE's job runner after an error.  A ``HealthFile`` keeps the error
in KIT/health.json.  The server sets the file's time every two seconds, so an old file shows that the server hangs.
Commands call ``server_trouble`` and ``lost_sites``, which read the file.

FLARE 2.9 itself reports "idle" and all sites as connected after its job runner has ended.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from anyparty.core.storage import read_json, writing
from anyparty.errors import ModelError, StorageError

FILE = "health.json"
PAUSE_S, RECOVERED_S = 1.0, 5.0  # pause before a restart; time without an error after which jobs can be started again
FAILING_S, HUNG_S = 8.0, 10.0  # time after which errors, or a server that does not set the file's time, are reported
RESTART = "'anyparty federate stop FOLDER' and then 'start FOLDER', or Ctrl-C and 'anyparty party start KIT'"
log = logging.getLogger(__name__)


class JobRunnerGuard:
    """Keep FLARE's job runner running: after an error, its loops are started again instead of ending silently."""

    def __init__(self) -> None:
        self.error, self.since, self.last = "", 0.0, 0.0  # the first time and the last time of the error

    def guard(self, runner: Any) -> None:
        """Wrap the two loops of FLARE's ``JobRunner`` before FLARE starts them."""
        start_jobs, complete_jobs = runner.run, runner._job_complete_process  # noqa: SLF001 - FLARE has no other name
        completing = threading.Lock()

        def complete_once(engine: Any) -> None:
            if completing.acquire(blocking=False):  # ``start_jobs`` starts this loop again when it is itself restarted
                try:
                    self._keep(runner, partial(complete_jobs, engine))
                finally:
                    completing.release()

        runner._job_complete_process = complete_once  # noqa: SLF001
        runner.run = lambda fl_ctx: self._keep(runner, partial(start_jobs, fl_ctx))

    def _keep(self, runner: Any, loop: Callable[[], None]) -> None:
        while not runner.ask_to_stop:
            try:
                loop()
            except Exception as error:
                self._failed(error)
                time.sleep(PAUSE_S)
            else:
                return

    def _failed(self, error: Exception) -> None:
        now = time.time()
        if not self.failing(now):
            self.since = now
            log.error("FLARE's job runner ended with an error, and is started again", exc_info=error)
        self.error, self.last = f"{type(error).__name__}: {error}", now

    def failing(self, now: float) -> bool:
        """Return True if the last error was a few seconds ago; if errors repeat, the loops fail every two seconds."""
        return bool(self.error) and now - self.last < RECOVERED_S


class HealthFile:
    """The file in which a server reports that it runs, whether it can start jobs, and which sites do not answer."""

    def __init__(self, kit: Path) -> None:
        self.path, self.content = kit / FILE, dict[str, Any]()

    def report(self, guard: JobRunnerGuard, lost: Collection[str]) -> None:
        """Write the server's health if it has changed, and set the file's time."""
        failing = guard.failing(time.time())
        content = {"process": os.getpid(), "lost": sorted(lost), "error": guard.error if failing else "",
                   "since": guard.since if failing else 0.0}  # fmt: skip
        try:
            if content != self.content:
                with writing(self.path) as beside:
                    beside.write_text(json.dumps(content), encoding="utf-8")
                self.content = content
            os.utime(self.path)
        except (OSError, StorageError) as error:
            self.content = {}
            log.warning("the server's health could not be written: %s", error)


def server_trouble(kit: Path) -> str:
    """Return why the running server of a kit cannot start jobs, and what to do; "" if nothing is known.

    A server on another machine, or one that has ended, gives "": the connection to it shows that.
    """
    content, age = _health(kit)
    if not content:
        return ""
    process = content.get("process")
    if age > HUNG_S:
        return f"its process {process} has not responded for {age:.0f} s; restart it: {RESTART}"
    error, since = content.get("error"), float(content.get("since") or 0.0)
    if error and time.time() - since > FAILING_S:
        lasts = time.time() - since
        return (
            f"it has been unable to start jobs for {lasts:.0f} s ({error}); remove the cause, or restart it: {RESTART}"
        )
    return ""


def lost_sites(kit: Path) -> list[str]:
    """Return the sites that the running server of a kit has lost; [] if the kit is not on this machine."""
    return list(_health(kit)[0].get("lost") or ())


def _health(kit: Path) -> tuple[dict[str, Any], float]:
    """Return the health that a server reported, and the age of the report in seconds; {} if the server has ended."""
    path = kit / FILE
    try:
        age = time.time() - path.stat().st_mtime
        content = read_json(path)
        os.kill(int(content["process"]), 0)
    except PermissionError:  # another user runs the server
        pass
    except (OSError, ModelError, KeyError, TypeError, ValueError):
        return {}, 0.0
    return content, age
