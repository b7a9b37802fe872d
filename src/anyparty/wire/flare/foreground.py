"""One organisation's site on a terminal: ``anyparty party start KIT``.

Checks the kit, waits for the server, starts FLARE's process and shows what is said of who is connected; all that FLARE
itself prints goes to the kit's ``site.log``.  The site and its jobs end with this.
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
REJECTED = "registration rejected"  # FLARE's words
IS_THERE, LOST = ": it says that it is connected already", ", or its answer was lost"
AGAIN_S, TRIES, READ_S = 10.0, 3, 60.0


@dataclass
class Heard:
    """What a site has printed so far, over all tries: that the server let it in, or that it refused it."""

    let_in: bool = False
    rejected: bool = False


def run_site(kit: Path, wait_s: float = WAIT_S, say: Callable[[str], None] = print) -> int:
    """Run one organisation's site until it is stopped; return its exit code.

    Args:
        kit: its start-up kit.
        wait_s: how long to wait for the server, at a passive party.
        say: hears what is to be shown.

    Raises:
        ConfigError: this is no kit, its certificate or settings do not do, or it is in use already.
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
    """Run the site, again where its server did not let it in at first; return its exit code."""
    say(f"{site.party}: starting; details go to {kit / 'site.log'}, Ctrl-C stops")
    heard = Heard()
    for tries in range(TRIES):
        if tries:
            say(f"{gate.place} did not let {site.party} in{IS_THERE if heard.rejected else LOST}; trying again")
            time.sleep(AGAIN_S)
        code = _run(kit, say, heard)
        if heard.let_in or gate.serves or code <= 0:  # below 0: somebody ended it by a signal
            return code
    failed = f"{gate.place} did not let {site.party!r} in, {TRIES} times"
    if not heard.rejected:
        raise RunError(f"{failed}; {kit / 'site.log'} says how each try ended")
    raise RunError(f"{failed}: a site with a copy of this kit is connected from another place; stop one of the two. If "
                   f"that one's machine has just failed, start again in a minute")  # fmt: skip


def _run(kit: Path, say: Callable[[str], None], heard: Heard) -> int:
    """Run FLARE's process to its end; return its exit code, and keep what was heard of it."""
    with (kit / "site.log").open("ab", buffering=0) as log, _ended(kit), subprocess.Popen(  # noqa: S603 - our own command  # nosec B603
        site_command(kit), env=environment(), cwd=kit, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        reader = threading.Thread(target=_follow, args=(process.stdout, log, say, heard), daemon=True)
        reader.start()
        try:
            code = process.wait()
        finally:
            end(at_kit(kit))
            reader.join(READ_S)  # to the end of what it printed; at most, should a process hold the pipe
    return code


def _follow(lines: IO[bytes], log: IO[bytes], say: Callable[[str], None], heard: Heard) -> None:
    """Read all that a site prints, whatever becomes of it here: one whose output nobody takes stands still."""
    mark, told = MARK.encode(), False

    def tell(sentence: str) -> None:
        with contextlib.suppress(Exception):  # a terminal that is closed, or whatever the user's own ``say`` does
            say(sentence)

    for line in lines:
        try:
            log.write(line)
        except OSError as error:
            if not told:
                tell(f"{log.name} cannot be written ({error}); the site goes on without")
            told = True
        if line.startswith(mark):
            sentence = line[len(mark) :].decode(errors="replace").rstrip()
            heard.let_in |= CONNECTED in sentence
            tell(sentence)
        elif REJECTED.encode() in line:
            heard.rejected = True


@contextlib.contextmanager
def _ended(kit: Path) -> Iterator[None]:
    """Let a request to end (SIGTERM) end the site too, where signals can be had, and Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))  # polars' handler would let waiting go on
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        end(at_kit(kit))
