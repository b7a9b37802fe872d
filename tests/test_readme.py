"""The README's commands run, and the paths in it and in CONTRIBUTING.md exist."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from anyparty import METHODS
from tests.conftest import Call, write_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MARKED = re.compile(
    r"<!-- (?P<how>run|run: net|file: (?P<file>\S+)) -->\n```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL
)


def blocks(kind: str) -> Iterator[re.Match[str]]:
    return (block for block in MARKED.finditer(README) if block["kind"] == kind)


@pytest.fixture
def beside_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with the files that the README uses."""
    write_tables(tmp_path)
    (tmp_path / "credit.toml").unlink()
    shop = pl.read_csv(tmp_path / "shop.csv").rename({"town": "postcode"}).with_columns(pl.lit("A").alias("name"))
    shop.write_csv(tmp_path / "shop.csv")
    for name in ("bank", "shop"):
        pl.read_csv(tmp_path / f"{name}.csv").head(40).write_csv(tmp_path / f"new-{name}.csv")
    for block in blocks("toml"):
        (tmp_path / block["file"]).write_text(block["text"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_commands_run(beside_readme: Path, call: Call) -> None:
    lines = [line for block in blocks("console") if block["how"] == "run" for line in block["text"].splitlines()]
    assert len(lines) >= 7
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "anyparty"
        shown = call(*words)
        assert shown.exit_code == 0, f"{line}\n{shown.output}"
    assert pl.read_csv("answers.csv").height == 40


@pytest.mark.net
def test_its_parties_apart_run(beside_readme: Path, call: Call) -> None:
    pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
    (block,) = (block for block in blocks("console") if block["how"] == "run: net")
    assert call("init", "bank.csv", "shop.csv", "--id", "customer", "--label", "default").exit_code == 0
    done = []
    try:
        for line in block["text"].splitlines():
            shown = call(*shlex.split(line, comments=True)[1:])
            assert shown.exit_code == 0, f"{line}\n{shown.output}"
            done.append(shown.stdout)
    finally:
        if (beside_readme / "house").exists():
            call("federate", "stop", "house")
    assert "FINISHED:COMPLETED" in done[2]
    assert "accuracy" in done[2]


def test_its_python_runs(beside_readme: Path) -> None:
    (program,) = blocks("python")
    shown = subprocess.run([sys.executable, "-c", program["text"]], capture_output=True, text=True, check=False)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    assert "accuracy" in shown.stdout
    assert "prediction" in shown.stdout


def test_its_other_commands_are_there() -> None:
    targets = set(re.findall(r"^(?:\| `)?make ([\w-]+)", README + CONTRIBUTING, flags=re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets >= {"setup", "demo", "test", "test-all", "check", "bench"}
    assert targets <= set(re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE))


def test_every_place_that_they_name_is_there() -> None:
    places = r"`((?:src|tests|tools|docs|examples|benchmarks|\.ci|\.github)/[\w./-]*)`"
    named = re.findall(places, README + CONTRIBUTING)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_folder_is_named() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()} | {".git"}
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in ignored]
    folders = [path for path in folders if path.name != "src"] + [ROOT / "src" / "anyparty"]
    lacking = [path for path in folders if f"`{path.relative_to(ROOT)}/" not in CONTRIBUTING]
    assert [str(path.relative_to(ROOT)) for path in lacking] == []


def test_it_is_short_and_shows_a_picture_first() -> None:
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    assert len(text.split()) <= 950
    pictures = re.findall(r'(?:src|srcset)="(docs/images/[^"]+)"', text[: text.index("\n## ")])
    assert len(pictures) == 2, "one picture for light pages and one for dark pages"
    assert [name for name in pictures if not (ROOT / name).is_file()] == []


def test_every_method_is_named() -> None:
    assert [name for name in METHODS if f"| `{name}` |" not in README] == []
