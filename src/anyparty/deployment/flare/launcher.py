"""The launcher of a site's job processes: it restarts a killed process, and keeps the job running at other parties.

If a client's process fails or is killed, FLARE 2.9 aborts the job at all parties, whatever ``min_clients`` is.  With
this launcher, the job goes on, and the training or prediction itself decides whether it continues without the party.  A
killed process is restarted after a short pause.  After a crash of the machine, the process is restarted when its site
starts again.  The training or prediction readmits the party if possible.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyparty.core.storage import writing

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, JobConstants
    from nvflare.apis.job_launcher_spec import JobProcessArgs, JobReturnCode
    from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
    from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
except ImportError:  # FLARE is an extra: without it this module can be imported, but not used
    ClientProcessJobLauncher = ProcessHandle = object

PAUSES_S = (0.5, 2.0, 8.0, 30.0)  # pauses before the first, second, ... restart of a killed process
UNFINISHED = "unfinished.json"
log = logging.getLogger(__name__)


class RestartingProcess(ProcessHandle):  # type: ignore[misc]
    """A job's process at one party; its death does not make the job fail at the other parties."""

    def __init__(self, begin: Callable[[], Any], ended: Callable[[], None]) -> None:
        self.begin, self.ended, self.stopping = begin, ended, threading.Event()
        self.beginning = threading.Lock()  # held while a process starts, because another thread may stop the job
        super().__init__(process_adapter=begin())

    def wait(self) -> None:
        """Wait for the end of the process; restart it if it was killed."""
        super().wait()
        for pause in PAUSES_S:
            if not self.killed or self.stopping.wait(pause) or not self._restart():
                break
            super().wait()
        self.ended()

    def _restart(self) -> bool:
        """Restart the process and return True; return False if the job was stopped in the meantime."""
        with self.beginning:
            if self.stopping.is_set():
                return False
            log.warning("the job's process was killed and is restarted")
            self.adapter = self.begin()
            return True

    @property
    def killed(self) -> bool:
        """True if a signal other than SIGTERM ended the process, such as SIGKILL when memory runs out."""
        code = self.adapter.poll()
        return code is not None and code < 0 and code != -15

    def terminate(self) -> None:
        """Stop the process without a restart."""
        self.stopping.set()
        with self.beginning:
            super().terminate()

    def poll(self) -> Any:
        """Return FLARE's code for success, or after a failure a code that does not make FLARE abort the job."""
        code = super().poll()
        return code if code == JobReturnCode.SUCCESS else JobReturnCode.UNKNOWN


class SiteLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """The launcher of a passive party's job processes."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> RestartingProcess:
        """Start a job's process; after a restart of the site, the process gets the job's first access tokens."""
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        note = Path(workspace.get_run_dir(job_meta[JobConstants.JOB_ID])) / UNFINISHED
        arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        pass_with = (JobProcessArgs.AUTH_TOKEN, JobProcessArgs.TOKEN_SIGNATURE, JobProcessArgs.SSID)
        if note.exists():  # the server's job process knows the party only by its first token
            kept = json.loads(note.read_text(encoding="utf-8"))["pass"]
            arguments |= {name: tuple(kept[str(name)]) for name in pass_with}
        else:
            kept = {str(name): list(arguments[name]) for name in pass_with}
            with writing(note) as beside:
                beside.write_text(json.dumps({"meta": job_meta, "pass": kept}), encoding="utf-8")

        def begin() -> Any:
            return super(SiteLauncher, self).launch_job(job_meta, fl_ctx).adapter

        return RestartingProcess(begin, lambda: note.unlink(missing_ok=True))

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Resume unfinished jobs when the site is connected."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._resume_jobs, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _resume_jobs(self, engine: Any) -> None:
        time.sleep(PAUSES_S[0])
        root = Path(engine.new_context().get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        for note in sorted(root.glob(f"*/{UNFINISHED}")):
            try:
                meta = json.loads(note.read_text(encoding="utf-8"))["meta"]
                job = meta[JobConstants.JOB_ID]
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s cannot be read (%s: %s): its job is not resumed",
                            note, type(error).__name__, error)  # fmt: skip
                continue
            log.warning("the site resumes job %s", job)
            try:
                engine.start_app(job, meta)
            except RuntimeError as error:
                log.warning("job %s: %s", job, error)
                note.unlink(missing_ok=True)
