"""All metrics of one set of predictions, to be kept as JSON and shown as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from anyparty.metrics.clients import client_metrics
from anyparty.metrics.groups import by_count, by_pattern
from anyparty.metrics.scores import Answers, Scores, score
from anyparty.predictions import Predictions, members
from anyparty.seeds import Seeds
from anyparty.terms import Task


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model's answers are on labelled rows.

    Attributes:
        task: what is predicted.
        predictor: what made the answers, in words.
        asked: the parties that were asked.
        silent: those of them that did not answer.
        overall: ``score`` of all labelled rows.
        by_count: the same by number of parties present, most first.
        by_pattern: the same by who was present, most frequent first, at most 32 patterns.
        clients: ``client_accuracy`` and ``client_f1`` of LASER-VFL's Appendix D; empty for a regression.
        unseen: classes that training never saw, with the number of rows of each: every answer to them counts as wrong.
        constant: the accuracy, or RMSE, that one and the same answer would have had on the rows that got one: their
            commonest label, or the mean.
        commonest: that label; empty for a regression.
    """

    task: Task
    predictor: str
    asked: tuple[str, ...]
    silent: tuple[str, ...]
    overall: Scores
    by_count: dict[int, Scores]
    by_pattern: dict[str, Scores]
    clients: Scores
    unseen: dict[str, int] = field(default_factory=dict)
    constant: Scores = field(default_factory=dict)
    commonest: str = ""

    def __repr__(self) -> str:
        """Return its first score, and of which rows: ``render`` has the others."""
        name = "accuracy" if self.task.kind == "classification" else "rmse"
        rows, answered = (f"{self.overall['rows']:,.0f}", _shown("coverage", self.overall["coverage"]))
        return (
            f"<Evaluation of {rows} rows, {answered} answered: {name} {_shown(name, self.overall[name])}; "
            f"asked: {', '.join(self.asked)}>"
        )

    @property
    def positive(self) -> str | None:
        """The class that ``f1``, ``auroc`` and ``client_f1`` call positive; ``None`` where there are not two."""
        two = self.task.kind == "classification" and self.task.outputs - len(self.unseen) == 2
        return self.task.classes[1] if two else None

    def to_json(self) -> dict[str, object]:
        """Return plain values for ``json.dump``: NaN as ``None``, counts of rows as integers."""
        return {
            "task": self.task.kind,
            "classes": list(self.task.classes),
            "positive": self.positive,
            "predictor": self.predictor,
            "asked": list(self.asked),
            "silent": list(self.silent),
            "unseen": self.unseen,
            "constant": _plain(self.constant),
            "overall": _plain(self.overall),
            "clients": _plain(self.clients),
            "by_count": {str(count): _plain(scores) for count, scores in self.by_count.items()},
            "by_pattern": {name: _plain(scores) for name, scores in self.by_pattern.items()},
        }

    def __rich__(self) -> RenderableType:
        """Let ``rich.print`` show the tables."""
        return self.render()

    def render(self) -> RenderableType:
        """Return the tables: overall, by number of parties present, by who was present."""
        rarer = int(self.overall["rows"] - sum(scores["rows"] for scores in self.by_pattern.values()))
        tables: list[RenderableType] = [
            self._summary(),
            *map(Text, self._notes()),
            _table("By number of parties present", "parties", self.by_count),
            _table("By who was present", "present", self.by_pattern, f"{rarer:,} rows in rarer patterns" * (rarer > 0)),
        ]
        return Group(*tables)

    def _summary(self) -> Table:
        table = Table("metric", title=_title("Overall"), title_justify="left")
        table.add_column("value", justify="right")
        for name, value in {**self.overall, **self.clients}.items():
            table.add_row(name, _shown(name, value))
        return table

    def _notes(self) -> Iterator[str]:
        """Yield what is to be said of the numbers."""
        if self.positive:
            yield f"positive class: {self.positive}"
        for name, value in self.constant.items():
            one = f"{self.commonest!r}, the commonest of these rows" if self.commonest else "their mean"
            yield f"always answering {one}: {name} {_shown(name, value)}"
        if (share := self.overall["coverage"]) < 1:
            rows = self.overall["rows"]
            yield f"scores are of the {share * rows:,.0f} of {rows:,.0f} rows that got an answer"
        if self.silent:
            yield f"did not answer: {', '.join(self.silent)}"
        for name, rows in self.unseen.items():
            yield f"counted as wrong: {rows} rows of class {name!r}, which training never saw"


def evaluate(
    predictions: Predictions, y: Tensor, labeled: Tensor | None, observed: Tensor, seeds: Seeds, *,
    unseen: Sequence[str] = (),
) -> Evaluation:  # fmt: skip
    """Score predictions of n rows in every way that this room knows.

    Args:
        predictions: of n rows.
        y: [n] int64 class, or float32 standardised number.
        labeled: [n] bool, the rows to score; ``None``: all.
        observed: [n, K] bool, who has which row.
        seeds: the stream ``("evaluate", "guess")`` of it guesses for rows without an answer, in the client metrics.
        unseen: classes that training never saw, which y numbers after those of the task.  Their rows are scored like
            all others, with probability 0 for their class: they count as wrong.
    """
    predictions, known = predictions.over(unseen), predictions.task.outputs
    guess = seeds.torch("evaluate", "guess")
    constant, commonest = _constant(Answers.of(predictions, y, labeled))
    classification = predictions.task.kind == "classification"
    return Evaluation(
        task=predictions.task,
        predictor=predictions.predictor,
        asked=members(predictions.asked, predictions.blocks),
        silent=predictions.silent,
        overall=score(predictions, y, labeled),
        by_count=by_count(predictions, y, observed, labeled),
        by_pattern=by_pattern(predictions, y, observed, labeled),
        clients=client_metrics(predictions, y, observed, guess, labeled) if classification else {},
        constant=constant,
        commonest=commonest,
        unseen={
            name: int((y if labeled is None else y[labeled]).eq(known + place).sum())
            for place, name in enumerate(unseen)
        },
    )


def _constant(rows: Answers) -> tuple[Scores, str]:
    """Return what one answer for all answered rows has at best, and that answer if it is a class."""
    y = rows.y[rows.answered]
    if not len(y):
        return {}, ""
    if rows.task.kind == "regression":
        return {"rmse": float((y - y.mean()).square().mean().sqrt())}, ""
    counts = torch.bincount(y, minlength=rows.task.outputs)[: rows.trained.outputs]
    return {"accuracy": float(counts.max()) / len(y)}, rows.task.classes[int(counts.argmax())]


def _plain(scores: Scores) -> dict[str, float | int | None]:
    return {name: int(v) if name == "rows" else None if math.isnan(v) else v for name, v in scores.items()}


def _shown(name: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if name == "coverage":
        return f"{value:.1%}"
    return f"{value:,.0f}" if name == "rows" or abs(value) >= 1e4 else f"{value:#.4g}"


def _title(text: str) -> Text | None:
    return Text(text) if text else None  # as Text: a party may be called "[red]"


def _table(title: str, first: str, groups: Mapping[int, Scores] | Mapping[str, Scores], note: str = "") -> Table:
    table = Table(title=_title(title), caption=_title(note), title_justify="left")
    table.add_column(first, overflow="fold")
    for name in next(iter(groups.values()), {}):
        table.add_column(name.replace("_", "\n"), justify="right")  # so that all fit into a terminal of 80
    for key, scores in groups.items():
        table.add_row(Text(str(key)), *(_shown(name, value) for name, value in scores.items()))
    return table
