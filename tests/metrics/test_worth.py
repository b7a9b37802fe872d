"""Scores beside boosted trees: the verdict, its interval, its record, thresholds, and the digits of probabilities."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from anyparty import Federation, Model, runs
from anyparty.api.verdict import BaselineComparison, columns_of
from anyparty.core.types import Task
from anyparty.errors import AnypartyWarning
from anyparty.metrics import plots
from anyparty.metrics.baselines import BoosterBaseline
from anyparty.metrics.scores import LabelledPredictions
from anyparty.metrics.worth import Line, Worth, paired_difference

N = 900
TWO = Task(kind="classification", classes=("no", "yes"))


def trained(folder: Path | None = None, *, label: Callable[..., np.ndarray], own: bool = True, rows: int = N) -> Model:
    """Train on three parties; a quarter of the rows are absent at each passive party."""
    draw = np.random.default_rng(3)
    a, b, c = draw.normal(size=(3, rows))
    base = {"id": np.arange(rows), "y": label(a, b, c)}
    tables = {"bank": pl.DataFrame(base | ({"a": a} if own else {}))}
    for name, column in (("shop", b), ("telco", c)):
        tables[name] = pl.DataFrame({"id": np.arange(rows), name: column}).sample(fraction=0.75, seed=1)
    federation = Federation.from_tables(tables, id="id", label="y", active="bank")
    return federation.train("laser", epochs=8, folder=folder)


def signal(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.where(a + 2 * b + c > 0, "yes", "no")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    folder = tmp_path_factory.mktemp("run") / "run"
    return trained(folder, label=signal), folder


def test_a_signal_at_the_passive_parties_is_in_the_verdict(run: tuple[Model, Path]) -> None:
    worth = run[0].evaluate().worth
    assert worth is not None
    assert [line.kind for line in worth.lines] == ["own", "all", "without", "without", "alone", "pooled"]
    assert worth.verdict.startswith("the other parties raise AUROC from 0.")
    assert worth.difference == pytest.approx(worth.value("all") - worth.value(worth.reference))
    assert worth.value(worth.reference) == max(worth.value("own"), worth.value("alone"))
    assert 0 < worth.half_width < worth.difference
    assert worth.value("own") < 0.8 < worth.value("pooled")
    assert worth.verdict[1:] in str(run[0].evaluate()).replace("\n", " ")


def test_own_trees_are_trained_on_the_training_rows_and_scored_on_the_test_rows(run: tuple[Model, Path]) -> None:
    model, _ = run
    assert model.comparison is not None
    assert model.held_out is not None
    rows, _, test = model.held_out
    training, validation = model.comparison.training, model.comparison.validation
    assert not {*training.tolist(), *validation.tolist()} & {*test.tolist()}
    x, y = columns_of(rows, ["bank"], torch.arange(N)), rows["bank"].y.numpy()
    booster = BoosterBaseline.fit(x[training], y[training], model.task, validation=(x[validation], y[validation]))
    p = booster.predict(x[test])[:, 1]
    positive = y[test] == 1
    above = (p[positive, None] > p[~positive]).mean() + (p[positive, None] == p[~positive]).mean() / 2
    assert model.evaluate().worth.value("own") == pytest.approx(above, abs=1e-6)


def test_same_seed_same_numbers_and_a_pickle_keeps_them(run: tuple[Model, Path]) -> None:
    evaluation = run[0].evaluate()
    assert evaluation.worth == run[0].evaluate().worth == pickle.loads(pickle.dumps(evaluation)).worth  # noqa: S301
    assert trained(label=signal).evaluate().worth == evaluation.worth


def test_the_record_has_the_comparison(run: tuple[Model, Path]) -> None:
    model, folder = run
    worth, record = model.evaluate().worth, json.loads((folder / "record.json").read_text())
    assert Worth.of_json(record["evaluation"]["worth"]) == worth
    assert record["evaluation"]["worth"]["verdict"] == worth.verdict
    (row,) = runs.frame([folder]).to_dicts()
    assert (row["own.auroc"], row["pooled.auroc"]) == (worth.value("own"), worth.value("pooled"))
    assert (row["gain.auroc"], row["gain.auroc.half_width"]) == (worth.difference, worth.half_width)


def test_noise_at_the_passive_parties_adds_nothing() -> None:
    """Trees on 500 rows are coarse, so that the network alone is better: that is not the other parties' doing."""
    worth = trained(label=lambda a, *_: np.where(a + np.sin(9 * np.arange(N)) > 0.2, "yes", "no")).evaluate().worth
    assert worth.reference == "alone"
    assert worth.verdict.startswith("the other parties ")
    assert "raise" not in worth.verdict


def test_a_party_without_columns_could_only_guess() -> None:
    worth = trained(label=signal, own=False).evaluate().worth
    assert worth.value("own") == 0.5
    assert worth.lines[0].name == "bank, a constant guess"
    assert any("holds no columns" in note for note in worth.notes)


def test_numbers_are_compared_by_their_errors() -> None:
    worth = trained(label=lambda a, b, _: 100 * (a + 2 * b) + 1000).evaluate().worth
    assert worth.metric == "rmse"
    assert worth.difference < 0
    assert worth.verdict.startswith("the other parties lower RMSE from ")


