"""The administrator's desk, a process of its own: ``python -m anyparty.wire.flare.desk KIT COMMAND [JSON]``.

FLARE's client for administrators starts threads and prints; here that ends with the process, whose last line is the
answer as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.3


def answer(kit: Path, command: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Connect with an administrator's kit, do one thing, return what is to be said of it."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session  # noqa: PLC0415 - seconds, and only here

    name = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
    session = new_secure_session(name, str(kit), timeout=float(asked.get("timeout_s", 10)))
    try:
        return COMMANDS[command](session, asked)
    finally:
        session.close()


def _sites(session: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Wait until so many sites are connected."""
    end = time.monotonic() + asked["timeout_s"]
    while True:
        names = sorted(client.name for client in session.get_system_info().client_info)
        if len(names) >= asked["sites"] or time.monotonic() > end:
            return {"sites": names}
        time.sleep(POLL_S)


def _submit(session: Any, asked: dict[str, Any]) -> dict[str, Any]:
    return {"job": session.submit_job(asked["path"])}


def _status(session: Any, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    info = session.get_system_info()
    jobs = session.list_jobs(detailed=True)
    return {
        "server": "idle" if info.server_info.status == "stopped" else str(info.server_info.status),  # it answered
        "sites": sorted(client.name for client in info.client_info),
        "jobs": [{key: job.get(key) for key in ("job_id", "status", "submit_time_iso", "duration")} for job in jobs],
    }


def _wait(session: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Wait until a job has ended."""
    end = time.monotonic() + asked["timeout_s"]
    while True:
        status = str(session.get_job_meta(asked["job"]).get("status"))
        if status.startswith(("FINISHED", "FAILED")) or time.monotonic() > end:
            return {"status": status}
        time.sleep(POLL_S)


def _abort(session: Any, asked: dict[str, Any]) -> dict[str, Any]:
    session.abort_job(asked["job"])
    return {}


COMMANDS = {"sites": _sites, "submit": _submit, "status": _status, "wait": _wait, "abort": _abort}


def main() -> None:
    """Answer on the last line of the standard output."""
    kit, command, asked = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            said = answer(kit, command, asked)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
