"""How a site starts a job's process: FLARE's way, but a process that dies is started again, and does not end the job.

FLARE 2.9 takes a client's process that ends with an error (or is killed) as the failure of the job and aborts it
everywhere, whatever ``min_clients`` says.  What it means that a party is gone is the run's to say: see ``post``.  Here
its process is started again, at once when it was killed, and with the site when the whole machine went down; the run
lets it in again where that is possible.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyparty.storage import writing

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, JobConstants
    from nvflare.apis.job_launcher_spec import JobProcessArgs, JobReturnCode
    from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
    from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
except ImportError:  # an extra: without it nobody launches, and reading this file does no harm
    ClientProcessJobLauncher = ProcessHandle = object

PAUSES_S = (0.5, 2.0, 8.0, 30.0)  # before a process that was killed is started again
UNFINISHED = "unfinished.json"
log = logging.getLogger(__name__)


class Handle(ProcessHandle):  # type: ignore[misc]
    """A job's process, whose death is nobody else's failure."""

    def __init__(self, begin: Callable[[], Any], ended: Callable[[], None]) -> None:
        self.begin, self.ended, self.stopping = begin, ended, threading.Event()
        self.beginning = threading.Lock()  # a job is ended on another thread than the one that waits for its process
        super().__init__(process_adapter=begin())

    def wait(self) -> None:
        """Wait for its end; one that was killed is started again."""
        super().wait()
        for pause in PAUSES_S:
            if not self.killed or self.stopping.wait(pause) or not self._begin_again():
                break
            super().wait()
        self.ended()

    def _begin_again(self) -> bool:
        """Start the process again, unless the job was ended just now."""
        with self.beginning:
            if self.stopping.is_set():
                return False
            log.warning("the job's process was killed; it is started again")
            self.adapter = self.begin()
            return True

    @property
    def killed(self) -> bool:
        """Whether it ended by a signal that it could not answer: out of memory, kill -9."""
        code = self.adapter.poll()
        return code is not None and code < 0 and code != -15

    def terminate(self) -> None:
        """End it for good."""
        self.stopping.set()
        with self.beginning:
            super().terminate()

    def poll(self) -> Any:
        """Return how it ended: well, or in a way that FLARE does not report."""
        code = super().poll()
        return code if code == JobReturnCode.SUCCESS else JobReturnCode.UNKNOWN


class Launcher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts the processes of a passive party's site."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Handle:
        """Start a job's process, or one that the site did not see to its end before it went down itself."""
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        note = Path(workspace.get_run_dir(job_meta[JobConstants.JOB_ID])) / UNFINISHED
        words = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        pass_with = (JobProcessArgs.AUTH_TOKEN, JobProcessArgs.TOKEN_SIGNATURE, JobProcessArgs.SSID)
        if note.exists():  # the server's job process knows the party by the token that it began with
            kept = json.loads(note.read_text(encoding="utf-8"))["pass"]
            words |= {name: tuple(kept[str(name)]) for name in pass_with}
        else:
            kept = {str(name): list(words[name]) for name in pass_with}
            with writing(note) as beside:
                beside.write_text(json.dumps({"meta": job_meta, "pass": kept}), encoding="utf-8")

        def begin() -> Any:
            return super(Launcher, self).launch_job(job_meta, fl_ctx).adapter

        return Handle(begin, lambda: note.unlink(missing_ok=True))

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Go on with what was not finished, once the site is connected."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._go_on, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _go_on(self, engine: Any) -> None:
        time.sleep(PAUSES_S[0])
        root = Path(engine.new_context().get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        for note in sorted(root.glob(f"*/{UNFINISHED}")):
            try:
                meta = json.loads(note.read_text(encoding="utf-8"))["meta"]
                job = meta[JobConstants.JOB_ID]
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s cannot be read (%s: %s): what it tells of is not gone on with",
                            note, type(error).__name__, error)  # fmt: skip
                continue
            log.warning("the site takes part in job %s again", job)
            try:
                engine.start_app(job, meta)
            except RuntimeError as error:
                log.warning("job %s: %s", job, error)
                note.unlink(missing_ok=True)
