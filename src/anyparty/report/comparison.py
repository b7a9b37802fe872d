"""The comparison of several runs: one table with a line for each run, and differences between variants by seed.

Runs that differ only in their seed belong to one *variant*.  Each variant is compared with one reference variant over
the seeds that both variants have, and only if their test rows are equal.  If models were scored again, the ids and the
labels of the rows show whether the test rows are equal, and no differences are computed for a run whose model was not
scored again. If no model was scored again, the recorded scores are compared. The test rows then count as equal if the
tables are equal and the settings that choose the test rows are equal. A recorded score that covers only some test rows
is neither drawn nor compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from anyparty.artifacts.record import MAY_DIFFER
from anyparty.core.figure_style import NARROW
from anyparty.errors import some
from anyparty.metrics import METRICS
from anyparty.metrics.paired import PairedDifference
from anyparty.metrics.scores import metric_label
from anyparty.report import figures
from anyparty.report.elements import (
    PageFigure,
    PageTable,
    Section,
    decimal_places,
    format_bytes,
    format_estimate,
    format_number,
    format_score,
)
from anyparty.report.recorded_runs import RecordedRun, RunScores, recorded_metric
from anyparty.report.sections import MAX_OPEN_NOTES
from anyparty.report.shapley import Estimate
from anyparty.report.traffic import total_traffic

METRICS_OF_ONE_CLASS = {"f1"}  # metrics that depend on the choice of the positive class
NOT_IN_VARIANT = {"train.seed", "train.score_training", *MAY_DIFFER}
OTHER_THAN_ROWS = {"method", "encoder", "optimizer", "schedule", "clock", "run", "track"}
"""Groups of settings that have no influence on which rows are test rows."""
OTHER_THAN_ROWS_IN_TRAIN = {
    "epochs", "batch_size", "batches", "rows", "validation", "score_training", "metric", "patience", "keep", "balance",
    "calibrate", *(name.partition(".")[2] for name in MAY_DIFFER),
}  # fmt: skip
MAX_COUNTS = 8  # a table by number of parties has at most so many columns
OWN_COLUMNS = "local"  # the method that trains on the active party's own columns
MAX_OPEN_RUNS = 24  # a table with more runs is shown folded


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run with its scores and the name of its variant."""

    run: RecordedRun
    scores: RunScores
    variant: str

    @classmethod
    def of_all(cls, runs: Sequence[RecordedRun], scores: Sequence[RunScores]) -> list[ComparedRun]:
        """Return the runs with their variants: the method, and the settings in which runs of that method differ."""
        flat = {run.name: _without_duplicates(_flatten(run.settings)) for run in runs}
        every = {key for each in flat.values() for key in each}
        keys = sorted(key for key in every if ".".join(key) not in NOT_IN_VARIANT)
        compared = []
        for run, each in zip(runs, scores, strict=True):
            peers = [other for other in runs if other.method == run.method]
            differ = [
                key for key in keys if len({_comparable(other, key, flat[other.name].get(key)) for other in peers}) > 1
            ]
            settings = ", ".join(f"{'.'.join(key)} = {flat[run.name].get(key)}" for key in differ)
            variant = f"{run.method} ({settings})" if settings else run.method
            compared.append(cls(run=run, scores=each, variant=variant))
        return compared

    @property
    def recorded(self) -> str | None:
        """The recorded metric to show if the model was not scored again, else ``None``."""
        return recorded_metric(self.run, self.scores.metric) if self.scores.sets is None else None

    @property
    def overall(self) -> Mapping[str, Any]:
        """The recorded scores of all test rows together."""
        found: Mapping[str, Any] = (self.run.evaluation or {}).get("overall", {})
        return found

    @property
    def coverage(self) -> float:
        """The share of test rows that the recorded score covers; 1 if the share is not recorded."""
        part = self.overall.get("coverage")
        return 1.0 if part is None else float(part)

    def estimate(self, metric: str) -> Estimate | None:
        """Return the score with all parties: the loaded model's score with an interval, else the recorded score.

        A recorded score is used only if it covers all test rows.  The result is ``None`` if the run has neither score.
        """
        sets = self.scores.sets
        if sets is not None:
            defined = sets.metric == metric and not math.isnan(float(sets.values(sets.all_parties)[0]))
            return sets.score(sets.all_parties).score if defined else None
        if self.recorded != metric or self.overall[metric] is None or self.coverage < 1:
            return None
        return Estimate(value=float(self.overall[metric]), low=math.nan, high=math.nan)

    def digits(self, metric: str) -> int:
        """Return the number of decimals to show for the run's score."""
        if self.scores.sets is not None:
            return self.scores.sets.decimals if self.scores.sets.metric == metric else 0
        estimate = self.estimate(metric)
        return decimal_places(metric, estimate.value) if estimate else 0

    def cell(self, metric: str, *, recorded: bool) -> str:
        """Return the score for the table of runs: of the loaded model, or the recorded score.

        If some test rows have no answer, the text of a recorded score gives the share of answered rows.
        """
        sets = self.scores.sets
        if not recorded and sets is not None and sets.metric == metric:
            return format_estimate(sets.score(sets.all_parties).score, digits=sets.decimals)
        if not recorded or self.recorded != metric:
            return "–"
        value = format_score(metric, self.overall[metric])
        return value if self.coverage == 1 else f"{value} of the {self.coverage:.0%} with an answer"

    def by_count(self, metric: str) -> dict[int, float]:
        """Return the score for each number of parties: of the loaded model, or the recorded score.

        A recorded score is NaN if some rows have no answer or there are fewer than ``FEWEST_ROWS`` rows.
        """
        if self.scores.sets is not None:
            return {size: score.value for size, score in self.scores.sets.by_size().items() if size}
        found = {}
        for count, row in (self.run.evaluation or {}).get("by_count", {}).items():
            whole = row.get("coverage") in {None, 1} and row["rows"] >= figures.FEWEST_ROWS
            found[int(count)] = float(row[metric]) if whole and row.get(metric) is not None else math.nan
        return found

    @property
    def positive_class(self) -> Sequence[str]:
        """The last class, which is the positive one of two; empty for a regression."""
        sets, recorded = self.scores.sets, (self.run.evaluation or {}).get("classes", [])
        return sets.tested.model.task.classes[-1:] if sets is not None else tuple(recorded)[-1:]

    @property
    def test_rows(self) -> object:
        """A value that is equal for two runs if their test rows are known to be equal."""
        return labelled_test_rows(self.scores) if self.scores.sets else recorded_test_rows(self.run)


