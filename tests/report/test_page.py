"""The page is self-contained, has every section, and shows the numbers of the records."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import tomli_w
import torch
from matplotlib.image import imread

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.api.runs import evaluate_run
from anyparty.core.types import Task
from anyparty.errors import AnypartyWarning, ConfigError
from anyparty.methods.method_registry import method
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from anyparty.metrics import plots
from anyparty.metrics.scores import LabelledPredictions, metric_label
from anyparty.report import figures, page, party_set_scores, sections
from anyparty.report.party_set_scores import PartySetScores, load_with_test_rows
from anyparty.report.recorded_runs import RunScores, find_runs
from anyparty.report.traffic import declared_messages, total_traffic
from tests.conftest import adopt
from tests.report import site_runs, trained_runs
from tests.slow_parameters import slow_but

SECTIONS = (
    "verdict",
    "sets",
    "brings",
    "thresholds",
    "closer",
    "training",
    "crossed",
    "overlap",
    "repeat",
)  # in this order; fmt: skip
FROM_MODEL = {"verdict", "brings", "thresholds", "closer"}
VOID = {"meta", "br", "hr", "img", "link", "input", "path", "use", "rect"}


class Reader(HTMLParser):
    """Reads a page's tables, ids and text; an unclosed element is an error."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [value for name, value in attributes if name in {"href", "src", "srcset", "data"}]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")
        if tag not in VOID or not self.get_starttag_text().endswith("/>"):
            self.open += [tag] if tag not in {"meta"} else []

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if self.open and self.open[-1] in {"td", "th"}:
            self.tables[-1][-1][-1] += data

    def table(self, *heads: str) -> dict[str, list[str]]:
        """Return a table's rows by their first cell."""
        (found,) = (table for table in self.tables if tuple(table[0][: len(heads)]) == heads)
        return {row[0]: row[1:] for row in found[1:]}

    def messages(self, tag: str) -> list[list[str]]:
        """Return the rows of one message in the table of who sent what."""
        (found,) = (table for table in self.tables if table[0][3:4] == ["content"])
        return [row for row in found if row[0] == tag]


@pytest.fixture(autouse=True, scope="module")
def _quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_set_scores, "ORDERS", 4)
        patch.setattr(party_set_scores, "RESAMPLES", 20)
        patch.setattr(party_set_scores, "FEWER_RESAMPLES", 4)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Train runs of two, five and twelve parties, and one that is stopped; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "two": trained_runs.train(trained_runs.write(folder / "two", trained_runs.FIVE[:2], kind="number"), "run"),
        "five": trained_runs.train(trained_runs.write(folder / "five", trained_runs.FIVE, kind="four"), "run"),
        "twelve": trained_runs.train(trained_runs.write(folder / "twelve", trained_runs.LONG), "run", "train.epochs=2"),
        "half": trained_runs.train(trained_runs.write(folder / "half", trained_runs.FIVE[:3]), "run", fail_after=3),
    }


def read(paths, out: Path, **how) -> Reader:
    return Reader(page.write(paths if isinstance(paths, list) else [paths], out, **{"model": True, **how}))


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory) -> dict[str, Reader]:
    """Write each run's page."""
    return {name: read(run, tmp_path_factory.mktemp(name)) for name, run in runs.items()}


@pytest.mark.parametrize("which", ["two", "five", "twelve", "half"])
def test_a_page_stands_on_its_own(pages, which):
    shown = pages[which]
    lacking = (FROM_MODEL if which == "half" else set()) | ({"thresholds"} if which != "twelve" else set())
    expected = [name for name in SECTIONS if name not in lacking]
    assert [f"run-{name}" for name in expected] == [each for each in shown.ids if each[4:] in SECTIONS]
    assert len(shown.ids) == len(set(shown.ids))
    assert shown.links
    assert all(link.startswith("#") and link[1:] in shown.ids for link in shown.links)
    assert not re.search(r"https?:|@import|url\((?!#)|<script|<link", shown.source)
    assert not re.search(r"\bnan\b", shown.text)


def test_details_are_folded_and_scores_are_not(pages):
    source = pages["five"].source
    for name in ("each-set", "flows", "costs", "overlap", "repeat"):
        assert f'<details class="part" id="run-{name}">' in source
    assert "<details open" not in source
    for name in ("sets", "brings", "closer", "training", "crossed"):
        assert f'<section id="run-{name}">' in source


