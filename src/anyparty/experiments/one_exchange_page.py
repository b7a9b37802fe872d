"""The page of a one-exchange suite: scores, costs (measured, and by the paper's formulas), and claims of the paper.

Each claim is a number in the paper, printed beside our number. Scores are listed for each number of columns of the
active party and each number of aligned rows.  Aligned rows are the rows of the active party that the passive party has,
too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anyparty.experiments.one_exchange_suite import Claim, OneExchangeSuite
from anyparty.experiments.output import (
    Cell,
    MeanSpread,
    SuitePage,
    bold,
    by_condition,
    by_seed,
    csv_text,
    fixed,
    markdown_page,
    markdown_table,
    mean_spread,
    panels,
    with_spread,
)
from anyparty.experiments.suite import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDS = "Mean of {folds} folds; mean ± standard deviation over the repeats."
HELD_OUT = "{test} rows held out; mean ± standard deviation over the repeats."
OVER_WIDTHS = "Mean over the numbers of columns ± standard deviation over them, as in the paper's figure."
COSTS = (
    "Rounds and bytes of the method's own messages as sent; each direction counts separately. Beside them are the "
    "bytes by the formulas of appendix E, for the same run."
)

TableRow = tuple[str, Sequence[MeanSpread | None]]


def page(suite: OneExchangeSuite, records: Records, run_facts: Mapping[str, str]) -> SuitePage:
    """Return the page of a suite for the records of its runs; ``run_facts`` are shown at the end of the page."""
    cells = aggregate(suite, records)
    return SuitePage(cells=cells, markdown=markdown_page(suite, cells, _body(suite, cells), run_facts),
                     csv=_csv(suite, cells), draw=partial(plot, suite, cells))  # fmt: skip


def _body(suite: OneExchangeSuite, cells: Sequence[Cell]) -> Iterator[str]:
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in cells if cell["dataset"] == dataset]
        if here:
            yield from [f"## {dataset}: {entry.unit}" if suite.shows == "scores" else f"## {dataset}", ""]
            if suite.shows == "scores":
                yield from [*_scores(suite, here, dataset), ""]
            yield from [*_costs(suite, here, dataset), ""]
    if suite.claims:
        rows = [[claim.place, claim.says, claim.dataset, f"{claim.number:g}", fixed(claimed(suite, cells, claim), 2)]
                for claim in suite.claims]  # fmt: skip
        yield from ["## What the paper's text says", ""]
        yield from markdown_table(["where", "its words", "data set", "paper", "ours"], rows, text_columns=3)
        yield ""


def _scores(suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> Iterator[str]:
    entry = suite.datasets[dataset]
    heads = ["", *(f"{aligned:,} aligned" for aligned in entry.aligned)]
    if len(entry.widths) > 1:
        means: list[TableRow] = [
            (of.title, [over_widths(suite, here, dataset, method, aligned) for aligned in entry.aligned])
            for method, of in suite.methods.items()
        ]
        yield from [OVER_WIDTHS, "", *markdown_table(heads, _with_best(means)), ""]
    yield from [HELD_OUT.format(test=entry.test) if entry.test else FOLDS.format(folds=suite.folds), ""]
    repeats = max(len(cell.seeds("score")) for cell in here)
    if few := sum(len(cell.seeds("score")) < repeats for cell in here):
        yield from [f"Left out: {few} cells that do not have {repeats} repeats yet, as the others have.", ""]
    for width in entry.widths:
        rows: list[TableRow] = []
        for method, of in suite.methods.items():
            cells = [
                next((cell for cell in here if cell.matches(method=method, width=width)
                      and cell["aligned"] in {0, aligned} and len(cell.seeds("score")) == repeats), None)
                for aligned in entry.aligned
            ]  # fmt: skip
            rows.append((of.title, [cell.mean_spread("score") if cell else None for cell in cells]))
            if any(cell and cell["paper"] for cell in cells):
                rows.append(("*paper*", [_paper_score(cell) if cell else None for cell in cells]))
        yield from [f"{width} columns at the active party:", "", *markdown_table(heads, _with_best(rows)), ""]


def _with_best(rows: Sequence[TableRow]) -> Iterator[list[str]]:
    """Yield table rows as text; our best number of each column is bold, and rows without numbers are left out."""
    measured = [values for title, values in rows if title != "*paper*"]
    best = [
        max((round(value[0], 1) for value in column if value), default=None) for column in zip(*measured, strict=True)
    ]
    for title, values in rows:
        if any(values):
            yield [title, *(
                bold(with_spread(*value), title != "*paper*" and round(value[0], 1) == most) if value else ""
                for value, most in zip(values, best, strict=True)
            )]  # fmt: skip


def _paper_score(cell: Cell) -> MeanSpread | None:
    """Return the mean and spread of the paper's score in per cent; ``None`` if the paper has no score for the cell."""
    return None if cell["paper"] is None else (100 * cell["paper"].score[0], 100 * cell["paper"].score[1])