def comparison_section(runs: Sequence[RecordedRun], scores: Sequence[RunScores]) -> Section:
    """Make the section that compares several runs: figures, the table of runs, and differences between variants."""
    compared = ComparedRun.of_all(runs, scores)
    metrics = sorted({each.scores.sets.metric for each in compared if each.scores.sets})
    recorded = sorted({each.recorded for each in compared if each.recorded})
    every = list(dict.fromkeys([*metrics, *recorded]))
    text, drawn, tables, details = [], [], list[PageTable](), list[Section]()
    for metric in every:
        drawn += [each] if (each := _score_figure(compared, metric)) else []
        found, reasons = compare_variants(runs, scores, metric)
        if found:
            digits = max(each.digits(metric) for each in compared)
            reference = _reference_variant(compared, found)
            shown = [each.against(reference) for each in found if reference in {each.one, each.other}]
            tables.append(_difference_table(shown, metric, digits))
            if len(found) > len(shown):
                pairs = Section(id=f"pairs-{metric}", title=f"Differences in {metric_label(metric)} of all pairs",
                                tables=[_difference_table(found, metric, digits)])  # fmt: skip
                details.append(pairs)
        text += [f"Not compared in {metric_label(metric)}: {reason}." for reason in reasons]
    if not every:
        missing = dict.fromkeys(each.reason or "the records have none" for each in scores)
        text += [f"There are no test scores: {reason}." for reason in missing]
    text += _exclusion_notes(compared)
    tables += filter(None, (_count_table(compared, metric) for metric in every))
    each_run = _run_table(compared, metrics, recorded)
    if len(runs) > MAX_OPEN_RUNS:
        details.insert(0, Section(id="each-run", title=f"Scores of all {len(runs)} runs", tables=[each_run]))
    else:
        tables.append(each_run)
    if len(text) > MAX_OPEN_NOTES:
        details.append(Section(id="left-out", title=f"{len(text)} runs or pairs that are not compared", text=text))
        text = []
    return Section(id="compare", title="Scores and differences", text=text, figures=drawn,
                   tables=tables, details=details,
                   beside=all(each.figure.get_figwidth() <= NARROW for each in drawn))  # fmt: skip


