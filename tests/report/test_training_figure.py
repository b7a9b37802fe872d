"""Runs with a schedule are drawn over the schedule's time, and report a trace that was too short."""

from dataclasses import replace

import pytest

from anyparty.metrics import plots
from anyparty.report import sections
from anyparty.report.recorded_runs import find_runs


def history(**clock):
    """Return three epochs, with the clock's time after each."""
    return [
        {"stage": "train", "epoch": e, "loss": 1.0 / e, "seconds": 0.1, "validation": {"accuracy": e / 4},
         **{key: value * e for key, value in clock.items()}}
        for e in (1, 2, 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("clock", "label", "x"),
    [({}, "epoch", [1, 2, 3]), ({"time": 40.0, "rounds": 2}, "time units", [40, 80, 120]),
     ({"time_s": 0.5, "rounds": 2}, "seconds", [0.5, 1.0, 1.5])],
)  # fmt: skip
def test_the_x_axis_of_curves(clock, label, x):
    axes = plots.draw_training(history(**clock), 0).axes
    assert [axis.get_xlabel() for axis in axes] == [label] * 2
    assert [axis.lines[0].get_xdata().tolist() for axis in axes] == [x] * 2


def test_scores_of_training_rows_stand_beside_those_of_validation_rows():
    of_both = [{**epoch, "training": {"accuracy": epoch["epoch"] / 3}} for epoch in history()]
    figure = plots.draw_training(of_both, 2)
    loss, accuracy = figure.axes
    assert {line.get_label(): line.get_ydata().tolist() for line in accuracy.lines[:2]} == {
        "validation": [0.25, 0.5, 0.75], "training": pytest.approx([1 / 3, 2 / 3, 1.0]),
    }  # fmt: skip
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["validation", "training"]
    assert len(loss.lines) == 1 + 2  # and the mark of the best epoch
    assert [axes.get_xlabel() for axes in figure.axes] == ["epoch (best: 2)"] * 2
    assert not [text for axes in figure.axes for text in axes.texts]  # nothing covers a curve


def test_without_training_scores_there_is_no_legend():
    figure = plots.draw_training(history(), 0)
    assert figure.legends == []
    assert len(figure.axes[1].lines) == 1


def test_a_trained_run_under_flex(work, call):
    """Train on the command line and write the report."""
    (work / "timed.toml").write_text(
        (work / "credit.toml").read_text()
        + '\n[schedule]\nname = "flex"\n[clock]\nlatency = 2.0\ntimeout = 8.0\nuse = { bank = [0.0, 0.5] }\n'
    )
    shown = call("train", "timed.toml", "--quiet", "--set", "train.epochs=6")
    assert shown.exit_code == 0, shown.output
    (run,) = find_runs([next((work / "runs").glob("*/record.json")).parent])
    (drawn,) = sections.training_section(run).figures
    assert drawn.figure.axes[0].get_xlabel() == "time units (best: epoch 6)"
    assert drawn.figure.axes[0].lines[0].get_xdata().tolist() == [10.0 * epoch["rounds"] for epoch in run.history]
    anew = (run.history[-1]["rounds"] - 1) // 2
    assert anew > 1
    assert f"shorter than the run: it restarted {anew} times" in " ".join(sections.training_section(run).text)
    unwrapped = replace(run, history=history(time=1.0))
    assert "it restarted" not in " ".join(sections.training_section(unwrapped).text)
