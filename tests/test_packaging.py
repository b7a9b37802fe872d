"""The package's metadata: accepted versions of dependencies are tested ones, and its types are included."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
# What `make docs` needs, in any version:
TOOLS = {"latex2mathml", "mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python", "nbconvert"}


def pinned(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {r.name: r.specifier for r in (Requirement(line) for line in lines if line and line[0] != "#")}


def asked():
    """Return the requirements of pyproject.toml, including those of its extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {r.name: r.specifier for group in groups for r in map(Requirement, group) if r.name != "anyparty"}


def test_the_oldest_versions_that_it_takes_are_those_that_make_test_lowest_tries():
    oldest = {name: next(s.version for s in of if s.operator == ">=") for name, of in asked().items()}
    tried = {name: next(iter(of)).version for name, of in pinned("constraints-lowest.txt").items()}
    assert {name: Version(at) for name, at in oldest.items() if name not in TOOLS} == {
        name: Version(at) for name, at in tried.items()
    }


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_versions_that_were_tried_are_among_those_that_it_takes(file):
    taken = asked()
    for name, of in pinned(file).items():
        (version,) = (each.version for each in of)
        assert name in taken or name in TOOLS
        assert name in TOOLS or version in taken[name], name


def test_what_is_installed_asks_for_what_pyproject_says():
    installed = {r.name for r in map(Requirement, requires("anyparty") or ()) if r.name != "anyparty"}
    assert installed == set(asked())


def test_type_checkers_find_its_types():
    assert (files("anyparty") / "py.typed").is_file()


def ran(*words, folder, **environment):
    """Run Python with these words in a folder, and return what it printed."""
    command = [sys.executable, *map(str, words)]
    env = os.environ | environment
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode and "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("hatchling cannot be downloaded")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_has_every_file_and_works_from_another_folder(tmp_path):
    """Its dependencies are those of this environment."""
    ran("-m", "pip", "wheel", "--no-deps", "-w", tmp_path / "wheels", ROOT, folder=tmp_path)
    (wheel,) = (tmp_path / "wheels").glob("anyparty-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if name.startswith("anyparty/")}
    files_of_source = (path.relative_to(ROOT / "src") for path in (ROOT / "src/anyparty").rglob("*") if path.is_file())
    assert packed == {path.as_posix() for path in files_of_source if "__pycache__" not in path.parts}
    assert wheel.stat().st_size < 2_000_000
    place = tmp_path / "installed"
    ran("-m", "pip", "install", "--no-deps", "--no-index", "--target", place, wheel, folder=tmp_path)
    code = "import anyparty; print(anyparty.__file__)"
    where = ran("-c", code, folder=tmp_path, PYTHONPATH=str(place)).strip()
    assert Path(where).is_relative_to(place)
    for words, expected in ((["--version"], "anyparty 0."), (["methods"], "LASER-VFL"), (["demo", "--help"], "seeds")):
        assert expected in ran(place / "bin" / "anyparty", *words, folder=tmp_path, PYTHONPATH=str(place))
