"""How good the answers are: overall, by who was present, and averaged over the parties as the papers do."""

from anyparty.metrics.clients import client_accuracy, client_classes, client_f1
from anyparty.metrics.evaluation import Evaluation, evaluate
from anyparty.metrics.groups import by_count, by_pattern
from anyparty.metrics.scores import METRICS, Metric, Scores, headline, score, selection

__all__ = [
    "METRICS",
    "Evaluation",
    "Metric",
    "Scores",
    "by_count",
    "by_pattern",
    "client_accuracy",
    "client_classes",
    "client_f1",
    "evaluate",
    "headline",
    "score",
    "selection",
]
