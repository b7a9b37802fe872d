"""The comparison of several runs: one table of all runs, and differences between variants seed by seed.

Runs that differ only in their seed belong to one *variant*.  Two variants are compared over the seeds that both have,
and only on equal test rows: the same tables, split by the same shares with the same seed.  The model and its tables
give the test rows.  A run whose model was not scored again takes no part in differences.  The recorded score of such a
run appears in the figure if the score covers all test rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from anyparty.artifacts.record import MAY_DIFFER
from anyparty.errors import some
from anyparty.metrics import METRICS
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
    metric_label,
)
from anyparty.report.recorded_runs import RecordedRun
from anyparty.report.run_scores import RunScores, recorded_metric
from anyparty.report.shapley import Estimate
from anyparty.report.traffic import total_traffic

METRICS_OF_ONE_CLASS = {"f1"}  # depends on which class is positive; AUROC does not
NOT_IN_VARIANT = {"train.seed", "train.score_training", *MAY_DIFFER}


@dataclass(frozen=True, kw_only=True)
class VariantDifference:
    """The score of one variant minus the score of another.

    Attributes:
        one, other: the variants.
        each: the difference for each seed that both have.
        better: number of seeds for which ``one`` is better.
    """

    one: str
    other: str
    each: tuple[float, ...]
    better: int

    @property
    def mean(self) -> float:
        """The mean difference."""
        return statistics.fmean(self.each)

    @property
    def deviation(self) -> float:
        """The standard deviation of the differences; NaN for a single one."""
        return statistics.stdev(self.each) if len(self.each) > 1 else float("nan")


def comparison_section(runs: Sequence[RecordedRun], scores: Sequence[RunScores]) -> Section:
    """Compare several runs."""
    metrics = sorted({each.sets.metric for each in scores if each.sets})
    recorded = sorted({name for run, each in zip(runs, scores, strict=True) if (name := _recorded_only(run, each))})
    labels = [*map(metric_label, metrics), *(f"{metric_label(metric)}, as recorded" for metric in recorded)]
    headers = ["run", "method", "seed", "status", "epochs", "best", *labels, "sent"]
    rows = [
        [
            run.name, run.method or "–", str(run.seed), run.status, str(len(run.history)), str(run.best_epoch or "–"),
            *(_score_cell(each, metric) for metric in metrics),
            *(_recorded_cell(run, each, metric) for metric in recorded),
            format_bytes(total_traffic(run.ledger).bytes_sent) if run.ledger.flows else "–",
        ]
        for run, each in zip(runs, scores, strict=True)
    ]  # fmt: skip
    tables = [PageTable(headers=headers, rows=rows, text_columns=frozenset({0, 1, 3}))]
    every = dict.fromkeys([*metrics, *recorded])
    text, drawn = [], [each for metric in every if (each := _figure(runs, scores, metric))]
    for metric in metrics:
        found, reasons = compare_variants(runs, scores, metric)
        if found:
            digits = max(each.sets.decimals for each in scores if each.sets and each.sets.metric == metric)
            tables.append(_difference_table(found, metric, digits + 1))
        text += [f"Not compared in {metric_label(metric)}: {reason}." for reason in reasons]
    text += [*_left_out_of_figure(runs, scores), *_left_out_of_differences(runs, scores)]
    return Section(id="compare", title="Comparison", text=text, figures=drawn, tables=tables)


def _figure(runs: Sequence[RecordedRun], scores: Sequence[RunScores], metric: str) -> PageFigure | None:
    """Draw a metric in a row for each variant if a variant has several seeds, otherwise in a row for each run."""
    digits, labels = 0, _variant_labels(runs)
    by_run, by_variant = dict[str, list[Estimate]](), dict[str, dict[int, Estimate]]()
    found = {run.name: (estimate, each) for run, each in zip(runs, scores, strict=True)
             if (estimate := _estimate(run, each, metric))}  # fmt: skip
    for run in runs:
        if run.name in found:
            estimate, each = found[run.name]
            by_run[run.name] = [estimate]
            digits = max(digits, each.sets.decimals if each.sets else decimal_places(metric, estimate.value))
            seeds = by_variant.setdefault(labels[run.name], {})
            seeds[run.seed] = replace(estimate, low=math.nan, high=math.nan)
    if len(by_run) < 2:
        return None
    recorded = [name for name, (_, each) in found.items() if each.sets is None]
    if any(len(each) > 1 for each in by_variant.values()):
        rows = {name: list(each.values()) for name, each in by_variant.items()}
        caption = "Mean of each variant over its seeds (faint dots), with a band of one standard deviation"
        caption += f"; the scores of {some(recorded)} are as recorded" if recorded else ""
    else:
        rows, caption = by_run, "Score of each run, with all parties"
        caption += ", with the 95 % interval from resampled test rows" if len(recorded) < len(found) else ""
        caption += f"; the scores of {some(recorded)} are as recorded, without an interval" if recorded else ""
    figure = figures.draw_runs(rows, metric_label(metric), digits)
    return PageFigure(name=f"runs-{metric}", figure=figure, caption=f"{caption}. {_direction(metric)}")


def _estimate(run: RecordedRun, scores: RunScores, metric: str) -> Estimate | None:
    """Return a run's score with all parties: the model's with its interval, or a recorded score of all test rows."""
    sets, recorded = scores.sets, (run.evaluation or {}).get("overall", {})
    if sets is not None:
        defined = sets.metric == metric and not math.isnan(float(sets.values(sets.all_parties)[0]))
        return sets.score(sets.all_parties).score if defined else None
    if _recorded_only(run, scores) != metric or recorded[metric] is None or _coverage(run) < 1:
        return None
    return Estimate(value=float(recorded[metric]), low=math.nan, high=math.nan)


def _coverage(run: RecordedRun) -> float:
    """Return the share of test rows that a recorded score covers."""
    part = (run.evaluation or {}).get("overall", {}).get("coverage")
    return 1.0 if part is None else float(part)


def _left_out_of_figure(runs: Sequence[RecordedRun], scores: Sequence[RunScores]) -> list[str]:
    part = {run.name: _coverage(run) for run, each in zip(runs, scores, strict=True) if _recorded_only(run, each)}
    return [f"Not in the figure: {name}, whose recorded score covers only the {share:.0%} of test rows with an answer."
            for name, share in part.items() if share < 1]  # fmt: skip


def _left_out_of_differences(runs: Sequence[RecordedRun], scores: Sequence[RunScores]) -> list[str]:
    without: dict[str, list[str]] = {}
    for run, each in zip(runs, scores, strict=True):
        if each.sets is None:
            without.setdefault(each.reason, []).append(run.name)
    return [f"Not among the differences, which need the model and its tables: {some(names, len(names))} ({reason})."
            for reason, names in without.items()]  # fmt: skip


def _direction(metric: str) -> str:
    return f"{'More' if METRICS[metric].greater else 'Less'} is better."


def _difference_table(found: Sequence[VariantDifference], metric: str, digits: int) -> PageTable:
    label = metric_label(metric)
    rows = [
        [each.one, each.other, str(len(each.each)), format_number(each.mean, digits, sign=True),
         format_number(each.deviation, digits), f"{each.better} of {len(each.each)}"]
        for each in found
    ]  # fmt: skip
    return PageTable(
        headers=["variant", "minus", "seeds", "mean difference", "deviation", "better in"], rows=rows,
        text_columns=frozenset({0, 1}),
        caption=f"Difference in {label}, seed by seed on the same test rows. {_direction(metric)}",
    )  # fmt: skip


def _score_cell(scores: RunScores, metric: str) -> str:
    sets = scores.sets
    if sets is None or sets.metric != metric:
        return "–"
    return format_estimate(sets.score(sets.all_parties).score, digits=sets.decimals)


def _recorded_only(run: RecordedRun, scores: RunScores) -> str | None:
    """Return the recorded metric to show for a run whose model was not scored again."""
    return recorded_metric(run, scores.metric) if scores.sets is None else None


def _recorded_cell(run: RecordedRun, scores: RunScores, metric: str) -> str:
    """Return a recorded score as text, with the share of test rows that have an answer if some have none."""
    if _recorded_only(run, scores) != metric or run.evaluation is None:
        return "–"
    overall = run.evaluation["overall"]
    value, part = format_score(metric, overall[metric]), overall.get("coverage")
    return value if part in {None, 1} else f"{value} of the {part:.0%} with an answer"


def compare_variants(
    runs: Sequence[RecordedRun], scores: Sequence[RunScores], metric: str
) -> tuple[list[VariantDifference], list[str]]:
    """Compute the differences of all pairs of variants.

    Returns:
        The differences, and the reasons why other pairs, seeds or runs could not be compared.
    """
    scored = [(run, each.sets) for run, each in zip(runs, scores, strict=True) if each.sets]
    positive = {run.name: sets.tested.model.task.classes[-1:] for run, sets in scored}
    tested = {run.name: labelled_test_rows(each) for run, each in zip(runs, scores, strict=True) if each.sets}
    values = {run.name: float(sets.values(sets.all_parties)[0]) for run, sets in scored if sets.metric == metric}
    values = {name: value for name, value in values.items() if not math.isnan(value)}
    variants: dict[str, dict[int, RecordedRun]] = {}
    labels, found, reasons = _variant_labels(runs), [], []
    for run in runs:
        if run.name in values:
            first = variants.setdefault(labels[run.name], {}).setdefault(run.seed, run)
            if first is not run:
                reasons.append(f"{run.name} has the settings and the seed of {first.name}")
    for one, other in combinations(variants, 2):
        common = sorted(variants[one].keys() & variants[other].keys())
        pairs = [(variants[one][seed], variants[other][seed]) for seed in common]
        same = [(a, b) for a, b in pairs if tested[a.name] == tested[b.name]]
        if len(same) < len(pairs):
            reasons.append(f"{one} and {other} have different test rows")
        if metric in METRICS_OF_ONE_CLASS and len({positive[run.name] for pair in same for run in pair}) > 1:
            reasons.append(f"{one} and {other} have different positive classes")
            continue
        if same:
            each = tuple(values[a.name] - values[b.name] for a, b in same)
            better = sum(value > 0 if METRICS[metric].greater else value < 0 for value in each)
            found.append(VariantDifference(one=one, other=other, each=each, better=better))
    return found, reasons


def labelled_test_rows(scores: RunScores) -> list[tuple[str, str]]:
    """Return the ids of the test rows, each with its label as text."""
    assert scores.sets is not None
    tested = scores.sets.tested
    assert tested.model.held_out is not None
    ids, task = tested.model.held_out[1].ids, tested.model.task
    assert ids is not None
    labels = [
        task.classes[int(y)] if task.classes else f"{float(y) * task.scale + task.mean:.5g}" for y in tested.y
    ]  # fmt: skip
    return list(zip(ids.gather(tested.test_rows.tolist()).to_list(), labels, strict=True))


def _variant_labels(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Return each run's variant: its method and the settings in which runs of that method differ."""
    flat = {run.name: _without_duplicates(_flat(run.settings)) for run in runs}
    every = {key for each in flat.values() for key in each}
    keys = sorted(key for key in every if ".".join(key) not in NOT_IN_VARIANT)
    labels = {}
    for run in runs:
        peers = [other for other in runs if other.method == run.method]
        differ = [
            key for key in keys if len({_comparable(other, key, flat[other.name].get(key)) for other in peers}) > 1
        ]
        settings = ", ".join(f"{'.'.join(key)} = {flat[run.name].get(key)}" for key in differ)
        labels[run.name] = f"{run.method} ({settings})" if settings else run.method
    return labels


def _comparable(run: RecordedRun, key: tuple[str, ...], value: Any) -> str:
    """Return a comparable value for a setting; a table's path is replaced by the fingerprint of its content."""
    table = run.tables.get(key[1]) if key[0] == "parties" and key[-1] == "table" else None
    return table or repr(value)


def _without_duplicates(flat: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Remove the settings of a user-defined method that ``method.own`` repeats with defaults."""
    own = {part for key in flat if key[:2] == ("method", "own") for part in key[2:]}
    return {key: each for key, each in flat.items() if key[0] != "method" or key[1] == "own" or key[1] not in own}


def _flat(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        flat |= _flat(value, (*prefix, key)) if isinstance(value, Mapping) else {(*prefix, key): value}
    return flat
