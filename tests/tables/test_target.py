import re

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.core.types import Task
from anyparty.errors import AnypartyWarning, TableError
from anyparty.tables.target import described, encode, infer_task


def series(*cells):
    return pl.Series("sick", list(cells), strict=False)


SELDOM = "; reason: 21 different whole numbers from 0 to 20 in 21 labels"
FEW = "; reason: at most 20 different whole numbers"
OTHER = "; positive is {}, unless federation.positive names the other"


def task_of(*cells, **settings):
    return infer_task(series(*cells), party="clinic", **settings)


def refuses(sentence, *cells, **settings):
    with pytest.raises(TableError, match=rf"party 'clinic', label column 'sick': .*{sentence}"):
        task_of(*cells, **settings)


class TestInfer:
    @pytest.mark.parametrize(
        ("cells", "classes", "label_type"),
        [
            (("no", "yes ", None, "no"), ("no", "yes"), "text"),
            ((True, False, None), ("false", "true"), "boolean"),
            (("TRUE", "false"), ("false", "true"), "text"),
            ((10, 1, 0, None), ("0", "1", "10"), "integer"),
            ((1.0, 0.0, None, float("nan")), ("0", "1"), "number"),
            (("10", "9", "-1", "-2", "?"), ("-2", "-1", "9", "10"), "text"),
            (("2", "10", "b"), ("10", "2", "b"), "text"),
            (tuple("abcdefghijklmnopqrstuvwxyz"), tuple("abcdefghijklmnopqrstuvwxyz"), "text"),
            (range(20), tuple(map(str, range(20))), "integer"),
        ],
    )
    def test_classes(self, cells, classes, label_type):
        assert task_of(*cells) == Task(kind="classification", classes=classes, label_type=label_type)

    def test_categories_are_classes(self):
        label = pl.Series("y", ["1.5", "2.5"], dtype=pl.Categorical)
        assert infer_task(label, party="clinic").classes == ("1.5", "2.5")

    @pytest.mark.parametrize("cells", [range(21), (0.5, 1.0), ("0.5", "1")])
    def test_quantities(self, cells):
        assert task_of(*cells).kind == "regression"

    def test_the_user_may_know_better(self):
        assert task_of(1, 2, 3, kind="regression").kind == "regression"
        assert task_of(*range(30), kind="classification").outputs == 30
        assert task_of(0.5, 1.5, kind="classification").classes == ("0.5", "1.5")

    def test_mean_and_scale_are_of_training_rows_and_classes_are_of_all(self):
        task = task_of(1.5, 3.5, 1000.0, None, train_rows=np.array([0, 1, 3]))
        assert (task.mean, task.scale) == (2.5, 1.0)
        with pytest.warns(AnypartyWarning, match=r"no training row is of class 'c', but held-out rows are \(1\)"):
            assert task_of("a", "b", "c", train_rows=np.array([0, 1])).classes == ("a", "b", "c")

    @pytest.mark.parametrize("cells", [(None, None), ("", "NA"), (float("nan"),)])
    def test_no_labels(self, cells):
        refuses("no row for training has a label; at least two", *cells)

    def test_no_labels_in_training(self):
        refuses("no row for training has a label", None, "a", "b", train_rows=np.array([0]))

    def test_one_class(self):
        refuses("all labels for training are 'yes'; at least two classes", "yes", None, "yes ")
        refuses("all labels for training are 'a'", "a", "a", "b", train_rows=np.array([0, 1]))

    def test_one_number(self):
        refuses("all labels for training are 2.5; at least two values", 2.5, 2.5, 7.0, train_rows=np.array([0, 1]))

    def test_a_cell_that_is_no_number_in_regression(self):
        refuses("a number was expected for regression, not 'x' in row 2; correct it", "1.5", "x", kind="regression")
        for far in (float("inf"), -1e200):
            said = f"a number of at most 3.4e.38 was expected for regression, not '{re.escape(repr(far))}' in row 2"
            refuses(said, 1.5, far, kind="regression")

    def test_infinite_numbers(self):
        refuses("1 of 3 numbers are infinite, 'inf' in row 3; leave them empty", 0.0, 1.0, float("inf"))

    def test_large_whole_numbers_are_counted_as_they_are(self):
        """As floats, all eighty would be equal."""
        assert infer_task(pl.Series("y", [10**18 + i for i in range(80)]), party="clinic").kind == "regression"

    def test_numbers_too_near_to_each_other(self):
        refuses("labels from 1e-300 to 2e-300 are too small, or too near", 1e-300, 2e-300)

    def test_a_cell_that_is_no_number_among_many_numbers(self):
        refuses("nearly all cells are numbers, but not 'x' in row 31; correct", *map(str, range(30)), "x")

    def test_many_numbers_beside_one_or_two_texts_are_no_classes(self):
        cells = [*map(str, range(30)), *"pppp", *"xxxxx"]
        refuses(
            r"it has numbers except for 'x' \(5 cells\), 'p' \(4 cells\), 'p' in row .*; leave",
            *cells,
        )
        assert task_of(*cells, kind="classification").outputs == 32
        refuses(
            "'p' in 4 of 24 labels beside '0', '1', .* may stand for a missing label", *map(str, range(20)), *"pppp"
        )
        assert task_of(*map(str, range(30)), *"ppppxyyyz").outputs == 34

    def test_identifiers_are_no_classes(self):
        many = [f"p{i}" for i in range(1200)]
        refuses("1200 different values in 1200 labelled rows, such as 'p0' in row 1, .*, look like identifiers", *many)
        said = "1200 different values in 1200 labelled rows, such as 'p0', 'p1', are too many"
        refuses(said, *many, kind="classification")

    @pytest.mark.parametrize(
        ("cells", "looks"),
        [
            ([f"-0,{i:02}" for i in range(40)] * 10, "numbers with decimal commas; write them with a decimal point"),
            ([f"2026-01-{i:02}" for i in range(1, 29)] * 9, "dates; write a number instead"),
            ([f"<0.{i}" for i in range(10, 40)] * 9, "numbers that are known as limits"),
            ([f"{i}.5%" for i in range(100)], "numbers with a unit; write the numbers alone, all in the same unit"),
            ([f"{i:02}:35" for i in range(24)] * 9, "times; write a number instead, such as minutes"),
            ([f"note {i}" for i in range(100)], "identifiers or free text; name another label column"),
        ],
    )
    def test_what_looks_like_something_else_is_no_class_unless_it_is_said_to_be(self, cells, looks):
        refuses(f"look like {looks}", *cells)
        assert len(task_of(*cells, kind="classification").classes) == len(set(cells))


