"""Several runs side by side: one table of all, and differences in pairs of runs with one seed and the same test rows.

Runs that differ in their seed alone are one *variant*.  Two variants are compared over the seeds that both have, and
only where the test rows are the same: the same tables, cut by the same shares with the same seed.  Which these were
the model beside its tables tells: of a run without, the recorded score stands in the figure, where it is of all test
rows, and in no difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from anyparty.errors import some
from anyparty.metrics import METRICS
from anyparty.report import score_figures
from anyparty.report.contributions import Share
from anyparty.report.ledgers import shown, total
from anyparty.report.model_sections import Scores, recorded
from anyparty.report.records import Run
from anyparty.report.section import Drawn, Grid, Section, decimals, named, number, scored, spread
from anyparty.run.record import MAY_DIFFER

if TYPE_CHECKING:
    from anyparty.report.worth import Worth

OF_ONE_CLASS = {"f1"}  # the positive one; which of two it is does not change AUROC
NOT_THE_VARIANT = {"train.seed", "train.score_training", *MAY_DIFFER}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What one variant scores more than another, over the seeds that both have."""

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


def side_by_side(runs: Sequence[Run], scores: Sequence[Scores]) -> Section:
    """Return the comparison of several runs."""
    metrics = sorted({each.worth.metric for each in scores if each.worth})
    kept = sorted({name for run, each in zip(runs, scores, strict=True) if (name := _kept(run, each))})
    known = [*map(named, metrics), *(f"{named(metric)}, as recorded" for metric in kept)]
    heads = ["run", "method", "seed", "status", "epochs", "best", *known, "crossed"]
    rows = [
        [
            run.name, run.method or "–", str(run.seed), run.status, str(len(run.history)), str(run.best_epoch or "–"),
            *(_score(each, metric) for metric in metrics), *(_recorded(run, each, metric) for metric in kept),
            shown(total(run.ledger).bytes_sent) if run.ledger.flows else "–",
        ]
        for run, each in zip(runs, scores, strict=True)
    ]  # fmt: skip
    grids = [Grid(heads=heads, rows=rows, words=frozenset({0, 1, 3}))]
    every = dict.fromkeys([*metrics, *kept])
    text, drawn = [], [each for metric in every if (each := _drawn(runs, scores, metric))]
    for metric in metrics:
        found, unlike = differences(runs, scores, metric)
        if found:
            digits = max(each.worth.decimals for each in scores if each.worth and each.worth.metric == metric)
            grids.append(_table(found, metric, digits + 1))
        text += [f"Not compared in {named(metric)}: {why}." for why in unlike]
    text += [*_in_no_figure(runs, scores), *_in_no_difference(runs, scores)]
    return Section(id="compare", title="Side by side", text=text, drawn=drawn, grids=grids)


def _drawn(runs: Sequence[Run], scores: Sequence[Scores], metric: str) -> Drawn | None:
    """Return the figure of the runs in a metric: a row a variant where one has several seeds, else a row a run."""
    digits, labels, own, variants = 0, _labels(runs), dict[str, list[Share]](), dict[str, dict[int, Share]]()
    found = {run.name: (share, each) for run, each in zip(runs, scores, strict=True)
             if (share := _share(run, each, metric))}  # fmt: skip
    for run in runs:
        if run.name in found:
            share, each = found[run.name]
            own[run.name] = [share]
            digits = max(digits, each.worth.decimals if each.worth else decimals(metric, share.value))
            variants.setdefault(labels[run.name], {})[run.seed] = replace(share, low=math.nan, high=math.nan)
    if len(own) < 2:
        return None
    noted = [name for name, (_, each) in found.items() if each.worth is None]
    if any(len(each) > 1 for each in variants.values()):
        said = "Each variant's mean over its seeds, the faint dots, with a band of one standard deviation"
        rows = {name: list(each.values()) for name, each in variants.items()}
        said += f"; of {some(noted)} as recorded" if noted else ""
    else:
        said, rows = "Each run's score, everybody asked", own
        said += ", with the interval of 95 % from resampled test rows" if len(noted) < len(found) else ""
        said += f"; of {some(noted)} as recorded, without an interval" if noted else ""
    figure = score_figures.runs(rows, named(metric), digits)
    return Drawn(name=f"runs-{metric}", figure=figure, caption=f"{said}. {_better(metric)}")


