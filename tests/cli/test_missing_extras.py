"""The command line without the packages of an extra, and with a closed stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyparty.errors import EXTRAS, ConfigError, MissingExtra, needing
from tests.conftest import write_tables

WITHOUT = """
import contextlib, io, json, sys
for name in {packages}:
    sys.modules[name] = None  # as if it were not installed
from typer.testing import CliRunner
from anyparty.cli.app import app
shown = []
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, words)
    shown.append([result.exit_code, result.stderr, repr(result.exception)])
print(json.dumps(shown))
"""


def without(extra: str, commands: list[list[str]], folder: Path) -> list[tuple[int, str, str]]:
    """Run commands in a process that lacks the packages of an extra: exit code, stderr, exception of each."""
    code = WITHOUT.format(packages=EXTRAS[extra])
    words = [sys.executable, "-c", code, json.dumps(commands)]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder)  # noqa: S603 - our own words
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_federate_commands_name_the_missing_extra(tmp_path):
    pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
    from anyparty.deployment import coordinator  # noqa: PLC0415 - an extra

    write_tables(tmp_path)
    path = tmp_path / "credit.toml"
    path.write_text(path.read_text().replace("[federation]", '[federation]\nactive = "bank"'))
    coordinator.init(tmp_path / "credit.toml", tmp_path / "house", port=8765)
    commands = [
        ["federate", "init", "credit.toml", "other"],
        ["federate", "start", "house"],
        ["federate", "train", "house", "credit.toml"],
        ["federate", "predict", "house", "credit.toml"],
        ["federate", "status", "house"],
        ["federate", "stop", "house"],
        ["federate", "demo", "apart"],
        ["party", "start", "house/kits/shop"],
        ["party", "start", "house/kits/bank"],
    ]
    for command, (code, said, _) in zip(commands, without("flare", commands, tmp_path), strict=True):
        assert code == 2, command
        assert said.endswith(" needs an extra: pip install 'anyparty[flare]'\n"), (command, said)
        assert said.count("\n") == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_other_commands_work_without_extras(tmp_path):
    write_tables(tmp_path)
    commands = [["train", "credit.toml", "--quiet"], ["evaluate", "runs/credit-laser-seed1"], ["methods"], ["doctor"],
                ["report", "runs/credit-laser-seed1"]]  # fmt: skip
    for command, (code, said, raised) in zip(commands, without("flare", commands, tmp_path), strict=True):
        assert code == 0, (command, said, raised)


@pytest.mark.slow
def test_the_service_names_the_missing_extra(tmp_path):
    ((code, said, _),) = without("serve", [["serve", "runs/none"]], tmp_path)
    assert (code, said) == (2, "the prediction service needs an extra: pip install 'anyparty[serve]'\n")


def test_a_missing_package_outside_extras_raises_the_original_error():
    with pytest.raises(ModuleNotFoundError, match="no_such") as raised, needing("flare", "this"):
        import no_such  # noqa: F401, PLC0415
    assert not isinstance(raised.value, ConfigError)


def test_nested_missing_extras_are_reported_once():
    with pytest.raises(MissingExtra, match=r"^inner needs"), needing("serve", "outer"), needing("flare", "inner"):
        raise ModuleNotFoundError(name="nacl.bindings")


SAYS = """
import typer
from anyparty.cli.errors import with_errors
@with_errors
def command():
    {does}
app = typer.Typer()
app.command()(command)
app()
"""


@pytest.mark.parametrize(
    ("does", "read", "code", "said"),
    [
        ("typer.echo('a line')", False, 1, ""),
        ("raise BrokenPipeError(32, 'Broken pipe')", True, 2, "[Errno 32] Broken pipe"),  # of something else
    ],
    ids=["stdout", "another"],
)
def test_a_closed_output_pipe_is_not_an_error(does, read, code, said):
    ours, theirs = os.pipe()
    try:
        if not read:
            os.close(ours)
        words = [sys.executable, "-c", SAYS.format(does=does)]
        ran = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    finally:
        os.close(theirs)
        if read:
            os.close(ours)
    assert (ran.returncode, ran.stderr.strip()) == (code, said)
