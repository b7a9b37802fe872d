"""Networks and optimizers created in Python accept only values that a settings file could hold."""

import json
from dataclasses import asdict, dataclass, field
from functools import partial

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


WRONG = (
    (Optimizer, {"lr": "fast"}), (Optimizer, {"lr": True}), (MLP, {"hidden": 8}), (MLP, {"hidden": (8.5,)}),
    (MLP, {"hidden": (True,)}), (MLP, {"norm": "yes"}), (LSTM, {"steps": None}), (ResNet, {"shape": (1, 2)}),
    (ResNet, {"shape": (1, 2, 3, 4)}),
)  # fmt: skip


def test_what_is_of_another_type_is_a_sentence(sentences):
    sentences.check("networks", {f"{of.__name__}: {given}": partial(of, **given) for of, given in WRONG})


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
