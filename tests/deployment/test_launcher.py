"""A restarted site resumes its unfinished jobs, even if some of its notes are damaged."""

import json
import logging
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext

from anyparty.deployment.flare import launcher


class Engine:
    """A site's engine that starts jobs and rejects those that have ended."""

    def __init__(self, root, ended=()):
        self.root, self.ended, self.started = root, ended, []

    def new_context(self):
        context = FLContext()
        context.set_prop(FLContextKey.WORKSPACE_OBJECT, SimpleNamespace(get_root_dir=lambda: str(self.root)))
        return context

    def start_app(self, job, meta):
        if job in self.ended:
            raise RuntimeError("it has ended")
        self.started.append((job, meta))


def meta_of(job):
    return {JobConstants.JOB_ID: job, "name": "train"}


def test_jobs_are_resumed_although_other_notes_cannot_be_read(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(launcher, "PAUSES_S", (0.0,))
    texts = {
        "a": "{", "b": "[]", "c": "{}", "d": '{"meta": 3}', "e": '{"meta": {}}', "f": b"\xff",
        "g": json.dumps({"meta": meta_of("g")}), "h": json.dumps({"meta": meta_of("h")}),
    }  # fmt: skip
    notes = {name: tmp_path / name / launcher.UNFINISHED for name in texts}
    for name, text in texts.items():
        notes[name].parent.mkdir()
        notes[name].write_bytes(text if isinstance(text, bytes) else text.encode())
    engine = Engine(tmp_path, ended=["g"])
    with caplog.at_level(logging.WARNING, logger=launcher.__name__):
        launcher.SiteLauncher()._resume_jobs(engine)
    assert engine.started == [("h", meta_of("h"))]
    assert sorted(name for name, note in notes.items() if not note.exists()) == ["g"]  # it has ended, see the log
    for name in "abcdef":
        assert f"{notes[name]} cannot be read" in caplog.text
    assert "job g: it has ended" in caplog.text


class Process:
    """A job's process: already killed, or running until it is terminated."""

    def __init__(self, *, killed):
        self.over = threading.Event()
        if killed:
            self.over.set()

    def poll(self):
        return -9 if self.over.is_set() else None

    def wait(self):
        self.over.wait(10.0)

    def terminate(self):
        self.over.set()


def test_a_job_ended_during_a_restart_leaves_no_process(monkeypatch):
    monkeypatch.setattr(launcher, "PAUSES_S", (0.0, 0.0))
    first, second, others = Process(killed=True), Process(killed=False), []
    processes, ended = iter([first, second]), []

    def begin():
        process = next(processes)
        if process is second:  # it runs, but its handle does not know it yet: end the job now
            others.append(threading.Thread(target=handle.terminate))
            others[0].start()
            others[0].join(0.5)
        return process

    handle = launcher.RestartingProcess(begin, lambda: ended.append(True))
    handle.wait()
    others[0].join(10.0)
    assert ended
    assert second.over.is_set(), "it runs on"


def test_an_ended_job_is_not_restarted(monkeypatch):
    monkeypatch.setattr(launcher, "PAUSES_S", (0.0,))
    processes = iter([Process(killed=True)])
    handle = launcher.RestartingProcess(lambda: next(processes), lambda: None)
    monkeypatch.setattr(handle.stopping, "wait", lambda _: handle.terminate())  # the job is ended just after the check
    handle.wait()
    assert next(processes, None) is None
