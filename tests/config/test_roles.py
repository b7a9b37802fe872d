"""Candidates for ids and labels."""

import numpy as np
import polars as pl

from anyparty.config import draft

ids = [f"c{n:03d}" for n in range(40)]
late = ["no", "yes"] * 20
bank = pl.DataFrame({"customer": ids, "account": range(40), "income": np.linspace(0, 1, 40), "late": late})
shop = pl.DataFrame({"row": range(100, 130), "Kunde": ids[10:], "town": ["Ulm", "Bonn", "Kiel"] * 10})


def test_ids_are_found_by_their_cells_even_with_other_names() -> None:
    found = draft.find_roles({"bank": bank, "shop": shop})
    assert found.ids[0] == {"bank": "customer", "shop": "Kunde"}
    assert found.shared[0] == 1.0


def test_labels_are_columns_with_few_values_and_ids_are_not_among_them() -> None:
    found = draft.find_roles({"bank": bank, "shop": shop})
    assert [(each.party, each.column) for each in found.labels] == [("bank", "late"), ("shop", "town")]


def test_decimals_are_not_ids() -> None:
    assert all("income" not in columns.values() for columns in draft.find_roles({"bank": bank, "shop": shop}).ids)
    text = bank.with_columns(pl.col("income").cast(pl.String))
    assert all("income" not in columns.values() for columns in draft.find_roles({"bank": text, "shop": text}).ids)


def test_tables_without_common_ids_have_no_candidate() -> None:
    assert not draft.find_roles({"bank": bank.drop("account"), "shop": shop.drop("Kunde")}).ids
