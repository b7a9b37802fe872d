"""The usual metrics on rows with a label and an answer, and metrics that average over the parties present.

Notation  n rows, m of them with a label and an answer, C classes.

    accuracy    share of rows whose predicted class is the label. The predicted class is the most probable one; with
                ``train.balance``, it is the one with the greatest product of class weight and probability.
    f1          2 tp / (2 tp + fp + fn), for two classes; the positive class is the second of ``task.classes``.
    macro_f1    mean, over the classes that occur among labels or answers, of the class's one-against-rest F1.
    weighted_f1 the same mean, weighted by the number of labels of each class.
    balanced_accuracy  mean, over the classes that occur among labels, of the share of the class's rows that are right.
    top5_accuracy  share of rows whose label is among the five most probable classes, for more than five classes.
    auroc       probability that a row of the class scores above a row of another class; ties count half (Mann,
                Whitney). For more than two classes, the mean over the classes that some but not all rows have. Rows
                whose probability rounds to 1 are ordered by the other classes' probabilities.
    log_loss    mean of -log p(label) in nats, with p at least float32's epsilon.
    rmse, mae   root mean squared error and mean absolute error in the label's own units.
    loss        the log-loss of the networks' own answers, or the squared error of the standardized label. It differs
                from log_loss only with ``train.balance``: then log_loss is computed from probabilities that are
                corrected to the class frequencies in the training rows.

Rows of a class that did not occur in training are wrong in all metrics. If the model knows two classes, f1 and auroc
still refer to the second class. A metric that is undefined on its rows is NaN: any metric without rows, the AUROC and
the macro and weighted F1 of rows of a single class, and the F1 of rows without a positive label. All other values equal
scikit-learn's, as tests check. The metrics do not call scikit-learn, because with many patterns, parties or epochs its
checks would take longer than the metrics.

Metrics by the parties present average over parties, as in LASER-VFL's tables: Valdeira, Wang, Chi: "Vertical Federated
Learning with Missing Features During Training and Inference", ICLR 2025, Appendix D, "Computing metrics", and section 5
for the random prediction.

Notation  N labelled rows, K parties.
Symbols   O_n         present[n]    parties that hold row n and were asked         [N, K] bool
          yhat^n(k)   chosen[n, k]  the class that party k predicts for row n       [N, K] int64
Metrics:  accuracy = 1/N sum_n 1/|O_n| sum_{k in O_n} 1(yhat^n(k) = y^n);
          F1       = 1/K sum_k 2 P_k R_k / (P_k + R_k),   P_k, R_k precision and recall on the rows that party k holds.

Known differences
    - A party may have no answer of its own for a row. The joint answer for the row then counts as the party's answer.
      The paper does not have this case.
    - Metrics are between 0 and 1, not per cent.
    - F1 has the factor 2 that is missing in the paper; the paper's program has it.
    - For more than two classes a party's F1 is the macro F1.
    - Rows without a present party (empty O_n), and parties whose F1 is 0/0, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from anyparty.core.predictions import Predictions, members, patterns, predicted_class, weighted
from anyparty.core.types import Task
from anyparty.errors import ConfigError, PredictionError, nearest

ScoreTable = dict[str, float]
"""Metrics by name. ``coverage`` is the share of rows with an answer, and ``rows`` is the number of all rows."""

EPSILON = torch.finfo(torch.float32).eps
NEAR_ONE = 1 - 2**-10
TOP = 5  # top5_accuracy


@dataclass(frozen=True, kw_only=True)
class LabelledPredictions:
    """Labelled rows with their predictions.

    Attributes:
        task: the task.
        scores: [n, C] the predicted probabilities or, in a regression, numbers, as in ``Predictions``.
        y: [n] labels: int64 index of the class, or float64 number in the label's own units.
        answered: [n] bool, rows with an answer.
        unseen: the number of classes that did not occur in training. These classes are the last classes of the task.
    """

    task: Task
    scores: Tensor
    y: Tensor
    answered: Tensor
    unseen: int = 0

    @classmethod
    def of(cls, predictions: Predictions, y: Tensor, labeled: Tensor | None) -> LabelledPredictions:
        """Return the labelled rows with their predictions; in a regression, convert ``y`` to the label's own units."""
        task = predictions.task
        if len(y) != len(predictions):
            raise PredictionError(f"{len(predictions)} predictions cannot be scored against {len(y)} labels")
        if task.kind == "regression":
            y = y.double() * task.scale + task.mean
        at = slice(None) if labeled is None else labeled
        return cls(
            task=task, scores=predictions.scores[at], y=y[at], answered=predictions.answered[at],
            unseen=predictions.unseen,
        )  # fmt: skip

    def where(self, rows: Tensor) -> LabelledPredictions:
        """Return the selected rows; ``rows`` is a mask [n] or contains indices."""
        return replace(self, scores=self.scores[rows], y=self.y[rows], answered=self.answered[rows])

    @property
    def trained(self) -> Task:
        """The task without the classes that did not occur in training."""
        return trained(self.task, self.unseen)

    @cached_property
    def chosen(self) -> Tensor:
        """The index of the predicted class, [n] int64; -1 for rows without an answer."""
        return predicted_class(self.task, self.scores)

    @cached_property
    def errors(self) -> Tensor:
        """The predicted number minus the true number, [n] float64."""
        return self.scores[:, 0].double() - self.y


