"""``anyparty.compare``: identical rows and blocks for all methods, paired differences, and resuming."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from typer.testing import CliRunner

import anyparty
from anyparty import Comparison, Federation
from anyparty.cli.app import app
from anyparty.config import TrainSettings
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities
from anyparty.errors import ConfigError, RunError
from anyparty.experiments.compare import announcement
from anyparty.experiments.compared_methods import compared_methods, described_option
from anyparty.experiments.compared_missing import without_blocks
from anyparty.experiments.comparison_run import ComparisonRun, party_sets, score_of
from anyparty.methods.split.rule import EMBEDDING, GRADIENT, Host, Noise, Rule, every_row
from anyparty.networks.heads import Heads
from anyparty.problem.splits import TRAIN
from tests.conftest import write_tables

QUICK: dict[str, Any] = {"epochs": 2, "test": 0.3, "batch_size": 32}


@dataclass(frozen=True, kw_only=True)
class Mean(Rule):
    """One head on the mean of the present embeddings."""

    @property
    def can(self) -> Capabilities:
        return Capabilities(title="Mean", paper="none", trains_on="all labelled rows", predicts_for="any row",
                            needs="any", messages=(EMBEDDING, GRADIENT))  # fmt: skip

    def losses(
        self, host: Host, heads: Heads, h: Tensor, observed: Tensor, y: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        return every_row(host.loss(self.outputs(host, heads, h, observed)[0].squeeze(1), y))

    def outputs(self, host: Host, heads: Heads, h: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        kept = h.masked_fill(~observed.unsqueeze(2), 0.0).sum(1, keepdim=True)
        return heads(kept / observed.sum(1).clamp(min=1).view(-1, 1, 1)), observed.any(1, keepdim=True)


@pytest.fixture(scope="module")
def federation() -> Federation:
    draw, ids = np.random.default_rng(0), [f"r{n:03d}" for n in range(90)]
    X = draw.normal(size=(90, 3))
    y = np.where(X.sum(axis=1) > 0, "yes", "no")
    tables = {name: pl.DataFrame({"id": ids, "x": X[:, k]}) for k, name in enumerate(("a", "b", "c"))}
    tables["a"] = tables["a"].with_columns(label=pl.Series(y))
    tables["b"] = tables["b"].filter(pl.col("id") > "r015")  # a gap of the table itself
    return Federation.from_tables(tables, label="label")


@pytest.fixture(scope="module")
def comparison(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    methods = {"laser": "laser", "standard": "standard", "<b>own</b>": Mean()}
    folder = tmp_path_factory.mktemp("comparison")
    return anyparty.compare(federation, methods, seeds=2, missing=[0.5, 0], folder=folder, **QUICK)


def test_all_methods_and_rates_have_the_same_test_rows(comparison: Comparison) -> None:
    assert len(comparison.records) == 2 * 2 * 3
    assert not comparison.failed
    for seed in (0, 1):
        assert len({record["test"] for record in comparison.records if record["run"]["seed"] == seed}) == 1
    assert len({record["test"] for record in comparison.records}) == 2


def test_removing_blocks_keeps_all_labels(federation: Federation) -> None:
    half, rate = without_blocks(federation, 0.5, Seeds(3))
    more, _ = without_blocks(federation, 0.8, Seeds(3))
    assert half.alignment.ids is not None
    assert half.alignment.ids.equals(federation.alignment.ids)
    assert half.observed.any(axis=1).all()
    assert half.labeled.all()
    assert not (half.observed & ~federation.observed).any()
    assert rate == pytest.approx(1 - half.observed.sum() / federation.observed.sum())
    assert 0.3 < rate < 0.6
    lost = (more.observed & ~half.observed).sum()  # only rows that would be empty keep another block
    assert lost <= (more.observed.sum(axis=1) == 1).sum()
    assert (without_blocks(federation, 0.5, Seeds(3))[0].observed == half.observed).all()
    assert (without_blocks(federation, 0.5, Seeds(4))[0].observed != half.observed).any()
    assert without_blocks(federation, 0.0, Seeds(3))[0] is federation


def test_scores_of_each_number_of_parties(comparison: Comparison, federation: Federation) -> None:
    frame = comparison.frame(by=("missing", "present"))
    standard = frame.filter(pl.col("method") == "standard")
    assert standard.filter(pl.col("present") == 3)["coverage"].to_list() == [1.0, 1.0]
    assert standard.filter(pl.col("present") < 3)["coverage"].to_list() == [0.0] * 4
    model = federation.train("standard", seed=0, **QUICK)
    assert model.held_out is not None
    _, alignment, test = model.held_out
    assert alignment.ids is not None
    names = alignment.ids.to_list()
    label = dict(zip(federation.tables["a"].ids, federation.label("a"), strict=True))
    common = max(("no", "yes"), key=[label[name] for k, name in enumerate(names) if k not in set(test.tolist())].count)
    found = score_of(model, ["a"])
    assert found["coverage"] == 0
    assert found["accuracy"] == pytest.approx(np.mean([label[names[k]] == common for k in test.tolist()]))
    drawn = score_of(model, None)
    assert drawn["coverage"] == pytest.approx(np.mean([names[k] > "r015" for k in test.tolist()]))
    evaluated = model.evaluate().overall
    assert drawn["rows"] == evaluated["rows"]
    assert score_of(model, ["a", "b", "c"])["accuracy"] == pytest.approx(evaluated["accuracy"])


def test_frames_and_paired_differences(comparison: Comparison) -> None:
    long = comparison.frame()
    assert len(long) == 12 * 4
    assert long["present"].to_list()[:4] == [None, 3, 2, 1]
    scores = {
        (row["method"], row["seed"]): row["score"]
        for row in long.filter(pl.col("present").is_null(), pl.col("missing") == 0.5).iter_rows(named=True)
    }
    each = [scores["laser", seed] - scores["standard", seed] for seed in (0, 1)]
    row = comparison.paired("standard").row(
        by_predicate=(pl.col("method") == "laser") & (pl.col("missing") == 0.5), named=True
    )
    rows = comparison.records[0]["rows"]
    overlap = rows["test"] / (rows["train"] + rows["validation"])
    half = stats.t.ppf(0.975, 1) * math.sqrt(np.var(each, ddof=1) * (1 / 2 + overlap))
    assert row["difference"] == pytest.approx(np.mean(each))
    assert (row["low"], row["high"]) == (pytest.approx(np.mean(each) - half), pytest.approx(np.mean(each) + half))
    assert row["better"] == sum(value > 0 for value in each)
    assert set(comparison.paired()["baseline"]) == {"laser"}
    assert (
        comparison.frame(by="method", metric="auroc")["mean"].to_list()
        != comparison.frame(by="method")["mean"].to_list()
    )
    loss = comparison.paired(metric="log_loss", by=("missing", "present"))
    assert (loss.filter(pl.col("better") == 2)["difference"] < 0).all()  # less is better
    for wrong in ({"by": "colour"}, {"metric": "rmse"}):
        with pytest.raises(ConfigError, match=r"colour|rmse"):
            comparison.frame(**wrong)
    with pytest.raises(ConfigError, match="did you mean 'laser'"):
        comparison.paired("lasr")


def test_the_share_of_removed_blocks_is_shown_beside_the_rate(comparison: Comparison) -> None:
    """With three parties, a rate of 50 % removes about 43 % of the blocks, because a row keeps one of its blocks."""
    found = comparison
    shares = {
        rate: np.mean([one["rate"] for one in found.records if one["run"]["missing"] == rate]) for rate in found.rates
    }
    assert found.reached == pytest.approx(shares)
    assert shares[0] == 0
    assert 0.3 < shares[0.5] < 0.48
    shown = f"50% ({shares[0.5]:.0%} reached)"
    assert [axes.get_title(loc="left") for axes in found.plot().axes] == [
        "0%\nof blocks missing in training",
        f"{shown}\nof blocks missing in training",
    ]
    for frame in (found.frame(by="missing"), found.frame(by=("missing", "present")), found.paired()):
        assert dict(frame.select("missing", "missing_reached").iter_rows()) == pytest.approx(shares)
    assert "missing_reached" not in found.frame(by="method").columns
    for table in found.tables()[:2]:
        assert {row[0] for row in table.rows} == {"0%", shown}
    assert shown in repr(found)
    assert shown in found._repr_html_()


def test_blanked_blocks_are_not_counted_as_training_rows(federation: Federation) -> None:
    """With ``rows = "all"``, a row that lost a block is not for training, and intervals use the lower number."""
    found = anyparty.compare(
        federation, ["local", "laser"], seeds=2, missing=[0, 0.5], rows="all", validation=0, **QUICK
    )
    number = {}
    for record in found.records:
        seed, missing = record["run"]["seed"], record["run"]["missing"]
        train = TrainSettings(seed=seed, rows="all", validation=0, **QUICK)
        masked, _ = without_blocks(federation, missing, Seeds(seed))
        whole = masked.observed.all(axis=1)
        assert record["rows"]["train"] == whole[federation.split(train) == TRAIN].sum(), (seed, missing)
        number[seed, missing] = record["rows"]["train"]
    assert all(number[seed, 0.5] < number[seed, 0] / 2 for seed in (0, 1))
    width = {row["missing"]: row for row in found.paired().iter_rows(named=True)}
    scores = {(row["method"], row["missing"], row["seed"]): row["score"]
              for row in found.frame().filter(pl.col("present").is_null()).iter_rows(named=True)}  # fmt: skip
    for missing, row in width.items():
        each = [scores["laser", missing, seed] - scores["local", missing, seed] for seed in (0, 1)]
        tested = sum(record["rows"]["test"] for record in found.records if record["run"]["missing"] == missing) / 2
        overlap = tested / (number[0, missing] + number[1, missing])
        half = stats.t.ppf(0.975, 1) * math.sqrt(np.var(each, ddof=1) * (1 / 2 + overlap))
        assert row["high"] - row["low"] == pytest.approx(2 * half)
        assert half > 0


def test_the_page_escapes_names_and_lists_all_runs(comparison: Comparison) -> None:
    assert comparison.folder is not None
    page = (comparison.folder / "index.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;own" in page
    assert "<b>own" not in page
    assert "<svg" in comparison._repr_html_()
    assert {"scores.csv", "differences.csv", "plot.png", "plot.svg"} <= {
        each.name for each in comparison.folder.iterdir()
    }
    assert len(comparison.plot().axes) == 2


def test_finished_runs_are_not_repeated(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    execute = ComparisonRun.execute

    def counted(run: ComparisonRun, data_dir: Path | None) -> dict[str, Any]:
        ran.append(run.method)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return execute(run, data_dir)

    monkeypatch.setattr(ComparisonRun, "execute", counted)

    def again(**changed: Any) -> Comparison:
        return anyparty.compare(
            federation, ["local", "ensemble"], seeds=1, missing=0, folder=tmp_path, **(QUICK | changed)
        )

    with pytest.raises(KeyboardInterrupt):
        again()
    first = again()
    assert ran == ["local", "ensemble", "ensemble"]
    assert again().frame().equals(first.frame())
    assert len(ran) == 3
    again(epochs=3)
    assert len(ran) == 5


def test_an_edited_method_is_trained_again() -> None:
    from anyparty.experiments.compared_methods import compared_methods  # noqa: PLC0415

    [named, own] = compared_methods(["laser", Mean()], {"embedding": 8})
    assert named.parameters == {"embedding": 8}
    assert named.described == {"name": "laser", "embedding": 8}
    assert len(own.described["code"]) == 12
    assert own.label == "Mean"


def rate(lr: float) -> Any:
    return lambda parameters: torch.optim.RMSprop(parameters, lr=lr)


@pytest.mark.parametrize(
    "pair",
    [
        (rate(0.1), rate(0.2)),
        (partial(torch.optim.RMSprop, lr=0.1), partial(torch.optim.RMSprop, lr=0.2)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss()),
    ],
    ids=["value from outside", "partial", "object"],
)
def test_runs_with_other_functions_are_other_runs(pair: tuple[Any, Any]) -> None:
    first, second = map(described_option, pair)
    assert first != second
    assert first == described_option(pair[0])


def test_functions_of_train_apply_to_all_methods(federation: Federation) -> None:
    changed: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(label_smoothing=0.9),
        "optimizer": partial(torch.optim.RMSprop, lr=0.1),
        "scheduler": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, gamma=0.5),
    }
    runs = [anyparty.compare(federation, ["laser"], seeds=1, missing=0, **QUICK, **given)
            for given in ({}, *({name: value} for name, value in changed.items()))]  # fmt: skip
    assert [run.failed for run in runs] == [{}] * 4
    assert len({run.frame(by="method", metric="log_loss")["mean"].item() for run in runs}) == 4


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (["lazer"], {}, "did you mean 'laser'"),
        (["laser", "laser"], {}, "occurs more than once"),
        ([], {}, "the list is empty"),
        (["laser"], {"parameters": {"embeding": 3}}, "embeding"),
        ({"wide": {"name": "laser", "embeding": 3}}, {}, "did you mean 'embedding'"),
        (["laser"], {"epohcs": 3}, "epohcs"),
        (["laser"], {"seed": 3}, "seeds="),
        (["laser"], {"split": "random"}, "give it to Federation.from_tables"),
        (["laser"], {"missing": [1.5]}, "below 1"),
        (["laser"], {"seeds": 0}, "seeds"),
        (["laser"], {"metric": "rmse"}, "regression"),
        (["laser"], {"test": 0.0}, "test rows"),
    ],
)
def test_mistakes_are_reported_before_training(
    federation: Federation, methods: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        anyparty.compare(federation, methods, **(QUICK | options))


def test_a_failed_method_is_listed_and_the_others_are_compared(federation: Federation) -> None:
    found = anyparty.compare(federation, ["local", Broken()], seeds=1, missing=0, **QUICK)
    assert ["Broken" in name and "ZeroDivisionError" in why for name, why in found.failed.items()] == [True]
    assert found.frame(by="method")["method"].to_list() == ["local"]
    with pytest.raises(RunError, match="all runs"):
        anyparty.compare(federation, [Broken()], seeds=1, missing=0, **QUICK)


class Broken(Mean):
    """A rule with an error."""

    def losses(self, *values: Any) -> tuple[Tensor, Tensor]:
        raise ZeroDivisionError


@pytest.mark.parametrize("ids", [("number",), ("number", "word")])
def test_ids_may_be_numbers_or_have_several_columns(ids: tuple[str, ...]) -> None:
    """The scores are those of the model, also if ids are numbers or have several columns, in any order of rows."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(60, 2))
    both = pl.DataFrame({"number": draw.permutation(60), "word": [f"w{k % 7}" for k in range(60)], "y": X[:, 0] > 0})
    tables = {"a": both.with_columns(x=X[:, 0]), "b": both.drop("y").with_columns(z=X[:, 1])}
    for name in {"number", "word"} - set(ids):
        tables = {party: table.drop(name) for party, table in tables.items()}
    federation = Federation.from_tables(tables, id=list(ids), label="y")
    model = federation.train("laser", seed=0, **QUICK)
    assert score_of(model, None)["accuracy"] == pytest.approx(model.evaluate().overall["accuracy"])


