"""Shapley values: computed by hand, by their sum, and sampled against exact."""

from itertools import permutations
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import norm

from anyparty.report.shapley import exact_shapley, percentile_interval, sampled_shapley, shapley_values


def game(values):
    """Return v(S) from a table such as {"ab": 3.0}, without resamples."""
    return lambda members: np.array([values["".join(sorted(members))]])


def test_a_case_by_hand():
    """v(a) = 4, v(b) = 2, v(ab) = 10; a: (4 + 10 - 2) / 2, b: (2 + 10 - 4) / 2."""
    found = exact_shapley(["a", "b"], game({"": 0.0, "a": 4.0, "b": 2.0, "ab": 10.0}))
    assert {name: share.value for name, share in found.values.items()} == {"a": 6.0, "b": 4.0}
    assert found.gain == 10.0
    assert found.orders == 0


def test_the_glove_game():
    """One left glove (a) and two right ones have the textbook values 2/3, 1/6, 1/6."""
    values = dict.fromkeys(("", "a", "b", "c", "bc"), 0.0) | dict.fromkeys(("ab", "ac", "abc"), 1.0)
    found = exact_shapley(list("abc"), game(values))
    assert [share.value for share in found.values.values()] == pytest.approx([2 / 3, 1 / 6, 1 / 6])


@pytest.mark.parametrize("K", [1, 3, 6])
def test_values_sum_to_the_gain(K):
    parties = [f"p{k}" for k in range(K)]
    kept = {}

    def value(members):
        if members not in kept:
            kept[members] = np.random.default_rng([int(name[1:]) for name in sorted(members)]).normal(size=5)
        return kept[members]

    whole = exact_shapley(parties, value)
    assert sum(share.value for share in whole.values.values()) == pytest.approx(whole.gain)
    assert whole.gain == pytest.approx(kept[frozenset(parties)][0] - kept[frozenset()][0])
    some = sampled_shapley(parties, value, rng=np.random.default_rng(0), orders=6)
    assert sum(share.value for share in some.values.values()) == pytest.approx(whole.gain)


def test_exact_is_the_mean_over_all_orders():
    rng = np.random.default_rng(1)
    parties, kept = list("abcd"), {}

    def value(members):
        return kept.setdefault(members, rng.normal(size=1))

    found = exact_shapley(parties, value)
    for party in parties:
        added = []
        for order in permutations(parties):
            before = frozenset(order[: order.index(party)])
            added.append(value(before | {party})[0] - value(before)[0])
        assert found.values[party].value == pytest.approx(np.mean(added))


def test_a_sample_is_near_the_exact_value_and_says_how_near():
    rng = np.random.default_rng(2)
    parties, kept = [f"p{k}" for k in range(7)], {}
    worth = dict(zip(parties, rng.uniform(0, 1, 7), strict=True))

    def value(members):
        return kept.setdefault(members, np.array([np.tanh(sum(worth[name] for name in members))]))

    whole, some = exact_shapley(parties, value), sampled_shapley(parties, value, rng=rng, orders=400)
    inside = [some.values[name].low <= whole.values[name].value <= some.values[name].high for name in parties]
    assert sum(inside) >= 5
    assert all(abs(some.values[name].value - whole.values[name].value) < 0.03 for name in parties)


def test_two_pairs_of_orders_say_how_little_they_know():
    """The order a b c and its reverse give a 1/2, b a c gives it 1; Student's t for one degree is 12.7."""
    values = dict.fromkeys(("", "a", "b", "c", "bc"), 0.0) | dict.fromkeys(("ab", "ac", "abc"), 1.0)
    drawn = Mock(permutation=Mock(side_effect=[np.array([0, 1, 2]), np.array([1, 0, 2])]))
    share = sampled_shapley("abc", game(values), rng=drawn, orders=4).values["a"]
    assert (share.low, share.value, share.high) == pytest.approx(
        (0.75 - 12.7062 / 4, 0.75, 0.75 + 12.7062 / 4), abs=1e-4
    )


def test_many_parties_are_sampled():
    parties = [f"p{k:02d}" for k in range(12)]
    asked = set()

    def value(members):
        asked.add(members)
        return np.array([float(len(members))])

    found = shapley_values(parties, value, rng=np.random.default_rng(0), orders=8)
    assert found.orders == 8
    assert all(share.value == pytest.approx(1.0) for share in found.values.values())
    assert len(asked) < 2**7


@pytest.mark.parametrize("draws", [40, 200])
def test_an_interval_of_95_percent_has_95_percent(draws):
    """On average, 3,000 intervals of normal draws contain 95 % of the normal distribution, also for few draws."""
    random = np.random.default_rng(0)
    found = [percentile_interval(np.array([0.0, *random.normal(size=draws)])) for _ in range(3000)]
    within = [norm.cdf(share.high) - norm.cdf(share.low) for share in found]
    assert np.mean(within) == pytest.approx(0.95, abs=0.003)


def test_resamples_give_the_interval():
    share = percentile_interval(np.array([0.5, *np.linspace(0, 1, 101), np.nan]))
    assert (share.value, share.low, share.high) == (0.5, pytest.approx(0.0155), pytest.approx(0.9845))
    assert np.isnan(percentile_interval(np.array([0.5, np.nan])).low)