def trained(task: Task, unseen: int) -> Task:
    """Return a task without its last ``unseen`` classes, which did not occur in training."""
    return replace(task, classes=task.classes[:-unseen], weights=task.weights[:-unseen]) if unseen else task


def f1_by_class(y: Tensor, chosen: Tensor, C: int) -> Tensor:
    """Return each class's F1 [C] float64 from labels and answers [m]; NaN for a class that occurs in neither."""
    hits = torch.bincount(y[y == chosen], minlength=C)
    both = torch.bincount(y, minlength=C) + torch.bincount(chosen, minlength=C)
    return 2 * hits.double() / both  # 2 tp / (2 tp + fp + fn) = 2 P R / (P + R)


def _accuracy(rows: LabelledPredictions) -> float:
    return float((rows.chosen == rows.y).double().mean())


def _macro_f1(rows: LabelledPredictions) -> float:
    if (rows.y == rows.y[0]).all():
        return math.nan
    return float(f1_by_class(rows.y, rows.chosen, rows.task.outputs).nanmean())


def _weighted_f1(rows: LabelledPredictions) -> float:
    if (rows.y == rows.y[0]).all():
        return math.nan
    f1 = f1_by_class(rows.y, rows.chosen, rows.task.outputs).nan_to_num()
    return float((f1 * torch.bincount(rows.y, minlength=len(f1))).sum()) / len(rows.y)


def _balanced_accuracy(rows: LabelledPredictions) -> float:
    hits = torch.bincount(rows.y[rows.y == rows.chosen], minlength=rows.task.outputs)
    return float((hits.double() / torch.bincount(rows.y, minlength=len(hits))).nanmean())


def _top5_accuracy(rows: LabelledPredictions) -> float:
    p = weighted(rows.task, rows.scores)
    own, earlier = p.gather(1, rows.y[:, None]), torch.arange(p.shape[1]) < rows.y[:, None]
    rank = ((p > own) | ((p == own) & earlier)).sum(dim=1)  # classes of equal probability: the first one is ahead
    return float(((rank < TOP) & (rows.y < rows.trained.outputs)).double().mean())


def _f1(rows: LabelledPredictions) -> float:
    if not (rows.y == 1).any():
        return math.nan
    return float(f1_by_class(rows.y, rows.chosen, rows.task.outputs)[1])


def _auroc(rows: LabelledPredictions) -> float:
    known = rows.trained.outputs
    classes = [1] if known == 2 else range(known)
    areas = [_area(_rank(rows.scores.double(), c), rows.y == c) for c in classes]
    defined = [area for area in areas if not math.isnan(area)]
    return sum(defined) / len(defined) if defined else math.nan