def test_the_page_begins_with_the_label_and_the_parties(runs, pages):
    purpose = "The active party, bank, predicts 'y' together with shop, clinic, insurer and town."
    assert pages["five"].source.count(purpose.replace("'", "&#39;")) == 1
    (run,) = find_runs([runs["two"]])
    assert run.purpose == "The active party, bank, predicts 'y' together with shop."
    assert find_runs([runs["twelve"]])[0].purpose.endswith("predicts 'y' together with 11 other parties.")
    assert replace(run, settings={}).purpose == ""


def test_ticks_have_commas_between_thousands(runs):
    axis = figures.draw_residuals(np.array([-200000.0, 300000.0]), np.array([0.5, 1.5])).axes[1]
    axis.figure.canvas.draw()
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert {"200,000", "\N{MINUS SIGN}100,000"} <= set(labels)
    assert "0.6" in [label.get_text() for label in axis.get_xticklabels()]


def test_own_columns_stand_beside_the_scores(runs, pages):
    """The score of the active party alone is at the top, in a sentence, in the figure, and in its text alternative."""
    own = evaluate_run(runs["five"], parties=["bank"]).overall["accuracy"]
    assert f"accuracy, own columns only{own:.3f}" in pages["five"].text
    assert f"With the columns of bank only, the same model scores {own:.3f}" in pages["five"].text
    assert f"Own columns only: {own:.3f}" in pages["five"].source
    assert ">own columns only</text>" in pages["five"].source


def test_a_reader_without_sight_gets_headings_and_alternatives(pages):
    for shown in pages.values():
        levels = [int(level) for level in re.findall(r"<h(\d)", shown.source)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        pictures = re.findall(r'<svg class="figure"[^>]*role="img" aria-label="([^"]*)"', shown.source)
        assert len(pictures) == shown.source.count("<svg")
        assert all(len(words) > 20 for words in pictures)
        assert shown.source.count('scope="col"') == sum(len(table[0]) for table in shown.tables)


def test_of_many_parties_sets_are_not_listed(pages):
    heads = [table[0][0] for table in pages["twelve"].tables]
    assert "present parties" in heads
    assert "parties" not in heads
    assert "parties" in [table[0][0] for table in pages["five"].tables]


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("two", {"overlap", "training", "sets", "sizes", "brings", "residuals", "flows", "tags"}),
        ("five", {"overlap", "training", "sets", "sizes", "brings", "calibration", "confusion", "flows", "tags"}),
        (
            "twelve",
            {"overlap", "training", "sizes", "brings", "thresholds", "calibration", "confusion", "flows", "tags"},
        ),
        ("half", {"overlap", "training", "flows", "tags"}),
    ],
)
def test_every_figure_is_a_file_too(pages, which, names):
    folder = pages[which].path.parent / "figures"
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    drawn = imread(folder / "overlap.png")[..., :3]
    assert drawn.std() > 0.05
    assert drawn[0, 0].min() > 0.99


def test_its_numbers_are_those_of_the_records(runs, pages):
    run, shown = runs["five"], pages["five"]
    kept = json.loads((run / "record.json").read_text())
    whole = next(table for table in shown.tables if table[0] == ["from", "to", "message", "messages", "bytes"])
    assert whole[1:] == [
        [row["sender"], row["receiver"], row["tag"], f"{row['messages']:,}", f"{row['bytes_sent']:,}"]
        for row in sorted(kept["ledger"], key=lambda row: list(row.values())[:3])
    ]
    held = shown.table("party", "rows", "rows of no other party")
    assert {name: int(cells[0]) for name, cells in held.items()} == kept["overlap"]["held"]
    assert f"{len(kept['history'])} epochs" in shown.text
    assert f"those of epoch {kept['best_epoch']}, which has the best log-loss on validation rows" in shown.text
    settings = shown.table("what", "value")
    for name, print_ in kept["tables"].items():
        assert settings[f"fingerprint of {name}'s table"] == [print_]
    assert settings["torch"] == [kept["versions"]["torch"]]
    assert "embedding = 4" in shown.text


def test_scores_of_sets_of_parties_are_those_of_evaluate(runs, pages):
    shown = pages["five"].table("parties", "accuracy")
    assert len(shown) == 2**5 - 1
    for parties in (["bank"], ["bank", "clinic", "town"], list(trained_runs.FIVE)):
        scores = evaluate_run(runs["five"], parties=parties).overall
        assert scores["coverage"] == 1.0  # the bank has all rows
        assert shown[" + ".join(parties)][0].split()[0] == f"{scores['accuracy']:.3f}"


