"""The page of a suite: tables in Markdown, the numbers of the tables as CSV, and a figure."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from anyparty.core.figure_panels import PanelFigure
from anyparty.experiments.results import Cell, MeanSpread


@dataclass(frozen=True, kw_only=True)
class SuitePage:
    """The page of a suite: its results beside the paper's.

    Attributes:
        cells: the aggregated runs.
        markdown: the page with the tables.
        csv: the numbers of the tables, one line for each cell.
        figure: function that returns the figure as data.

    """

    cells: Sequence[Cell]
    markdown: str
    csv: str
    figure: Callable[[], PanelFigure]

    def plot(self, path: Path) -> None:
        """Draw the figure and write it to ``path`` as PNG and SVG, if there are results."""
        if self.cells:
            self.figure().write(path)


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number of a table.

    Attributes:
        mean, spread: our mean and standard deviation; no text is shown for a mean that is NaN.
        seeds: the seeds of the mean.
        paper: the paper's mean and standard deviation; ``None`` if the paper has no number.
        compared: the value that is compared within the column, for the best to be bold; NaN if it is not compared.
        mark: text after the number.

    """

    mean: float
    spread: float = math.nan
    seeds: Sequence[int] = ()
    paper: MeanSpread | None = None
    compared: float = math.nan
    mark: str = ""


def score_table(
    heads: Sequence[str], rows: Mapping[str, Sequence[Score | None]], *,
    more: Mapping[str, Mapping[str, str]] | None = None, text_columns: int | None = None,
) -> list[str]:  # fmt: skip
    """Return the lines of a table with a row for each title that has a score; the paper's numbers are below it.

    The best number of each column is bold. If numbers differ in their seeds, a column gives the seeds of each row.

    Args:
        heads: the heading of the titles, and of each column.
        rows: the scores of each title, one for each column; ``None`` leaves a cell empty.
        more: for the heading of each further column, the text of each title.
        text_columns: number of columns that are aligned left; by default all.

    """
    measured = {title: [score for score in row if score and not math.isnan(score.mean)] for title, row in rows.items()}
    best = [max((score.compared for score in column if score and not math.isnan(score.compared)), default=math.nan)
            for column in zip(*rows.values(), strict=True)]  # fmt: skip
    uneven, lines = len({frozenset(score.seeds) for row in measured.values() for score in row}) > 1, list[list[str]]()
    for title, row in rows.items():
        if not measured[title]:
            continue
        lines.append([
            title, *(_shown(score, most) for score, most in zip(row, best, strict=True)),
            *([seeds_text(score.seeds for score in measured[title])] if uneven else []),
            *(texts[title] for texts in (more or {}).values()),
        ])  # fmt: skip
        if any(score and score.paper for score in row):
            paper = [format_spread(*score.paper) if score and score.paper else "" for score in row]
            lines.append(["*paper*", *paper, *[""] * (uneven + len(more or {}))])
    heads = [*heads, *(["seeds"] if uneven else []), *(more or {})]
    return markdown_table(heads, lines, text_columns=len(heads) if text_columns is None else text_columns)


def _shown(score: Score | None, best: float) -> str:
    if score is None or math.isnan(score.mean):
        return ""
    return bold(format_spread(score.mean, score.spread), score.compared >= best) + score.mark


def seeds_text(each: Iterable[Iterable[int]]) -> str:
    """Return a text with the fewest and most seeds that a cell has, and in brackets the seeds of all cells.

    >>> seeds_text([[0, 1, 2, 4], [0]])
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


def format_spread(mean: float, spread: float = math.nan, *, digits: int = 1) -> str:
    """Return the text "mean ± spread", or only the mean if the spread is NaN."""
    return f"{mean:,.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:,.{digits}f}")


def bold(text: str, condition: bool = True) -> str:
    """Return a text as Markdown: bold if ``condition`` is true, else unchanged."""
    return f"**{text}**" if condition else text
