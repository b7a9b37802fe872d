"""A share above 0 holds out at least one row, as long as rows for training remain."""

import numpy as np
import polars as pl
import pytest

from anyparty import Federation
from anyparty.core.seeds import Seeds
from anyparty.problem.splits import TEST, VALIDATION, split


def counts(n, validation, test):
    use = split(np.ones(n, dtype=bool), validation, test, Seeds(0)).tolist()
    return use.count(VALIDATION), use.count(TEST)


@pytest.mark.parametrize(
    ("n", "validation", "test", "held_out"),
    [
        (60, 0.005, 0.2, (1, 12)),
        (60, 0.2, 0.005, (12, 1)),
        (10, 0.001, 0.001, (1, 1)),
        (1000, 0.0004, 0.0, (1, 0)),
        (60, 0.0, 0.0, (0, 0)),
        (60, 0.15, 0.2, (9, 12)),  # as before
        (4, 0.1, 0.1, (1, 1)),
        (3, 0.1, 0.1, (0, 0)),  # two rows are needed for training, so that no row is left to hold out
    ],
)
def test_how_many_rows_are_held_out(n, validation, test, held_out):
    assert counts(n, validation, test) == held_out


@pytest.mark.filterwarnings("ignore:stage 'train'")
def test_metric_and_patience_have_a_row_to_work_on():
    random = np.random.default_rng(0)
    ids, u, w = list(range(60)), *random.normal(size=(2, 60))
    tables = {"bank": pl.DataFrame({"id": ids, "u": u, "y": u > 0}), "shop": pl.DataFrame({"id": ids, "w": w})}
    model = Federation.from_tables(tables, label="y").train("laser", epochs=4, validation=0.005, patience=2)
    assert "validation" in model.history[-1]
