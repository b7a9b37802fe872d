"""Show tables for the terminal as plain text and as HTML for notebooks."""

from __future__ import annotations

from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 110  # the width of text in characters


def text_of(*shown: RenderableType) -> str:
    """Render for a terminal without colours, and return the text.

    >>> table = Table("party", "rows")
    >>> table.add_row("bank", "3")
    >>> print(text_of(table).splitlines()[3])
    │ bank  │ 3    │
    """
    file = StringIO()
    console = Console(file=file, width=COLUMNS, color_system=None, force_jupyter=False, emoji=False, markup=False)
    for each in shown:
        console.print(each)
    return file.getvalue()


def html_of(*shown: RenderableType) -> str:
    """Return an HTML element that shows the same text as ``text_of``."""
    return f'<pre style="line-height:1.2;overflow-x:auto">{escape(text_of(*shown))}</pre>'


class TextTable(Table):
    """A table that ``print`` shows as text, and a notebook as HTML."""

    def __str__(self) -> str:
        """Return the table as text."""
        return text_of(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        return html_of(self)


def new_axes() -> Axes:
    """Return the axes of a new figure."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - slow, and needed for figures alone

    return plt.subplots(layout="constrained")[1]


def shown_in_notebooks(figure: Figure) -> Figure:
    """Return the figure after importing pyplot, which tells a notebook how to show figures."""
    return figure
