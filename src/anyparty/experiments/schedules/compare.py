"""From records to tables: time units to the target, ratios beside the paper's, and how the rates were chosen."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any

from anyparty.experiments import suite as base
from anyparty.experiments.schedules import choice, figure
from anyparty.experiments.schedules.curve import along, scores, time_of

if TYPE_CHECKING:
    from anyparty.experiments.schedules.suite import Suite

Records = Mapping[str, Mapping[str, Any]]
LEGEND = (
    "Time units until the target, mean ± standard deviation over the seeds that reach it; in brackets how many of "
    "them, where not all do. Below it the ratio to {beside}, of the means over the seeds with which both reach it, and "
    "*the paper's ratio*. Between two epochs the score is taken to rise in a straight line. Accuracies are in %: the "
    "best and the last on held-out rows, and the last on test rows, of all seeds that did not diverge; one that did so "
    "after it had reached the target counts as having reached it. A rate with * is at an end of its grid."
)

CHOICE = (
    "The choice of rates: mean training loss of the last epoch with seed 0, the lowest in bold, and in brackets the "
    "time units to the target at latency {latency:g}."
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One algorithm at one latency.

    Attributes:
        dataset, case, method, latency: which.
        rate: that was chosen.
        at_an_end: whether that is an end of the grid.
        target: of the score.
        reached: time units by seed, of the seeds that reached it.
        seeds: how many ran.
        diverged: how many of them did.
        best, last, test: mean scores: the best and last on held-out rows, the last on test rows; ``None`` of no run.
        anew: how often a trace began anew, at most.
        ratio: its mean time over that of the algorithm that others are compared with, of the seeds with which both
            reach the target; ``None`` without any.
        paper: its mean time and spread in time units, as printed; empty where it did not reach the target.
        paper_ratio: the paper's ratio.

    """

    dataset: str
    case: str
    method: str
    latency: float
    rate: float
    at_an_end: bool
    target: float
    reached: Mapping[int, float]
    seeds: int
    diverged: int
    best: float | None
    last: float | None
    test: float | None
    anew: int
    ratio: float | None = None
    paper: tuple[float, ...] | None = None
    paper_ratio: float | None = None

    @property
    def times(self) -> tuple[float, ...]:
        """Time units, of the seeds that reached the target."""
        return tuple(self.reached.values())


def page(suite: Suite, records: Records, about: Mapping[str, str]) -> base.Page:
    """Return a suite's results, from its records by key."""
    found = cells(suite, records)
    return base.Page(
        cells=found, markdown=markdown(suite, records, found, about), csv=as_csv(found),
        draw=partial(figure.plot, suite, records, choice.targets(suite, records)),
    )  # fmt: skip


def cells(suite: Suite, records: Records) -> list[Cell]:
    """Return the cells in the suite's order; an algorithm without a finished run, or a target, is left out."""
    made: list[Cell] = []
    for dataset in suite.datasets:
        for case in suite.cases:
            for place in range(len(suite.latencies)):
                made += _beside(suite, list(_cells(suite, records, dataset, case, place)), case, place)
    return made


def _cells(suite: Suite, records: Records, dataset: str, case: str, place: int) -> Iterator[Cell]:
    rates, latency = choice.rates(suite, records), suite.latencies[place]
    target = choice.targets(suite, records).get((dataset, suite.cases[case].parties))
    for method in suite.algorithms:
        chosen = rates.get((dataset, case, method))
        if chosen is None or target is None:
            continue
        runs = list(along(suite, records, dataset, case, method, chosen.rate, latency))
        if not runs:
            continue
        times = {int(record["run"]["seed"]): time_of(suite, record, target, latency) for record in runs}
        whole = [record for record in runs if not record["diverged"]]
        yield Cell(
            dataset=dataset, case=case, method=method, latency=latency, rate=chosen.rate,
            at_an_end=chosen.at_an_end, target=target,
            reached={seed: each for seed, each in times.items() if each is not None},
            seeds=len(runs), diverged=len(runs) - len(whole),
            best=_mean([max(scores(record)) for record in whole]),
            last=_mean([scores(record)[-1] for record in whole]), test=_mean([record["test"] for record in whole]),
            anew=max((int(record["curve"][-1].get("trace_began_anew", 0)) for record in whole), default=0),
        )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _beside(suite: Suite, here: Sequence[Cell], case: str, place: int) -> list[Cell]:
    """Return the cells of one latency with their ratios, and the paper's."""
    printed = {name: tuple(times[place]) for name, times in suite.published.get(case, {}).items()}
    first = next((cell for cell in here if cell.method == suite.beside), None)
    theirs = printed.get(suite.beside)
    made = []
    for cell in here:
        paper = printed.get(cell.method)
        values = vars(cell) | {
            "ratio": None if first is None else _ratio(cell.reached, first.reached),
            "paper": None if paper is None else tuple(1000 * value for value in paper),
            "paper_ratio": paper[0] / theirs[0] if paper and theirs else None,
        }
        made.append(Cell(**values))
    return made


def _ratio(times: Mapping[int, float], others: Mapping[int, float]) -> float | None:
    """Return the ratio of two mean times over the seeds that both have: with others, only survivors would count."""
    both = times.keys() & others.keys()
    return statistics.fmean(times[seed] for seed in both) / statistics.fmean(others[seed] for seed in both) \
        if both else None  # fmt: skip


