"""What a section of the page is made of: words, figures, tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from anyparty.report.contributions import Share

MOST_LISTED = 5  # parties, up to which every set of them is listed


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure: ``name`` is its file's, ``caption`` what one should see in it."""

    name: str
    figure: Figure
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table; ``words`` are the columns of words, all others are numbers and stand at the right.

    ``folded`` is what to open where the table is long and says more closely what a figure shows.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    caption: str = ""
    folded: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section: ``lacks`` is why there is less than there could be."""

    id: str
    title: str
    text: Sequence[str] = ()
    drawn: Sequence[Drawn] = ()
    grids: Sequence[Grid] = ()
    code: str = ""
    lacks: str = ""


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Return a number for a table, with no minus before nought; a dash for one that there is not.

    >>> number(0.8125), number(float("nan")), number(1234.5, 0), number(-0.0004), number(-0.0004, sign=True)
    ('0.812', '–', '1,234', '0.000', '+0.000')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{value:+z,.{digits}f}" if sign else f"{value:z,.{digits}f}"


def spread(share: Share, *, sign: bool = False, digits: int = 3) -> str:
    """Return a number with its interval.

    >>> spread(Share(value=0.5, low=0.4, high=0.6)), spread(Share(value=-0.5, low=float("nan"), high=0.0), sign=True)
    ('0.500 (0.400 to 0.600)', '-0.500')
    >>> spread(Share(value=-0.0001, low=-0.0004, high=0.0004))
    '0.000 (0.000 to 0.000)'
    """
    value = number(share.value, digits, sign=sign)
    if any(map(math.isnan, (share.value, share.low, share.high))):
        return value
    return f"{value} ({number(share.low, digits)} to {number(share.high, digits)})"


def decimals(metric: str, value: float) -> int:
    """Return how many decimals show scores about as large as ``value``: three, of a label's own units four digits.

    >>> decimals("accuracy", 0.5), decimals("rmse", 0.5), decimals("rmse", 4.3e-5), decimals("mae", 51234.0)
    (3, 4, 8, 0)
    """
    if metric not in {"rmse", "mae"} or not math.isfinite(value) or value == 0:
        return 3
    return max(0, 3 - math.floor(math.log10(abs(value))))


def scored(metric: str, value: float | None) -> str:
    """Return a metric's value for a table.

    >>> scored("accuracy", 0.5), scored("rmse", 4.3e-5), scored("f1", None)
    ('0.500', '0.00004300', '–')
    """
    return number(value, decimals(metric, value or 0.0))


def named(metric: str) -> str:
    """Return a metric's name in words."""
    known = {"auroc": "AUROC", "f1": "F1", "macro_f1": "macro F1", "log_loss": "log-loss", "rmse": "RMSE", "mae": "MAE"}
    return known.get(metric, metric.replace("_", " "))
