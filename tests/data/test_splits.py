import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyparty.core.seeds import Seeds
from anyparty.problem.splits import TEST, TRAIN, VALIDATION, split

SHARES = st.floats(0, 0.5, exclude_max=True)


@given(st.integers(0, 200), SHARES, SHARES, st.integers(0, 9), st.integers(0, 9))
def test_shares_of_the_usable_rows(n, validation, test, seed, gaps):
    usable = np.random.default_rng(gaps).random(n) < 0.7
    use = split(usable, validation, test, Seeds(seed))
    assert (use[~usable] == TRAIN).all()
    least = int(usable.sum() >= 4)  # a share above 0 has a row, even if it rounds to none
    tests, validations = (max(round(share * usable.sum()), least * (share > 0)) for share in (test, validation))
    assert (use == TEST).sum() == tests
    assert (use == VALIDATION).sum() == min(validations, usable.sum() - tests)
    assert np.array_equal(use, split(usable, validation, test, Seeds(seed)))


def test_another_seed_another_split():
    usable = np.ones(100, dtype=bool)
    assert not np.array_equal(split(usable, 0.2, 0.3, Seeds(0)), split(usable, 0.2, 0.3, Seeds(1)))


def test_no_part_of_the_rows_is_preferred():
    """Over 300 seeds, each of 20 rows is a test row about 300 x 0.3 = 90 times, sd 8."""
    tested = sum(split(np.ones(20, dtype=bool), 0.2, 0.3, Seeds(seed)) == TEST for seed in range(300))
    assert tested.min() > 90 - 32
    assert tested.max() < 90 + 32


@pytest.mark.parametrize(("validation", "test"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5)])
def test_nothing_is_taken_where_nothing_is_asked(validation, test):
    use = split(np.ones(10, dtype=bool), validation, test, Seeds(0))
    assert (use == VALIDATION).sum() == validation * 10
    assert (use == TEST).sum() == test * 10
