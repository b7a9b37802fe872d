"""Compare several runs: differences of pairs, seed by seed, only on the same test rows."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anyparty.api.runs import evaluate_run
from anyparty.report import comparison, party_set_scores
from anyparty.report.recorded_runs import find_runs
from anyparty.report.run_scores import RunScores
from tests.report import trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Train two methods with two seeds each, and runs with other settings; tests must not change them."""
    settings = trained.write(tmp_path_factory.mktemp("several"), trained.FIVE[:2])
    made = {
        f"{name}-{seed}": trained.train(settings, f"{name}-{seed}", f"method.name={name}", f"train.seed={seed}")
        for name in ("laser", "local")
        for seed in (1, 2)
    }
    made["wide"] = trained.train(settings, "wide", "train.seed=1", "train.test=0.4", "method.name=standard")
    made["wider"] = trained.train(settings, "wider", "train.seed=1", "method.embedding=9")
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
    assert [row[0] for row in section.tables[0].rows] == names
    assert [row[6].split()[0] for row in section.tables[0].rows] == [f"{accuracy[name]:.3f}" for name in names]
    assert section.tables[1].rows[0][:3] == ["laser", "local", "2"]
    said = "Difference in accuracy, seed by seed on the same test rows."
    assert section.tables[1].caption == f"{said} More is better."


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
    assert section.tables[1].caption.endswith("Less is better.")
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
    settings = trained.write(tmp_path, trained.FIVE[:2])
    changes = {"all": [], "ablated": ['parties.shop.drop=["noise"]'], "more": ["train.validation=0.3"]}
    made = [trained.train(settings, name, "train.seed=1", *words) for name, words in changes.items()]
    found, scores = compared(made)
    differences, unlike = comparison.compare_variants(found, scores, "accuracy")
    assert len(differences) == 3
    assert unlike == []


def test_f1_of_another_class_is_not_compared(runs, tmp_path):
    settings = trained.write(tmp_path, trained.FIVE[:2])
    made = [trained.train(settings, name, f"federation.positive={name}") for name in ("yes", "no")]
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
        *find_runs([trained.train(settings, "plain", "method.embedding=5")]),
    ]  # "yes" is the second class
    assert comparison.compare_variants(plain, [RunScores.of(run, "f1", model=True) for run in plain], "f1")[1] == []


def test_two_runs_of_one_variant_and_seed_are_named(runs, tmp_path):
    again = shutil.copytree(runs["laser-1"], tmp_path / "again")
    found, scores = compared([runs["laser-1"], again, runs["local-1"]])
    differences, unlike = comparison.compare_variants(found, scores, "accuracy")
    assert len(differences) == 1
    assert unlike == ["again has the settings and the seed of laser-1"]


def test_variants_of_a_method_are_named_by_what_differs(runs):
    found, scores = compared([runs["laser-1"], runs["wider"]])
    (difference,), _ = comparison.compare_variants(found, scores, "accuracy")
    assert (difference.one, difference.other) == ("laser (method.embedding = 4)", "laser (method.embedding = 9)")


def test_settings_that_change_no_weight_make_no_variant(runs, tmp_path):
    moved = shutil.copytree(runs["laser-2"], tmp_path / "moved")
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
    assert section.tables[0].rows[1][6] == "–"
    assert not section.figures
    assert len(section.tables) == 1


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
    assert section.text[0].startswith("Not in the figure: wide, whose recorded score covers only the ")
    assert "'laser-1', 'local-1', 'wide' (the report reads only records unless it is asked to" in section.text[1]
    seeds = find_runs([runs["laser-1"], runs["laser-2"], runs["local-1"]])
    (drawn,) = comparison.comparison_section(seeds, [RunScores.of(run) for run in seeds]).figures
    assert [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()] == ["laser", "local"]
