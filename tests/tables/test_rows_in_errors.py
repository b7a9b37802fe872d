"""A table that stops because of its cells names up to five of their rows, on the party's own machine only."""

import re

import numpy as np
import polars as pl
import pytest

from anyparty.deployment.flare.job import farewell
from anyparty.errors import TableError
from anyparty.tables.preprocessing import Prepare
from anyparty.tables.reading_rules import ReadingRules
from anyparty.tables.table import read_table
from anyparty.tables.target import infer_task

N = 60
NUMBERS = [f"{row}.5" for row in range(N)]
CLASSES = ["0", "1"] * (N // 2)


def some(cells, odd, count):
    """Return the cells, of which ``count`` from the third are ``odd``, a text or a function of the row."""
    return [
        (odd if isinstance(odd, str) else odd(row)) if 2 <= row < 2 + count else cell for row, cell in enumerate(cells)
    ]


FEATURES = {
    "words": some(NUMBERS, "refused", 6),
    "two words among numbers": some(NUMBERS, "none given", 20),
    "limits": some(NUMBERS, "<25", 8),
    "notation": [f"{row}:30" for row in range(20)] + [f"{row}:45" for row in range(20)] + ["x", "y"],
    "several units": [f"{row}{'kg' if row % 2 else '%'}" for row in range(N)],
    "infinite": some(NUMBERS, "inf", 7),
    "too large": some(NUMBERS, "1e300", 7),
}
LABELS = {
    "a word for missing": some(CLASSES, "unknown", 7),
    "minus nine": some(CLASSES, "-9", 7),
    "one class or two": some(["01", "2"] * 30, "1", 7),
    "yes and no": some(["yes", "no"] * 30, "1", 7),
    "words among numbers": some(NUMBERS, "refused", 6),
    "two words among numbers": some(NUMBERS, "none given", 20),
    "notation": [f"{row}:30" for row in range(24)] * 2,
    "infinite": some(NUMBERS, "inf", 7),
}
IDS = {
    "empty": some(map(str, range(N)), "", 7),
    "doubled": [*map(str, range(50)), *map(str, range(10))],
    "shortened": some(map(str, range(N)), lambda row: f"{row}.2E+11", 7),
    "control characters": some(map(str, range(N)), lambda row: f"a\x01{row}", 7),
}


def message(ids=None, income=None, label=None, **options) -> str:
    frame = pl.DataFrame({"id": list(ids or map(str, range(len(income or label or []))))})
    for name, cells in (("income", income), ("label", label)):
        if cells is not None:
            frame = frame.with_columns(pl.Series(name, cells))
    with pytest.raises(TableError) as stopped:  # noqa: PT012 - either reading or the task stops
        table = read_table(frame, party="bank", id="id", label="label" if label is not None else None, **options)
        infer_task(table.label, party="bank")
    return str(stopped.value)


def rows_of(said: str) -> list[int]:
    """Return the row numbers that a message names."""
    several = re.findall(r"in rows (\d+(?:, \d+)*)|in row ('\d+'(?:, '\d+')+)", said)
    listed = [number for groups in several for number in re.findall(r"\d+", "".join(groups))]
    return [int(number) for number in listed or re.findall(r"in row (\d+)", said)]


@pytest.mark.parametrize("name", FEATURES)
def test_features(name):
    rows = rows_of(message(income=FEATURES[name]))
    assert 1 <= len(rows) <= 5
    if any(cell in FEATURES[name][:2] for cell in NUMBERS):
        assert rows == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", LABELS)
def test_labels(name):
    said = message(label=LABELS[name], income=CLASSES[: len(LABELS[name])])
    assert 1 <= len(rows_of(said)) <= 5, said


@pytest.mark.parametrize("name", IDS)
def test_ids(name):
    said = message(ids=IDS[name], income=CLASSES)
    assert 5 <= len(rows_of(said)) <= 10, said


def test_doubled_ids_with_different_labels():
    ids = [str(row // 2) for row in range(N)]
    said = message(ids=ids, label=[str(row % 2) for row in range(N)], income=CLASSES, duplicates="mean")
    assert rows_of(said)[:2] == [1, 2]


def test_a_label_that_is_not_declared():
    said = message(label=some(CLASSES, "2", 7), income=CLASSES, rules=ReadingRules(classes={"0": ("0",), "1": ("1",)}))
    assert rows_of(said) == [3, 4, 5, 6, 7]


def test_numbers_at_prediction():
    def table(income):
        return read_table(pl.DataFrame({"id": range(N), "income": income}), party="bank", id="id")

    prepare = Prepare.fit(table([1e-30 * row for row in range(N)]), np.arange(N))
    with pytest.raises(TableError, match=r"too far from those of training: '1e\+30' in row 2, '2e\+30' in row 3"):
        prepare.apply(table([1.0, 1e30, 2e30, *[0.0] * (N - 3)]))
    with pytest.raises(TableError, match="'red' in row 1, 'blue' in row 2"):
        prepare.apply(table(["red", "blue"] * 30))


def test_other_parties_learn_the_kind_of_an_error_alone():
    said = message(income=FEATURES["words"])
    told = farewell(TableError.__name__)
    assert "refused" in said
    assert not re.search(r"refused|income|\d", told)
