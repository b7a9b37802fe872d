"""The page of a schedules suite: time until a target score, ratios beside the paper's, chosen learning rates, curves.

Time is measured in the time units of a virtual clock.  The module ``schedules_suite`` explains the terms case,
algorithm and target.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, cast

import numpy as np

from anyparty.core.figure_panels import Curve, Panel, PanelFigure
from anyparty.experiments.page import SuitePage, bold, csv_text, format_spread, markdown_table
from anyparty.experiments.results import Cell, Record, Records, by_seed
from anyparty.experiments.schedules_suite import SchedulesSuite

TITLE_LETTERS = 50  # maximum number of letters of a title above a panel
MARGIN = 1.02  # end of the x axis, as a multiple of the last time at which a curve reaches the target

LEGEND = (
    "Time units until the target: mean ± standard deviation over the seeds that reach it; in brackets their number, if "
    "not all do. Below it is the ratio to {beside} of the means over the seeds with which both reach the target, then "
    "*the paper's ratio*. The score is interpolated linearly between two epochs. Accuracies are in %: the best and the "
    "last on held-out rows, and the last on test rows, over all seeds that did not diverge. A seed that diverged after "
    "it reached the target counts as reaching it. A rate with * is at an end of its grid."
)
CHOICE = (
    "Choice of the rates: mean training loss of the last epoch with seed 0, the lowest in bold, and in brackets the "
    "time units to the target at latency {latency:g}."
)


def page(suite: SchedulesSuite, records: Records, run_facts: Mapping[str, str]) -> SuitePage:
    """Return the page of a suite for the records of its runs; ``run_facts`` are shown at the end of the page."""
    cells = aggregate(suite, records)
    return SuitePage(cells=cells, markdown=suite.markdown(cells, _body(suite, records, cells), run_facts),
                     csv=_csv(cells), figure=partial(figure, suite, records))  # fmt: skip


def _body(suite: SchedulesSuite, records: Records, cells: Sequence[Cell]) -> Iterator[str]:
    for dataset in suite.datasets:
        here = [cell for cell in cells if cell["dataset"] == dataset]
        if here:
            yield from [f"## {dataset}", "", *_targets(suite, here), "", *_times_table(suite, here), ""]
            yield from [CHOICE.format(latency=suite.search_latency), "", *_rates_table(suite, records, dataset), ""]
    yield from [LEGEND.format(beside=suite.methods[suite.beside].title), ""]
    for paragraph in suite.says:
        yield from [paragraph, ""]


def _targets(suite: SchedulesSuite, here: Sequence[Cell]) -> list[str]:
    share = suite.share(here[0]["dataset"])
    by_parties = {suite.cases[cell["case"]].parties: cell["target"] for cell in here}
    text = ", ".join(f"{100 * target:.1f} % with {parties} parties" for parties, target in by_parties.items())
    restarts = max((int(n) for cell in here for n in cell.measures["trace_restarts"].values()), default=0)
    lines = [f"Target accuracy on held-out rows: {text}: {share:g} of what the same networks reach without a schedule."]
    return lines + (
        [f"Traces started again up to {restarts} times: they are shorter than the runs."] if restarts else []
    )


def _times_table(suite: SchedulesSuite, here: Sequence[Cell]) -> list[str]:
    heads = ["", "rate", *(f"latency {latency:g}" for latency in suite.latencies), "best", "last", "test"]
    at, rows = {(cell["case"], cell["method"], cell["latency"]): cell for cell in here}, []
    for case, entry in suite.cases.items():
        if any(cell["case"] == case for cell in here):
            rows.append([f"**{entry.title}**", *[""] * (len(heads) - 1)])
        for method, of in suite.methods.items():
            row = [at.get((case, method, latency)) for latency in suite.latencies]
            cells = [cell for cell in row if cell]
            if not cells:
                continue
            diverged = max(sum(cell.measures["diverged"].values()) for cell in cells)
            seeds = max(len(cell.seeds("diverged")) for cell in cells)
            title = of.title + (f", {diverged:g} of {seeds} diverged" if diverged else "")
            rate = f"{cells[0]['rate']:g}" + ("*" if cells[0]["at_an_end"] else "")
            accuracies = [_percent_text([cell.mean(measure) for cell in cells]) for measure in ("best", "last", "test")]
            rows.append([title, rate, *(_time_cell(cell) if cell else "" for cell in row), *accuracies])
    return markdown_table(heads, rows)


def _time_cell(cell: Cell) -> str:
    reached, seeds = len(cell.seeds("time")), len(cell.seeds("diverged"))
    text = format_spread(*cell.mean_spread("time"), digits=0) if reached else "–"
    text += f" ({reached} of {seeds})" if reached < seeds else ""
    ratios = [] if cell["ratio"] is None else [f"{cell['ratio']:.2f}"]
    if cell["paper"] is not None:
        ratios.append("*–*" if cell["paper_ratio"] is None else f"*{cell['paper_ratio']:.2f}*")
    return f"{text}<br>{' · '.join(ratios)}" if ratios else text


def _percent_text(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{100 * statistics.fmean(known):.1f}" if known else "diverged"


def _rates_table(suite: SchedulesSuite, records: Records, dataset: str) -> list[str]:
    """Return the lines of the table that shows how learning rates were chosen: the loss at each rate with seed 0."""
    targets, rows = suite.targets(records), []
    rates = {place[1:]: each for place, each in suite.chosen_rates(records).items() if place[0] == dataset}
    grid = sorted({rate for each in rates.values() for rate in each.losses}, reverse=True)
    for case, entry in suite.cases.items():
        target = targets.get((dataset, entry.parties))
        for method, of in suite.methods.items():
            if (case, method) not in rates or of.rate_of or target is None:
                continue
            row = [f"{entry.title}: {of.title}"]
            for rate in grid:
                found = records_at(suite, records, dataset, case, method, rate, suite.search_latency)
                record = next((each for each in found if each["run"]["seed"] == 0), None)
                row.append(_rate_cell(suite, record, target, best=rate == rates[case, method].rate) if record else "")
            rows.append(row)
    return markdown_table(["", *(f"{rate:g}" for rate in grid)], rows)


def _rate_cell(suite: SchedulesSuite, record: Record, target: float, *, best: bool) -> str:
    if record["diverged"]:
        return "diverged"
    time, loss = time_to_target(suite, record, target, suite.search_latency), record["curve"][-1]["loss"]
    text = f"{loss:.4f}" if loss < 1000 else f"{loss:.1e}"
    return bold(text, best) + (" (–)" if time is None else f" ({time:,.0f})")


def _csv(cells: Sequence[Cell]) -> str:
    names = ["dataset", "case", "method", "latency", "rate", "rate_at_an_end", "target", "mean_time", "std_time",
             "reached", "seeds", "diverged", "ratio", "paper_mean", "paper_std", "paper_ratio", "best", "last", "test",
             "trace_began_anew"]  # fmt: skip
    return csv_text(names, (
        [cell["dataset"], cell["case"], cell["method"], cell["latency"], cell["rate"], cell["at_an_end"],
         cell["target"], *cell.mean_spread("time"), len(cell.seeds("time")), len(cell.seeds("diverged")),
         int(sum(cell.measures["diverged"].values())), cell["ratio"], *[*(cell["paper"] or ()), "", ""][:2],
         cell["paper_ratio"], cell.mean("best"), cell.mean("last"), cell.mean("test"),
         int(max(cell.measures["trace_restarts"].values(), default=0))]
        for cell in cells
    ))  # fmt: skip


def figure(suite: SchedulesSuite, records: Records) -> PanelFigure:
    """Return a figure of the held-out score against time: a row for each data set and case, a panel for each latency.

    A curve is the mean over seeds, with a band of one standard deviation. Runs that diverged are left out. In this case
    a legend in the panel gives the number of seeds that are drawn.
    """
    rates, targets, wide = suite.chosen_rates(records), suite.targets(records), len(suite.latencies)
    panels = list[Panel]()
    for dataset, (case, entry) in product(suite.datasets, suite.cases.items()):
        for latency in suite.latencies if any(place[:2] == (dataset, case) for place in rates) else ():
            found = {name: list(records_at(suite, records, dataset, case, name, chosen.rate, latency))
                     for name in suite.methods if (chosen := rates.get((dataset, case, name)))}  # fmt: skip
            title = "" if len(panels) % wide else textwrap.fill(f"{dataset}, {entry.title}", TITLE_LETTERS * wide)
            panels.append(_panel(suite, title, found, latency, targets.get((dataset, entry.parties))))
    return PanelFigure(panels=panels, across=wide, size=(4.2, 3.2), same_y="row")


def _panel(
    suite: SchedulesSuite, title: str, runs: Mapping[str, Sequence[Record]], latency: float, target: float | None
) -> Panel:
    """Return the panel with the curves of all algorithms, up to the time at which the last curve reaches the target."""
    converged = {name: [record for record in found if not record["diverged"]] for name, found in runs.items()}
    curves = [_curve(suite, name, found, latency) for name, found in converged.items() if found]
    ends = [float(np.median([curve.x[-1] for curve in curves]))] if curves else []
    if target is not None:
        reached = [[time for record in found if (time := time_to_target(suite, record, target, latency)) is not None]
                   for found in runs.values()]  # fmt: skip
        ends += [MARGIN * statistics.fmean(each) for each in reached if each]
        ends += [MARGIN * next(x for x, y in zip(curve.x, curve.y, strict=True) if y >= 100 * target)
                 for curve in curves if max(curve.y) >= 100 * target]  # fmt: skip
    notes = {f"{suite.methods[name].title}: {len(found)} of {len(runs[name])} seeds, the others diverged":
             _color(suite, name) for name, found in converged.items() if len(found) < len(runs[name])}  # fmt: skip
    return Panel(
        title=title, x_label=f"time units, latency {latency:g}", y_label="accuracy on held-out rows, %", curves=curves,
        level=None if target is None else 100 * target, x_end=max(ends, default=None), notes=notes,
    )  # fmt: skip


def _curve(suite: SchedulesSuite, name: str, runs: Sequence[Record], latency: float) -> Curve:
    """Return one algorithm's mean curve over seeds; the scores are in per cent."""
    x = np.mean([times(suite, record, latency) for record in runs], axis=0)
    y = 100 * np.array([scores(record) for record in runs])
    mean, spread = y.mean(axis=0), y.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(x))
    return Curve(label=suite.methods[name].title, x=x.tolist(), y=mean.tolist(), color=_color(suite, name),
                 band=np.clip([mean - spread, mean + spread], 0, 100).tolist(),
                 marks={"linewidth": 1.2, "marker": "o", "markersize": 2})  # fmt: skip


