"""Encoders and mechanisms of the project pass their checks, and each classic mistake in one fails with a sentence."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from anyparty.data.missingness import MECHANISMS, MNAR, DrawnMask, ScarceLabels, independent, stream
from anyparty.errors import ConfigError
from anyparty.networks.encoders import LSTM, MLP, ResNet
from anyparty.networks.table_encoder import TableEncoder
from anyparty.testing import check, check_encoder, check_mechanism, check_method


@pytest.mark.parametrize(
    "encoder",
    [MLP(), MLP(norm=True, dropout=0.3), LSTM(steps=3, hidden=4), TableEncoder(units=8),
     ResNet(shape=(3, 2, 2), widths=(4, 4), depths=(1, 1)), nn.Linear],
    ids=repr,
)  # fmt: skip
def test_encoders_of_the_project_pass(encoder):
    check_encoder(encoder)


class Plain(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.layer(x)


class BatchStatistics(Plain):
    def forward(self, x):
        return self.layer(x - x.mean(dim=0))


class RandomPrediction(Plain):
    def forward(self, x):
        return nn.functional.dropout(self.layer(x), 0.5)


class OwnGenerator(Plain):
    def forward(self, x):
        if not self.training:
            return self.layer(x)
        noise = torch.from_numpy(np.random.default_rng().normal(size=x.shape)).float()
        return self.layer(x + noise)


class Unregistered(Plain):
    """A list of layers is neither trained nor saved."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.layers = [nn.Linear(outputs, outputs)]

    def forward(self, x):
        return self.layers[0](self.layer(x))


class Unused(Plain):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.second = nn.Linear(inputs, outputs)


class Detached(Plain):
    def forward(self, x):
        return self.layer(x).detach()


class DeviceFixed(Plain):
    def forward(self, x):
        return self.layer(x) + torch.ones(1, device="cpu").expand(len(x), 1)


class Constant(Plain):
    def forward(self, x):
        return self.layer(torch.zeros_like(x))


class Squeezed(Plain):
    def forward(self, x):
        return self.layer(x).squeeze(0)


class DoublePrecision(Plain):
    def forward(self, x):
        return self.layer(x).double()


class Root(Plain):
    def forward(self, x):
        return self.layer(x) + torch.where(x > 9, (self.layer.weight.sum() * 0 * x).sqrt(), 0.0).sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (BatchStatistics, "BatchStatistics, encoder: in prediction, the embedding of a row changes if other rows are"),
        (RandomPrediction, "two predictions of the same rows differ: draw random numbers in training alone"),
        (OwnGenerator, "two training steps with the same seed differ: draw random numbers with torch"),
        (
            Unregistered,
            "a new encoder with the saved weights gives other embeddings: hold every weight as nn.Parameter",
        ),
        (Unused, "no gradient reaches the parameter 'second.weight': use it in forward without detach"),
        (Detached, "its encoder gives no gradient"),
        (DeviceFixed, "it cannot compute on another device .*: make tensors on x.device"),
        (Constant, "the embedding does not depend on the columns: compute it from the argument of forward"),
        (Squeezed, r"its encoder should give \[1, 5\], it gives \[5\]"),
        (DoublePrecision, "its encoder should give torch.float32, it gives torch.float64"),
        (Root, "a gradient is not a number: replace values by torch.where before a division"),
    ],
)
def test_a_mistake_in_an_encoder_is_named(encoder, said):
    with pytest.raises(ConfigError, match=said):
        check_encoder(encoder)


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_of_the_project_pass(name):
    check_mechanism(MECHANISMS[name]())


def test_a_mechanism_with_few_labels_and_another_inside_passes():
    check_mechanism(ScarceLabels(n=1, aligned=0, rest=MNAR(p=0.9, keep_empty=True)))


@dataclass(frozen=True, kw_only=True)
class Half:
    """A mechanism without a fault."""

    name: ClassVar[str] = "half"

    def p(self, seeds, name, n, K, blocks):
        return np.full((n, K), 0.5)

    def draw(self, seeds, name, n, K, blocks=None):
        return independent(stream(seeds, name), self.p(seeds, name, n, K, blocks))


class GlobalRandom(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return independent(np.random.default_rng(), np.full((n, K), 0.5))


class IgnoresSeed(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return independent(np.random.default_rng(len(name)), np.full((n, K), 0.5))


class IgnoresName(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return independent(stream(seeds, "mine"), np.full((n, K), 0.5))


class EmptyRows(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return DrawnMask(stream(seeds, name).random((n, K)) >= 0.5, 0)


class Probabilities(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return DrawnMask(stream(seeds, name).random((n, K)), 0)


class Transposed(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return DrawnMask(super().draw(seeds, name, n, K).observed.T, 0)


class ThreeParties(Half):
    def p(self, seeds, name, n, K, blocks):
        return np.zeros((n, K)) + np.array([0.1, 0.5, 0.9]).reshape(1, K)


class ChangesBlocks(Half):
    def p(self, seeds, name, n, K, blocks):
        blocks[0] *= 2
        return super().p(seeds, name, n, K, blocks)


class BareMask(Half):
    def draw(self, seeds, name, n, K, blocks=None):
        return super().draw(seeds, name, n, K).observed


class Unnamed:
    draw = Half.draw


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (GlobalRandom, "GlobalRandom, draw: two calls with equal seeds give different masks .*: draw from missingness"),
        (IgnoresSeed, "the mask does not depend on the seed .*: draw from missingness.stream"),
        (IgnoresName, "the mask does not depend on the name of the stream .*: draw from missingness.stream"),
        (EmptyRows, r"no party has \d+ of the rows .*: draw with missingness.independent"),
        (Probabilities, r"expected observed to be bool \[600, 3\], got \[600, 3\] of float64 .*: compare with"),
        (Transposed, r"expected observed to be bool \[600, 3\], got \[3, 600\] of bool"),
        (ThreeParties, r"fails: .* \(600 rows of 1 party\): assume no number of rows or parties"),
        (ChangesBlocks, "it changes the blocks .*: compute a new array"),
        (BareMask, "returns a ndarray .*: return DrawnMask"),
        (Unnamed, "Unnamed: it has no name, by which records and tables call it"),
    ],
)
def test_a_mistake_in_a_mechanism_is_named(mechanism, said):
    check_mechanism(Half())
    with pytest.raises(ConfigError, match=said):
        check_mechanism(mechanism())


def test_one_call_finds_the_kind(monkeypatch):
    assert check(Half) == "mechanism"
    assert check(Plain) == check(MLP()) == check("torch.nn:Linear") == "encoder"
    with pytest.raises(ConfigError, match=r"check: expected a rule or method, .* got 3"):
        check(3)
    with pytest.raises(ConfigError, match=r"expected module:name, such as my_rules:Maximum, got 'rules.py'"):
        check("rules.py")
    with pytest.raises(ConfigError, match=r"nowhere_at_all:Rule cannot be imported .ModuleNotFoundError"):
        check("nowhere_at_all:Rule")
    with pytest.raises(ConfigError, match="expected a rule or a split method"):
        check_method(3)
