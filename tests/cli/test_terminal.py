"""Narrow terminals, NO_COLOR, completion and exit codes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from anyparty.cli import demo_federation
from anyparty.cli import doctor as checks
from anyparty.cli.app import app
from anyparty.cli.console import screen
from anyparty.cli.errors import with_errors
from tests.conftest import Call

NUMBER = re.compile(r"\d[\d,.]*%?")
FRAME = re.compile("[│┃┡┏└┌├╇]")
ROOT = Path(__file__).parents[2]


def numbers(text: str) -> Counter[str]:
    return Counter(NUMBER.findall(text))


@pytest.mark.parametrize(
    "words",
    [["evaluate", "RUN"], ["predict", "RUN"], ["report", "RUN"], ["align", "credit.toml"], ["methods", "apc"],
     ["compare", "credit.toml", "--methods", "local,ensemble", "--seeds", "2", "--missing", "0,0.3",
      "--set", "train.epochs=1"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_narrow_terminal_cuts_no_number(
    work: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    run = trained / "runs" / "credit-laser-seed1"
    words = [str(run) if word == "RUN" else word for word in words]
    words += ["--out", "page.html"] if words[0] == "report" else []
    shown = []
    for columns in (400, 50):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        shown.append(result.stdout)
    wide, narrow = shown
    assert "…" not in narrow
    assert max(len(line) for line in narrow.splitlines() if FRAME.match(line)) <= 50
    assert not numbers(wide) - numbers(narrow)


def test_a_row_becomes_a_section_if_its_cells_do_not_fit(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from rich.table import Table  # noqa: PLC0415

    table = Table("party")
    for name in ("rows", "share"):
        table.add_column(name, justify="right")
    table.add_row("bank", "1,234,567", "12.3 ± 0.4")
    table.add_row("shop", "", "1.0 ± 0.1")
    for width, lines in ((40, 6), (24, 8)):  # as a table, and as two sections
        monkeypatch.setenv("COLUMNS", str(width))
        screen().print(table)
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == lines
        assert any("1,234,567" in line for line in shown)
        assert any("12.3 ± 0.4" in line for line in shown)


def typed(*words: str, **environment: str) -> bytes:
    """Run the command line in a terminal, and return what the terminal gets."""
    lead, follow = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    kept |= {"TERM": "xterm-256color", "COLUMNS": "80", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "anyparty", *words]
    process = subprocess.Popen(command, stdin=follow, stdout=follow, stderr=follow, env=kept | environment)  # noqa: S603
    os.close(follow)
    got = b""
    while True:
        try:
            part = os.read(lead, 1 << 16)
        except OSError:  # the terminal was closed
            break
        if not part:
            break
        got += part
    os.close(lead)
    process.wait()
    return got


@pytest.mark.parametrize("words", [["methods"], ["evaluate"]])
def test_no_color_prints_no_escape_codes(words: list[str]) -> None:
    assert b"\x1b[" in typed(*words)
    plain = typed(*words, NO_COLOR="1")
    assert plain
    assert b"\x1b" not in plain


@pytest.mark.parametrize(
    ("shell", "environment", "expected"),
    [
        ("bash", {"COMP_WORDS": "anyparty ev", "COMP_CWORD": "1"}, "evaluate"),
        ("bash", {"COMP_WORDS": "anyparty federate st", "COMP_CWORD": "2"}, "status"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "anyparty train --re"}, "--resume"),
        ("fish", {"_TYPER_COMPLETE_ARGS": "anyparty tr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "train"),
    ],
)
def test_a_shell_completes_commands_and_options(shell: str, environment: dict[str, str], expected: str) -> None:
    kept = os.environ | {"PYTHONPATH": str(ROOT / "src"), "_ANYPARTY_COMPLETE": f"complete_{shell}"} | environment
    ran = subprocess.run([sys.executable, "-m", "anyparty"], env=kept, capture_output=True, text=True, check=False)
    assert expected in ran.stdout, ran.stderr


def test_the_script_of_a_shell_calls_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the tests may run without a shell
    shown = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="anyparty")
    assert shown.exit_code == 0, shown.output
    assert "_ANYPARTY_COMPLETE=complete_bash" in shown.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0), (["methods"], 0), (["evaluate", "nowhere"], 2), (["train", "--rezume"], 2),
        (["trian"], 2), (["evaluate"], 2),
    ],
)  # fmt: skip
def test_commands_return_the_documented_exit_codes(work: Path, call: Call, words: list[str], code: int) -> None:
    assert call(*words).exit_code == code


def test_checks_return_the_documented_exit_codes(work: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    for level, code in (("fine", 0), ("note", 0), ("fix", 2)):
        monkeypatch.setattr(
            checks, "examine", lambda _, level=level: [checks.Finding(check="disk", level=level, result="x")]
        )
        assert call("doctor").exit_code == code
    for equal, code in ((True, 0), (False, 2)):
        result = SimpleNamespace(most_frequent=0.7, accuracy=0.8, answers=work / "answers.csv", equal={"bank": equal})
        monkeypatch.setattr(demo_federation, "run", lambda *_, result=result, **__: result)
        assert call("federate", "demo", "apart").exit_code == code


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError("disk"), 2), (ZeroDivisionError(), 1)]
)
def test_exceptions_map_to_exit_codes(error: BaseException, code: int) -> None:
    def command() -> None:
        raise error

    failing = typer.Typer()
    failing.command()(with_errors(command))
    assert CliRunner().invoke(failing, []).exit_code == code
