"""The package's metadata: accepted versions of dependencies are tested ones, and its types are included."""

import tomllib
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