def _color(suite: SchedulesSuite, name: str) -> str:
    """Return an algorithm's color, the same in all panels."""
    return f"C{list(suite.methods).index(name)}"


def records_at(
    suite: SchedulesSuite, records: Records, dataset: str, case: str, method: str, rate: float, latency: float
) -> Iterator[Record]:
    """Yield an algorithm's records at a learning rate and a latency, one record for each seed.

    In a schedule with rounds, runs have the suite's ``search_latency``, and their records are valid for all latencies.
    """
    trained_at = latency if suite.methods[method].at_once else suite.search_latency
    for record in records.values():
        run = record["run"]
        if (run["dataset"], run["case"], run["method"]) == (dataset, case, method) \
                and (run["rate"], run["latency"]) == (rate, trained_at):  # fmt: skip
            yield record


def scores(record: Record) -> list[float]:
    """Return the held-out score after each epoch."""
    return [point["score"] for point in record["curve"]]


def times(suite: SchedulesSuite, record: Record, latency: float) -> list[float]:
    """Return the time at the end of each epoch, in time units, for a round trip of the duration ``latency``.

    A round lasts as long as its local iterations and one round trip. If the run had another latency, the difference
    between the two latencies is therefore added for every round. This is not possible if the active party exchanges
    messages with one party at a time; such a run must have had the latency ``latency``.
    """
    run = record["run"]
    more = 0.0 if suite.methods[run["method"]].at_once else latency - run["latency"]
    return [point["time"] + more * point["rounds"] for point in record["curve"]]