def _share(run: Run, scores: Scores, metric: str) -> Share | None:
    """Return a run's score, everybody asked: with its interval, or as recorded, where that is of all test rows."""
    worth, kept = scores.worth, (run.evaluation or {}).get("overall", {})
    if worth is not None:
        defined = worth.metric == metric and not math.isnan(float(worth(_everybody(worth))[0]))
        return worth.score(worth.of.parties).score if defined else None
    if _kept(run, scores) != metric or kept[metric] is None or _answered(run) < 1:
        return None
    return Share(value=float(kept[metric]), low=math.nan, high=math.nan)


def _answered(run: Run) -> float:
    """Return the share of its test rows that a recorded score is of."""
    part = (run.evaluation or {}).get("overall", {}).get("coverage")
    return 1.0 if part is None else float(part)


def _in_no_figure(runs: Sequence[Run], scores: Sequence[Scores]) -> list[str]:
    """Say whose recorded scores are of too few rows to stand beside others."""
    part = {run.name: _answered(run) for run, each in zip(runs, scores, strict=True) if _kept(run, each)}
    return [f"Not in the figure: {name}, whose recorded score is of the {share:.0%} of test rows with an answer alone."
            for name, share in part.items() if share < 1]  # fmt: skip


def _in_no_difference(runs: Sequence[Run], scores: Sequence[Scores]) -> list[str]:
    """Say who is left out of differences, and why."""
    without: dict[str, list[str]] = {}
    for run, each in zip(runs, scores, strict=True):
        if each.worth is None:
            without.setdefault(each.why, []).append(run.name)
    return [f"Not among the differences, which need a model beside its tables: {some(names, len(names))} ({why})."
            for why, names in without.items()]  # fmt: skip


def _better(metric: str) -> str:
    return f"{'More' if METRICS[metric].greater else 'Less'} is better."


def _everybody(worth: Worth) -> frozenset[str]:
    return frozenset(worth.of.parties)


def _table(found: Sequence[Difference], metric: str, digits: int) -> Grid:
    what = f"{named(metric)} of the variant less that of the one it stands against"
    rows = [
        [each.one, each.other, str(len(each.each)), number(each.mean, digits, sign=True),
         number(each.deviation, digits), f"{each.better} of {len(each.each)}"]
        for each in found
    ]  # fmt: skip
    return Grid(
        heads=["variant", "against", "seeds", "mean difference", "deviation", "better in"], rows=rows,
        words=frozenset({0, 1}),
        caption=f"{what[0].upper()}{what[1:]}, seed by seed on the same test rows. {_better(metric)}",
    )  # fmt: skip


def _score(scores: Scores, metric: str) -> str:
    worth = scores.worth
    if worth is None or worth.metric != metric:
        return "–"
    return spread(worth.score(worth.of.parties).score, digits=worth.decimals)


def _kept(run: Run, scores: Scores) -> str | None:
    """Return the recorded metric that stands for a run whose model is not scored again."""
    return recorded(run, scores.metric) if scores.worth is None else None


def _recorded(run: Run, scores: Scores, metric: str) -> str:
    """Return a recorded score; of which part of the test rows, where not all had an answer."""
    if _kept(run, scores) != metric or run.evaluation is None:
        return "–"
    overall = run.evaluation["overall"]
    value, part = scored(metric, overall[metric]), overall.get("coverage")
    return value if part in {None, 1} else f"{value} of the {part:.0%} with an answer"


