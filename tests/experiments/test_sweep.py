"""``anyparty sweep``: grid, random and TPE; changed settings; several processes; a sweep that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import anyparty
from anyparty import config
from anyparty.api.federation import Federation
from anyparty.errors import ConfigError, RunError
from anyparty.experiments.sweep import SweepPlan, load_sweep, sweep

pytest.importorskip("optuna")
GRID = {"optimizer.lr": "[0.001, 0.01]", "method.name": '["local", "ensemble"]'}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    draw, ids = np.random.default_rng(0), [f"r{n:03d}" for n in range(120)]
    X = draw.normal(size=(120, 2))
    pl.DataFrame({"id": ids, "x": X[:, 0], "y": (X.sum(1) > 0).astype(int)}).write_csv(tmp_path / "a.csv")
    pl.DataFrame({"id": ids[:90], "x": X[:90, 1]}).write_csv(tmp_path / "b.csv")
    (tmp_path / "base.toml").write_text(
        "[federation]\nlabel = 'y'\n[parties.a]\ntable = 'a.csv'\n[parties.b]\ntable = 'b.csv'\n"
        '[method]\nname = "laser"\nembedding = 4\n[train]\nepochs = 2\ncheckpoint_every = 1\n'
    )

    def text(space: dict[str, str], **settings: str) -> Path:
        path = tmp_path / "sweep.toml"
        head = "settings = 'base.toml'\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
        path.write_text(head + "[space]\n" + "".join(f"{key} = {value}\n" for key, value in space.items()))
        return path

    return text


def finished(folder: Path) -> dict[str, int]:
    """Return the time of the model's file of each run whose record says that it is done."""
    done = [path.parent for path in folder.glob("*/record.json") if '"status": "done"' in path.read_text()]
    return {path.name: (path / "model.json").stat().st_mtime_ns for path in done}


def test_a_grid_trains_every_configuration_once(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(GRID)
    found = sweep(path)
    first = finished(tmp_path / "sweep")
    assert set(zip(found["optimizer.lr"], found["method.name"], strict=True)) == {
        (lr, name) for lr in (0.001, 0.01) for name in ("local", "ensemble")
    }
    assert found["status"].to_list() == ["done"] * 4
    assert found["test.accuracy"].is_between(0, 1).all()
    assert found["validation.log_loss"].null_count() == 0
    assert found.equals(anyparty.runs.frame(str(tmp_path / "sweep" / "*")))
    sweep(path)  # all runs exist
    assert finished(tmp_path / "sweep") == first
    (tmp_path / "sweep" / "study.journal").unlink()
    sweep(path)  # the folders of the runs show that they are finished, also without the journal
    assert finished(tmp_path / "sweep") == first
    record = next((tmp_path / "sweep").glob("*/record.json")).read_text()
    assert "embedding = 4" in record.replace("\\n", "\n")  # record.json holds the settings


def test_finished_configurations_are_repeated_or_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(GRID)
    sweep(path)
    first = finished(tmp_path / "sweep")
    with pytest.raises(ConfigError, match="is finished"):
        sweep(path, if_done="error")
    assert finished(tmp_path / "sweep") == first
    sweep(path, if_done="repeat")
    again = finished(tmp_path / "sweep")
    assert again.keys() == first.keys()
    assert all(again[name] > first[name] for name in first)


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"seed": "1"}, "the sweep's seed"), ({"space": GRID | {"optimizer.lr": "[0.1]"}}, "the sweep's space")],
)
def test_a_sweep_with_changed_settings_is_refused(write: Callable[..., Path], changed: Any, named: str) -> None:
    sweep(write({"train.seed": "[0]"} if "seed" in changed else GRID))
    with pytest.raises(ConfigError, match=rf"{named} changed since this sweep began; name another folder"):
        sweep(write(**{"space": {"train.seed": "[0]"}} | changed))


def test_a_sweep_of_a_changed_federation_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write({"train.seed": "[0]"})
    sweep(path)
    base = tmp_path / "base.toml"
    base.write_text(base.read_text().replace("epochs = 2", "epochs = 3"))
    with pytest.raises(ConfigError, match=r"base\.toml changed since this sweep began"):
        sweep(path)


def test_the_same_seed_gives_the_same_configurations(write: Callable[..., Path], tmp_path: Path) -> None:
    """A TPE sweep that is continued with more trials draws as one that was not stopped."""
    space = {"optimizer.lr": "{low = 1e-3, high = 0.1, log = true}", "train.batch_size": "{low = 8, high = 64}"}
    for sampler in ("random", "tpe"):
        whole = sweep(write(space, sampler=f"'{sampler}'", trials="3"), folder=tmp_path / f"{sampler}-whole")
        sweep(write(space, sampler=f"'{sampler}'", trials="1"), folder=tmp_path / f"{sampler}-parts")
        parts = sweep(write(space, sampler=f"'{sampler}'", trials="3"), folder=tmp_path / f"{sampler}-parts")
        columns = ["optimizer.lr", "train.batch_size", "validation.log_loss"]
        assert whole.select(columns).sort(columns).equals(parts.select(columns).sort(columns))
        assert whole["optimizer.lr"].n_unique() == 3