def test_sets_of_many_parties_are_sampled_without_repetition() -> None:
    names = [f"p{k}" for k in range(9)]
    sets = list(party_sets(names, 4))
    assert len(sets) == len(set(sets)) == 8
    assert sets == list(party_sets(names, 4))


def test_a_search_gives_every_method_the_same_configurations(federation: Federation, tmp_path: Path) -> None:
    space = {
        "optimizer.lr": {"low": 1e-3, "high": 0.1, "log": True},
        "method.embedding": [4, 8],
        "train.batch_size": [16],
    }
    found = anyparty.compare(
        federation, ["local", Mean()], seeds=2, missing=0, tune=3, space=space, folder=tmp_path, **QUICK
    )
    tried: dict[str, dict[str, float]] = {"local": {}, "Mean": {}}
    for path in (tmp_path / "search").glob("*/record.json"):
        record = json.loads(path.read_text())
        assert record["run"]["seed"] == 0
        assert "scores" not in record
        tried[record["run"]["method"]][json.dumps(record["run"]["changes"])] = record["validation"]
    assert tried["local"].keys() == tried["Mean"].keys()
    assert len(tried["local"]) == 3
    for method, each in tried.items():
        best = min(each, key=lambda name: each[name])  # the metric of validation is the log-loss
        assert found.tuned[method, 0.0] == json.loads(best)
        assert {
            json.dumps(record["run"]["changes"]) for record in found.records if record["run"]["method"] == method
        } == {best}
    with pytest.raises(ConfigError, match="tune=20"):
        anyparty.compare(federation, ["local"], space=space)
    with pytest.raises(ConfigError, match=r"optimizer\.lr.*low < high"):
        anyparty.compare(federation, ["local"], tune=2, space={"optimizer.lr": {"low": 1, "high": 0}})


