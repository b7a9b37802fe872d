"""The processes of a federation on one machine: functions that start, watch and stop all parties' sites.

On separate machines each party starts its own kit with ``run_site``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from anyparty.core.storage import take
from anyparty.deployment.flare.admin import ask_server, read_federation
from anyparty.deployment.flare.admission import CONNECTED, HEARTBEAT_S, MARK
from anyparty.deployment.flare.gateway import MODULE
from anyparty.deployment.flare.preflight import ServerAddress, await_server, check_certificate, check_key
from anyparty.deployment.flare.provisioning import LOOPBACK, organisation, write_site_files
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.errors import ConfigError, RunError, needing, some

LOCK = ".site.lock"
_started: list[subprocess.Popen[bytes]] = []  # child processes, which must be polled after their end


def site_command(kit: Path) -> list[str]:
    """Return the command that runs one organisation's site, which is a FLARE server or a FLARE client."""
    server = (kit / "startup" / "fed_server.json").exists()
    kind, file = ("server", "fed_server.json") if server else ("client", "fed_client.json")
    module = f"nvflare.private.fed.app.{kind}.{kind}_train"
    name = SiteConfig.read(kit).party
    own = [] if server else [f"uid={name}", f"heart_beat_interval={HEARTBEAT_S:g}"]
    return [sys.executable, "-u", "-m", module, "-m", str(kit), "-s", file, "--set", "secure_train=true",
            "config_folder=config", f"org={organisation(name)}", *own]  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment variables for a site: this process's variables, changed to avoid delays in FLARE."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {
        "NVFLARE_NP_DOWNLOAD_CHUNK_SIZE": "0", "NVFLARE_TENSOR_DOWNLOAD_CHUNK_SIZE": "0",
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "20",  # seconds that FLARE waits for a lost party's result
    }  # fmt: skip


def start(folder: Path, timeout_s: float = 120.0) -> list[str]:
    """Start every party's site that does not run on this machine; wait until all are connected; return those started.

    Raises:
        ConfigError: the port is in use, or all sites of this federation run already.
        RunError: a site did not start in time.
    """
    federation = read_federation(folder)
    with alone(folder, f"sites of {folder} are being started already; wait until they are"):
        names = [federation["active"], *(each for each in federation["parties"] if each != federation["active"])]
        ended = [name for name in names if not _site_runs(folder / "kits" / name)]
        if not ended:
            raise ConfigError(f"sites of {folder} run already; stop them with 'anyparty federate stop'")
        _start(folder, federation, ended, timeout_s)
    return ended


def _site_runs(kit: Path) -> bool:
    """Return True if the process of a site runs; processes of jobs do not count, because they end with their site."""
    mains = {"nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"}
    return any(mains & set(process.info["cmdline"]) for process in at_kit(kit))


@contextlib.contextmanager
def alone(place: Path, otherwise: str) -> Iterator[None]:
    """Lock a folder while the body of the ``with`` statement runs, so that no other process starts sites in it.

    Raises:
        ConfigError: another process holds the lock; ``otherwise`` is the error's message.
        StorageError: the folder cannot be written to.
    """
    lock = take(place / LOCK, otherwise)
    try:
        yield
    finally:
        lock.release()


