"""The page of a one-exchange suite: scores, costs (measured, and by the paper's formulas), and claims of the paper.

Each claim is a number in the paper, printed beside our number. Scores are listed for each number of columns of the
active party and each number of aligned rows.  Aligned rows are the rows of the active party that the passive party has,
too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from anyparty.core.figure_panels import Curve, Panel, PanelFigure
from anyparty.experiments.one_exchange_suite import Claim, OneExchangeSuite
from anyparty.experiments.page import Score, SuitePage, csv_text, fixed, format_spread, markdown_table, score_table
from anyparty.experiments.results import Cell, MeanSpread, Records, mean_spread

FOLDS = "Mean of {folds} folds; mean ± standard deviation over the repeats."
HELD_OUT = "{test} rows held out; mean ± standard deviation over the repeats."
OVER_WIDTHS = "Mean over the numbers of columns ± standard deviation over them, as in the paper's figure."
COSTS = (
    "Rounds and bytes of the method's own messages as sent; each direction counts separately. Beside them are the "
    "bytes by the formulas of appendix E, for the same run."
)


def page(suite: OneExchangeSuite, records: Records, run_facts: Mapping[str, str]) -> SuitePage:
    """Return the page of a suite for the records of its runs; ``run_facts`` are shown at the end of the page."""
    cells = suite.read_cells(records)
    return SuitePage(cells=cells, markdown=suite.markdown(cells, _body(suite, cells), run_facts),
                     csv=_csv(suite, cells), figure=partial(figure, suite, cells))  # fmt: skip


def _body(suite: OneExchangeSuite, cells: Sequence[Cell]) -> Iterator[str]:
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in cells if cell["dataset"] == dataset]
        if here:
            yield from [f"## {dataset}: {entry.unit}" if suite.shows == "scores" else f"## {dataset}", ""]
            if suite.shows == "scores":
                yield from [*_scores(suite, here, dataset), ""]
            yield from [*_costs(suite, here, dataset), ""]
    if suite.claims:
        rows = [[claim.place, claim.says, claim.dataset, f"{claim.number:g}",
                 fixed(compute_claim(suite, cells, claim), 2)] for claim in suite.claims]  # fmt: skip
        yield from ["## What the paper's text says", ""]
        yield from markdown_table(["where", "its words", "data set", "paper", "ours"], rows, text_columns=3)
        yield ""


def _scores(suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> Iterator[str]:
    entry = suite.datasets[dataset]
    heads = ["", *(f"{aligned:,} aligned" for aligned in entry.aligned)]
    if len(entry.widths) > 1:
        means = {
            of.title: [_score(mean_over_widths(suite, here, dataset, method, aligned)) for aligned in entry.aligned]
            for method, of in suite.methods.items()
        }
        yield from [OVER_WIDTHS, "", *score_table(heads, means, text_columns=1), ""]
    yield from [HELD_OUT.format(test=entry.test) if entry.test else FOLDS.format(folds=suite.folds), ""]
    repeats = max(len(cell.seeds()) for cell in here)
    whole = [cell for cell in here if len(cell.seeds()) == repeats]
    if few := len(here) - len(whole):
        yield from [f"Left out: {few} cells that do not have {repeats} repeats yet, as the others have.", ""]
    for width in entry.widths:
        rows = {
            of.title: [next((_score(cell.mean_spread(), _paper_score(cell)) for cell in whole
                             if cell.matches(method=method, width=width) and cell["aligned"] in {0, aligned}), None)
                       for aligned in entry.aligned]
            for method, of in suite.methods.items()
        }  # fmt: skip
        yield from [f"{width} columns at the active party:", "", *score_table(heads, rows, text_columns=1), ""]


def _score(value: MeanSpread | None, paper: MeanSpread | None = None) -> Score | None:
    """Return the score of a table; scores are compared as they are shown, with one decimal."""
    return value and Score(mean=value[0], spread=value[1], paper=paper, compared=round(value[0], 1))


def _paper_score(cell: Cell) -> MeanSpread | None:
    """Return the mean and spread of the paper's score in per cent; ``None`` if the paper has no score for the cell."""
    return None if cell["paper"] is None else (100 * cell["paper"].score[0], 100 * cell["paper"].score[1])


