"""The metrics of LASER-VFL's tables: every party that holds a row predicts it, and each counts.

Valdeira, Wang, Chi: "Vertical Federated Learning with Missing Features During Training and Inference", ICLR 2025,
Appendix D, "Computing metrics", and section 5 for the random prediction.

Letters   N labelled rows, K parties.
Symbols   O_n         present[n]    parties that have row n and were asked          [N, K] bool
          yhat^n(k)   chosen[n, k]  the class that party k predicts for row n       [N, K] int64
Metrics   accuracy = 1/N sum_n 1/|O_n| sum_{k in O_n} 1(yhat^n(k) = y^n)
          F1       = 1/K sum_k 2 P_k R_k / (P_k + R_k),   P_k, R_k over the rows that party k has

Where we differ: a party that has no answer of its own for a row, which the paper does not know, is given the one that
the row got; shares of 1, not per cent; the 2 that F1 lacks in the paper (its program has it); for more than two classes
a party's F1 is the macro one; rows that nobody present has are left out, and so are parties whose F1 is 0/0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyparty.errors import ConfigError
from anyparty.metrics.groups import present
from anyparty.metrics.scores import f1_by_class, trained
from anyparty.predictions import Predictions, most_probable


def client_classes(predictions: Predictions, guess: torch.Generator) -> Tensor:
    """Return yhat^n(k), [n, K] int64: the class that party k answers for row n, a guess where it has no answer.

    A method with one answer for all gives it to every party.  One with heads at some of them gives its answer for a row
    to those that have none of their own for that row, whatever they answer for others: no head, one that training never
    reached, or a host that is silent.  So a row counts alike among any others.  A guess is uniform over the classes;
    there is one for a row, drawn whether needed or not, so that two methods under one seed guess alike.

    Raises:
        ConfigError: the task is a regression.
    """
    if predictions.task.kind != "classification":
        raise ConfigError("client metrics are for classification; for a regression use rmse or mae by_count")
    n, K = predictions.took_part.shape
    guesses = torch.randint(trained(predictions.task, predictions.unseen).outputs, (n, 1), generator=guess)
    chosen = most_probable(predictions.scores)[:, None].expand(n, K)
    if predictions.by_party is not None:
        own = most_probable(predictions.by_party)
        chosen = torch.where(own >= 0, own, chosen)
    return torch.where(chosen >= 0, chosen, guesses)


def client_accuracy(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> float:
    """Return Appendix D's accuracy, in [0, 1]; NaN where nobody has a labelled row.

    Args:
        predictions: of n rows.
        y: [n] int64.
        observed: [n, K] bool.
        guess: draws the classes of rows without an answer.
        labeled: [n] bool; ``None``: all are.
    """
    return accuracy_of(client_classes(predictions, guess), y, _counted(predictions, observed, labeled))


def client_f1(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> float:
    """Return Appendix D's F1 (the positive class is the second of ``task.classes``); arguments as ``client_accuracy``.

    For more than two classes each party's macro F1 is averaged.
    """
    return _f1_of(predictions, client_classes(predictions, guess), y, _counted(predictions, observed, labeled))


def client_metrics(
    predictions: Predictions, y: Tensor, observed: Tensor, guess: torch.Generator, labeled: Tensor | None = None
) -> dict[str, float]:
    """Return both by name, over the same guesses."""
    chosen, counted = client_classes(predictions, guess), _counted(predictions, observed, labeled)
    f1 = _f1_of(predictions, chosen, y, counted)
    return {"client_accuracy": accuracy_of(chosen, y, counted), "client_f1": f1}


def accuracy_of(chosen: Tensor, y: Tensor, counted: Tensor) -> float:
    """Mean over rows of the share of their parties that are right; [n, K], [n], [n, K] bool."""
    parties = counted.sum(dim=1)
    right = ((chosen == y[:, None]) & counted).sum(dim=1)
    return float((right.double() / parties)[parties > 0].mean())


def _f1_of(predictions: Predictions, chosen: Tensor, y: Tensor, counted: Tensor) -> float:
    """Mean over parties of the F1 over the rows that each has."""
    task, two = predictions.task, trained(predictions.task, predictions.unseen).outputs == 2
    each = [f1_by_class(y[rows], chosen[rows, k], task.outputs) for k, rows in enumerate(counted.unbind(dim=1))]
    parties = torch.stack([f1[1] if two else f1.nanmean() for f1 in each])
    return float(parties.nanmean())


def _counted(predictions: Predictions, observed: Tensor, labeled: Tensor | None) -> Tensor:
    here = present(predictions, observed)
    return here if labeled is None else here & labeled[:, None]
