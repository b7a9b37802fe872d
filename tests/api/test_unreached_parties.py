"""A party that training did not reach is not used in any answer, and training reports it, whatever the cause."""

import numpy as np
import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.config import TrainSettings
from anyparty.methods.split.split_method import UNREACHED
from anyparty.problem.splits import TRAIN
from tests.worlds import Ends

SAID = "training reached no labelled row of 'far', so that predictions ignore it"


def tables(far):
    """Create tables: bank labels 80 rows, shop has all rows, far has the rows that ``far`` selects."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 3))
    ids = np.array([f"c{n:02d}" for n in range(100)])
    bank = pl.DataFrame({"id": ids[:80], "a": x[:80, 0], "y": np.where(x[:80, 0] > 0, "yes", "no")})
    shop = pl.DataFrame({"id": ids, "b": x[:, 1]})
    return {"bank": bank, "shop": shop, "far": pl.DataFrame({"id": ids, "c": x[:, 2]}).filter(far(ids))}


def trained(given, name="laser", **how):
    ends = Ends()
    model = Federation.from_tables(given, label="y").train(name, epochs=2, watch=ends, **how)
    return model, list(ends.reasons.values())


@pytest.mark.parametrize("name", ["laser", "plug", "local"])
def test_a_party_whose_labelled_rows_are_all_held_out_is_reported(name):
    whole = Federation.from_tables(tables(lambda ids: ids == ids), label="y")  # noqa: PLR0124 - all rows
    use = whole.split(TrainSettings(seed=0))
    out = whole.alignment.ids.filter(pl.Series(use != TRAIN)).to_list()
    model, reasons = trained(tables(lambda ids: np.isin(ids, out) | (ids > "c79")), name)
    assert SAID in reasons[-1]
    answers = model.predict(tables(lambda ids: ids > "c89")).frame()
    assert answers.filter(pl.col("parties").str.contains("far")).is_empty()


def test_a_party_that_never_trained_because_of_its_clock_is_reported():
    given = tables(lambda ids: ids > "c20")
    model, reasons = trained(given, schedule="flex", clock={"iteration": {"far": 20.0}, "timeout": 10.0})
    assert SAID in reasons[-1]
    assert set(model.predict({"far": given["far"]}).frame()["reason"]) == {UNREACHED}


@pytest.mark.filterwarnings("ignore:far shares no labelled row")
def test_pseudo_labels_do_not_hide_an_untrained_party():
    _, reasons = trained(tables(lambda ids: ids > "c89"), parameters={"unlabelled": "pseudo"})
    assert len(reasons) == 2
    assert SAID not in reasons[0]


def test_a_trained_party_is_not_reported():
    _, reasons = trained(tables(lambda ids: ids > "c20"))
    assert not any("predictions ignore" in reason for reason in reasons)
