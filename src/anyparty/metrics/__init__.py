"""Metrics of predictions: over all rows, for each set of present parties, and averaged over parties as in papers."""

from anyparty.metrics.evaluation import Evaluation, evaluate
from anyparty.metrics.scores import (
    METRICS,
    Metric,
    ScoreTable,
    by_count,
    by_pattern,
    client_accuracy,
    client_classes,
    client_f1,
    constant_score,
    headline,
    score,
    selection,
)

__all__ = [
    "METRICS",
    "Evaluation",
    "Metric",
    "ScoreTable",
    "by_count",
    "by_pattern",
    "client_accuracy",
    "client_classes",
    "client_f1",
    "constant_score",
    "evaluate",
    "headline",
    "score",
    "selection",
]
