"""Send commands to a federation's server, with the certificate in the administrator's kit.

FLARE's client for administrators starts threads, prints and takes seconds to start.  It therefore runs in a process of
its own, ``python -m anyparty.deployment.flare.admin KIT COMMAND [JSON]``, which prints its answers as lines of JSON:

    ``ask_server``      starts such a process for one command, and returns the answer
    ``command_line``    returns the process's command line, for callers that read many answers, as with ``watch``
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from anyparty.config.settings_group import Settings
from anyparty.deployment.flare.preflight import ServerAddress, await_server, check_certificate
from anyparty.deployment.flare.server_health import server_trouble
from anyparty.errors import ConfigError, RunError

UNINTERRUPTED = {"submit", "abort"}  # commands that Ctrl-C does not interrupt, because their outcome would be unknown
NO_CONNECTION = "NoConnection"  # the name of FLARE's error for a server that does not answer
T = TypeVar("T")
POLL_S, WATCH_S, TIMEOUT_S = 0.3, 1.0, 10.0
AGAIN_S = 3.0  # pause before a server's report is read again


class _FederationFile(Settings):
    active: str
    parties: list[str]
    host: str
    port: int
    scheme: str


def read_federation(folder: Path) -> dict[str, Any]:
    """Read ``federation.toml`` in a federation's folder; return the parties and the server's address by name.

    Raises:
        ConfigError: the file does not exist, or is invalid.
    """
    path = folder / "federation.toml"
    if not path.exists():
        raise ConfigError(f"{folder} holds no federation; make one with 'anyparty federate init'")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: this is not TOML ({error}); restore what 'anyparty federate init' wrote") from None
    federation: dict[str, Any] = _FederationFile.of(values, str(path)).model_dump()
    return federation


def ask_server(
    folder: Path, command: str, /, *, until: Callable[[], dict[str, Any] | None] = lambda: None, **arguments: Any
) -> dict[str, Any]:
    """Send one of ``COMMANDS`` to the federation's server, and return the answer.

    Args:
        folder: the federation's folder.
        command: the name of the command.
        until: a function that is called every second during the wait.  If it returns an answer, the wait ends with this
            answer.
        arguments: the command's arguments.  If ``timeout_s`` is one of them, the longest wait for the answer is
            ``timeout_s`` plus 50 seconds.

    Raises:
        ConfigError: there is no federation in the folder, or the administrator's certificate is invalid.
        RunError: the server does not answer, cannot start jobs, or refuses the command.

    """
    read_federation(folder)
    kit = admin_kit(folder)
    gate = ServerAddress.of(kit)
    check_certificate(gate)
    await_server(gate)
    checked = command != "abort"  # a server that cannot start jobs can still end them
    if checked:
        check_server(folder)
    limit = float(arguments.get("timeout_s", TIMEOUT_S)) + 50.0
    with subprocess.Popen(  # noqa: S603 - our own command  # nosec B603
        command_line(kit, command, **arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=kit, start_new_session=command in UNINTERRUPTED,
    ) as client:  # fmt: skip
        try:
            out, err = _output(client, folder, limit, until, checked=checked)
        except BaseException:
            client.kill()
            raise
    try:
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RunError(f"the admin client failed: {err.strip()[-500:]}") from None
    if str(answer.get("error", "")).startswith(NO_CONNECTION):
        raise RunError(f"the server of {folder} stopped answering: is the active party's site running there "
                       f"(anyparty party start KIT)? Continue an interrupted training with --resume")  # fmt: skip
    if "error" in answer:
        raise RunError(f"the server of {folder} answered: {answer['error']}")
    return answer


def _output(
    client: subprocess.Popen[str], folder: Path, limit: float, until: Callable[[], dict[str, Any] | None], *,
    checked: bool,
) -> tuple[str, str]:  # fmt: skip
    """Wait for the end of an admin client and return its output; if ``checked``, also check the server while waiting.

    FLARE's client itself waits for a server that hangs, and for a job that the server cannot start.
    """
    end = time.monotonic() + limit
    while True:
        try:
            return client.communicate(timeout=WATCH_S)
        except subprocess.TimeoutExpired:
            if (answer := until()) is not None:
                client.kill()
                return json.dumps(answer), ""
            if time.monotonic() > end:
                raise RunError(f"the server of {folder} did not answer within {limit:g} s") from None
            if checked:
                check_server(folder)


def check_server(folder: Path) -> None:
    """Check that the server runs as it should, if it runs on this machine.

    Raises:
        RunError: the server hangs, or cannot start jobs.
    """
    kit = folder / "kits" / read_federation(folder)["active"]
    if not server_trouble(kit):
        return
    time.sleep(AGAIN_S)  # the report is old for a moment if the machine was suspended, or its clock was set
    if trouble := server_trouble(kit):
        raise RunError(f"the server of {folder} cannot be used: {trouble}")


def admin_kit(folder: Path) -> Path:
    """Return the administrator's kit in a federation's folder."""
    return (folder / "kits" / "admin").resolve()


def command_line(kit: Path, command: str, **arguments: Any) -> list[str]:
    """Return the command line of an admin client's process.

    The command ``watch`` prints the connected sites every second, as ``{"sites": [...]}``, until the process's standard
    input closes.  If the server does not answer, the last line is ``{"error": "..."}``.
    """
    return [sys.executable, "-m", "anyparty.deployment.flare.admin", str(kit), command, json.dumps(arguments)]


# ---- functions that run in the admin client's process


def answers(kit: Path, command: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Connect to the server with the credentials of an administrator's kit; yield the server's answers to a command."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session  # noqa: PLC0415 - takes seconds, only needed here

    name = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
    session = new_secure_session(name, str(kit), timeout=float(arguments.get("timeout_s", TIMEOUT_S)))
    try:
        if command == "watch":
            yield from _watch(session)
        else:
            yield COMMANDS[command](session, arguments)
    finally:
        session.close()


def _connected(session: Any) -> list[str]:
    return sorted(client.name for client in session.get_system_info().client_info)


def _watch(session: Any) -> Iterator[dict[str, Any]]:
    """Yield the connected sites once per second until the standard input closes."""
    while True:
        yield {"sites": _connected(session)}
        if select.select([sys.stdin], [], [], WATCH_S)[0] and not sys.stdin.readline():
            return


def _poll(look: Callable[[], T], done: Callable[[T], bool], timeout_s: float) -> T:
    """Call ``look`` until ``done(result)`` is true, or ``timeout_s`` seconds have passed; return the last result."""
    end = time.monotonic() + timeout_s
    while not done(result := look()) and time.monotonic() <= end:
        time.sleep(POLL_S)
    return result


def _sites(session: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Wait until at least ``arguments["sites"]`` sites are connected, or the timeout is over; return their names."""
    enough = arguments["sites"]
    names = _poll(lambda: _connected(session), lambda names: len(names) >= enough, arguments["timeout_s"])
    return {"sites": names}


