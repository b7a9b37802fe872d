"""The evaluation of predictions by all metrics, as JSON and as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import polars as pl
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from anyparty.core.display import html_of, new_axes, text_of
from anyparty.core.predictions import Predictions, members
from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.errors import ConfigError, nearest, some
from anyparty.metrics.scores import (
    METRICS,
    LabelledPredictions,
    ScoreTable,
    by_count,
    by_pattern,
    client_metrics,
    score,
)
from anyparty.metrics.worth import Worth

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of a model's predictions on labelled rows.

    Attributes:
        task: the task.
        predictor: a description of the predictor.
        asked: the parties that were asked to take part in the predictions.
        silent: the parties in ``asked`` that did not answer.
        overall: the ``score`` of all labelled rows.
        by_count: for each number of parties present, the score of the rows with this number; the largest number is
            first. A party is present for a row if it holds the row and was asked to take part.
        by_pattern: for each set of parties present, the score of the rows with this set; the most frequent set is
            first. At most 32 sets are listed.
        clients: ``client_accuracy`` and ``client_f1`` of LASER-VFL's Appendix D; empty for a regression.
        unseen: for each class that did not occur in training, the number of its rows. Every answer for these rows is
            wrong.
        constant: the score of a constant answer on the answered rows: the accuracy of the most frequent label, or the
            RMSE of the mean.
        commonest: the most frequent label; empty for a regression.
        absent: the classes that occurred in training but in no answered row; empty if at most two classes occurred in
            training. The area under the ROC curve is the mean over the classes that answered rows have.
        rows: the labelled rows and their predictions, for plots; not in ``to_json``.
        compare: computes ``worth`` when it is first needed; ``None`` if the training rows are not in memory.
    """

    task: Task
    predictor: str
    asked: tuple[str, ...]
    silent: tuple[str, ...]
    overall: ScoreTable
    by_count: dict[int, ScoreTable]
    by_pattern: dict[str, ScoreTable]
    clients: ScoreTable
    unseen: dict[str, int] = field(default_factory=dict)
    constant: ScoreTable = field(default_factory=dict)
    commonest: str = ""
    absent: tuple[str, ...] = ()
    rows: LabelledPredictions | None = field(default=None, repr=False, compare=False)
    compare: Callable[[], Worth | None] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def worth(self) -> Worth | None:
        """The comparison with boosted trees on the active party's own columns; ``None`` if none can be made."""
        return None if self.compare is None else self.compare()

    def __getstate__(self) -> dict[str, object]:
        """Compute the comparison before the evaluation is pickled, because it needs the model."""
        return {**vars(self), "worth": self.worth, "compare": None}

    def __repr__(self) -> str:
        """Describe the rows and the first score; ``render`` shows all scores."""
        name = "accuracy" if self.task.kind == "classification" else "rmse"
        rows, answered = (f"{self.overall['rows']:,.0f}", _shown("coverage", self.overall["coverage"]))
        return (
            f"<Evaluation of {rows} rows, {answered} answered: {name} {_shown(name, self.overall[name])}; "
            f"asked: {', '.join(self.asked)}>"
        )

    @property
    def positive(self) -> str | None:
        """The positive class of ``f1``, ``auroc`` and ``client_f1``; ``None`` unless there are two classes."""
        two = self.task.kind == "classification" and self.task.outputs - len(self.unseen) == 2
        return self.task.classes[1] if two else None

    def to_json(self) -> dict[str, object]:
        """Return the evaluation as values for JSON: NaN becomes ``None``, and counts of rows become integers."""
        return {
            "task": self.task.kind,
            "classes": list(self.task.classes),
            "positive": self.positive,
            "predictor": self.predictor,
            "asked": list(self.asked),
            "silent": list(self.silent),
            "unseen": self.unseen,
            "absent": list(self.absent),
            "constant": _plain(self.constant),
            "commonest": self.commonest,
            "overall": _plain(self.overall),
            "clients": _plain(self.clients),
            "by_count": {str(count): _plain(scores) for count, scores in self.by_count.items()},
            "by_pattern": {name: _plain(scores) for name, scores in self.by_pattern.items()},
            "worth": self.worth and self.worth.to_json(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation that ``to_json`` returned as values, without its rows."""

        def scores(found: Mapping[str, float | None]) -> ScoreTable:
            return {name: math.nan if value is None else float(value) for name, value in found.items()}

        return cls(
            task=Task(kind=values["task"], classes=tuple(values.get("classes", ()))),
            predictor=str(values.get("predictor", "")),
            asked=tuple(values.get("asked", ())),
            silent=tuple(values.get("silent", ())),
            overall=scores(values["overall"]),
            by_count={int(count): scores(each) for count, each in values.get("by_count", {}).items()},
            by_pattern={name: scores(each) for name, each in values.get("by_pattern", {}).items()},
            clients=scores(values.get("clients", {})),
            unseen=dict(values.get("unseen", {})),
            constant=scores(values.get("constant", {})),
            commonest=str(values.get("commonest", "")),
            absent=tuple(values.get("absent", ())),
        )

    def frame(self) -> pl.DataFrame:
        """Return the scores as a frame: overall, by number of parties present and by set of parties present.

        The column ``group`` is "overall", "count" or "parties". The column ``present`` has the number of present
        parties if the group is "count", and the names of these parties if the group is "parties".
        """
        groups = [("overall", "", self.overall)]
        groups += [("count", str(count), scores) for count, scores in self.by_count.items()]
        groups += [("parties", names, scores) for names, scores in self.by_pattern.items()]
        return pl.DataFrame([{"group": kind, "present": key, **_plain(scores)} for kind, key, scores in groups],
                            infer_schema_length=None)  # fmt: skip

    def plot(self, metric: str | None = None, axes: Axes | None = None) -> Axes:
        """Draw a metric as a bar for each set of parties present, and the score of a constant answer as a line.

        Args:
            metric: by default accuracy, or RMSE for a regression.
            axes: where to draw; by default new axes.

        Raises:
            ConfigError: the evaluation does not have the metric.
        """
        name = metric or ("accuracy" if self.task.kind == "classification" else "rmse")
        if name not in self.overall:
            raise ConfigError(f"metric: the evaluation has no {name!r}{nearest(name, self.overall)}")
        axes = new_axes() if axes is None else axes
        groups = list(self.by_pattern.items())[::-1]
        axes.barh([key for key, _ in groups], [scores[name] for _, scores in groups], color="#0f6fa8")
        if name in self.constant:
            axes.axvline(self.constant[name], color="#6e7781", linestyle=":", label="constant answer")
            axes.legend(loc="lower right")
        axes.set_xlabel(name)
        axes.set_title("test rows by the parties present")
        return axes

    def plot_confusion_matrix(self, axes: Axes | None = None) -> Axes:
        """Draw the number of answered rows for each true and predicted class; colours show shares of the true class.

        Args:
            axes: where to draw; by default new axes.

        Raises:
            ConfigError: the task is not a classification, or no row has an answer.
        """
        from anyparty.metrics import plots  # noqa: PLC0415 - scikit-learn and matplotlib are slow

        rows = self._answered_rows("a confusion matrix")
        axes = new_axes() if axes is None else axes
        plots.draw_confusion(axes, plots.confusion_counts(rows), rows.task.classes)
        return axes

    def plot_calibration_curve(self, axes: Axes | None = None) -> Axes:
        """Draw the share of rows in which an event occurred against the event's predicted probability, in ten bins.

        With two classes, the event is that a row has the positive class. With more classes, the event is
        that the answer is correct.

        Args:
            axes: where to draw; by default new axes.

        Raises:
            ConfigError: the task is not a classification, or no row has an answer.
        """
        from anyparty.metrics import plots  # noqa: PLC0415 - scikit-learn and matplotlib are slow

        rows = self._answered_rows("a calibration curve")
        axes = new_axes() if axes is None else axes
        plots.draw_calibration(axes, plots.calibration_of(rows))
        return axes

    def _answered_rows(self, drawing: str) -> LabelledPredictions:
        if self.task.kind != "classification":
            raise ConfigError(f"{drawing} needs classes, but the task is a regression; use plot()")
        rows = None if self.rows is None else self.rows.where(self.rows.answered)
        if rows is None or not len(rows.y):
            raise ConfigError(f"{drawing} needs rows with a label and an answer; this evaluation has none")
        return rows

    def __str__(self) -> str:
        """Return the tables as text, for ``print``."""
        return text_of(self.render())

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        return html_of(self.render())

    def __rich__(self) -> RenderableType:
        """Let ``rich.print`` show the tables."""
        return self.render()

    def render(self) -> RenderableType:
        """Return tables of scores: overall, by number and by set of parties present, and beside boosted trees.

        The second table is left out if it would repeat the third one.
        """
        rarer = int(self.overall["rows"] - sum(scores["rows"] for scores in self.by_pattern.values()))
        tables: list[RenderableType] = [
            self._summary(),
            *map(Text, self._notes()),
            _table("By who was present", "present", self.by_pattern, f"{rarer:,} rows in rarer patterns" * (rarer > 0)),
        ]
        if len(self.by_count) < len(self.by_pattern):  # otherwise, each number of parties has only one set of parties
            tables.insert(-1, _table("By number of parties present", "parties", self.by_count))
        return Group(*tables, *([] if self.worth is None else [self.worth.render()]))

    def _summary(self) -> Table:
        table = Table("metric", title=_title("Overall"), title_justify="left")
        table.add_column("value", justify="right")
        for name, value in {**self.overall, **self.clients}.items():
            table.add_row(name, _shown(name, value))
        return table

    def _notes(self) -> Iterator[str]:
        """Yield remarks that explain the scores."""
        if self.positive:
            yield f"positive class: {self.positive}"
        for name, value in self.constant.items():
            one = f"{self.commonest!r}, the commonest of these rows" if self.commonest else "their mean"
            yield f"always answering {one}: {name} {_shown(name, value)}"
        if self.clients:
            yield f"{' and '.join(self.clients)}: mean over parties of the score on the rows that the party has"
        if (share := self.overall["coverage"]) < 1:
            rows = self.overall["rows"]
            yield f"scores are of the {share * rows:,.0f} of {rows:,.0f} rows that got an answer"
        if self.silent:
            yield f"did not answer: {', '.join(self.silent)}"
        if self.absent and not math.isnan(self.overall["auroc"]):
            known = self.task.outputs - len(self.unseen)
            yield (f"auroc is the mean over {known - len(self.absent)} of {known} classes: no scored row is of class "
                   f"{some(self.absent)}")  # fmt: skip
        for name, rows in self.unseen.items():
            yield f"counted as wrong: {rows} rows of class {name!r}, which training never saw"


def evaluate(
    predictions: Predictions, y: Tensor, labeled: Tensor | None, observed: Tensor, seeds: Seeds, *,
    unseen: Sequence[str] = (), compare: Callable[[LabelledPredictions], Worth | None] | None = None,
) -> Evaluation:  # fmt: skip
    """Compute all metrics of predictions for n rows.

    Args:
        predictions: predictions for n rows.
        y: [n] labels: int64 index of the class, or float32 standardized number.
        labeled: [n] bool, the rows to score; ``None`` for all.
        observed: [n, K] bool, True if party k holds row n.
        seeds: the source of random numbers. In the client metrics, a row without an answer gets a random guess from the
            stream ``("evaluate", "guess")``.
        unseen: classes that did not occur in training. In ``y`` they are numbered after the classes of the task. The
            model gives them probability 0, so that every answer for their rows is wrong.
        compare: a function that computes ``Evaluation.worth`` from the labelled rows and their predictions.
    """
    predictions, known = predictions.over(unseen), predictions.task.outputs
    guess = seeds.torch("evaluate", "guess")
    rows = LabelledPredictions.of(predictions, y, labeled)
    constant, commonest = _constant(rows)
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
        absent=_absent(rows),
        rows=rows,
        compare=None if compare is None else partial(compare, rows),
        unseen={
            name: int((y if labeled is None else y[labeled]).eq(known + place).sum())
            for place, name in enumerate(unseen)
        },
    )


def _constant(rows: LabelledPredictions) -> tuple[ScoreTable, str]:
    """Return the best score that a constant answer has on the answered rows; in a classification, also this answer."""
    y = rows.y[rows.answered]
    if not len(y):
        return {}, ""
    if rows.task.kind == "regression":
        return {"rmse": float((y - y.mean()).square().mean().sqrt())}, ""
    counts = torch.bincount(y, minlength=rows.task.outputs)[: rows.trained.outputs]
    return {"accuracy": float(counts.max()) / len(y)}, rows.task.classes[int(counts.argmax())]


def _absent(rows: LabelledPredictions) -> tuple[str, ...]:
    """Return the classes that occurred in training but in no answered row; empty for at most two training classes."""
    known = rows.trained.classes
    if rows.task.kind == "regression" or len(known) <= 2:
        return ()
    found = set(rows.y[rows.answered].tolist())
    return tuple(name for c, name in enumerate(known) if c not in found)


def _plain(scores: ScoreTable) -> dict[str, float | int | None]:
    return {name: int(v) if name == "rows" else None if math.isnan(v) else v for name, v in scores.items()}


def _shown(name: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if name == "coverage":
        return f"{value:.1%}"
    return f"{value:,.0f}" if name == "rows" or abs(value) >= 1e4 else f"{value:#.4g}"


def _title(text: str) -> Text | None:
    return Text(text) if text else None  # Text, not str, because rich would interpret a party's name such as "[red]"


def _table(
    title: str, first: str, groups: Mapping[int, ScoreTable] | Mapping[str, ScoreTable], note: str = ""
) -> Table:
    table = Table(title=_title(title), caption=_title(note), title_justify="left")
    table.add_column(first, overflow="fold")
    names = [name for name in next(iter(groups.values()), {}) if name not in METRICS or METRICS[name].detailed]
    for name in names:
        # Line breaks in the headings keep the table within 80 columns.
        table.add_column(name.replace("_", "\n"), justify="right")
    for key, scores in groups.items():
        table.add_row(Text(str(key)), *(_shown(name, scores[name]) for name in names))
    return table
