"""`anyparty init`, and training without a settings file."""

from pathlib import Path

import polars as pl
import pytest

from anyparty import config
from tests.conftest import Call, write_tables


@pytest.fixture(autouse=True)
def _tables_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_init_finds_the_tables_and_writes_settings_once(call: Call) -> None:
    shown = call("init")
    assert shown.exit_code == 0, shown.output
    assert "anyparty train settings.toml" in shown.output
    assert config.load("settings.toml").federation.label == "default"
    again = call("init")
    assert again.exit_code == 2
    assert "settings.toml exists and is not overwritten" in again.output


def test_init_asks_in_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["bank.csv shop.csv", "customer", "town"])
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    from anyparty.cli.init import init  # noqa: PLC0415

    init(out=Path("asked.toml"))
    federation = config.load("asked.toml").federation
    assert (federation.label, federation.active) == ("town", "shop")


def test_train_works_without_a_settings_file(call: Call) -> None:
    trained = call("train", "bank.csv", "shop.csv", "--label", "default", "--set", "train.epochs=1", "-q")
    assert trained.exit_code == 0, trained.output
    settings = config.load("runs/bank-shop-sum-seed0/config.toml")
    assert settings.federation.id == "customer"
    assert settings.federation.active == "bank"
    assert call("evaluate", "runs/bank-shop-sum-seed0").exit_code == 0


def test_train_prints_the_columns_of_ids_that_it_found(call: Call) -> None:
    pl.read_csv("shop.csv").rename({"customer": "client"}).write_csv("shop.csv")
    trained = call("train", "bank.csv", "shop.csv", "--label", "default", "--set", "train.epochs=1")
    assert "ids: customer (bank), client (shop)" in trained.output
    assert "ids:" not in call("train", "runs/bank-shop-sum-seed0/config.toml", "--run", "second").output


@pytest.mark.filterwarnings("ignore:the ids of .* are numbers in the order")
def test_ids_with_other_names_are_given_by_party(call: Call) -> None:
    """The names of the columns and their cells differ so much that no search finds them."""
    pl.read_csv("bank.csv").with_columns(customer=pl.lit(0)).with_row_index("row").write_csv("bank.csv")
    pl.read_csv("shop.csv").drop("customer").with_row_index("n", offset=10_000).write_csv("shop.csv")
    found = call("init", "bank.csv", "shop.csv")
    assert "name it: --id COLUMN, or, if the names differ, --id bank=COLUMN --id shop=COLUMN" in found.output
    ids = ("--id", "bank=row", "--id", "shop=n")
    assert call("init", "bank.csv", "shop.csv", *ids, "--label", "default").exit_code == 0
    parties = config.load("settings.toml").parties
    assert {name: party.id for name, party in parties.items()} == {"bank": "row", "shop": "n"}
    pl.read_csv("shop.csv").with_columns(n=pl.int_range(pl.len())).write_csv("shop.csv")
    words = ("bank.csv", "shop.csv", *ids, "--label", "default", "--set", "train.epochs=1")
    trained = call("train", *words)
    assert "ids: row (bank), n (shop)" in trained.output
    assert trained.exit_code == 0, trained.output


def test_a_run_in_the_folder_is_reported_before_tables_are_read(call: Call) -> None:
    words = ("train", "bank.csv", "shop.csv", "--id", "customer", "--label", "default", "--set", "train.epochs=1", "-q")
    assert call(*words).exit_code == 0
    Path("shop.csv").write_text("customer,visits\nc001,no number\nc001,\n")  # reading it would stop
    again = call("train", "runs/bank-shop-sum-seed0/config.toml", "--run", "runs/bank-shop-sum-seed0")
    assert again.exit_code == 2
    again = call("train", "bank.csv", "shop.csv", "--id", "customer", "--label", "default", "-q")
    assert "runs/bank-shop-sum-seed0 holds a run already: resume it" in " ".join(again.output.split())


def test_rows_for_training_are_selected_without_a_settings_file(call: Call) -> None:
    words = ("train", "bank.csv", "shop.csv", "--label", "default", "--set", "train.epochs=1", "-q")
    trained = call(*words, "--set", "train.rows=all")
    assert trained.exit_code == 0, trained.output
    assert config.load("runs/bank-shop-sum-seed0/config.toml").train.rows == "all"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bank.csv", "shop.csv"), "name the column to predict: --label COLUMN"),
        (("bank.csv", "shop.csv", "--label", "defalt"), "did you mean 'default'?"),
        (("s.toml", "shop.csv"), "give one settings file, or only tables"),
        (("s.toml", "--label", "default"), "--set federation.id=COLUMN"),
        (("nothing",), "no such settings file"),
    ],
)
def test_invalid_arguments_are_refused(call: Call, words: tuple[str, ...], message: str) -> None:
    shown = call("train", *words)
    assert shown.exit_code == 2
    assert message in shown.output