def test_unanswered_rows_get_the_constant_prediction(runs):
    of = PartySetScores.of(load_with_test_rows(runs["five"]))
    answers, alone = of.tested.answers_for_all({"shop"}), of.tested.predict({"shop"})
    lacking = ~alone.answered
    assert 0 < int(lacking.sum()) < len(lacking)
    assert answers.scores[lacking].eq(of.tested.constant).all()
    assert answers.scores[~lacking].eq(alone.scores[~lacking]).all()
    labels = pl.read_csv(runs["five"].parent / "party0.csv")["y"]
    assert of.tested.constant.sum() == pytest.approx(1.0)
    assert of.tested.constant.max() == pytest.approx(labels.value_counts()["count"].max() / len(labels), abs=0.06)


@pytest.mark.parametrize("which", ["two", "five", "twelve"])
def test_contributions_sum_to_the_gain(runs, which):
    of = PartySetScores.of(load_with_test_rows(runs[which]))
    found = of.shapley()
    better = (of.values(of.all_parties) - of.values(frozenset()))[0] * (1 if of.is_greater_better else -1)
    assert sum(share.value for share in found.values.values()) == pytest.approx(better)
    assert found.gain == pytest.approx(better)
    assert bool(found.orders) == (which == "twelve")


def test_more_test_rows_than_needed_are_not_all_scored(runs):
    few = load_with_test_rows(runs["five"], most=10)
    assert len(few.test_rows) == len(few.y) == 10


def test_a_metric_may_be_chosen(runs, tmp_path):
    shown = read(runs["two"], tmp_path, metric="mae").table("parties", "MAE")
    scores = evaluate_run(runs["two"]).overall
    assert float(shown["bank + shop"][0].split()[0]) == pytest.approx(scores["mae"], abs=5e-5)
    with pytest.raises(ConfigError, match="metric 'auroc' is for a classification"):
        page.write([runs["two"]], tmp_path, metric="auroc", model=True)


@pytest.mark.parametrize(
    ("metric", "said"), [("auroc", "metric 'auroc' is for a classification"), ("rmsee", "did you mean 'rmse'")]
)
def test_a_metric_that_does_not_fit_is_rejected_without_the_model(runs, tmp_path, metric, said):
    run = shutil.copytree(runs["two"], tmp_path / "run")
    (run / "model.json").unlink()
    with pytest.raises(ConfigError, match=said):
        page.write([run], tmp_path / "page", metric=metric)


def test_without_the_model_a_metric_is_the_records(runs, tmp_path):
    """It is at the top, first in the table, and in the comparison; a metric that is not recorded is rejected."""
    overall = find_runs([runs["two"]])[0].evaluation["overall"]
    shown = read(runs["two"], tmp_path / "one", metric="mae", model=False)
    (mae, rmse, *_) = shown.table("parties", "MAE", "RMSE")["any"]
    assert [float(mae), float(rmse)] == pytest.approx([overall["mae"], overall["rmse"]], rel=1e-3)
    assert f"test MAE{mae}" in shown.text
    beside = read([runs["two"], runs["half"]], tmp_path / "two", metric="mae", model=False).tables[0]
    assert [row[beside[0].index("MAE")] for row in beside[1:]] == [mae, "–"]
    with pytest.raises(ConfigError, match=r"--metric loss: the record of run has only rmse, mae"):
        page.write([runs["two"]], tmp_path, metric="loss", model=False)


def test_a_page_of_one_run_takes_its_path_as_it_is(runs, tmp_path):
    assert page.write(str(runs["two"]), tmp_path, model=False).read_text(encoding="utf-8").count("<article") == 1
    assert page.write(runs["two"], tmp_path, model=False).is_file()


def test_a_page_is_not_written_to_a_file(runs, tmp_path):
    (tmp_path / "bank.csv").write_text("id\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bank\.csv: this is a file; name a folder for the page"):
        page.write([runs["two"]], tmp_path / "bank.csv")
    assert (tmp_path / "bank.csv").read_text(encoding="utf-8") == "id\n"


