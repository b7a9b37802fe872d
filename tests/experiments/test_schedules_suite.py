"""Suites of schedules: rates chosen by training loss, targets from a reference, times at every latency, the page."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anyparty import experiments
from anyparty.config.method_factory import schedule
from anyparty.errors import ConfigError
from anyparty.experiments import runner, schedules_page, suites
from anyparty.experiments.experiment import render
from anyparty.experiments.schedules_page import aggregate, time_to_target, times
from anyparty.experiments.schedules_suite import ChosenRate, SchedulesSuite, flex_amounts
from anyparty.experiments.suite import Selection
from anyparty.tables.partition import cut

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SHARED = {"labels": "shared"}


def tiny(**changes) -> SchedulesSuite:
    """Create a suite on Breast Cancer, which ships with a dependency: two parties of different speeds."""
    values = {
        "name": "tiny", "title": "Tiny", "paper": "None", "rates": [0.3, 0.01], "latencies": [1.0, 10.0],
        "search_latency": 10.0, "beside": "flex", "held_out": 0.2, "method": {"name": "standard"},
        "datasets": {"breast-cancer": {"batch_size": 128, "embedding": 4, "encoder": {"hidden": [4]}}},
        "reference": {"epochs": 3, "optimizer": {"name": "adam", "lr": 0.02}, "share": 0.9},
        "cases": {"k2": {"title": "two parties", "parties": 2, "timeout": 4.0, "within": 4.0, "iterations": [2, 4],
                         "server": 4, "momentum": [0.0, 0.0, 0.0]}},
        "methods": {
            "vafl": {"title": "VAFL", "schedule": {"name": "vafl"}, "epochs": 2},
            "flex": {"title": "Flex-VFL", "schedule": {"name": "flex", **SHARED}, "epochs": 3},
        },
        "published": {"k2": {"vafl": [[6.0, 0.5], []], "flex": [[2.0, 0.1], [4.0, 0.1]]}}, "differs": ["In all."],
    }  # fmt: skip
    return SchedulesSuite.model_validate(values | changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), tiny()
    first = runner.run_all(list(made.runs(Selection(seeds=2))), folder)
    later = list(made.later(first.records, Selection(seeds=2)))
    second = runner.run_all(later, folder)
    assert not first.failed | second.failed
    return folder, first.records, later, first.records | second.records


class TestTwoSteps:
    def test_every_rate_with_seed_0_and_the_reference_with_every_seed(self):
        runs = list(tiny().runs(Selection(seeds=2)))
        asked = [(run.method, run.rate, run.seed) for run in runs]
        assert asked == [("reference", 0.02, 0), ("reference", 0.02, 1), ("vafl", 0.3, 0), ("vafl", 0.01, 0),
                         ("flex", 0.3, 0), ("flex", 0.01, 0)]  # fmt: skip
        assert {run.latency for run in runs if run.method != "reference"} == {10.0}
        assert [run.settings["epochs"] for run in runs] == [3, 3, 4, 4, 3, 3]  # VAFL's meetings: times two parties

    def test_then_the_chosen_rate_with_the_other_seeds(self, done):
        _, first, later, _ = done
        rates = {place[2]: found.rate for place, found in tiny().chosen_rates(first).items()}
        assert [(run.method, run.rate, run.latency, run.seed) for run in later] == [
            ("vafl", rates["vafl"], 1.0, 0), ("vafl", rates["vafl"], 1.0, 1), ("vafl", rates["vafl"], 10.0, 1),
            ("flex", rates["flex"], 10.0, 1),
        ]  # fmt: skip

    def test_a_selection_of_methods_includes_the_reference(self, done):
        made, first = tiny(), done[1]
        assert {run.method for run in made.runs(Selection(methods=["flex"]))} == {"flex", "reference"}
        assert {run.method for run in made.later(first, Selection(methods=["flex"]))} == {"flex"}
        with pytest.raises(ConfigError, match=r"no method 'flax'; did you mean 'flex'\?"):
            list(made.runs(Selection(methods=["flax"])))

    def test_the_command_runs_both_steps_and_resumes(self, done, monkeypatch):
        folder, _, _, records = done
        monkeypatch.setattr(suites, "load", lambda name: tiny())  # noqa: ARG005
        stamps = {path: path.stat().st_mtime_ns for path in folder.glob("*/record.json")}
        report = experiments.run("tiny", seeds=2, folder=folder)
        assert {path: path.stat().st_mtime_ns for path in folder.glob("*/record.json")} == stamps
        assert len(records) == len(stamps) == 10
        assert "10 of 10 done, 0 failed" in report.markdown
        assert len(report.cells) == 4
        assert (folder / "plot.png").stat().st_size > 5000

    def test_a_method_with_the_rate_of_another_needs_no_search(self, done):
        also = {"title": "Too", "schedule": {"name": "flex", **SHARED}, "epochs": 3, "rate_of": "flex"}
        made = tiny(methods=tiny().model_dump()["methods"] | {"flex-too": also})
        assert [run.method for run in made.runs(Selection(methods=["flex-too"], seeds=1))] == [
            "reference",
            "flex",
            "flex",
        ]
        (run,) = made.later(done[1], Selection(methods=["flex-too"], seeds=1))
        assert (run.method, run.rate) == ("flex-too", made.chosen_rates(done[1])["breast-cancer", "k2", "flex"].rate)


def record(method="flex", rate=0.3, seed=0, latency=10.0, curve=(), diverged="", **more):
    """Create a run's record from a ``curve`` of (loss, score); an epoch is a round of 4 time units and a round trip."""
    points = [
        {"loss": loss, "score": score, "rounds": e, "time": e * (4 + latency)}
        for e, (loss, score) in enumerate(curve, 1)
    ]
    run = {"dataset": "breast-cancer", "case": "k2", "method": method, "rate": rate, "seed": seed, "latency": latency,
           "settings": {"case": {"parties": 2}}}  # fmt: skip
    return {"run": run, "curve": points, "diverged": diverged, "test": 0.5, **more}


