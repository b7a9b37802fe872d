"""Test predictions as labels and as a data frame, with rows without an answer."""

from __future__ import annotations

import math

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyparty.core.predictions import Predictions, members, patterns, predicted_class
from anyparty.core.types import Task
from anyparty.errors import PredictionError

NAN = math.nan
YES_NO = Task(kind="classification", classes=("no", "yes"))
AMOUNT = Task(kind="regression", mean=100.0, scale=10.0)


def three(**changes: object) -> Predictions:
    """Return predictions of two parties for three rows: a yes, a no, and one without an answer."""
    given_ = {
        "task": YES_NO,
        "blocks": ("bank", "shop"),
        "scores": torch.tensor([[0.2, 0.8], [0.75, 0.25], [NAN, NAN]]),
        "took_part": torch.tensor([[True, True], [False, True], [False, False]]),
        "asked": torch.tensor([True, True]),
        "reasons": {2: "no present party has it"},
        "id_columns": pl.DataFrame({"id": ["a", "b", "c"]}),
    }
    return Predictions(**{**given_, **changes})


def test_they_are_printed_without_answers_ids_and_what_the_label_is() -> None:
    made = three(predictor="LASER-VFL")
    assert repr(made) == "<Predictions of 3 rows by LASER-VFL: 2 answered; asked: bank, shop>"
    numbers = three(task=AMOUNT, scores=torch.tensor([[90.0], [NAN], [105.5]], dtype=torch.float64))
    assert repr(numbers) == "<Predictions of 3 rows: 2 answered; asked: bank, shop>"


def test_rows_are_taken_in_another_order_with_all_that_is_said_of_them() -> None:
    by_party = torch.rand(3, 2, 2)
    taken, made = three(by_party=by_party).take([2, 0]), three()
    assert taken.ids == ("c", "a")
    assert taken.reasons == {0: "no present party has it"}
    assert taken.by_party is not None
    assert torch.equal(taken.by_party, by_party[[2, 0]])
    assert taken.frame().equals(made.frame()[[2, 0]])


def test_labels_name_the_most_probable_class_and_none_where_there_is_no_answer():
    assert three().labels() == ["yes", "no", None]
    assert three().answered.tolist() == [True, True, False]
    assert len(three()) == 3


def test_a_row_with_one_number_missing_is_not_answered():
    partly = three(scores=torch.tensor([[0.2, NAN], [NAN, 0.9], [0.5, 0.5]]))
    assert partly.labels() == [None, None, "no"]


def test_numbers_come_as_they_are():
    amounts = three(task=AMOUNT, scores=torch.tensor([[101.5], [NAN], [-3.0]]))
    assert amounts.labels() == [101.5, None, -3.0]
    assert amounts.frame()["prediction"].to_list() == [101.5, None, -3.0]
    assert amounts.frame().columns == ["id", "prediction", "parties", "reason"]


def test_frame_shows_provenance_and_never_a_number_in_place_of_an_absent_answer():
    frame = three().frame()
    assert frame.columns == ["id", "prediction", "p(no)", "p(yes)", "parties", "reason"]
    assert frame["prediction"].to_list() == ["yes", "no", None]
    assert frame["p(yes)"].to_list() == [pytest.approx(0.8), 0.25, None]
    assert frame["parties"].to_list() == ["bank shop", "shop", ""]
    assert frame["reason"].to_list() == [None, None, "no present party has it"]


def test_probabilities_are_null_without_an_answer_and_refused_in_a_regression():
    p = three().probabilities()
    assert p.columns == ["id", "p(no)", "p(yes)"]
    assert p["p(no)"].to_list() == [pytest.approx(0.2), 0.75, None]
    with pytest.raises(PredictionError, match="predicts numbers, which have no probabilities"):
        three(task=AMOUNT, scores=torch.tensor([[101.5], [NAN], [-3.0]])).probabilities()


@pytest.mark.parametrize("task", [YES_NO, AMOUNT])
def test_frame_of_no_rows_keeps_its_types(task: Task):
    none = three(
        task=task,
        scores=torch.empty(0, task.outputs),
        took_part=torch.empty(0, 2, dtype=torch.bool),
        reasons={},
        id_columns=pl.DataFrame({"id": []}, schema={"id": pl.String}),
    ).frame()
    assert none.height == 0
    expected = pl.String if task is YES_NO else pl.Float64
    assert (none["id"].dtype, none["prediction"].dtype, none["reason"].dtype) == (pl.String, expected, pl.String)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scores": torch.zeros(3, 3)},
        {"took_part": torch.zeros(3, 1, dtype=torch.bool)},
        {"asked": torch.ones(3, dtype=torch.bool)},
        {"by_party": torch.zeros(3, 2)},
        {"id_columns": pl.DataFrame({"id": ["a"]})},
    ],
)
def test_shapes_that_do_not_fit_are_refused(wrong: dict[str, object]):
    with pytest.raises(AssertionError):
        three(**wrong)


def test_the_predicted_class_is_the_first_of_equals_in_any_shape():
    scores = torch.tensor([[[0.5, 0.5], [0.1, 0.9]], [[NAN, 0.9], [0.9, NAN]]])
    assert predicted_class(YES_NO, scores).tolist() == [[0, 1], [-1, -1]]


@given(
    st.sampled_from([1, 3, 29, 30, 31, 64, 65]).flatmap(
        lambda k: st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=1, max_size=12)
    )
)
def test_patterns_are_the_distinct_rows(rows: list[list[bool]]):
    present = torch.tensor(rows)
    distinct, which = patterns(present)
    assert [tuple(row) for row in distinct.tolist()] == sorted({tuple(row) for row in rows})
    assert distinct[which].equal(present)


def test_patterns_tell_apart_parties_that_are_far_apart():
    present = torch.zeros(65, 65, dtype=torch.bool).fill_diagonal_(fill_value=True)
    distinct, which = patterns(present)
    assert len(distinct) == 65
    assert which.tolist() == list(reversed(range(65)))  # the first party has the highest priority


def test_patterns_of_no_rows():
    distinct, which = patterns(torch.empty(0, 3, dtype=torch.bool))
    assert (distinct.shape, which.shape) == ((0, 3), (0,))


def test_members_are_named_in_order():
    assert members(torch.tensor([True, False, True]), ("bank", "shop", "clinic")) == ("bank", "clinic")


def test_classes_that_training_never_saw_get_probability_0_and_gaps_stay_gaps():
    wider = three(by_party=torch.full((3, 2, 2), 0.5)).over(("maybe", "never"))
    assert wider.task.classes == ("no", "yes", "maybe", "never")
    assert wider.scores[:2, 2:].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert wider.by_party[0, 0].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert wider.labels() == three().labels()
    assert three().over(()).task == YES_NO