def _costs(suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> list[str]:
    width = suite.datasets[dataset].widths[0]
    heads = ["", "aligned", "rounds", "by formula", "*paper*", "MB", "by formula", "*paper*", "CPU s / run"]
    rows = [[suite.methods[cell["method"]].title, *_cost(cell)] for cell in here if cell["width"] == width]
    return [COSTS, "", *markdown_table(heads, rows), "", f"With {width} columns at the active party."]


def _cost(cell: Cell) -> list[str]:
    rounds = [_mean(cell, measure) for measure in ("rounds", "formula_rounds")]
    size = [_mean(cell, measure, 1e6, 2) for measure in ("bytes", "formula_bytes")]
    paper = ["", ""]
    if cell["paper"] is not None:
        paper = [with_spread(*cell["paper"].rounds, digits=0), with_spread(*cell["paper"].megabytes, digits=2)]
    aligned = f"{cell['aligned']:,}" if cell["aligned"] else "any"
    return [aligned, *rounds, paper[0], *size, paper[1], f"{cell.mean('cpu_seconds'):.0f}"]


def _mean(cell: Cell, measure: str, unit: float = 1, digits: int = 0) -> str:
    return with_spread(cell.mean(measure) / unit, digits=digits) if cell.seeds(measure) else ""


def _csv(suite: OneExchangeSuite, cells: Sequence[Cell]) -> str:
    names = ["dataset", "method", "columns", "aligned", "metric", "mean", "std", "repeats", "rounds", "bytes_sent",
             "bytes_by_formula", "paper_mean", "paper_std", "cpu_seconds"]  # fmt: skip
    return csv_text(names, (
        [cell["dataset"], cell["method"], cell["width"], cell["aligned"] or "any",
         suite.datasets[cell["dataset"]].metric, *(fixed(value, 3) for value in cell.mean_spread("score")),
         len(cell.seeds("score")), fixed(cell.mean("rounds"), 1), fixed(cell.mean("bytes"), 0),
         fixed(cell.mean("formula_bytes"), 0), *(fixed(value, 1) for value in _paper_score(cell) or (None, None)),
         fixed(cell.mean("cpu_seconds"), 1)]
        for cell in cells
    ))  # fmt: skip


def plot(suite: OneExchangeSuite, cells: Sequence[Cell], path: Path) -> None:
    """Draw a panel for each data set: the scores with their spread over the numbers of columns, or the bytes sent.

    ``suite.shows`` selects scores or bytes.  The x axis has the numbers of aligned rows.
    """
    datasets = [name for name in suite.datasets if any(cell["dataset"] == name for cell in cells)]
    with panels(len(datasets), path, size=(6, 3.8), along="y") as axes:
        for axis, dataset in zip(axes, datasets, strict=True):
            here = [cell for cell in cells if cell["dataset"] == dataset]
            (_score_panel if suite.shows == "scores" else _bytes_panel)(axis, suite, here, dataset)
            axis.set_title(dataset)
            axis.set_xlabel("aligned rows")


def _score_panel(axis: Axes, suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> None:
    entry = suite.datasets[dataset]
    for place, (method, of) in enumerate(suite.methods.items()):
        at = [(x, value) for x, rows in enumerate(entry.aligned)
              if (value := over_widths(suite, here, dataset, method, rows)) is not None]  # fmt: skip
        aside = 0.7 * ((place + 0.5) / len(suite.methods) - 0.5)
        axis.errorbar([x + aside for x, _ in at], [mean for _, (mean, _) in at], [spread for _, (_, spread) in at],
                      fmt="o", ms=4, capsize=2, color=f"C{place}", label=of.title)  # fmt: skip
    axis.set_xticks(range(len(entry.aligned)), [f"{rows:,}" for rows in entry.aligned])
    axis.set_ylabel(entry.unit)


def _bytes_panel(axis: Axes, suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> None:
    width = suite.datasets[dataset].widths[0]
    for place, (method, of) in enumerate(suite.methods.items()):
        cells = sorted((cell for cell in here if cell.matches(method=method, width=width)), key=lambda c: c["aligned"])
        for measure, style, source in (("bytes", "-o", "sent"), ("formula_bytes", "--", "by formula")):
            at = [(cell["aligned"], cell.mean(measure) / 1e6) for cell in cells if cell.seeds(measure)]
            if at:
                axis.plot(*zip(*at, strict=True), style, ms=4, color=f"C{place}", label=f"{of.title}, {source}")
    axis.set_yscale("log")
    axis.set_ylabel("MB")


def aggregate(suite: OneExchangeSuite, records: Records) -> list[Cell]:
    """Return one cell for each data set, method, number of columns and number of aligned rows with runs.

    The measures of a cell are ``score`` in per cent; ``rounds`` and ``bytes`` of the method's own messages;
    ``formula_rounds`` and ``formula_bytes`` by the paper's formula, for the runs that the formula covers; and
    ``cpu_seconds`` of the training.
    """
    groups = by_condition(records, ["dataset", "method", "width", "aligned"])
    cells = []
    for dataset, entry in suite.datasets.items():
        for method in suite.methods:
            for width in entry.widths:
                for aligned in (0, *entry.aligned):
                    found = groups.get((dataset, method, width, aligned), [])
                    costs = [(record, record.get("costs", {"sent": [], "published": []})) for record in found]
                    covered = [(record, cost) for record, cost in costs if cost["published"]]
                    if found:
                        cells.append(Cell(
                            facts={"dataset": dataset, "method": method, "width": width, "aligned": aligned,
                                   "paper": suite.published.get(dataset, {}).get(method, {}).get(aligned)},
                            measures={
                                "score": by_seed((r, 100 * r["score"]) for r in found),
                                "rounds": by_seed((r, sum(s["rounds"] for s in c["sent"])) for r, c in costs),
                                "bytes": by_seed((r, sum(s["bytes_sent"] for s in c["sent"])) for r, c in costs),
                                "formula_rounds": by_seed(
                                    (r, sum(s["rounds"] for s in c["published"])) for r, c in covered),
                                "formula_bytes": by_seed(
                                    (r, sum(s["bytes_sent"] for s in c["published"])) for r, c in covered),
                                "cpu_seconds": by_seed((r, r["cpu_seconds"]) for r in found),
                            },
                        ))  # fmt: skip
    return cells


def over_widths(
    suite: OneExchangeSuite, cells: Sequence[Cell], dataset: str, method: str, aligned: int
) -> MeanSpread | None:
    """Return the mean and the standard deviation of a method's scores over the active party's numbers of columns.

    The paper's figures 5 and 8 show the same quantities. Return ``None`` if a seed is missing at some number of
    columns. With fewer columns the task is harder, so a mean over only some numbers of columns would be biased. If only
    the active party runs the method, the result does not depend on ``aligned``, the number of aligned rows.
    """
    repeats = max((len(cell.seeds("score")) for cell in cells if cell["dataset"] == dataset), default=0)
    means = {
        cell["width"]: cell.mean("score") for cell in cells
        if cell.matches(dataset=dataset, method=method) and cell["aligned"] in {0, aligned}
        and len(cell.seeds("score")) == repeats
    }  # fmt: skip
    return mean_spread(list(means.values())) if means.keys() >= set(suite.datasets[dataset].widths) else None


def claimed(suite: OneExchangeSuite, cells: Sequence[Cell], claim: Claim) -> float | None:
    """Return our number for a claim of the paper; ``None`` if runs for this number are not finished."""
    aligned = suite.datasets[claim.dataset].aligned
    if claim.kind == "loss":
        first, last = (over_widths(suite, cells, claim.dataset, claim.method, rows) for rows in claim.aligned)
        return None if first is None or last is None else first[0] - last[0]
    if claim.kind == "gain":
        pairs = [[over_widths(suite, cells, claim.dataset, each, rows) for each in (claim.method, claim.over)]
                 for rows in aligned]  # fmt: skip
        return max((own[0] - other[0] for own, other in pairs if own and other), default=None)
    sizes = [[_formula_bytes(cells, claim.dataset, each, rows) for each in (claim.method, claim.over)]
             for rows in aligned]  # fmt: skip
    return max((other / own for own, other in sizes if own and other), default=None)


def _formula_bytes(cells: Sequence[Cell], dataset: str, method: str, aligned: int) -> float | None:
    """Return the bytes by the paper's formula, as the mean over a method's runs with ``aligned`` aligned rows.

    Return ``None`` if the formula covers no such run.
    """
    sizes = [size for cell in cells if cell.matches(dataset=dataset, method=method, aligned=aligned)
             for size in cell.measures["formula_bytes"].values()]  # fmt: skip
    return statistics.fmean(sizes) if sizes else None
