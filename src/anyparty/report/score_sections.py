"""Sections about scores: by number of parties, by contribution of each party, and the errors in detail.

Without the model, the section of scores shows the recorded scores, and the other two sections do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from anyparty.metrics.calibration import calibration_of, confusion_counts, only_answered, scores_by_class
from anyparty.metrics.scores import LabelledPredictions, metric_label
from anyparty.report import figures
from anyparty.report.elements import (
    MAX_PARTIES_LISTED,
    PageFigure,
    PageTable,
    Section,
    decimal_places,
    format_estimate,
    format_number,
    format_score,
)
from anyparty.report.recorded_runs import RecordedRun
from anyparty.report.run_scores import RunScores, recorded_metric
from anyparty.report.shapley import Estimate

if TYPE_CHECKING:
    from anyparty.report.party_set_scores import PartySetScores

MAX_CLASSES = 20  # in a confusion matrix
FEW_ROWS = 30


def scores_section(run: RecordedRun, scores: RunScores) -> Section:
    """Show the metric by number of parties: of the model if it was scored again, else as recorded."""
    return _recorded_scores(run, scores) if scores.sets is None else _model_scores(scores.sets)


def _model_scores(sets: PartySetScores) -> Section:
    digits, few = sets.decimals, len(sets.tested.parties) <= MAX_PARTIES_LISTED
    metric, constant = metric_label(sets.metric), float(sets.values(frozenset())[0])
    every = sets.every_set() if few else []
    if not few:
        sets.shapley()  # computes the scores of the sets that ``by_size`` averages
    sizes = sets.by_size()
    own = sets.own_columns()
    prediction = "mean label" if sets.tested.model.task.kind == "regression" else "class shares"
    whole = format_estimate(sets.score(sets.all_parties).score, digits=digits)
    text = [f"{metric} of all parties on {sets.tested.rows}: {whole}."]
    if own is not None:
        text[0] += (f" With the columns of {sets.tested.model.roster.active} only, the same model scores "
                    f"{format_estimate(own, digits=digits)}.")  # fmt: skip
    text.append(
        f"Rows that the present parties cannot answer get a constant prediction, the {prediction} of the training "
        f"rows; this prediction alone scores {format_number(constant, digits)}. Intervals are 95 % intervals from "
        f"{len(sets.resamples)} resamples of these rows."
    )
    if len(sets.tested.test_rows) < FEW_ROWS:
        text[1] += " With so few rows, all may be right or wrong by chance; resampling does not show this."
    table = PageTable(
        headers=["present parties", f"mean {metric}"],
        rows=[[str(size) if size else "none", format_estimate(each, digits=digits)] for size, each in sizes.items()],
        text_columns=frozenset(),
    )
    spread = [(len(each.parties), each.score.value) for each in every]
    figure = figures.draw_scores_by_size(sizes, metric, constant, own=own.value if own else math.nan, sets=spread)
    dots = "Each faint dot is one set of parties; the line is their mean." if few else (
        "The mean over the computed sets of each size.")  # fmt: skip
    drawn = PageFigure(name="sizes", figure=figure, caption=f"{dots} The band is the interval of the mean.",
                       alternative=_by_size_in_words(metric, table, own, digits))  # fmt: skip
    return Section(
        id="sets", title="Scores by number of present parties", text=[text[0][0].upper() + text[0][1:], *text[1:]],
        figures=[drawn], tables=[table], beside=True, details=[_every_set(sets, constant)] if few else [],
    )  # fmt: skip


def _by_size_in_words(metric: str, table: PageTable, own: Estimate | None, digits: int) -> str:
    values = "; ".join(f"{row[0]}: {row[1]}" for row in table.rows)
    line = f" Own columns only: {format_number(own.value, digits)}." if own else ""
    return f"Line chart of {metric} by number of present parties. {values}.{line}"


def _every_set(sets: PartySetScores, constant: float) -> Section:
    metric, digits, every = metric_label(sets.metric), sets.decimals, sets.every_set()
    figure = figures.draw_set_scores(every, sets.tested.parties, metric, constant, digits)
    alternative = f"{metric} of every set of parties, with intervals. The table below has the same numbers."
    rows = [[" + ".join(each.parties), format_estimate(each.score, digits=digits)] for each in every]
    return Section(
        id="each-set", title="Every set of parties",
        figures=[PageFigure(name="sets", figure=figure, alternative=alternative)],
        tables=[PageTable(headers=["parties", metric], rows=rows)],
    )  # fmt: skip


def _recorded_scores(run: RecordedRun, scores: RunScores) -> Section:
    """Show the recorded scores, the requested metric first."""
    section, found = partial(Section, id="sets", title="Recorded test scores"), run.evaluation
    metric = recorded_metric(run, scores.metric)
    if found is None or metric is None:
        return section(missing=f"There are no test scores: {scores.reason}.")
    metrics = [name for name in found["overall"] if name not in {"rows", "coverage"}]
    metrics.sort(key=lambda name: (name != scores.metric, name != metric))
    headers = [*map(metric_label, metrics), "answered", "rows"]

    def cells(each: dict[str, float]) -> list[str]:
        return [*(format_score(name, each.get(name)) for name in [*metrics, "coverage"]), f"{each['rows']:,}"]

    by_count = {count: found["by_count"][count] for count in sorted(found["by_count"], key=int)}
    rows = [["any", *cells(found["overall"])], *([key, *cells(each)] for key, each in by_count.items())]
    details = []
    if max(map(int, by_count), default=0) <= MAX_PARTIES_LISTED:  # more parties: too many sets, with few rows
        named = [[key, *cells(each)] for key, each in found["by_pattern"].items()]
        tables = [PageTable(headers=["parties that have the row", *headers], rows=named)]
        details = [Section(id="each-set", title="By the parties that have the row", tables=tables)]
    constant = (found.get("constant") or {}).get(metric)
    text = "Test scores that the run recorded, with all parties asked, by the number of parties that have the row."
    if constant is not None:
        text += f" The best constant answer scores {metric_label(metric)} {format_score(metric, constant)}."
    figure = figures.draw_recorded_scores(by_count, metric, constant)
    values = "; ".join(f"{key}: {format_score(metric, each.get(metric))}" for key, each in by_count.items())
    caption = (
        f"A wider dot stands for more test rows. Scores of fewer than {figures.FEWEST_ROWS} rows are only in the table."
    )
    alternative = f"{metric_label(metric)} by number of parties that have the row. {values}."
    drawn = PageFigure(name="counts", figure=figure, caption=caption, alternative=alternative)
    return section(text=[text], figures=[drawn], details=details, beside=True,
                   tables=[PageTable(headers=["parties", *headers], rows=rows, text_columns=frozenset())],
                   missing=f"Sets of parties were not scored: {scores.reason}.")  # fmt: skip


def contributions_section(scores: RunScores) -> list[Section]:
    """Show each party's Shapley value, and what is lost without that party; empty without the model."""
    section, sets = partial(Section, id="brings", title="What each party brings"), scores.sets
    if sets is None:
        return []
    found, lost = sets.shapley(), sets.loss_without()
    metric, digits = metric_label(sets.metric), sets.decimals
    if math.isnan(found.gain):
        return [section(missing=f"{metric} is not defined on these test rows.")]
    how = "over all sets of parties" if not found.orders else f"from {found.orders} random orders of the parties"
    source = "the sampling of orders" if found.orders else "the test rows"
    text = (
        f"A contribution is a Shapley value: the party's share of the gain in {metric} {how}. The contributions sum to "
        f"{format_number(found.gain, digits, sign=True)}, the gain of all parties over no party. Intervals show the "
        f"uncertainty from {source}."
    )
    ordered = sorted(found.values, key=lambda name: -found.values[name].value)
    rows = [
        [name, format_estimate(found.values[name], sign=True, digits=digits + 1),
         format_estimate(lost[name], sign=True, digits=digits)]
        for name in ordered
    ]  # fmt: skip
    rows.append(["sum", format_number(sum(each.value for each in found.values.values()), digits + 1, sign=True), ""])
    figure = figures.draw_contributions(found.values, f"part of the gain in {metric}", digits)
    values = "; ".join(f"{row[0]}: {row[1]}" for row in rows[:-1])
    drawn = PageFigure(name="brings", figure=figure, alternative=f"Contribution of each party to {metric}. {values}.")
    table = PageTable(headers=["party", "contribution", f"worse {metric} without it"], rows=rows)
    return [section(text=[text], figures=[drawn], tables=[table])]