def _costs(suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> list[str]:
    width = suite.datasets[dataset].widths[0]
    heads = ["", "aligned", "rounds", "by formula", "*paper*", "MB", "by formula", "*paper*", "CPU s / run"]
    rows = [[suite.methods[cell["method"]].title, *_cost_cells(cell)] for cell in here if cell["width"] == width]
    return [COSTS, "", *markdown_table(heads, rows), "", f"With {width} columns at the active party."]


def _cost_cells(cell: Cell) -> list[str]:
    rounds = [_mean_text(cell, measure) for measure in ("rounds", "formula_rounds")]
    size = [_mean_text(cell, measure, 1e6, 2) for measure in ("bytes", "formula_bytes")]
    paper = ["", ""]
    if cell["paper"] is not None:
        paper = [format_spread(*cell["paper"].rounds, digits=0), format_spread(*cell["paper"].megabytes, digits=2)]
    aligned = f"{cell['aligned']:,}" if cell["aligned"] else "any"
    return [aligned, *rounds, paper[0], *size, paper[1], f"{cell.mean('cpu_seconds'):.0f}"]


def _mean_text(cell: Cell, measure: str, unit: float = 1, digits: int = 0) -> str:
    return format_spread(cell.mean(measure) / unit, digits=digits) if cell.seeds(measure) else ""


def _csv(suite: OneExchangeSuite, cells: Sequence[Cell]) -> str:
    names = ["dataset", "method", "columns", "aligned", "metric", "mean", "std", "repeats", "rounds", "bytes_sent",
             "bytes_by_formula", "paper_mean", "paper_std", "cpu_seconds"]  # fmt: skip
    return csv_text(names, (
        [cell["dataset"], cell["method"], cell["width"], cell["aligned"] or "any",
         suite.datasets[cell["dataset"]].metric, *(fixed(value, 3) for value in cell.mean_spread()),
         len(cell.seeds()), fixed(cell.mean("rounds"), 1), fixed(cell.mean("bytes"), 0),
         fixed(cell.mean("formula_bytes"), 0), *(fixed(value, 1) for value in _paper_score(cell) or (None, None)),
         fixed(cell.mean("cpu_seconds"), 1)]
        for cell in cells
    ))  # fmt: skip


def figure(suite: OneExchangeSuite, cells: Sequence[Cell]) -> PanelFigure:
    """Return a figure with a panel for each data set: the scores, or the bytes sent, by the number of aligned rows.

    ``suite.shows`` selects scores or bytes. The spread of a score is over the numbers of columns.
    """
    draw = _score_panel if suite.shows == "scores" else _bytes_panel
    panels = [draw(suite, [cell for cell in cells if cell["dataset"] == dataset], dataset)
              for dataset in dict.fromkeys(cell["dataset"] for cell in cells)]  # fmt: skip
    return PanelFigure(panels=panels, size=(6, 3.8), grid="y")


def _score_panel(suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> Panel:
    entry, curves = suite.datasets[dataset], list[Curve]()
    for place, (method, of) in enumerate(suite.methods.items()):
        points = [(x, *value) for x, rows in enumerate(entry.aligned)
                  if (value := mean_over_widths(suite, here, dataset, method, rows)) is not None]  # fmt: skip
        shift = 0.7 * ((place + 0.5) / len(suite.methods) - 0.5)
        curves.append(Curve(label=of.title, x=[x + shift for x, *_ in points], y=[mean for _, mean, _ in points],
                            spread=[spread for *_, spread in points], color=f"C{place}",
                            marks={"fmt": "o", "ms": 4, "capsize": 2}))  # fmt: skip
    return Panel(title=dataset, x_label="aligned rows", y_label=entry.unit, curves=curves,
                 ticks={x: f"{rows:,}" for x, rows in enumerate(entry.aligned)})  # fmt: skip


def _bytes_panel(suite: OneExchangeSuite, here: Sequence[Cell], dataset: str) -> Panel:
    width, curves = suite.datasets[dataset].widths[0], list[Curve]()
    for place, (method, of) in enumerate(suite.methods.items()):
        cells = sorted((cell for cell in here if cell.matches(method=method, width=width)), key=lambda c: c["aligned"])
        for measure, style, source in (("bytes", "-o", "sent"), ("formula_bytes", "--", "by formula")):
            if sent := [cell for cell in cells if cell.seeds(measure)]:
                curves.append(Curve(label=f"{of.title}, {source}", x=[cell["aligned"] for cell in sent],
                                    y=[cell.mean(measure) / 1e6 for cell in sent], color=f"C{place}",
                                    marks={"fmt": style, "ms": 4}))  # fmt: skip
    return Panel(title=dataset, x_label="aligned rows", y_label="MB", is_y_log=True, curves=curves)


def mean_over_widths(
    suite: OneExchangeSuite, cells: Sequence[Cell], dataset: str, method: str, aligned: int
) -> MeanSpread | None:
    """Return the mean and the standard deviation of a method's scores over the active party's numbers of columns.

    The paper's figures 5 and 8 show the same quantities. Return ``None`` if a seed is missing at some number of
    columns. With fewer columns the task is harder, so a mean over only some numbers of columns would be biased. If only
    the active party runs the method, the result does not depend on ``aligned``, the number of aligned rows.
    """
    repeats = max((len(cell.seeds()) for cell in cells if cell["dataset"] == dataset), default=0)
    means = {
        cell["width"]: cell.mean() for cell in cells
        if cell.matches(dataset=dataset, method=method) and cell["aligned"] in {0, aligned}
        and len(cell.seeds()) == repeats
    }  # fmt: skip
    return mean_spread(list(means.values())) if means.keys() >= set(suite.datasets[dataset].widths) else None


def compute_claim(suite: OneExchangeSuite, cells: Sequence[Cell], claim: Claim) -> float | None:
    """Return our number for a claim of the paper; ``None`` if runs for this number are not finished."""
    aligned = suite.datasets[claim.dataset].aligned
    if claim.kind == "loss":
        first, last = (mean_over_widths(suite, cells, claim.dataset, claim.method, rows) for rows in claim.aligned)
        return None if first is None or last is None else first[0] - last[0]
    if claim.kind == "rounds":
        own, other = (_mean_measure(cells, "rounds", claim.dataset, each, claim.aligned[0])
                      for each in (claim.method, claim.over))  # fmt: skip
        return other / own if own and other else None
    if claim.kind == "gain":
        pairs = [[mean_over_widths(suite, cells, claim.dataset, each, rows) for each in (claim.method, claim.over)]
                 for rows in aligned]  # fmt: skip
        return max((own[0] - other[0] for own, other in pairs if own and other), default=None)
    sizes = [[_mean_measure(cells, "formula_bytes", claim.dataset, each, rows) for each in (claim.method, claim.over)]
             for rows in aligned]  # fmt: skip
    return max((other / own for own, other in sizes if own and other), default=None)


def _mean_measure(cells: Sequence[Cell], name: str, dataset: str, method: str, aligned: int) -> float | None:
    """Return a measure as the mean over a method's runs with ``aligned`` aligned rows.

    Return ``None`` if no such run has the measure, such as bytes by a formula that does not cover the method.
    """
    sizes = [size for cell in cells if cell.matches(dataset=dataset, method=method, aligned=aligned)
             for size in cell.measures[name].values()]  # fmt: skip
    return statistics.fmean(sizes) if sizes else None
