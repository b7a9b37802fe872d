"""Rooms import only upwards; importing anyparty, or asking for help, loads no heavy library."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyparty

SOURCE = Path(anyparty.__file__).parent

# Each room may import those above it.  A new room finds its place here.
ROOMS = (
    "errors", "storage", "export", "seeds", "terms", "costs", "predictions", "metrics", "tables", "align", "blocks",
    "nets", "config", "methods", "schedules", "wire", "run", "serving", "report", "experiments", "cli", "__main__",
)  # fmt: skip
STRANGERS = {("methods", "wire"), ("wire", "methods")}  # only run brings them together


def room(module: str) -> str:
    """The room that a module of anyparty is in; "" for anyparty itself.

    >>> room("anyparty.training.loop")
    'run'
    """
    return module.split(".")[1] if "." in module else ""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"), path


def imported(path: Path) -> Iterator[str]:
    """Every module of anyparty that a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "anyparty")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are written in full"
            if node.module == "anyparty":
                yield from (f"anyparty.{name.name}" for name in node.names)
            elif node.module and node.module.startswith("anyparty."):
                yield node.module


def test_every_room_has_its_place() -> None:
    assert {room(module) for module, _ in modules()} - {""} <= set(ROOMS)


def test_the_architecture_page_lists_the_packages_in_this_order() -> None:
    """The page has the packages that the rooms of today become: the order is compared when the first of them moves."""
    page = (SOURCE.parents[1] / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)/` \|", page, flags=re.MULTILINE)
    folders = [name for name in ROOMS if (SOURCE / name).is_dir()]
    if "wire" not in folders:
        assert listed == folders


@pytest.mark.parametrize(
    ("module", "path"), [(m, p) for m, p in modules() if room(m)], ids=lambda value: str(value)[-30:]
)
def test_rooms_import_only_upwards(module: str, path: Path) -> None:
    own = room(module)
    for other in {room(name) for name in imported(path)} - {"", own}:
        assert ROOMS.index(other) < ROOMS.index(own), f"{module} imports from the room {other!r} below it"
        assert (own, other) not in STRANGERS, f"{module} may not know the room {other!r}"


HELP = """import runpy
sys.argv = ["anyparty", "--help"]
try:
    runpy.run_module("anyparty", run_name="__main__")
except SystemExit as end:
    assert not end.code"""


@pytest.mark.parametrize(
    "what",
    ["import anyparty", "import anyparty.cli", "from anyparty import __version__", HELP],
    ids=["package", "command line", "version", "help"],
)
def test_a_quick_start_imports_no_torch(what: str) -> None:
    heavy = "{'torch', 'polars', 'sklearn', 'matplotlib', 'pandas', 'nvflare'}"
    code = f"import sys\n{what}\nassert not {heavy} & sys.modules.keys(), {heavy} & sys.modules.keys()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert shown.returncode == 0, shown.stderr


def test_every_public_name_is_there() -> None:
    for name in anyparty.__all__:
        assert getattr(anyparty, name) is not None


EXTRAS = ("nvflare", "psutil", "nacl", "fastapi", "uvicorn", "prometheus_client", "pandas", "pyarrow", "distributed",
          "dask", "mlflow", "tensorboard")  # fmt: skip


def test_the_core_does_without_extras() -> None:
    """As if none of them were installed: training's, the report's and the doctor's modules are imported, one looks."""
    code = (
        f"import sys\nfor name in {EXTRAS}: sys.modules[name] = None\n"
        "from anyparty import Federation, Model\nimport anyparty.report.page, anyparty.cli\n"
        "from anyparty.cli.doctor import examine\nprint(*examine(), sep='\\n')"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert shown.returncode == 0, shown.stderr
    assert "fine: versions: anyparty" in shown.stdout