def _run_table(compared: Sequence[ComparedRun], metrics: Sequence[str], recorded: Sequence[str]) -> PageTable:
    source = ", as recorded" if metrics else ""  # if no model was scored again, all scores are as recorded
    labels = [*map(metric_label, metrics), *(f"{metric_label(metric)}{source}" for metric in recorded)]
    rows = [
        [
            run.name, run.method or "–", *(each.cell(metric, recorded=False) for metric in metrics),
            *(each.cell(metric, recorded=True) for metric in recorded), str(run.seed),
            f"{len(run.history)}" + (f" (best: {run.best_epoch})" if run.best_epoch else ""),
            format_bytes(total_traffic(run.ledger).bytes_sent) if run.ledger.flows else "–", run.status,
        ]
        for each in compared for run in [each.run]
    ]  # fmt: skip
    headers = ["run", "method", *labels, "seed", "epochs", "sent", "status"]
    return PageTable(headers=headers, rows=rows, text_columns=frozenset({0, 1, len(headers) - 1}))


def _count_table(compared: Sequence[ComparedRun], metric: str) -> PageTable | None:
    """Make the table of each variant's mean score by number of parties.

    If models were scored again, the number is that of the present parties, else that of the parties that have the row.
    The result is ``None`` if only some models were scored again, or if there are no or too many numbers of parties.
    """
    again = [each.scores.sets is not None and each.scores.sets.metric == metric for each in compared]
    if any(again) != all(again):
        return None
    found: dict[str, dict[int, list[float]]] = {}
    for each in compared:
        for count, value in each.by_count(metric).items():
            found.setdefault(each.variant, {}).setdefault(count, []).append(value)
    counts = sorted({count for values in found.values() for count in values})
    if len(found) < 2 or not 1 < len(counts) <= MAX_COUNTS:
        return None
    digits = max((decimal_places(metric, value) for by_count in found.values() for values in by_count.values()
                  for value in values if not math.isnan(value)), default=0)  # fmt: skip
    rows = [
        [name, *(format_number(statistics.fmean(values.get(count, [math.nan])), digits) for count in counts)]
        for name, values in found.items()
    ]
    what = "present parties" if all(again) else "parties that have the row"
    caption = f"Mean {metric_label(metric)} over seeds, by number of {what}."
    if any(cell == format_number(math.nan) for row in rows for cell in row):
        caption += f" A dash stands for rows without an answer, or fewer than {figures.FEWEST_ROWS} rows."
    return PageTable(headers=["variant", *map(str, counts)], rows=rows, caption=caption)


def _reference_variant(compared: Sequence[ComparedRun], found: Sequence[PairedDifference]) -> str:
    """Return the reference variant: the first variant without other parties' columns, or else the first variant."""
    variants = list(dict.fromkeys(name for each in found for name in (each.one, each.other)))
    own = [each.variant for each in compared if each.run.method == OWN_COLUMNS and each.variant in variants]
    return (own or variants)[0]