def differences(runs: Sequence[Run], scores: Sequence[Scores], metric: str) -> tuple[list[Difference], list[str]]:
    """Return the differences of all pairs of variants, and which runs could not be compared, and why."""
    positive = {
        run.name: each.worth.of.model.task.classes[-1:] for run, each in zip(runs, scores, strict=True) if each.worth
    }
    tested = {run.name: rows_tested(each) for run, each in zip(runs, scores, strict=True) if each.worth}
    values = {
        run.name: float(each.worth(_everybody(each.worth))[0])
        for run, each in zip(runs, scores, strict=True)
        if each.worth and each.worth.metric == metric
    }
    values = {name: value for name, value in values.items() if not math.isnan(value)}
    variants: dict[str, dict[int, Run]] = {}
    labels, found, unlike = _labels(runs), [], []
    for run in runs:
        if run.name in values:
            first = variants.setdefault(labels[run.name], {}).setdefault(run.seed, run)
            if first is not run:
                unlike.append(f"{run.name} has the settings and the seed of {first.name}")
    for one, other in combinations(variants, 2):
        common = sorted(variants[one].keys() & variants[other].keys())
        pairs = [(variants[one][seed], variants[other][seed]) for seed in common]
        same = [(a, b) for a, b in pairs if tested[a.name] == tested[b.name]]
        if len(same) < len(pairs):
            unlike.append(f"{one} and {other} have other test rows")
        if metric in OF_ONE_CLASS and len({positive[run.name] for pair in same for run in pair}) > 1:
            unlike.append(f"{one} and {other} count another class as positive")
            continue
        if same:
            each = tuple(values[a.name] - values[b.name] for a, b in same)
            better = sum(value > 0 if METRICS[metric].greater else value < 0 for value in each)
            found.append(Difference(one=one, other=other, each=each, better=better))
    return found, unlike


def rows_tested(scores: Scores) -> list[tuple[str, str]]:
    """Return the test rows, by id, each with its label as text."""
    assert scores.worth is not None
    of = scores.worth.of
    assert of.model.held_out is not None
    ids, classes = of.model.held_out[1].ids, of.model.task.classes
    assert ids is not None
    labels = [
        classes[int(y)] if classes else f"{float(y) * of.model.task.scale + of.model.task.mean:.5g}" for y in of.y
    ]
    return list(zip(ids.gather(of.wanted.tolist()).to_list(), labels, strict=True))


def _labels(runs: Sequence[Run]) -> dict[str, str]:
    """Return each run's variant: its method, and the settings in which runs of that method differ."""
    flat = {run.name: _once(_flat(run.settings)) for run in runs}
    every = {key for each in flat.values() for key in each}
    keys = sorted(key for key in every if ".".join(key) not in NOT_THE_VARIANT)
    labels = {}
    for run in runs:
        own = [other for other in runs if other.method == run.method]
        differ = [key for key in keys if len({_means(other, key, flat[other.name].get(key)) for other in own}) > 1]
        said = ", ".join(f"{'.'.join(key)} = {flat[run.name].get(key)}" for key in differ)
        labels[run.name] = f"{run.method} ({said})" if said else run.method
    return labels


def _means(run: Run, key: tuple[str, ...], value: Any) -> str:
    """Return what a setting comes to: of a table what is in it, wherever it lies."""
    table = run.tables.get(key[1]) if key[0] == "parties" and key[-1] == "table" else None
    return table or repr(value)


def _once(flat: Mapping[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Return settings without those of a user's own method that ``method.own`` says too, as what they came to."""
    own = {part for key in flat if key[:2] == ("method", "own") for part in key[2:]}
    return {key: each for key, each in flat.items() if key[0] != "method" or key[1] == "own" or key[1] not in own}


def _flat(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        flat |= _flat(value, (*prefix, key)) if isinstance(value, Mapping) else {(*prefix, key): value}
    return flat
