"""Metrics of unequal and of many classes: weighted F1, balanced accuracy and top-5 accuracy."""

from __future__ import annotations

import math

import pytest
import sklearn.metrics as reference
import torch

from anyparty.core.predictions import Predictions
from anyparty.core.types import Task
from anyparty.errors import ConfigError
from anyparty.metrics import METRICS, headline, score
from tests.metrics.test_metrics import predicted

EIGHT = Task(kind="classification", classes=tuple("abcdefgh"))


def drawn(rows: int = 300) -> tuple[Predictions, torch.Tensor]:
    """Return predictions of eight unequal classes, and labels."""
    random = torch.Generator().manual_seed(3)
    y = torch.multinomial(torch.tensor([8.0, 4, 2, 1, 1, 1, 1, 1]), rows, replacement=True, generator=random)
    scores = (torch.randn(rows, 8, generator=random) + torch.eye(8)[y]).softmax(1)
    return predicted(scores, EIGHT), y


def test_they_equal_scikit_learn() -> None:
    predictions, y = drawn()
    got, best = score(predictions, y), predictions.scores.argmax(1)
    assert got["weighted_f1"] == pytest.approx(reference.f1_score(y, best, average="weighted"))
    assert got["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(y, best))
    assert got["top5_accuracy"] == pytest.approx(reference.top_k_accuracy_score(y, predictions.scores, k=5))
    assert len({round(got[name], 3) for name in ("accuracy", "macro_f1", "weighted_f1", "balanced_accuracy")}) == 4


def test_equal_probabilities_do_not_make_every_class_one_of_the_first_five() -> None:
    got = score(predicted(torch.full((8, 8), 1 / 8), EIGHT), torch.arange(8))
    assert got["top5_accuracy"] == 5 / 8


def test_rows_of_a_class_that_training_never_saw_are_wrong() -> None:
    predictions = predicted(
        torch.tensor([[1.0, 0, 0, 0, 0, 0, 0]] * 2), Task(kind="classification", classes=tuple("abcdefg"))
    )
    got = score(predictions.over(("h",)), torch.tensor([7, 0]))
    assert (got["top5_accuracy"], got["balanced_accuracy"]) == (1 / 2, 1 / 2)


def test_rows_of_one_class_have_a_balanced_accuracy_and_no_weighted_f1() -> None:
    got = score(predicted([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([1, 1]))
    assert got["balanced_accuracy"] == 1 / 2
    assert math.isnan(got["weighted_f1"])
    assert "top5_accuracy" not in got


def test_settings_may_name_them_if_they_fit() -> None:
    for name in ("weighted_f1", "balanced_accuracy", "top5_accuracy"):
        assert headline(EIGHT, name) == (name, True)
        assert not METRICS[name].detailed
    five = Task(kind="classification", classes=tuple("abcde"))
    with pytest.raises(ConfigError, match="for a classification into more than 5 classes, and this task has 5 classes"):
        headline(five, "top5_accuracy")
