"""Suites with scarce labels: FALSE-VFL's tables, with gaps and ratios checked by hand and against the paper."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.data.datasets.dataset import Dataset
from anyparty.experiments import runner, suites
from anyparty.experiments.experiment import render
from anyparty.experiments.missing_blocks_page import ratio_figure, score_figure
from anyparty.experiments.missing_blocks_results import (
    best_scores,
    measured_scores,
    published_ratios,
    published_scores,
    ratios,
    training_pairs,
)
from anyparty.experiments.missing_blocks_suite import MissingBlocksSuite, RunRows
from anyparty.experiments.party_tables import mechanism_of
from anyparty.experiments.results import SCORE
from anyparty.experiments.suite import Selection
from anyparty.tables.partition import columns

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PRETRAIN = {"pretrain_epochs": 2, "pretrain_batch_size": 128}
METHODS = {
    "vanilla": {"name": "standard", "parameters": {"pretrain": "simsiam", "absent": "zeros", **PRETRAIN}},
    "laser": {"name": "laser", "parameters": {"pretrain": "simsiam", "heads": "one", **PRETRAIN}},
    "fedhssl": {"name": "fedhssl", "parameters": PRETRAIN, "labels_at": "party1"},
    "false-vfl-1": {
        "name": "false-vfl-1",
        "own": True,
        "parameters": {"top": 2, "samples": 2, "predict_samples": 4, "hidden": (4,), "head_hidden": (4,), **PRETRAIN},
    },
}


def tiny(**changes) -> MissingBlocksSuite:
    """Create a suite on Breast Cancer with three parties and 40 labels, 12 of them on rows that all parties have.

    It has two training and two test mechanisms.
    """
    entry = {
        "metric": "accuracy", "unit": "accuracy, %", "batch_size": 32, "embedding": 4, "encoder": {"hidden": [4]},
        "parties": 3, "labelled": {"n": 40, "aligned": 12},
        "methods": {
            key: {"title": key, "epochs": 2, "optimizer": {"lr": 0.01}, **of} for key, of in METHODS.items()
        },
    }  # fmt: skip
    printed = {
        "vanilla": {"MCAR 2": [[80.0, 1.0], [60.0, 1.0]], "MNAR 7": [[70.0, 1.0], [66.0, 1.0]]},
        "false-vfl-1": {"MCAR 2": [[90.0, 1.0], [60.0, 1.0]], "MNAR 7": [[69.0, 1.0], [70.0, 1.0]]},
    }
    return MissingBlocksSuite.model_validate(
        {
            "name": "tiny", "title": "Tiny", "paper": "None", "layout": "training", "differs": ["In all."],
            "train_missing": ["MCAR 2", "MNAR 7"], "test_missing": ["MCAR 0", "MAR 1"],
            "mechanisms": {
                "MCAR 0": {"name": "mcar"}, "MCAR 2": {"name": "mcar", "p": 0.2},
                "MNAR 7": {"name": "mnar", "p": 0.7}, "MAR 1": {"name": "mar1"},
            },
            "datasets": {"breast-cancer": entry}, "published": {"breast-cancer": printed}, **changes,
        }
    )  # fmt: skip


def ratios_of(suite: MissingBlocksSuite, cells) -> dict[tuple[str, str], float]:
    """Return the ratio of each method and test mechanism."""
    found = ratios(training_pairs(suite, measured_scores(suite, cells)))
    return {(method, test): ratio for method, test, ratio in found.select("method", "test", "ratio").iter_rows()}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    runs = list(tiny().runs(Selection(seeds=1)))
    result = runner.run_all(runs, tmp_path_factory.mktemp("runs"))
    assert not result.failed
    return result


def test_all_test_mechanisms_use_one_training_with_equal_masks(done):
    assert len(done.records) == 2 * len(METHODS)
    for missing in ("MCAR 2", "MNAR 7"):
        records = [record for record in done.records.values() if record["run"]["missing"] == missing]
        assert all(set(record["scores"]) == {"MCAR 0", "MAR 1"} for record in records)
        assert len({(r["missing"], r["scores"]["MAR 1"]["missing"]) for r in records}) == 1
        assert all(record["scores"]["MCAR 0"]["missing"] == 0 for record in records)


def test_every_test_row_is_scored_with_any_label_holder(done):
    test = len(datasets.load("breast-cancer").split(Seeds(0)).y_test)
    for record in done.records.values():
        for scores in record["scores"].values():
            assert scores["overall"]["rows"] == test
            assert scores["overall"]["coverage"] == 1.0


def test_the_number_of_labels_follows_the_suite():
    run = next(iter(tiny().runs(Selection(seeds=1))))
    rows = RunRows(datasets.load("breast-cancer").split(Seeds(0)), 3, run.settings, Seeds(0))
    drawn = rows.draw_train("MCAR 2")
    assert drawn.labeled.sum() == 40
    assert drawn.observed[drawn.labeled].all(axis=1).sum() >= 12
    assert 0.1 < drawn.rate < 0.3
    assert rows.draw_test("MAR 1").labeled is None


def test_a_class_without_a_label_in_training_counts_as_wrong(monkeypatch):
    """One of three equally frequent classes has no label: its 20 test rows count as wrong and are recorded."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 60)
    X = rng.normal(size=(180, 6)).astype(np.float32) + 4 * y[:, None]
    made = Dataset(name="three", title="Three", task="classification", X_train=X, y_train=y, source="", licence="",
                   X_test=X[::3], y_test=y[::3])  # fmt: skip
    monkeypatch.setattr(datasets, "load", lambda *_, **__: made)
    run = next(iter(tiny().runs(Selection(seeds=1, methods=["false-vfl-1"]))))
    labelled, drawn = np.isin(np.arange(180), np.flatnonzero(y < 2)[::3]), RunRows.draw_train
    monkeypatch.setattr(
        RunRows, "draw_train", lambda self, mechanism: replace(drawn(self, mechanism), labeled=labelled)
    )
    record = run.execute(None)
    scores = record["scores"]["MCAR 0"]
    assert scores["unseen"] == {"2": 20}
    assert scores["overall"]["rows"] == 60
    assert scores["overall"]["accuracy"] <= 40 / 60
    assert scores["classes"] == ["0", "1", "2"]