@pytest.mark.slow
def test_a_page_may_be_one_file(runs, call, tmp_path):
    """``--out page.html`` writes this file and nothing else; it never makes a folder of that name."""
    shown = call("report", runs["two"], "--out", tmp_path / "page.html")
    assert shown.exit_code == 0, shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "figures" not in shown.stdout.splitlines()[-1]
    assert page.write([runs["two"]], tmp_path / "page.html").is_file()  # a second page replaces the first


@pytest.mark.parametrize(
    ("name", "advice"), [("page.pdf", "the page is HTML; name a folder, or a file"), ("old.html", "a folder with the")]
)
def test_a_name_that_misleads_is_rejected(runs, tmp_path, name, advice):
    (tmp_path / "old.html").mkdir()
    with pytest.raises(ConfigError, match=f"{name}: {advice}"):
        page.write([runs["two"]], tmp_path / name)
    assert not list((tmp_path / "old.html").iterdir())
    assert not (tmp_path / "page.pdf").exists()


def test_a_metric_that_is_undefined_leaves_a_dash(tmp_path):
    """The AUROC of test rows of a single class is NaN."""
    settings = trained_runs.write(tmp_path, trained_runs.FIVE[:2])
    run = trained_runs.train(settings, "run", "train.test=0.03")
    of = load_with_test_rows(run)
    assert len(of.y) < 8
    only = of.y == of.y[0]
    narrow = replace(of, test_rows=of.test_rows[only], y=of.y[only])
    scores = RunScores(sets=PartySetScores.of(narrow, "auroc"))
    (found,) = find_runs([run])
    section = sections.scores_section(found, scores)
    assert [row[1] for row in section.tables[0].rows] == ["–"] * 3
    assert "–" in section.text[0]
    (brings,) = sections.contributions_section(scores)
    assert brings.missing == "AUROC is not defined on these test rows."
    (sets,) = section.details[0].figures
    assert [text.get_text() for text in sets.figure.axes[1].texts] == ["–"] * 3


@pytest.mark.parametrize(
    ("classes", "share"), [(("no", "yes"), "share that is 'yes'"), (("a", "b", "c"), "share that is correct")]
)
def test_the_axis_of_a_calibration_says_what_is_counted(classes, share):
    """With two classes, it counts positive labels, not correct answers."""
    scores, y = torch.full((6, len(classes)), 1 / len(classes)), torch.tensor([0, 0, 0, 0, 1, 1])
    task = Task(kind="classification", classes=classes)
    found = plots.calibration_of(
        LabelledPredictions(task=task, scores=scores, y=y, answered=torch.ones(6, dtype=torch.bool))
    )
    (axis,) = figures.draw_calibration(found).axes
    assert axis.get_ylabel() == share
    assert found.correct.tolist() == pytest.approx([1 / 3 if len(classes) == 2 else 2 / 3])


def test_a_sample_of_test_rows_is_labelled(runs):
    (found,) = find_runs([runs["two"]])
    of = load_with_test_rows(runs["two"], most=20)
    scores = RunScores(sets=PartySetScores.of(of))
    assert len(of.test_rows) == 20 < of.held_out
    section, facts = sections.scores_section(found, scores), dict(page.key_facts(found, scores))
    some = f"20 of the {of.held_out} test rows, drawn at random"
    first = "RMSE" if of.model.task.kind == "regression" else "Accuracy"
    assert section.text[0].startswith(f"{first} of all parties on {some}: ")
    assert sections.errors_section(scores)[0].text[0].startswith(f"Scored with all parties on {some}; ")
    metric = "rmse" if of.model.task.kind == "regression" else "accuracy"
    assert float(facts[f"test {metric_label(metric)}"]) == pytest.approx(found.evaluation["overall"][metric], abs=6e-4)


def test_the_number_at_the_top_is_the_records_whether_the_model_is_at_hand_or_not(runs):
    """Both have one definition; the label says if some rows have no answer."""
    (found,) = find_runs([runs["two"]])
    there, gone = (page.key_facts(found, each) for each in (RunScores.of(found, model=True), RunScores(reason="gone")))
    assert [fact for fact in there if not fact[0].endswith("own columns only")] == gone
    fewer = replace(found, evaluation={"overall": {"accuracy": 0.75, "coverage": 0.8}})
    assert ("accuracy on the 80% of test rows with an answer", "0.750") in page.key_facts(
        fewer, RunScores(reason="gone")
    )
    alone = replace(found, evaluation=None)
    assert any(name.endswith("test rows") for name, _ in page.key_facts(alone, RunScores.of(found, model=True)))


