"""Settings that are drafted from tables."""

import tomllib
from pathlib import Path

import polars as pl
import pytest

from anyparty import Federation, config
from anyparty.config.draft import REST, draft_settings, parties_of
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
    draft = tomllib.loads(REST)
    settings = config.from_values(
        {"federation": {"label": "y"}, "parties": {"a": {"table": "a.csv"}}, "method": draft["method"]},
        source="draft",
        folder=Path(),
    ).model_dump(mode="json", exclude_none=True)
    for group in ("encoder", "optimizer", "train"):
        assert draft[group] == {key: settings[group][key] for key in draft[group]}, group


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


def test_names_of_parties_come_from_files() -> None:
    assert list(parties_of(["a/bank.csv.gz", "my shop=b/2024.csv"])) == ["bank", "my shop"]
    with pytest.raises(ConfigError, match="already belongs to party 'bank'"):
        parties_of(["a/bank.csv", "b/bank.csv"])
    with pytest.raises(ConfigError, match="expected a table's file"):
        parties_of(["bank="])
