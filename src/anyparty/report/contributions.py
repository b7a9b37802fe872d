"""What each party brings: Shapley values of a metric over the sets of parties that may be asked.

L. S. Shapley: "A Value for n-Person Games", 1953; sampling by permutations: Castro, Gomez, Tejada, "Polynomial
calculation of the Shapley value based on sampling", 2009, each order taken forwards and backwards.

Letters   K parties, S a set of them, v(S) the metric when S alone is asked, R resamples of the test rows.
Value     phi_k = sum over S without k of |S|! (K - |S| - 1)! / K! * (v(S + k) - v(S))
          so that sum_k phi_k = v(all) - v(nobody)
Interval  exact: of the R resamples, 2.5 % to 97.5 %; sampled: Student's 95 % over pairs of orders, which is about the
          sampling of orders alone, not of test rows
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
Value = Callable[[frozenset[str]], Floats]
"""v(S): [1 + R] float64, the metric on all test rows, then on each resample of them."""

MOST_EXACT = 8


@dataclass(frozen=True, kw_only=True)
class Share:
    """A number with an interval; ``low`` and ``high`` are NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Shapley:
    """Every party's share of the gain over nobody.

    Attributes:
        shares: by party.
        gain: v(all) - v(nobody), which the shares add up to.
        orders: how many orders were drawn; 0: the shares are exact.
    """

    shares: dict[str, Share]
    gain: float
    orders: int = 0


def shapley(parties: Sequence[str], value: Value, *, rng: np.random.Generator, orders: int = 32) -> Shapley:
    """Return the parties' Shapley values: exact for up to ``MOST_EXACT`` of them, else from ``orders`` drawn orders."""
    return exact(parties, value) if len(parties) <= MOST_EXACT else sampled(parties, value, rng=rng, orders=orders)


def exact(parties: Sequence[str], value: Value) -> Shapley:
    """Return Shapley values over all 2^K sets."""
    K = len(parties)
    shares = {}
    for party in parties:
        others = [name for name in parties if name != party]
        total = np.zeros_like(value(frozenset()))
        for size in range(K):
            weight = factorial(size) * factorial(K - size - 1) / factorial(K)
            for members in combinations(others, size):
                S = frozenset(members)
                total += weight * (value(S | {party}) - value(S))
        shares[party] = interval(total)
    return Shapley(shares=shares, gain=_gain(parties, value))


def sampled(parties: Sequence[str], value: Value, *, rng: np.random.Generator, orders: int = 32) -> Shapley:
    """Return Shapley values from random orders in pairs: a party brings what it adds to those before it."""
    pairs = max(1, orders // 2)
    found = np.zeros((pairs, len(parties)))
    for pair in range(pairs):
        order = rng.permutation(len(parties))
        for way in (order, order[::-1]):
            found[pair, way] += _marginals([parties[k] for k in way], value) / 2
    error = np.full(len(parties), np.nan)
    if pairs > 1:
        error = stdtrit(pairs - 1, 0.975) * found.std(axis=0, ddof=1) / np.sqrt(pairs)
    shares = {
        name: Share(value=float(mean), low=float(mean - e), high=float(mean + e))
        for name, mean, e in zip(parties, found.mean(axis=0), error, strict=True)
    }
    return Shapley(shares=shares, gain=_gain(parties, value), orders=2 * pairs)


def _marginals(order: Sequence[str], value: Value) -> Floats:
    """Return what each party adds to those before it."""
    reached = [float(value(frozenset(order[:k]))[0]) for k in range(len(order) + 1)]
    return np.diff(np.array(reached))


def _gain(parties: Sequence[str], value: Value) -> float:
    return float(value(frozenset(parties))[0] - value(frozenset())[0])


def interval(values: Floats) -> Share:
    """Return the first value, with the middle 95 % of the others; NaN among them (a metric undefined) is left out.

    Of few draws these are nearly all: between the least and the greatest of 40 lie 39 / 41 of what would be drawn.
    """
    drawn = values[1:][~np.isnan(values[1:])]
    low, high = np.percentile(drawn, [2.5, 97.5], method="weibull") if len(drawn) else (np.nan, np.nan)
    return Share(value=float(values[0]), low=float(low), high=float(high))
