"""An attacker sees the messages that the ledger counts for it, and recording changes nothing."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from anyparty import Federation
from anyparty.methods.method_registry import METHODS
from anyparty.threats.view import ReceivedView, RecordingChannel, recording

SHORT = {name: {"pretrain_epochs": 1} for name in ("fedhssl", "false-vfl-1", "false-vfl-2")}
QUICK = {"epochs": 2, "batch_size": 32, "execution": "protocol", "seed": 3}


def federation(n=120):
    random = np.random.default_rng(4)
    x, y = random.normal(size=(n, 4)), random.integers(2, size=n)
    ids = np.arange(n)
    a = pl.DataFrame({"id": ids, "u": x[:, 0] + y, "v": x[:, 1], "y": y})
    b = pl.DataFrame({"id": ids, "w": x[:, 2] + y, "z": x[:, 3]})
    return Federation.from_tables({"a": a[: n - 10], "b": b[15:]}, label="y", task="classification")


def recorded(name, views, **settings):
    return federation().train(name, parameters=SHORT.get(name), channel=partial(recording, views), **QUICK | settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_view_has_the_messages_that_the_ledger_lists_for_its_party(name):
    views = {party: ReceivedView(me=party, roster=federation().roster) for party in ("a", "b")}
    model = recorded(name, views)
    for party, view in views.items():
        listed = [row for row in model.ledger.rows() if row["receiver"] == party]
        assert view.ledger.rows() == listed
        assert listed or party == "a"


def test_recording_changes_no_bit():
    plain = federation().train("laser", **QUICK)
    watched = recorded("laser", {"b": ReceivedView(me="b", roster=plain.roster)})
    for party, member in plain.members.items():
        for name, module in member.state.modules.items():
            other = watched.members[party].state.modules[name].state_dict()
            assert all(torch.equal(tensor, other[key]) for key, tensor in module.state_dict().items())


def test_only_channels_of_attackers_are_recorded():
    found = []

    def noted(channel):
        found.append(recording({"b": ReceivedView(me="b", roster=federation().roster)}, channel))
        return found[-1]

    federation().train("local", channel=noted, **QUICK)
    assert {channel.me: isinstance(channel, RecordingChannel) for channel in found} == {"a": False, "b": True}


def test_row_values_belong_to_the_rows_of_the_message():
    """The active party's received embeddings are those that the passive party sent, row by row."""
    views = {party: ReceivedView(me=party, roster=federation().roster) for party in ("a", "b")}
    model = recorded("laser", views)
    for party, view in views.items():
        view.rows = model.held_out[0][party]
    for epoch in ("first", "last"):
        (received,) = views["a"].row_values(epoch)
        (sent,) = views["b"].row_values(epoch, sent=True)
        assert (received.tag, received.other, sent.other) == ("embedding", "b", "a")
        assert np.array_equal(received.rows, sent.rows)
        assert np.array_equal(received.values, sent.values)
        assert set(received.rows) <= set(views["b"].held)
    first, last = (views["b"].row_values(epoch)[0] for epoch in ("first", "last"))
    assert first.tag == "gradient"
    assert not np.array_equal(first.values, last.values)