def _rank(p: Tensor, c: int) -> Tensor:
    """Return values [m] that increase with the probability of class ``c``, p[:, c]: log p, or -log(1 - p) near 1.

    In single precision, p rounds to 1 if the logit is 17 or more. If p is near 1, the sum of the other classes'
    probabilities therefore replaces 1 - p. If p is smaller, this sum is not used, because its rounding errors would
    order rows with equal p.
    """
    own, others = p[:, c], torch.cat([p[:, :c], p[:, c + 1 :]], dim=1).sum(dim=1)
    return torch.where(own < NEAR_ONE, own.log(), -others.log())


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return P(a positive row scores above a negative row) + P(equal scores) / 2; NaN if all rows are of one kind."""
    above, below = scores[positive].sort().values, scores[~positive].sort().values
    if not len(above) or not len(below):
        return math.nan
    lower = torch.searchsorted(below, above)
    lower_or_equal = torch.searchsorted(below, above, right=True)
    return float((lower + lower_or_equal).double().mean()) / (2 * len(below))


def _log_loss(rows: LabelledPredictions) -> float:
    p = rows.scores.gather(1, rows.y[:, None]).double()
    return float(-p.clamp_min(EPSILON).log().mean())


def _rmse(rows: LabelledPredictions) -> float:
    return float(rows.errors.square().mean().sqrt())


def _mae(rows: LabelledPredictions) -> float:
    return float(rows.errors.abs().mean())


def _loss(rows: LabelledPredictions) -> float:
    if rows.task.kind == "regression":
        return float((rows.errors / rows.task.scale).square().mean())
    return _log_loss(replace(rows, scores=weighted(rows.task, rows.scores)))


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: the function that computes it, the tasks that it fits, and whether greater values are better.

    ``detailed`` is False if tables with a row for each set of parties leave the metric out, because they would be too
    wide.
    """

    of: Callable[[LabelledPredictions], float]
    kind: Literal["classification", "regression", "any"]
    greater: bool
    two_classes: bool = False
    more_classes_than: int = 0
    detailed: bool = True

    def fits(self, task: Task) -> bool:
        """Return True if the metric is defined for the task."""
        more = not self.more_classes_than or task.outputs > self.more_classes_than
        return self.kind in {task.kind, "any"} and (not self.two_classes or task.outputs == 2) and more

    @property
    def wants(self) -> str:
        """A description of the tasks that the metric fits."""
        if self.more_classes_than:
            return f"a classification into more than {self.more_classes_than} classes"
        return "a classification into two classes" if self.two_classes else f"a {self.kind} task"


METRICS: dict[str, Metric] = {
    "accuracy": Metric(of=_accuracy, kind="classification", greater=True),
    "macro_f1": Metric(of=_macro_f1, kind="classification", greater=True),
    "weighted_f1": Metric(of=_weighted_f1, kind="classification", greater=True, detailed=False),
    "balanced_accuracy": Metric(of=_balanced_accuracy, kind="classification", greater=True, detailed=False),
    "top5_accuracy": Metric(
        of=_top5_accuracy, kind="classification", greater=True, more_classes_than=TOP, detailed=False
    ),
    "f1": Metric(of=_f1, kind="classification", greater=True, two_classes=True),
    "auroc": Metric(of=_auroc, kind="classification", greater=True),
    "log_loss": Metric(of=_log_loss, kind="classification", greater=False),
    "rmse": Metric(of=_rmse, kind="regression", greater=False),
    "mae": Metric(of=_mae, kind="regression", greater=False),
    "loss": Metric(of=_loss, kind="any", greater=False),
}


def headline(task: Task, metric: str | None = None) -> tuple[str, bool]:
    """Return the name of the metric by which epochs or models are compared, and whether greater values are better.

    The default metric is log_loss for classification, and rmse for regression.

    >>> headline(Task(kind="classification", classes=("no", "yes")))
    ('log_loss', False)

    Raises:
        ConfigError: the metric is unknown or does not fit the task.
    """
    name = metric or ("log_loss" if task.kind == "classification" else "rmse")
    if name not in METRICS:
        raise ConfigError(f"there is no metric {name!r}{nearest(name, METRICS)}")
    if not METRICS[name].fits(task):
        this = f"this task has {task.outputs} classes" if task.kind == "classification" else "this task is a regression"
        fitting = ", ".join(other for other in METRICS if METRICS[other].fits(task))
        raise ConfigError(f"metric {name!r} is for {METRICS[name].wants}, and {this}; choose one of {fitting}")
    return name, METRICS[name].greater


def constant_score(name: str, task: Task, y: Tensor) -> float:
    """Return the best value that a metric can have on labels y [n] if one class is predicted for all rows.

    The result is minus infinity if the metric is undefined for every constant class.

    >>> constant_score("accuracy", Task(kind="classification", classes=("no", "yes")), torch.tensor([0, 0, 0, 1]))
    0.75
    """
    rows = LabelledPredictions(task=task, scores=torch.zeros(len(y), task.outputs), y=y,
                               answered=torch.ones(len(y), dtype=torch.bool))  # fmt: skip
    answers = torch.eye(task.outputs).unbind()
    values = [_value(name, replace(rows, scores=answer.expand(len(y), -1))) for answer in answers]
    return max((value for value in values if not math.isnan(value)), default=-math.inf)


