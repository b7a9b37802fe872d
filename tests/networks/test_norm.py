"""Batch normalisation works with batches in which a party has one row."""

import pytest
import torch
from torch import nn

from anyparty.methods.method_registry import method
from anyparty.networks.encoders import ResNet, build
from anyparty.networks.modules import bear_single_rows
from tests import worlds
from tests.worlds import world


def normalised(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def test_one_row_is_normalised_by_what_is_known_so_far():
    torch.manual_seed(0)
    made = build(normalised, 3, 2)
    norm = made[1]
    made(torch.randn(50, 3))
    mean, count, x = norm.running_mean.clone(), norm.num_batches_tracked.item(), torch.randn(1, 3)
    trained = made(x)
    assert norm.training
    assert torch.equal(norm.running_mean, mean)
    assert norm.num_batches_tracked.item() == count
    assert torch.equal(trained, made.eval()(x))
    assert not norm.training
    made.train()(torch.randn(2, 3))
    assert not torch.equal(norm.running_mean, mean)


def test_one_image_has_statistics_of_its_own():
    layer = bear_single_rows(nn.BatchNorm2d(3))
    layer(torch.randn(1, 3, 4, 4) + 5)
    assert layer.num_batches_tracked == 1
    assert layer.running_mean.min() > 0.3


def test_an_error_on_the_way_leaves_it_training():
    norm = build(normalised, 3, 2)[1]
    with pytest.raises(RuntimeError):
        norm(torch.randn(1, 8, dtype=torch.float16).to("meta"))
    assert norm.training


@pytest.mark.parametrize("name", ["laser", "standard", "false-vfl-1", "apc"])
@pytest.mark.parametrize("encoder", [normalised, ResNet(shape=(1, 3, 3), widths=(4, 4), depths=(1, 1))])
def test_methods_train_where_a_batch_has_one_row_of_a_party(name, encoder):
    """With 33 rows in batches of 8, the last batch has one row."""
    of = world(K=2, N=33, d=9, observed=torch.ones(33, 2, dtype=torch.bool))
    made = method(name, embedding=4)
    trained = worlds.train(made, of, epochs=2, batch_size=8, encoder=encoder)
    assert worlds.predict(made, of, worlds.states_of(trained)).answered.all()
