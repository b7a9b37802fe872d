"""Sentences that say how far a comparison of the pages holds: by seed, by variant, and beside the lead."""

from __future__ import annotations

import re
from statistics import fmean

import pytest

from anyparty.experiments import suites
from anyparty.experiments.results import Cell
from anyparty.experiments.schedules_page import aggregate, time_to_target
from anyparty.experiments.schedules_suite import SchedulesSuite
from tests.docs.test_claims import BASELINES, METHODS, PUBLISHED, RESULTS, cells, mean, records, rows, says


def flex_suite(name: str) -> tuple[SchedulesSuite, list[Cell]]:
    """Return a suite of schedules and the cells of its stored records on HAPT."""
    suite = suites.load(name)
    assert isinstance(suite, SchedulesSuite)
    return suite, aggregate(suite, {record["run"]["key"]: record for record in records(f"{name}/hapt")})


def test_one_rate_by_seed() -> None:
    """Flex-VFL is first at latencies 1 and 10 with every seed, except against VAFL in one case."""
    _, found = flex_suite("flex-one-rate")
    of = {(cell["case"], cell["latency"], cell["method"]): cell.measures["time"] for cell in found}
    behind = [(case, latency, method) for (case, latency, method), times in of.items() if latency < 50
              for seed, time in times.items() if time < of[case, latency, "flex"][seed]]  # fmt: skip
    assert behind == [("k3", 1.0, "vafl")]
    says(PUBLISHED, "With 3 parties at latency 1, VAFL is faster with one of the two seeds")
    says(f"{METHODS}/flex.md", "With 3 parties at latency 1, this holds with one seed, and VAFL is faster")


def test_adaptive_flex_by_seed_and_rate() -> None:
    suite, found = flex_suite("flex-fig4")
    of = {(cell["case"], cell["method"]): cell.measures["time"] for cell in found}
    spans = {}
    for case in ("k3", "k12"):
        ratios = [of[case, "adaptive-flex"][seed] / time for seed, time in of[case, "flex"].items()]
        assert len(ratios) == 5
        spans[case] = f"{min(ratios):.2f} to {max(ratios):.2f}".replace("0.", ".")
    says(
        f"{METHODS}/flex.md", f"{spans['k3']} times as long as Flex-VFL with 3 parties", f"{spans['k12']} times with 12"
    )
    stored = {record["run"]["key"]: record for record in records("flex-fig4/hapt")}
    targets, times = suite.targets(stored), dict[tuple[str, float, str], float | None]()
    for record in stored.values():
        run = record["run"]
        if run["seed"] == 0 and run["rate"] in {0.003, 0.01} and run["method"] != "reference":
            parties = int(run["case"].removeprefix("k"))
            times[run["case"], run["rate"], run["method"]] = time_to_target(
                suite, record, targets["hapt", parties], 1.0
            )
    sooner = [1 - (time or 0) / (times[case, rate, "flex-own"] or 0)
              for (case, rate, method), time in times.items() if method == "adaptive-flex"]  # fmt: skip
    assert len(sooner) == 4
    says(f"{METHODS}/flex.md", f"the target {100 * min(sooner):.0f} to {100 * max(sooner):.0f} % sooner")


def test_false_vfl_one_and_two_alone() -> None:
    counts = []
    for method in ("false-vfl-1", "false-vfl-2"):
        for dataset in ("isolet", "hapt", "fashion-mnist"):
            of = {name: cells(f"false-tables/{dataset}", name) for name in (method, *BASELINES)}
            counts.append(sum(score > max(of[b][pair] for b in BASELINES) for pair, score in of[method].items()))
    one = "FALSE-VFL-I alone leads in {}, {} and {} pairs, and FALSE-VFL-II alone in {}, {} and {}"
    says(f"{METHODS}/false_vfl.md", one.format(*counts))
    says(PUBLISHED, f"FALSE-VFL-I alone leads in {counts[1]} of 42 pairs, and FALSE-VFL-II alone in {counts[4]}")


def test_the_lead_on_credit() -> None:
    said = []
    for other in ("combinatorial", "plug"):
        said += [mean("laser-table1/credit", column, method="laser") - mean("laser-table1/credit", column, method=other)
                 for column in ("mean", "paper_mean")]  # fmt: skip
    says(PUBLISHED, "LASER-VFL is {:.1f} points above Combinatorial (the paper: {:.1f}) and {:.1f} above PlugVFL (the "
         "paper: {:.1f})".format(*said))  # fmt: skip
    assert fmean(float(row["mean"]) for row in rows("laser-table1/credit", method="laser")) > 50


@pytest.mark.parametrize(
    ("marked", "before", "words"),
    [
        ("VFedTrans", "2026-11-24", "Rows of VFedTrans"),
        ("classes weighed (ours)", "2026-11-29", "Rows with classes weighed"),
    ],
)
def test_rows_that_are_older_than_a_correction_are_marked(marked: str, before: str, words: str) -> None:
    found = 0
    for page in sorted(RESULTS.glob("apc-*/*.md")):
        text = page.read_text(encoding="utf-8")
        made = re.search(r"^- made: (\S+)", text, re.MULTILINE)
        assert made is not None
        if re.search(rf"^\| [^|]*{re.escape(marked)} \|", text, re.MULTILINE) and made[1] < before:
            assert f"{words} on a page made before {before} are older than a correction" in text, page
            found += 1
    assert found >= 2