def selection(predictions: Predictions, y: Tensor, labeled: Tensor | None, names: Iterable[str]) -> ScoreTable:
    """Return the named metrics on the rows with a label and an answer; NaN if there are no such rows.

    Args:
        predictions: predictions for n rows.
        y: [n] labels: int64 index of the class, or float32 standardized number.
        labeled: [n] bool, rows with a label; ``None`` if all rows have one.
        names: names in ``METRICS`` of metrics that fit the task.
    """
    known = predictions.answered if labeled is None else labeled & predictions.answered
    rows = LabelledPredictions.of(predictions, y, known)
    return {name: _value(name, rows) for name in names}


def score(predictions: Predictions, y: Tensor, labeled: Tensor | None = None) -> ScoreTable:
    """Compute, on the answered rows, every metric that fits the task; add ``coverage`` and ``rows``.

    Args:
        predictions: predictions for n rows.
        y: [n] labels: int64 index of the class, or float32 standardized number.
        labeled: [n] bool, the rows to score; ``None`` for all.
    """
    return scores_of(LabelledPredictions.of(predictions, y, labeled))


def scores_of(rows: LabelledPredictions) -> ScoreTable:
    """Compute every metric that fits the task; add ``coverage`` and ``rows``.

    The metric ``loss`` is left out, because it repeats other metrics.
    """
    answered = _answered(rows)
    names = [name for name, metric in METRICS.items() if name != "loss" and metric.fits(rows.trained)]
    share = float(rows.answered.double().mean())  # the mean of no rows is NaN
    return {**{name: _value(name, answered) for name in names}, "coverage": share, "rows": float(len(rows.y))}


def _answered(rows: LabelledPredictions) -> LabelledPredictions:
    return rows if bool(rows.answered.all()) else rows.where(rows.answered)


def _value(name: str, rows: LabelledPredictions) -> float:
    return METRICS[name].of(rows) if len(rows.y) else math.nan


def metric_label(metric: str) -> str:
    """Return a metric's name as it is shown to readers.

    >>> metric_label("auroc"), metric_label("macro_f1"), metric_label("accuracy")
    ('AUROC', 'macro F1', 'accuracy')
    """
    known = {"auroc": "AUROC", "f1": "F1", "macro_f1": "macro F1", "weighted_f1": "weighted F1",
             "top5_accuracy": "top-5 accuracy", "log_loss": "log-loss", "rmse": "RMSE", "mae": "MAE"}  # fmt: skip
    return known.get(metric, metric.replace("_", " "))


def by_count(
    predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None = None
) -> dict[int, ScoreTable]:
    """Return the scores of the rows with each number of present parties; the largest number is first.

    A party is present for a row if it holds the row (``observed`` [n, K] bool) and was asked to take part.
    """
    rows, present = _labelled(predictions, y, observed, labeled)
    count = present.sum(dim=1)
    counts = reversed(range(len(predictions.blocks) + 1))
    return {c: scores_of(rows.where(count == c)) for c in counts if bool((count == c).any())}


def by_pattern(
    predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None = None, *, most: int = 32
) -> dict[str, ScoreTable]:
    """Return the scores of the rows with each set of present parties; the keys are texts such as ``"bank + shop"``.

    At most ``most`` sets are returned, the most frequent set first. A party is present for a row if it holds the
    row (``observed`` [n, K] bool) and was asked to take part.
    """
    rows, present = _labelled(predictions, y, observed, labeled)
    distinct, which = patterns(present)
    counts = torch.bincount(which, minlength=len(distinct))
    frequent = counts.argsort(descending=True, stable=True)[:most].tolist()
    names = [" + ".join(members(row, predictions.blocks)) or "(nobody)" for row in distinct]
    return {names[p]: scores_of(rows.where(which == p)) for p in frequent}


