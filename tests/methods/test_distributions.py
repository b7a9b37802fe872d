"""Gaussians against torch's own, and equation (1) of FALSE-VFL by hand."""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal

from anyparty.methods.false_vfl.distributions import Gaussian, LogProb, aggregate, standard


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_log_prob_equals_that_of_torch():
    mean, std, x = draw(4, 5, 3), draw(4, 5, 3, seed=1).exp(), draw(5, 3, seed=2)
    assert torch.allclose(Gaussian(mean, std).log_prob(x), Independent(Normal(mean, std), 1).log_prob(x), atol=1e-5)
    assert torch.allclose(standard(x), MultivariateNormal(torch.zeros(3), torch.eye(3)).log_prob(x), atol=1e-6)


def test_samples_have_the_given_mean_and_deviation():
    found = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])).at(draw(50_000, 2))
    assert found.mean(0).tolist() == pytest.approx([1.0, -2.0], abs=0.05)
    assert found.std(0).tolist() == pytest.approx([0.5, 3.0], rel=0.02)


def test_deviations_never_fall_below_the_floor():
    for raw in (-1e4, -20.0, 0.0, 50.0):
        found = Gaussian.of(torch.tensor([[3.0, raw]]), floor=0.25)
        assert found.mean.item() == 3.0
        assert 0.25 <= found.std.item() < 60


def test_the_log_density_and_its_gradient_equal_autograd():
    """This includes deviations at the floor, large deviations, and different weights of rows."""
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1, 1, 1, 8, 30])
    x, weight = torch.randn(5, 3, generator=generator).double(), torch.rand(4, 5, generator=generator).double()
    slow, fast = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    expected, found = Gaussian.of(slow, 1e-3).log_prob(x), LogProb.apply(fast, x, 1e-3)
    assert torch.allclose(found, expected, rtol=1e-12)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    assert torch.allclose(fast.grad, slow.grad, rtol=1e-9)


def test_the_log_density_uses_only_known_columns():
    """The value and gradient use the known columns only, for any values in the others."""
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
    x, known = torch.randn(5, 3, generator=generator).double(), torch.rand(5, 3, generator=generator) < 0.6
    known[0] = False
    slow, fast = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    whole = Gaussian.of(slow, 1e-3)
    away = -((x - whole.mean) ** 2) / (2 * whole.std**2) - whole.std.log() - 0.5 * math.log(2 * math.pi)
    expected = torch.where(known, away, 0.0).sum(dim=-1)
    found = LogProb.apply(fast, torch.where(known, x, 1e3), 1e-3, known)
    assert torch.allclose(found, expected, rtol=1e-12)
    assert (found[:, 0] == 0).all()
    expected.sum().backward()
    found.sum().backward()
    assert torch.allclose(fast.grad, slow.grad, rtol=1e-9)
    every = LogProb.apply(outputs, x, 1e-3, torch.ones_like(known))
    assert torch.equal(every, LogProb.apply(outputs, x, 1e-3))


class TestAggregate:
    """Equation (1) gives N(mean of the means, inverse of the summed precisions) over the parties that have the row."""

    mean = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [8.0, 2.0]]])
    variance = torch.tensor([[[1.0, 0.5], [0.5, 0.25], [0.25, 4.0]]])

    @pytest.mark.parametrize(
        ("observed", "mean", "precision"),
        [
            ([True, True, True], [4.0, 2.0], [1 + 2 + 4, 2 + 4 + 0.25]),
            ([True, False, True], [4.5, 1.0], [1 + 4, 2 + 0.25]),
            ([False, True, False], [3.0, 4.0], [2.0, 4.0]),
        ],
    )
    def test_aggregation_equals_values_computed_by_hand(self, observed, mean, precision):
        found = aggregate(self.mean, self.variance, torch.tensor([observed]))
        assert found.mean[0].tolist() == pytest.approx(mean)
        assert found.std[0].pow(-2).tolist() == pytest.approx(precision)

    def test_the_precision_is_that_of_the_product_of_experts(self):
        """The product of normal densities has the precision of (1), but another mean."""
        found = aggregate(self.mean, self.variance, torch.ones(1, 3, dtype=torch.bool))
        grid = torch.linspace(-20, 20, 40_001, dtype=torch.float64)
        log_p = sum(Normal(m, v**0.5).log_prob(grid) for m, v in zip([1.0, 3.0, 8.0], [1.0, 0.5, 0.25], strict=True))
        p = (log_p - log_p.max()).exp()
        center = (p * grid).sum() / p.sum()
        variance = (p * (grid - center) ** 2).sum() / p.sum()
        assert found.std[0, 0].item() ** 2 == pytest.approx(variance.item(), rel=1e-5)

    def test_more_parties_reduce_the_deviation(self):
        stds = [aggregate(self.mean, self.variance, torch.arange(3).unsqueeze(0) < n).std for n in (1, 2, 3)]
        assert (stds[0] > stds[1]).all()
        assert (stds[1] > stds[2]).all()

    def test_unobserved_parties_do_not_change_the_aggregate(self):
        observed = torch.tensor([[True, False, True]])
        garbage = torch.where(observed.unsqueeze(2), self.mean, torch.nan).requires_grad_()
        wild = torch.where(observed.unsqueeze(2), self.variance, torch.nan).requires_grad_()
        found = aggregate(garbage, wild, observed)
        clean = aggregate(self.mean, self.variance, observed)
        assert torch.equal(found.mean, clean.mean)
        assert torch.equal(found.std, clean.std)
        (found.mean.sum() + found.std.sum()).backward()
        assert not garbage.grad[0, 1].any()
        assert not wild.grad[0, 1].any()

    def test_a_row_that_no_party_has_is_standard_normal(self):
        found = aggregate(self.mean, self.variance, torch.zeros(1, 3, dtype=torch.bool))
        assert found.mean.tolist() == [[0.0, 0.0]]
        assert found.std.tolist() == [[1.0, 1.0]]
