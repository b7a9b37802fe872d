"""``anyparty sweep``: grid, random and TPE; shards; and a sweep that is killed and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import anyparty
from anyparty import config
from anyparty.errors import ConfigError
from anyparty.experiments.sweep import _Trials, load_sweep, sweep

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
        "[method]\nembedding = 4\n[train]\nepochs = 2\ncheckpoint_every = 1\n"
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


def test_a_grid_in_two_shards_trains_every_configuration_once(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write(GRID)
    assert len(sweep(path, shard="1/2")) == 2
    first = finished(tmp_path / "sweep")
    found = sweep(path, shard="2/2")
    assert set(zip(found["optimizer.lr"], found["method.name"], strict=True)) == {
        (lr, name) for lr in (0.001, 0.01) for name in ("local", "ensemble")
    }
    assert found["status"].to_list() == ["done"] * 4
    assert found["test.accuracy"].is_between(0, 1).all()
    assert found["validation.log_loss"].null_count() == 0
    assert found.equals(anyparty.runs.frame(str(tmp_path / "sweep" / "*")))
    sweep(path)  # the whole grid: all runs exist
    assert {name: finished(tmp_path / "sweep")[name] for name in first} == first
    with pytest.raises(ConfigError, match="is finished"):
        sweep(path, if_done="error", shard="1/3")
    record = next((tmp_path / "sweep").glob("*/record.json")).read_text()
    assert "embedding = 4" in record.replace("\\n", "\n")  # record.json holds the settings


def test_random_and_tpe_sweeps_draw_from_ranges(write: Callable[..., Path], tmp_path: Path) -> None:
    space = {"optimizer.lr": "{low = 1e-3, high = 0.1, log = true}", "encoder.hidden": "[[4], [8, 4]]"}
    drawn = sweep(write(space, sampler="'random'", trials="3"), folder=tmp_path / "random")
    assert drawn["optimizer.lr"].n_unique() == 3
    assert drawn["optimizer.lr"].is_between(1e-3, 0.1).all()
    assert set(drawn["encoder.hidden"]) <= {"[4]", "[8, 4]"}
    chosen = sweep(write(space, sampler="'tpe'", trials="4", pruner="'median'"), folder=tmp_path / "tpe")
    assert len(chosen) == 4
    assert len(sweep(write(space, sampler="'tpe'", trials="5"), folder=tmp_path / "tpe", shard="1/1")) == 5


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        ({"optimizer.lr": "{low = 1, high = 2}"}, {}, "a grid needs a list"),
        (GRID, {"trials": "3"}, "leave it out for a grid"),
        (GRID, {"sampler": "'tpe'"}, "set it"),
        (GRID, {"sampler": "'gird'"}, "grid"),
        ({"optimizer.lr": "0.1"}, {}, "expected a list of values"),
        ({"optimizer.lr": "{low = 1, hihg = 2}"}, {}, "did you mean 'high'"),
    ],
)
def test_invalid_sweeps_are_refused(
    write: Callable[..., Path], space: dict[str, str], settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(write(space, **settings))


def test_an_invalid_shard_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="1/4"):
        sweep(write(GRID), shard="5/4")


def test_a_trial_that_was_killed_before_it_had_parameters_is_repeated(write: Callable[..., Path]) -> None:
    path = write(GRID)
    settings, space = load_sweep(path)
    root, base = path.with_suffix(""), config.load(settings.settings)
    made = {"root": root, "settings": settings, "space": space, "base": base, "metric": "log_loss", "greater": False}
    killed = _Trials(**made, part=1, parts=1, if_done="skip")
    killed.study.ask()  # as if the process was killed here: the trial runs, and has no parameters yet
    found = sweep(path)
    assert len(found) == 4
    assert found.select("method.name", "optimizer.lr").is_duplicated().sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("shards", [("1/1",), ("1/2", "2/2")])
def test_a_killed_sweep_continues_without_repeating_a_run(
    write: Callable[..., Path], tmp_path: Path, shards: tuple[str, ...]
) -> None:
    space = GRID | {"train.seed": "[0, 1, 2]", "train.batch_size": "[16, 32]"}  # 24 configurations
    path, folder = write(space), tmp_path / "sweep"
    words = [sys.executable, "-m", "anyparty", "sweep", str(path), "--jobs", "2" if len(shards) == 1 else "1"]
    processes = [subprocess.Popen([*words, "--shard", shard], start_new_session=True) for shard in shards]  # noqa: S603
    end = time.monotonic() + 240
    while len(finished(folder)) < 10 and time.monotonic() < end:
        time.sleep(0.05)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    time.sleep(1)  # workers of the killed process end after their batch
    done = finished(folder)
    assert 10 <= len(done) < 24
    for shard in shards:
        subprocess.run([*words, "--shard", shard], check=True, timeout=240)  # noqa: S603
    found = anyparty.runs.frame(folder / "*")
    assert len(found) == 24
    assert found["status"].to_list() == ["done"] * 24
    assert {name: finished(folder)[name] for name in done} == done
    assert found.select("method.name", "train.seed", "optimizer.lr", "train.batch_size").is_duplicated().sum() == 0
