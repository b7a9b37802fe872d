"""Show tables as plain text and as HTML for notebooks, and write them to .csv and .parquet files.

A spreadsheet runs a CSV cell as a formula if it begins with one of a few characters (OWASP, "CSV Injection",
https://owasp.org/www-community/attacks/CSV_Injection).  Ids, class names and column names come from untrusted tables.
Text that begins with one of these characters therefore gets a leading single quote.  A cell whose whole text is a
number, such as -5, is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from io import StringIO
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.table import Table

from anyparty.core.declared_types import checked
from anyparty.core.storage import user_path, writing
from anyparty.errors import ConfigError, remark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 110  # the width in characters of a table shown as text
PATIENCE_S = 1.0  # the running step is shown only after this time
_SHOW: ContextVar[Callable[[str], None] | None] = ContextVar("show", default=None)


@contextmanager
def showing_steps(console: Console) -> Iterator[None]:
    """Show the running step (``doing``) on a terminal if the ``with`` block takes longer than a second."""
    if not console.is_terminal or console.quiet:
        yield
        return
    status = console.status("")
    timer = Timer(PATIENCE_S, status.start)
    token = _SHOW.set(status.update)
    timer.start()
    try:
        yield
    finally:
        _SHOW.reset(token)
        timer.cancel()
        timer.join()
        status.stop()


def doing(step: str) -> None:
    """Show the step that begins, such as "reading bank.csv", if ``showing_steps`` is in use."""
    if (show := _SHOW.get()) is not None:
        show(step)


def text_of(*shown: RenderableType) -> str:
    """Return objects of the package rich, such as tables, as plain text.

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
    """Return an HTML element that shows the same text as ``text_of``; a notebook must not wrap the lines of a table."""
    return f'<pre style="line-height:1.2;white-space:pre;overflow-x:auto">{escape(text_of(*shown))}</pre>'


class TextTable(Table):
    """A table that ``print`` shows as text, and a notebook as HTML."""

    def __str__(self) -> str:
        """Return the table as text."""
        return text_of(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML."""
        return html_of(self)


def new_axes() -> Axes:
    """Return the axes of a new matplotlib figure."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the import is slow, and only figures need it

    return plt.subplots(layout="constrained")[1]


def shown_in_notebooks(figure: Figure) -> Figure:
    """Return ``figure`` unchanged, for a notebook to show."""
    return figure


FRAME_KINDS = (".parquet", ".csv")
FORMULA_START = r"^[=+\-@\t\r\n＝＋－＠]"
PLAIN_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@checked()
def write_frame(frame: pl.DataFrame, path: Path | str, *, raw_csv: bool = False) -> None:
    """Write a frame to a .csv or .parquet file atomically.

    In a CSV, ``escape_formulas`` escapes text that a spreadsheet would run, and a warning gives the number of escaped
    cells.  Probabilities, in columns such as ``p(yes)``, have six decimals.  Parquet keeps every cell as it is.

    Args:
        frame: the rows.
        path: the file; its suffix selects the format.
        raw_csv: whether to write text to a CSV without escapes.

    Raises:
        ConfigError: the suffix is neither .csv nor .parquet.
        StorageError: the disk is full, or the folder is not writable.
    """
    path = user_path(path)
    kind = path.suffix.lower()
    if kind not in FRAME_KINDS:
        raise ConfigError(f"{path}: name a file that ends in {' or '.join(FRAME_KINDS)}")
    escaped = 0
    with writing(path) as beside:
        if kind == ".parquet":
            frame.write_parquet(beside)
        else:
            safe, escaped = (frame, 0) if raw_csv else escape_formulas(frame)
            _with_short_probabilities(safe).write_csv(beside)
    if escaped:
        remark(
            f"{path}: {escaped:,} {'cell begins' if escaped == 1 else 'cells begin'} like a formula and got a single "
            f"quote (') in front, so that a spreadsheet does not run it. Such an id no longer equals the table's own: "
            f"write a .parquet file to join, or keep the text with --raw-csv (raw_csv=True in Python)"
        )


def _with_short_probabilities(frame: pl.DataFrame) -> pl.DataFrame:
    columns = [column for column in frame.iter_columns()
               if column.dtype == pl.Float32 and re.fullmatch(r"p\(.*\)", column.name)]  # fmt: skip
    return frame.with_columns(
        pl.Series(column.name, [None if p is None else f"{p:.6f}" for p in column], dtype=pl.String)
        for column in columns
    )


def take_rows(frame: pl.DataFrame, rows: NDArray[np.int64]) -> pl.DataFrame:
    """Return the rows of a data frame at the positions ``rows`` [b].

    Unlike ``frame[rows]``, the function does not use the threads of polars, which do not exist in a forked process.
    """
    return pl.DataFrame({column.name: column.gather(rows) for column in frame.iter_columns()})


def named_ids(id_columns: pl.DataFrame) -> dict[str, pl.Series]:
    """Return the id columns of a result by name; a single column gets the name "id"."""
    columns = id_columns.get_columns()
    return {"id": columns[0].alias("id")} if len(columns) == 1 else {column.name: column for column in columns}


def escape_formulas(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Put a single quote before each text cell and column name that a spreadsheet would run as a formula.

    Returns:
        The escaped frame, and the number of escaped cells and column names. Numbers are unchanged.

    >>> frame, count = escape_formulas(pl.DataFrame({"id": ["=1+1", "-5", "c1"], "@x": [-1.0, 2.0, None]}))
    >>> frame.columns, frame["id"].to_list(), count
    (['id', "'@x"], ["'=1+1", '-5', 'c1'], 2)
    """
    count, columns = 0, []
    for column in frame.iter_columns():
        cells, name = column, column.name
        if column.dtype in (pl.String, pl.Categorical, pl.Enum):
            text = column.cast(pl.String)
            formulas = (text.str.contains(FORMULA_START) & ~text.str.contains(PLAIN_NUMBER)).fill_null(value=False)
            if formulas.any():
                cells, count = text.zip_with(~formulas, "'" + text), count + int(formulas.sum())
        if re.match(FORMULA_START, name) and not re.match(PLAIN_NUMBER, name):
            count += 1
            while (name := f"'{name}") in frame.columns:
                pass
        columns.append(cells.alias(name))
    return pl.DataFrame(columns), count