def test_numbers_of_a_small_unit_are_shown(tmp_path):
    """Three decimals would show labels of about 1e-5 as zero."""
    settings = trained_runs.write(tmp_path, trained_runs.FIVE[:2], kind="number")
    for path in tmp_path.glob("*.csv"):
        frame = pl.read_csv(path)
        if "y" in frame.columns:
            frame.with_columns(pl.col("y") * 1e-5).write_csv(path)
    run = trained_runs.train(settings, "run")
    (found,) = find_runs([run])
    scores = RunScores.of(found, model=True)
    rmse = json.loads((run / "record.json").read_text())["evaluation"]["overall"]["rmse"]
    assert 1e-7 < rmse < 1e-3
    shown = dict(page.key_facts(found, scores))["test RMSE"]
    assert float(shown) == pytest.approx(rmse, rel=1e-3)
    sets, (brings,) = sections.scores_section(found, scores), sections.contributions_section(scores)
    numbers = [row[1].split()[0] for grid in (*sets.tables, *brings.tables) for row in grid.rows]
    assert all(float(number) != 0 for number in numbers)


def test_names_are_shown_whole_and_never_read_as_html(pages):
    shown = pages["twelve"]
    assert set(trained_runs.LONG) <= shown.table("party", "rows", "rows of no other party").keys()
    assert "<district>" not in shown.source


def test_a_run_that_stopped_half_way_has_its_epochs_and_its_ledger(runs, pages):
    shown = pages["half"]
    assert "stopped before its end" in shown.text
    assert "There are no test scores" in shown.text
    kept = json.loads((runs["half"] / "record.json").read_text())
    assert f"{len(kept['history'])} epochs" in shown.text
    assert kept["history"]
    assert shown.table("from", "to", "message", "messages")


def test_a_run_of_sites(tmp_path):
    sites = site_runs.build(tmp_path / "homes")
    site_runs.play(sites, site_runs.settings())
    shown = read([site.folder for site in sites.values()], tmp_path / "page")
    kept = json.loads((sites["bank"].folder / "record.json").read_text())
    overall = kept["evaluation"]["overall"]
    assert shown.table("parties", "accuracy")["any"][0] == f"{overall['accuracy']:.3f}"
    there = shown.table("parties that have the row")
    assert {name: int(cells[-1]) for name, cells in there.items()} == {
        name: scores["rows"] for name, scores in kept["evaluation"]["by_pattern"].items()
    }
    (sent,) = shown.messages("align-tokens")
    assert sent[1:3] == ["clinic, shop", "bank"]
    assert "each party keeps its own part of the model, so that" in shown.text
    assert "All parties ran in one process" not in shown.text


