"""A row's random numbers in training do not depend on the batch's other rows, nor on what a host knows."""

import pytest
import torch
from torch import nn

from anyparty.core.seeds import Seeds
from anyparty.methods.method import Batch
from anyparty.methods.method_registry import method
from anyparty.methods.split import laser
from anyparty.methods.split.laser import order_of
from anyparty.networks.encoders import MLP, build
from anyparty.networks.modules import RowDropout, draw_by_row, swap_dropout
from tests import worlds
from tests.worlds import world

ROWS = torch.tensor([7, 2, 40, 11, 3])


def orders_of_a_step(monkeypatch, labeled):
    """Return LASER-VFL's orders of all 24 rows at the active party, in a step in which it knows some labels."""
    of, seen = world(N=24, labeled=labeled), []
    made = method("laser", embedding=5)
    monkeypatch.setattr(laser, "order_of", lambda *given: seen.append(order_of(*given)) or seen[-1])
    worlds.step(made, of, worlds.begin(made, of), of.places())
    monkeypatch.undo()
    return seen[0]


def test_a_host_that_knows_few_labels_draws_the_same_orders(monkeypatch):
    few, every = torch.arange(24) % 2 == 1, torch.ones(24, dtype=torch.bool)
    assert torch.equal(orders_of_a_step(monkeypatch, few)[few], orders_of_a_step(monkeypatch, every)[few])


@pytest.mark.parametrize("name", ["laser", "plug"])
def test_unlabelled_rows_of_a_batch_change_no_draw_of_the_others(name):
    """The gradients of a batch are those of its labelled rows, drawn in any company; LASER-VFL divides by all rows."""
    labeled = torch.arange(24) % 3 != 1
    of, made = world(N=24, labeled=labeled), method(name, embedding=5)
    found = []
    for rows in (of.places()[labeled], of.places()):
        states = worlds.begin(made, of, encoder=MLP(hidden=(7,), dropout=0.4))
        worlds.step(made, of, states, rows)
        found.append(worlds.gradients(states))
    share = labeled.float().mean().item() if name == "laser" else 1.0
    for key, gradient in found[0].items():
        assert torch.allclose(gradient * share, found[1][key], atol=1e-6), key


class TestDropout:
    def drop(self, module, rows, key=5, width=6):
        with draw_by_row(module, key, rows):
            return module(torch.ones(len(rows), width))

    def test_a_row_has_the_same_mask_in_any_company(self):
        layer = swap_dropout(nn.Sequential(nn.Dropout(0.5)))
        whole = self.drop(layer, torch.arange(50))
        assert torch.equal(self.drop(layer, ROWS), whole[ROWS])
        assert not torch.equal(self.drop(layer, ROWS, key=6), whole[ROWS])

    def test_share_and_scale(self):
        made = self.drop(swap_dropout(nn.Sequential(nn.Dropout(0.3))), torch.arange(5000))
        assert made.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
        assert (made == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)

    def test_layers_and_calls_of_a_layer_have_numbers_of_their_own(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.other = nn.Dropout(0.5), nn.Dropout(0.5)

            def forward(self, x):
                return torch.stack([self.one(x), self.one(x), self.other(x)])

        one, again, other = self.drop(swap_dropout(Twice()), torch.arange(20))
        assert not torch.equal(one, again)
        assert not torch.equal(one, other)
        assert not torch.equal(again, other)

    def test_a_layer_with_two_names_is_replaced_under_both(self):
        drop = nn.Dropout(0.5)
        network = swap_dropout(nn.Sequential(drop, nn.Sequential(nn.Identity(), drop), drop))
        assert isinstance(network[0], RowDropout)
        assert network[0] is network[1][1] is network[2]

    def test_dropout_of_all_entries_has_a_gradient_of_zero(self):
        x = torch.ones(5, 4, requires_grad=True)
        made = swap_dropout(nn.Sequential(nn.Dropout(1.0)))(x)
        made.sum().backward()
        assert torch.equal(made, torch.zeros(5, 4))
        assert torch.equal(x.grad, torch.zeros(5, 4))

    def test_channels_are_dropped_as_a_whole(self):
        layer = swap_dropout(nn.Dropout2d(0.5))
        with draw_by_row(layer, 5, ROWS):
            made = layer(torch.ones(5, 8, 3, 3))
        assert (made == made[:, :, :1, :1]).all()
        assert 0 < (made == 0).float().mean() < 1

    def test_without_rows_the_numbers_come_from_the_private_stream(self):
        layer = swap_dropout(nn.Sequential(nn.Dropout(0.5)))
        for rows in (None, torch.arange(3)):  # none given, or the first axis is not that of rows
            with Seeds(1).drawing("a"):
                one = layer(torch.ones(9, 4)) if rows is None else self.wrong(layer, rows)
            with Seeds(1).drawing("a"):
                assert torch.equal(layer(torch.ones(9, 4)), one)

    def wrong(self, layer, rows):
        with draw_by_row(layer, 5, rows):
            return layer(torch.ones(9, 4))

    def test_in_evaluation_nothing_is_dropped(self):
        layer = swap_dropout(nn.Sequential(nn.Dropout(0.5))).train(False)
        assert torch.equal(self.drop(layer, ROWS), torch.ones(5, 6))

    @pytest.mark.parametrize("dropout", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
    def test_a_users_encoder_has_them_too(self, dropout):
        module = build(lambda i, o: nn.Sequential(nn.Linear(i, o), nn.Sequential(nn.Dropout(0.2))), 3, 4)
        assert sum(isinstance(layer, RowDropout) for layer in module.modules()) == 1
        assert isinstance(swap_dropout(dropout(0.2))[0], RowDropout)

    def test_the_key_of_a_party_depends_on_its_secret(self):
        shared, secret = (Batch(ROWS, Seeds(3, given), ("train", 0, 0)) for given in (b"", bytes(32)))
        assert shared.key("order") == secret.key("order")
        assert shared.own_key("encoder draws", "a") != secret.own_key("encoder draws", "a")
