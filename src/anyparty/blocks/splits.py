"""Split rows into training, validation and test before anything is fitted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anyparty.seeds import Seeds

TRAIN, VALIDATION, TEST = 0, 1, 2


def split(usable: NDArray[np.bool_], validation: float, test: float, seeds: Seeds) -> NDArray[np.int8]:
    """Draw shares of the usable rows for validation and test; return each row's use, [N] int8.

    All other rows are for training. Rows without a label, or held by no party, are not usable for validation or test,
    but a method may still learn from them.

    >>> split(np.ones(10, dtype=bool), 0.2, 0.3, Seeds(0)).tolist().count(TEST)
    3
    """
    use = np.full(len(usable), TRAIN, dtype=np.int8)
    rows = seeds.numpy("split").permutation(np.flatnonzero(usable))
    tests, validations = round(test * len(rows)), round(validation * len(rows))
    use[rows[:tests]] = TEST
    use[rows[tests : tests + validations]] = VALIDATION
    return use