def test_a_page_has_a_table_for_each_training_mechanism_and_the_gaps(done):
    made = tiny()
    page = render(made, done.records, {"seeds": "1"})
    assert page.markdown.count("trained under") == 2
    assert "| missing at test | MCAR 0 | MAR 1 | s / training |" in page.markdown
    assert "Blocks missing: " in page.markdown
    means = {(c["dataset"], c["method"], c["missing"], c["test"]): c.mean(SCORE) for c in page.cells}
    by_hand = [  # of the compared methods, the paper has only vanilla
        means["breast-cancer", "false-vfl-1", missing, test] - means["breast-cancer", "vanilla", missing, test]
        for missing in ("MCAR 2", "MNAR 7")
        for test in ("MCAR 0", "MAR 1")
    ]
    ahead = sum(gap >= 0 for gap in by_hand)
    assert f"| ours | 4 | {fmean(by_hand):.1f} | {ahead} of 4 |" in page.markdown
    assert "| *paper* | 4 | 3.2 | 3 of 4 |" in page.markdown  # 10, 0, -1 and 4


def test_a_page_with_only_some_runs_is_complete(done):
    some = {key: record for key, record in done.records.items() if record["run"]["method"] == "false-vfl-1"}
    page = render(tiny(), some, {})
    assert "Mean over configurations" in page.markdown
    assert "Gap to the best" not in page.markdown
    page = render(tiny(), {key: r for key, r in done.records.items() if r["run"]["method"] == "vanilla"}, {})
    assert "The paper's own methods" not in page.markdown
    assert render(tiny(), {}, {}).csv.count("\n") == 1


