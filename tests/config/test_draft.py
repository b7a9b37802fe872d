"""Settings that are drafted from tables."""

import tomllib
from pathlib import Path

import polars as pl
import pytest

from anyparty import Federation, config
from anyparty.config.draft import REST, draft_settings, ids_by_party, parties_of
from anyparty.errors import ConfigError, TableError
from tests.conftest import write_tables


def test_the_written_file_is_read_and_federates(tmp_path: Path) -> None:
    write_tables(tmp_path)
    files = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}
    draft = draft_settings(files)
    (tmp_path / "new").mkdir()
    path = tmp_path / "new" / "settings.toml"
    path.write_text(draft.to_toml(path.parent), encoding="utf-8")
    settings = config.load(path)
    assert (settings.federation.id, settings.federation.label, settings.federation.active) == (
        "customer", "default", "bank",
    )  # fmt: skip
    assert len(Federation.from_config(settings).tables["bank"]) == 100


def test_a_draft_trains_with_the_defaults() -> None:
    of = {"federation": {"label": "y"}, "parties": {"a": {"table": "a.csv"}}}
    plain, draft = (
        config.from_values(of | values, source="draft", folder=Path()).with_method_defaults()
        for values in ({}, tomllib.loads(REST))
    )
    assert draft == plain
    assert f"# epochs = {plain.train.epochs} " in REST


def test_tables_with_different_names_of_ids(tmp_path: Path) -> None:
    write_tables(tmp_path)
    shop = tmp_path / "shop.csv"
    pl.read_csv(shop).rename({"customer": "client no."}).write_csv(shop)
    draft = draft_settings({"the bank": tmp_path / "bank.csv", "shop": shop}, label="default")
    path = tmp_path / "settings.toml"
    path.write_text(draft.to_toml(tmp_path), encoding="utf-8")
    parties = config.load(path).parties
    assert {name: party.id for name, party in parties.items()} == {"the bank": "customer", "shop": "client no."}
    assert config.from_values(draft.values(), source="draft", folder=tmp_path).parties == parties


def test_wrong_columns_are_named_with_their_file(tmp_path: Path) -> None:
    write_tables(tmp_path)
    files = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}
    with pytest.raises(TableError, match=r"bank\.csv: there is no column 'custmer'; did you mean 'customer'"):
        draft_settings(files, id="custmer")
    with pytest.raises(TableError, match=r"no table has the label column 'defalt'; did you mean 'default'"):
        draft_settings(files, label="defalt")
    with pytest.raises(ConfigError, match=r"the tables of 'bank', 'shop' have a column 'customer'"):
        draft_settings(files, label="customer")


def test_ids_may_have_another_name_in_each_table(tmp_path: Path) -> None:
    write_tables(tmp_path)
    shop = tmp_path / "shop.csv"
    pl.read_csv(shop).rename({"customer": "client"}).write_csv(shop)
    files = {"bank": tmp_path / "bank.csv", "shop": shop}
    draft = draft_settings(files, id={"bank": "customer", "shop": "client"}, label="default")
    assert draft.values()["parties"]["shop"]["id"] == "client"
    with pytest.raises(
        TableError, match=r"shop\.csv: there is no column 'customer'.*--id bank=COLUMN --id shop=COLUMN"
    ):
        draft_settings(files, id="customer", label="default")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bank=a", "shop=b"], {"bank": "a", "shop": "b"}),
        (["bank = a", "shop=b=c"], {"bank": "a", "shop": "b=c"}),
        (["a"], "a"),
        ([], None),
    ],
)
def test_options_for_ids(words: list[str], expected: object) -> None:
    assert ids_by_party(words, ["bank", "shop"]) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bnk=a", "shop=b"], "--id bnk=a: there is no party 'bnk'; did you mean 'bank'"),
        (["bank=a"], "--id: no column for party 'shop'; name one for each party: --id bank=COLUMN --id shop=COLUMN"),
        (["a", "b"], "--id a: write --id COLUMN once for all tables, or once for each party, --id bank=COLUMN"),
        (["bank=a", "bank=b"], "--id bank=b: write --id COLUMN once"),
        (["bank=", "shop=b"], "--id bank=: write --id COLUMN once"),
    ],
)
def test_wrong_options_for_ids(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ids_by_party(words, ["bank", "shop"])


def test_a_table_without_rows_is_reported_as_such(tmp_path: Path) -> None:
    write_tables(tmp_path)
    files = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}
    files["shop"].write_text("customer,visits\n")
    for ids in (None, "customer"):
        with pytest.raises(
            TableError, match=r"party 'shop', .*shop\.csv: there are no rows; at least one was expected"
        ):
            draft_settings(files, id=ids, label="default")


def test_names_of_parties_come_from_files() -> None:
    assert list(parties_of(["a/bank.csv.gz", "my shop=b/2024.csv"])) == ["bank", "my shop"]
    for second in ("a/bank.csv", "./a/bank.csv", "shop=a/bank.csv"):
        with pytest.raises(ConfigError, match=r"bank\.csv: this file is given twice; give each party's table once"):
            parties_of(["a/bank.csv", second])
    with pytest.raises(ConfigError, match="already belongs to party 'bank'"):
        parties_of(["a/bank.csv", "b/bank.csv"])
    with pytest.raises(ConfigError, match="expected a table's file"):
        parties_of(["bank="])
