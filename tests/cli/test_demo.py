"""The demo: its files, its protection of changed files, its table and plot."""

from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from anyparty import Federation, config
from anyparty.cli import demo, demo_data
from anyparty.errors import ConfigError
from anyparty.experiments.comparison import Comparison
from tests.conftest import Call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the demo's files."""
    demo_data.write(tmp_path / "demo")
    return tmp_path / "demo"


def table(folder: Path, name: str) -> pl.DataFrame:
    return pl.read_csv(folder / f"{name}.csv")


def test_half_of_each_partys_rows_are_absent(folder: Path) -> None:
    ids = {name: set(table(folder, name)["image"]) for name in demo_data.PARTIES}
    assert {len(held) for held in ids.values()} == {599}  # of 1,198
    assert len(set.union(*ids.values())) > 1_000
    assert len(set.intersection(*ids.values())) > 50


def test_all_parties_hold_the_test_rows_and_none_trains_on_them(folder: Path) -> None:
    tests = [set(table(folder, f"test/{name}")["image"]) for name in demo_data.PARTIES]
    assert all(held == tests[0] for held in tests)
    assert len(tests[0]) == 599
    assert all(not set(table(folder, name)["image"]) & tests[0] for name in demo_data.PARTIES)


def test_each_table_has_its_own_order_of_rows(folder: Path) -> None:
    orders = [table(folder, f"test/{name}")["image"].to_list() for name in demo_data.PARTIES]
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[0]) != orders[0]


def test_only_the_active_party_holds_labels(folder: Path) -> None:
    federation = Federation.from_config(config.load(folder / "federation.toml"))
    assert federation.roster.active == "top_left"
    assert int(federation.labeled.sum()) == 599
    assert [name for name, held in federation.tables.items() if held.label is not None] == ["top_left"]


def test_demo_files_are_reproducible(folder: Path, tmp_path: Path) -> None:
    demo_data.write(tmp_path / "again")
    for path in folder.rglob("*.csv"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(folder)).read_bytes()


def test_the_demo_overwrites_only_its_own_files(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    demo_data.write(folder)
    (folder / "top_left.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"top_left\.csv was changed since"):
        demo_data.write(folder)
    assert (folder / "top_left.csv").read_text(encoding="utf-8") == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="has other files"):
        demo_data.write(tmp_path / "other")
    with pytest.raises(ConfigError, match="is a file"):
        demo_data.write(tmp_path / "other" / "notes.txt")


def test_the_demo_settings_can_be_trained(folder: Path, call: Call) -> None:
    trained = call("train", folder / "federation.toml", "--set", "train.epochs=1")
    assert trained.exit_code == 0
    assert "Scores on test rows" in trained.stdout
    assert "Next:    anyparty report" in trained.stdout
    tables = [word for name in demo_data.PARTIES for word in ("--table", f"{name}={folder / 'test' / name}.csv")]
    scored = call("evaluate", folder / "runs" / "federation-laser-seed0", *tables)
    assert "599" in scored.stdout


@pytest.mark.slow
def test_a_small_demo_runs_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "SETTINGS", demo_data.SETTINGS.replace("epochs = 40", "epochs = 2"))
    console = Console(record=True, width=100)
    comparison = demo.run(tmp_path / "demo", seeds=1, jobs=1, console=console)
    shown = console.export_text()
    assert shown.count("no answer") == 3
    assert [line.split()[0] for line in shown.splitlines()[-3:]] == ["You", "Files:", "Next:"]
    assert demo.counts(comparison) == [4, 3, 2, 1]
    files = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {"accuracy.csv", "accuracy.png", "accuracy.svg", "accuracy-dark.svg"} <= files
    monkeypatch.setattr("anyparty.api.training_run.train", None)  # a second run would fail
    again = demo.run(tmp_path / "demo", seeds=1, jobs=1)
    assert again.frame().equals(comparison.frame())


def made_up(accuracies: dict[str, list[float | None]]) -> Comparison:
    """Return a comparison of three seeds with the given mean accuracies, with 2 and 1 parties present."""
    records = [
        {
            "run": {"method": name, "seed": seed, "missing": 0.5}, "rate": 0.5, "seconds": 1.0, "bytes_sent": 1,
            "parameters": 1, "epochs": 1, "rows": {"train": 50, "validation": 10, "test": 40},
            "scores": [
                {"present": count, "accuracy": (mean or 0.1) + spread, "coverage": float(mean is not None), "rows": 40}
                for count, mean in zip((2, 1), means, strict=True)
            ],
        }
        for name, means in accuracies.items()
        for seed, spread in enumerate((-0.01, 0.0, 0.01 + 0.001 * len(name)))
    ]  # fmt: skip
    return Comparison(records=records, methods=list(accuracies), metric="accuracy")


def test_verdicts_name_the_best_equal_and_unable_methods() -> None:
    study = made_up({"Standard VFL": [0.7, None], "PlugVFL": [0.9, 0.6], "LASER-VFL": [0.9001, 0.8]})
    assert list(demo.verdicts(study)) == [
        "LASER-VFL has the highest mean with all 2 present and 1 away.",
        "PlugVFL is level with it with all 2 present.",
        "Standard VFL cannot answer if a party is away.",
    ]
    assert demo.leader(made_up({"PlugVFL": [0.9, 0.8], "LASER-VFL": [0.8, 0.7]})) == "PlugVFL"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_plot_has_its_own_background(theme: str) -> None:
    drawn = demo.plot(made_up({"Standard VFL": [0.7, None], "LASER-VFL": [0.9, 0.8]}), "svg", theme).decode()
    assert demo.COLOURS[theme][3] in drawn
    assert drawn == demo.plot(made_up({"Standard VFL": [0.7, None], "LASER-VFL": [0.9, 0.8]}), "svg", theme).decode()
