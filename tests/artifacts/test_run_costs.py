"""A run's record holds its costs: the ledger by pair and tag, and the paper's formulas for this run."""

import json

import polars as pl
import pytest

from anyparty.api.federation import Federation
from anyparty.transport.ledger import Exchange, Flow, Ledger, Tally


def tables(n=60):
    """Create tables: two parties share 40 rows, with three and two columns; a third party shares 10 of them."""
    ids = [f"n{i:02d}" for i in range(n)]
    x = [i % 7 - 3 for i in range(n)]
    bank = pl.DataFrame({"id": ids, "a": x, "b": [v * v for v in x], "c": [v % 3 for v in x],
                         "bad": ["yes" if v > 0 else "no" for v in x]})  # fmt: skip
    shop = pl.DataFrame({"id": ids[20:], "d": x[20:], "e": [v + i % 2 for i, v in enumerate(x[20:])]})
    return {"bank": bank, "shop": shop, "town": pl.DataFrame({"id": ids[50:], "f": x[50:]})}


def train(method, names=("bank", "shop", "town"), folder=None, **settings):
    federation = Federation.from_tables({name: tables()[name] for name in names}, label="bad")
    parameters = {"embedding": 4} | ({"passive_embedding": 5} if method == "apc" else {}) | settings.pop("more", {})
    return federation.train(method, parameters=parameters, folder=folder, batch_size=8,
                            **{"epochs": 3, "test": 0.0, "validation": 0.0} | settings)  # fmt: skip


def test_apc_costs_follow_equation_6_for_each_passive_party(tmp_path):
    model = train("apc", folder=tmp_path / "run", test=0.25)
    use = json.loads((tmp_path / "run" / "record.json").read_text())["costs"]
    assert use == model.costs
    assert [stage for stage, of in {each["stage"]: each for each in model.history}.items() if "loss" not in of] == [
        "share", "teach"
    ]  # fmt: skip
    by = {each["party"]: each for each in model.costs["published"]}
    sent = {each["other"]: each for each in model.costs["sent"]}
    assert by.keys() == sent.keys() == {"shop", "town"}
    for name, most in (("shop", 40), ("town", 10)):
        assert (by[name]["equation"], by[name]["rounds"]) == ("(6)", 1)
        assert by[name]["bytes_sent"] == sent[name]["bytes_sent"]
        assert 0 < by[name]["bytes_sent"] < most * 5 * 4  # test rows are not sent
        assert (sent[name]["tag"], sent[name]["rounds"], sent[name]["messages"]) == ("representation", 1, 1)


def test_split_learning_costs_follow_equation_9(tmp_path):
    model = train("standard", ("bank", "shop"))
    (by,) = model.costs["published"]
    last = sum(p.numel() for p in list(model.members["shop"].state.modules["encoder"].parameters())[-2:])
    assert (by["equation"], by["rounds"]) == ("(9)", 2 * 3 * 5)  # 3 epochs of 5 batches of 8 rows, in both directions
    assert by["bytes_sent"] == 3 * 40 * 4 * 4 + 3 * 5 * last * 4
    sent = {each["tag"]: each for each in model.costs["sent"]}
    assert sum(each["rounds"] for each in sent.values()) == by["rounds"]
    assert sent["embedding"]["bytes_sent"] == sent["gradient"]["bytes_sent"] == 3 * 40 * 4 * 4


def test_vfedtrans_costs_follow_equation_10(tmp_path):
    model = train("vfedtrans")
    by = {each["party"]: each for each in model.costs["published"]}
    assert by["shop"]["bytes_sent"] == 4 * (2 * 40**2 + 3 * 5 + 2 * 5 + 40 * 3 + 40 * 2 + 40 * 5)
    assert by["town"]["bytes_sent"] == 4 * (2 * 10**2 + 3 * 4 + 1 * 4 + 10 * 3 + 10 * 1 + 10 * 4)
    assert {each["equation"] for each in by.values()} == {"(10)"}


@pytest.mark.parametrize("how", [{"method": "ensemble"}, {"method": "standard", "schedule": "flex"}])
def test_schedules_have_no_published_formula_but_count_messages(how):
    """(9) applies to Ensemble, whose parties exchange embeddings, but not to local iterations of a schedule."""
    model = train(names=("bank", "shop"), **how)
    assert bool(model.costs["published"]) == (how["method"] == "ensemble")
    assert {each["tag"] for each in model.costs["sent"]} >= {"embedding"}


def test_pseudo_labels_have_no_published_formula():
    """Equation (9) covers one stage of labelled rows, so it would be far below what both stages sent."""
    model = train("laser", more={"unlabelled": "pseudo", "unlabelled_epochs": 3})
    assert model.costs["published"] == []
    assert {each["tag"] for each in model.costs["sent"]} >= {"embedding", "gradient"}


def test_rounds_are_counted_per_direction():
    ledger = Ledger({Flow("a", "b", "up"): Tally(3, 30), Flow("b", "a", "down"): Tally(3, 60),
                     Flow("b", "a", "both"): Tally(2, 8), Flow("a", "b", "both"): Tally(1, 4)})  # fmt: skip
    assert ledger.exchanges() == [
        Exchange("a", "b", "both", 2, 3, 12), Exchange("a", "b", "down", 3, 3, 60), Exchange("a", "b", "up", 3, 3, 30),
    ]  # fmt: skip