def named(*records):
    return {str(number): each for number, each in enumerate(records)}


class TestChoice:
    def test_the_chosen_rate_has_the_lowest_training_loss(self):
        records = named(record(rate=0.3, curve=[(0.1, 0.1), (0.9, 0.9)]), record(rate=0.1, curve=[(0.5, 0.2)]),
                        record(rate=0.01, curve=[(0.7, 0.95)]))  # fmt: skip
        (found,) = tiny().chosen_rates(records).values()
        assert (found.rate, found.at_an_end) == (0.1, False)
        assert found.losses == {0.3: 0.9, 0.1: 0.5, 0.01: 0.7}

    def test_the_choice_ignores_diverged_runs_other_seeds_and_latencies(self):
        good = {"rate": 0.1, "curve": [(0.1, 0.9)]}
        records = named(record(rate=0.3, diverged="nan", curve=[(0.1, 0.9)]), record(rate=0.01, curve=[(0.7, 0.9)]),
                        record(seed=1, **good), record(latency=1.0, **good))  # fmt: skip
        (found,) = tiny().chosen_rates(records).values()
        assert (found.rate, found.losses[0.3], found.at_an_end) == (0.01, math.inf, True)

    def test_no_rate_is_chosen_if_every_rate_diverged(self):
        records = named(record(diverged="nan"))
        assert tiny().chosen_rates(records) == {}
        assert list(tiny().later(records)) == []

    def test_targets_are_computed_only_from_the_reference(self):
        records = named(record("reference", curve=[(1.0, 0.5), (1.0, 0.8)]), record(curve=[(0.1, 1.0)]),
                        record("reference", seed=1, curve=[(1.0, 0.6)]))  # fmt: skip
        assert tiny().targets(records) == {("breast-cancer", 2): pytest.approx(0.9 * 0.7)}

    def test_a_data_set_may_have_a_share_of_its_own_and_its_runs_stay_the_same(self):
        at = {"batch_size": 128, "embedding": 4, "encoder": {"hidden": [4]}}
        own = tiny(datasets={"breast-cancer": at | {"share": 0.5}})
        assert [run.key for run in own.runs()] == [run.key for run in tiny().runs()]
        records = named(record("reference", curve=[(1.0, 0.8)]), record("flex", curve=[(0.1, 0.3), (0.1, 0.5)]))
        assert own.targets(records) == {("breast-cancer", 2): pytest.approx(0.4)}
        assert "40.0 % with 2 parties: 0.5 of what" in render(own, records, {}).markdown