def often(values, rows=20):
    return [value for value in values for _ in range(rows)]


class TestManyWholeNumbers:
    """More than 20 different whole numbers are classes, a quantity, or a question to the user."""

    @pytest.mark.parametrize("start", [0, 1])
    @pytest.mark.parametrize("dtype", [pl.UInt8, pl.Int64, pl.Float32, pl.String])
    def test_codes_that_are_often_repeated_are_classes(self, start, dtype):
        label = pl.Series("letter", often(range(start, start + 26))).cast(dtype)
        task = infer_task(label, party="clinic")
        assert (task.kind, task.outputs) == ("classification", 26)
        said = described(task, label)
        assert 'federation.task = "regression" for numbers; reason: the 26 whole numbers from' in said
        assert "each in at least 20 rows" in said

    def test_hundreds_of_codes_are_classes(self):
        assert task_of(*often(range(100))).outputs == 100
        assert task_of(*often(range(1, 201))).outputs == 200

    @pytest.mark.parametrize(
        "cells",
        [
            often(range(21), 19),  # seldom repeated
            range(1000),
            [*range(200)] * 200 + [500],  # repeated, but many of them, and not consecutive
            often(range(0, 50_000, 100)),
        ],
    )
    def test_many_or_seldom_repeated_numbers_are_a_quantity(self, cells):
        assert task_of(*cells).kind == "regression"

    @pytest.mark.parametrize(
        "cells",
        [
            often(b"abcdefghijklmnopqrstuvwxyz"),  # ASCII codes
            often(range(18, 88)),  # ages
            often(range(-5, 30)),
            [*often(range(25), 30), 25],  # a rare class
            [*often(range(30)), *often([40])],  # a gap
        ],
    )
    def test_the_user_is_asked_if_both_are_plausible(self, cells):
        refuses(
            r"may be classes or numbers; write one of these lines .*task\):\nfederation.task = \"classification\"\n"
            r"federation.task = \"regression\"",
            *cells,
        )
        assert task_of(*cells, kind="classification").outputs == len(set(cells))
        assert task_of(*cells, kind="regression").kind == "regression"


