"""One-exchange suites: columns at the parties, whole runs, tables."""

import csv
from io import StringIO

import numpy as np
import pytest
from pydantic import ValidationError

from anyparty.core import costs
from anyparty.data import datasets
from anyparty.errors import ConfigError
from anyparty.experiments import party_tables, runner, suites
from anyparty.experiments.experiment import render
from anyparty.experiments.one_exchange_page import compute_claim, mean_over_widths
from anyparty.experiments.one_exchange_suite import OneExchangeSuite, party_frames
from anyparty.experiments.suite import Selection
from anyparty.methods.one_exchange.vfedtrans import VFedTrans

ENTRY = {
    "metric": "accuracy", "unit": "accuracy, %", "rows": 120, "aligned": [60, 40], "batch_size": 32, "widths": [2, 1],
    "columns": ["smoothness error", "mean texture"],
}  # fmt: skip
NARROW = {"embedding": 4, "active_embedding": 3, "passive_embedding": 5, "joint_hidden": [4], "student_hidden": [4]}


def tiny(**changes) -> OneExchangeSuite:
    """Create a suite on Breast Cancer, which ships with a dependency: four methods, two epochs, three folds."""
    return OneExchangeSuite.model_validate(
        {
            "name": "tiny", "title": "Tiny", "paper": "None", "differs": ["In all."], "folds": 3,
            "train": {"epochs": 2, "validation": 0.1}, "datasets": {"breast-cancer": ENTRY},
            "encoders": {"active": {"hidden": [4]}, "passive": {"hidden": [4]}},
            "methods": {
                "local": {"title": "Local", "reads": "columns", "alone": True, "scale": "standard"},
                "apc": {"title": "APC", "name": "apc", "parameters": NARROW},
                "vfedtrans": {"title": "VFedTrans", "name": "vfedtrans", "parameters": {"masks": "seeded"}},
            },
            "claims": [{"place": "here", "says": "more", "dataset": "breast-cancer", "method": "apc", "number": 2.5,
                        "over": "local", "kind": "gain"}],
            **changes,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    made = tiny()
    runs = list(made.runs(Selection(seeds=2)))
    result = runner.run_all(runs, tmp_path_factory.mktemp("runs"))
    assert result.failed == {}
    return made, runs, result.records


@pytest.fixture(scope="module")
def page(done):
    made, _, records = done
    return render(made, records, {"command": "`none`"})


@pytest.mark.parametrize("name", ["apc-fig5", "apc-fig8"])
def test_the_sentence_on_vfedtrans_matches_the_settings(name):
    """The sentence separates the method's own settings from those of the comparison."""
    suite, own = suites.load(name), VFedTrans()
    (said,) = (line for line in suite.differs if "All else is this comparison's: " in line)
    theirs, ours = said.split("All else is this comparison's: ")
    assert len(own.student_hidden) + 1 == 3  # the decoder has as many layers
    for words in ("six layers", own.activation, f"weight {own.distillation}", "columns and embeddings side by side"):
        assert words in theirs
    assert (own.distance, own.append, suite.methods["vfedtrans"].classifier) == ("mae", True, "logistic")
    batches = {entry.batch_size for entry in suite.datasets.values()}
    stopping = f"at most {suite.train['epochs']} epochs with early stopping"
    for words in (f"Adam at {suite.optimizer.lr}", stopping, "logistic regression", *map(str, batches)):
        assert words in ours.split("where its published program")[0]
    assert "Adam at 0.01, batches of 100, 200 epochs and perceptrons of 100, 100 and 50" in ours
    assert f"layers of {own.student_hidden[0]} and embeddings of {own.embedding} are ours" in ours


def test_training_settings_of_one_method_affect_only_its_runs():
    plain, weighed = (
        tiny(methods={"apc": {"title": "APC", "name": "apc", "parameters": NARROW, **more}})
        for more in ({}, {"train": {"balance": True}})
    )
    for one_of, other in zip(plain.runs(), weighed.runs(), strict=True):
        assert other.settings == one_of.settings | {"train": one_of.settings["train"] | {"balance": True}}
        assert other.key != one_of.key


def test_local_methods_run_once_for_all_numbers_of_aligned_rows(done):
    _, runs, _ = done
    assert len({run.key for run in runs}) == len(runs) == 2 * 2 * (1 + 2 * 2)
    assert {run.aligned for run in runs if run.method == "local"} == {0}
    assert {run.aligned for run in runs if run.method == "apc"} == {60, 40}


def test_the_columns_and_rows_of_each_party(done):
    _, runs, _ = done
    run = next(run for run in runs if run.method == "apc" and (run.width, run.aligned) == (1, 40))
    data = datasets.load("breast-cancer")
    frames, test = party_frames(run, data)
    assert test == {}
    assert frames["active"].columns == ["id", "mean texture", "label"]
    assert set(frames["passive"].columns) == {"id", *data.features} - {"mean texture"}
    assert (len(frames["active"]), len(frames["passive"])) == (120, 40)
    assert set(frames["passive"]["id"]) <= set(frames["active"]["id"])
    place = data.features.index("mean texture")
    where = {tuple(row): y for row, y in zip(data.X_train, data.y_train, strict=True)}
    both = frames["active"].join(frames["passive"], on="id").drop("id")
    for row in both.iter_rows(named=True):  # a row's cells and label belong to the same person
        whole = tuple(np.float32(row[name]) for name in data.features)
        assert where[whole] == row["label"]
        assert np.float32(row["mean texture"]) == whole[place]


def test_every_fold_is_scored_and_messages_are_counted(done):
    _, _, records = done
    for record in records.values():
        assert len(record["folds"]) == 3
        assert record["score"] == pytest.approx(np.mean(record["folds"]))
    sent = {run["aligned"]: record["costs"] for record in records.values()
            if (run := record["run"])["method"] == "apc"}  # fmt: skip
    for aligned, cost in sent.items():
        assert [each["bytes_sent"] for each in cost["sent"]] == [costs.apc(aligned, 5).bytes_sent]
        assert [each["bytes_sent"] for each in cost["published"]] == [costs.apc(aligned, 5).bytes_sent]
        assert [each["rounds"] for each in cost["sent"]] == [1]


def test_all_methods_of_a_repeat_have_the_same_rows(done):
    _, runs, _ = done
    data = datasets.load("breast-cancer")
    values = {(run.method, run.seed): tuple(party_frames(run, data)[0]["active"]["mean texture"]) for run in runs}
    assert values["local", 0] == values["apc", 0] == values["vfedtrans", 0]
    assert values["apc", 0] != values["apc", 1]


def test_tables_show_all_methods_and_numbers_of_rows(done, page):
    made, _, records = done
    cells = page.cells
    assert len(cells) == 2 * (1 + 2 + 2)
    apc = next(cell for cell in cells if (cell["method"], cell["width"], cell["aligned"]) == ("apc", 2, 60))
    scores = [100 * record["score"] for record in records.values()
              if (run := record["run"])["method"] == "apc" and (run["width"], run["aligned"]) == (2, 60)]  # fmt: skip
    assert apc.mean_spread("score") == (pytest.approx(np.mean(scores)), pytest.approx(np.std(scores, ddof=1)))
    assert "60 aligned | 40 aligned" in page.markdown
    assert "{:.1f} ± {:.1f}".format(*apc.mean_spread("score")) in page.markdown
    mean, _ = mean_over_widths(made, cells, "breast-cancer", "local", 40)
    assert f"{mean:.1f} ± " in page.markdown
    rows = list(csv.DictReader(StringIO(page.csv)))
    assert len(rows) == len(cells)
    assert {row["aligned"] for row in rows if row["method"] == "local"} == {"any"}
    assert all(float(row["bytes_sent"]) == float(row["bytes_by_formula"]) for row in rows if row["method"] == "apc")
    ours = compute_claim(made, cells, made.claims[0])
    assert f"| here | more | breast-cancer | 2.5 | {ours:.2f} |" in page.markdown
    assert "- In all." in page.markdown


def test_there_is_no_mean_over_only_some_widths(done, page):
    """Fewer columns are harder, so a mean over some widths would be biased."""
    made, _, records = done
    some = {key: each for key, each in records.items() if (each["run"]["method"], each["run"]["width"]) != ("local", 2)}
    cells = render(made, some, {}).cells
    assert mean_over_widths(made, cells, "breast-cancer", "local", 40) is None
    assert mean_over_widths(made, cells, "breast-cancer", "apc", 40) == mean_over_widths(
        made, page.cells, "breast-cancer", "apc", 40
    )


def test_cells_with_fewer_repeats_are_left_out(done, page):
    made, _, records = done
    some = {key: each for key, each in records.items()
            if (each["run"]["method"], each["run"]["width"], each["run"]["seed"]) != ("local", 2, 1)}  # fmt: skip
    assert len(some) == len(records) - 1
    part = render(made, some, {})
    assert mean_over_widths(made, part.cells, "breast-cancer", "local", 40) is None
    assert "Left out: 1 cells that do not have 2 repeats yet, as the others have." in part.markdown
    assert "Left out" not in page.markdown
    columns = part.markdown.split("2 columns at the active party:")[1].split("columns at")[0]
    local, apc = made.methods["local"].title, made.methods["apc"].title
    assert f"| {apc} |" in columns
    assert f"| {local} |" not in columns


def test_one_repeat_has_no_spread(done):
    made, _, records = done
    alone = {key: each for key, each in records.items() if each["run"]["seed"] == 0}
    assert 0 < len(alone) < len(records)
    of = render(made, alone, {})
    (row, *_) = csv.DictReader(StringIO(of.csv))
    assert (row["std"], row["repeats"]) == ("", "1")
    assert f"{float(row['mean']):.1f}" in of.markdown
    assert f"{float(row['mean']):.1f} ±" not in of.markdown


@pytest.mark.parametrize("shows", ["scores", "costs"])
def test_a_plot_is_written(done, page, tmp_path, shows):
    made = tiny(shows=shows)
    render(made, done[2], {}).plot(tmp_path / "plot")
    assert (tmp_path / "plot.png").stat().st_size > 5000
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_claims_equal_those_computed_by_hand(done):
    """A gain is the greatest over numbers of aligned rows, a loss between two of them, bytes a ratio of formulas."""
    made, _, records = done
    cells = render(made, records, {}).cells
    mean = {
        (m, a): mean_over_widths(made, cells, "breast-cancer", m, a)[0] for m in ("apc", "vfedtrans") for a in (60, 40)
    }
    claim = made.claims[0].model_copy(update={"over": "vfedtrans"})
    gains = [mean["apc", a] - mean["vfedtrans", a] for a in (60, 40)]
    assert compute_claim(made, cells, claim) == pytest.approx(max(gains))
    loss = claim.model_copy(update={"kind": "loss", "aligned": (60, 40)})
    assert compute_claim(made, cells, loss) == pytest.approx(mean["apc", 60] - mean["apc", 40])
    ratio = costs.vfedtrans(60, 2, 28).bytes_sent / costs.apc(60, 5).bytes_sent
    mine = [cell for cell in cells if cell["width"] == 2]
    assert compute_claim(made, mine, claim.model_copy(update={"kind": "bytes"})) == pytest.approx(ratio)
    assert compute_claim(made, [], claim) is None


def test_table_2_scores_held_out_rows_and_shows_the_paper(tmp_path):
    """Table 2 scores rows that were not used in training, and shows the paper's row below ours."""
    joint = {key: value for key, value in NARROW.items() if key != "student_hidden"} | {"classify_on": "joint"}
    answers = {
        "splitnn": {"title": "SplitNN", "reads": "answers", "name": "plug",
                    "parameters": {"dropout": 0.0, "embedding": 4}},
        "joint": {"title": "APC", "reads": "answers", "name": "apc", "parameters": joint},
    }  # fmt: skip
    printed = {"score": [0.9, 0.01], "rounds": [380, 60], "megabytes": [27.04, 4.27]}
    made = tiny(
        datasets={"breast-cancer": ENTRY | {"rows": 0, "test": 20, "widths": [2]}}, methods=answers, claims=[],
        published={"breast-cancer": {"splitnn": {"60": printed}}},
    )  # fmt: skip
    runs = list(made.runs(Selection(seeds=1)))
    result = runner.run_all(runs, tmp_path)
    assert result.failed == {}
    frames, test = party_frames(runs[0], datasets.load("breast-cancer"))
    assert {name: len(frame) for name, frame in frames.items()} == {"active": 40, "passive": 40}
    assert {name: len(frame) for name, frame in test.items()} == {"active": 20, "passive": 20}
    assert not set(test["active"]["id"]) & set(frames["active"]["id"])
    fewer, same = party_frames(next(run for run in runs if run.aligned == 40), datasets.load("breast-cancer"))
    assert same["active"].drop("id").equals(test["active"].drop("id"))  # columns of a table share their test rows
    assert set(fewer["active"].drop("id").rows()) < set(frames["active"].drop("id").rows())
    page = render(made, result.records, {})
    assert "| *paper* | 90.0 ± 1.0 |" in page.markdown
    assert "| 380 ± 60 |" in page.markdown
    assert "| 27.04 ± 4.27 |" in page.markdown
    joint = next(cell for cell in page.cells if (cell["method"], cell["aligned"]) == ("joint", 60))
    assert joint.measures["bytes"] == {0: costs.apc(40, 5).bytes_sent}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"aligned": [60, 2]}, "2 aligned training rows are fewer than 3 folds"),
     ({"aligned": [60, 40], "test": 40, "rows": 0}, "0 aligned training rows are fewer than 3 folds"),
     ({"aligned": [121]}, "121 aligned rows are more than the active party's 120 rows"),
     ({"widths": [3]}, r"widths \[3\] must be between 1 and 2")],
)  # fmt: skip
def test_an_invalid_suite_is_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        tiny(datasets={"breast-cancer": ENTRY | changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"columns": ["mean texture", "worst"]}, "data set 'breast-cancer' has no column 'worst'"),
     ({"rows": 600}, "data set 'breast-cancer' has 569 rows, the suite needs 600")],
)  # fmt: skip
def test_an_impossible_run_is_reported(changes, said, tmp_path):
    made = tiny(datasets={"breast-cancer": ENTRY | changes})
    runs = list(made.runs(Selection(seeds=1, methods=["local"])))
    result = runner.run_all(runs[:1], tmp_path)
    assert said in next(iter(result.failed.values()))


def test_only_one_party_may_hold_the_remaining_columns():
    data = datasets.load("breast-cancer")
    with pytest.raises(ConfigError, match=r"columns of the parties \['b', 'c'\] are not named"):
        party_tables.by_columns(data, np.arange(5), {"a": ["mean texture"]}, {"a": 5, "b": 5, "c": 5}, labels="a")


def test_all_printed_rows_are_in_the_suite():
    made = suites.load("apc-table2")
    for dataset, methods in made.published.items():
        for method, rows in methods.items():
            assert method in made.methods
            assert sorted(rows) == sorted(made.datasets[dataset].aligned)
    assert made.published["credit"]["apc"][7500].score == (0.322, 0.016)


def test_a_data_set_that_needs_a_request_runs_only_if_named():
    made = suites.load("apc-fig5")
    assert {run.dataset for run in made.runs(Selection(seeds=1))} == {"breast-cancer", "credit"}
    assert {run.dataset for run in made.runs(Selection(seeds=1, datasets=["mimic3"]))} == {"mimic3"}