def test_the_command_compares(federation: Federation, tmp_path: Path) -> None:
    for name, table in federation.tables.items():
        label = [] if table.label is None else [table.label.alias("label")]
        pl.DataFrame([table.ids.alias("id"), *table.columns, *label]).write_csv(tmp_path / f"{name}.csv")
    text = "[federation]\nlabel = 'label'\n[train]\nepochs = 1\n"
    (tmp_path / "own.toml").write_text(text + "".join(f"[parties.{k}]\ntable = '{k}.csv'\n" for k in "abc"))
    words = ["compare", str(tmp_path / "own.toml"), "--methods", "local,plug", "--seeds", "1", "--missing", "0.4"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "minus local" in shown.output
    assert (tmp_path / "runs" / "compare-own" / "index.html").exists()
    wrong = CliRunner().invoke(app, [*words[:3], "lokal"])
    assert "did you mean 'local'" in wrong.output


def test_the_command_takes_tables_as_training_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["bank.csv", "shop.csv", "--id", "customer", "--label", "default", "--set", "train.epochs=1"]
    shown = CliRunner().invoke(app, ["compare", *words, "--methods", "local,plug", "--seeds", "1"])
    assert shown.exit_code == 0, shown.output
    assert (
        "6 runs: 2 methods (local, plug) × 3 missing rates (0, 0.3, 0.5) × 1 seed (0). At a missing rate of 0.3, "
        "each party's columns of a row are removed with probability 0.3." in shown.stderr
    )
    assert "runs:" not in shown.stdout
    assert Path("runs/compare-bank-shop/index.html").exists()
    beside = CliRunner().invoke(app, ["compare", "credit.toml", "--id", "customer", "--methods", "local"])
    assert "--id and --label are for tables" in beside.stderr


def test_the_planned_runs_are_announced() -> None:
    methods = compared_methods(["laser"])
    assert announcement(methods, [0.0], [7], 0) == "1 run: 1 method (laser) × 1 missing rate (0) × 1 seed (7)."
    text = announcement(methods, [0.3], list(range(5)), 20)
    assert text.startswith("5 runs, after 20 runs that search settings with the first seed: 1 method (laser)")
    assert "5 seeds (0 to 4). At a missing rate of 0.3," in text
    assert "seeds (3, 5)" in announcement(methods, [0.3], [3, 5], 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", [None, "dask"])
def test_parallel_runs_give_the_same_frame(federation: Federation, backend: str | None) -> None:
    """Dask starts a cluster on this machine; its own warnings are ignored."""
    if backend == "dask":
        pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    options: dict[str, Any] = QUICK | {"seeds": 2, "missing": [0, 0.5]}
    one = anyparty.compare(federation, ["laser", "standard"], **options)
    two = anyparty.compare(federation, ["laser", "standard"], jobs=2, backend=backend, **options)
    assert not two.failed
    by = ["missing", "present"]
    assert one.frame(by=by).drop("seconds").equals(two.frame(by=by).drop("seconds"))
    assert one.paired("standard").equals(two.paired("standard"))