def _score_figure(compared: Sequence[ComparedRun], metric: str) -> PageFigure | None:
    """Draw a metric: one row for each variant if a variant has several seeds, else one row for each run.

    The result is ``None`` if fewer than two runs have a score.
    """
    scored = [(each, estimate) for each in compared if (estimate := each.estimate(metric))]
    if len(scored) < 2:
        return None
    by_variant = dict[str, dict[int, Estimate]]()
    for each, estimate in scored:
        seeds = by_variant.setdefault(each.variant, {})
        seeds[each.run.seed] = replace(estimate, low=math.nan, high=math.nan)
    recorded = [each.run.name for each, _ in scored if each.scores.sets is None]
    rows = {each.run.name: [estimate] for each, estimate in scored}
    if any(len(seeds) > 1 for seeds in by_variant.values()):
        rows = {name: list(seeds.values()) for name, seeds in by_variant.items()}
        caption = "Mean of each variant over its seeds (faint dots), with a band of one standard deviation"
        caption += f"; the scores of {some(recorded)} are as recorded" if 0 < len(recorded) < len(scored) else ""
    elif len(recorded) == len(scored):
        caption = "Recorded score of each run, with all parties"
    else:
        caption = "Score of each run, with all parties, with the 95 % interval from resampled test rows"
        caption += f"; the scores of {some(recorded)} are as recorded, without an interval" if recorded else ""
    own = [estimate.value for each, estimate in scored if each.run.method == OWN_COLUMNS]
    digits = max(each.digits(metric) for each, _ in scored)
    figure = figures.draw_runs(rows, metric_label(metric), digits, own=statistics.fmean(own) if own else math.nan)
    means = "; ".join(f"{name}: {format_number(statistics.fmean(one.value for one in each), digits)}"
                      for name, each in rows.items())  # fmt: skip
    return PageFigure(name=f"runs-{metric}", figure=figure, caption=f"{caption}. {_direction_text(metric)}",
                      alternative=f"{metric_label(metric)} of each row, with intervals. {means}.")  # fmt: skip


def _exclusion_notes(compared: Sequence[ComparedRun]) -> list[str]:
    """Return sentences on the runs that are not in the figure or not among the differences."""
    sentences = [f"Not in the figure: {each.run.name}, whose recorded score covers only the {each.coverage:.0%} of "
                 "test rows with an answer." for each in compared if each.recorded and each.coverage < 1]  # fmt: skip
    without: dict[str, list[str]] = {}
    for each in compared if any(each.scores.sets for each in compared) else ():
        if each.scores.sets is None:
            without.setdefault(each.scores.reason, []).append(each.run.name)
    return sentences + [f"Not among the differences, which need the model and its tables: {some(names, len(names))} "
                        f"({reason})." for reason, names in without.items()]  # fmt: skip


def _direction_text(metric: str) -> str:
    return f"{'More' if METRICS[metric].greater else 'Less'} is better."


def _difference_table(found: Sequence[PairedDifference], metric: str, digits: int) -> PageTable:
    rows = []
    for each in found:
        low, high = each.interval()
        difference = Estimate(value=each.mean, low=low, high=high)
        rows.append([each.one, each.other, format_estimate(difference, digits=digits, sign=True), str(len(each.each)),
                     f"{each.better} of {len(each.each)}"])  # fmt: skip
    caption = f"Difference in {metric_label(metric)}, seed by seed on the same test rows. {_direction_text(metric)}"
    if any(len(each.each) > 1 for each in found):
        caption += " Student's 95 % interval over seeds."
    if any(len(each.each) < 2 for each in found):
        caption += " A single seed gives no interval."
    return PageTable(headers=["variant", "minus", "mean difference", "seeds", "better in"], rows=rows,
                     text_columns=frozenset({0, 1}), caption=caption)  # fmt: skip