class TestTimes:
    def test_the_time_to_the_target_is_that_of_the_first_hit(self):
        made = record(curve=[(1.0, 0.2), (1.0, 0.6), (1.0, 0.4), (1.0, 0.9)])
        assert time_to_target(tiny(), made, 0.2, 10.0) == 14
        assert time_to_target(tiny(), made, 0.5, 10.0) == pytest.approx(14 + 14 * 0.3 / 0.4)
        assert time_to_target(tiny(), made, 0.65, 10.0) == pytest.approx(42 + 14 * 0.5)
        assert time_to_target(tiny(), made, 0.65, 1.0) == pytest.approx(15 + 5 * 0.5)
        assert time_to_target(tiny(), made, 0.95, 10.0) is None
        assert time_to_target(tiny(), record(), 0.5, 10.0) is None

    def test_one_training_of_rounds_serves_every_latency(self):
        """Times computed from a training at one latency equal the clock of a training at another."""
        made = tiny()
        run = next(run for run in made.runs() if run.method == "flex")
        at_10, at_1 = (json.loads(json.dumps(replace(run, latency=late).execute(None))) for late in (10.0, 1.0))
        assert times(made, at_10, 1.0) == [point["time"] for point in at_1["curve"]]
        assert [point["score"] for point in at_10["curve"]] == [point["score"] for point in at_1["curve"]]

    def test_step_amounts_imply_the_rate_of_an_idle_round(self):
        """tau is 4 and 2; local momentum 0.5: wbar = 1.5 after two iterations."""
        clock = {"timeout": 4.0, "iteration": {"b": 2.0}, "use": {"a": (0.5,)}}
        found = flex_amounts(0.1, clock, {"a": 0.0, "b": 0.5})
        assert found == {"a": pytest.approx(0.1 * 4), "b": pytest.approx(0.1 * 2 * 1.5)}


class TestPage:
    def test_a_rate_at_an_end_of_its_grid_is_marked(self):
        losses = {0.01: 0.5, 0.1: 0.3, 0.3: 0.4}
        assert [ChosenRate(rate=rate, losses=losses).at_an_end for rate in losses] == [True, False, True]
        assert not ChosenRate(rate=0.3, losses={0.3: 0.4}).at_an_end  # no rate was chosen

    def test_ratios_beside_the_papers_and_how_many_reached_the_target(self):
        records = named(
            record("reference", curve=[(1.0, 0.8)]), record("flex", curve=[(0.1, 0.6), (0.1, 0.8)]),
            record("flex", seed=1, curve=[(0.1, 0.6), (0.1, 0.84)]), record("vafl", curve=[(0.1, 0.73), (0.1, 0.6)]),
            record("vafl", seed=1, curve=[(0.1, 0.1)]), record("vafl", seed=2, diverged="nan"),
        )  # fmt: skip
        made = tiny()
        cells = aggregate(made, records)
        flex_1, vafl, flex = cells
        assert (flex_1["latency"], vafl["method"], flex["latency"]) == (1.0, "vafl", 10.0)
        assert flex.measures["time"] == pytest.approx({0: 14 + 14 * 0.6, 1: 14 + 14 * 0.5})
        assert vafl.measures["time"] == {0: 14.0}
        assert vafl.measures["diverged"] == {0: 0, 1: 0, 2: 1}
        assert vafl["ratio"] == pytest.approx(14 / (14 + 14 * 0.6))  # at seed 0, at which both reach the target
        assert (vafl.mean("best"), vafl.mean("last")) == (pytest.approx(0.415), pytest.approx(0.35))
        papers = [cell[name] for cell in (flex_1, vafl) for name in ("paper", "paper_ratio")]
        assert papers == [(2000.0, 100.0), 1.0, (), None]
        page = render(made, records, {"seeds": "3"})
        text = page.markdown
        assert "| VAFL, 1 of 3 diverged | 0.3 | | 14 (1 of 3)<br>0.62 · *–* | 41.5 | 35.0 | 50.0 |" in text
        assert "| Flex-VFL | 0.3 | 8 ± 0<br>1.00 · *1.00* | 22 ± 1<br>1.00 · *1.00* | 82.0 | 82.0 | 50.0 |" in text
        assert "72.0 % with 2 parties: 0.9 of what the same networks reach without a schedule" in text
        assert page.csv.splitlines()[2].startswith("breast-cancer,k2,vafl,10.0,0.3,False,0.72")

    def test_the_page_shows_the_grid_of_learning_rates(self, done):
        made, records = tiny(), done[3]
        text = render(made, records, {}).markdown
        (line,) = [line for line in text.splitlines() if line.startswith("| two parties: Flex-VFL |")]
        losses = made.chosen_rates(records)["breast-cancer", "k2", "flex"].losses
        assert all(f"{loss:.4f}" in line for loss in losses.values())
        assert f"**{min(losses.values()):.4f}**" in line

    def test_without_the_reference_there_is_no_target_and_no_number(self):
        assert aggregate(tiny(), named(record(curve=[(0.1, 0.9)]))) == []


@pytest.mark.parametrize("name", [name for name in suites.names() if isinstance(suites.load(name), SchedulesSuite)])
def test_shipped_suites_name_existing_methods_and_data_sets(name):
    made = suites.load(name)
    assert made.beside in made.methods
    assert made.search_latency in made.latencies
    for entry in made.methods.values():
        schedule(**entry.schedule)
        assert not entry.rate_of or entry.rate_of in made.methods
    for case in made.cases.values():
        assert len(case.momentum) == case.parties + 1
        assert bool(case.trace) != bool(case.iterations)
        assert len(case.iterations) in {0, case.parties}
    assert set(made.published) <= set(made.cases)
    for tables in made.published.values():
        assert set(tables) <= set(made.methods)
        assert all(len(times) == len(made.latencies) for times in tables.values())