def test_the_active_party_alone_is_not_compared(run: tuple[Model, Path]) -> None:
    assert run[0].evaluate(parties=["bank"]).worth is None
    worth = run[0].evaluate(parties=["bank", "shop"]).worth
    assert worth.verdict.startswith("'shop' raises AUROC")


def test_a_site_compares_with_its_own_columns_only(run: tuple[Model, Path]) -> None:
    model, _ = run
    rows, _, test = model.held_out
    own = {"bank": rows["bank"]}
    site = replace(model.comparison, rows=own, trained={})
    worth = site.worth(own, test, ["bank", "shop", "telco"], model.evaluate().rows)
    assert [line.kind for line in worth.lines] == ["own", "all"]
    assert worth.lines == model.evaluate().worth.lines[:2]
    assert worth.verdict.startswith("the other parties raise AUROC")


def test_too_many_numbers_for_trees_are_a_remark(run: tuple[Model, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyparty.api.verdict.MOST_CELLS", 10)
    with pytest.warns(AnypartyWarning, match="trees are trained on at most 10"):
        assert run[0].evaluate().worth is None


def test_missing_cells_and_rows_are_missing_to_trees(run: tuple[Model, Path]) -> None:
    rows, alignment, _ = run[0].held_out
    x = columns_of(rows, ["bank", "shop"], torch.arange(N))
    assert np.array_equal(np.isnan(x[:, -1]), alignment.blocks["shop"] < 0)
    assert isinstance(run[0].comparison, BaselineComparison)


SENTENCES = {
    (0.118, 0.006): "the other party raises AUROC from 0.777 to 0.895 (+0.118 ± 0.006)",
    (-0.001, 0.004): "the other party adds nothing here: AUROC 0.777 without, 0.776 with it (-0.001 ± 0.004)",
    (0.1, 0.2): "50 test rows are too few to tell whether the other party adds something: AUROC 0.777 without, 0.877 "
    "with it (+0.100 ± 0.200)",
    (-0.1, 0.02): "the other party does not help here: bank alone has AUROC 0.777, all 0.677 (-0.100 ± 0.020)",
    (math.nan, math.nan): "AUROC is not defined on these test rows, so they do not show what the other party adds",
}


@pytest.mark.parametrize(("difference", "half", "said"), [(*key, said) for key, said in SENTENCES.items()])
def test_the_verdict_is_one_sentence(difference: float, half: float, said: str) -> None:
    lines = [Line(name=kind, kind=kind, scores={"auroc": value}, rows=50)
             for kind, value in (("own", 0.777), ("all", 0.777 + difference))]  # fmt: skip
    made = Worth(active="bank", passive=("shop",), every=True, metric="auroc", lines=tuple(lines),
                 difference=difference, half_width=half)  # fmt: skip
    assert made.verdict == said
    assert json.loads(json.dumps(made.to_json()))["verdict"] == said


def test_the_interval_covers_the_difference_of_two_guesses() -> None:
    """For a difference of two means, the bootstrap's standard error is that of paired differences."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(2, (2000,), generator=draw)
    p = torch.rand(2000, 2, 1, generator=draw).clamp(0.05, 0.95)
    one, other = (
        LabelledPredictions(task=TWO, scores=torch.cat([1 - each, each], 1), y=y, answered=torch.ones(2000).bool())
        for each in p.unbind(1)
    )
    difference, half = paired_difference(one, other, "log_loss", 0)
    losses = [-each.scores.gather(1, y[:, None]).log()[:, 0] for each in (one, other)]
    assert difference == pytest.approx(float((losses[0] - losses[1]).mean()), abs=1e-5)
    assert half == pytest.approx(1.96 * float((losses[0] - losses[1]).std()) / 2000**0.5, rel=0.2)


def test_thresholds_count_selected_rows() -> None:
    p = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1])
    y = torch.tensor([1, 1, 0, 1, 0, 1, 0, 0])
    rows = LabelledPredictions(task=TWO, scores=torch.stack([1 - p, p], 1), y=y, answered=torch.ones(8).bool())
    first, own = plots.thresholds_of(rows, [0.25])
    assert (first.share, first.precision, first.recall, first.lift) == (0.25, 1.0, 0.5, 2.0)
    assert (own.threshold, own.share, own.precision, own.recall, own.chosen) == (0.5, 0.5, 0.75, 0.75, True)
    weighted = replace(rows, task=replace(TWO, weights=(0.5, 1.5)))
    assert [each.threshold for each in plots.thresholds_of(weighted, []) if each.chosen] == [0.25]
    assert plots.brier_score(rows) == pytest.approx(float(((p - y) ** 2).mean()), abs=1e-6)


def test_probabilities_in_a_csv_have_six_decimals(run: tuple[Model, Path], tmp_path: Path) -> None:
    answered = run[0].predict()
    answered.write(tmp_path / "answers.csv")
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    place = lines[0].split(",").index("p(yes)")
    assert all(len(line.split(",")[place].partition(".")[2]) == 6 for line in lines[1:])
    assert pl.read_csv(tmp_path / "answers.csv")["p(yes)"].to_numpy() == pytest.approx(
        answered.frame()["p(yes)"].to_numpy(), abs=1e-6
    )