@pytest.mark.slow
@pytest.mark.parametrize("which", ["five", "twelve"])
def test_sets_that_have_a_row_are_listed_for_few_parties_only(runs, tmp_path, which):
    """The records suffice after the model is deleted."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(runs[which] / "record.json", run)
    shown = read(run, tmp_path / "page")
    heads = [table[0][0] for table in shown.tables]
    assert heads[:2] == ["answered by", "parties"]
    assert ("parties that have the row" in heads) == (which == "five")


def test_the_page_says_what_records_lack(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs["five"], run)
    kept = json.loads((run / "record.json").read_text())
    for key in ("ledger", "overlap", "versions"):
        kept.pop(key)
    kept["history"] = []
    (run / "record.json").write_text(json.dumps(kept))
    shown = read(run, tmp_path / "page")
    for what in ("The records hold no message", "Not recorded: which party has which rows", "No epoch is recorded"):
        assert what in shown.text


def test_tables_that_changed_leave_the_rest(runs, tmp_path):
    folder = tmp_path / "five"
    shutil.copytree(runs["five"].parent, folder)
    settings = (folder / "run" / "config.toml").read_text().replace(str(runs["five"].parent), str(folder))
    (folder / "run" / "config.toml").write_text(settings)
    adopt(folder / "run")
    frame = pl.read_csv(folder / "party2.csv")
    frame.head(50).write_csv(folder / "party2.csv")
    shown = read(folder / "run", tmp_path / "page")
    assert "the table of party 'clinic'" in shown.text
    assert shown.table("from", "to", "message", "messages")


def test_several_runs_on_one_page(runs, tmp_path):
    shown = read([runs["two"], runs["half"]], tmp_path, model=False)
    table = shown.table("run", "method")
    assert list(table) == ["run (1)", "run (2)"]  # both folders are called run
    assert [cells[-1] for cells in table.values()] == ["done", "stopped"]
    assert len(shown.ids) == len(set(shown.ids))
    assert (tmp_path / "figures" / "run-2-training.svg").exists()


@pytest.mark.slow
def test_the_figure_that_compares_runs_is_a_file_too(runs, tmp_path):
    other = adopt(shutil.copytree(runs["two"], tmp_path / "other"))
    shown = read([runs["two"], other], tmp_path / "page")
    assert {"all-runs-rmse.png", "all-runs-rmse.svg"} <= {path.name for path in (tmp_path / "page/figures").iterdir()}
    assert "Less is better." in shown.text


@pytest.mark.slow
def test_figures_of_an_earlier_page_go_with_it_and_no_other_file_does(runs, tmp_path):
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "mine.png").write_bytes(b"mine")
    read([runs["two"], runs["half"]], tmp_path, model=False)
    page.write([runs["half"]], tmp_path / "alone", model=False)
    again = page.write([runs["half"]], tmp_path, model=False)
    alone = {path.name for path in (tmp_path / "alone" / "figures").iterdir()}
    assert {path.name for path in folder.iterdir()} == alone | {"mine.png"}
    again.write_text(again.read_text().replace('name="figures" content="', 'name="figures" content="../index.html '))
    read([runs["half"]], tmp_path, model=False)
    assert again.exists()


@pytest.mark.slow
def test_similar_names_get_distinct_links(runs, tmp_path):
    folders = [shutil.copytree(runs["two"], tmp_path / name) for name in ("lr0.1", "lr0-1", "lr0-1-2", "all")]
    shown = read(folders, tmp_path / "page", model=False)
    assert len(shown.ids) == len(set(shown.ids))
    drawn = {path.name for path in (tmp_path / "page" / "figures").glob("*-training.svg")}
    assert {"lr0-1-training.svg", "lr0-1-2-training.svg", "lr0-1-2-2-training.svg", "all-2-training.svg"} <= drawn


@pytest.mark.parametrize("what", slow_but(["no-settings", "not-utf-8", "cut-model"], {"cut-model"}))
def test_a_page_stands_where_files_are_damaged(runs, tmp_path, what):
    run = adopt(shutil.copytree(runs["five"], tmp_path / "run"))
    if what == "no-settings":
        (run / "config.toml").unlink()
        kept = json.loads((run / "record.json").read_text())
        (run / "record.json").write_text(json.dumps({k: v for k, v in kept.items() if k != "tables"}))
    elif what == "not-utf-8":
        (run / "config.toml").write_bytes(b"# \xff\n")
    else:
        (run / "model.json").write_text("{")
        settings = tomllib.loads((run / "config.toml").read_text())
        del settings["federation"]["active"]
        (run / "config.toml").write_text(tomli_w.dumps(settings))
    shown = read(run, tmp_path / "page")
    assert shown.table("from", "to", "message", "messages")
    assert shown.table("party", "received")


def test_a_run_of_data_frames_names_no_command(tmp_path):
    """A command needs tables in the settings; a run of data frames has none."""
    trained_runs.write(tmp_path, trained_runs.FIVE[:2])
    files = {name: tmp_path / f"party{k}.csv" for k, name in enumerate(trained_runs.FIVE[:2])}
    frames = {name: pl.read_csv(path) for name, path in files.items()}
    for name, tables in (("frames", frames), ("with space", files)):
        of = Federation.from_tables(tables, id="id", label="y")
        of.train("laser", folder=tmp_path / name, epochs=1)
    framed, filed = find_runs([tmp_path / "frames", tmp_path / "with space"])
    assert framed.command == ""
    assert shlex.split(filed.command)[:3] == ["anyparty", "train", str(tmp_path / "with space" / "config.toml")]
    assert evaluate_run(tmp_path / "with space").overall["rows"] > 0


def test_remarks_are_in_the_record_and_on_the_page(tmp_path):
    """Each run records its warnings, though Python shows a warning only once."""
    trained_runs.write(tmp_path, trained_runs.FIVE[:2])
    frames = {name: pl.read_csv(tmp_path / f"party{k}.csv") for k, name in enumerate(trained_runs.FIVE[:2])}
    last = trained_runs.FIVE[1]
    frames[last] = frames[last].with_columns(gone=pl.lit(None, dtype=pl.Float64))
    sure = {"unlabelled": "pseudo", "unlabelled_epochs": 1, "sure": 0.999}
    of, said = Federation.from_tables(frames, id="id", label="y"), f"{last!r}, data frame: 'gone' is empty in all"
    for name in ("one", "two"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of.train("laser", parameters=sure, folder=tmp_path / name, epochs=1)
        first, *others = json.loads((tmp_path / name / "record.json").read_text())["remarks"]
        assert said in first
        assert [other.partition(":")[0] for other in others] == ["stage 'pseudo'"], others
    shown = read([tmp_path / "two"], tmp_path / "page")
    assert "two-remarks" in shown.ids
    assert said in shown.text


def test_each_sites_record_has_its_own_remarks(tmp_path):
    frames = site_runs.frames()
    frames["shop"] = frames["shop"].with_columns(gone=pl.lit(None, dtype=pl.Float64))
    sites = site_runs.build(tmp_path / "homes", frames)
    with pytest.warns(AnypartyWarning, match="'gone' is empty"):
        site_runs.play(sites, site_runs.settings())
    kept = {name: json.loads((site.folder / "record.json").read_text())["remarks"] for name, site in sites.items()}
    assert [len(remarks) for remarks in kept.values()] == [0, 1, 0]
    assert "'gone' is empty in all" in kept["shop"][0]
    assert kept["shop"][0] in read([site.folder for site in sites.values()], tmp_path / "page").text


@dataclass(frozen=True)
class Mine(Standard):
    """A user's own rule."""


