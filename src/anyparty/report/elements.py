"""Elements of a report page (sections, figures, tables) and the format of numbers in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from anyparty.report.shapley import Estimate

MAX_PARTIES_LISTED = 5  # maximum number of parties for which a report lists every set of parties
BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A figure of a report page.

    Attributes:
        name: the name of the figure's file, without a suffix.
        figure: the drawing.
        alternative: the text that a screen reader reads instead of the drawing.
        caption: the text below the drawing.
    """

    name: str
    figure: Figure
    alternative: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of a report page.

    Attributes:
        headers: the headings of the columns.
        rows: the cells of each row, as text.
        text_columns: positions of columns that hold text; other columns hold numbers and are right-aligned.
        caption: the text above the table.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: frozenset[int] = frozenset({0})
    caption: str = ""

    def to_terminal(self, title: str | None = None) -> Table:
        """Return the table for a terminal, with ``title`` above it."""
        table = Table(title=title and Text(title), title_justify="left")
        for place, header in enumerate(self.headers):
            table.add_column(Text(header), justify="left" if place in self.text_columns else "right")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report page.

    Attributes:
        id: the section's name in links.
        title: the section's heading.
        text: paragraphs.
        figures, tables: figures and tables, which are shown after the text.
        code: the run's settings in TOML, shown as code.
        missing: the reason why some content of the section is absent.
        beside: whether figures and tables stand side by side if the window is wide enough.
        details: sections inside this one that are folded until the reader opens them.
    """

    id: str
    title: str
    text: Sequence[str] = ()
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    code: str = ""
    missing: str = ""
    beside: bool = False
    details: Sequence[Section] = ()

    def all_figures(self) -> list[PageFigure]:
        """Return the figures of the section and of the folded sections in it."""
        return [*self.figures, *(figure for each in self.details for figure in each.all_figures())]


def format_number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Format a number without negative zero, or a dash for ``None`` and NaN.

    >>> format_number(0.8125), format_number(float("nan")), format_number(1234.5, 0)
    ('0.812', '–', '1,234')
    >>> format_number(-0.0004), format_number(-0.0004, sign=True)
    ('0.000', '+0.000')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{value:+z,.{digits}f}" if sign else f"{value:z,.{digits}f}"


def format_estimate(estimate: Estimate, *, sign: bool = False, digits: int = 3) -> str:
    """Format a value, followed by its interval unless a limit of the interval is NaN.

    >>> format_estimate(Estimate(value=0.5, low=0.4, high=0.6))
    '0.500 (0.400 to 0.600)'
    >>> format_estimate(Estimate(value=-0.5, low=float("nan"), high=0.0), sign=True)
    '-0.500'
    >>> format_estimate(Estimate(value=-0.0001, low=-0.0004, high=0.0004))
    '0.000 (0.000 to 0.000)'
    """
    value = format_number(estimate.value, digits, sign=sign)
    if any(map(math.isnan, (estimate.value, estimate.low, estimate.high))):
        return value
    return f"{value} ({format_number(estimate.low, digits)} to {format_number(estimate.high, digits)})"


def decimal_places(metric: str, value: float) -> int:
    """Return the number of decimals to show for scores of ``metric`` that are about as large as ``value``.

    RMSE and MAE, which have the label's unit, get four significant digits.  Other metrics get three decimals.

    >>> decimal_places("accuracy", 0.5), decimal_places("rmse", 0.5)
    (3, 4)
    >>> decimal_places("rmse", 4.3e-5), decimal_places("mae", 51234.0)
    (8, 0)
    """
    if metric not in {"rmse", "mae"} or not math.isfinite(value) or value == 0:
        return 3
    return max(0, 3 - math.floor(math.log10(abs(value))))


def format_score(metric: str, value: float | None) -> str:
    """Format the value of a metric, or a dash for ``None`` and NaN.

    >>> format_score("accuracy", 0.5), format_score("rmse", 4.3e-5), format_score("f1", None)
    ('0.500', '0.00004300', '–')
    """
    return format_number(value, decimal_places(metric, value or 0.0))


def format_bytes(size: float) -> str:
    """Format a number of bytes in powers of a thousand.

    >>> format_bytes(0), format_bytes(999), format_bytes(1_234_567)
    ('0 bytes', '999 bytes', '1.2 MB')
    """
    unit = 0
    while size >= 999.5 and unit < len(BYTE_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:,.0f} {BYTE_UNITS[unit]}" if unit == 0 or size >= 99.95 else f"{size:.1f} {BYTE_UNITS[unit]}"
