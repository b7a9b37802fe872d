"""``anyparty bench --list`` names every table and figure of the four papers, and every suite."""

from __future__ import annotations

import re

import pytest

from anyparty.experiments import suites
from anyparty.experiments.published import EXPLANATIONS, PublishedEntry, published_entries
from tests.conftest import Call
from tests.docs.pages import ROOT

ENTRIES = published_entries()
LAST = {"LASER-VFL": (3, 3), "Flex-VFL": (4, 4), "APC-VFL": (4, 16), "FALSE-VFL": (18, 8)}  # tables, figures
ROMAN = {"I": "1", "II": "2", "III": "3", "IV": "4"}


def numbers(entry: PublishedEntry, kind: str) -> set[int]:
    """Return the numbers of the tables, or of the figures, that an entry's ``place`` names."""
    place = re.sub(r"\bI[IV]*\b", lambda found: ROMAN[found[0]], entry.place)
    if not place.startswith(kind):
        return set()
    place = re.sub(r"(\d+)[a-z]", r"\1", place)
    spans = [(int(first), int(last)) for first, last in re.findall(r"(\d+) to (\d+)", place)]
    return {int(each) for each in re.findall(r"\d+", place)} | {n for a, b in spans for n in range(a, b + 1)}


@pytest.mark.parametrize("paper", LAST)
@pytest.mark.parametrize("kind", ["table", "figure"])
def test_every_table_and_figure_of_a_paper_is_listed(paper: str, kind: str) -> None:
    found = set[int]().union(*(numbers(entry, kind) for entry in ENTRIES if entry.paper == paper))
    assert found == set(range(1, LAST[paper][kind == "figure"] + 1))


def test_every_suite_is_listed_with_all_of_its_data_sets() -> None:
    listed: dict[str, set[str]] = {}
    for entry in ENTRIES:
        for name in entry.suites:
            listed.setdefault(name, set()).update(entry.data)
    assert listed == {name: set(suites.load(name).datasets) for name in suites.names()}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.paper} {entry.place} {entry.state}")
def test_a_state_agrees_with_the_stored_results(entry: PublishedEntry) -> None:
    assert entry.state in EXPLANATIONS
    assert bool(entry.suites) == bool(entry.data) == (entry.state in {*EXPLANATIONS} - {"not built", "not a result"})
    assert entry.why or entry.state in {"reproduced", "not a result"}
    stored = {data for name in entry.suites for data in entry.data
              if (ROOT / "benchmarks" / "results" / name / f"{data}.md").exists()}  # fmt: skip
    assert stored == (set() if entry.state == "runs with the data" else set(entry.data))


def test_the_command_lists_them(call: Call) -> None:
    shown = call("bench", "--list").stdout
    for word in ("LASER-VFL", "laser-table1", "table II", "figures 12", "not built"):
        assert word in shown


def test_a_call_without_a_suite_names_the_list(call: Call) -> None:
    shown = call("bench")
    assert shown.exit_code == 2
    assert "list all with --list" in shown.stderr