def time_to_target(suite: SchedulesSuite, record: Record, target: float, latency: float) -> float | None:
    """Return the time units until the score first reaches the target; ``None`` if the score never reaches it.

    The score is interpolated linearly between two epochs.  If the first epoch reaches the target, the time at the end
    of the first epoch is returned.
    """
    points = list(zip(times(suite, record, latency), scores(record), strict=True))
    if points and points[0][1] >= target:
        return points[0][0]
    for (began, low), (ended, high) in pairwise(points):
        if high >= target:
            return began + (ended - began) * (target - low) / (high - low)
    return None


def aggregate(suite: SchedulesSuite, records: Records) -> list[Cell]:
    """Return one cell for each data set, case, latency and algorithm with runs and a target.

    The facts of a cell also include:
        rate: the chosen learning rate.
        at_an_end: True if the rate is the lowest or highest of its grid.
        target: the score to reach.
        ratio: the algorithm's mean time divided by the mean time of the algorithm ``suite.beside``, both over the seeds
            with which both algorithms reach the target.
        paper: the paper's mean and spread in time units; empty if the paper's run did not reach the target.
        paper_ratio: the ratio of the same two algorithms' means in the paper.

    The measures of a cell are:
        time: the time units until the target, for the seeds that reach it.
        diverged: 1 if the training diverged, else 0, for all seeds.
        best, last, test: the best and the last held-out score and the test score, for the seeds that did not diverge.
        trace_restarts: how often the trace of CPU use started again, for the seeds that did not diverge.
    """
    rates, targets, cells = suite.chosen_rates(records), suite.targets(records), list[Cell]()
    for dataset, (case, entry), latency in product(suite.datasets, suite.cases.items(), suite.latencies):
        target, group = targets.get((dataset, entry.parties)), list[Cell]()
        column = suite.latencies.index(latency)
        paper = {name: tuple(each[column]) for name, each in suite.published.get(case, {}).items()}
        for method in suite.methods if target is not None else ():
            chosen = rates.get((dataset, case, method))
            if chosen and (found := list(records_at(suite, records, dataset, case, method, chosen.rate, latency))):
                facts = {"dataset": dataset, "case": case, "method": method, "latency": latency, "rate": chosen.rate,
                         "at_an_end": chosen.at_an_end, "target": target,
                         **_paper_facts(paper, method, suite.beside)}  # fmt: skip
                group.append(Cell(facts=facts, measures=_measures(suite, found, cast("float", target), latency)))
        beside = next((cell.measures["time"] for cell in group if cell["method"] == suite.beside), {})
        cells += [
            replace(cell, facts={**cell.facts, "ratio": _time_ratio(cell.measures["time"], beside)}) for cell in group
        ]
    return cells