def test_a_run_of_an_own_method_is_repeated_in_python(tmp_path):
    """Settings cannot make the method, so the page shows a line of Python."""
    settings, mine = trained_runs.write(tmp_path, trained_runs.FIVE[:2]), Split(rule=Mine(), embedding=4)
    first = Federation.from_config(config.load(settings)).train(mine, folder=tmp_path / "run")
    (run,) = find_runs([tmp_path / "run"])
    (said,) = sections.reproduce_section(run).text
    assert said == f"Repeat it in Python, with your own method in place of METHOD: {run.command}"
    line = run.command.replace("NEW-FOLDER", str(tmp_path / "again"))
    again = eval(line, {"Federation": Federation, "config": config, "METHOD": mine})  # noqa: S307
    assert again.evaluate().overall == first.evaluate().overall


def test_a_tag_that_goes_both_ways_is_explained_both_ways():
    (there, back) = declared_messages(method("fedhssl").can.messages)["representation"]
    assert (there.frm, there.to) == (back.to, back.frm)
    laser = declared_messages(method("laser").can.messages)
    assert all(len(laser[tag]) == 1 for tag in ("embedding", "gradient"))


def test_the_command(runs, call, tmp_path):
    shown = call("report", runs["two"], "--out", tmp_path / "page", "--no-model")
    assert shown.exit_code == 0, shown.stderr
    whole = total_traffic(find_runs([runs["two"]])[0].ledger)
    assert f"{whole.bytes_sent:,}" in shown.stdout
    assert (tmp_path / "page" / "index.html").exists()
    wrong = call("report", tmp_path / "nothing")
    assert wrong.exit_code == 2
    assert "is not a run" in wrong.stderr


@pytest.mark.slow
def test_the_page_is_written_before_anything_is_printed(runs, tmp_path):
    """The reader of stdout may close it early."""
    command = [sys.executable, "-m", "anyparty", "report", str(runs["two"]), "--no-model", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:  # noqa: S603
        started.stdout.close()
        assert started.stderr.read() == ""
    assert (tmp_path / "index.html").exists()


def test_a_metric_that_does_not_fit_is_rejected_before_output(runs, call, tmp_path):
    refused = call("report", runs["two"], "--out", tmp_path, "--metric", "auroc")
    assert refused.exit_code == 2
    assert "metric 'auroc' is for a classification" in refused.stderr
    assert refused.stdout == ""


def test_the_terminal_shows_a_failure_and_no_empty_table(call, tmp_path):
    record = {"status": "failed", "error": "Diverged: the loss is no number", "ledger": []}
    (tmp_path / "record.json").write_text(json.dumps(record))
    shown = call("report", tmp_path, "--no-model")
    assert shown.exit_code == 0, shown.stderr
    assert f"{tmp_path.name}: failed: Diverged: the loss is no number" in shown.stdout
    assert "hold no message" in shown.stdout
    assert "┃" not in shown.stdout
