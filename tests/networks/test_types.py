"""Networks and optimizers created in Python accept only values that a settings file could hold."""

import json
from dataclasses import asdict, dataclass, field

import numpy as np
import pytest
from torch import nn

from anyparty.errors import ConfigError
from anyparty.networks.encoders import LSTM, MLP, ResNet
from anyparty.networks.optimizer import Optimizer


@pytest.mark.parametrize(("made", "same"), [
    (Optimizer(lr=np.float32(0.5)), Optimizer(lr=0.5)),
    (Optimizer(schedule="step", milestones=[np.int64(2)]), Optimizer(schedule="step", milestones=(2,))),
    (MLP(hidden=np.array([8, 4]), dropout=np.float32(0.5), norm=np.True_), MLP(hidden=(8, 4), dropout=0.5, norm=True)),
    (LSTM(steps=np.int64(3)), LSTM(steps=3)),
    (ResNet(shape=[np.int64(1), 2, 2]), ResNet(shape=(1, 2, 2))),
])  # fmt: skip
def test_numpys_numbers_and_lists_are_read(made, same):
    assert made == same
    assert hash(made) == hash(same)
    assert json.loads(json.dumps(asdict(made))) == json.loads(json.dumps(asdict(same)))


@pytest.mark.parametrize(("make", "said"), [
    (lambda: Optimizer(lr="fast"), r"optimizer: lr: expected a number, got 'fast'"),
    (lambda: Optimizer(lr=True), r"optimizer: lr: expected a number, got True"),
    (lambda: MLP(hidden=8), r"encoder: hidden: expected a list, got 8"),
    (lambda: MLP(hidden=(8.5,)), r"encoder: hidden\[0\]: expected a whole number, got 8.5"),
    (lambda: MLP(hidden=(True,)), r"encoder: hidden\[0\]: expected a whole number, got True"),
    (lambda: MLP(norm="yes"), r"encoder: norm: expected true or false, got 'yes'"),
    (lambda: LSTM(steps=None), r"lstm: steps: expected a whole number, got None"),
    (lambda: ResNet(shape=(1, 2)), r"resnet: shape\[2\]: expected a value, got \(1, 2\)"),
    (lambda: ResNet(shape=(1, 2, 3, 4)), r"resnet: shape: expected at most 3 of them, got \(1, 2, 3, 4\)"),
])  # fmt: skip
def test_what_is_of_another_type_is_a_sentence(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


@dataclass(frozen=True, kw_only=True)
class Gated(MLP):
    """A user's own network, with fields whose types are not checked."""

    gate: nn.Module = field(default_factory=nn.Sigmoid)
    free: "Nowhere" = None  # noqa: F821


def test_what_a_subclass_adds_is_its_own_matter():
    made = Gated(hidden=np.array([4]), free="any")
    assert made.hidden == (4,)
    assert isinstance(made.gate, nn.Sigmoid)
    with pytest.raises(ConfigError, match=r"encoder: dropout: expected a number, got 'much'"):
        Gated(dropout="much")