def client_classes(predictions: Predictions, guess: torch.Generator) -> Tensor:
    """Return yhat^n(k), [n, K] int64: the class that party k predicts for row n.

    A party may have no answer of its own for a row, because it has no head, an untrained head, or a silent host. The
    joint answer for the row then counts as the party's answer, even if the party has answers of its own for other rows.
    The result for a row therefore does not depend on other rows. If there is no joint answer either, the class is a
    random guess, drawn uniformly from the classes that occurred in training. One guess is always drawn for each row, so
    that two methods with the same seed get the same guesses.

    Raises:
        ConfigError: the task is a regression.
    """
    if predictions.task.kind != "classification":
        raise ConfigError("client metrics are for classification; for a regression use rmse or mae by_count")
    n, K = predictions.took_part.shape
    guesses = torch.randint(trained(predictions.task, predictions.unseen).outputs, (n, 1), generator=guess)
    chosen = predicted_class(predictions.task, predictions.scores)[:, None].expand(n, K)
    if predictions.by_party is not None:
        own = predicted_class(predictions.task, predictions.by_party)
        chosen = torch.where(own >= 0, own, chosen)
    return torch.where(chosen >= 0, chosen, guesses)


def client_accuracy(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> float:
    """Return the accuracy of LASER-VFL's Appendix D, in [0, 1]; NaN if no party has a labelled row.

    Args:
        predictions: predictions for n rows.
        y: [n] labels: int64 index of the class.
        observed: [n, K] bool, True if party k holds row n.
        guess: the generator of guesses for rows without an answer.
        labeled: [n] bool, rows with a label; ``None`` if all rows have one.
    """
    return accuracy_of(client_classes(predictions, guess), y, _counted(predictions, observed, labeled))


def client_f1(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> float:
    """Return the F1 of LASER-VFL's Appendix D. The positive class is the second of ``task.classes``.

    For more than two classes, the result is the mean of the parties' macro F1. The arguments are the same
    as for ``client_accuracy``.
    """
    return _f1_of(predictions, client_classes(predictions, guess), y, _counted(predictions, observed, labeled))


def client_metrics(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> dict[str, float]:
    """Return ``client_accuracy`` and ``client_f1`` by name, both computed with the same random guesses."""
    chosen, counted = client_classes(predictions, guess), _counted(predictions, observed, labeled)
    f1 = _f1_of(predictions, chosen, y, counted)
    return {"client_accuracy": accuracy_of(chosen, y, counted), "client_f1": f1}


def accuracy_of(chosen: Tensor, y: Tensor, counted: Tensor) -> float:
    """Return the mean accuracy of rows; a row's accuracy is the share of its parties that predict its label.

    ``chosen`` [n, K] contains the predicted classes, ``y`` [n] the labels. ``counted`` [n, K] bool marks each row's
    parties. Rows without a marked party are left out.
    """
    parties = counted.sum(dim=1)
    right = ((chosen == y[:, None]) & counted).sum(dim=1)
    return float((right.double() / parties)[parties > 0].mean())


def _f1_of(predictions: Predictions, chosen: Tensor, y: Tensor, counted: Tensor) -> float:
    """Return the mean, over parties, of the F1 on each party's rows; parties whose F1 is undefined are left out."""
    task, two = predictions.task, trained(predictions.task, predictions.unseen).outputs == 2
    each = [f1_by_class(y[rows], chosen[rows, k], task.outputs) for k, rows in enumerate(counted.unbind(dim=1))]
    parties = torch.stack([f1[1] if two else f1.nanmean() for f1 in each])
    return float(parties.nanmean())


def _counted(predictions: Predictions, observed: Tensor, labeled: Tensor | None) -> Tensor:
    present = _present(predictions, observed)
    return present if labeled is None else present & labeled[:, None]


def _present(predictions: Predictions, observed: Tensor) -> Tensor:
    """Return a mask [N, K] bool, True if party k holds row n and was asked for a prediction."""
    if observed.shape != predictions.took_part.shape:
        n, K = predictions.took_part.shape
        raise PredictionError(f"observed is {tuple(observed.shape)}; {n} predictions of {K} parties need {(n, K)}")
    return observed & predictions.asked


def _labelled(
    predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None
) -> tuple[LabelledPredictions, Tensor]:
    """Return the labelled rows, and the mask [labelled rows, K] of the parties present for them."""
    present = _present(predictions, observed)
    return LabelledPredictions.of(predictions, y, labeled), present if labeled is None else present[labeled]
