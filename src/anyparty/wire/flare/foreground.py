"""One organisation's site on a terminal: ``anyparty party start KIT``.

It checks the kit, waits for the server, starts FLARE's process and shows which sites connect and leave.  FLARE's own
output goes to the kit's ``site.log``.  The site and its jobs end with this process.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from anyparty.errors import ConfigError, RunError
from anyparty.wire.flare.greet import CONNECTED, MARK
from anyparty.wire.flare.kits import dress
from anyparty.wire.flare.reach import Gate, await_server, check_certificate, check_key
from anyparty.wire.flare.site import Site
from anyparty.wire.flare.sites import alone, at_kit, end, environment, port_is_free, site_command

WAIT_S = 600.0
REJECTED = "registration rejected"  # as FLARE prints it
IS_THERE, LOST = ": it says that it is connected already", ", or its answer was lost"
AGAIN_S, TRIES, READ_S = 10.0, 3, 60.0


@dataclass
class Admission:
    """Whether the server has admitted or rejected a site, according to its output over all tries."""

    admitted: bool = False
    rejected: bool = False


def run_site(kit: Path, wait_s: float = WAIT_S, say: Callable[[str], None] = print) -> int:
    """Run one organisation's site until it is stopped; return its exit code.

    Args:
        kit: its start-up kit.
        wait_s: how long to wait for the server, at a passive party.
        say: shows a line to the user.

    Raises:
        ConfigError: ``kit`` is not a kit, its certificate or settings are invalid, or it is in use already.
        RunError: the server does not answer.

    """
    kit = kit.resolve()
    dress(kit)
    site = Site.read(kit)
    gate = Gate.of(kit, site.party)
    check_certificate(gate, say)
    check_key(gate, say)
    _check_idle(kit)
    with alone(kit, f"{kit}: this party's site runs already, or waits for its server, on another terminal; stop that "
                    f"one first"):  # fmt: skip
        if gate.serves:
            port_is_free(gate.host, gate.port)
        else:
            await_server(gate, wait_s, say)
        _check_idle(kit)  # by now 'anyparty federate start' may have started it
        return _until_stopped(kit, site, gate, say)


def _check_idle(kit: Path) -> None:
    if running := at_kit(kit):
        raise ConfigError(f"{kit}: this party's site runs already (process {running[0].pid}); stop that one first")


def _until_stopped(kit: Path, site: Site, gate: Gate, say: Callable[[str], None]) -> int:
    """Run the site, up to ``TRIES`` times if the server does not admit it; return its exit code."""
    say(f"{site.party}: starting; details go to {kit / 'site.log'}, Ctrl-C stops")
    admission = Admission()
    for tries in range(TRIES):
        if tries:
            say(f"{gate.place} did not let {site.party} in{IS_THERE if admission.rejected else LOST}; trying again")
            time.sleep(AGAIN_S)
        code = _run(kit, say, admission)
        if admission.admitted or gate.serves or code <= 0:  # below 0: it was ended by a signal
            return code
    failed = f"{gate.place} did not let {site.party!r} in, {TRIES} times"
    if not admission.rejected:
        raise RunError(f"{failed}; {kit / 'site.log'} says how each try ended")
    raise RunError(f"{failed}: a site with a copy of this kit is connected from another place; stop one of the two. If "
                   f"that one's machine has just failed, start again in a minute")  # fmt: skip


def _run(kit: Path, say: Callable[[str], None], admission: Admission) -> int:
    """Run FLARE's process; return its exit code, and record its admission."""
    with (kit / "site.log").open("ab", buffering=0) as log, _ended(kit), subprocess.Popen(  # noqa: S603 - our own command  # nosec B603
        site_command(kit), env=environment(), cwd=kit, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        reader = threading.Thread(target=_follow, args=(process.stdout, log, say, admission), daemon=True)
        reader.start()
        try:
            code = process.wait()
        finally:
            end(at_kit(kit))
            reader.join(READ_S)  # limited, in case another process holds the pipe open
    return code


def _follow(lines: IO[bytes], log: IO[bytes], say: Callable[[str], None], admission: Admission) -> None:
    """Read all output of a site, even if it cannot be written: a site blocks if its output is not read."""
    mark, warned = MARK.encode(), False

    def tell(sentence: str) -> None:
        with contextlib.suppress(Exception):  # a closed terminal, or an error in the user's ``say``
            say(sentence)

    for line in lines:
        try:
            log.write(line)
        except OSError as error:
            if not warned:
                tell(f"{log.name} cannot be written ({error}); the site goes on without")
            warned = True
        if line.startswith(mark):
            sentence = line[len(mark) :].decode(errors="replace").rstrip()
            admission.admitted |= CONNECTED in sentence
            tell(sentence)
        elif REJECTED.encode() in line:
            admission.rejected = True


@contextlib.contextmanager
def _ended(kit: Path) -> Iterator[None]:
    """End the site on SIGTERM and Ctrl-C, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))  # polars' handler would not interrupt waiting
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        end(at_kit(kit))
