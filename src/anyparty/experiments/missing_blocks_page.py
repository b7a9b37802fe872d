"""The page of a missing-blocks suite: our numbers above the paper's, as Markdown, CSV and figures.

The module ``missing_blocks_results`` explains the terms configuration, gap and ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyparty.experiments import missing_blocks_results as results
from anyparty.experiments.missing_blocks_results import (
    SCORE,
    Configuration,
    configuration,
    mean_place,
    method_entry,
)
from anyparty.experiments.missing_blocks_suite import MissingBlocksSuite
from anyparty.experiments.output import (
    PANELS_ACROSS,
    Cell,
    SuitePage,
    bold,
    csv_text,
    fixed,
    markdown_page,
    markdown_table,
    panels,
    shared_seeds,
    with_spread,
)
from anyparty.experiments.suite import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    cells = results.aggregate(suite, records)
    body, csv, draw = (
        (_ratio_body, _ratio_csv, plot_ratios) if suite.layout == "ratios" else (_score_body, _score_csv, plot_scores)
    )
    return SuitePage(cells=cells, markdown=markdown_page(suite, cells, body(suite, cells), run_facts),
                     csv=csv(suite, cells), draw=partial(draw, suite, cells))  # fmt: skip


def _score_body(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    lines = list[str]()
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in cells if cell["dataset"] == dataset]
        if len(suite.parties_of(dataset)) > 1:
            lines += _tables_by_parties(suite, dataset, here)
        elif here:
            lines += _tables_by_mechanism(suite, dataset, here)
        if here:
            lines += [f"Scores are {_metric_text(entry.metric)}; in the CSV the columns `mean` and `std`.", ""]
        if here and entry.in_place_of:
            lines += [f"In place of {entry.in_place_of}.", ""]
    return [*lines, LEGEND, "", *_own_methods(suite, cells), *_beyond_the_paper(suite, cells)]


def _metric_text(metric: str) -> str:
    """Return a metric's name in the records; for a metric that scores the parties' own heads, also an explanation."""
    return f"{METRIC[metric]} (`{metric}`)" if metric in METRIC else f"`{metric}` of all test rows together"


def _reached(here: Sequence[Cell], *, by_parties: bool = False) -> list[str]:
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
        pairs = list(product(suite.train_missing, suite.test_missing))
        heads = ["missing in training → at test", *(f"{missing} → {test}" for missing, test in pairs)]
        columns = [{"missing": missing, "test": test} for missing, test in pairs]
        return [title, "", *_score_table(suite, dataset, here, columns, heads), "", *_reached(here)]
    lines = list[str]()
    for missing in suite.train_missing:
        trained = [cell for cell in here if cell["missing"] == missing]
        if trained:
            at_test = {cell["test"]: f"{cell['test']} {cell.mean('missing_at_test'):.0%}" for cell in trained}
            rates = f"{trained[0].mean('missing_in_training'):.0%} in training; at test {', '.join(at_test.values())}"
            columns = [{"test": test} for test in suite.test_missing]
            heads = ["missing at test", *suite.test_missing]
            lines += [f"{title}, trained under {missing}", "", f"Blocks missing: {rates}.", ""]
            lines += [*_score_table(suite, dataset, trained, columns, heads), ""]
    return lines


def _score_table(
    suite: MissingBlocksSuite, dataset: str, here: Sequence[Cell], columns: Sequence[Mapping[str, Any]],
    heads: Sequence[str], *, seconds: bool = True,
) -> list[str]:  # fmt: skip
    """Return the lines of a table with one row for each method.

    For each column of the table, ``columns`` has the facts that select the column's cells, and ``heads`` has the
    heading.
    """
    best = [results.best_methods([cell for cell in here if cell.matches(**facts)]) for facts in columns]
    uneven, rows = _seeds_differ(here), []
    for method, entry in suite.datasets[dataset].methods.items():
        row = [next((cell for cell in here if cell.matches(method=method, **facts)), None) for facts in columns]
        own = [cell for cell in row if cell]
        if own:
            rows.append([
                entry.title, *(_shown(cell, methods) for cell, methods in zip(row, best, strict=True)),
                *([_seeds_text(cell.seeds(SCORE) for cell in own)] if uneven else []),
                *([f"{statistics.fmean(cell.mean('seconds') for cell in own):.0f}"] if seconds else []),
            ])  # fmt: skip
        if any(cell["paper"] for cell in own):
            paper = [with_spread(*cell["paper"]) if cell and cell["paper"] else "" for cell in row]
            rows.append(["*paper*", *paper, *[""] * (uneven + seconds)])
    heads = [*heads, *(["seeds"] if uneven else []), *(["s / training"] if seconds else [])]
    return markdown_table(heads, rows, text_columns=len(heads))


def _shown(cell: Cell | None, best: Container[str]) -> str:
    """Return the text of a table cell: our mean and spread, in bold if the cell's method is in ``best``.

    The mark ▲ or ▼ is added if our number differs from the paper's by more than the sum of both spreads.
    """
    if cell is None:
        return ""
    mark = (" ▲" if (results.difference(cell) or 0) > 0 else " ▼") if results.is_outside(cell) else ""
    return bold(with_spread(*cell.mean_spread(SCORE)), cell["method"] in best) + mark


def _tables_by_parties(suite: MissingBlocksSuite, dataset: str, here: Sequence[Cell]) -> list[str]:
    """Return the lines of two tables for each pair of training and test mechanism, with a column for each K.

    The first table has the metric, the second the time of an epoch.  K is the number of parties.
    """
    several, lines = suite.parties_of(dataset), list[str]()
    heads = ["method", *(f"K = {parties}" for parties in several)]
    for missing, test in product(suite.train_missing, suite.test_missing):
        cells = [cell for cell in here if cell.matches(missing=missing, test=test)]
        if cells:
            at = {
                (method_entry(suite, cell).title, cell["parties"]): f"{cell.mean('epoch_seconds'):.2f}"
                for cell in cells
            }
            times = [[title, *(at.get((title, parties), "") for parties in several)]
                     for title in dict.fromkeys(title for title, _ in at)]  # fmt: skip
            columns = [{"parties": parties} for parties in several]
            lines += [f"## {dataset}, missing {missing} → {test}: {suite.datasets[dataset].unit}", ""]
            lines += [
                *_score_table(suite, dataset, cells, columns, heads, seconds=False),
                "",
                *_reached(cells, by_parties=True),
            ]
            lines += [f"CPU seconds of a training epoch, {dataset}, missing {missing}:", ""]
            lines += [*markdown_table(heads, times, text_columns=len(heads)), ""]
    return lines


def _score_csv(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> str:
    names = ["dataset", "method", "parties", "train_missing", "test_missing", "metric", "mean", "std", "seeds",
             "paper_mean", "paper_std", "difference", "outside_both_spreads", "seconds"]  # fmt: skip
    return csv_text(names, (
        [cell["dataset"], cell["method"], cell["parties"], cell["missing"], cell["test"],
         suite.datasets[cell["dataset"]].metric,
         *(fixed(value, 3) for value in cell.mean_spread(SCORE)), len(cell.seeds(SCORE)),
         *(cell["paper"] or ("", "")), fixed(results.difference(cell), 3), results.is_outside(cell),
         f"{cell.mean('seconds'):.1f}"]
        for cell in cells
    ))  # fmt: skip


def _seeds_differ(cells: Iterable[Cell]) -> bool:
    return len({frozenset(cell.seeds(SCORE)) for cell in cells}) > 1


def _seeds_text(each: Iterable[Iterable[int]]) -> str:
    """Return a text with the fewest and most seeds that a cell has, and in brackets the seeds of all cells.

    >>> _seeds_text([[0, 1, 2, 4], [0]])
    '1 to 4 (0-2, 4)'
    """
    found = [set(seeds) for seeds in each]
    counts, ranges = sorted({len(seeds) for seeds in found}), list[list[int]]()
    for seed in sorted(set().union(*found)):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    which = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ranges)
    return " to ".join(f"{count}" for count in dict.fromkeys((counts[0], counts[-1]))) + f" ({which})"


def _own_methods(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    """Return the lines on the methods that the paper introduces: their means, and their gaps to all other methods."""
    published = results.published_means(suite)
    printed = [cell for cell in cells
               if not method_entry(suite, cell).beyond
               and (not published or mean_place(cell) in published)]  # fmt: skip
    own = [cell for cell in printed if method_entry(suite, cell).own]
    measured, papers = (
        results.best_means(suite, means, own=True) for means in results.comparable_means(own, published)
    )
    if not measured:
        return []
    lines = ["## The paper's own methods", "", COMPARED, ""]
    lines += [f"Mean over configurations of the best of them ({_titles(suite, own)}; {_counts(own, measured)}):", ""]
    lines += [*_means_table(lambda at: at[0], measured, papers), ""]
    measured, papers = (results.gaps(suite, means) for means in results.comparable_means(printed, published))
    if not measured:
        return lines
    others = [cell for cell in printed if not method_entry(suite, cell).own and configuration(cell) in measured]
    lines += [f"{GAPS} (others: {_titles(suite, others)}; {_counts(printed, measured)}):", ""]
    rows = [[title, f"{len(of)}", f"{statistics.fmean(of.values()):z.1f}",
             f"{sum(gap >= 0 for gap in of.values())} of {len(of)}"]
            for title, of in (("ours", measured), ("*paper*", papers)) if of]  # fmt: skip
    lines += [*markdown_table(["", "configurations", "mean gap", "ahead"], rows, text_columns=4), ""]
    for part in range(3):
        lines += [*_means_table(lambda at, part=part: at[part], measured, papers), ""]  # type: ignore[misc]
    return lines


def _beyond_the_paper(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    """Return the lines on methods that are not in the paper, compared with the best method that the paper introduces.

    Each method is compared twice: with the paper's printed numbers, which come from other random draws, and with the
    paper's methods as run here, which had the same random draws.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if method_entry(suite, cell).beyond:
            groups.setdefault((cell["dataset"], cell["method"]), []).append(cell)
    own = [cell for cell in cells if method_entry(suite, cell).own]
    printed, lines = results.best_means(suite, results.published_means(suite), own=True), list[str]()
    as_printed, as_run = list[list[str]](), list[list[str]]()
    for (dataset, method), group in groups.items():
        title = f"{suite.datasets[dataset].methods[method].title}, {dataset}"
        measured = {configuration(cell): cell.mean(SCORE) for cell in group}
        as_printed += _compared(title, measured, printed, results.comparable_seeds(group))
        compared = [*group, *(cell for cell in own if cell["dataset"] == dataset)]
        means, _ = results.comparable_means(compared, {})
        measured = {(dataset, *place[2:]): mean for place, mean in means.items() if place[1] == method}
        as_run += _compared(
            title, measured, results.best_means(suite, means, own=True), results.comparable_seeds(compared)
        )
    for sentence, other, rows in (
        (PRINTED, "*paper*", as_printed),
        (RUN_HERE.format(titles=_titles(suite, own)), "paper's own, run here", as_run),
    ):
        if rows:
            heads = ["", "configurations", "seeds", "ours", other, "ahead"]
            lines += [sentence, "", *markdown_table(heads, rows, text_columns=len(heads)), ""]
    return ["## Beyond the paper", "", *lines] if lines else []


