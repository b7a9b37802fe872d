"""The health that FLARE's server reports: a failing job runner, a server that hangs, and lost sites."""

import json
import os
import re
import threading
import time
from types import SimpleNamespace

import pytest

from anyparty.cli import doctor
from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import admin, federation_folder, server_health
from anyparty.deployment.flare.server_health import HealthFile, JobRunnerGuard, lost_sites, server_trouble
from anyparty.errors import RunError

ENDED = 2**22 + 1  # above the largest number of a process


class JobRunner:
    """FLARE's job runner: ``run`` starts a thread of ``_job_complete_process``, and fails if files cannot be opened."""

    def __init__(self, failures):
        self.ask_to_stop, self.failures, self.starts, self.completions = False, failures, 0, []

    def run(self, fl_ctx):
        threading.Thread(target=self._job_complete_process, args=[fl_ctx], daemon=True).start()
        self.starts += 1
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        self.ask_to_stop = True

    def _job_complete_process(self, engine):
        self.completions.append(threading.get_ident())
        while not self.ask_to_stop:
            time.sleep(0.01)


@pytest.fixture
def report(tmp_path):
    """Return a function that writes a server's health, as this process would, and changes the file's age."""

    def write(*, age_s=0.0, **more):
        content = {"process": os.getpid(), "lost": [], "error": "", "since": 0.0} | more
        (tmp_path / server_health.FILE).write_text(json.dumps(content))
        os.utime(tmp_path / server_health.FILE, (time.time() - age_s,) * 2)
        return tmp_path

    return write


def test_a_job_runner_that_fails_is_started_again(monkeypatch):
    monkeypatch.setattr(server_health, "PAUSE_S", 0.02)
    runner, guard = JobRunner(failures=3), JobRunnerGuard()
    guard.guard(runner)
    runner.run("engine")
    assert runner.starts == 4
    assert len(runner.completions) == 1  # a second loop would finish every job twice
    assert guard.error == "OSError: [Errno 24] Too many open files"
    assert guard.failing(time.time())
    assert not guard.failing(time.time() + server_health.RECOVERED_S + 1)


def test_the_first_time_of_repeated_errors_is_kept():
    guard = JobRunnerGuard()
    guard._failed(OSError("one"))
    first = guard.since
    guard._failed(OSError("two"))
    assert (guard.since, guard.error) == (first, "OSError: two")


def test_a_server_reports_its_health_and_lost_sites(tmp_path, monkeypatch):
    guard, file = JobRunnerGuard(), HealthFile(tmp_path)
    file.report(guard, {"shop", "clinic"})
    assert lost_sites(tmp_path) == ["clinic", "shop"]
    assert server_trouble(tmp_path) == ""
    guard._failed(OSError(24, "Too many open files"))
    file.report(guard, set())
    assert server_trouble(tmp_path) == ""  # it may be over in a moment
    monkeypatch.setattr(server_health, "FAILING_S", -1.0)
    said = server_trouble(tmp_path)
    assert "unable to start jobs for 0 s (OSError: [Errno 24] Too many open files)" in said
    assert "anyparty federate stop FOLDER" in said
    guard.last -= server_health.RECOVERED_S
    file.report(guard, set())
    assert (server_trouble(tmp_path), lost_sites(tmp_path)) == ("", [])


def test_an_unchanged_report_is_not_written_again(tmp_path):
    file = HealthFile(tmp_path)
    file.report(JobRunnerGuard(), set())
    before = (tmp_path / server_health.FILE).stat()
    os.utime(tmp_path / server_health.FILE, (0, 0))
    file.report(JobRunnerGuard(), set())
    after = (tmp_path / server_health.FILE).stat()
    assert after.st_ino == before.st_ino
    assert after.st_mtime >= before.st_mtime


def test_a_server_that_hangs_is_reported(report):
    said = server_trouble(report(age_s=30.0))
    assert re.match(
        rf"its process {os.getpid()} has not responded for 3\d s; restart it: 'anyparty federate stop", said
    )