def test_methods_beyond_the_paper_have_their_own_section(done):
    made = tiny()
    entry = made.datasets["breast-cancer"]
    entry.methods["laser"] = entry.methods["laser"].model_copy(update={"beyond": True})
    page = render(made, done.records, {})
    means = {(c["method"], c["missing"], c["test"]): c.mean(SCORE) for c in page.cells}
    ours = [means["laser", missing, test] for missing in ("MCAR 2", "MNAR 7") for test in ("MCAR 0", "MAR 1")]
    ahead = sum(mean >= paper for mean, paper in zip(ours, (90.0, 60.0, 69.0, 70.0), strict=True))
    assert f"| laser, breast-cancer | 4 | 1 (0) | {fmean(ours):.1f} | 72.2 | {ahead} of 4 |" in page.markdown
    by_hand = [
        means["false-vfl-1", missing, test] - means["vanilla", missing, test]
        for missing in ("MCAR 2", "MNAR 7")
        for test in ("MCAR 0", "MAR 1")
    ]
    assert f"| ours | 4 | {fmean(by_hand):.1f} |" in page.markdown
    alone = render(made, {key: r for key, r in done.records.items() if r["run"]["method"] == "laser"}, {})
    assert "## Beyond the paper" in alone.markdown
    assert "The paper's own methods" not in alone.markdown


def test_plots_have_a_panel_for_each_training_mechanism(done, tmp_path):
    render(tiny(), done.records, {}).plot(tmp_path / "plot")
    assert (tmp_path / "plot.png").stat().st_size > 5000
    assert (tmp_path / "plot.svg").read_text().count("missing in training: ") == 2


def test_a_method_has_one_colour_in_every_panel(done):
    """This also holds if other methods have not run yet, because all panels share a legend."""
    colours = {}
    for kept in (set(tiny().datasets["breast-cancer"].methods), {"false-vfl-1"}):
        cells = tiny().read_cells({key: r for key, r in done.records.items() if r["run"]["method"] in kept})
        panel, other = score_figure(tiny(), cells).panels
        colours[len(kept)] = {curve.label: curve.color for curve in panel.curves}
        assert {curve.label: curve.color for curve in other.curves} == colours[len(kept)]
    many, alone = colours.values()
    assert len(set(many.values())) == len(many) > len(alone) == 1
    assert alone.items() <= many.items()


def test_ratios_equal_those_computed_by_hand(done):
    made = tiny(layout="ratios", published_ratios={"breast-cancer": {"vanilla": [98.0, 97.0]}})
    cells = made.read_cells(done.records)
    means = {(c["method"], c["missing"], c["test"]): c.mean(SCORE) for c in cells}
    found = ratios_of(made, cells)
    assert len(found) == 2 * len(METHODS)
    expected = 100 * means["laser", "MNAR 7", "MAR 1"] / means["laser", "MCAR 2", "MAR 1"]
    assert found["laser", "MAR 1"] == pytest.approx(expected)
    text = render(made, done.records, {}).markdown
    assert "| *paper* | 98.0 | 97.0 |" in text
    assert f"{expected:.1f}" in text
    lines = {(line["method"], line["test_missing"]): line
             for line in csv.DictReader(io.StringIO(render(made, done.records, {}).csv))}  # fmt: skip
    assert lines.keys() == found.keys()
    assert lines["laser", "MAR 1"]["ratio"] == lines["laser", "MAR 1"]["ratio_compared"] == f"{expected:.3f}"
    assert lines["vanilla", "MAR 1"]["paper_ratio"] == "97.0"


def test_a_plot_of_ratios_shows_the_numbers_of_the_table(done):
    made = tiny(layout="ratios")
    cells = made.read_cells(done.records)
    found = ratios_of(made, cells)
    (panel,) = ratio_figure(made, cells).panels
    assert [curve.label for curve in panel.curves] == [
        of.title for of in made.datasets["breast-cancer"].methods.values()
    ]
    for method, curve in zip(made.datasets["breast-cancer"].methods, panel.curves, strict=True):
        assert curve.x == made.test_missing
        assert curve.y == [found[method, test] for test in made.test_missing]
    assert panel.title == "breast-cancer, trained under MNAR 7 over trained under MCAR 2"


