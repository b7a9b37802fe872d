"""How a site starts a job's process: FLARE's way, but a process that dies does not end the whole job.

FLARE 2.9 takes a client's process that ends with an error (or is killed) as the failure of the job and aborts it
everywhere, whatever ``min_clients`` says.  What it means that a party is gone is the run's to say: see ``post``.
"""

from __future__ import annotations

from typing import Any

try:
    from nvflare.apis.job_launcher_spec import JobReturnCode
    from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
    from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
except ImportError:  # an extra: without it nobody launches, and reading this file does no harm
    ClientProcessJobLauncher = ProcessHandle = object


class Handle(ProcessHandle):  # type: ignore[misc]
    """A job's process, whose death is nobody else's failure."""

    def poll(self) -> Any:
        """Return how it ended: well, or in a way that FLARE does not report."""
        code = super().poll()
        return code if code == JobReturnCode.SUCCESS else JobReturnCode.UNKNOWN


class Launcher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts the processes of a passive party's site."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Handle:
        """Start a job's process."""
        return Handle(process_adapter=super().launch_job(job_meta, fl_ctx).adapter)
