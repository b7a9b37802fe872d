"""Class names are unique; importing anyparty, or printing its help, loads no heavy library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anyparty

SOURCE = Path(anyparty.__file__).parent


def test_a_class_name_stands_for_one_class() -> None:
    """No two classes of the package share a name, private ones included."""
    defined: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: paths for name, paths in defined.items() if len(paths) > 1} == {}


COMMAND = """import runpy
sys.argv = ["anyparty", "{}"]
try:
    runpy.run_module("anyparty", run_name="__main__")
except SystemExit as end:
    assert not end.code"""
SLOW_EXTRAS = {"matplotlib", "nvflare", "pandas", "scipy", "sklearn"}


@pytest.mark.parametrize(
    ("what", "heavy"),
    [
        ("import anyparty", {"torch", "polars"}),
        ("import anyparty.cli", {"torch", "polars"}),
        ("from anyparty import __version__", {"torch", "polars"}),
        (COMMAND.format("--help"), {"torch", "polars"}),
        (COMMAND.format("methods"), {"torch", "polars"}),
        ("from anyparty import Federation", {"torch"}),
        ("from anyparty import Model", set()),
    ],
    ids=["package", "command line", "version", "help", "methods", "Federation", "Model"],
)
def test_a_quick_start_imports_no_slow_library(what: str, heavy: set[str]) -> None:
    code = f"import sys\n{what}\nprint(sorted({heavy | SLOW_EXTRAS} & sys.modules.keys()))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == "[]"


def test_every_public_name_is_there() -> None:
    for name in anyparty.__all__:
        assert getattr(anyparty, name) is not None


def test_a_former_public_name_leads_to_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"anyparty\.Watch is now called anyparty\.Callback"):
        assert anyparty.Watch is anyparty.Callback


EXTRAS = ("nvflare", "psutil", "nacl", "fastapi", "uvicorn", "prometheus_client", "pandas", "pyarrow", "distributed",
          "dask", "mlflow", "optuna", "tensorboard")  # fmt: skip


def test_the_core_does_without_extras() -> None:
    """Without any extra, the modules for training, reports and the doctor can be imported, and the doctor runs."""
    code = (
        f"import sys\nfor name in {EXTRAS}: sys.modules[name] = None\n"
        "from anyparty import Federation, Model\nimport anyparty.report.page, anyparty.cli\n"
        "from anyparty.cli.doctor import examine\nprint(*examine(), sep='\\n')"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    assert "fine: versions: anyparty" in shown.stdout