def test_without_both_trainings_there_is_no_plot_of_ratios(done, tmp_path):
    less = {key: record for key, record in done.records.items() if record["run"]["missing"] == "MCAR 2"}
    page = render(tiny(layout="ratios"), less, {})
    assert page.cells
    page.plot(tmp_path / "plot")
    assert not list(tmp_path.iterdir())


class TestThePapersOwnNumbers:
    """Check the transcribed tables against other statements of the paper."""

    def test_gaps_equal_those_of_table_2(self):
        made = suites.load("false-tables")
        best = best_scores(published_scores(made)).drop_nulls("gap")
        found = {tuple(place): gap for *place, gap in best.select("dataset", "missing", "test", "gap").iter_rows()}
        table = {
            "isolet": 15.7, "hapt": 7.3, "fashion-mnist": 4.5, "modelnet10": 9.1,
            ("train", "MCAR 2"): 5.3, ("train", "MCAR 5"): 10.4, ("train", "MAR 1"): 9.2, ("train", "MAR 2"): 9.6,
            ("train", "MNAR 7"): 11.4, ("train", "MNAR 9"): 8.9,
            ("test", "MCAR 0"): 1.8, ("test", "MCAR 2"): 5.4, ("test", "MCAR 5"): 9.6, ("test", "MAR 1"): 10.9,
            ("test", "MAR 2"): 12.3, ("test", "MNAR 7"): 10.8, ("test", "MNAR 9"): 13.1,
        }  # fmt: skip
        for name, gap in table.items():
            at = [v for k, v in found.items() if name in {k[0], ("train", k[1]), ("test", k[2])}]
            assert fmean(at) == pytest.approx(gap, abs=0.0601), name
        assert (len(found), sum(gap >= 0 for gap in found.values())) == (168, 160)
        assert fmean(found.values()) == pytest.approx(9.1, abs=0.05)

    def test_ratios_equal_those_of_the_tables(self):
        """Printed ratios are rounded; those of the baselines (marked with a star) differ by up to seven points."""
        made = suites.load("false-table18")
        means = {(row["dataset"], row["method"], row["missing"], row["test"]): row["score"]
                 for row in published_scores(made).iter_rows(named=True)}  # fmt: skip
        printed = published_ratios(made)
        assert len(printed) == 4 * 7 * 6
        for row in printed.iter_rows(named=True):
            high, low = (means[row["dataset"], row["method"], missing, row["test"]] for missing in ("MCAR 5", "MCAR 2"))
            assert row["ratio"] == pytest.approx(100 * high / low, abs=0.2 if row["own"] else 7.0)

    def test_the_smallest_decreases_are_counted_as_in_the_paper(self):
        made = suites.load("false-table18")
        cells = json.dumps(render(made, {}, {}).markdown)
        assert "23 of 28 in the paper" in cells