@pytest.mark.parametrize("name", [name for name in suites.names() if isinstance(suites.load(name), SchedulesSuite)])
@pytest.mark.parametrize(
    ("dataset", "shape", "along", "words"),
    [
        ("fashion-mnist", (1, 1, 28, 28), -2, {4: "four of 28 with 12 parties", 1: "one with 3"}),
        ("hapt", (1, 561), -1, {9: "nine of 561 with 12 parties", 1: "one with 4"}),
    ],
)
def test_the_dropped_remainder_is_stated(name, dataset, shape, along, words):
    """Fashion-MNIST's images have 28 rows of pixels, HAPT has 561 columns."""
    made = suites.load(name)
    over = {}
    for K in sorted({case.parties for case in made.cases.values()}, reverse=True):
        blocks = cut(np.zeros(shape), made.datasets[dataset].cut, K)
        over[K] = shape[along] - sum(block.shape[along] for block in blocks)
    (said,) = (line for line in made.datasets[dataset].differs if "dropped" in line)
    assert said.endswith(f"is dropped: {', '.join(words[left] for left in over.values() if left)}.")
    page = RESULTS / name / f"{dataset}.md"
    assert not page.exists() or f"- {said}\n" in page.read_text(encoding="utf-8")


class TestFigure:
    """Three algorithms at one latency: one reaches the target early, one late, one has a diverged seed."""

    CURVES = {
        "vafl": [(1.0, 0.5), (0.5, 0.99)],
        "flex": [(1.0, 0.5), (0.5, 0.7)],
        "late": [(1.0, 0.1), (0.9, 0.2), (0.8, 0.3), (0.7, 0.4), (0.6, 0.95)],
    }  # fmt: skip

    def panel(self, records, monkeypatch):
        late = {"title": "Late", "schedule": {"name": "flex", **SHARED}, "epochs": 5}
        suite = tiny(latencies=[10.0], methods=tiny().model_dump()["methods"] | {"late": late})
        monkeypatch.setattr(SchedulesSuite, "targets", lambda *_: {("breast-cancer", 2): 0.9})
        (panel,) = schedules_page.figure(suite, {str(k): each for k, each in enumerate(records)}).panels
        return panel

    def records(self, **changes):
        return [record(method, seed=seed, curve=curve, diverged="yes" if (method, seed) == ("flex", 1) else "")
                for method, curve in (self.CURVES | changes).items() for seed in (0, 1)]  # fmt: skip

    def test_the_axis_ends_where_the_last_method_reaches_the_target(self, monkeypatch):
        panel = self.panel(self.records(), monkeypatch)
        assert panel.x_end >= 5 * 14  # not the median of the curves' ends, 2 * 14

    def test_the_axis_includes_the_time_at_which_the_mean_reaches_the_target(self, monkeypatch):
        """One of two seeds reaches the target at once, the other never; their mean reaches it at the end."""
        slow = [(1.0, 0.1), (0.9, 0.2), (0.8, 0.3), (0.7, 0.4), (0.6, 0.89)]
        quick = [(1.0, 0.95)] * 5
        records = [each for each in self.records() if each["run"]["method"] != "late"]
        records += [record("late", seed=seed, curve=curve) for seed, curve in enumerate((quick, slow))]
        assert self.panel(records, monkeypatch).x_end >= 5 * 14

    def test_bands_are_shown_in_per_cent(self, monkeypatch):
        records = self.records()
        records[1]["curve"][-1]["score"] = 0.6  # from VAFL's second seed: 79.5 +- 27.6 %
        panel = self.panel(records, monkeypatch)
        bands = [y for curve in panel.curves for limits in curve.band for y in limits]
        assert 0 <= min(bands) < max(bands) == 100

    def test_the_legend_gives_the_number_of_seeds(self, monkeypatch):
        panel = self.panel(self.records(), monkeypatch)
        assert panel.notes == {"Flex-VFL: 1 of 2 seeds, the others diverged": panel.curves[1].color}
        assert [curve.label for curve in panel.curves] == ["VAFL", "Flex-VFL", "Late"]  # for the legend of all panels

    def test_there_is_no_panel_legend_if_all_seeds_converged(self, monkeypatch):
        records = [each for each in self.records() if not each["diverged"]]
        assert not self.panel(records, monkeypatch).notes
