"""Check each mechanism's rate and the dependences of its masks."""

import numpy as np
import pytest
from scipy import stats

from anyparty.core.seeds import Seeds
from anyparty.data.missingness import MAR1, MAR2, MCAR, MNAR, BetaMCAR, normalised

SEEDS = Seeds(0)
N = 40_000


def values(n=N, K=4, d=6, seed=0):
    """Create normalized blocks that depend on each other, with rows of different means and spreads."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    spread = rng.lognormal(sigma=0.5, size=(n, 1))
    return normalised([common + spread * rng.lognormal(sigma=0.3) * rng.normal(size=(n, d)) for _ in range(K)])


def within(found, expected, n, sigmas=4.5):
    """Return whether a share of n draws is within some standard deviations."""
    return abs(found - expected) < sigmas * np.sqrt(expected * (1 - expected) / n) + 1e-12


class TestMCAR:
    @pytest.mark.parametrize(("p", "K"), [(0.1, 8), (0.5, 1), (0.5, 4), (0.9, 2), (0.9, 8)])
    def test_rate(self, p, K):
        """(p - p^K) / (1 - p^K): redrawing the empty rows lowers the rate, and p^K of the rows are redrawn."""
        mechanism = MCAR(p=p)
        drawn = mechanism.draw(SEEDS, "train", N, K)
        assert within(drawn.rate, mechanism.expected_rate(K), N)
        assert within(drawn.redrawn / N, p**K, N)
        assert all(within(rate, mechanism.expected_rate(K), N) for rate in drawn.rates), "the same for all parties"

    def test_rate_by_hand(self):
        assert MCAR(p=0.5).expected_rate(4) == pytest.approx(0.4375 / 0.9375)
        assert MCAR(p=0.5).expected_rate(1) == 0

    def test_every_pattern_as_often_as_it_should(self):
        """Redrawing in one step equals redrawing until the row is not empty: a chi-square test over all patterns."""
        p, K = 0.7, 3
        observed = MCAR(p=p).draw(SEEDS, "train", N, K).observed
        counts = np.bincount(observed @ (1 << np.arange(K)), minlength=2**K)
        expected = np.array([p ** (K - bin(s).count("1")) * (1 - p) ** bin(s).count("1") for s in range(2**K)])
        assert counts[0] == 0
        assert stats.chisquare(counts[1:], N * expected[1:] / expected[1:].sum()).pvalue > 1e-4

    def test_independent_of_values(self):
        x = values()
        drawn = MCAR(p=0.5).draw(SEEDS, "train", N, 4, x)
        np.testing.assert_array_equal(drawn.observed, MCAR(p=0.5).draw(SEEDS, "train", N, 4).observed)
        for k in range(4):
            for j in range(4):
                assert stats.pearsonr(drawn.observed[:, k], x[j].mean(axis=1)).pvalue > 1e-4


class TestBeta:
    def test_each_party_has_a_p_of_its_own(self):
        rates = [BetaMCAR(a=2, b=2).draw(Seeds(s), "train", 2000, 8).rates for s in range(200)]
        mean = np.mean(rates)
        assert 0.46 < mean < 0.5, "E[p] = 1/2, less what the redrawing takes"
        assert 0.2 < np.std(rates) < 0.25, "the deviation of Beta(2, 2) is .224"
        assert abs(np.corrcoef(np.array(rates)[:, :2].T)[0, 1]) < 0.3, "parties draw on their own"

    def test_training_and_prediction_draw_their_own(self):
        train, test = (BetaMCAR().draw(SEEDS, name, 2000, 8).rates for name in ("train", "test"))
        assert max(abs(a - b) for a, b in zip(train, test, strict=True)) > 0.1


@pytest.mark.parametrize("mechanism", [MAR1(), MAR2()], ids=lambda m: m.name)
class TestMAR:
    def test_depends_on_observed_values_alone(self, mechanism):
        """If all unobserved values change, the mask stays the same."""
        x = values()
        observed = mechanism.draw(SEEDS, "train", N, 4, x).observed
        assert 0.1 < 1 - observed.mean() < 0.7
        other = [np.where(observed[:, k : k + 1], x[k], 50 * other) for k, other in enumerate(values(seed=1))]
        np.testing.assert_array_equal(mechanism.draw(SEEDS, "train", N, 4, other).observed, observed)

    def test_depends_on_observed_values(self, mechanism):
        """Rows with a more informative first block have fewer observed blocks."""
        x = values()
        observed = mechanism.draw(SEEDS, "train", N, 4, x).observed
        informative = np.stack([block.var(axis=1) for block in x], axis=1)
        met = np.where(observed, informative, -np.inf).max(axis=1)
        assert observed.sum(axis=1)[met > 1].mean() < observed.sum(axis=1)[met < 0.3].mean() - 0.5
        assert mechanism.draw(SEEDS, "train", N, 4, [block * 0.1 for block in x]).rate < 0.01

    def test_parties_are_looked_at_in_random_order(self, mechanism):
        rng = np.random.default_rng(0)
        x = normalised([rng.lognormal(sigma=0.5, size=(N, 1)) * rng.normal(size=(N, 6)) for _ in range(4)])
        rates = mechanism.draw(SEEDS, "train", N, 4, x).rates
        assert max(rates) - min(rates) < 0.03

    @pytest.mark.parametrize("rate", [0.25, 0.5, 0.7])
    def test_calibrated_to_a_rate(self, mechanism, rate):
        """The rate is exact on the training rows, and close on other rows of the same distribution."""
        set_ = mechanism.calibrated(SEEDS, values(), rate=rate)
        assert type(set_) is type(mechanism)
        assert abs(set_.draw(SEEDS, "train", N, 4, values()).rate - rate) < 0.01
        assert abs(set_.draw(SEEDS, "test", N, 4, values(seed=2)).rate - rate) < 0.08

    def test_never_redraws(self, mechanism):
        assert mechanism.draw(SEEDS, "train", N, 4, values()).redrawn == 0


class TestMNAR:
    @pytest.mark.parametrize("p", [0.7, 0.9])
    def test_rate_by_own_mean(self, p):
        """The rate is p if the block's mean is above 0, else 1 - p. With eight parties, few rows are redrawn."""
        rng = np.random.default_rng(0)
        x = [rng.normal(size=(N, 5)) for _ in range(8)]
        drawn = MNAR(p=p).draw(SEEDS, "train", N, 8, x)
        for k in range(8):
            high = x[k].mean(axis=1) > 0
            assert abs((1 - drawn.observed[high, k].mean()) - p) < 0.015
            assert abs((1 - drawn.observed[~high, k].mean()) - (1 - p)) < 0.015

    def test_depends_on_the_blocks_own_values_alone(self):
        """If three blocks change, the fourth's column stays the same, except in redrawn rows."""
        x = values()
        drawn = MNAR(p=0.8).draw(SEEDS, "train", N, 4, x)
        other = MNAR(p=0.8).draw(SEEDS, "train", N, 4, [x[0], *values(seed=1)[1:]])
        moved = (drawn.observed != other.observed).sum(axis=0)
        assert moved[0] <= drawn.redrawn + other.redrawn
        assert (moved[1:] > 0.1 * N).all()

    def test_given_its_own_value_nothing_else_matters(self):
        """Among rows with a high own mean, the mask is independent of the other blocks."""
        rng = np.random.default_rng(0)
        x = [rng.normal(size=(N, 5)) for _ in range(12)]
        drawn = MNAR(p=0.7).draw(SEEDS, "train", N, 12, x)
        high = x[0].mean(axis=1) > 0
        for k in range(1, 12):
            assert stats.pearsonr(drawn.observed[high, 0], x[k][high].mean(axis=1)).pvalue > 1e-4