def test_random_and_tpe_sweeps_draw_from_ranges(write: Callable[..., Path], tmp_path: Path) -> None:
    space = {"optimizer.lr": "{low = 1e-3, high = 0.1, log = true}", "encoder.hidden": "[[4], [8, 4]]"}
    drawn = sweep(write(space, sampler="'random'", trials="3"), folder=tmp_path / "random")
    assert drawn["optimizer.lr"].n_unique() == 3
    assert drawn["optimizer.lr"].is_between(1e-3, 0.1).all()
    assert set(drawn["encoder.hidden"]) <= {"[4]", "[8, 4]"}
    chosen = sweep(write(space, sampler="'tpe'", trials="4", pruner="'median'"), folder=tmp_path / "tpe")
    assert len(chosen) == 4
    assert len(sweep(write(space, sampler="'tpe'", trials="5"), folder=tmp_path / "tpe")) == 5


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        ({"optimizer.lr": "{low = 1, high = 2}"}, {}, "a grid needs a list"),
        (GRID, {"trials": "3"}, "leave it out for a grid"),
        (GRID, {"sampler": "'tpe'"}, "set it"),
        (GRID, {"sampler": "'gird'"}, "grid"),
        ({"optimizer.lr": "0.1"}, {}, "expected a list of values"),
        ({"optimizer.lr": "{low = 1, hihg = 2}"}, {}, "did you mean 'high'"),
        ({"optimizer.lr": "{low = 2, high = 1}"}, {"sampler": "'tpe'", "trials": "1"}, "expected low < high"),
        ({"optimizer.lr": "{low = 0, high = 1, log = true}"}, {}, "above 0 if log is true, got 0 and 1"),
        ({"optimizer.lr": "{low = 0, high = true}"}, {}, "high: expected a .*number, got True"),
    ],
)
def test_invalid_sweeps_are_refused(
    write: Callable[..., Path], space: dict[str, str], settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(write(space, **settings))


def opened(path: Path) -> tuple[SweepPlan, Any]:
    """Return the plan of a sweep and its study, with all trials enqueued."""
    settings, space = load_sweep(path)
    base = config.load(settings.settings)
    plan = SweepPlan(folder=path.with_suffix(""), settings=settings, space=space, base=base, metric="log_loss")
    plan.enqueue("skip")
    return plan, plan.open_study()[0]


def test_a_trial_that_was_killed_before_it_had_parameters_is_repeated(write: Callable[..., Path]) -> None:
    path = write(GRID)
    _, study = opened(path)
    study.ask()  # as if the process was killed here: the trial runs, and has no parameters yet
    found = sweep(path)
    assert len(found) == 4
    assert found.select("method.name", "optimizer.lr").is_duplicated().sum() == 0


def test_a_line_that_a_killed_process_wrote_in_part_is_removed(write: Callable[..., Path]) -> None:
    path = write(GRID)
    plan, _ = opened(path)
    with (plan.folder / "study.journal").open("a") as journal:
        journal.write('{"op_code":6,"worker')
    assert len(sweep(path)) == 4


def test_a_trial_that_another_process_took_over_is_not_trained_twice(write: Callable[..., Path]) -> None:
    """Two processes take one TPE configuration: the first gives it up, because the second enqueued it again."""
    path = write({"optimizer.lr": "{low = 1e-3, high = 0.1}"}, sampler="'tpe'", trials="2")
    plan, study = opened(path)
    slow = study.ask()  # this process has not drawn the parameters yet when the other process begins
    assert len(sweep(path)) == 2
    with pytest.raises(RunError, match="another process has taken this configuration"):
        plan._train(slow, study, plan.open_study()[1], os.getpid())
    assert len(anyparty.runs.frame(plan.folder / "*")) == 2


def test_processes_that_begin_at_the_same_time_draw_different_configurations(write: Callable[..., Path]) -> None:
    path = write({"optimizer.lr": "{low = 1e-3, high = 0.1}"}, sampler="'tpe'", trials="2")
    plan, _ = opened(path)
    both = [plan.open_study() for _ in range(2)]
    trials = [study.ask() for study, _ in both]  # both ask before one of them draws
    for trial, (study, lock) in zip(trials, both, strict=True):
        plan._train(trial, study, lock, os.getpid())
    found = sweep(path)
    assert len(found) == found["optimizer.lr"].n_unique() == 2


def test_an_interrupted_training_is_continued_and_a_failed_one_is_not_repeated(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, train, calls = write({"train.seed": "[0, 1, 2]"}), Federation.train, list[int]()

    def interrupted(self: Federation, *args: Any, **how: Any) -> Any:
        calls.append(self.config.train.seed)
        if len(calls) == 1:
            raise RunError("the training diverged")
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(self, *args, **how)

    monkeypatch.setattr(Federation, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(path)
    assert len(sweep(path)) == 2
    assert calls == [0, 1, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_sweep_continues_without_repeating_a_run(
    write: Callable[..., Path], tmp_path: Path, processes: int
) -> None:
    space = GRID | {"train.seed": "[0, 1, 2]", "train.batch_size": "[16, 32]"}  # 24 configurations
    path, folder = write(space), tmp_path / "sweep"
    words = [sys.executable, "-m", "anyparty", "sweep", str(path), "--jobs", str(3 - processes)]
    started = [subprocess.Popen(words, start_new_session=True) for _ in range(processes)]  # noqa: S603
    end = time.monotonic() + 240
    while len(finished(folder)) < 10 and time.monotonic() < end:
        time.sleep(0.05)
    for process in started:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    time.sleep(1)  # workers of the killed process end after their batch
    done = finished(folder)
    assert 10 <= len(done) < 24
    again = [subprocess.Popen(words) for _ in range(processes)]  # noqa: S603
    assert [process.wait(timeout=240) for process in again] == [0] * processes
    found = anyparty.runs.frame(folder / "*")
    assert len(found) == 24
    assert found["status"].to_list() == ["done"] * 24
    assert {name: finished(folder)[name] for name in done} == done
    assert found.select("method.name", "train.seed", "optimizer.lr", "train.batch_size").is_duplicated().sum() == 0
