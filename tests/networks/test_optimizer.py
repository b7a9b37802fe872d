import math
from functools import partial

import pytest
import torch
from torch import nn

from anyparty.networks.optimizer import Optimizer


class TestRates:
    def test_constant(self):
        assert [Optimizer(lr=0.3).rate(epoch, 9) for epoch in (0, 4, 8)] == [0.3] * 3

    def test_cosine(self):
        """Four epochs have (1 + cos(pi e/4)) / 2 = 1, 0.8536, 0.5, 0.1464; ``final=0.2`` gives 0.2 + 0.8 times that."""
        plain = [Optimizer(lr=1.0, schedule="cosine").rate(epoch, 4) for epoch in range(4)]
        assert plain == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
        ends = [Optimizer(lr=2.0, schedule="cosine", final=0.2).rate(epoch, 4) for epoch in (0, 2, 4)]
        assert ends == pytest.approx([2.0, 1.2, 0.4])

    def test_step(self):
        """Start with 0.8, and halve it at epochs 2 and 5, counted from 0."""
        falls = Optimizer(lr=0.8, schedule="step", milestones=(2, 5), gamma=0.5)
        assert [falls.rate(epoch, 7) for epoch in range(7)] == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2])


class TestBuild:
    def test_the_named_optimizer_with_its_settings(self):
        def built(**settings):
            return Optimizer(**settings).build(nn.Linear(2, 2).parameters())

        sgd = built(name="sgd", lr=0.1, momentum=0.9, weight_decay=0.01)
        assert isinstance(sgd, torch.optim.SGD)
        assert {k: sgd.defaults[k] for k in ("lr", "momentum", "weight_decay")} == {
            "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01
        }  # fmt: skip
        assert type(built(name="adam")) is torch.optim.Adam
        assert type(built(name="adamw", weight_decay=0.2)) is torch.optim.AdamW

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"name": "sgd", "lr": 0.1}, 1 - 0.1 * 4 - 0.1 * 4),  # two steps of 0.1 along a gradient of 4
            ({"name": "sgd", "lr": 0.1, "momentum": 0.5}, 1 - 0.1 * 4 - 0.1 * (4 + 0.5 * 4)),
            ({"name": "adam", "lr": 0.1}, 1 - 0.1 - 0.1),  # a constant gradient: steps follow its sign
            ({"name": "adamw", "lr": 0.1, "weight_decay": 0.5}, (1 * 0.95 - 0.1) * 0.95 - 0.1),
        ],
    )
    def test_two_steps_by_hand(self, settings, expected):
        w = nn.Parameter(torch.ones(1))
        optimizer = Optimizer(**settings).build([w])
        for _ in range(2):
            w.grad = torch.full((1,), 4.0)
            optimizer.step()
        assert w.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_parameter_that_learns_later_than_others():
    """One parameter takes two steps, the other one, along gradients of 4, like networks used for some rows only."""
    both = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = Optimizer(name="sgd", lr=0.1, momentum=0.5).build(both)
    for learning in (both[:1], both):
        optimizer.zero_grad()
        for each in learning:
            each.grad = torch.full((1,), 4.0)
        optimizer.step()
    assert [each.item() for each in both] == pytest.approx([1 - 0.4 - 0.6, 1 - 0.4], abs=1e-6)


WRONG = (
    {"name": "adma"}, {"schedule": "cosinus"}, {"lr": 0.0}, {"lr": math.inf}, {"lr": math.nan},
    {"name": "sgd", "momentum": 1.0}, {"name": "adam", "momentum": 0.9}, {"weight_decay": -1.0},
    {"weight_decay": math.nan}, {"schedule": "cosine", "final": -0.5}, {"schedule": "step", "gamma": 0.0},
    {"milestones": (3,)}, {"final": 0.1, "gamma": 0.5}, {"schedule": "step", "milestones": (3, -1)},
)  # fmt: skip


def test_refuses(sentences):
    sentences.check("optimizers", {str(bad): partial(Optimizer, **bad) for bad in WRONG})