@pytest.mark.parametrize("content", [{"process": ENDED}, {"process": "?"}, {"process": None}])
def test_the_report_of_an_ended_server_is_ignored(report, content):
    kit = report(age_s=30.0, lost=["shop"], **content)
    assert (server_trouble(kit), lost_sites(kit)) == ("", [])


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A federation whose server on this machine is process ``os.getpid()``; commands reach it at once."""
    pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
    roster = Roster(tuple(Party(name=name) for name in ("bank", "shop")), "bank")
    federation_folder.init(tmp_path / "fed", roster, port=8002, site={"table": "t.csv"})
    monkeypatch.setattr(admin, "await_server", lambda _: None)
    monkeypatch.setattr(admin, "AGAIN_S", 0.0)
    return tmp_path / "fed"


@pytest.mark.parametrize(
    ("health", "words"),
    [
        ({"at": 30.0}, "has not responded for"),
        ({"at": 0.0, "error": "OSError: [Errno 24]", "since": 1.0}, "has been unable to start jobs"),
    ],
    ids=["hangs", "fails"],
)
def test_commands_report_a_server_that_cannot_start_jobs(federation, monkeypatch, health, words):
    kit = federation / "kits" / "bank"
    age_s = health.pop("at")
    (kit / server_health.FILE).write_text(json.dumps({"process": os.getpid(), "lost": []} | health))
    os.utime(kit / server_health.FILE, (time.time() - age_s,) * 2)
    monkeypatch.setattr(admin, "command_line", lambda *_, **__: pytest.fail("FLARE's client was started"))
    for command in ("status", "submit", "wait"):
        with pytest.raises(RunError, match=f"the server of .* cannot be used: .*{words}.*restart it"):
            admin.ask_server(federation, command)
    monkeypatch.setattr(doctor, "at_kit", lambda _: [SimpleNamespace(pid=7)])
    found = {each.check: each for each in doctor.examine(federation)}
    assert found["bank: port 8002"].level == "fix"
    assert words in found["bank: port 8002"].result


def test_a_command_ends_if_the_server_fails_while_it_waits(federation, monkeypatch):
    kit = federation / "kits" / "bank"
    monkeypatch.setattr(admin, "command_line", lambda *_, **__: ["sleep", "60"])
    monkeypatch.setattr(admin, "WATCH_S", 0.1)
    timer = threading.Timer(0.5, lambda: (kit / server_health.FILE).write_text(
        json.dumps({"process": os.getpid(), "error": "OSError: [Errno 24]", "since": 1.0})))  # fmt: skip
    timer.start()
    began = time.monotonic()
    with pytest.raises(RunError, match="unable to start jobs"):
        admin.ask_server(federation, "wait", job="7", timeout_s=600.0)
    assert time.monotonic() - began < 30


def test_a_job_can_be_aborted_although_no_job_can_start(federation, monkeypatch):
    kit = federation / "kits" / "bank"
    (kit / server_health.FILE).write_text(json.dumps({"process": os.getpid(), "error": "OSError", "since": 1.0}))
    monkeypatch.setattr(admin, "command_line", lambda *_, **__: ["echo", "{}"])
    assert admin.ask_server(federation, "abort", job="7") == {}


def test_status_shows_lost_sites_as_absent(federation, monkeypatch):
    answer = {"server": "idle", "sites": ["shop"], "jobs": []}
    monkeypatch.setattr(federation_folder, "ask_server", lambda *_: dict(answer))
    assert federation_folder.status(federation) == {"active": "bank", **answer, "absent": []}
    (federation / "kits" / "bank" / server_health.FILE).write_text(
        json.dumps({"process": os.getpid(), "lost": ["shop"]})
    )
    assert federation_folder.status(federation) == {"active": "bank", **answer, "sites": [], "absent": ["shop"]}


def test_a_server_that_runs_but_cannot_be_reached_is_something_to_fix(federation, monkeypatch):
    monkeypatch.setattr(doctor, "at_kit", lambda _: [SimpleNamespace(pid=7)])
    monkeypatch.setattr(doctor, "probe", lambda *_, **__: "connection refused")
    found = {each.check: each for each in doctor.examine(federation)}
    assert found["bank: port 8002"].level == found["shop: server"].level == "fix"
    assert "process 7, but localhost:8002 cannot be reached (connection refused)" in found["bank: port 8002"].result


def test_a_party_on_its_own_machine_must_reach_its_server(federation, monkeypatch, tmp_path):
    (federation / "kits" / "shop").rename(tmp_path / "shop")
    monkeypatch.setattr(doctor, "probe", lambda *_, **__: "connection refused")
    found = {each.check: each for each in doctor.examine(tmp_path / "shop")}
    assert found["shop: server"].level == "fix"
