"""A suite's figure: panels, one legend beneath all of them, as PNG and SVG; from the same records the same bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 3  # panels side by side: more are too small to read
LETTER, LINE = 0.075, 0.6  # inches of a letter in the legend, and of what stands before a name


@contextmanager
def panels(
    number: int,
    path: Path,
    *,
    across: int = MOST,
    size: tuple[float, float] = (4.2, 2.9),
    same_y: Literal["none", "row", "all"] = "none",
    along: Literal["both", "y"] = "both",
) -> Iterator[list[Axes]]:
    """Give as many axes to draw in, then add the legend of what is named in any of them and write the files.

    Args:
        number: of panels.
        path: where the files go; their suffix is ours.
        across: panels side by side.
        size: of a panel, in inches.
        along: the axes that lines to read values by stand on.
        same_y: whether ``"all"`` panels have one scale, those of a ``"row"``, or each its own.

    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    from anyparty.report.style import lines, png, styled, svg  # noqa: PLC0415 - as it imports that

    across = min(across, number)
    rows = -(-number // across)
    with styled():
        figure = Figure(figsize=(across * size[0], rows * size[1]), layout="constrained")
        grid = figure.subplots(rows, across, squeeze=False, sharey=same_y)
        axes = list(grid.flat)
        for axis in axes[number:]:
            axis.remove()
        for axis in axes[:number]:
            lines(axis, along)
        yield axes[:number]
        named = {
            name: line for axis in figure.axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if named:
            fit = int(across * size[0] / (LETTER * max(map(len, named)) + LINE))
            beside = min(max(fit, 1), len(named))
            beside = math.ceil(len(named) / math.ceil(len(named) / beside))  # rows of the legend as long as one another
            figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=beside)
    path.with_suffix(".png").write_bytes(png(figure))
    path.with_suffix(".svg").write_bytes(svg(figure))