def _compared(
    title: str, measured: Mapping[Configuration, float], other: Mapping[Configuration, float],
    seeds: Mapping[Configuration, Iterable[int]],
) -> list[list[str]]:  # fmt: skip
    """Return a table row that compares the means of ``measured`` and ``other``, over the configurations that both have.

    The result is a list with this row, or an empty list if they have no common configuration.
    """
    both = [at for at in measured if at in other]
    if not both:
        return []
    means = [f"{statistics.fmean(each[at] for at in both):.1f}" for each in (measured, other)]
    ahead = sum(measured[at] >= other[at] for at in both)
    return [[title, f"{len(both)}", _seeds_text(seeds[at] for at in both), *means, f"{ahead} of {len(both)}"]]


def _titles(suite: MissingBlocksSuite, cells: Iterable[Cell]) -> str:
    return "; ".join(dict.fromkeys(method_entry(suite, cell).title for cell in cells))


def _counts(compared: Iterable[Cell], at: Iterable[Configuration]) -> str:
    """Return a text with the number of the given configurations, and the seeds that each configuration has."""
    seeds = results.comparable_seeds(compared)
    each = [seeds[place] for place in at]
    return f"configurations: {len(each)}, seeds of each: {_seeds_text(each)}"


def _means_table(
    part: Callable[[Configuration], str], measured: Mapping[Configuration, float], papers: Mapping[Configuration, float]
) -> list[str]:
    """Return the lines of a table with a mean for each value of ``part``.

    ``part`` returns one element of a configuration, such as the data set.  There is a row for our means and a row for
    the paper's.
    """
    names = list(dict.fromkeys(part(at) for at in measured))
    rows = []
    for title, means in (("ours", measured), ("*paper*", papers)):
        if means:
            each = [[mean for at, mean in means.items() if part(at) == name] for name in names]
            rows.append([title, *(f"{statistics.fmean(values):z.1f}" if values else "" for values in each)])
    return markdown_table(["", *names], rows, text_columns=len(names) + 1)


