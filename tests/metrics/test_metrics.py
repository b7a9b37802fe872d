"""Test metrics by hand, against slow loops and against scikit-learn, with gaps in answers, labels and parties."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sklearn import metrics as reference
from torch import Tensor

from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.errors import ConfigError, PredictionError
from anyparty.metrics import (
    METRICS,
    Evaluation,
    by_count,
    by_pattern,
    client_accuracy,
    client_classes,
    client_f1,
    evaluate,
    headline,
    score,
    selection,
)

NAN = math.nan
TWO = Task(kind="classification", classes=("no", "yes"))
THREE = Task(kind="classification", classes=("red", "green", "blue"))
AMOUNT = Task(kind="regression", mean=100.0, scale=10.0)
BLOCKS = ("bank", "shop", "clinic")


def predicted(
    scores: object, task: Task = TWO, took: Tensor | None = None, by_party: Tensor | None = None, K: int = 3
) -> Predictions:
    """Return predictions of all parties by default."""
    values = torch.as_tensor(scores, dtype=torch.float32)
    return Predictions(
        task=task,
        blocks=BLOCKS[:K],
        scores=values,
        took_part=torch.ones(len(values), K, dtype=torch.bool) if took is None else took,
        asked=torch.ones(K, dtype=torch.bool),
        by_party=by_party,
    )


def world(seed: int, n: int = 60, C: int = 3, K: int = 3, own: bool = True) -> tuple[Predictions, Tensor, Tensor]:
    """Return random predictions with gaps, labels and masks."""
    draw = torch.Generator().manual_seed(seed)
    task = Task(kind="classification", classes=tuple("abcdefgh"[:C]))
    observed = torch.rand(n, K, generator=draw) < 0.6
    scores = torch.rand(n, C, generator=draw).mul(3).softmax(1)
    scores[torch.rand(n, generator=draw) < 0.2] = NAN
    each = torch.rand(n, K, C, generator=draw).softmax(2)
    each[~observed | (torch.rand(n, K, generator=draw) < 0.1)] = NAN
    y = torch.randint(C, (n,), generator=draw)
    return predicted(scores, task, by_party=each if own else None, K=K), y, observed


def guesses(n: int, C: int, seed: int = 0) -> list[int]:
    """Return the guesses by definition: one for each row."""
    return torch.randint(C, (n, 1), generator=torch.Generator().manual_seed(seed))[:, 0].tolist()


def same(ours: dict[str, float], theirs: dict[str, float]) -> None:
    assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True)


# ---------------------------------------------------------------- overall


def test_two_classes_by_hand():
    scores = [[0.2, 0.8], [0.4, 0.6], [0.9, 0.1], [0.3, 0.7], [NAN, NAN]]
    same(
        score(predicted(scores), torch.tensor([1, 0, 0, 1, 1])),
        {
            "accuracy": 3 / 4,
            "f1": 2 * 2 / (2 * 2 + 1 + 0),  # two right yeses, one wrong, none missed
            "macro_f1": (4 / 5 + 2 / 3) / 2,  # no: one right, one missed
            "weighted_f1": (4 / 5 * 2 + 2 / 3 * 2) / 4,
            "balanced_accuracy": (1 + 1 / 2) / 2,
            "auroc": 1.0,  # .8 and .7 are above .6 and .1
            "log_loss": -(math.log(0.8) + math.log(0.4) + math.log(0.9) + math.log(0.7)) / 4,
            "coverage": 4 / 5,
            "rows": 5,
        },
    )


def test_the_positive_class_is_the_second():
    scores, y = [[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]], torch.tensor([0, 0, 1, 1])
    assert score(predicted(scores), y)["f1"] == pytest.approx(2 / 3)  # of "no" it would be 4/5
    assert score(predicted([s[::-1] for s in scores]), 1 - y)["f1"] == pytest.approx(4 / 5)


def test_auroc_counts_ties_half():
    y = torch.tensor([1, 0, 1, 0])
    assert score(predicted([[0.5, 0.5]] * 4), y)["auroc"] == 0.5
    assert score(predicted([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9], [0.9, 0.1]]), y)["auroc"] == 3.5 / 4


def test_auroc_counts_ties_half_however_the_other_classes_share_the_rest():
    """Votes of ten neighbours: .1 + .3 and .2 + .2 differ in binary."""
    votes = torch.randint(0, 4, (400, 10), generator=torch.Generator().manual_seed(0)).clamp(max=2)
    scores = torch.stack([(votes == c).sum(1) / 10 for c in range(3)], 1)
    y = votes[:, 0]
    exact = [reference.roc_auc_score(y == c, (votes == c).sum(1)) for c in range(3)]
    assert score(predicted(scores, THREE), y)["auroc"] == pytest.approx(np.mean(exact), abs=1e-12)


@pytest.mark.parametrize("C", [2, 3])
def test_auroc_tells_rows_apart_whose_probability_rounds_to_one(C: int):
    """Single precision rounds probabilities to 1 from a logit of 17. The ranking must not change there."""
    logits = 30 * torch.randn(500, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (logits + 30 * torch.randn(500, C, generator=torch.Generator().manual_seed(1))).argmax(1)
    scores = logits.float().softmax(1)
    assert (scores == 1).double().mean() > 0.15
    odds = [logits[:, c] - torch.cat([logits[:, :c], logits[:, c + 1 :]], 1).logsumexp(1) for c in range(C)]
    exact = [reference.roc_auc_score(y == c, odds[c]) for c in range(C)]
    assert score(predicted(scores, TWO if C == 2 else THREE), y)["auroc"] == pytest.approx(np.mean(exact), abs=1e-6)


@pytest.mark.parametrize("C", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_classification_equals_scikit_learn(C: int, seed: int):
    predictions, y, _ = world(seed, n=200, C=C)
    labeled = torch.rand(200, generator=torch.Generator().manual_seed(seed)) < 0.7
    rows = (labeled & predictions.answered).numpy()
    p, truth = predictions.scores.numpy()[rows], y.numpy()[rows]
    best = p.argmax(1)
    ours = score(predictions, y, labeled)
    expected = {
        "accuracy": reference.accuracy_score(truth, best),
        "macro_f1": reference.f1_score(truth, best, average="macro"),
        "weighted_f1": reference.f1_score(truth, best, average="weighted"),
        "balanced_accuracy": reference.balanced_accuracy_score(truth, best),
        "auroc": np.mean([reference.roc_auc_score(truth == c, p[:, c]) for c in range(C)]),
        "log_loss": reference.log_loss(truth, p, labels=range(C)),
        "coverage": rows.sum() / labeled.sum().item(),
        "rows": labeled.sum().item(),
    }
    same(ours, expected | ({"f1": reference.f1_score(truth, best)} if C == 2 else {}))


def test_regression_is_in_the_labels_own_units():
    predictions = predicted([[103.0], [96.0], [NAN]], AMOUNT)
    y = torch.tensor([0.0, -1.0, 5.0])  # 100, 90, 150
    same(score(predictions, y), {"rmse": math.sqrt((9 + 36) / 2), "mae": 4.5, "coverage": 2 / 3, "rows": 3})
    assert selection(predictions, y, None, ["loss"]) == {"loss": pytest.approx((0.09 + 0.36) / 2)}


def test_a_certain_and_wrong_answer_costs_a_finite_loss():
    loss = score(predicted([[1.0, 0.0]]), torch.tensor([1]))["log_loss"]
    assert loss == pytest.approx(-math.log(2**-23))


@pytest.mark.parametrize("only", [0, 1])
def test_one_class_only_has_no_auroc(only: int):
    predictions = predicted([[0.2, 0.8], [0.4, 0.6]])
    got = score(predictions, torch.tensor([only, only]))
    assert math.isnan(got["auroc"])
    assert got["accuracy"] == only
    assert math.isnan(got["macro_f1"])
    assert got["f1"] == 1 if only else math.isnan(got["f1"])


@pytest.mark.parametrize("scores", [[0.8, 0.2], [0.2, 0.8]])
def test_f1_without_a_positive_label_is_undefined(scores):
    got = score(predicted([scores]), torch.tensor([0]))
    assert math.isnan(got["f1"])
    assert math.isnan(got["macro_f1"])


def test_classes_that_do_not_occur_are_left_out_of_the_means():
    scores = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.3, 0.4, 0.3]]
    got = score(predicted(scores, THREE), torch.tensor([0, 1, 0]))
    assert got["macro_f1"] == pytest.approx(2 / 3)  # red 2/3, green 2/3, blue neither is nor was called
    assert got["auroc"] == pytest.approx((1.0 + 1.0) / 2)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("task", [TWO, THREE, AMOUNT])
def test_nothing_answered_is_nan_and_no_warning(task: Task, rows: int):
    y = torch.zeros(rows, dtype=torch.int64 if task is not AMOUNT else torch.float32)
    predictions = predicted(torch.full((rows, task.outputs), NAN), task)
    got = score(predictions, y)
    assert got.pop("rows") == rows
    assert got.pop("coverage") == pytest.approx(0.0 if rows else NAN, nan_ok=True)
    assert all(math.isnan(value) for value in got.values())
    assert len(got) >= 2


def test_unlabelled_rows_do_not_matter():
    predictions, y, observed = world(1)
    labeled = torch.arange(60) % 3 > 0
    first = evaluate(predictions, y, labeled, observed, Seeds(0)).to_json()
    y[~labeled] = -1
    predictions.scores[~labeled] = NAN
    predictions.by_party[~labeled] = 0.0
    assert evaluate(predictions, y, labeled, observed, Seeds(0)).to_json() == first


@given(st.integers(0, 10**6), st.sampled_from([2, 3, 5]))
@settings(max_examples=25, deadline=None)
def test_row_order_does_not_matter(seed: int, C: int):
    predictions, y, _ = world(seed, n=20, C=C)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
    shuffled = predicted(predictions.scores[order], predictions.task)
    same(score(shuffled, y[order]), score(predictions, y))


def test_labels_of_another_length_are_refused():
    with pytest.raises(PredictionError, match="2 predictions cannot be scored against 3 labels"):
        score(predicted([[0.5, 0.5]] * 2), torch.tensor([0, 1, 1]))


# ---------------------------------------------------------------- selection


def test_selection_is_the_same_number_as_score():
    predictions, y, _ = world(2, C=2)
    labeled = torch.arange(60) % 4 > 0
    everything = score(predictions, y, labeled)
    names = ("accuracy", "macro_f1", "f1", "auroc", "log_loss")
    assert selection(predictions, y, labeled, names) == {name: everything[name] for name in names}
    assert selection(predictions, y, labeled, ["loss"]) == {"loss": everything["log_loss"]}


def test_selection_of_unanswered_rows_is_nan():
    assert math.isnan(selection(predicted([[NAN, NAN]]), torch.tensor([1]), None, ["accuracy"])["accuracy"])
    assert math.isnan(selection(predicted([[NAN]], AMOUNT), torch.tensor([1.0]), None, ["rmse"])["rmse"])
    none = selection(predicted([[0.5, 0.5]]), torch.tensor([1]), torch.tensor([False]), ["log_loss"])
    assert math.isnan(none["log_loss"])


def test_headline_by_task():
    assert headline(TWO) == ("log_loss", False)
    assert headline(AMOUNT) == ("rmse", False)
    assert headline(THREE, "accuracy") == ("accuracy", True)
    assert headline(AMOUNT, "loss") == ("loss", False)


@pytest.mark.parametrize(
    ("task", "metric", "says"),
    [
        (TWO, "acuracy", "there is no metric 'acuracy'; did you mean 'accuracy'?"),
        (TWO, "rmse", "'rmse' is for a regression task, and this task has 2 classes; choose one of accuracy, macro_f1"),
        (THREE, "f1", "'f1' is for a classification into two classes, and this task has 3 classes"),
        (AMOUNT, "auroc", "this task is a regression; choose one of rmse, mae, loss"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(task: Task, metric: str, says: str):
    with pytest.raises(ConfigError) as refused:
        headline(task, metric)
    assert says in str(refused.value)


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].fits(TWO) or METRICS[name].fits(AMOUNT)])
def test_greater_is_better_as_declared(name: str):
    task = TWO if METRICS[name].fits(TWO) else AMOUNT
    y = torch.tensor([0, 1, 1]) if task is TWO else torch.tensor([0.0, 1.0, 2.0])
    good = torch.eye(2)[y] * 0.8 + 0.1 if task is TWO else y[:, None] * 10 + 100
    bad = good.flip(1) if task is TWO else good + 50
    better, worse = (selection(predicted(s, task), y, None, [name])[name] for s in (good, bad))
    assert (better > worse) == METRICS[name].greater


# ---------------------------------------------------------------- groups

OBSERVED = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 0]], dtype=torch.bool)


def test_by_count_and_by_pattern_by_hand():
    right, wrong, none = [0.1, 0.9], [0.9, 0.1], [NAN, NAN]
    predictions, y = predicted([right, right, wrong, wrong, none, right]), torch.ones(6, dtype=torch.int64)
    counts = by_count(predictions, y, OBSERVED)
    assert list(counts) == [3, 2, 1, 0]
    assert [group["rows"] for group in counts.values()] == [1, 3, 1, 1]
    assert [counts[c]["accuracy"] for c in (3, 2, 1)] == [1.0, pytest.approx(2 / 3), 0.0]
    assert counts[0]["coverage"] == 0.0
    assert math.isnan(counts[0]["accuracy"])
    who = by_pattern(predictions, y, OBSERVED)
    assert next(iter(who)) == "bank + clinic"  # two rows; the others one each
    assert set(who) == {"bank + clinic", "bank + shop + clinic", "bank + shop", "clinic", "(nobody)"}
    assert (who["bank + clinic"]["accuracy"], who["bank + shop"]["accuracy"]) == (0.5, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_groups_equal_scoring_each_group_alone(seed: int):
    predictions, y, observed = world(seed, n=80)
    labeled = torch.rand(80, generator=torch.Generator().manual_seed(seed)) < 0.8
    counts, who = by_count(predictions, y, observed, labeled), by_pattern(predictions, y, observed, labeled)
    for c in range(4):
        same(counts[c], score(predictions, y, labeled & (observed.sum(1) == c)))
    for row in {tuple(row) for row in observed[labeled].tolist()}:
        name = " + ".join(b for b, here in zip(BLOCKS, row, strict=True) if here) or "(nobody)"
        same(who[name], score(predictions, y, labeled & (observed == torch.tensor(row)).all(1)))
    frequencies = [group["rows"] for group in who.values()]
    assert frequencies == sorted(frequencies, reverse=True)
    assert sum(frequencies) == sum(group["rows"] for group in counts.values()) == labeled.sum()


def test_at_most_so_many_patterns():
    predictions, y, observed = world(4, n=200)
    assert list(by_pattern(predictions, y, observed, most=2)) == list(by_pattern(predictions, y, observed))[:2]


def test_a_party_that_was_not_asked_is_not_present():
    predictions = predicted([[0.1, 0.9]] * 6)
    predictions.asked[2] = False
    y = torch.ones(6, dtype=torch.int64)
    assert {c: group["rows"] for c, group in by_count(predictions, y, OBSERVED).items()} == {2: 2, 1: 2, 0: 2}
    assert set(by_pattern(predictions, y, OBSERVED)) == {"bank + shop", "bank", "(nobody)"}


def test_observed_of_another_shape_is_refused():
    with pytest.raises(PredictionError, match=r"observed is \(6, 3\); 2 predictions of 3 parties need \(2, 3\)"):
        by_count(predicted([[0.5, 0.5]] * 2), torch.tensor([0, 1]), OBSERVED)


# ---------------------------------------------------------------- Appendix D


def test_client_metrics_by_hand():
    yes, no, none = [0.1, 0.9], [0.9, 0.1], [NAN, NAN]
    own = torch.tensor([[yes, no, yes], [no, none, yes], [no, yes, none]])
    observed = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=torch.bool)
    predictions, y = predicted([yes, yes, yes], by_party=own), torch.tensor([1, 1, 0])
    got = client_accuracy(predictions, y, observed, torch.Generator())
    assert got == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    f1 = client_f1(predictions, y, observed, torch.Generator())
    bank = 2 * 1.0 * 0.5 / (1.0 + 0.5)  # P = 1, R = 1/2; shop: P = R = 0; clinic: P = R = 1
    assert f1 == pytest.approx((bank + 0 + 1) / 3)


def slow_accuracy(predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor) -> float:
    """Compute the accuracy of Appendix D with loops."""
    guess = guesses(len(y), predictions.task.outputs)
    rows = []
    for n in range(len(y)):
        O_n = [k for k in range(observed.shape[1]) if observed[n, k]]
        if labeled[n] and O_n:
            rows.append(sum(slow_answer(predictions, n, k, guess) == y[n].item() for k in O_n) / len(O_n))
    return sum(rows) / len(rows)


def slow_f1(predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor) -> float:
    """Compute the F1 of Appendix D with scikit-learn, party by party."""
    guess, average = guesses(len(y), predictions.task.outputs), "binary" if predictions.task.outputs == 2 else "macro"
    each = []
    for k in range(observed.shape[1]):
        rows = [n for n in range(len(y)) if labeled[n] and observed[n, k]]
        answers = [slow_answer(predictions, n, k, guess) for n in rows]
        each.append(reference.f1_score(y[rows].tolist(), answers, average=average))
    return sum(each) / len(each)


def slow_answer(predictions: Predictions, n: int, k: int, guess: list[int]) -> int:
    own = predictions.by_party
    scores = predictions.scores[n] if own is None or own[n, k].isnan().any() else own[n, k]
    return guess[n] if any(math.isnan(s) for s in scores.tolist()) else int(scores.argmax())


@pytest.mark.parametrize(("own", "C", "seed"), [(True, 2, 0), (True, 4, 1), (False, 2, 2), (False, 4, 0)])
def test_client_metrics_equal_the_slow_loops(own: bool, C: int, seed: int):
    predictions, y, observed = world(seed, n=100, C=C, own=own)
    labeled = torch.rand(100, generator=torch.Generator().manual_seed(seed)) < 0.8
    fast = [
        f(predictions, y, observed, torch.Generator().manual_seed(0), labeled) for f in (client_accuracy, client_f1)
    ]
    slow = [f(predictions, y, observed, labeled) for f in (slow_accuracy, slow_f1)]
    assert fast == pytest.approx(slow)


def test_one_answer_for_all_is_given_to_each_party():
    predictions = predicted([[0.1, 0.9], [0.9, 0.1], [NAN, NAN]])
    chosen = client_classes(predictions, torch.Generator().manual_seed(5))
    guess = guesses(3, 2, seed=5)[2]
    assert chosen.tolist() == [[1, 1, 1], [0, 0, 0], [guess] * 3]


def test_a_party_without_a_head_gets_the_rows_answer():
    """Only the first party has a head, and it lacks the last row."""
    yes, no, none = [0.1, 0.9], [0.9, 0.1], [NAN, NAN]
    guessed = guesses(3, 2, seed=5)
    answers = [[yes, no][guessed[0]], [yes, no][guessed[1]], none]  # differs from the guess
    own = torch.tensor([[each, none, none] for each in answers])
    chosen = client_classes(predicted(answers, by_party=own), torch.Generator().manual_seed(5))
    assert chosen.tolist() == [[1 - guessed[0]] * 3, [1 - guessed[1]] * 3, [guessed[2]] * 3]


def test_a_partys_class_does_not_depend_on_other_rows():
    """The second party's head answers for the first row only; the second row alone gives the same result."""
    yes, no, none = [0.1, 0.9], [0.9, 0.1], [NAN, NAN]
    predictions = predicted([yes, yes], by_party=torch.tensor([[yes, no], [yes, none]]), K=2)
    for seed in range(6):
        both, alone = (
            client_classes(p, torch.Generator().manual_seed(seed)) for p in (predictions, predictions.take([1]))
        )
        assert both.tolist() == [[1, 0], [1, 1]]
        assert torch.equal(both[1:], alone)


