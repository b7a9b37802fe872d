"""With class weights, probabilities are those of the table, and the predicted classes are the weighted ones."""

import numpy as np
import polars as pl
import pytest
import torch

from anyparty import Federation, Model
from anyparty.core.predictions import Predictions, predicted_class
from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.metrics import METRICS, evaluate
from anyparty.metrics.scores import LabelledPredictions

PQ = Task(kind="classification", classes=("a", "b", "c"), weights=(0.5, 1.0, 4.0))


def of(scores, task=PQ, **more):
    scores = torch.as_tensor(scores)
    some = torch.ones(len(scores), 1, dtype=torch.bool)
    return Predictions(task=task, blocks=("x",), scores=scores, took_part=some, asked=some[0], **more)


def test_probabilities_are_divided_by_the_weights():
    table = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [torch.nan] * 3])
    weighted = table * torch.tensor(PQ.weights)
    weighted /= weighted.sum(dim=1, keepdim=True)
    back = of(weighted, by_party=weighted[:, None]).unweighted()
    torch.testing.assert_close(back.scores, table, equal_nan=True)
    torch.testing.assert_close(back.by_party[:, 0], table, equal_nan=True)
    assert back.labels() == of(weighted, task=Task(kind="classification", classes=PQ.classes)).labels()
    assert back.labels() == ["c", "c", None]  # the third class is rare: .1 is more than its share


def test_probabilities_without_class_weights_are_unchanged():
    plain = of([[0.2, 0.8]], task=Task(kind="classification", classes=("a", "b")))
    assert plain.unweighted() is plain


def test_probabilities_of_0_and_1_are_unchanged():
    back = of([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).unweighted()
    assert back.scores.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_an_unseen_class_does_not_change_the_weights_of_others():
    back = of([[0.2, 0.2, 0.6]]).unweighted()
    over = back.over(["d"])
    assert predicted_class(over.task, over.scores).tolist() == predicted_class(back.task, back.scores).tolist() == [2]
    observed = torch.ones(1, 1, dtype=torch.bool)
    scores = evaluate(back, torch.tensor([3]), None, observed, Seeds(0), unseen=("d",)).overall
    assert scores["accuracy"] == 0.0


def test_the_loss_metric_uses_the_weighted_probabilities():
    weighted = torch.tensor([[0.2, 0.2, 0.6], [0.5, 0.3, 0.2]])
    rows = LabelledPredictions.of(of(weighted).unweighted(), torch.tensor([2, 0]), None)
    assert METRICS["loss"].of(rows) == pytest.approx(-np.log([0.6, 0.5]).mean(), rel=1e-6)


def imbalanced(n=1500, share=0.05, seed=0):
    random = np.random.default_rng(seed)
    ids = [f"k{i:04d}" for i in range(n)]
    u, v, w = random.normal(size=(3, n))
    score = u + random.normal(size=n)
    y = (score > np.quantile(score, 1 - share)).astype(int)
    return {"bank": pl.DataFrame({"id": ids, "u": u, "v": v, "y": y}), "shop": pl.DataFrame({"id": ids, "w": w})}


def test_a_balanced_model_predicts_the_class_share_of_the_table(tmp_path):
    federation = Federation.from_tables(imbalanced(), label="y")
    plain, balanced = (federation.train("laser", epochs=12, seed=1, balance=b) for b in (False, True))
    without, with_weights = plain.evaluate().overall, balanced.evaluate().overall
    assert balanced.predict().scores[:, 1].mean() == pytest.approx(0.05, abs=0.025)
    assert with_weights["log_loss"] < without["log_loss"] + 0.05
    assert with_weights["auroc"] > without["auroc"] - 0.02
    balanced.save(tmp_path / "model")
    tables = imbalanced(seed=1)
    again = Model.load(tmp_path / "model").predict(tables)
    assert torch.equal(again.scores, balanced.predict(tables).scores)
    predicted = np.mean([str(label) == "1" for label in again.labels()])
    assert predicted > 0.1  # the classes count alike in the decision, so that more rows are predicted as positive
