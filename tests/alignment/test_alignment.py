import numpy as np
import pytest

from anyparty.alignment.alignment import Alignment


def test_observed_is_in_the_order_asked_for():
    at = {"a": np.array([0, -1, 1]), "b": np.array([-1, 0, 1]), "labels": np.array([0, 1, 2])}
    alignment = Alignment(("labels", "a", "b"), 3, at)
    assert alignment.observed(["b", "a"]).tolist() == [[False, True], [True, False], [True, True]]
    assert alignment.observed([]).shape == (3, 0)


def test_positions_that_do_not_fit_are_our_own_mistake():
    with pytest.raises(AssertionError):
        Alignment(("a",), 3, {"a": np.array([0, 1])})
    with pytest.raises(AssertionError):
        Alignment(("a",), 2, {"a": np.array([0, 1], dtype=np.int32)})