def _measures(
    suite: SchedulesSuite, found: Sequence[Record], target: float, latency: float
) -> dict[str, dict[int, float]]:
    converged = [record for record in found if not record["diverged"]]
    reached = ((record, time_to_target(suite, record, target, latency)) for record in found)
    return {
        "time": by_seed((record, time) for record, time in reached if time is not None),
        "diverged": by_seed((record, float(bool(record["diverged"]))) for record in found),
        "best": by_seed((record, max(scores(record))) for record in converged),
        "last": by_seed((record, scores(record)[-1]) for record in converged),
        "test": by_seed((record, record["test"]) for record in converged),
        "trace_restarts": by_seed((record, record["curve"][-1].get("trace_began_anew", 0)) for record in converged),
    }


def _paper_facts(paper: Mapping[str, tuple[float, ...]], method: str, beside: str) -> dict[str, Any]:
    mine, other = paper.get(method), paper.get(beside)
    return {"paper": None if mine is None else tuple(1000 * value for value in mine),
            "paper_ratio": mine[0] / other[0] if mine and other else None}  # fmt: skip


def _time_ratio(times: Mapping[int, float], others: Mapping[int, float]) -> float | None:
    """Return the ratio of two algorithms' mean times over the seeds that both have; ``None`` without such seeds.

    Seeds for which only one algorithm has a time would bias the ratio.
    """
    both = times.keys() & others.keys()
    return statistics.fmean(times[seed] for seed in both) / statistics.fmean(others[seed] for seed in both) \
        if both else None  # fmt: skip
