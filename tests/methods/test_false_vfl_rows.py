"""FALSE-VFL only uses parties in answers if shared rows connect their columns with labels in training."""

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.methods.false_vfl.false_vfl import UNTIED
from anyparty.networks.heads import shared, untied
from tests.worlds import Ends

SMALL = {"embedding": 4, "top": 2, "hidden": (8,), "head_hidden": (8,), "samples": 3, "predict_samples": 6}


def tables(link):
    """Create tables in which bank and shop share rows; with ``link``, far shares unlabelled rows with shop."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 3))
    ids = np.array([f"c{n:02d}" for n in range(90)])
    bank = pl.DataFrame({"id": ids[:40], "a": x[:40, 0], "y": np.where(x[:40, 0] > 0, "yes", "no")})
    shop = pl.DataFrame({"id": ids[10:60], "b": x[10:60, 1]})
    far = pl.DataFrame({"id": ids[45 if link else 60 :], "c": x[45 if link else 60 :, 2]})
    return {"bank": bank, "shop": shop, "far": far}


@pytest.mark.parametrize("name", ["false-vfl-1", "false-vfl-2"])
@pytest.mark.filterwarnings("ignore:far shares no row")
def test_a_party_without_shared_rows_gives_no_predictions(name, tmp_path):
    given, ends = tables(link=False), Ends()
    trained = Federation.from_tables(given, label="y").train(name, parameters=SMALL, epochs=2, test=0.0, watch=ends)
    assert (
        "no shared rows connect the block of 'far' to a label, so that predictions ignore it" in ends.reasons["train"]
    )
    trained.save(tmp_path)
    for model in (trained, Model.load(tmp_path)):
        frame = model.predict(given).frame()
        lone = pl.col("id").is_in(given["far"]["id"].implode())
        assert set(frame.filter(lone)["reason"]) == {UNTIED}
        assert frame.filter(lone)["prediction"].null_count() == 30
        assert frame.filter(~lone)["prediction"].null_count() == 0
        both = {"bank": given["bank"], "far": given["far"][:5].with_columns(id=given["bank"]["id"][:5])}
        with_far, without = model.predict(both).frame(), model.predict({"bank": given["bank"]}).frame()
        assert set(with_far["parties"]) == {"bank"}
        if name == "false-vfl-1":  # under MNAR, that far lacks a row is information, unless far is not asked
            assert with_far["p(yes)"].to_list() == pytest.approx(without["p(yes)"].to_list(), abs=1e-6)


def test_labels_reach_a_party_through_another_one():
    given, ends = tables(link=True), Ends()
    model = Federation.from_tables(given, label="y").train(
        "false-vfl-1", parameters=SMALL, epochs=2, test=0.0, watch=ends
    )
    assert "no shared rows connect" not in ends.reasons["train"]
    assert model.predict({"far": given["far"]}).answered.all()


def test_parties_without_a_path_to_labels_are_found():
    observed = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    first, none = torch.tensor([True, False, False, False]), torch.zeros(4, dtype=torch.bool)
    assert untied(shared(observed), first) == [3]
    assert untied(shared(observed[[0, 2]]), first) == [2, 3]
    assert untied(shared(observed), none) == []
