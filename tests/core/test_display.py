"""Tables as text and as HTML, frames and figures for notebooks."""

import asyncio
import json
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import pytest
from rich.console import Console

from anyparty import Federation, Model, runs
from anyparty.artifacts.record import RunRecord
from anyparty.core import display
from anyparty.core.types import Task
from anyparty.errors import ConfigError
from tests.conftest import Call, write_tables

mpl.use("Agg")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    files = {name: folder / f"{name}.csv" for name in ("bank", "shop")}
    return Federation.from_tables(files, id="customer", label="default")


@pytest.fixture(scope="module")
def model(federation: Federation) -> Model:
    """Train within a running event loop, as a notebook does."""

    async def cell() -> Model:
        return federation.train("laser", epochs=2, seed=1)

    return asyncio.run(cell())


def test_print_shows_how_columns_were_read(federation: Federation) -> None:
    text = str(federation.reading)
    assert "│ bank" in text
    assert "income" in text
    assert "\x1b" not in text


def test_print_shows_rows_and_scores(federation: Federation, model: Model) -> None:
    for each in (str(federation.overlap), str(model.evaluate())):
        assert "│ bank" in each
        assert "patterns=" not in each
    assert "client_accuracy" in str(model.evaluate())


def test_notebooks_show_tables(federation: Federation, model: Model) -> None:
    shown = [each._repr_html_() for each in (federation, federation.overlap, federation.reading, model)]
    shown.append(model.evaluate()._repr_html_())
    assert all(html.startswith("<pre") and "bank" in html for html in shown)
    assert "&lt;Federation of" in shown[0]  # escaped
    assert "accuracy" in shown[3]


def test_frames_have_the_numbers_of_the_tables(federation: Federation, model: Model) -> None:
    overlap = federation.overlap
    assert overlap.frame()["rows"].sum() == overlap.rows
    scored = model.evaluate()
    frame = scored.frame()
    assert frame.filter(group="overall")["accuracy"].item() == scored.overall["accuracy"]
    assert frame.filter(group="count")["rows"].sum() == scored.overall["rows"]
    assert set(frame.filter(group="parties")["present"]) == set(scored.by_pattern)


def test_figures_have_a_bar_for_each_set_of_parties(federation: Federation, model: Model) -> None:
    overlap, scored = federation.overlap, model.evaluate()
    assert [bar.get_width() for bar in overlap.plot().patches] == [p.rows for p in overlap.patterns[::-1]]
    axes = scored.plot("log_loss")
    assert axes.get_xlabel() == "log_loss"
    assert len(axes.patches) == len(scored.by_pattern)
    assert scored.plot(axes=axes) is axes
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        scored.plot("acuracy")


def test_a_confusion_matrix_has_the_counts_of_answered_rows(model: Model) -> None:
    scored, answers = model.evaluate(), model.predict()
    axes = scored.plot_confusion_matrix()
    counts = [[int(text.get_text()) for text in axes.texts if text.get_position()[1] == row] for row in (0, 1)]
    assert sum(map(sum, counts)) == int(answers.answered.sum())
    right = (counts[0][0] + counts[1][1]) / sum(map(sum, counts))
    assert right == pytest.approx(scored.overall["accuracy"])
    assert [label.get_text() for label in axes.get_xticklabels()] == list(scored.task.classes)
    assert scored.plot_confusion_matrix(axes=axes) is axes


def test_a_calibration_curve_has_the_shares_of_each_bin(model: Model) -> None:
    scored = model.evaluate()
    axes = scored.plot_calibration_curve()
    (_, curve) = axes.lines
    p = model.predict().scores[:, 1].double()
    means = [p[(p * 10).int() == b].mean().item() for b in range(10) if ((p * 10).int() == b).any()]
    assert curve.get_xdata().tolist() == pytest.approx(means)
    assert scored.plot_calibration_curve(axes=axes) is axes


def test_plots_of_classes_reject_a_regression(model: Model) -> None:
    numbers = replace(model.evaluate(), task=Task(kind="regression"))
    with pytest.raises(ConfigError, match="a confusion matrix needs classes, but the task is a regression"):
        numbers.plot_confusion_matrix()
    with pytest.raises(ConfigError, match="a calibration curve needs classes"):
        numbers.plot_calibration_curve()
    with pytest.raises(ConfigError, match="needs rows with a label and an answer"):
        replace(model.evaluate(), rows=None).plot_calibration_curve()


def test_learning_curves_of_a_model_and_of_its_record(federation: Federation, tmp_path: Path) -> None:
    model = federation.train("laser", epochs=3, seed=1, validation=0.2, folder=tmp_path / "run")
    record = runs.record(tmp_path / "run")
    for figure in (model.plot(), record.plot()):
        losses = figure.axes[0].lines[0].get_ydata()
        assert losses.tolist() == pytest.approx([epoch["loss"] for epoch in model.history])
        assert figure.axes[0].get_xlabel() == f"epoch (best: {model.best_epoch})"
    html = record._repr_html_()
    assert "Run of LASER-VFL: done" in html
    assert f"{model.evaluate().overall['accuracy']:.4g}" in html
    with pytest.raises(ConfigError, match=r"it was loaded; plot its run: anyparty.runs.record"):
        Model.load(tmp_path / "run").plot()
    with pytest.raises(ConfigError, match="no epoch to draw"):
        RunRecord().plot()


def test_json_of_align_and_evaluate(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ("bank.csv", "shop.csv", "--label", "default")
    aligned = json.loads(call("align", *words, "--json").stdout)
    assert aligned["overlap"]["rows"] == 120
    assert {each["party"] for each in aligned["columns"]} == {"bank", "shop"}
    assert aligned["task"].startswith("task: classification")
    assert call("train", *words, "--set", "train.epochs=1", "-q").exit_code == 0
    scored = json.loads(call("evaluate", "runs/bank-shop-sum-seed0", "--json").stdout)
    assert scored["overall"]["coverage"] == 1.0


class TestSteps:
    def shown(self, *, terminal: bool, lasting: float) -> str:
        file = StringIO()
        with display.showing_steps(Console(file=file, force_terminal=terminal, force_interactive=terminal, width=80)):
            display.doing("reading bank.csv")
            time.sleep(lasting)
        display.doing("nobody looks")
        return file.getvalue()

    def test_long_steps_are_shown_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(display, "PATIENCE_S", 0.01)
        assert "reading bank.csv" in self.shown(terminal=True, lasting=0.5)
        assert self.shown(terminal=False, lasting=0.1) == ""

    def test_short_steps_are_not_shown(self) -> None:
        assert self.shown(terminal=True, lasting=0) == ""

    def test_each_table_is_a_step(self, monkeypatch: pytest.MonkeyPatch, federation: Federation) -> None:
        steps = list[str]()
        monkeypatch.setattr(display, "_SHOW", SimpleNamespace(get=lambda: steps.append))
        Federation.from_config(federation.config)
        assert steps == ["reading the table of party 'bank'", "reading the table of party 'shop'"]
