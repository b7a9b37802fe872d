"""Ctrl-C during training: a sentence, exit code 130, and a run that resumes to the same weights."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import Call

LONG = ["--set", "train.epochs=80", "--set", "train.patience=80", "--run", "run"]
DEADLINE_S = 600  # a busy machine takes minutes to import all


def epochs(run: Path) -> int:
    """Return the number of recorded epochs; 0 before the run begins."""
    try:
        return len(json.loads((run / "record.json").read_text(encoding="utf-8"))["history"])
    except FileNotFoundError:
        return 0


def interrupt(
    words: list[str], when: Callable[[], bool], how: signal.Signals = signal.SIGINT, *, ignoring: bool = False,
    **environment: str,
) -> tuple[int, str]:  # fmt: skip
    """Start the command line, send a signal when ``when`` returns true, and return its exit code and stderr.

    With ``ignoring`` it is started as a shell's background job, which ignores Ctrl-C.
    """
    command = [sys.executable, "-m", "anyparty", *words]
    quick = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignoring else signal.getsignal(signal.SIGINT)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=quick) as child:  # noqa: S603
        signal.signal(signal.SIGINT, before)
        deadline = time.monotonic() + DEADLINE_S
        try:
            while not when() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            assert child.poll() is None, "it ended before it could be stopped"
            child.send_signal(how)
            said = child.communicate(timeout=DEADLINE_S)[1]
        finally:
            child.kill()  # in case it ignored the signal
    return child.returncode, said


def weights(run: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(run.glob("parties/*/model.safetensors"))]


def test_a_stopped_run_resumes_to_the_same_weights(work: Path, call: Call) -> None:
    code, said = interrupt(["train", "credit.toml", *LONG], lambda: epochs(work / "run") >= 7)
    assert code == 130
    assert "Traceback" not in said
    go_on = said.strip().splitlines()[-1].partition("with: ")[2]
    assert 7 <= epochs(work / "run") < 80
    assert go_on == f"anyparty {shlex.join(['train', 'credit.toml', *LONG])} --resume"
    assert call(*shlex.split(go_on)[1:]).exit_code == 0
    assert call("train", "credit.toml", "-q", *LONG[:-1], "whole").exit_code == 0
    assert epochs(work / "run") == epochs(work / "whole") == 80
    assert weights(work / "run") == weights(work / "whole") != []


@pytest.mark.slow
def test_a_run_with_a_single_party_can_be_stopped(work: Path) -> None:
    text = (work / "credit.toml").read_text(encoding="utf-8")
    (work / "alone.toml").write_text(text.replace('[parties.shop]\ntable = "shop.csv"', ""), encoding="utf-8")
    long = [word.replace("=80", "=100000") for word in LONG]
    code, said = interrupt(["train", "alone.toml", "-q", *long], lambda: epochs(work / "run") >= 1)
    assert (code, said.count("\n")) == (130, 1)


@pytest.mark.slow
def test_sigterm_is_handled_like_ctrl_c(work: Path) -> None:
    """Batch systems and containers send SIGTERM, also to background jobs, which ignore Ctrl-C."""
    long = [word.replace("=80", "=100000") for word in LONG]
    code, said = interrupt(["train", "credit.toml", "-q", *long], lambda: epochs(work / "run") >= 1, signal.SIGTERM,
                           ignoring=True)  # fmt: skip
    assert (code, said.count("\n")) == (130, 1), said
    assert json.loads((work / "run" / "record.json").read_text(encoding="utf-8"))["status"] == "stopped"


@pytest.mark.slow
def test_a_stopped_suite_leaves_no_process_behind(tmp_path: Path) -> None:
    """Its runs have separate processes."""
    at_work: set[psutil.Process] = set()
    before = set(psutil.Process().children(recursive=True))  # other tests' suites leave theirs to be used again

    def training() -> bool:
        for each in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.Error):  # it has ended
                if "loky" in " ".join(each.cmdline()) and each.cpu_times().user > 2:
                    at_work.add(each)
        return len(at_work) >= 2

    words = ["bench", "apc-fig5", "--dataset", "breast-cancer", "--jobs", "2", "--folder", str(tmp_path)]
    code, said = interrupt(words, training, signal.SIGTERM)
    assert code == 130
    assert "Stopped." in said
    assert len(at_work) >= 2
    assert not psutil.wait_procs(at_work, timeout=60)[1]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_imports_ends_the_process_at_once(work: Path, how: signal.Signals) -> None:
    """Other code may catch an exception during imports."""
    slow = "import pathlib, time\npathlib.Path('imports').touch()\n"
    slow += "try:\n    time.sleep(60)\nexcept BaseException:\n    time.sleep(60)\n"
    (work / "slow").mkdir()
    (work / "slow" / "torch.py").write_text(slow, encoding="utf-8")
    code, said = interrupt(["align", "credit.toml"], (work / "imports").exists, how, PYTHONPATH=str(work / "slow"))
    assert (code, said) == (-how, "")


def test_a_run_stopped_before_training_leaves_no_files(work: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anyparty.api.federation.Federation.from_config", stop)
    result = call("train", "credit.toml")
    assert result.exit_code == 130
    assert result.stderr == "Stopped before training began; nothing was saved.\n"
    assert call("align", "credit.toml").exit_code == 130
