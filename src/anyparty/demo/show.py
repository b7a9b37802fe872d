"""The demo's table and its plot."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anyparty.demo.data import LEAD
from anyparty.demo.study import Study, title
from anyparty.methods.table import SPLIT
from anyparty.report import style
from anyparty.report.style import WIDTH, lines, styled

KINDS = {"png": style.png, "svg": style.svg}
NONE = "–"


def table(study: Study) -> RenderableType:
    """Return one row a method, one column for each number of parties present, and what they say of LASER-VFL."""
    shown = Table("method", title="Test accuracy, %", title_justify="left")
    for present in study.counts:
        shown.add_column(_present(present), justify="right")
    for name in SPLIT:
        cells = ((_cell(*study.of(name, n)), not study.above(n, name)) for n in study.counts)
        shown.add_row(title(name), *(Text(cell, style="bold" if best and cell != NONE else "") for cell, best in cells))
    return Group(shown, *map(Text, (caption(study), "", *verdicts(study))))


def caption(study: Study) -> str:
    """Say what the numbers are."""
    each = "each with" if study.seeds > 1 else "with"
    return (
        f"{_of(study).capitalize()}, {each} gaps of its own (the files have those of seed 0), on the same "
        f"{study.rows} test rows; with 2 or 1 present, the mean over who they are.  {NONE} is no answer: "
        f"Standard VFL needs all parties (the papers count a guess, right half of the time).  Local answers from one "
        f"party: from {LEAD} where {LEAD} is there."
    )


def _of(study: Study) -> str:
    return f"mean ± standard deviation over {study.seeds} seeds" if study.seeds > 1 else "one seed"


def _present(count: int) -> str:
    return f"{count} parties present" if count > 1 else "1 party present"


def _cell(mean: float, spread: float) -> str:
    return NONE if math.isnan(mean) else _shown(mean, spread)


def _shown(mean: float, spread: float) -> str:
    """Return points, with their spread where there is one: a single seed has none."""
    return f"{100 * mean:.1f}" + ("" if math.isnan(spread) else f" ± {100 * spread:.1f}")


def verdicts(study: Study) -> list[str]:
    """Say whether LASER-VFL is at or above every baseline, and where not, with the standard error of the difference."""
    worse = {n: study.above(n) for n in study.counts}
    level = [str(n) for n, others in worse.items() if not others]
    said = [f"LASER-VFL is at or above every baseline with {' and '.join(level)} present."] if level else []
    for n, others in worse.items():
        names = ", ".join(f"{title(name)} by {_shown(gap, error)}" for name, gap, error in others)
        what = " (± standard error)" if study.seeds > 1 else ""
        said += [f"With {n} present LASER-VFL is below {names}{what}."] if others else []
    return said


def plot(study: Study, kind: str) -> bytes:
    """Return the table as a picture: "png" or "svg"."""
    with styled():
        figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        axes = figure.subplots()
        for m, name in enumerate(SPLIT):
            _curve(axes, study, m, name)
        axes.set_xticks(range(len(study.counts)), [_present(n) for n in study.counts])
        axes.set_ylabel("test accuracy, %")
        lines(axes, "y")
        axes.set_title(f"Breast Cancer Wisconsin, three parties, a third of each one's rows absent\n"
                       f"{_of(study)}, the same {study.rows} test rows")  # fmt: skip
        figure.legend(loc="outside lower center", ncols=3)  # beneath, where no point is
    return KINDS[kind](figure)


def _curve(axes: Axes, study: Study, m: int, name: str) -> None:
    """Draw one method, the m-th, beside the others; LASER-VFL stands out."""
    shift, laser = (m - (len(SPLIT) - 1) / 2) * 0.07, name == "laser"
    means, spreads = zip(*(study.of(name, n) for n in study.counts), strict=True)
    axes.errorbar(
        [place + shift for place in range(len(means))], [100 * mean for mean in means],
        [100 * spread for spread in spreads], fmt="D-" if laser else "o-", color="black" if laser else f"C{m}",
        linewidth=1.8 if laser else 0.9, markersize=6, capsize=2.5, label=title(name), zorder=3 if laser else 2,
    )  # fmt: skip
