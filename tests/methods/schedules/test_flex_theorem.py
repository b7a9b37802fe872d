"""The theorem: (15) on a quadratic with known constants, and the warning if a rate violates (14)."""

import warnings
from itertools import product

import pytest
import torch
from torch import nn

from anyparty.methods.schedules.flex import rate_bound, weights
from anyparty.methods.schedules.local_steps import set_rate
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.methods.schedules.scheduled_runs import MOMENTUM, SPEEDS, under, whole
from tests.worlds import SGD, world

TAU = {"a": 10, "b": 5, "c": 2}
CLOCK = VirtualClock(iteration=SPEEDS, timeout=10)
X = {"a": (1.0, -0.5), "b": (0.3, 2.0), "c": (-1.2, 0.4)}
Y = (-1.0, 3.0)
ROUNDS = 4


def quadratic():
    """Two rows with the same features x and labels y_1, y_2: l_i = (x theta / 3 - y_i)^2, batches of one row.

    Then H = 2 x x^T / 9 for every row, so that L is its greatest eigenvalue, and L_k <= L; the partial derivative
    2 x_k / 3 (x theta / 3 - y_i) varies by the label alone: sigma_k^2 = |2 x_k / 3|^2 Var(y), for all theta.
    """
    of = world(N=2, d=2, kind="regression", observed=torch.ones(2, 3, dtype=torch.bool), labelers=(0, 1, 2))
    for name, cells in X.items():
        of.rows[name].block.x[:] = torch.tensor(cells)
        of.rows[name].y[:] = torch.tensor(Y)
    return of


def gradients(states):
    """Return F and |grad_k F|^2 for every party, at all parties' weights."""
    theta = {name: states[name].modules["encoder"].weight.detach()[0].double() for name in X}
    x = {name: torch.tensor(cells).double() for name, cells in X.items()}
    off = sum(x[name] @ theta[name] for name in X) / 3
    value = sum((off - y) ** 2 for y in Y) / 2
    slope = 2 * (off - sum(Y) / 2) / 3
    return value.item(), {name: (slope * x[name]).square().sum().item() for name in X}


def both_sides(labels, rho, times):
    """Return the left and right side of (15), as means over all possible sequences of mini-batches."""
    of, made = quadratic(), under("flex", "standard", CLOCK, labels=labels,
                                  parameters={"embedding": 1, "make_head": lambda *_: nn.Identity()})  # fmt: skip
    size = {name: sum(value**2 for value in cells) for name, cells in X.items()}
    smooth, spread = 2 * sum(size.values()) / 9, (Y[0] - Y[1]) ** 2 / 4
    w = {name: weights(tau, momentum=rho) for name, tau in TAU.items()}
    eta = {name: times * rate_bound(smooth, tau, max(w[name])) for name, tau in TAU.items()}
    left = 0.0
    sequences = list(product(range(2), repeat=ROUNDS))
    for sequence in sequences:
        states = worlds.begin(made, of, encoder=lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False),
                              optimizer=Optimizer(name="sgd", lr=0.1, momentum=rho))  # fmt: skip
        first = gradients(states)[0]
        for number, row in enumerate(sequence):
            for name, each in gradients(states)[1].items():
                left += eta[name] * sum(w[name]) * each / len(sequences)
                set_rate(states[name], eta[name])
            worlds.step(made, of, states, torch.tensor([row]), number=number)
    s = ROUNDS * sum(eta[name] * sum(w[name]) for name in X)
    noise = sum(eta[name] ** 2 * sum(w[name]) * max(w[name]) * TAU[name] * 4 * size[name] / 9 * spread for name in X)
    return left / s, 4 / s * (first - spread) + 4 * smooth / s * ROUNDS * noise


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["active", "shared"])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_bound_holds_on_a_quadratic(labels, rho):
    left, right = both_sides(labels, rho, times=1.0)
    assert 0 < left <= right


def test_it_can_be_broken():
    """Rates far above (14) diverge, and so does the left side."""
    left, right = both_sides("shared", 0.0, times=400.0)
    assert left > right


class TestWarning:
    def test_names_the_party_and_the_bound(self):
        """The bound for 10 local iterations and L = 2 is 1 / (16 x 10 x 2)."""
        with pytest.warns(UserWarning, match="breaks the bound") as said:
            worlds.begin(under("flex", clock=CLOCK, smoothness=2.0), whole(), optimizer=SGD)
        assert len(said) == 3
        text = str(said[0].message)
        assert text.startswith("party 'a': a learning rate of 0.1 breaks the bound (14) of Flex-VFL: with 10 local")
        assert "an estimated smoothness of 2 convergence is shown up to 0.003125" in text

    def test_asks_the_weights_and_the_fastest_round(self):
        """b makes 5 iterations, but 10 when its machine is idle: (1 - 0.9^10) / 0.1 = 6.513."""
        clock = VirtualClock(iteration={"a": 10.0, "c": 10.0}, use={"b": (0.5, 0.0)})
        with pytest.warns(UserWarning, match="party 'b'.*with 10 local iterations, weights up to 6.513"):
            worlds.begin(under("flex", clock=clock, smoothness=0.1), whole(), optimizer=MOMENTUM)

    @pytest.mark.parametrize(("A", "warned"), [(None, 3), (1 / 32, 0), ({"b": 0.05}, 3)])
    def test_of_adaptive_flex(self, A, warned):
        """A_k <= 1 / (16 L) is checked for parties that have an A; the rate is checked for the others."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            worlds.begin(under("adaptive-flex", clock=CLOCK, smoothness=2.0, **({"A": A} if A else {})), whole())
        assert len(said) == warned

    def test_of_adaptive_flex_with_a_trace_goes_by_the_round_before(self):
        """b makes 10 iterations at the rate for 5, that of the round before: twice the limit. The others are at it."""
        clock = VirtualClock(iteration=1.0, timeout=10, use={"b": (0.5, 0.0)})
        made = under("adaptive-flex", clock=clock, smoothness=2.0, A=1 / 32)
        with pytest.warns(UserWarning, match="breaks the bound") as said:
            worlds.begin(made, whole())
        (text,) = (str(each.message) for each in said)
        assert text.startswith("party 'b': a learning rate of 0.00625 breaks the bound (14) of Flex-VFL: with 10 local")

    def test_a_round_without_part_is_none(self):
        """c takes no part in the first round, and makes ten iterations in the second, like a and b in every round."""
        clock = VirtualClock(iteration=1.0, timeout=10, use={"c": (0.99, 0.0)})
        with pytest.warns(UserWarning, match="with 10 local iterations") as said:
            worlds.begin(under("adaptive-flex", clock=clock, smoothness=0.1, A=1.0), whole())
        assert [str(each.message)[7:8] for each in said] == ["a", "b", "c"]

    @pytest.mark.parametrize("settings", [{"smoothness": 0.06}, {}])
    def test_there_is_none_below_the_bound_or_without_an_estimate(self, settings):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            worlds.begin(under("flex", clock=CLOCK, **settings), whole(), optimizer=SGD)
