"""Compare several runs: differences of pairs, seed by seed, only on the same test rows."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from anyparty.api.runs import evaluate_run
from anyparty.report import comparison, figures, party_set_scores
from anyparty.report.recorded_runs import RunScores, find_runs
from tests.conftest import adopt
from tests.report import trained_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Train two methods with two seeds each, and runs with other settings; tests must not change them."""
    settings = trained_runs.write(tmp_path_factory.mktemp("several"), trained_runs.FIVE[:2])
    made = {
        f"{name}-{seed}": trained_runs.train(settings, f"{name}-{seed}", f"method.name={name}", f"train.seed={seed}")
        for name in ("laser", "local")
        for seed in (1, 2)
    }
    made["wide"] = trained_runs.train(settings, "wide", "train.seed=1", "train.test=0.4", "method.name=standard")
    made["wider"] = trained_runs.train(settings, "wider", "train.seed=1", "method.embedding=9")
    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(party_set_scores, "RESAMPLES", 5)


def compared(folders):
    found = find_runs(folders)
    return found, [RunScores.of(run, model=True) for run in found]


def test_differences_seed_by_seed(runs):
    names = ["laser-1", "laser-2", "local-1", "local-2"]
    found, scores = compared([runs[name] for name in names])
    accuracy = {name: evaluate_run(runs[name]).overall["accuracy"] for name in names}
    (difference,), unlike = comparison.compare_variants(found, scores, "accuracy")
    each = [accuracy[f"laser-{seed}"] - accuracy[f"local-{seed}"] for seed in (1, 2)]
    assert (difference.one, difference.other) == ("laser", "local")
    assert difference.each == pytest.approx(each)
    assert difference.mean == pytest.approx(np.mean(each))
    assert difference.deviation == pytest.approx(np.std(each, ddof=1))
    assert difference.better == sum(value > 0 for value in each)
    assert unlike == []
    section = comparison.comparison_section(found, scores)
    assert [row[0] for row in section.tables[-1].rows] == names
    assert [row[2].split()[0] for row in section.tables[-1].rows] == [f"{accuracy[name]:.3f}" for name in names]
    half = t.ppf(0.975, df=1) * np.std(each, ddof=1) / np.sqrt(2)
    low, high = np.mean(each) - half, np.mean(each) + half
    assert difference.interval() == pytest.approx((low, high))
    shown = f"{difference.mean:+.3f} ({low:.3f} to {high:.3f})"
    assert section.tables[0].rows == [["laser", "local", shown, "2", f"{difference.better} of 2"]]
    caption = "Difference in accuracy, seed by seed on the same test rows. More is better."
    assert section.tables[0].caption == f"{caption} Student's 95 % interval over seeds."


def test_variants_are_compared_with_own_columns_and_other_pairs_are_folded(runs, tmp_path):
    again = tmp_path / "many"
    settings = trained_runs.write(again, trained_runs.FIVE[:2])
    made = [trained_runs.train(settings, name, f"method.name={name}") for name in ("laser", "local", "ensemble")]
    found, scores = compared(made)
    section = comparison.comparison_section(found, scores)
    assert [row[:2] for row in section.tables[0].rows] == [["laser", "local"], ["ensemble", "local"]]
    assert "A single seed gives no interval." in section.tables[0].caption
    (pairs,) = section.details
    assert [row[:2] for row in pairs.tables[0].rows] == [
        ["laser", "local"],
        ["laser", "ensemble"],
        ["local", "ensemble"],
    ]
    assert pairs.tables[0].rows[2][2] != section.tables[0].rows[1][2] or "+0.000" in pairs.tables[0].rows[2][2]
    axis = section.figures[0].figure.axes[0]
    assert "own columns only" in [text.get_text() for text in axis.texts]