def errors_section(scores: RunScores) -> list[Section]:
    """Show calibration, confusion and scores by class, or residuals of a regression; empty without the model."""
    sets = scores.sets
    if sets is None:
        return []
    kind = "Residuals" if sets.tested.model.task.kind == "regression" else "Calibration and errors"
    section, tested = partial(Section, id="closer", title=kind, beside=True), sets.tested
    answers = only_answered(LabelledPredictions.of(tested.predict(tested.parties), tested.y, None))
    if not len(answers.y):
        return [section(missing="All parties together answer none of the test rows.")]
    text = [f"All parties, {tested.rows}: {len(answers.y):,} have an answer."]
    if answers.task.kind == "regression":
        errors, predicted = answers.errors.numpy(), answers.scores[:, 0].double().numpy()
        rmse, bias = float((errors**2).mean() ** 0.5), float(errors.mean())
        digits = decimal_places("rmse", rmse)
        text.append(f"Mean error {format_number(bias, digits)}, root mean square error {format_score('rmse', rmse)}.")
        drawn = PageFigure(name="residuals", figure=figures.draw_residuals(errors, predicted),
                           alternative=f"Histogram of residuals, and residuals by prediction. {text[1]}")  # fmt: skip
        return [section(text=text, figures=[drawn])]
    return [_class_errors(answers, section, text)]


def _class_errors(answers: LabelledPredictions, section: Callable[..., Section], text: Sequence[str]) -> Section:
    found, classes = calibration_of(answers), answers.task.classes
    error = f"Calibration of {found.event}: expected calibration error {found.error:.3f}."
    bins = "; ".join(f"{p:.2f}: {share:.2f}" for p, share in zip(found.confidence, found.correct, strict=True))
    drawn = [PageFigure(name="calibration", figure=figures.draw_calibration(found),
                        alternative=f"{error} Predicted probability and {found.share_label}: {bins}.")]  # fmt: skip
    counts = confusion_counts(answers)
    if len(classes) <= MAX_CLASSES:
        right = int(counts.diagonal().sum())
        words = f"Confusion matrix of {len(classes)} classes: {right:,} of {counts.sum():,} answers are correct."
        drawn.append(PageFigure(name="confusion", figure=figures.draw_confusion(counts, classes), alternative=words))
    rows = [
        [each.name, format_number(each.precision), format_number(each.recall), format_number(each.f1), f"{each.rows:,}"]
        for each in scores_by_class(answers)
    ]
    table = PageTable(headers=["class", "precision", "recall", "F1", "rows"], rows=rows)
    return section(text=[*text, error], figures=drawn, tables=[table])
