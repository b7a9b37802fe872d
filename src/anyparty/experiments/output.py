"""Code that all kinds of suites share: aggregate runs into table cells, and write pages, tables, CSV and figures."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyparty.experiments.suite import Records, Suite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MeanSpread = tuple[float, float]
"""The mean and the standard deviation (divisor n - 1) of n values; the deviation of one value is NaN."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a suite's tables: the results of one method in one condition, with one run for each seed.

    Attributes:
        facts: values that are equal for all runs of the cell: data set, method, condition, the paper's numbers.
        measures: for each measure, such as "score", a mapping from the seed of a run to the value.

    """

    facts: Mapping[str, Any]
    measures: Mapping[str, Mapping[int, float]]

    def __getitem__(self, name: str) -> Any:
        """Return the cell's fact with this name."""
        return self.facts[name]

    def matches(self, **facts: Any) -> bool:
        """Return True if the cell has all given facts."""
        return all(self.facts[name] == value for name, value in facts.items())

    def seeds(self, measure: str) -> list[int]:
        """Return the seeds of this cell's runs that have a value of one measure; ``measure`` is its name."""
        return list(self.measures[measure])

    def mean(self, measure: str, seeds: Iterable[int] | None = None) -> float:
        """Return the mean of one measure over the runs with the given seeds, by default over all runs of the cell.

        The mean is NaN if there is no run.

        ``statistics.fmean`` sums exactly, which matters because the published CSV files have all digits.
        """
        values = self.measures[measure]
        chosen = list(values.values()) if seeds is None else [values[seed] for seed in seeds]
        return statistics.fmean(chosen) if chosen else math.nan

    def mean_spread(self, measure: str) -> MeanSpread:
        """Return the mean and the standard deviation of one measure over all runs of this cell."""
        return mean_spread(list(self.measures[measure].values()))


def mean_spread(values: Sequence[float]) -> MeanSpread:
    """Return the mean and the standard deviation (divisor n - 1) of ``values``.

    Both are NaN if there is no value.  The deviation of one value is NaN, too.
    """
    return (
        statistics.fmean(values) if values else math.nan,
        statistics.stdev(values) if len(values) > 1 else math.nan,
    )


def by_condition(records: Records, names: Sequence[str]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Group the records by some fields of their runs; the keys of the result are tuples of the fields' values."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records.values():
        groups.setdefault(tuple(record["run"][name] for name in names), []).append(record)
    return groups


def by_seed(values: Iterable[tuple[Mapping[str, Any], float]]) -> dict[int, float]:
    """Convert pairs of a run's record and a value to a dict from the run's seed to the value."""
    return {int(record["run"]["seed"]): value for record, value in values}


def shared_seeds(cells: Iterable[Cell], measure: str) -> list[int]:
    """Return the seeds for which every cell in ``cells`` has a value of one measure; ``measure`` is its name.

    A seed determines rows, labels and masks, so only results with the same seed can be compared.
    """
    each = [set(cell.seeds(measure)) for cell in cells]
    return sorted(set.intersection(*each)) if each else []


PANELS_ACROSS = 3  # maximum number of panels side by side; narrower panels would be too small to read
LETTER, HANDLE = 0.075, 0.6  # width of a letter, and of the line before a name, in a legend, in inches


@dataclass(frozen=True, kw_only=True)
class SuitePage:
    """The page of a suite: its results beside the paper's.

    Attributes:
        cells: the aggregated runs.
        markdown: the page with the tables.
        csv: the numbers of the tables, one line for each cell.
        draw: function that draws the figures and writes them to a path, as PNG and SVG.

    """

    cells: Sequence[Cell]
    markdown: str
    csv: str
    draw: Callable[[Path], object]

    def plot(self, path: Path) -> None:
        """Draw the figures and write them to ``path`` as PNG and SVG, if there are results."""
        if self.cells:
            self.draw(path)


def markdown_page(suite: Suite, cells: Iterable[Cell], body: Iterable[str], run_facts: Mapping[str, str]) -> str:
    """Return a page in Markdown: title, tables, differences from the published experiment, facts about the runs.

    ``body`` has the lines of the tables, and ``run_facts`` has facts on how the page was made, by name.
    """
    shown = {cell["dataset"] for cell in cells}
    of_datasets = [line for name, entry in suite.datasets.items() if name in shown for line in entry.differs]
    lines = [f"# {suite.title}", "", f"{suite.paper}. Suite `{suite.name}`.", "", *body]
    lines += ["Where this differs from the published experiment:", ""]
    lines += [*(f"- {line}" for line in [*suite.differs, *of_datasets]), ""]
    lines += [f"- {name}: {value}" for name, value in run_facts.items()]
    return "\n".join(lines) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> list[str]:
    """Return the lines of a Markdown table; columns after the first ``text_columns`` are aligned right.

    >>> markdown_table(["", "F1"], [["LASER", "91.2"], ["Plug", ""]])
    ['| | F1 |', '|---|---:|', '| LASER | 91.2 |', '| Plug | |']
    """
    align = ["---"] * text_columns + ["---:"] * (len(heads) - text_columns)
    lines = [_line(heads), f"|{'|'.join(align[: len(heads)])}|"]
    return lines + [_line(row) for row in rows]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a CSV file as text: a header with ``names``, then ``rows``; ``None`` and NaN become empty cells."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if isinstance(value, float) and math.isnan(value) else value for value in row])
    return text.getvalue()


def fixed(value: float | None, digits: int) -> str:
    """Return a number with ``digits`` digits after the decimal point; an empty text for ``None`` and NaN."""
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def with_spread(mean: float, spread: float = math.nan, *, digits: int = 1) -> str:
    """Return the text "mean ± spread", or only the mean if the spread is NaN."""
    return f"{mean:,.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:,.{digits}f}")


def bold(text: str, condition: bool = True) -> str:
    """Return a text as Markdown: bold if ``condition`` is true, else unchanged."""
    return f"**{text}**" if condition else text


@contextmanager
def panels(
    number: int,
    path: Path,
    *,
    across: int = PANELS_ACROSS,
    size: tuple[float, float] = (4.2, 2.9),
    same_y: Literal["none", "row", "all"] = "none",
    along: Literal["both", "y"] = "both",
) -> Iterator[list[Axes]]:
    """Yield the axes of a new figure's panels; after the ``with`` body, add a legend and write PNG and SVG.

    The legend is common to all panels. Equal drawings give files with equal bytes.

    Args:
        number: number of panels.
        path: path of the files, without suffix.
        across: greatest number of panels side by side.
        size: width and height of a panel, in inches.
        same_y: which panels share their y scale: no panels, all panels of a row, or all panels.
        along: axes that have grid lines.

    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    from anyparty.core.figure_style import lines, png, styled, svg  # noqa: PLC0415 - imports matplotlib

    across = min(across, number)
    rows = -(-number // across)
    with styled():
        figure = Figure(figsize=(across * size[0], rows * size[1]), layout="constrained")
        axes = list(figure.subplots(rows, across, squeeze=False, sharey=same_y).flat)
        for axis in axes[number:]:
            axis.remove()
        for axis in axes[:number]:
            lines(axis, along)
        yield axes[:number]
        named = {
            name: line for axis in figure.axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if named:
            fit = int(across * size[0] / (LETTER * max(map(len, named)) + HANDLE))
            beside = min(max(fit, 1), len(named))
            # Number of names per row, so that the legend's rows are equally long.
            beside = math.ceil(len(named) / math.ceil(len(named) / beside))
            figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=beside)
    path.with_suffix(".png").write_bytes(png(figure))
    path.with_suffix(".svg").write_bytes(svg(figure))
