import numpy as np
import pytest

from anyparty.alignment.alignment import Alignment


def test_observed_has_the_requested_order_of_parties():
    at = {"a": np.array([0, -1, 1]), "b": np.array([-1, 0, 1]), "labels": np.array([0, 1, 2])}
    alignment = Alignment(("labels", "a", "b"), 3, at)
    assert alignment.observed(["b", "a"]).tolist() == [[False, True], [True, False], [True, True]]
    assert alignment.observed([]).shape == (3, 0)


def test_invalid_positions_raise_an_assertion_error():
    with pytest.raises(AssertionError):
        Alignment(("a",), 3, {"a": np.array([0, 1])})
    with pytest.raises(AssertionError):
        Alignment(("a",), 2, {"a": np.array([0, 1], dtype=np.int32)})
