"""Every page of results agrees with its records: its tables and its CSV."""

from __future__ import annotations

import json
import re
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from anyparty.experiments import suites
from anyparty.experiments.experiment import render
from tests.docs.pages import ROOT

RESULTS = ROOT / "benchmarks" / "results"
AT_HAND = RESULTS.glob("*/*-records.tar.xz")
KEPT = {(path.parent.name, path.name.removesuffix("-records.tar.xz")): path for path in AT_HAND}
OF = {page.parent.name for page in RESULTS.glob("*/*.md")} - {"quick"}  # this folder holds quick benchmarks
PAGES = [
    (suite, dataset, path)
    for suite in sorted(OF)
    for own in [suites.load(suite).folder_name]
    for (home, dataset), path in sorted(KEPT.items())
    if own == home and (RESULTS / suite / f"{dataset}.md").exists()
]


@cache
def records(path: Path) -> dict[str, dict[str, Any]]:
    """Return the records by the runs' keys."""
    with tarfile.open(path) as kept:
        files = [kept.extractfile(member) for member in kept.getmembers() if member.name.endswith("record.json")]
        found = [json.load(file) for file in files if file is not None]
    return {record["run"]["key"]: record for record in found}


def tables(markdown: str) -> list[str]:
    """Return the lines of all tables."""
    return re.findall(r"^\|.*\|$", markdown.partition("Where this differs")[0], re.MULTILINE)


def test_most_pages_have_records():
    assert len(PAGES) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "dataset", "path"), PAGES, ids=lambda value: getattr(value, "stem", value))
def test_a_page_is_what_its_records_say(suite, dataset, path):
    page, place = render(suites.load(suite), records(path), {}), RESULTS / suite / f"{dataset}.md"
    assert tables(page.markdown) == tables(place.read_text(encoding="utf-8"))
    assert page.csv == place.with_suffix(".csv").read_text(encoding="utf-8")