def _submit(session: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"job": session.submit_job(arguments["path"])}


def _status(session: Any, arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    info = session.get_system_info()
    jobs = session.list_jobs(detailed=True)
    return {
        # FLARE reports "stopped" if the server runs and no job runs.
        "server": "idle" if info.server_info.status == "stopped" else str(info.server_info.status),
        "sites": sorted(client.name for client in info.client_info),
        "jobs": [{key: job.get(key) for key in ("job_id", "status", "submit_time_iso", "duration")} for job in jobs],
    }


def _wait(session: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Wait until a job has ended, or the timeout is over; return FLARE's status of the job."""

    def look() -> str:
        return str(session.get_job_meta(arguments["job"]).get("status"))

    return {"status": _poll(look, lambda status: status.startswith(("FINISHED", "FAILED")), arguments["timeout_s"])}


def _abort(session: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    session.abort_job(arguments["job"])
    return {}


COMMANDS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "sites": _sites, "submit": _submit, "status": _status, "wait": _wait, "abort": _abort,
}  # fmt: skip


def main() -> None:
    """Run the command in this process's arguments; print each answer, or the error, as a line of JSON."""
    kit, command, arguments = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    out = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):  # only answers may be printed to stdout, and FLARE prints there
            for answer in answers(kit, command, arguments):
                print(json.dumps(answer), file=out, flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out, flush=True)


if __name__ == "__main__":
    main()
