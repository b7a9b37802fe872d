"""Metrics by the parties present, and the metrics of LASER-VFL's tables, which average over parties.

Valdeira, Wang, Chi: "Vertical Federated Learning with Missing Features During Training and Inference", ICLR 2025,
Appendix D, "Computing metrics", and section 5 for the random prediction.

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
    - Rows without a present party (empty O_n) are left out, and so are parties whose F1 is 0/0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyparty.core.predictions import Predictions, members, patterns, predicted_class
from anyparty.errors import ConfigError, PredictionError
from anyparty.metrics.scores import LabelledPredictions, ScoreTable, f1_by_class, scores_of, trained


def by_count(
    predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None = None
) -> dict[int, ScoreTable]:
    """Return the scores of rows by number of present parties, largest number first.

    A party is present for a row if it holds the row (``observed`` [n, K] bool) and was asked.
    """
    rows, present = _labelled(predictions, y, observed, labeled)
    count = present.sum(dim=1)
    counts = reversed(range(len(predictions.blocks) + 1))
    return {c: scores_of(rows.where(count == c)) for c in counts if bool((count == c).any())}


def by_pattern(
    predictions: Predictions, y: Tensor, observed: Tensor, labeled: Tensor | None = None, *, most: int = 32
) -> dict[str, ScoreTable]:
    """Return the scores of rows by set of present parties (``"bank + shop"``), most frequent set first.

    Only the ``most`` most frequent sets are returned. A party is present for a row if it holds the row and was asked.
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
    joint answer for the row then counts as its answer, even if it has its own answers for other rows. The result for a
    row therefore does not depend on other rows. If there is no joint answer either, the class is a random guess,
    uniform over the classes of training. One guess is always drawn for each row, so that two methods with the same seed
    get the same guesses.

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
        y: [n] int64 classes.
        observed: [n, K] bool, True if party k holds row n.
        guess: the generator of guesses for rows without an answer.
        labeled: [n] bool, rows with a label; ``None`` if all rows have one.
    """
    return accuracy_of(client_classes(predictions, guess), y, _counted(predictions, observed, labeled))


def client_f1(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> float:
    """Return the F1 of LASER-VFL's Appendix D. The positive class is the second of ``task.classes``.

    For more than two classes, the result is the mean of the parties' macro F1. The arguments are those of
    ``client_accuracy``.
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
    """Return the mean, over rows, of the share of a row's parties that predict the row's label.

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
    """Return O_n, [n, K] bool: the parties that hold row n and were asked."""
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
