"""What a passive party's site answers of what FLARE's server may ask, and what the server's audit does not tell of."""

from __future__ import annotations

from collections.abc import Iterable

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


LOOKS = ("check_status server", "get_job_meta ")
"""What an administrator asks without end: the prediction service who is connected, a training whether it has ended."""


class Unheard(frozenset[str]):
    """Commands that are not written into the server's audit.log: FLARE's own, and whatever begins as a look does."""

    def __new__(cls, every: Iterable[str]) -> Unheard:
        """Take FLARE's own."""
        return super().__new__(cls, every)

    def __contains__(self, command: object) -> bool:
        return super().__contains__(command) or str(command).startswith(LOOKS)


def leave_out_looks() -> None:
    """Let the server's audit.log tell of what changes something alone: of looks it grows by 10 MB a day, and more."""
    from nvflare.fuel.sec import audit  # noqa: PLC0415 - an extra

    audit.EXCLUDED_ACTIONS = Unheard(audit.EXCLUDED_ACTIONS)
