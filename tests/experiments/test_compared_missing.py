"""Comparisons with mechanisms, pairs of them for training and test, and own mechanisms; tables in LaTeX and CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest

import anyparty
from anyparty import Comparison, Federation
from anyparty.core.seeds import Seeds
from anyparty.data.missingness import MAR1, MCAR, MNAR, independent, stream
from anyparty.errors import ConfigError
from anyparty.experiments.compared_missing import MissingBlocks, conditions, without_blocks
from anyparty.problem.splits import TEST, TRAIN

QUICK: dict[str, Any] = {"epochs": 2, "test": 0.3, "batch_size": 32}


@dataclass(frozen=True, kw_only=True)
class Rich:
    """A party lacks a row if its own columns are high, with probability p."""

    name: ClassVar[str] = "rich"
    p: float = 0.9

    def draw(self, seeds: Seeds, name: str, n: int, K: int, blocks: Any = None) -> Any:
        high = np.stack([block.mean(axis=1) > 0 for block in blocks], axis=1)
        return independent(stream(seeds, name), np.where(high, self.p, 0.0))


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    return Federation.from_arrays({"a": x[:, :2], "b": x[:, 2:]}, (x.sum(axis=1) > 0).astype(int))


@pytest.fixture(scope="module")
def found(federation: Federation) -> Comparison:
    missing = [(0.0, MNAR(p=0.9)), Rich(), "mcar"]
    return anyparty.compare(federation, ["laser", "local"], seeds=2, missing=missing, **QUICK)


def test_conditions_have_labels_in_the_given_order(found: Comparison) -> None:
    labels = ["0 → MNAR(p=0.9)", "Rich(p=0.9)", "MCAR(p=0.0)"]
    assert not found.failed
    assert found.rates == labels
    assert found.frame(by="missing").filter(pl.col("method") == "laser")["missing"].to_list() == labels
    assert found.reached["MCAR(p=0.0)"] == 0 < found.reached[labels[0]] < found.reached["Rich(p=0.9)"]
    assert next(row[0] for row in found.tables()[0].rows) == f"{labels[0]} ({found.reached[labels[0]]:.0%} reached)"
    assert len(found.paired()) == 3
    found.plot()


def test_a_pair_removes_blocks_of_training_and_test_rows_separately(federation: Federation) -> None:
    use = federation.split(federation.config.train)
    for pair, spared in ((MissingBlocks(train=MCAR(), test=MCAR(p=0.6)), TRAIN),
                         (MissingBlocks(train=MCAR(p=0.6), test=MCAR()), TEST)):  # fmt: skip
        masked, rate = without_blocks(federation, pair, Seeds(1))
        assert masked.observed[use == spared].all()
        assert not masked.observed[use != spared].all()
        assert rate == pytest.approx(1 - masked.observed.mean())
        assert (masked.split(masked.config.train) == use).all()


def test_a_mechanism_sees_the_prepared_values(federation: Federation) -> None:
    """Rich removes no block whose mean is low; a row that is high everywhere keeps one block."""
    masked, _ = without_blocks(federation, MissingBlocks(train=Rich(p=0.9)), Seeds(0))
    frames = [federation.tables[name].columns.to_numpy()[federation.alignment.position[name]] for name in ("a", "b")]
    training = federation.split(federation.config.train) == TRAIN
    high = np.stack([((x - x[training].mean(0)) / x[training].std(0)).mean(1) > 0 for x in frames], axis=1)
    assert masked.observed[~high].all()
    assert 0.05 < masked.observed[high].mean() < 0.6
    again, _ = without_blocks(federation, MissingBlocks(train=Rich(p=0.9)), Seeds(0))
    assert (again.observed == masked.observed).all()
    without_blocks(federation, MissingBlocks(train=MAR1(threshold=0.5, step=0.1)), Seeds(0))


def test_all_methods_have_the_same_masks(found: Comparison) -> None:
    for seed in found.seeds:
        for label in found.rates:
            runs = [each for each in found.records if (each["run"]["seed"], each["run"]["missing"]) == (seed, label)]
            assert len({each["rate"] for each in runs}) == len({each["test"] for each in runs}) == 1


def test_rates_alone_stay_numbers() -> None:
    assert list(conditions([0.5, 0])) == [0.0, 0.5]
    assert list(conditions((0.0, 0.3, 0.5))) == [0.0, 0.3, 0.5]
    assert list(conditions(MNAR(p=0.7))) == ["MNAR(p=0.7)"]
    assert list(conditions({"name": "mnar", "p": 0.6})) == ["MNAR(p=0.6)"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "missing: the list is empty"),
        ([1.0], "expected probabilities of at least 0 and below 1"),
        ([(0.1, 0.2, 0.3)], r"expected a pair \(training, test\), got 3 values"),
        ([MNAR], "expected rates, mechanisms such as MNAR"),
        ([object()], "expected rates, mechanisms"),
        (["mnor"], "no missingness 'mnor'"),
    ],
)
def test_a_wrong_condition_is_named(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        conditions(given)


def test_the_table_in_latex(found: Comparison) -> None:
    text = found.to_latex()
    lines = text.splitlines()
    assert lines[1] == r"\begin{tabular}{lrrr}"
    assert lines[3] == r"missing & 0 $\to$ MNAR(p=0.9) & Rich(p=0.9) & MCAR(p=0.0) \\"
    laser = lines[5].removesuffix(r" \\").split(" & ")
    assert laser[0] == "laser"
    scores = found.frame(by="missing").filter(pl.col("method") == "laser")["mean"]
    assert f"{100 * scores[0]:.1f}" in laser[1]
    assert all(r" \pm " in cell for cell in laser[1:])
    for column in range(1, 4):  # a best mean in every column
        assert any(r"\mathbf" in line.split(" & ")[column] for line in lines[5:7])
    assert r"\mathbf" not in found.to_latex(baseline="laser").splitlines()[5]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_scores_as_csv(found: Comparison, tmp_path: Path) -> None:
    found.to_csv(tmp_path / "scores.csv")
    assert pl.read_csv(tmp_path / "scores.csv")["mean"].to_list() == pytest.approx(
        found.frame(by=("missing", "present"))["mean"].to_list()
    )
    found.to_csv(tmp_path / "runs.csv", by=None)
    assert len(pl.read_csv(tmp_path / "runs.csv")) == len(found.frame())


def test_finished_runs_of_a_mechanism_are_not_repeated(federation: Federation, tmp_path: Path) -> None:
    for p in (0.5, 0.9, 0.9):
        anyparty.compare(federation, ["local"], seeds=1, missing=[Rich(p=p)], folder=tmp_path, **QUICK)
    assert len(list(tmp_path.glob("local-missing*"))) == 2
