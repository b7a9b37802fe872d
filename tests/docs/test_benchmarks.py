"""Every benchmark program runs in its quick form and writes a page; its numbers are not tested."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# By program: the page that it writes, if any, and whether it needs the folder of data sets.
PAGES = {
    "beside_batches": ("beside_batches", False),
    "beyond": ("beyond_hapt_distilled", True),
    "carrier": ("carrier", False),
    "clock": ("clock", False),
    "coroutines": ("coroutines", False),
    "device": ("", False),  # it only reports that there is no GPU
    "fewer_bytes": ("fewer_bytes_breast-cancer", False),
    "label_leakage": ("label_leakage", False),
    "latent": ("latent", True),
    "joint": ("joint", False),
    "loading": ("loading", True),
    "many_parties": ("many_parties", False),
    "million_rows": ("million_rows", False),
    "one_exchange": ("one_exchange", True),
    "private_alignment": ("private_alignment", False),
    "resnet_check": ("resnet_check", True),
    "service": ("service", False),
    "startup": ("startup", False),
    "step_time": ("step_time", False),
    "table_size": ("table_size", False),
    "tables": ("tables", True),
    "threats": ("threats", False),
}
FEDERATIONS = {"carrier", "service"}
WORDS = {"beyond": ["--only", "distilled"]}  # only one of many choices
UNTRIED = {"demo_picture", "demo_settings", "floor", "million_ids"}  # minutes; mypy checks them like all others


@pytest.mark.net
def test_a_quick_look_at_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES, "service", ("serving", False))
    monkeypatch.setitem(WORDS, "service", ["--clients"])
    test_a_quick_look(tmp_path, "service")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.net if name in FEDERATIONS else pytest.mark.slow) for name in PAGES]
)
def test_a_quick_look(tmp_path: Path, name: str) -> None:
    page, data = PAGES[name]
    if data and "ANYPARTY_DATA" not in os.environ:
        pytest.skip("ANYPARTY_DATA names no folder of data sets")
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("results", "__pycache__"))
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", *WORDS.get(name, [])]
    quick = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=quick)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    written = {path.stem: path.read_text() for path in (tmp_path / "benchmarks" / "results" / "quick").glob("*.md")}
    assert list(written) == [page] * bool(page)
    assert [text for text in written.values() if f"benchmarks.{name}" not in text] == []


def test_every_program_is_run() -> None:
    programs = {path.stem for path in BENCHMARKS.glob("*.py") if _runs(path)} - {"__main__"}
    assert programs == PAGES.keys() | UNTRIED


def _runs(path: Path) -> bool:
    """Return whether a file is a program."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in body)