def test_without_models_recorded_scores_of_equal_test_rows_are_compared(runs):
    """The differences equal those of the models, and runs that test other rows are not compared."""
    found = find_runs([runs[name] for name in ("laser-1", "laser-2", "local-1", "local-2")])
    (difference,), unlike = comparison.compare_variants(found, [RunScores.of(run) for run in found], "accuracy")
    (same,), _ = comparison.compare_variants(*compared([run.folder for run in found]), "accuracy")
    assert difference.each == pytest.approx(same.each)
    assert unlike == []
    fewer = [found[0], replace(found[2], settings=found[2].settings | {"train": {"seed": 1, "test": 0.5}})]
    other = [found[0], replace(found[2], tables=found[2].tables | {"bank": "another"})]
    unknown = [found[0], replace(found[2], tables={})]
    for runs_of_other_rows in (fewer, other, unknown):
        scores = [RunScores.of(run) for run in runs_of_other_rows]
        differences, unlike = comparison.compare_variants(runs_of_other_rows, scores, "accuracy")
        assert differences == []
        assert "have different test rows" in unlike[0]


def test_many_runs_take_no_more_room_than_few(runs):
    found, scores = compared([runs["laser-1"], runs["local-1"]])
    many = [replace(found[k % 2], name=f"run {k}", settings=found[k % 2].settings | {"train": {"seed": k // 2}})
            for k in range(60)]  # fmt: skip
    section = comparison.comparison_section(many, [scores[k % 2] for k in range(60)])
    assert [len(table.rows) for table in section.tables] == [1]
    assert len(section.details[0].tables[0].rows) == 60


def test_scores_by_number_of_parties_are_means_over_seeds(runs, monkeypatch):
    """Recorded scores are by the parties that have the row, scores of models by the present parties."""
    found, scores = compared([runs["laser-1"], runs["laser-2"], runs["local-1"]])
    monkeypatch.setattr(figures, "FEWEST_ROWS", 1)
    one, two, other = (run.evaluation["by_count"] for run in found)
    table = comparison.comparison_section(found, [RunScores.of(run) for run in found]).tables[1]
    assert table.headers == ["variant", "1", "2"]
    mean = [(one[count]["accuracy"] + two[count]["accuracy"]) / 2 for count in ("1", "2")]
    assert table.rows[0] == ["laser", *(f"{value:.3f}" for value in mean)]
    assert table.rows[1] == ["local", *(f"{other[count]['accuracy']:.3f}" for count in ("1", "2"))]
    assert table.caption == "Mean accuracy over seeds, by number of parties that have the row."
    for each in scores:
        each.sets.every_set()
    table = comparison.comparison_section(found, scores).tables[1]
    assert table.caption == "Mean accuracy over seeds, by number of present parties."
    alone = np.mean([evaluate_run(runs["local-1"], parties=[name]).overall["accuracy"] for name in ("bank",)])
    assert table.rows[1][2] == f"{evaluate_run(runs['local-1']).overall['accuracy']:.3f}" == f"{alone:.3f}"
    monkeypatch.undo()
    few = [replace(run, evaluation=run.evaluation | {"by_count": {"1": one["1"] | {"rows": 9}, "2": one["2"]}})
           for run in (found[0], found[2])]  # fmt: skip
    table = comparison.comparison_section(few, [RunScores.of(run) for run in few]).tables[-2]
    assert [row[1] for row in table.rows] == ["–", "–"]
    assert table.caption.endswith("A dash stands for rows without an answer, or fewer than 10 rows.")


def points(axis) -> list[list[float]]:
    """Return the positions of the dots in each row of a figure."""
    rows: dict[float, list[float]] = {}
    for line in axis.lines:
        if line.get_marker() == "o":
            rows.setdefault(line.get_ydata()[0], []).extend(map(float, line.get_xdata()))
    return list(rows.values())


def test_a_figure_shows_variants_over_their_seeds(runs):
    names = ["laser-1", "laser-2", "local-1"]
    found, scores = compared([runs[name] for name in names])
    one, two, other = (evaluate_run(runs[name]).overall["accuracy"] for name in names)
    (drawn,) = comparison.comparison_section(found, scores).figures
    (axis,) = drawn.figure.axes
    assert drawn.name == "runs-accuracy"
    assert drawn.caption.endswith("with a band of one standard deviation. More is better.")
    assert [label.get_text() for label in axis.get_yticklabels()] == ["laser", "local"]
    assert [sorted(row) for row in points(axis)] == [pytest.approx(sorted([one, two, (one + two) / 2])), [other]]
    bands = [line.get_xdata() for line in axis.lines if line.get_marker() != "o"]
    off = np.std([one, two], ddof=1)
    assert list(bands[0]) == pytest.approx([(one + two) / 2 - off, (one + two) / 2 + off])
    assert np.isnan(bands[1]).all()  # a single seed has no deviation, and its interval is computed in another way


def test_a_figure_of_runs_with_a_seed_each_has_their_intervals(runs):
    found = find_runs([runs["laser-1"], runs["local-1"]])
    section = comparison.comparison_section(found, [RunScores.of(run, "log_loss", model=True) for run in found])
    (drawn,) = section.figures
    (axis,) = drawn.figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["laser-1", "local-1"]
    assert drawn.caption.endswith("from resampled test rows. Less is better.")
    assert "Less is better." in section.tables[0].caption
    assert all(np.isfinite(line.get_xdata()).all() for line in axis.lines)


def test_less_is_better_where_less_is_better(runs):
    names = ["laser-1", "local-1"]
    found = find_runs([runs[name] for name in names])
    scores = [RunScores.of(run, "log_loss", model=True) for run in found]
    (difference,), _ = comparison.compare_variants(found, scores, "log_loss")
    assert difference.better == (difference.mean < 0)
    assert np.isnan(difference.deviation)


def test_other_test_rows_are_marked_and_not_compared(runs):
    found, scores = compared([runs["laser-1"], runs["wide"]])
    assert comparison.compare_variants(found, scores, "accuracy") == (
        [],
        ["laser and standard have different test rows"],
    )
    section = comparison.comparison_section(found, scores)
    assert list(section.text) == ["Not compared in accuracy: laser and standard have different test rows."]
    assert len(section.tables) == 1


def test_the_rows_are_compared_and_not_the_settings(runs, tmp_path):
    """The test rows do not depend on dropped columns or on the number of validation rows."""
    settings = trained_runs.write(tmp_path, trained_runs.FIVE[:2])
    changes = {"all": [], "ablated": ['parties.shop.drop=["noise"]'], "more": ["train.validation=0.3"]}
    made = [trained_runs.train(settings, name, "train.seed=1", *words) for name, words in changes.items()]
    found, scores = compared(made)
    differences, unlike = comparison.compare_variants(found, scores, "accuracy")
    assert len(differences) == 3
    assert unlike == []


def test_f1_of_another_class_is_not_compared(runs, tmp_path):
    settings = trained_runs.write(tmp_path, trained_runs.FIVE[:2])
    made = [trained_runs.train(settings, name, f"federation.positive={name}") for name in ("yes", "no")]
    found = find_runs(made)
    found_f1, unlike = comparison.compare_variants(found, [RunScores.of(run, "f1", model=True) for run in found], "f1")
    assert found_f1 == []
    assert len(unlike) == 1
    assert unlike[0].endswith("have different positive classes")
    for metric in ("accuracy", "auroc"):
        assert (
            len(comparison.compare_variants(found, [RunScores.of(run, metric, model=True) for run in found], metric)[0])
            == 1
        )
    plain = [
        found[0],
        *find_runs([trained_runs.train(settings, "plain", "method.embedding=5")]),
    ]  # "yes" is the second class
    assert comparison.compare_variants(plain, [RunScores.of(run, "f1", model=True) for run in plain], "f1")[1] == []


def test_two_runs_of_one_variant_and_seed_are_named(runs, tmp_path):
    again = adopt(shutil.copytree(runs["laser-1"], tmp_path / "again"))
    found, scores = compared([runs["laser-1"], again, runs["local-1"]])
    differences, unlike = comparison.compare_variants(found, scores, "accuracy")
    assert len(differences) == 1
    assert unlike == ["again has the settings and the seed of laser-1"]


def test_variants_of_a_method_are_named_by_what_differs(runs):
    found, scores = compared([runs["laser-1"], runs["wider"]])
    (difference,), _ = comparison.compare_variants(found, scores, "accuracy")
    assert (difference.one, difference.other) == ("laser (method.embedding = 4)", "laser (method.embedding = 9)")


def test_settings_that_change_no_weight_make_no_variant(runs, tmp_path):
    moved = adopt(shutil.copytree(runs["laser-2"], tmp_path / "moved"))
    text = (moved / "config.toml").read_text(encoding="utf-8")
    changed = text.replace("checkpoint_every = 5", "checkpoint_every = 2").replace(
        "tensorboard = false", "tensorboard = true"
    )
    for table in re.findall(r'table = "(.+\.csv)"', text):  # the file has moved, but is the same
        changed = changed.replace(table, str(shutil.copy(table, tmp_path)))
    assert changed.count(str(tmp_path)) > 1
    (moved / "config.toml").write_text(changed, encoding="utf-8")
    found, scores = compared([runs["laser-1"], moved, runs["local-1"], runs["local-2"]])
    (difference,), _ = comparison.compare_variants(found, scores, "accuracy")
    assert (difference.one, difference.other, len(difference.each)) == ("laser", "local", 2)


def test_runs_without_scores_stand_in_the_table(runs):
    found, scores = compared([runs["laser-1"], runs["local-1"]])
    nothing = [found[0], replace(found[1], evaluation=None)]
    section = comparison.comparison_section(nothing, [scores[0], RunScores(reason="its tables are elsewhere")])
    assert section.tables[0].rows[1][2] == "–"
    assert not section.figures
    assert len(section.tables) == 1


def test_runs_without_any_score_say_why(runs):
    found, _ = compared([runs["laser-1"], runs["local-1"]])
    nothing = [replace(run, evaluation=None) for run in found]
    reasons = ["no labelled rows were held out", "no labelled rows were held out"]
    section = comparison.comparison_section(nothing, [RunScores(reason=reason) for reason in reasons])
    assert list(section.text) == ["There are no test scores: no labelled rows were held out."]


def test_a_recorded_score_stands_in_the_figure_and_in_no_difference(runs):
    found, scores = compared([runs["laser-1"], runs["local-1"]])
    accuracy = [evaluate_run(runs[name]).overall["accuracy"] for name in ("laser-1", "local-1")]
    section = comparison.comparison_section(found, [scores[0], RunScores(reason="its tables are elsewhere")])
    (drawn,) = section.figures
    assert points(drawn.figure.axes[0]) == [[pytest.approx(value)] for value in accuracy]
    assert drawn.caption.endswith("; the scores of 'local-1' are as recorded, without an interval. More is better.")
    said = "Not among the differences, which need the model and its tables: 'local-1' (its tables are elsewhere)."
    assert list(section.text) == [said]
    assert len(section.tables) == 1


def test_recorded_scores_alone_are_drawn_but_those_of_some_rows(runs):
    """The recorded score of Standard VFL covers only rows with an answer, so it is not drawn."""
    found = find_runs([runs["laser-1"], runs["local-1"], runs["wide"]])
    assert found[2].evaluation["overall"]["coverage"] < 1
    section = comparison.comparison_section(found, [RunScores.of(run) for run in found])
    (drawn,) = section.figures
    assert [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()] == ["laser-1", "local-1"]
    (note,) = section.text
    assert note.startswith("Not in the figure: wide, whose recorded score covers only the ")
    seeds = find_runs([runs["laser-1"], runs["laser-2"], runs["local-1"]])
    (drawn,) = comparison.comparison_section(seeds, [RunScores.of(run) for run in seeds]).figures
    assert [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()] == ["laser", "local"]