class TestPositive:
    def test_it_is_the_second_class(self):
        assert task_of("ja", "nein").classes == ("ja", "nein")
        assert task_of("ja", "nein", positive="ja").classes == ("nein", "ja")
        assert task_of(1, 0, positive="0").classes == ("1", "0")

    def test_what_it_cannot_be(self):
        refuses("should be one of two classes; here are 'ja', 'nein'; did you mean 'ja'", "ja", "nein", positive="jaa")
        refuses("is for two classes, and here are 3: 'a', 'b', 'c'; leave it out", "a", "b", "c", positive="a")
        refuses("its labels are numbers, of which none is positive", 0.5, 1.5, positive="0.5")


class TestDescribed:
    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            (("no", "yes", None), f"classification, classes no, yes{OTHER.format('yes')}"),
            ((0, 1, None), f"classification, classes 0, 1{OTHER.format(1)}"),
            ((1, 2, 3), 'classification, classes 1, 2, 3; federation.task = "regression" for numbers' + FEW),
            (("3", "1", "2", "?"), 'classification, classes 1, 2, 3; federation.task = "regression" for numbers' + FEW),
            (
                range(20),
                'classification, classes 0, 1, 2 and 17 more; federation.task = "regression" for numbers' + FEW,
            ),
            (tuple("abcd"), "classification, classes a, b, c and 1 more"),
            (
                range(21),
                'regression, numbers from 0 to 20; federation.task = "classification" for classes' + SELDOM,
            ),
            ((0.5, None, 2.25), "regression, numbers from 0.5 to 2.25"),
            ((None, None), "none, for no row has a label"),
        ],
    )
    def test_what_labels_are_read_as(self, cells, said):
        assert described(task_of(*cells, without=True), series(*cells)) == f"task: {said}"

    def test_what_was_asked_for_needs_no_hint(self):
        for kind in ("classification", "regression"):
            assert "federation.task" not in described(task_of(1, 2, 3, kind=kind), series(1, 2, 3), kind)

    def test_categories(self):
        label = pl.Series("y", ["1", "2", "x"], dtype=pl.Categorical)
        assert described(infer_task(label, party="clinic"), label) == "task: classification, classes 1, 2, x"


class TestEncode:
    def test_classes(self):
        y, labeled = encode(series("b", None, "a", " b"), Task(kind="classification", classes=("a", "b")), "clinic")
        assert y.tolist() == [1, -1, 0, 1]
        assert y.dtype == torch.int64
        assert labeled.tolist() == [True, False, True, True]

    def test_the_same_class_however_it_is_written(self):
        task = task_of("0", "1")
        for cells in ((0, 1), (0.0, 1.0), ("0.0", "1")):
            assert encode(series(*cells), task, "clinic")[0].tolist() == [0, 1]

    def test_numbers_are_standardised(self):
        label = series(1, None, 4, 10)
        task = infer_task(label, party="clinic", kind="regression")
        y, labeled = encode(label, task, "clinic")
        assert y.dtype == torch.float32
        assert y[labeled].mean().item() == pytest.approx(0, abs=1e-6)
        assert y[labeled].std(unbiased=False).item() == pytest.approx(1)
        assert y[1].isnan()
        assert (y[3] * task.scale + task.mean).item() == pytest.approx(10)

    def test_no_labels_at_prediction(self):
        for task in (Task(kind="classification", classes=("a", "b")), Task(kind="regression")):
            assert not encode(series(None, None), task, "clinic")[1].any()

    def test_a_number_that_is_infinite_beside_trainings(self):
        task = infer_task(series(0, 1e-3, 2e-3, 1e38), party="clinic", kind="regression", train_rows=np.arange(3))
        with pytest.raises(
            TableError, match=r"'sick': too far from the mean 0.001 .* to compute with: '1e.?38' in row 4"
        ):
            encode(series(0, 1e-3, 2e-3, 1e38), task, "clinic")

    def test_a_class_that_training_never_saw(self):
        with pytest.raises(
            TableError, match=r"'clinic', .*'sick': training never saw the label 'c' in row 2; known are 'a'"
        ):
            encode(series("a", "c", None), Task(kind="classification", classes=("a", "b")), "clinic")

    def test_a_label_that_is_no_number(self):
        with pytest.raises(TableError, match="expected for regression, not 'c' in row 2"):
            encode(series("1", "c"), Task(kind="regression"), "clinic")
