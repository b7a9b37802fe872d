"""The page of a missing-blocks suite: our numbers above the paper's, as Markdown, CSV and figures.

The module ``missing_blocks_results`` explains the terms configuration, gap and ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import polars as pl

from anyparty.core.figure_panels import Curve, Panel, PanelFigure
from anyparty.experiments import missing_blocks_results as results
from anyparty.experiments.missing_blocks_results import CONFIGURATION, method_entry
from anyparty.experiments.missing_blocks_suite import MissingBlocksSuite
from anyparty.experiments.page import Score, SuitePage, csv_text, fixed, markdown_table, score_table, seeds_text
from anyparty.experiments.results import Cell, Records, shared_seeds

PLACE = [*CONFIGURATION, "method"]
METRIC = {
    "client_accuracy": "the mean accuracy of the parties' heads, each on the rows that the party has",
    "client_f1": "the mean F1 of the parties' heads, each on the rows that the party has",
}
BOLD = (
    "**Bold** marks the best method of a column, compared over the seeds that all its rows have. If rows differ in "
    "their seeds, a column gives the number of seeds and the seeds."
)
LEGEND = (
    "Ours is the mean ± standard deviation over the seeds; one seed has no deviation. The paper's number is below it. "
    f"{BOLD} ▲ and ▼ mark numbers above and below the paper's by more than both deviations together."
)
RATIO_LEGEND = (
    "Ours is the mean of the metric over the seeds trained under {more}, divided by that trained under {less}, in per "
    f"cent. The paper's number is below it. {BOLD}"
)
COMPARED = (
    "Both rows are over the same methods and configurations, those that were run here. Ours are over the seeds that "
    "all of these methods have in a configuration; a configuration without such a seed is left out."
)
GAPS = "Gap to the best of the other methods, in points, and the number of configurations in which they are ahead"
PRINTED = (
    "Mean over configurations, and the number of configurations in which they are ahead of the best of the paper's own "
    "methods as printed. The paper trained and tested on other random draws:"
)
RUN_HERE = (
    "The same comparison with the best of the paper's own methods as run here ({titles}), over the seeds that all of "
    "them have:"
)


def page(suite: MissingBlocksSuite, records: Records, run_facts: Mapping[str, str]) -> SuitePage:
    """Return the page of a suite for the records of its runs; ``run_facts`` are shown at the end of the page."""
    cells = suite.read_cells(records)
    body, csv, figure = (
        (_ratio_body, _ratio_csv, ratio_figure) if suite.layout == "ratios" else (_score_body, _score_csv, score_figure)
    )
    return SuitePage(cells=cells, markdown=suite.markdown(cells, body(suite, cells), run_facts),
                     csv=csv(suite, cells), figure=partial(figure, suite, cells))  # fmt: skip


def _score_body(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    lines = list[str]()
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in cells if cell["dataset"] == dataset]
        if here:
            tables = _tables_by_parties if len(suite.parties_of(dataset)) > 1 else _tables_by_mechanism
            lines += tables(suite, dataset, here)
            lines += [f"Scores are {_metric_text(entry.metric)}; in the CSV the columns `mean` and `std`.", ""]
            lines += [f"In place of {entry.in_place_of}.", ""] if entry.in_place_of else []
    return [*lines, LEGEND, "", *_own_methods(suite, cells), *_further_methods(suite, cells)]


def _metric_text(metric: str) -> str:
    """Return a metric's name in the records; for a metric that scores the parties' own heads, also an explanation."""
    return f"{METRIC[metric]} (`{metric}`)" if metric in METRIC else f"`{metric}` of all test rows together"


def _missing_shares(here: Sequence[Cell], *, by_parties: bool = False) -> list[str]:
    """Return a line with the shares of blocks that are missing in training and at test.

    The shares are below the mechanism's p, because every row keeps at least one block.
    """
    texts = []
    for part, fact, measure in (("training", "missing", "missing_in_training"), ("test", "test", "missing_at_test")):
        rates = {f"K = {cell['parties']}" if by_parties else cell[fact]: cell.mean(measure) for cell in here}
        texts.append(f"{part} " + ", ".join(f"{name}: {rate:.1%}" for name, rate in rates.items()))
    return [f"Share of blocks that is missing: {'; '.join(texts)}.", ""]


def _tables_by_mechanism(suite: MissingBlocksSuite, dataset: str, here: Sequence[Cell]) -> list[str]:
    """Return the lines of a data set's tables: one table with layout "columns", or one per training mechanism."""
    title = f"## {dataset}, {suite.parties_of(dataset)[0]} parties: {suite.datasets[dataset].unit}"
    if suite.layout == "columns":
        columns = {f"{missing} → {test}": {"missing": missing, "test": test}
                   for missing, test in product(suite.train_missing, suite.test_missing)}  # fmt: skip
        table = _score_table(suite, dataset, here, "missing in training → at test", columns)
        return [title, "", *table, "", *_missing_shares(here)]
    lines = list[str]()
    for missing in suite.train_missing:
        trained = [cell for cell in here if cell["missing"] == missing]
        if trained:
            at_test = {cell["test"]: f"{cell['test']} {cell.mean('missing_at_test'):.0%}" for cell in trained}
            rates = f"{trained[0].mean('missing_in_training'):.0%} in training; at test {', '.join(at_test.values())}"
            columns = {test: {"test": test} for test in suite.test_missing}
            table = _score_table(suite, dataset, trained, "missing at test", columns)
            lines += [f"{title}, trained under {missing}", "", f"Blocks missing: {rates}.", "", *table, ""]
    return lines


