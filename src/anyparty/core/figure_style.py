"""The style of figures, and their conversion to PNG files, SVG files and SVG elements of an HTML page.

A figure is drawn in the light palette.  In an HTML page, a variable of the page's style sheet replaces each colour of
the figure.  One drawing therefore follows the reader's light or dark setting, and prints in black on white.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import ScalarFormatter
from numpy.typing import NDArray

from anyparty.core.storage import writing
from anyparty.errors import ConfigError

INK, MUTED, FAINT, PAPER = "#1f2328", "#6e7781", "#d8dee4", "#fffffe"
ACCENT, SOFT = "#0f6fa8", "#bcd9ea"
VARIABLES = {INK: "--ink", MUTED: "--muted", FAINT: "--faint", PAPER: "--paper", ACCENT: "--accent", SOFT: "--soft"}
WIDTH = 7.2  # width of a figure in inches, equal to the width of the text in an HTML page
NARROW = 4.6  # width in inches of a figure beside a table
LONGEST = 22  # the largest number of characters of a name in a figure
DPI = 160
STYLE = {
    "font.size": 9.0, "font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "anyparty",
    "text.color": INK, "axes.labelcolor": MUTED, "axes.edgecolor": FAINT, "axes.titlecolor": INK,
    "axes.titlesize": 9.0, "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlepad": 10.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "axes.facecolor": "none",
    "axes.grid": False, "grid.color": FAINT, "grid.linewidth": 0.6, "xtick.color": FAINT, "ytick.color": FAINT,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "xtick.major.size": 3.0, "ytick.major.size": 0.0,
    "lines.linewidth": 1.6, "legend.frameon": False, "legend.fontsize": 8.5, "figure.facecolor": "none",
    "patch.linewidth": 0.0,
}  # fmt: skip


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style of figures in a ``with`` block, and ignore warnings about characters that the font lacks."""
    with rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def shorten(name: str, most: int = LONGEST) -> str:
    """Shorten a name of more than ``most`` characters to its beginning and its end.

    >>> shorten("department of internal medicine", 16)
    'department…icine'
    """
    end = (most - 1) // 3
    cut = name if len(name) <= most else f"{name[: most - 1 - end].rstrip()}…{name[-end:].lstrip()}"
    return cut.replace("$", r"\$")  # matplotlib reads text between two $ as a formula


def distinct_labels(names: Sequence[str], most: int = LONGEST) -> list[str]:
    """Shorten names; if shortened names are equal, precede each with its position in the list.

    >>> distinct_labels(["bank", "library of the northern city", "library of the southern city"], 16)
    ['bank', '2 library of…city', '3 library of…city']
    """
    cut = [shorten(name, most) for name in names]
    return [f"{k + 1} {name}" if cut.count(name) > 1 else name for k, name in enumerate(cut)]


class ThousandsFormatter(ScalarFormatter):
    """Write the numbers at the ticks of an axis with commas between thousands, as tables do."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick at ``x``."""
        return re.sub(r"(?<![.\d])\d+", lambda digits: f"{int(digits[0]):,}", super().__call__(x, pos))


def lines(axis: Axes, along: str) -> None:
    """Draw faint grid lines behind a plot at the ticks of one axis or both; ``along`` is "x", "y" or "both".

    The numbers at these ticks get commas between thousands, unless the axis has labels of its own.
    """
    axis.grid(visible=True, axis=along)  # type: ignore[arg-type]
    axis.set_axisbelow(True)
    for name, each in (("x", axis.xaxis), ("y", axis.yaxis)):
        if along in {name, "both"} and type(each.get_major_formatter()) is ScalarFormatter:
            each.set_major_formatter(ThousandsFormatter())


def hide_frame(axis: Axes) -> None:
    """Remove the frame of a plot, and the ticks of its x axis."""
    axis.set_xticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)


def draw_cells(axis: Axes, share: NDArray[np.float64], texts: Sequence[Sequence[str]] | None) -> None:
    """Draw a table of coloured cells [rows, columns], with ``texts`` in the cells.

    ``share`` has a number from 0 to 1 for each cell; a greater number gives a stronger colour.
    """
    rows, columns = share.shape
    for r in range(rows):
        for c in range(columns):
            if share[r, c] > 0:
                axis.add_patch(_square(c, r, float(share[r, c])))
            if texts and texts[r][c]:
                axis.text(c, r, texts[r][c], ha="center", va="center", fontsize=7.5,
                          color=PAPER if share[r, c] > 0.55 else INK)  # fmt: skip
    axis.set_xlim(-0.5, columns - 0.5)
    axis.set_ylim(rows - 0.5, -0.5)
    axis.set_aspect("equal")
    for spine in axis.spines.values():
        spine.set_visible(False)


def _square(x: float, y: float, share: float) -> Rectangle:
    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, facecolor=ACCENT, alpha=0.08 + 0.92 * share)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file with a white background."""
    return _bytes_of(figure, "png", {"Software": None})


def svg(figure: Figure) -> bytes:
    """Return a figure as the bytes of an SVG file with a white background."""
    return _bytes_of(figure, "svg", {"Date": None})


def _bytes_of(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    file = BytesIO()
    with styled():
        figure.savefig(file, format=kind, dpi=DPI, bbox_inches="tight", facecolor=PAPER, metadata=metadata)
    return file.getvalue()


FORMATS = {".png": png, ".svg": svg}


def check_figure_file(out: Path) -> None:
    """Check that the name of a figure's file has the suffix .png or .svg, before any work is done.

    Raises:
        ConfigError: the name ends neither in .png nor in .svg.
    """
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {out}: name a file that ends in {' or '.join(FORMATS)}")


def save_figure(figure: Figure, out: Path) -> None:
    """Write a figure to the file ``out``, as PNG or SVG according to the suffix of the file's name.

    Raises:
        ConfigError: the name ends neither in .png nor in .svg.
    """
    check_figure_file(out)
    with writing(out) as unfinished:
        unfinished.write_bytes(FORMATS[out.suffix.lower()](figure))


def inline_svg(drawn: bytes, name: str, description: str) -> str:
    """Convert ``drawn``, the bytes of an SVG file, to an element of an HTML page, and return the element.

    The element has the colours of the page.  The ids in it start with ``name``, so that figures do not share ids.
    ``description`` describes the figure to readers who do not see it.
    """
    text = drawn.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"\bid=\"([^\"]+)\"", rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"xlink:href=\"#([^\"]+)\"", rf'href="#{name}-\1"', text)
    text = re.sub(r"\bfont: (?:(bold|\d+) )?([\d.]+)px [^;\"]*", r"font: \1 \2px var(--sans)", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    head, rest = text[: text.index(">") + 1], text[text.index(">") + 1 :]
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    assert box is not None
    opening = (
        f'<svg class="figure" viewBox="0 0 {box[1]} {box[2]}" style="width:{float(box[1]) * 4 / 3:.0f}px" '
        f'role="img" aria-label="{escape(description)}">'
    )
    return opening + rest.strip()
