"""Error messages name the real reason."""

import re

import polars as pl
import pytest
import torch

from anyparty import Federation
from anyparty.alignment.alignment import hint
from anyparty.errors import ConfigError, TableError, nearest
from anyparty.training.loop import device_of

IDS = [f"c{row}" for row in range(60)]
BANK = pl.DataFrame(
    {"id": IDS, "a0": range(60), "a2": [row % 7 for row in range(60)], "y": [row % 2 for row in range(60)]}
)
SHOP = pl.DataFrame({"id": IDS, "w": [row % 5 for row in range(60)]})


@pytest.fixture(scope="module")
def model():
    return Federation.from_tables({"bank": BANK, "shop": SHOP}, label="y").train("laser", epochs=1, seed=1)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"a0": "A0"}, "did you mean 'A0'?"),  # not 'a2', which the model uses already
        ({"a2": "A2"}, "did you mean 'A2'?"),
        ({"a0": "a 0"}, "did you mean 'a 0'?"),
        ({"a0": "zzz"}, "its other columns are: id, y, zzz"),
    ],
)
def test_a_missing_column_suggests_an_unused_one(model, new, said):
    with pytest.raises(TableError, match=re.escape(said)):
        model.predict({"bank": BANK.rename(new), "shop": SHOP})


def test_suggestions_prefer_names_that_differ_only_in_case():
    assert nearest("A1x", ["a1y", "a1X"]) == "; did you mean 'a1X'?"


@pytest.mark.parametrize("name", ["mps", "xpu", "hpu", "vulkan"])
def test_the_error_about_an_unavailable_device_is_short(name):
    if name == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has it")
    with pytest.raises(ConfigError) as caught:
        device_of(name)
    assert "'cpu'" in str(caught.value)
    assert len(str(caught.value)) < 200
    assert "Facebook" not in str(caught.value)


@pytest.mark.parametrize("zone", [" UTC", "Z", "+00:00", "+0100"])
def test_ids_with_a_time_zone_at_one_party_cause_a_hint(zone):
    days = [f"2024-01-{day:02d} 01:00:00" for day in range(1, 9)]
    said = hint([pl.Series([day + zone for day in days]), pl.Series(days)])
    assert "time zone" in said
    assert "time zone" not in hint([pl.Series(days), pl.Series(["c1", "c2"])])


def test_midnight_with_a_time_zone_is_compared_with_a_date():
    assert "time zone" in hint([pl.Series(["2024-01-01 00:00:00 UTC"]), pl.Series(["2024-01-01"])])