def _score_table(
    suite: MissingBlocksSuite, dataset: str, here: Sequence[Cell], head: str, columns: Mapping[str, Mapping[str, Any]],
    *, seconds: bool = True,
) -> list[str]:  # fmt: skip
    """Return the lines of a table of scores; ``columns`` has, by heading, the facts of the cells of each column."""
    rows, times = dict[str, list[Score | None]](), dict[str, str]()
    shared = [shared_seeds(cell for cell in here if cell.matches(**facts)) for facts in columns.values()]
    for method, entry in suite.datasets[dataset].methods.items():
        row = [next((cell for cell in here if cell.matches(method=method, **facts)), None)
               for facts in columns.values()]  # fmt: skip
        rows[entry.title] = [_score(cell, seeds) if cell else None for cell, seeds in zip(row, shared, strict=True)]
        if own := [cell for cell in row if cell]:
            times[entry.title] = f"{statistics.fmean(cell.mean('seconds') for cell in own):.0f}"
    return score_table([head, *columns], rows, more={"s / training": times} if seconds else None)


def _score(cell: Cell, shared: Sequence[int]) -> Score:
    """Return the score of a cell, marked ▲ or ▼ if it differs from the paper's by more than the sum of both spreads.

    ``shared`` are the seeds that all cells of the column have.
    """
    mark = (" ▲" if (results.difference(cell) or 0) > 0 else " ▼") if results.is_outside(cell) else ""
    mean, spread = cell.mean_spread()
    return Score(mean=mean, spread=spread, seeds=cell.seeds(), paper=cell["paper"], mark=mark,
                 compared=cell.mean(seeds=shared))  # fmt: skip


def _tables_by_parties(suite: MissingBlocksSuite, dataset: str, here: Sequence[Cell]) -> list[str]:
    """Return the lines of two tables for each pair of training and test mechanism, with a column for each K.

    The first table has the metric, the second the time of an epoch.  K is the number of parties.
    """
    columns, lines = {f"K = {parties}": {"parties": parties} for parties in suite.parties_of(dataset)}, list[str]()
    for missing, test in product(suite.train_missing, suite.test_missing):
        cells = [cell for cell in here if cell.matches(missing=missing, test=test)]
        if cells:
            at = {(method_entry(suite, cell).title, f"K = {cell['parties']}"): f"{cell.mean('epoch_seconds'):.2f}"
                  for cell in cells}  # fmt: skip
            times = [[title, *(at.get((title, column), "") for column in columns)]
                     for title in dict.fromkeys(title for title, _ in at)]  # fmt: skip
            lines += [f"## {dataset}, missing {missing} → {test}: {suite.datasets[dataset].unit}", ""]
            lines += [*_score_table(suite, dataset, cells, "method", columns, seconds=False), ""]
            lines += _missing_shares(cells, by_parties=True)
            lines += [f"CPU seconds of a training epoch, {dataset}, missing {missing}:", ""]
            lines += [*markdown_table(["method", *columns], times, text_columns=len(columns) + 1), ""]
    return lines


