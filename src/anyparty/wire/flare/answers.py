"""What a passive party's site answers of what FLARE's server may ask."""

from __future__ import annotations

ANSWERED = {
    "AbortAppProcessor", "AbortTaskProcessor", "CancelResourceProcessor", "CheckResourceProcessor",
    "ClientStatusProcessor", "DeployProcessor", "NotifyJobStatusProcessor", "ReportResourcesProcessor",
    "StartJobProcessor",
}  # fmt: skip
"""What of the server's requests a passive party's site answers: what jobs need to be sent, started, followed, ended."""


def answer_jobs_alone() -> None:
    """Take away what answers a server's other requests: shell commands, logs, the machine's state, restarts.

    FLARE asks a site's ``authorization.json`` only where the request says that it should, and the server writes the
    request.  What is not there cannot be asked.

    Raises:
        RuntimeError: this FLARE has other parts than those that we know; the site does not start.
    """
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors  # noqa: PLC0415 - an extra

    every = ClientRequestProcessors.request_processors
    kept = [each for each in every if type(each).__name__ in ANSWERED]
    if missing := ANSWERED - {type(each).__name__ for each in kept}:
        raise RuntimeError(f"this version of FLARE has no {sorted(missing)}: use one that anyparty admits")
    every[:] = kept
