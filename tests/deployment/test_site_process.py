"""A site whose process ends by itself is restarted until the server admits it, and reports the reason if not."""

import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyparty.deployment.flare import admission, federation_folder, site_process
from anyparty.errors import ConfigError, RunError

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from tests.deployment.test_preflight import ROSTER
from tests.ports import free_port

REFUSED = "Authenticator - ERROR - registration rejected: register_client unauthenticated"
LET_IN = f"{admission.MARK}shop is connected to 127.0.0.1"
SITE = """
import os, pathlib, signal, sys
signal.alarm(20)  # a site that stands still is seen as one that a signal ended
tries = pathlib.Path("tries")
number = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (number + 1))
line, code = {ends}[number]
print(line.replace("MUCH", "much\\n" * 80_000), flush=True)  # more than a pipe holds
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    home = tmp_path_factory.mktemp("fed") / "fed"
    federation_folder.init(home, ROSTER, port=free_port())
    return home / "kits" / "shop"


@pytest.fixture
def start(kit, monkeypatch):
    """Return a function that starts a site whose process prints a line and ends, differently at each try."""
    (kit / "tries").unlink(missing_ok=True)
    monkeypatch.setattr(site_process, "AGAIN_S", 0.0)
    monkeypatch.setattr(site_process, "await_server", lambda *_: None)

    def started(*ends, say=lambda _: None):
        program = SITE.format(ends=[(line, int(code)) for line, code in ends])
        monkeypatch.setattr(site_process, "site_command", lambda _: [sys.executable, "-c", program])
        said = []
        try:
            return federation_folder.run_site(kit, 0, lambda sentence: (said.append(sentence), say(sentence))), said[1:]
        finally:
            assert len((kit / "tries").read_text()) == len(ends)

    return started


def test_a_site_that_was_admitted_is_not_restarted(start):
    assert start((LET_IN, 7)) == (7, ["shop is connected to 127.0.0.1"])


def test_a_site_that_exits_normally_is_not_restarted(start):
    assert start(("", 0)) == (0, [])


def test_a_site_ended_by_a_signal_is_not_restarted(start):
    """``federate stop`` ends a site with SIGTERM, possibly before the server has admitted it."""
    assert start(("", -signal.SIGTERM)) == (-signal.SIGTERM, [])


def test_a_lost_registration_answer_is_retried(start):
    code, said = start(("expect payload to be dict but got NoneType", 101), (LET_IN, 3))
    assert code == 3
    assert said[0].endswith("did not admit shop, or its answer was lost; trying again")


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_rejected_registration_is_reported_as_a_second_site(start, refused):
    ends = [("expect payload to be dict but got NoneType", 101)] * 3
    ends[refused] = (REFUSED, 101)
    with pytest.raises(RunError, match="3 times: a site with a copy of this kit is connected from another place"):
        start(*ends)


def test_a_site_that_ends_before_admission_names_its_log(start, kit):
    with pytest.raises(RunError, match=r"did not admit 'shop', 3 times; .*site\.log says how each try ended"):
        start(*[("Traceback: something else", 101)] * 3)
    assert (kit / "site.log").read_text().count("Traceback: something else") >= 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_site_continues_if_its_log_cannot_be_written(start, kit):
    log = kit.resolve() / "site.log"
    log.unlink(missing_ok=True)
    log.symlink_to("/dev/full")
    try:
        code, said = start((f"MUCH{LET_IN}", 7))
    finally:
        log.unlink()
    assert code == 7
    assert said == [
        f"{log} cannot be written ([Errno 28] No space left on device); the site goes on without",
        "shop is connected to 127.0.0.1",
    ]


def test_a_site_continues_if_its_terminal_is_closed(start):
    def closed(sentence):
        if "connected" in sentence:
            raise OSError("the terminal is closed")

    code, said = start((f"{LET_IN}\nMUCH{LET_IN}", 7), say=closed)
    assert code == 7
    assert said == ["shop is connected to 127.0.0.1"] * 2


def test_a_site_is_not_started_twice_while_it_waits_for_the_server(start, kit, monkeypatch):
    tried = []

    def start_meanwhile(*_):
        if not tried:  # the first site waits: start the second one, on another terminal
            tried.append(kit)
            with pytest.raises(ConfigError, match="this party's site runs already, or waits for its server"):
                federation_folder.run_site(kit, 0, lambda _: None)

    monkeypatch.setattr(site_process, "await_server", start_meanwhile)
    assert start((LET_IN, 7)) == (7, ["shop is connected to 127.0.0.1"])
    assert tried


def test_a_site_started_by_federate_start_meanwhile_is_not_started(kit, monkeypatch):
    def start_meanwhile(*_):  # 'anyparty federate start' does this while the site waits for the server
        monkeypatch.setattr(site_process, "at_kit", lambda _: [SimpleNamespace(pid=4711)])

    monkeypatch.setattr(site_process, "await_server", start_meanwhile)
    monkeypatch.setattr(site_process, "site_command", lambda _: pytest.fail("it was started"))
    with pytest.raises(ConfigError, match=r"this party's site runs already \(process 4711\)"):
        federation_folder.run_site(kit, 0, lambda _: None)