def _ratio_body(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> list[str]:
    lines = list[str]()
    for dataset, entry in suite.datasets.items():
        here = [cell for cell in cells if cell["dataset"] == dataset]
        if results.training_pairs(suite, here):
            lines += [f"## {dataset}: {entry.unit}, ratio in %", "", *_ratio_table(suite, dataset, here), ""]
            lines += [f"Ratios are of {_metric_text(entry.metric)}; in the CSV the columns `metric` and `ratio`.", ""]
    lines += [RATIO_LEGEND.format(less=suite.train_missing[0], more=suite.train_missing[-1]), ""]
    return [
        *lines,
        f"Columns in which one of the paper's own methods has the highest ratio: {_leads(suite, cells)}.",
        "",
    ]


def _leads(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> str:
    """Return a text with the number of table columns in which a method of the paper itself has the highest ratio."""
    published = results.published_ratios(suite)
    measured = {
        place: ratio
        for place, ratio in results.comparable_ratios(suite, cells).items()
        if not published or place in published
    }
    same = {place: published[place] for place in measured if place in published}
    counts = ["{} of {}".format(*results.led_columns(suite, of)) for of in (measured, same, published)]
    if not results.led_columns(suite, measured)[1]:
        return f"{counts[2]} in the paper"
    here = f"{counts[0]} where they and others were run"
    return f"{here}; in the paper {counts[1]} with the same methods, {counts[2]} in all" if same else here


def _ratio_table(suite: MissingBlocksSuite, dataset: str, here: Sequence[Cell]) -> list[str]:
    pairs, own, compared = (
        results.training_pairs(suite, here),
        results.ratios(suite, here),
        results.comparable_ratios(suite, here),
    )
    best = {test: max(ratio for (*_, t), ratio in compared.items() if t == test) for *_, test in compared}
    uneven, rows = _seeds_differ(cell for pair in pairs.values() for cell in pair), []
    for method, entry in suite.datasets[dataset].methods.items():
        places = [(dataset, method, test) for test in suite.test_missing]
        if any(place in own for place in places):
            shown = [bold(fixed(own[at], 1), at in compared and compared[at] >= best[at[2]]) if at in own else ""
                     for at in places]  # fmt: skip
            seeds = [_seeds_text(shared_seeds(pairs[at], SCORE) for at in places if at in pairs)] if uneven else []
            rows.append([entry.title, *shown, *seeds])
            if method in suite.published_ratios.get(dataset, {}):
                paper = [fixed(ratio, 1) for ratio in suite.published_ratios[dataset][method]]
                rows.append(["*paper*", *paper, *([""] if uneven else [])])
    heads = ["missing at test", *suite.test_missing, *(["seeds"] if uneven else [])]
    return markdown_table(heads, rows, text_columns=len(heads))


def _ratio_csv(suite: MissingBlocksSuite, cells: Sequence[Cell]) -> str:
    """Return a CSV with a line for each ratio of two scores of a method.

    The score after training with the suite's last missingness mechanism is divided by the score after training with the
    first mechanism. The column ``ratio`` covers the seeds that both trainings share. The column ``ratio_compared``
    covers the seeds that all methods with the same data set and test mechanism share.
    """
    pairs, compared, published = (
        results.training_pairs(suite, cells),
        results.comparable_ratios(suite, cells),
        results.published_ratios(suite),
    )
    names = ["dataset", "method", "test_missing", "metric", "ratio", "seeds", "ratio_compared", "paper_ratio"]
    return csv_text(names, (
        [*at, suite.datasets[at[0]].metric, fixed(ratio, 3), len(shared_seeds(pairs[at], SCORE)),
         fixed(compared.get(at), 3), published.get(at, "")]
        for at, ratio in results.ratios(suite, cells).items()
    ))  # fmt: skip


def plot_scores(suite: MissingBlocksSuite, cells: Sequence[Cell], path: Path) -> None:
    """Draw the metric against the test mechanism, in a panel for each data set and training mechanism.

    If the number of parties varies, two panels are drawn instead: the metric and the time of an epoch, both against the
    number of parties.  If there is only one data set and no time is drawn, all panels share their y scale.
    """
    places = [
        (*place, time) for place in dict.fromkeys((cell["dataset"], cell["missing"]) for cell in cells)
        for time in ((False, True) if len(suite.parties_of(place[0])) > 1 else (False,))
    ]  # fmt: skip
    timed = any(time for *_, time in places)
    one = len({dataset for dataset, *_ in places}) == 1 and not timed
    with panels(len(places), path, across=2 if timed else PANELS_ACROSS, same_y="all" if one else "none") as axes:
        for at, (axis, place) in enumerate(zip(axes, places, strict=True)):
            _score_panel(suite, axis, *place, cells)
            if one and at % PANELS_ACROSS:
                axis.set_ylabel("")


def _score_panel(
    suite: MissingBlocksSuite, axis: Axes, dataset: str, missing: str, time: bool, cells: Sequence[Cell]
) -> None:  # fmt: skip
    entry, several = suite.datasets[dataset], suite.parties_of(dataset)
    by_parties = len(several) > 1
    for place, (method, of) in enumerate(entry.methods.items()):
        here = [cell for cell in cells if cell.matches(dataset=dataset, missing=missing, method=method)]
        if here:
            scores = [cell.mean_spread(SCORE) for cell in here]
            axis.errorbar(
                [cell["parties" if by_parties else "test"] for cell in here],
                [cell.mean("epoch_seconds") for cell in here] if time else [mean for mean, _ in scores],
                None if time else [spread for _, spread in scores],
                label=_label(of.title, method, cells), marker="o", ms=3, capsize=2, color=f"C{place}",
            )  # fmt: skip
    axis.set_title(f"{dataset}, missing in training: {missing}")
    axis.set_xlabel("parties" if by_parties else "missing at test")
    axis.set_ylabel("CPU seconds of an epoch" if time else entry.unit)
    if by_parties:
        axis.set_xscale("log", base=2)
        axis.set_xticks(several, [str(parties) for parties in several])
    if time:
        axis.set_yscale("log")
    axis.tick_params(axis="x", labelsize=7)


def plot_ratios(suite: MissingBlocksSuite, cells: Sequence[Cell], path: Path) -> None:
    """Draw each method's ratio against the test mechanism, in a panel for each data set that has ratios.

    A ratio is the score after training with more missing blocks, in per cent of the score after training with fewer.
    """
    own, pairs = results.ratios(suite, cells), results.training_pairs(suite, cells)
    datasets = [dataset for dataset in suite.datasets if any(place[0] == dataset for place in own)]
    if not datasets:
        return
    less, more = suite.train_missing[0], suite.train_missing[-1]
    with panels(len(datasets), path, size=(6.2, 4.4), across=2) as axes:
        for axis, dataset in zip(axes, datasets, strict=True):
            here = [cell for place, pair in pairs.items() if place[0] == dataset for cell in pair]
            for place, (method, entry) in enumerate(suite.datasets[dataset].methods.items()):
                x = [test for test in suite.test_missing if (dataset, method, test) in own]
                if x:
                    y = [own[dataset, method, test] for test in x]
                    label = _label(entry.title, method, here)
                    axis.plot(x, y, label=label, marker="o", ms=3, color=f"C{place}")
            # Scores at the line are as good as after training with fewer missing blocks.
            axis.axhline(100, color="grey", linewidth=0.8, linestyle="--")
            axis.set_title(f"{dataset}, trained under {more} over trained under {less}")
            axis.set_xlabel("missing at test")
            axis.set_ylabel("ratio, %")
            axis.tick_params(axis="x", labelsize=7)


def _label(title: str, method: str, cells: Sequence[Cell]) -> str:
    """Return a method's name for the legend, with the method's seeds if the methods differ in their seeds."""
    here = [cell for cell in cells if cell["method"] == method]
    return f"{title}; seeds: {_seeds_text(cell.seeds(SCORE) for cell in here)}" if _seeds_differ(cells) else title