def _start(folder: Path, federation: Mapping[str, Any], names: Sequence[str], timeout_s: float) -> None:
    """Start the sites of the parties ``names``; if one fails, end those that were started."""
    without_kit = [name for name in federation["parties"] if not (folder / "kits" / name / "startup").is_dir()]
    if without_kit:
        raise ConfigError(f"the kit of {some(without_kit)} is not in {folder / 'kits'}: these parties made their own "
                          "keys, or "
                          f"took their kits away; start each party where its kit is: anyparty party start KIT"
                          )  # fmt: skip
    kits = [(folder / "kits" / name).resolve() for name in names]
    for kit in kits:
        end(at_kit(kit))  # processes that a killed site has left
    if federation["active"] in names:
        port_is_free(federation["host"], federation["port"])
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            kit = (folder / "kits" / name).resolve()
            write_site_files(kit)
            check_certificate(ServerAddress.of(kit, name))
            with (kit / "site.log").open("ab") as out:
                started[name] = subprocess.Popen(  # noqa: S603 - our own command  # nosec B603
                    site_command(kit), env=environment(), cwd=kit, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            _started.append(started[name])
        _await_sites(folder, federation, started, timeout_s)
    except BaseException:
        for kit in kits:
            end(at_kit(kit))
        raise


def port_is_free(host: str, port: int) -> None:
    """Check that a server can listen at this port.

    Raises:
        ConfigError: the port is in use or not allowed.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host if host in LOOPBACK else "", port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used ({error.strerror}); free it, or make a federation "
                              f"with another one") from None  # fmt: skip


def _await_sites(
    folder: Path, federation: Mapping[str, Any], started: Mapping[str, subprocess.Popen[bytes]], timeout_s: float
) -> None:
    end, names = time.monotonic() + timeout_s, sorted(set(federation["parties"]) - {federation["active"]})
    connected: Sequence[str] = ()
    while time.monotonic() < end:
        for name, process in started.items():
            if process.poll() is not None:
                tail = (folder / "kits" / name / "site.log").read_text(errors="replace").strip().splitlines()[-3:]
                raise RunError(f"the site of {name!r} ended at once ({' / '.join(tail)[:500]})")
        try:
            connected = ask_server(folder, "sites", sites=len(names), timeout_s=max(1.0, end - time.monotonic()))[
                "sites"
            ]
        except RunError:
            time.sleep(0.3)  # wait, because the server does not listen yet
            continue
        if set(connected) >= set(names):
            return
    raise RunError(f"sites that did not connect to {federation['host']}:{federation['port']} within {timeout_s:g} s: "
                   f"{sorted(set(names) - set(connected))}; see kits/PARTY/site.log")  # fmt: skip


def processes(folder: Path) -> list[Any]:
    """Return the processes of this federation's sites and jobs on this machine."""
    return at_kit(folder / "kits")


@needing("flare", "a federation of processes")
def at_kit(place: Path) -> list[Any]:
    """Return the processes of sites and jobs on this machine whose kit is this folder or lies in it.

    The attribute ``info["cmdline"]`` of each process holds its command line.  A process may have ended in the meantime.
    """
    import psutil  # noqa: PLC0415 - comes with FLARE

    kit, found = str(place.resolve()), []
    for process in psutil.process_iter(["cmdline"]):
        command_line = process.info["cmdline"] or ()  # empty for ended processes and other users' processes
        if any("nvflare.private" in word or word == MODULE for word in command_line) and any(
            f"{word}{os.sep}".startswith(f"{kit}{os.sep}") for word in command_line
        ):
            found.append(process)
    return found


@needing("flare", "a federation of processes")
def end(found: Sequence[Any], timeout_s: float = 5.0) -> list[Any]:
    """Terminate processes, kill those that do not end in time, and return those that are still running."""
    import psutil  # noqa: PLC0415 - comes with FLARE

    for ask in ("terminate", "kill"):
        for process in found:
            with contextlib.suppress(psutil.Error):
                getattr(process, ask)()
        _, found = psutil.wait_procs(found, timeout=timeout_s)
    return list(found)


def stop(folder: Path, timeout_s: float = 5.0) -> None:
    """Stop every site and job of this federation that runs on this machine.

    Raises:
        RunError: a process does not end, for example because it belongs to another user.
    """
    while found := processes(folder):  # a site may start another process meanwhile
        left = {process.pid for process in end(found, timeout_s)} & {process.pid for process in processes(folder)}
        if left:
            raise RunError(f"{folder}: processes {sorted(left)} of this federation do not end; if another user "
                           "started them, stop them as that user")  # fmt: skip
    _started[:] = [process for process in _started if process.poll() is None]


WAIT_S = 600.0
REJECTED = "registration rejected"  # FLARE's words for a site that is not admitted
IS_THERE, LOST = ": it says that it is connected already", ", or its answer was lost"
AGAIN_S, TRIES, READ_S = 10.0, 3, 60.0


@dataclass
class Admission:
    """A record of whether the server admitted or rejected a site in one of the site's tries to connect."""

    admitted: bool = False
    rejected: bool = False


def run_site(kit: Path, wait_s: float = WAIT_S, say: Callable[[str], None] = print) -> int:
    """Run one organisation's site until it is stopped; return its exit code.

    Args:
        kit: the organisation's start-up kit.
        wait_s: at a passive party, the longest wait for the server, in seconds.
        say: function that shows a line to the user.

    Raises:
        ConfigError: ``kit`` is not a kit, its certificate or settings are invalid, or it is in use already.
        RunError: the server does not answer.

    """
    kit = kit.resolve()
    write_site_files(kit)
    site = SiteConfig.read(kit)
    gate = ServerAddress.of(kit, site.party)
    check_certificate(gate, say)
    check_key(gate, say)
    _check_idle(kit)
    with alone(
        kit, f"{kit}: this party's site runs already, or waits for its server, on another terminal; stop that one first"
    ):
        if gate.serves:
            port_is_free(gate.host, gate.port)
        else:
            await_server(gate, wait_s, say)
        _check_idle(kit)  # check again: 'anyparty federate start' may have started the site meanwhile
        return _until_stopped(kit, site, gate, say)


def _check_idle(kit: Path) -> None:
    if running := at_kit(kit):
        raise ConfigError(f"{kit}: this party's site runs already (process {running[0].pid}); stop that one first")


def _until_stopped(kit: Path, site: SiteConfig, gate: ServerAddress, say: Callable[[str], None]) -> int:
    """Run the site, up to ``TRIES`` times if the server does not admit it; return its exit code."""
    say(f"{site.party}: starting; details go to {kit / 'site.log'}, Ctrl-C stops")
    admission = Admission()
    for tries in range(TRIES):
        if tries:
            say(f"{gate.place} did not admit {site.party}{IS_THERE if admission.rejected else LOST}; trying again")
            time.sleep(AGAIN_S)
        code = _run(kit, say, admission)
        if admission.admitted or gate.serves or code <= 0:  # a negative code means that a signal ended the site
            return code
    failed = f"{gate.place} did not admit {site.party!r}, {TRIES} times"
    if not admission.rejected:
        raise RunError(f"{failed}; {kit / 'site.log'} says how each try ended")
    raise RunError(
        f"{failed}: a site with a copy of this kit is connected from another place; stop one of the two. If "
        f"that one's machine has just failed, start again in a minute"
    )


def _run(kit: Path, say: Callable[[str], None], admission: Admission) -> int:
    """Run FLARE's process; return its exit code, and record in ``admission`` whether the server admitted the site."""
    with (
        (kit / "site.log").open("ab", buffering=0) as log,
        _ended(kit),
        subprocess.Popen(  # noqa: S603 - our own command  # nosec B603
            site_command(kit),
            env=environment(),
            cwd=kit,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        reader = threading.Thread(target=_follow, args=(process.stdout, log, say, admission), daemon=True)
        reader.start()
        try:
            code = process.wait()
        finally:
            end(at_kit(kit))
            reader.join(READ_S)  # with a time limit, because another process may hold the pipe open
    return code


def _follow(lines: IO[bytes], log: IO[bytes], say: Callable[[str], None], admission: Admission) -> None:
    """Copy a site's output to the log, show the lines for the user, and record whether the server admitted the site.

    All output is read, even if the log cannot be written, because a site blocks if its output is not read.
    """
    marker, warned = MARK.encode(), False

    def show(sentence: str) -> None:
        with contextlib.suppress(Exception):  # the terminal may be closed, or ``say`` may have a bug
            say(sentence)

    for line in lines:
        try:
            log.write(line)
        except OSError as error:
            if not warned:
                show(f"{log.name} cannot be written ({error}); the site goes on without")
            warned = True
        if line.startswith(marker):
            sentence = line[len(marker) :].decode(errors="replace").rstrip()
            admission.admitted |= CONNECTED in sentence
            show(sentence)
        elif REJECTED.encode() in line:
            admission.rejected = True


@contextlib.contextmanager
def _ended(kit: Path) -> Iterator[None]:
    """While the body of the ``with`` statement runs, SIGTERM and Ctrl-C end the site; works on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Install Python's handler of Ctrl-C again; the handler that polars installs does not interrupt a wait.
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        end(at_kit(kit))