def _score_csv(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> str:
    names = ["dataset", "method", "parties", "train_missing", "test_missing", "metric", "mean", "std", "seeds",
             "paper_mean", "paper_std", "difference", "outside_both_spreads", "seconds"]  # fmt: skip
    return csv_text(names, (
        [*(cell[name] for name in ("dataset", "method", "parties", "missing", "test")),
         suite.datasets[cell["dataset"]].metric, *(fixed(value, 3) for value in cell.mean_spread()), len(cell.seeds()),
         *(cell["paper"] or ("", "")), fixed(results.difference(cell), 3), results.is_outside(cell),
         f"{cell.mean('seconds'):.1f}"]
        for cell in cells
    ))  # fmt: skip


def _own_methods(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    """Return the lines on the methods that the paper introduces: their means, and their gaps to all other methods."""
    scores, published = results.measured_scores(suite, cells), results.published_scores(suite)
    printed = scores.filter(~pl.col("beyond"))
    if len(published):
        printed = printed.join(published, on=PLACE, how="semi", maintain_order="left")
    own = results.comparable(printed.filter("own"))
    papers = results.best_scores(published.join(own, on=PLACE, how="semi", maintain_order="left"))
    if not len(own):
        return []
    lines = ["## The paper's own methods", "", COMPARED, ""]
    lines += [
        f"Mean over configurations of the best of them ({_method_titles(printed.filter('own'))}; {_count_text(own)}):",
        "",
    ]
    lines += [*_means_table("dataset", "own", results.best_scores(own), papers), ""]
    compared = results.comparable(printed)
    measured = results.best_scores(compared).drop_nulls("gap")
    papers = published.join(compared, on=PLACE, how="semi", maintain_order="left")
    papers = results.best_scores(papers).drop_nulls("gap")
    if not len(measured):
        return lines
    compared = compared.join(measured, on=CONFIGURATION, how="semi", maintain_order="left")
    lines += [f"{GAPS} (others: {_method_titles(compared.filter(~pl.col('own')))}; {_count_text(compared)}):", ""]
    rows = [[title, f"{len(found)}", f"{statistics.fmean(found):z.1f}", f"{(found >= 0).sum()} of {len(found)}"]
            for title, found in (("ours", measured["gap"]), ("*paper*", papers["gap"])) if len(found)]  # fmt: skip
    lines += [*markdown_table(["", "configurations", "mean gap", "ahead"], rows, text_columns=4), ""]
    return lines + [line for part in CONFIGURATION for line in [*_means_table(part, "gap", measured, papers), ""]]


def _further_methods(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    """Return the lines on methods that are not in the paper, compared with the best method that the paper introduces.

    Each method is compared twice: with the paper's printed numbers, which come from other random draws, and with the
    paper's methods as run here, which had the same random draws.
    """
    scores, lines = results.measured_scores(suite, cells), list[str]()
    printed, own = results.best_scores(results.published_scores(suite)), scores.filter("own")
    as_printed, as_run = list[list[str]](), list[list[str]]()
    for _, group in scores.filter("beyond").group_by("dataset", "method", maintain_order=True):
        as_printed += _comparison_rows(group, printed)
        compared = results.comparable(pl.concat([group, own.filter(pl.col("dataset") == group["dataset"][0])]))
        as_run += _comparison_rows(compared.filter("beyond"), results.best_scores(compared))
    for sentence, other, rows in (
        (PRINTED, "*paper*", as_printed),
        (RUN_HERE.format(titles=_method_titles(own)), "paper's own, run here", as_run),
    ):
        if rows:
            heads = ["", "configurations", "seeds", "ours", other, "ahead"]
            lines += [sentence, "", *markdown_table(heads, rows, text_columns=len(heads)), ""]
    return ["## Beyond the paper", "", *lines] if lines else []


def _comparison_rows(scores: pl.DataFrame, best: pl.DataFrame) -> list[list[str]]:
    """Return a list with a table row that compares a method with the best of the paper's own; empty without both."""
    means = scores.group_by([*CONFIGURATION, "title"], maintain_order=True).agg(pl.col("score").mean(), "seed")
    both = means.join(best.drop_nulls("own"), on=CONFIGURATION, maintain_order="left")
    if not len(both):
        return []
    values = [f"{statistics.fmean(both[name]):.1f}" for name in ("score", "own")]
    return [[f"{both['title'][0]}, {both['dataset'][0]}", f"{len(both)}", seeds_text(both["seed"]), *values,
             f"{(both['score'] >= both['own']).sum()} of {len(both)}"]]  # fmt: skip


def _method_titles(scores: pl.DataFrame) -> str:
    return "; ".join(scores["title"].unique(maintain_order=True))


def _count_text(scores: pl.DataFrame) -> str:
    """Return a text with the number of configurations, and the seeds that each configuration has."""
    each = scores.group_by(CONFIGURATION, maintain_order=True).agg(pl.col("seed").unique())["seed"]
    return f"configurations: {len(each)}, seeds of each: {seeds_text(each)}"


def _means_table(part: str, value: str, measured: pl.DataFrame, papers: pl.DataFrame) -> list[str]:
    """Return the lines of a table with the mean of ours and of the paper's for each value of a configuration's part."""
    names, rows = measured[part].unique(maintain_order=True).to_list(), []
    for title, found in (("ours", measured), ("*paper*", papers)):
        if len(found):
            means = dict(found.group_by(part).agg(pl.col(value).mean()).iter_rows())
            rows.append([title, *(f"{means[name]:z.1f}" if name in means else "" for name in names)])
    return markdown_table(["", *names], rows, text_columns=len(names) + 1)


def _ratio_body(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    lines, pairs = list[str](), results.training_pairs(suite, results.measured_scores(suite, cells))
    for dataset in pairs["dataset"].unique(maintain_order=True):
        entry = suite.datasets[dataset]
        lines += [f"## {dataset}: {entry.unit}, ratio in %", "", *_ratio_table(suite, dataset, pairs), ""]
        lines += [f"Ratios are of {_metric_text(entry.metric)}; in the CSV the columns `metric` and `ratio`.", ""]
    lines += [RATIO_LEGEND.format(less=suite.train_missing[0], more=suite.train_missing[-1]), ""]
    leads = f"Columns in which one of the paper's own methods has the highest ratio: {_lead_text(suite, pairs)}."
    return [*lines, leads, ""]


def _comparable_ratios(pairs: pl.DataFrame) -> pl.DataFrame:
    return results.ratios(results.comparable(pairs, results.COLUMN, results.COLUMN))


def _lead_text(suite: MissingBlocksSuite, pairs: pl.DataFrame) -> str:
    """Return a text with the number of table columns in which a method of the paper itself has the highest ratio."""
    published, measured, keys = results.published_ratios(suite), _comparable_ratios(pairs), [*results.COLUMN, "method"]
    if len(published):
        measured = measured.join(published, on=keys, how="semi", maintain_order="left")
    same = published.join(measured, on=keys, how="semi", maintain_order="left")
    counts = ["{} of {}".format(*results.led_columns(found)) for found in (measured, same, published)]
    if not results.led_columns(measured)[1]:
        return f"{counts[2]} in the paper"
    here = f"{counts[0]} where they and others were run"
    return f"{here}; in the paper {counts[1]} with the same methods, {counts[2]} in all" if len(same) else here


def _values_by_place(found: pl.DataFrame, value: str = "ratio") -> dict[tuple[str, str, str], Any]:
    """Return a value of each row by its data set, method and test mechanism."""
    return {(row["dataset"], row["method"], row["test"]): row[value] for row in found.iter_rows(named=True)}


def _ratio_table(suite: MissingBlocksSuite, dataset: str, pairs: pl.DataFrame) -> list[str]:
    found = results.ratios(pairs)
    measured, seeds, compared = (
        _values_by_place(found),
        _values_by_place(found, "seed"),
        _values_by_place(_comparable_ratios(pairs)),
    )
    published, rows = _values_by_place(results.published_ratios(suite)), dict[str, list[Score | None]]()
    for method, entry in suite.datasets[dataset].methods.items():
        rows[entry.title] = [
            Score(mean=measured.get(place, math.nan), seeds=seeds.get(place, ()),
                  paper=(published[place], math.nan) if place in published else None,
                  compared=compared.get(place, math.nan))
            for place in ((dataset, method, test) for test in suite.test_missing)
        ]  # fmt: skip
    return score_table(["missing at test", *suite.test_missing], rows)


def _ratio_csv(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> str:
    """Return a CSV with a line for each ratio of two scores of a method.

    The column ``ratio`` covers the seeds that both trainings share. The column ``ratio_compared`` covers the seeds that
    all methods with the same data set and test mechanism share.
    """
    pairs = results.training_pairs(suite, results.measured_scores(suite, cells))
    compared, published = _values_by_place(_comparable_ratios(pairs)), _values_by_place(results.published_ratios(suite))
    names = ["dataset", "method", "test_missing", "metric", "ratio", "seeds", "ratio_compared", "paper_ratio"]
    seeds = _values_by_place(results.ratios(pairs), "seed")
    return csv_text(names, (
        [*place, suite.datasets[place[0]].metric, fixed(ratio, 3), len(seeds[place]), fixed(compared.get(place), 3),
         published.get(place, "")]
        for place, ratio in _values_by_place(results.ratios(pairs)).items()
    ))  # fmt: skip


def score_figure(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> PanelFigure:
    """Return a figure of the metric against the test mechanism: a panel for each data set and training mechanism.

    If the number of parties varies, there are two panels instead: the metric and the time of an epoch, both against the
    number of parties.  If there is only one data set and no time is drawn, all panels share their y scale.
    """
    panels = list[Panel]()
    for dataset, missing in dict.fromkeys((cell["dataset"], cell["missing"]) for cell in cells):
        several = len(suite.parties_of(dataset)) > 1
        here = [cell for cell in cells if cell.matches(dataset=dataset, missing=missing)]
        for time in (False, True) if several else (False,):
            panels.append(_score_panel(suite, dataset, missing, here, cells, time))
    timed = any(panel.is_y_log for panel in panels)
    if len({cell["dataset"] for cell in cells}) > 1 or timed:
        return PanelFigure(panels=panels, across=2) if timed else PanelFigure(panels=panels)
    return PanelFigure(panels=panels, same_y="all")


def _score_panel(
    suite: MissingBlocksSuite, dataset: str, missing: str, here: Sequence[Cell], cells: Sequence[Cell], time: bool
) -> Panel:
    """Return the panel of a training mechanism: the scores, or with ``time`` the times of an epoch."""
    entry, several = suite.datasets[dataset], suite.parties_of(dataset)
    by_parties, curves = len(several) > 1, list[Curve]()
    for place, method in enumerate(entry.methods):
        if drawn := [cell for cell in here if cell["method"] == method]:
            spreads = [cell.mean_spread() for cell in drawn]
            curves.append(Curve(
                label=_legend_label(suite, drawn, cells), color=f"C{place}",
                x=[cell["parties" if by_parties else "test"] for cell in drawn],
                y=[cell.mean("epoch_seconds") for cell in drawn] if time else [mean for mean, _ in spreads],
                spread=() if time else [spread for _, spread in spreads],
            ))  # fmt: skip
    return Panel(
        title=f"{dataset}, missing in training: {missing}", curves=curves, tick_size=7, is_y_log=time,
        x_label="parties" if by_parties else "missing at test",
        y_label="CPU seconds of an epoch" if time else entry.unit, x_base=2 if by_parties else 0,
        ticks={parties: str(parties) for parties in several} if by_parties else None,
    )  # fmt: skip


def ratio_figure(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> PanelFigure:
    """Return a figure of each method's ratio against the test mechanism: a panel for each data set that has ratios."""
    pairs, panels = results.training_pairs(suite, results.measured_scores(suite, cells)), list[Panel]()
    measured, (less, *_, more) = _values_by_place(results.ratios(pairs)), suite.train_missing
    for dataset in dict.fromkeys(place[0] for place in measured):
        trained, curves = [cell for cell in cells if cell["dataset"] == dataset], list[Curve]()
        drawn = [
            cell
            for cell in trained
            if cell["missing"] in {less, more} and (dataset, cell["method"], cell["test"]) in measured
        ]
        for place, method in enumerate(suite.datasets[dataset].methods):
            if tests := [test for test in suite.test_missing if (dataset, method, test) in measured]:
                label = _legend_label(suite, [cell for cell in drawn if cell["method"] == method], drawn)
                y = [measured[dataset, method, test] for test in tests]
                curves.append(Curve(label=label, x=tests, y=y, color=f"C{place}"))
        # Scores at the level are as good as after training with fewer missing blocks.
        panels.append(Panel(title=f"{dataset}, trained under {more} over trained under {less}", curves=curves,
                            x_label="missing at test", y_label="ratio, %", level=100, tick_size=7))  # fmt: skip
    return PanelFigure(panels=panels, size=(6.2, 4.4), across=2)


def _legend_label(suite: MissingBlocksSuite, drawn: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """Return the name of the method of ``drawn`` for the legend, with its seeds if methods differ in their seeds."""
    title, method = method_entry(suite, drawn[0]).title, drawn[0]["method"]
    if len({frozenset(cell.seeds()) for cell in cells}) == 1:
        return title
    return f"{title}; seeds: {seeds_text(cell.seeds() for cell in cells if cell['method'] == method)}"
