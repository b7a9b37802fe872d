"""Local iterations by hand: weights of (8), momentum, proximal steps, Adaptive Flex-VFL's learning rates."""

import numpy as np
import pytest
import torch

from anyparty.errors import ConfigError
from anyparty.methods.method import State
from anyparty.methods.schedules.flex import AdaptiveFlex, weights
from anyparty.methods.schedules.local_steps import LocalSteps
from anyparty.methods.schedules.schedule import LocalIterations
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.networks.optimizer import Optimizer
from tests import worlds
from tests.methods.schedules.scheduled_runs import LINEAR, under, whole
from tests.worlds import SGD, Table


def unrolled(tau: int, optimizer: Optimizer, mu: float) -> list[float]:
    """Return how far each iteration's gradient moves a parameter, in units of -lr, by torch's own optimizer."""
    found = []
    for when in range(tau):
        parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        state = State(worlds.world().seat("a"), optimizers={"net": optimizer.build([parameter])})
        steps = LocalSteps(state, LocalIterations(mu=mu))
        for t in range(tau):
            parameter.grad = torch.tensor(float(t == when), dtype=torch.float64)
            steps.step("net")
        found.append(-parameter.item() / optimizer.lr)
    return found


class TestWeights:
    @pytest.mark.parametrize("tau", [1, 2, 5])
    @pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0), (0.5, 1.0)])
    def test_are_those_of_the_optimizer_unrolled(self, tau, rho, mu):
        optimizer = Optimizer(name="sgd", lr=0.1, momentum=rho)
        assert weights(tau, momentum=rho, pull=0.1 * mu) == pytest.approx(unrolled(tau, optimizer, mu), abs=1e-6)

    @pytest.mark.parametrize("tau", [1, 4])
    def test_are_the_papers(self, tau):
        rho, pull = 0.9, 0.3
        assert weights(tau) == [1.0] * tau
        momentum = [(1 - rho ** (tau - t)) / (1 - rho) for t in range(tau)]
        assert weights(tau, momentum=rho) == pytest.approx(momentum)
        assert weights(tau, pull=pull) == pytest.approx([(1 - pull) ** (tau - 1 - t) for t in range(tau)])

    def test_of_no_iteration(self):
        assert weights(0) == []


class TestSteps:
    def test_proximal_on_a_quadratic(self):
        """Minimise f = (theta - 3)^2 / 2 from 0 with lr 0.5 and mu 0.2: 1.5, 2.1, 2.34."""
        theta = torch.nn.Parameter(torch.zeros(()))
        state = State(worlds.world().seat("a"), optimizers={"net": Optimizer(name="sgd", lr=0.5).build([theta])})
        steps, path = LocalSteps(state, LocalIterations(mu=0.2)), []
        for _ in range(3):
            theta.grad = theta.detach() - 3
            steps.step("net")
            path.append(theta.item())
        assert path == pytest.approx([1.5, 2.1, 2.34])

    def test_momentum_begins_anew_unless_it_is_kept(self):
        moved = {}
        for how in ("local", "kept"):
            theta = torch.nn.Parameter(torch.zeros(()))
            optimizer = Optimizer(name="sgd", lr=1.0, momentum=0.5).build([theta])
            for _ in range(3):  # rounds of one iteration, gradient 1
                steps = LocalSteps(
                    State(worlds.world().seat("a"), optimizers={"net": optimizer}), LocalIterations(momentum=how)
                )
                theta.grad = torch.ones(())
                steps.step("net")
            moved[how] = -theta.item()
        assert moved == {"local": 3.0, "kept": 1 + 1.5 + 1.75}

    @pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.5, 0.0), (0.0, 3.0)])
    def test_a_party_without_labels_moves_by_the_sum_of_weights(self, rho, mu):
        """A linear encoder's gradient is g^T x in every iteration, so theta moves by -eta g^T x sum_t w^t."""
        of, clock = whole(), VirtualClock(iteration={"b": 2.0}, timeout=10, latency=1)
        made = under("flex", "standard", clock, mu=mu)
        states = worlds.begin(made, of, encoder=LINEAR, optimizer=Optimizer(name="sgd", lr=0.1, momentum=rho))
        at, before = Table(), worlds.weights(states)
        worlds.step(made, of, states, of.places(), at=at)
        (g,) = (tensors["g"] for _, to, tag, tensors in at.notes if to == "b" and tag == "gradient")
        expected = -0.1 * sum(weights(5, momentum=rho, pull=0.1 * mu)) * g.T @ of.x["b"]
        moved = worlds.weights(states)["b/encoder/0.weight"] - before["b/encoder/0.weight"]
        assert torch.allclose(moved, expected, atol=1e-6)
        assert moved.abs().max() > 1e-3