def test_guesses_repeat_with_the_seed_and_are_uniform():
    nothing, y = predicted(torch.full((3000, 3), NAN), THREE), torch.zeros(3000, dtype=torch.int64)
    observed = torch.ones(3000, 3, dtype=torch.bool)
    first, again, other = (
        client_accuracy(nothing, y, observed, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first == pytest.approx(1 / 3, abs=0.04)  # five standard deviations
    drawn = client_classes(nothing, torch.Generator().manual_seed(1))[:, 0]
    assert (torch.bincount(drawn, minlength=3) / 3000).tolist() == pytest.approx([1 / 3] * 3, abs=0.04)


def test_two_methods_guess_alike_where_both_have_no_answer():
    none, some = predicted(torch.full((50, 2), NAN)), predicted(torch.tensor([[1.0, 0.0]] * 25 + [[NAN, NAN]] * 25))
    a, b = (client_classes(p, torch.Generator().manual_seed(3)) for p in (none, some))
    assert a[25:].equal(b[25:])
    assert not a[:25].equal(b[:25])


def test_rows_of_nobody_and_parties_without_positives_are_left_out():
    yes, no = [0.1, 0.9], [0.9, 0.1]
    predictions, y = predicted([yes, no, no]), torch.tensor([1, 0, 1])
    observed = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    assert client_accuracy(predictions, y, observed, torch.Generator()) == 1.0  # 2/3 if the last row counted
    assert client_f1(predictions, y, observed, torch.Generator()) == 1.0  # shop: 0/0; clinic: no row
    nobody = torch.zeros(3, 3, dtype=torch.bool)
    assert math.isnan(client_accuracy(predictions, y, nobody, torch.Generator()))
    assert math.isnan(client_f1(predictions, y, nobody, torch.Generator()))


def test_a_regression_has_no_client_metrics():
    with pytest.raises(ConfigError, match="client metrics are for classification"):
        client_accuracy(
            predicted([[1.0]], AMOUNT), torch.zeros(1), torch.ones(1, 3, dtype=torch.bool), torch.Generator()
        )


# ---------------------------------------------------------------- evaluation


def test_evaluation_gathers_all_of_it():
    predictions, y, observed = world(5, C=2)
    labeled = torch.arange(60) % 5 > 0
    got = evaluate(predictions, y, labeled, observed, Seeds(3))
    same(got.overall, score(predictions, y, labeled))
    same(got.by_count[2], by_count(predictions, y, observed, labeled)[2])
    same(got.by_pattern["bank"], by_pattern(predictions, y, observed, labeled)["bank"])
    guess = [Seeds(3).torch("evaluate", "guess") for _ in range(2)]
    assert got.clients == {
        "client_accuracy": client_accuracy(predictions, y, observed, guess[0], labeled),
        "client_f1": client_f1(predictions, y, observed, guess[1], labeled),
    }
    assert (got.asked, got.positive) == (BLOCKS, "b")


def test_scores_by_number_are_printed_if_a_number_has_several_sets():
    predictions, y, observed = world(5, C=2)
    assert "By number of parties present" in str(evaluate(predictions, y, None, observed, Seeds(3)))
    observed[:] = True
    observed[::2, 0] = False
    same_sets = evaluate(predictions, y, None, observed, Seeds(3))
    assert len(same_sets.by_count) == len(same_sets.by_pattern) == 2
    assert "By number of parties present" not in str(same_sets)
    assert "By who was present" in str(same_sets)


def test_json_is_strict_and_repeats_with_the_seed():
    predictions, y, observed = world(6)
    first, again, other = (
        json.dumps(evaluate(predictions, y, None, observed, Seeds(seed)).to_json(), allow_nan=False)
        for seed in (1, 1, 3)
    )
    assert first == again != other
    read = json.loads(first)
    assert read["overall"]["rows"] == 60
    assert list(read["by_count"]) == ["3", "2", "1", "0"]
    assert read["positive"] is None
    undefined = evaluate(predicted([[0.1, 0.9]]), torch.tensor([1]), None, OBSERVED[:1], Seeds(0)).to_json()
    assert undefined["overall"]["auroc"] is None


def shown(predictions: Predictions, y: Tensor, observed: Tensor) -> str:
    page = io.StringIO()
    Console(file=page, width=200).print(evaluate(predictions, y, None, observed, Seeds(0)).render())
    return page.getvalue()


def test_tables_show_the_numbers():
    predictions, y = predicted([[0.1, 0.9]] * 5 + [[NAN, NAN]]), torch.tensor([1, 1, 1, 0, 0, 1])
    text = shown(predictions, y, OBSERVED)
    for part in ("Overall", "client_accuracy", "positive class: yes", "83.3%", "bank + shop + clinic", "(nobody)", "–"):
        assert part in text, part
    assert "rarer" not in text


def test_tables_of_a_regression_and_of_names_that_look_like_markup():
    predictions = Predictions(
        task=AMOUNT,
        blocks=("[red]", "shop"),
        scores=torch.tensor([[103.0], [96.0]]),
        took_part=torch.ones(2, 2, dtype=torch.bool),
        asked=torch.ones(2, dtype=torch.bool),
        silent=("[red]",),
    )
    text = shown(predictions, torch.tensor([0.0, -1.0]), torch.ones(2, 2, dtype=torch.bool))
    for part in ("rmse", "4.743", "[red] + shop", "did not answer: [red]", "always answering their mean: rmse 5.000"):
        assert part in text, part
    assert "client" not in text


def test_the_score_of_a_constant_answer():
    """Two "no" and one "yes" of four rows are answered. Coverage is separate from the scores."""
    answers, everybody = predicted([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [NAN, NAN]]), torch.ones(4, 3, dtype=torch.bool)
    found = evaluate(answers, torch.tensor([0, 1, 0, 1]), None, everybody, Seeds(0))
    assert found.constant == {"accuracy": pytest.approx(2 / 3)}
    assert found.to_json()["constant"] == found.constant
    text = shown(answers, torch.tensor([0, 1, 0, 1]), everybody)
    assert f"always answering {TWO.classes[0]!r}, the commonest of these rows: accuracy 0.6667" in text
    assert "scores are of the 3 of 4 rows that got an answer" in text
    assert "client_accuracy and client_f1: mean over parties of the score on the rows that the party has" in text


def test_tables_say_how_many_rows_have_rarer_patterns():
    task, K = TWO, 6
    observed = (torch.arange(64)[:, None] >> torch.arange(K)) % 2 == 1
    predictions = Predictions(
        task=task,
        blocks=tuple("abcdef"),
        scores=torch.full((64, 2), 0.5),
        took_part=observed,
        asked=torch.ones(K, dtype=torch.bool),
    )
    assert "32 rows in rarer patterns" in shown(predictions, torch.zeros(64, dtype=torch.int64), observed)


def test_tables_fit_into_a_terminal_of_eighty_columns():
    """All metrics of two classes fit, and no heading or number is cut, for any length of a party's name."""
    predictions = Predictions(
        task=TWO,
        blocks=("bank", "department of internal medicine"),
        scores=torch.full((2000, 2), 0.5),
        took_part=torch.ones(2000, 2, dtype=torch.bool),
        asked=torch.ones(2, dtype=torch.bool),
    )
    observed = torch.ones(2000, 2, dtype=torch.bool)
    observed[:500, 0] = observed[500:1000, 1] = False  # one party is present in two ways: no table is left out
    console = Console(width=80)
    with console.capture() as captured:
        console.print(evaluate(predictions, torch.zeros(2000, dtype=torch.int64), None, observed, Seeds(0)))
    text = captured.get()
    assert "…" not in text
    assert text.count("coverage") == 3
    assert "department" in text


def test_evaluation_of_no_rows():
    text = shown(predicted(torch.empty(0, 2)), torch.empty(0, dtype=torch.int64), torch.empty(0, 3, dtype=torch.bool))
    assert "coverage" in text


@pytest.mark.slow
def test_a_million_rows():
    predictions, y, observed = world(0, n=1_000_000, C=2)
    found = evaluate(predictions, y, None, observed, Seeds(0)).overall
    assert found["rows"] == 1_000_000
    assert found["accuracy"] == pytest.approx(0.5, abs=0.003)  # six times its standard error
    assert found["coverage"] == pytest.approx(0.8, abs=0.003)


def test_rows_of_an_unseen_class_count_as_wrong_and_are_reported():
    """The last of four rows has a third class: right, right, wrong, wrong."""
    answers = predicted([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]])
    y, everybody = torch.tensor([0, 1, 0, 2]), torch.ones(4, 3, dtype=torch.bool)
    found = evaluate(answers, y, None, everybody, Seeds(0), unseen=("perhaps",))
    assert found.overall["accuracy"] == found.clients["client_accuracy"] == 0.5
    expected = reference.f1_score(y, [0, 1, 1, 1], average="macro")
    assert found.overall["macro_f1"] == pytest.approx(expected)
    assert found.unseen == found.to_json()["unseen"] == {"perhaps": 1}
    page = io.StringIO()
    Console(file=page, width=200).print(found.render())
    assert "counted as wrong: 1 rows of class 'perhaps', which training never saw" in " ".join(page.getvalue().split())
    assert evaluate(answers, torch.tensor([0, 1, 0, 1]), None, everybody, Seeds(0)).unseen == {}


def test_one_row_of_an_unseen_class_leaves_the_metrics_of_two_classes_what_they_are():
    torch.manual_seed(0)
    y = torch.randint(2, (500,))
    p = torch.sigmoid(2 * y - 1 + torch.randn(500))
    answers, everybody = predicted(torch.stack([1 - p, p], 1)), torch.ones(500, 3, dtype=torch.bool)
    plain = evaluate(answers, y, None, everybody, Seeds(0))
    found = evaluate(answers, y.index_fill(0, torch.tensor([7]), 2), None, everybody, Seeds(0), unseen=("perhaps",))
    assert found.positive == plain.positive
    for of in ("overall", "clients"):
        one, other = getattr(found, of), getattr(plain, of)
        assert one.keys() == other.keys()
        for name in {"auroc", "f1", "client_f1", "accuracy", "client_accuracy"} & one.keys():
            assert one[name] == pytest.approx(other[name], abs=0.01), name
    positive = y.index_fill(0, torch.tensor([7]), 2) == 1
    assert found.overall["auroc"] == pytest.approx(reference.roc_auc_score(positive, p))


@pytest.mark.parametrize(
    ("y", "absent", "said"),
    [
        ([0, 1, 0, 1], ["blue"], "auroc is the mean over 2 of 3 classes: no scored row is of class 'blue'"),
        ([0, 1, 2, 1], [], ""),
        ([1, 1, 1, 1], ["red", "blue"], ""),  # there is no auroc
    ],
)
def test_an_evaluation_names_the_classes_that_auroc_leaves_out(y, absent, said):
    scores = [[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]
    found = evaluate(predicted(scores, THREE), torch.tensor(y), None, torch.ones(4, 3, dtype=torch.bool), Seeds(0))
    page = io.StringIO()
    Console(file=page, width=200).print(found.render())
    assert found.to_json()["absent"] == absent
    assert ("auroc is the mean" in page.getvalue()) == bool(said)
    assert said in page.getvalue()
    two = evaluate(predicted([[0.2, 0.8]] * 2), torch.tensor([1, 1]), None, OBSERVED[:2], Seeds(0))
    assert two.absent == ()
    again = Evaluation.from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json() == found.to_json()
    read = io.StringIO()
    Console(file=read, width=200).print(again.render())
    assert read.getvalue() == page.getvalue()