def compare_variants(
    runs: Sequence[RecordedRun], scores: Sequence[RunScores], metric: str
) -> tuple[list[PairedDifference], list[str]]:
    """Compute the differences in ``metric`` of all pairs of variants.

    Returns:
        The differences, and the reasons why some pairs of variants, seeds or runs could not be compared.
    """
    models = any(each.sets for each in scores)
    variants: dict[str, dict[int, ComparedRun]] = {}
    values, tested, found, reasons = dict[str, float](), dict[str, object](), list[PairedDifference](), list[str]()
    for each in ComparedRun.of_all(runs, scores):
        if (each.scores.sets or not models) and (estimate := each.estimate(metric)):
            values[each.run.name], tested[each.run.name] = estimate.value, each.test_rows
            first = variants.setdefault(each.variant, {}).setdefault(each.run.seed, each)
            if first is not each:
                reasons.append(f"{each.run.name} has the settings and the seed of {first.run.name}")
    for one, other in combinations(variants, 2):
        common = sorted(variants[one].keys() & variants[other].keys())
        pairs = [(variants[one][seed], variants[other][seed]) for seed in common]
        same = [(a, b) for a, b in pairs if tested[a.run.name] == tested[b.run.name]]
        if len(same) < len(pairs):
            reasons.append(f"{one} and {other} have different test rows")
        if metric in METRICS_OF_ONE_CLASS and len({tuple(run.positive_class) for pair in same for run in pair}) > 1:
            reasons.append(f"{one} and {other} have different positive classes")
        elif same:
            scored = [(values[a.run.name], values[b.run.name]) for a, b in same]
            found.append(PairedDifference.of(metric, scored, one, other))
    return found, reasons


def recorded_test_rows(run: RecordedRun) -> object:
    """Return a value that is equal for two runs if their records show that their test rows are equal.

    The value consists of the fingerprints of the tables, all settings that may choose the test rows, and the number of
    rows.  If the record lacks tables, settings or scores, the value is equal only to itself.
    """
    if not (run.settings and run.tables and run.evaluation):
        return object()
    settings = {}
    for key, value in _flatten(run.settings).items():
        of_party = key[0] == "parties" and key[2] in {"encoder", "optimizer", "table"}
        of_training = key[0] == "train" and key[1] in OTHER_THAN_ROWS_IN_TRAIN
        if key[0] not in OTHER_THAN_ROWS and not of_party and not of_training:
            settings[key] = repr(value)
    return dict(run.tables), settings, run.evaluation["overall"]["rows"]


def labelled_test_rows(scores: RunScores) -> list[tuple[str, str]]:
    """Return the id of each test row and its label as text, as pairs."""
    assert scores.sets is not None
    tested = scores.sets.tested
    assert tested.model.held_out is not None
    ids, task = tested.model.held_out[1].ids, tested.model.task
    assert ids is not None
    labels = [
        task.classes[int(y)] if task.classes else f"{float(y) * task.scale + task.mean:.5g}" for y in tested.y
    ]  # fmt: skip
    return list(zip(ids.gather(tested.test_rows.tolist()).to_list(), labels, strict=True))


def _comparable(run: RecordedRun, key: tuple[str, ...], value: Any) -> str:
    """Return a setting's value as comparable text; a table's path is replaced by the fingerprint of its content."""
    table = run.tables.get(key[1]) if key[0] == "parties" and key[-1] == "table" else None
    return table or repr(value)


def _without_duplicates(flat: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Return the settings without duplicates.

    For a user-defined method, ``method.own`` has all settings of the method, including defaults. The same settings
    under ``method`` are left out.
    """
    own = {part for key in flat if key[:2] == ("method", "own") for part in key[2:]}
    return {key: each for key, each in flat.items() if key[0] != "method" or key[1] == "own" or key[1] not in own}


def _flatten(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, (*prefix, key)) if isinstance(value, Mapping) else {(*prefix, key): value}
    return flat