class TestSentencesOfThePages:
    def test_a_page_shows_only_the_differences_of_its_own_data_set(self):
        made = suites.load("laser-table1")
        pages = {
            name: (RESULTS / "laser-table1" / f"{name}.md").read_text(encoding="utf-8") for name in ("hapt", "credit")
        }
        for name, page in pages.items():
            for other, entry in made.datasets.items():
                assert all((f"- {line}\n" in page) == (other == name) for line in entry.differs)
            assert all(f"- {line}\n" in page for line in made.differs)

    def test_the_page_states_that_the_networks_are_our_choice(self):
        """The paper describes image networks in detail, but not those for tables, so these are our choice."""
        made = suites.load("false-tables")
        (said,) = (line for line in made.differs if "ResNet-18 and a transposed CNN" in line)
        assert "no more of networks than 'simple multilayer perceptrons': three layers at the parties are ours" in said
        assert "Hidden layers are 128 wide, those of the other methods' heads as wide as an embedding" in said
        for entry in (made.datasets[name] for name in ("isolet", "hapt")):
            assert entry.encoder.model_dump()["hidden"] in ([128, 128], (128, 128))
            heads = {of.parameters["head_hidden"][0] for of in entry.methods.values() if "head_hidden" in of.parameters}
            assert heads == {entry.embedding}

    def test_mar_rates_equal_those_stated_above_the_tables(self):
        made = suites.load("false-tables")
        (said,) = (line for line in made.differs if line.startswith("MAR 1"))
        table = (RESULTS / "false-tables" / "isolet.md").read_text(encoding="utf-8")
        one, two = (round(float(re.findall(rf"{name} (\d+)%", table)[0])) for name in ("MAR 1", "MAR 2"))
        assert 50 < one < two < 80  # rates of a data set are on its page
        assert "the number of blocks that the paper's mechanisms keep is not known" in said
        assert "Every table of `false-tables` begins with the shares of missing blocks" in said

    def test_figure_2_states_missing_runs_and_remainders_per_number_of_parties(self):
        made, page = suites.load("laser-fig2"), (RESULTS / "laser-fig2" / "hapt.md").read_text(encoding="utf-8")
        (said,) = (line for line in made.differs if "without any block" in line)
        assert f"- {said}\n" in page
        (missing,) = made.train_missing
        rates = [f"{mechanism_of(missing).expected_rate(K):.3f}".lstrip("0") for K in (2, 3)]
        assert f"with two parties {rates[0]} of the blocks are missing and not .1, with three {rates[1]}" in said
        over = {K: 561 - K * len(range(561)[columns(561, K)[0]]) for K in made.parties}
        assert f"{over.pop(32)} of HAPT's 561 with 32 parties, at most three with fewer" in said
        assert max(over.values()) == 3


def test_table_18_reuses_the_runs_of_the_other_tables():
    whole, part = suites.load("false-tables"), suites.load("false-table18")
    ours = {run.key for run in part.runs(Selection(seeds=1))}
    assert ours < {run.key for run in whole.runs(Selection(seeds=1))}
    assert len(ours) == 2 * 8 * 3  # none of ModelNet10, which is not included unless named
    assert (part.folder_name, part.prefix) == ("false-tables", "false-table18-")


def test_quick_mode_divides_the_epochs_of_both_stages_by_100():
    made = suites.load("false-tables")
    (run, *_) = made.runs(Selection(datasets=["isolet"], methods=["false-vfl-1"], seeds=1, quick=True))
    assert (run.settings["epochs"], run.settings["parameters"]["pretrain_epochs"]) == (3, 3)
    (run, *_) = made.runs(Selection(datasets=["isolet"], methods=["false-vfl-1"], seeds=1))
    assert (run.settings["epochs"], run.settings["parameters"]["pretrain_epochs"]) == (300, 300)
    assert (run.settings["batch_size"], run.settings["parameters"]["pretrain_batch_size"]) == (128, 512)


def test_views_are_assigned_as_often_as_the_suite_states():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 255, size=(5, 4, 1, 2, 2)).astype(np.uint8)
    made = Dataset(name="objects", title="Objects", task="classification", X_train=X, y_train=np.arange(5),
                   X_test=X[:2], y_test=np.arange(2), source="", licence="")  # fmt: skip
    rows = RunRows(made, 2, {"cut": "views", "repeats": (6, 2)}, Seeds(0))
    (first, second), y = rows.train
    assert first.shape == second.shape == (30, 4)
    assert y.tolist() == list(range(5)) * 6
    assert all(any(np.allclose(row * 255, X[n, v].ravel()) for v in (0, 1)) for row, n in zip(first, y, strict=True))
    assert len({row.tobytes() for row in first}) > 5  # the drawn views differ
    assert len(rows.test[1]) == 4


def test_the_seed_determines_the_sampled_rows():
    made = datasets.load("breast-cancer").split(Seeds(0))
    rows = [RunRows(made, 3, {"cut": "columns", "rows": 50}, Seeds(seed)).train[0][0] for seed in (1, 1, 2)]
    assert rows[0].shape == (50, 10)
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
