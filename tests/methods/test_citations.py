"""Every method and schedule has the papers to cite, and every entry belongs to one of them."""

import re
from pathlib import Path

import pytest

import anyparty
from anyparty.config.method_factory import SCHEDULES
from anyparty.errors import ConfigError
from anyparty.methods.citations import PAPERS, citations
from anyparty.methods.method_registry import METHODS

ROOT = Path(__file__).parents[2]


def test_every_method_and_schedule_has_a_paper():
    assert PAPERS.keys() == METHODS.keys() | SCHEDULES.keys()
    found = citations(PAPERS)
    text = (ROOT / "src" / "anyparty" / "methods" / "papers.bib").read_text(encoding="utf-8")
    assert set(re.findall(r"^@\w+\{(\w+),", text, flags=re.MULTILINE)) == found.keys() - {"anyparty"}
    for key, entry in found.items():
        assert entry.startswith("@") and entry.endswith("}") and f"{{{key}," in entry  # noqa: PT018
        assert entry.count("{") == entry.count("}")
    assert f"version = {{{anyparty.__version__}}}" in found["anyparty"]


def test_the_citation_file_names_the_version_and_the_papers():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {anyparty.__version__}\n" in text
    for name in re.findall(r"anyparty cite (\S+)\"", text):
        (entry,) = (each for key, each in citations([name]).items() if key != "anyparty")
        assert re.search(r"title = \{\{(.+)\}\}", entry)[1] in text


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match="cite: there is no method or schedule 'lazer'; did you mean 'laser'"):
        citations(["lazer"])
