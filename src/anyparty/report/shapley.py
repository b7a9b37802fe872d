"""Shapley values: the contribution of each party to a metric.

L. S. Shapley: "A Value for n-Person Games", 1953; sampling by permutations: Castro, Gomez, Tejada, "Polynomial
calculation of the Shapley value based on sampling", 2009.  Here each sampled order is used forwards and backwards.

Notation  K parties, S a set of parties, v(S) the metric if only the parties in S take part, R resamples of the test
          rows.
Value     phi_k = sum over S without k of |S|! (K - |S| - 1)! / K! * (v(S + k) - v(S))
          so that sum_k phi_k = v(all) - v(no party)
Interval  exact values: the 2.5 % and 97.5 % percentiles over the R resamples.
          sampled values: Student's 95 % interval over pairs of orders.  This interval covers only the sampling of
          orders, not the sampling of test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
SetValue = Callable[[frozenset[str]], Floats]
"""A function that returns v(S) for a set of parties S: [1 + R] float64, on all test rows, then on each resample."""

MAX_EXACT = 8  # for more parties, Shapley values are estimated from sampled orders of the parties


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with an interval; ``low`` and ``high`` are NaN if the value has no interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ShapleyValues:
    """The Shapley values of all parties.

    Attributes:
        values: the Shapley value of each party.
        gain: v(all) - v(no party), the sum of the values.
        orders: number of sampled orders of the parties; 0 if the values are exact.
    """

    values: dict[str, Estimate]
    gain: float
    orders: int = 0


def shapley_values(
    parties: Sequence[str], value: SetValue, *, rng: np.random.Generator, orders: int = 32
) -> ShapleyValues:
    """Compute Shapley values: exact up to ``MAX_EXACT`` parties, else from ``orders`` sampled orders of the parties."""
    if len(parties) <= MAX_EXACT:
        return exact_shapley(parties, value)
    return sampled_shapley(parties, value, rng=rng, orders=orders)


def exact_shapley(parties: Sequence[str], value: SetValue) -> ShapleyValues:
    """Compute exact Shapley values from the metric of all 2^K sets of parties."""
    K = len(parties)
    values = {}
    for party in parties:
        others = [name for name in parties if name != party]
        total = np.zeros_like(value(frozenset()))
        for size in range(K):
            weight = factorial(size) * factorial(K - size - 1) / factorial(K)
            for members in combinations(others, size):
                S = frozenset(members)
                total += weight * (value(S | {party}) - value(S))
        values[party] = percentile_interval(total)
    return ShapleyValues(values=values, gain=_gain(parties, value))


def sampled_shapley(
    parties: Sequence[str], value: SetValue, *, rng: np.random.Generator, orders: int = 32
) -> ShapleyValues:
    """Estimate each party's Shapley value from random orders of the parties.

    The estimate for party k is the mean, over the orders, of v(S + k) - v(S), where S is the set of parties before k.
    """
    pairs = max(1, orders // 2)
    found = np.zeros((pairs, len(parties)))
    for pair in range(pairs):
        order = rng.permutation(len(parties))
        for way in (order, order[::-1]):
            found[pair, way] += _marginal_gains([parties[k] for k in way], value) / 2
    error = np.full(len(parties), np.nan)
    if pairs > 1:
        error = stdtrit(pairs - 1, 0.975) * found.std(axis=0, ddof=1) / np.sqrt(pairs)
    values = {
        name: Estimate(value=float(mean), low=float(mean - e), high=float(mean + e))
        for name, mean, e in zip(parties, found.mean(axis=0), error, strict=True)
    }
    return ShapleyValues(values=values, gain=_gain(parties, value), orders=2 * pairs)


def _marginal_gains(order: Sequence[str], value: SetValue) -> Floats:
    reached = [float(value(frozenset(order[:k]))[0]) for k in range(len(order) + 1)]
    return np.diff(np.array(reached))


def _gain(parties: Sequence[str], value: SetValue) -> float:
    return float(value(frozenset(parties))[0] - value(frozenset())[0])


def percentile_interval(values: Floats) -> Estimate:
    """Return ``values[0]`` with the 2.5 % and 97.5 % percentiles of ``values[1:]``, the values on resamples.

    NaN values are left out of the percentiles.
    """
    drawn = values[1:][~np.isnan(values[1:])]
    low, high = np.percentile(drawn, [2.5, 97.5], method="weibull") if len(drawn) else (np.nan, np.nan)
    return Estimate(value=float(values[0]), low=float(low), high=float(high))
