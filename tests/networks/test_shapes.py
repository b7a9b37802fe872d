"""Encoders for images and series: their inputs and outputs, and their description as data."""

import json

import pytest
import torch

from anyparty.errors import ConfigError
from anyparty.networks.encoders import ENCODERS, LSTM, MLP, ResNet, describe, restore
from anyparty.networks.table_encoder import TableEncoder

EXAMPLES = {
    "mlp": (MLP(hidden=(4, 3), activation="elu", dropout=0.1, norm=True), 6),
    "resnet": (ResNet(shape=(2, 6, 5), widths=(4, 6), depths=(1, 2)), 60),
    "lstm": (LSTM(steps=4, hidden=5), 12),
    "table": (TableEncoder(units=5, bins=4, drop=0.1), 6),
}


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_from_a_flat_block_to_embeddings(kind):
    encoder, inputs = EXAMPLES[kind]
    assert encoder(inputs, 7)(torch.randn(3, inputs)).shape == (3, 7)


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_there_and_back_as_json(kind):
    encoder, _ = EXAMPLES[kind]
    assert restore(json.loads(json.dumps(describe(encoder)))) == encoder


def test_a_users_own_cannot_be_told_as_data():
    assert describe(torch.nn.Linear) is None


def test_a_series_is_read_in_order():
    """Steps are consecutive parts of the block: changing or swapping them changes the output."""
    torch.manual_seed(0)
    net = LSTM(steps=3, hidden=4)(6, 2)
    x = torch.randn(1, 6)
    other = x.clone()
    other[0, 4:] += 1
    swapped = x[:, [4, 5, 2, 3, 0, 1]]
    assert not torch.allclose(net(x), net(other))
    assert not torch.allclose(net(x), net(swapped))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LSTM(steps=0), "lstm: steps: expected at least 1, got 0"),
        (lambda: LSTM(steps=4)(10, 2), "width 10 does not hold 4 steps"),
        (lambda: ResNet(shape=(1, 4, 4), widths=(4,), depths=(1, 1)), "expected a width for every depth"),
        (lambda: ResNet(shape=(1, 4, 4))(15, 2), "have 16 numbers, the block 15"),
    ],
)
def test_refuses(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()