class TestAdaptiveRates:
    def test_by_hand(self):
        """b makes 4, 2, 1, 4 iterations: eta^r = A / (tau^{r-1} wbar^{r-1}), and A / (tau^0 wbar^0) at the start."""
        of, rho = whole(), 0.5
        clock = VirtualClock(timeout=4, use={"b": (0.0, 0.5, 0.75)})
        made = under("adaptive-flex", "laser", clock, A={"a": 0.01, "b": 0.02, "c": 0.03})
        optimizer, at = Optimizer(name="sgd", lr=7.0, momentum=rho), Table()
        states = worlds.begin(made, of, optimizer=optimizer)
        for number in range(5):
            worlds.step(made, of, states, of.places()[:4], at=at, number=number)
        said = {
            name: [tensors["rate"].item() for frm, to, tag, tensors in at.notes if tag == "rate" and to == name]
            for name in "bc"
        }
        wbar = {tau: (1 - rho**tau) / (1 - rho) for tau in (1, 2, 4)}
        assert said["b"] == pytest.approx([0.02 / (tau * wbar[tau]) for tau in (4, 4, 2, 1, 4)])
        assert said["c"] == pytest.approx([0.03 / (4 * wbar[4])] * 5)
        rates = {name: states[name].optimizers["encoder"].param_groups[0]["lr"] for name in "abc"}
        assert rates == pytest.approx({"a": 0.01 / (4 * wbar[4]), "b": said["b"][-1], "c": said["c"][-1]})
        assert states["a"].optimizers["heads"].param_groups[0]["lr"] == rates["a"]

    def test_by_default_the_first_is_the_optimizers_own(self):
        of, at = whole(), Table()
        made = under("adaptive-flex", clock=VirtualClock(timeout=4, use={"b": (0.0, 0.5)}), mu=0.5)
        states = worlds.begin(made, of, optimizer=SGD)
        for number in range(3):
            worlds.step(made, of, states, of.places()[:4], at=at, number=number)
        rates = [tensors["rate"].item() for _, to, tag, tensors in at.notes if tag == "rate" and to == "b"]
        assert rates == pytest.approx([SGD.lr, SGD.lr, 2 * SGD.lr])  # proximal weights are at most 1: wbar = 1

    @pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
    def test_refuses(self, bad):
        with pytest.raises(ConfigError, match="A must be a positive number"):
            AdaptiveFlex(A=bad)
        with pytest.raises(ConfigError, match="A of party 'b' must be a positive number"):
            AdaptiveFlex(A={"b": bad})

    def test_a_party_that_there_is_not(self):
        made = under("adaptive-flex", A={"bb": 0.1})
        with pytest.raises(ConfigError, match=r"A: there is no party 'bb'.*did you mean 'b'"):
            worlds.begin(made, whole())


def test_equation_8_on_a_quadratic():
    """Local momentum on f = theta^2 / 2 moves by exactly -eta sum_t w^t g^t, for the gradients of its iterations."""
    theta = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    state = State(worlds.world().seat("a"))
    state.optimizers["net"] = Optimizer(name="sgd", lr=0.1, momentum=0.8).build([theta])
    steps, met = LocalSteps(state, LocalIterations()), []
    for _ in range(6):
        theta.grad = theta.detach().clone()
        met.append(theta.item())
        steps.step("net")
    assert theta.item() == pytest.approx(2 - 0.1 * np.dot(weights(6, momentum=0.8), met), rel=1e-6)
