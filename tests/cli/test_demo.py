"""The demo: its files, its protection of changed files, its table and plot."""

import math
from pathlib import Path

import polars as pl
import pytest
from matplotlib.figure import Figure

from anyparty import Federation, config
from anyparty.cli import demo, demo_data
from anyparty.cli.demo import DemoScore, DemoStudy, method_title
from anyparty.errors import ConfigError
from anyparty.methods.method_registry import SPLIT
from tests.conftest import Call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the demo's files."""
    demo_data.write(tmp_path / "demo")
    return tmp_path / "demo"


def table(folder: Path, name: str) -> pl.DataFrame:
    return pl.read_csv(folder / f"{name}.csv")


def test_a_third_of_each_partys_rows_is_absent(folder: Path) -> None:
    ids = {name: set(table(folder, name)["id"]) for name in demo_data.PARTIES}
    assert {len(held) for held in ids.values()} == {265}  # of 398
    assert len(set.union(*ids.values())) > 265
    assert len(set.intersection(*ids.values())) > 80


def test_all_have_the_test_rows_and_nobody_trains_on_them(folder: Path) -> None:
    tests = [set(table(folder, f"test/{name}")["id"]) for name in demo_data.PARTIES]
    assert tests[0] == tests[1] == tests[2]
    assert len(tests[0]) == 171
    assert all(not set(table(folder, name)["id"]) & tests[0] for name in demo_data.PARTIES)


def test_tables_are_in_orders_of_their_own(folder: Path) -> None:
    orders = [table(folder, f"test/{name}")["id"].to_list() for name in demo_data.PARTIES]
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[0]) != orders[0]


def test_only_the_lead_knows_labels(folder: Path) -> None:
    federation = Federation.from_config(config.load(folder / "federation.toml"))
    assert federation.roster.active == "mean"
    assert int(federation.labeled.sum()) == 265
    assert [name for name, held in federation.tables.items() if held.label is not None] == ["mean"]


def test_files_are_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    demo_data.write(tmp_path / "again")
    for path in folder.rglob("*.csv"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(folder)).read_bytes()


def test_it_writes_over_its_own_files_only(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    demo_data.write(folder)
    (folder / "mean.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mean\.csv was changed since"):
        demo_data.write(folder)
    assert (folder / "mean.csv").read_text(encoding="utf-8") == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="has other files"):
        demo_data.write(tmp_path / "other")
    with pytest.raises(ConfigError, match="is a file"):
        demo_data.write(tmp_path / "other" / "notes.txt")


def test_its_settings_train_from_the_shell(folder: Path, call: Call) -> None:
    assert call("train", folder / "federation.toml", "--set", "train.epochs=3").exit_code == 0
    tables = [word for name in demo_data.PARTIES for word in ("--table", f"{name}={folder / 'test' / name}.csv")]
    scored = call("evaluate", folder / "runs" / "federation-laser-seed0", *tables)
    assert "171" in scored.stdout


def test_a_small_demo(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "SETTINGS", demo_data.SETTINGS.replace("epochs = 60", "epochs = 2"))
    study = demo.run(tmp_path / "demo", seeds=1, jobs=1)
    assert study.rows == 171
    assert study.counts == [3, 2, 1]
    assert {score.method for score in study.scores} == set(SPLIT)
    assert {"accuracy.csv", "accuracy.png", "accuracy.svg"} <= {path.name for path in (tmp_path / "demo").iterdir()}
    assert "±" not in str(vars(demo.render_table(study).renderables[0].columns[1])["_cells"])  # one seed has no spread
    assert demo.caption(study).startswith("One seed, with random gaps (")
    standard = [score for score in study.scores if score.method == "standard"]
    assert [score.coverage for score in standard] == [1, 0, 0]
    assert math.isnan(standard[1].accuracy)


def test_the_table_says_where_laser_is_below() -> None:
    accuracy = dict.fromkeys(SPLIT, 0.9) | {"plug": 0.95, "laser": 0.92}
    scores = [
        DemoScore(method=name, seed=seed, present=n, accuracy=value if n == 2 else 0.9, coverage=1.0)
        for name, value in accuracy.items()
        for seed in range(2)
        for n in (3, 2)
    ]
    study = DemoStudy(tuple(scores), 10)
    assert study.better_than(2) == [("plug", pytest.approx(0.03), pytest.approx(0.0, abs=1e-9))]
    assert study.better_than(3) == []
    said = demo.verdicts(study)
    assert said == [
        "LASER-VFL is at or above every baseline with 3 present.",
        "With 2 present LASER-VFL is below PlugVFL by 3.0 ± 0.0 (± standard error).",
    ]


def test_the_legend_covers_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The location "best" may cover points, and warns that its search is slow."""
    scores = [
        DemoScore(method=name, seed=0, present=n, accuracy=0.9, coverage=1.0) for name in SPLIT for n in (3, 2, 1)
    ]
    drawn: list[Figure] = []
    monkeypatch.setitem(demo.FORMATS, "png", lambda figure: drawn.append(figure) or b"")
    demo.plot(DemoStudy(tuple(scores), 10), "png")
    (figure,) = drawn
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.get_legend() is None
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert [text.get_text() for text in legend.get_texts()] == [method_title(name) for name in SPLIT]
