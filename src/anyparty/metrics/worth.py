"""Is a federation worth it?  Its scores beside those of the active party alone, on the same test rows.

The active party alone would train boosted trees on its own columns.  Boosted trees on the columns of all parties in one
place show what could be reached at most; no real federation can pool its columns.  All are trained on the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anyparty.core.seeds import Seeds
from anyparty.core.types import Task
from anyparty.errors import some
from anyparty.metrics.scores import METRICS, LabelledPredictions, ScoreTable, metric_label

RESAMPLES, FEWEST_RESAMPLES, MOST_DRAWN = 200, 40, 4_000_000
CLOSE = 0.03  # with a wider interval, no difference is not "nothing"
LIKE_SHARE = {"auroc", "log_loss"}  # metrics that are shown with three decimals


@dataclass(frozen=True, kw_only=True)
class Line:
    """The scores of one way to answer the test rows.

    Attributes:
        name: a description for readers.
        kind: "own" for trees of the active party, "alone" for the model without the other parties, "all" for the model,
            "without" for the model if one party is offline,
            "pooled" for trees on all columns in one place.
        scores: the values of the metrics in ``METRICS`` by name.
        rows: the number of test rows that are scored.
    """

    name: str
    kind: str
    scores: ScoreTable
    rows: int


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The change that the passive parties make.

    Attributes:
        active: the active party.
        passive: the passive parties that were asked.
        every: whether these are all passive parties with columns.
        metric: the metric of the verdict: AUROC, the mean over classes if there are more than two, or RMSE.
        lines: the scores, in the order of the table.
        reference: the kind of the line that stands for the active party alone: "own", or "alone" if it is better, so
            that a difference between trees and networks is not taken for a contribution of the other parties.
        difference: the model's value of the metric minus the value of the active party alone.
        half_width: half of the width of the 95 % interval of the difference, from paired resamples of the test rows.
        notes: remarks, as sentences.
    """

    active: str
    passive: tuple[str, ...]
    every: bool
    metric: str
    lines: tuple[Line, ...]
    difference: float
    half_width: float
    reference: str = "own"
    notes: tuple[str, ...] = ()

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Worth:
        """Return the object that ``to_json`` has written."""
        lines = tuple(
            Line(name=str(each["name"]), kind=str(each["kind"]), rows=int(each["rows"]),
                 scores={name: _number(value) for name, value in each["scores"].items()})
            for each in values["lines"]
        )  # fmt: skip
        return cls(
            active=values["active"], passive=tuple(values["passive"]), every=values["every"], metric=values["metric"],
            lines=lines, difference=_number(values["difference"]), half_width=_number(values["half_width"]),
            reference=values.get("reference", "own"), notes=tuple(values.get("notes", ())),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the values for JSON, with the verdict; NaN becomes ``None``."""
        lines, texts = [asdict(line) for line in self.lines], {"passive": [*self.passive], "notes": [*self.notes]}
        found = {**vars(self), "verdict": self.verdict, "lines": lines, **texts}
        for each in (found, *(line["scores"] for line in found["lines"])):
            each |= {key: None for key, value in each.items() if isinstance(value, float) and math.isnan(value)}
        return found

    def value(self, kind: str, metric: str | None = None) -> float:
        """Return a line's value of a metric, by default of the verdict's; NaN without such a line."""
        found = (line.scores.get(metric or self.metric, math.nan) for line in self.lines if line.kind == kind)
        return next(found, math.nan)

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        one = len(self.passive) == 1
        who = f"the other {'party' if one else 'parties'}" if self.every else some(self.passive)
        s, label = "s" if one else "", metric_label(self.metric)
        own, whole = (self.shown(self.value(kind)) for kind in (self.reference, "all"))
        change = f"({self.shown(self.difference, sign=True)} ± {self.shown(self.half_width)})"
        if math.isnan(self.difference):
            return f"{label} is not defined on these test rows, so they do not show what {who} add{s}"
        if not abs(self.difference) > self.half_width:  # also if the interval is NaN
            scores = f"{label} {own} without, {whole} with {'it' if one else 'them'} {change}"
            if not self.half_width <= CLOSE * (1.0 if self.metric == "auroc" else self.value(self.reference)):
                return f"{self.lines[0].rows:,} test rows are too few to tell whether {who} add{s} something: {scores}"
            return f"{who} add{s} nothing here: {scores}"
        verb = "raise" if self.difference > 0 else "lower"
        if (self.difference > 0) == METRICS[self.metric].greater:
            return f"{who} {verb}{s} {label} from {own} to {whole} {change}"
        return (
            f"{who} do{'es' if one else ''} not help here: {self.active} alone has {label} {own}, all {whole} {change}"
        )

    def shown(self, value: float, metric: str | None = None, *, sign: bool = False) -> str:
        """Return a value of a metric as text."""
        if math.isnan(value):
            return "–"
        if (metric or self.metric) in LIKE_SHARE:
            return f"{value:{'+' if sign else ''}z.3f}"
        size = abs(self.value("own", metric)) or abs(value) or 1.0
        digits = max(0, 3 - math.floor(math.log10(size)))  # as many as a score with four digits has
        return f"{value:{'+' if sign else ''}z,.{digits}f}"

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and rows of the table, as text."""
        names = list(self.lines[0].scores)
        rows = [
            [line.name, *(self.shown(line.scores[name], name) for name in names), f"{line.rows:,}"]
            for line in self.lines
        ]
        return ["answered by", *map(metric_label, names), "rows"], rows

    def render(self) -> RenderableType:
        """Return the table, and the verdict below it."""
        headings, rows = self.cells()
        table = Table(title=Text("Is it worth it?"), title_justify="left")
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        verdict = self.verdict[0].upper() + self.verdict[1:] + "."
        return Group(table, Text(verdict, style="bold"), *map(Text, self.notes))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def metrics_of(task: Task) -> tuple[str, str]:
    """Return the two metrics of the table; the verdict uses the first."""
    return ("rmse", "mae") if task.kind == "regression" else ("auroc", "log_loss")


def line_of(name: str, kind: str, rows: LabelledPredictions) -> Line:
    """Return the scores of the rows with an answer."""
    rows = rows.where(rows.answered)
    names = metrics_of(rows.task)
    return Line(name=name, kind=kind, rows=len(rows.y),
                scores={each: METRICS[each].of(rows) if len(rows.y) else math.nan for each in names})  # fmt: skip


def is_better(one: Line, other: Line, task: Task) -> bool:
    """Return True if the verdict's metric is better in the first line."""
    metric = metrics_of(task)[0]
    difference = one.scores[metric] - other.scores[metric]
    return difference > 0 if METRICS[metric].greater else difference < 0


def paired_difference(
    whole: LabelledPredictions, own: LabelledPredictions, metric: str, seed: int
) -> tuple[float, float]:
    """Return the difference of a metric on n rows, and half of its 95 % interval.

    The interval is 1.96 standard deviations of the difference on resamples of the rows, the same for both.
    """
    n, of = len(whole.y), METRICS[metric].of
    if not n:
        return math.nan, math.nan
    count = max(FEWEST_RESAMPLES, min(RESAMPLES, MOST_DRAWN // n))
    draws = Seeds(seed).numpy("evaluate", "worth").integers(n, size=(count, n))
    drawn = [torch.from_numpy(rows) for rows in draws]
    found = np.array([of(whole.where(rows)) - of(own.where(rows)) for rows in drawn])
    found = found[~np.isnan(found)]
    deviation = float(found.std(ddof=1)) if len(found) > 1 else math.nan
    return of(whole) - of(own), 1.96 * deviation


def worth_of(
    active: str, passive: Sequence[str], lines: Sequence[Line], whole: LabelledPredictions, own: LabelledPredictions, *,
    every: bool, seed: int, reference: str = "own", notes: Sequence[str] = (),
) -> Worth:  # fmt: skip
    """Compare the model's answers with those of the active party alone; ``whole`` and ``own`` have the same n rows."""
    metric = metrics_of(whole.task)[0]
    difference, half_width = paired_difference(whole, own, metric, seed)
    return Worth(active=active, passive=tuple(passive), every=every, metric=metric, lines=tuple(lines),
                 difference=difference, half_width=half_width, reference=reference, notes=tuple(notes))  # fmt: skip
