"""Labels used in training: a host's own labels count even if the active party has none for the row."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from anyparty import Federation
from anyparty.config import Config
from anyparty.core.seeds import Seeds
from anyparty.core.types import Party, Roster
from anyparty.methods.method import hosts_of
from anyparty.methods.method_registry import method
from anyparty.methods.split.local import NOBODY
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.party_view import LeadView
from anyparty.problem.problem import Problem
from anyparty.problem.rows import Rows
from anyparty.problem.splits import ProblemPlan
from anyparty.tables.table import read_table
from anyparty.training import control_messages
from anyparty.training.callbacks import Callback
from anyparty.training.party import set_up_again, share_setup
from anyparty.training.party_run import labelled_at, share_labelled
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from tests import worlds

N = 240
TRAINING = {"epochs": 40, "optimizer": Optimizer(lr=0.01), "keep": "last", "patience": None}


class Planned(Callback):
    def __init__(self):
        self.rows = {}

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        self.rows[stage] = rows


def federation(*, shop=slice(20, N), bank=slice(0, 20), web=slice(0, N)):
    """Create a federation: only the web's columns predict the label; bank and shop have labels of different rows."""
    rng = np.random.default_rng(0)
    z, ids = rng.normal(size=N), [f"u{n}" for n in range(N)]
    y = np.where(z > 0, "yes", "no")

    def known(rows):
        held = np.full(N, None, dtype=object)
        held[rows] = y[rows]
        return pl.Series(held.tolist(), dtype=pl.String)

    frames = {
        "bank": pl.DataFrame({"id": ids, "b": rng.normal(size=N), "y": known(bank)}),
        "shop": pl.DataFrame({"id": ids, "s": rng.normal(size=N), "y": known(shop)}),
        "web": pl.DataFrame({"id": ids, "z": z})[web],
    }
    said = {"federation": {"label": "y", "active": "bank"}, "parties": {"bank": {}, "shop": {"label": "y"}, "web": {}}}
    return Federation.from_config(Config.of(said), frames), frames, y


def test_labels_that_another_host_alone_has_teach_its_head():
    of, frames, y = federation()
    model = of.train("laser", parameters={"hosting": "labelers"}, validation=0.0, **TRAINING)
    lead, shop = model.held_out[0]["bank"], model.held_out[0]["shop"]
    assert (int(lead.labeled.sum()), int(lead.teaching.sum())) == (20, N)
    assert torch.equal(lead.labeled_at["shop"], shop.labeled)
    answered = model.predict(frames)
    by_shop = [answered.task.classes[c] for c in answered.by_party[:, 1].argmax(dim=1).tolist()]
    right = [said == y[int(name[1:])] for said, name in zip(by_shop, answered.ids, strict=True)]
    assert np.mean(right) > 0.9  # inputs are noise and the web's z; only the shop's own labels teach its head


def test_rows_that_the_active_party_holds_out_teach_nobody():
    of, *_ = federation(bank=slice(0, 100), shop=slice(50, 200))
    planned = Planned()
    of.train("laser", parameters={"hosting": "labelers"}, validation=0.2, test=0.3, epochs=1, watch=planned)
    assert planned.rows == {"train": 200 - 20 - 30}


def test_only_hosts_tell_of_their_labels():
    both = Roster((Party(name="a", labels=True), Party(name="b", labels=True), Party(name="c")), "a")
    assert hosts_of(method("laser"), both) == ("a",)
    assert hosts_of(method("laser", hosting="labelers"), both) == ("a", "b")
    assert hosts_of(method("apc"), both) == ("a",)
    of = federation()[0]
    with pytest.warns(match="the labels of party 'shop' are not used"):
        model = of.train("laser", epochs=1)
    assert model.held_out[0]["bank"].labeled_at == {}
    assert "labelled" not in {row["tag"] for row in model.ledger.rows()}


@pytest.mark.parametrize("more", [{}, {"pretrain": "simsiam", "pretrain_epochs": 1}], ids=["", "pretrained"])
def test_a_party_reached_by_another_hosts_rows_alone_is_not_said_to_be_missed(more):
    ends = worlds.Ends()
    of, *_ = federation(web=slice(20, N))
    of.train("laser", parameters={"hosting": "labelers", **more}, epochs=1, watch=ends)
    assert "no labelled row" not in ends.reasons["train"]
    with pytest.warns(match="labels of party 'shop' are not used"):
        of.train("laser", epochs=1, watch=ends)
    assert "no labelled row of 'web'" in ends.reasons["train"]
    of.train("local", parameters={"hosting": "labelers"}, epochs=1, watch=ends)
    assert "no labelled row of 'web'" in ends.reasons["train"]  # the head of 'local' reads only its own party


@pytest.mark.parametrize("name", ["laser", "local"])
def test_a_host_whose_labels_reach_no_training_row_is_named(name):
    ends = worlds.Ends()
    of, frames, _ = federation(shop=slice(0, 0), bank=slice(0, 200))
    model = of.train(name, parameters={"hosting": "labelers"}, epochs=1, watch=ends)
    said = "no training row has a label of 'shop', so that the predictor there is untrained"
    assert ends.reasons["train"] == f"all epochs done; {said}"
    assert set(model.predict({"shop": frames["shop"]}).frame()["reason"]) == {NOBODY}


def test_a_host_that_comes_back_is_heard_out():
    """A returning host sends its labels again; they must be read, or the next ones would be mistaken for them."""
    roster = Roster((Party(name="a", labels=True), Party(name="b", labels=True)), "a")
    made = method("laser", hosting="labelers")
    labeled = torch.tensor([True, False, True])
    table = read_table(pl.DataFrame({"id": [1, 2, 3], "y": ["no", "yes", "no"]}), party="a", id="id", label="y")
    problem = Problem(
        roster=roster, table=table, position=np.arange(3), observed=np.ones((3, 2), dtype=np.bool_),
        plan=ProblemPlan(validation=0.0, test=0.0), seeds=Seeds(0),
    )  # fmt: skip

    async def lead(net):
        await set_up_again(net, made, LeadView.of(problem), "b")
        return await labelled_at(net, "b", 3)

    async def back(net):
        view = await share_setup(net, roster, table, np.arange(3), None)
        assert view.task.classes == ("no", "yes")
        for labels in (labeled, ~labeled):
            await share_labelled(net, made, roster, Rows(n=3, labeled=labels))

    guarded = partial(ContractChannel, roster=roster, declared=control_messages.MESSAGES)
    assert memory.play({"a": lead, "b": back}, guarded)["a"].tolist() == (~labeled).tolist()