def markdown(suite: Suite, records: Records, found: Sequence[Cell], about: Mapping[str, str]) -> str:
    """Return the tables of a suite, two a data set: times, and how the rates were chosen."""
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", ""]
    for dataset in suite.datasets:
        here = [cell for cell in found if cell.dataset == dataset]
        if here:
            lines += [f"## {dataset}", "", *_targets(suite, here), "", *_table(suite, here), ""]
            lines += [CHOICE.format(latency=suite.search_latency), "", *_grid(suite, records, dataset), ""]
    lines += [LEGEND.format(beside=suite.algorithms[suite.beside].title), ""]
    for said in suite.says:
        lines += [said, ""]
    lines += base.footer(suite, found, about)
    return "\n".join(lines) + "\n"


def _targets(suite: Suite, here: Sequence[Cell]) -> list[str]:
    share = suite.share(here[0].dataset)
    of = {suite.cases[cell.case].parties: cell.target for cell in here}
    said = ", ".join(f"{100 * target:.1f} % with {parties} parties" for parties, target in of.items())
    anew = max(cell.anew for cell in here)
    lines = [f"Target accuracy on held-out rows: {said}: {share:g} of what the same networks reach without a schedule."]
    return lines + ([f"Traces began anew up to {anew} times: they are shorter than the runs."] if anew else [])


def _table(suite: Suite, here: Sequence[Cell]) -> list[str]:
    heads = ["", "rate", *(f"latency {latency:g}" for latency in suite.latencies), "best", "last", "test"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    at = {(cell.case, cell.method, cell.latency): cell for cell in here}
    for case, entry in suite.cases.items():
        if any(cell.case == case for cell in here):
            lines.append(f"| **{entry.title}** |" + " |" * (len(heads) - 1))
        for method, of in suite.algorithms.items():
            row = [at[case, method, latency] for latency in suite.latencies if (case, method, latency) in at]
            if not row:
                continue
            shown = [_shown(at.get((case, method, latency))) for latency in suite.latencies]
            rate = f"{row[0].rate:g}" + ("*" if row[0].at_an_end else "")
            last = [_percent([getattr(cell, name) for cell in row]) for name in ("best", "last", "test")]
            failed = max(cell.diverged for cell in row)
            title = of.title + (f", {failed} of {max(cell.seeds for cell in row)} diverged" if failed else "")
            lines.append(f"| {title} | {rate} | {' | '.join(shown)} | {' | '.join(last)} |")
    return lines


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if not cell.times:
        shown = f"– (0 of {cell.seeds})"
    else:
        shown = f"{statistics.fmean(cell.times):,.0f}"
        shown += f" ± {statistics.stdev(cell.times):,.0f}" if len(cell.times) > 1 else ""
        shown += f" ({len(cell.times)} of {cell.seeds})" if len(cell.times) < cell.seeds else ""
    ratios = [] if cell.ratio is None else [f"{cell.ratio:.2f}"]
    if cell.paper is not None:
        ratios.append("*–*" if cell.paper_ratio is None else f"*{cell.paper_ratio:.2f}*")
    return f"{shown}<br>{' · '.join(ratios)}" if ratios else shown


def _percent(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * statistics.fmean(known):.1f}" if known else "diverged"


def _grid(suite: Suite, records: Records, dataset: str) -> list[str]:
    """Return the table of all rates with seed 0."""
    rates, targets = choice.rates(suite, records), choice.targets(suite, records)
    made = {place[1:]: each for place, each in rates.items() if place[0] == dataset}
    grid = sorted({rate for each in made.values() for rate in each.losses}, reverse=True)
    lines = [f"| | {' | '.join(f'{rate:g}' for rate in grid)} |", "|---|" + "---:|" * len(grid)]
    for case, entry in suite.cases.items():
        target = targets.get((dataset, entry.parties))
        for method, of in suite.algorithms.items():
            if (case, method) not in made or of.rate_of or target is None:
                continue
            shown = []
            for rate in grid:
                runs = along(suite, records, dataset, case, method, rate, suite.search_latency)
                record = next((each for each in runs if each["run"]["seed"] == 0), None)
                shown.append(_searched(suite, record, target, best=rate == made[case, method].rate))
            lines.append(f"| {entry.title}: {of.title} | {' | '.join(shown)} |")
    return lines


def _searched(suite: Suite, record: Mapping[str, Any] | None, target: float, *, best: bool) -> str:
    if record is None:
        return ""
    if record["diverged"]:
        return "diverged"
    took = time_of(suite, record, target, suite.search_latency)
    last = record["curve"][-1]["loss"]
    loss = f"{last:.4f}" if last < 1000 else f"{last:.1e}"
    return (f"**{loss}**" if best else loss) + (" (–)" if took is None else f" ({took:,.0f})")


def as_csv(found: Sequence[Cell]) -> str:
    """Return one line a cell."""
    text = StringIO()
    names = ["dataset", "case", "method", "latency", "rate", "rate_at_an_end", "target", "mean_time", "std_time",
             "reached", "seeds", "diverged", "ratio", "paper_mean", "paper_std", "paper_ratio", "best", "last", "test",
             "trace_began_anew"]  # fmt: skip
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for cell in found:
        mean = statistics.fmean(cell.times) if cell.times else ""
        spread = statistics.stdev(cell.times) if len(cell.times) > 1 else ""
        paper = [*(cell.paper or ()), "", ""][:2]
        writer.writerow([cell.dataset, cell.case, cell.method, cell.latency, cell.rate, cell.at_an_end, cell.target,
                         mean, spread, len(cell.times), cell.seeds, cell.diverged, cell.ratio, *paper,
                         cell.paper_ratio, cell.best, cell.last, cell.test, cell.anew])  # fmt: skip
    return text.getvalue()
