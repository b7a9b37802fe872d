"""The demo: six methods on handwritten digits. Each of four parties has one quadrant of most of the images.

    from anyparty.cli import demo
    comparison = demo.run("anyparty-demo", seeds=5)

The results are one table and one plot.  ``anyparty.compare`` trains the methods.  A seed determines the test rows, the
missing rows, the initial weights and the batches, which are equal for all methods.  The accuracy with 2 of the 4
parties is the mean over the six pairs of parties.

The learning rate, the widths of the networks and the number of epochs are equal for all methods.  They were chosen on
validation rows alone, by the mean validation log-loss over the six methods; ``benchmarks.demo_settings`` repeats this
choice.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.cli import demo_data
from anyparty.core import figure_style as style
from anyparty.experiments.compare import compare
from anyparty.experiments.comparison import Comparison
from anyparty.methods.method_registry import SPLIT, method

NO_ANSWER = "no answer"
COLOURS = {"light": ("#1f2328", "#6e7781", "#d8dee4", "#ffffff"), "dark": ("#e6edf3", "#9198a1", "#3d444d", "#0d1117")}
LINES = {  # a colour, which is readable on white and on black, and a marker for each method
    "Local": ("#8c959f", "v"), "Standard VFL": ("#bc4c00", "X"), "Ensemble": ("#bf8700", "s"),
    "Combinatorial": ("#8250df", "^"), "PlugVFL": ("#1a7f37", "D"), "LASER-VFL": ("#0969da", "o"),
}  # fmt: skip


def run(folder: Path | str, *, seeds: int = 5, jobs: int | None = None, console: Console | None = None) -> Comparison:
    """Write the demo's files into ``folder``, compare the methods, and show and save the table and the plot.

    Runs that an earlier call with the same folder finished are not repeated.

    Args:
        folder: the folder, which is created if needed; files that the demo did not write are never overwritten.
        seeds: number of seeds of each method.
        jobs: number of parallel processes; by default two, if the machine has two cores.
        console: where to print; by default nowhere.

    Raises:
        ConfigError: the folder has other files, or files that were changed since the demo wrote them.
    """
    folder, console = Path(folder).expanduser(), console or Console(quiet=True)
    demo_data.write(folder)
    console.print(Text(INTRODUCTION), soft_wrap=True)
    comparison = compare_methods(folder / "comparison", seeds, jobs or min(2, os.cpu_count() or 1), console)
    demo_data.write_files(folder, result_files(comparison))
    console.print()
    console.print(render_table(comparison))
    console.print(Text(caption(comparison)), "")
    plots = f"{folder}/accuracy.svg and accuracy-dark.svg"
    for line in (
        f"You saw: {' '.join(verdicts(comparison))}",
        f"Files:   {plots} (plot), accuracy.csv (each seed), and four parties' tables with gaps",
        f"Next:    anyparty train {folder}/federation.toml    (or your own tables: anyparty init bank.csv shop.csv)",
    ):
        console.print(Text(line), soft_wrap=True)
    return comparison


INTRODUCTION = (
    "1,797 handwritten digits, each cut into four quadrants. Each of four parties has one quadrant. In training, each\n"
    "quadrant of each image is missing with probability 1/2. In prediction, up to three parties are away.\n"
)


def compare_methods(folder: Path | None, seeds: int, jobs: int, console: Console | None = None) -> Comparison:
    """Train and score all methods with the settings in ``demo_data.SETTINGS``."""
    settings = config.from_values(tomllib.loads(demo_data.SETTINGS), source="demo", folder=Path())
    federation = Federation.from_config(settings, demo_data.whole_tables())
    parameters = {"embedding": settings.method.parameters["embedding"]}
    methods = {method(name).can.title: name for name in SPLIT}
    return compare(
        federation, methods, seeds=seeds, missing=demo_data.ABSENT, parameters=parameters, folder=folder, jobs=jobs,
        console=console, test=demo_data.HELD_OUT,
    )  # fmt: skip


def result_files(comparison: Comparison) -> dict[str, bytes]:
    """Return the content of the result files by name: the scores of each seed, and a light and a dark plot."""
    return {
        "accuracy.csv": comparison.frame().write_csv().encode(),
        "accuracy.png": plot(comparison, "png"),
        "accuracy.svg": plot(comparison, "svg"),
        "accuracy-dark.svg": plot(comparison, "svg", "dark"),
    }


# Table of results


def scores(comparison: Comparison) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the mean and standard deviation of the accuracy in percent, by method and number of present parties.

    Numbers of parties with which a method cannot predict are left out. With one seed, the deviation is NaN.
    """
    rows = comparison.frame(by="present").filter(pl.col("coverage") > 0).iter_rows(named=True)
    return {
        (row["method"], row["present"]): (
            100 * row["mean"],
            math.nan if row["deviation"] is None else 100 * row["deviation"],
        )
        for row in rows
    }


def counts(comparison: Comparison) -> list[int]:
    """Return the different numbers of present parties in a comparison, in descending order."""
    found: Sequence[int] = comparison.frame()["present"].drop_nulls().unique().to_list()
    return sorted(found, reverse=True)


def render_table(comparison: Comparison) -> Table:
    """Return a table with a row for each method and a column for each number of parties; the best scores are bold."""
    found, present = scores(comparison), counts(comparison)
    table = Table("method", title="Test accuracy, %", title_justify="left")
    for n in present:
        table.add_column(absent_count(n, len(present)), justify="right")
    first = firsts(comparison)
    for name in comparison.methods:
        cells = [(found.get((name, n)), n) for n in present]
        texts = [Text(NO_ANSWER, "dim") if score is None else Text(_percent(*score), "bold" * (n in first[name]))
                 for score, n in cells]  # fmt: skip
        table.add_row(name, *texts)
    return table


def absent_count(present: int, parties: int) -> str:
    """Return the heading of the table's column for ``present`` of ``parties`` parties.

    >>> absent_count(4, 4), absent_count(2, 4)
    ('all 4 present', '2 away')
    """
    return f"all {parties} present" if present == parties else f"{parties - present} away"


def _percent(mean: float, deviation: float) -> str:
    return f"{mean:.1f}" + ("" if math.isnan(deviation) else f" ± {deviation:.1f}")


def caption(comparison: Comparison) -> str:
    """Return a caption that explains the numbers of the table."""
    many = len(comparison.seeds)
    spread = f"Mean ± standard deviation over {many} seeds" if many > 1 else "One seed"
    rows = comparison.records[0]["rows"]["test"]
    return (
        f"{spread}; a seed draws the {rows} test images and the gaps, equal for all methods. Learning rate, widths "
        f"and epochs are equal for all and were chosen on validation rows. Level: the 95 % interval of the "
        f"difference includes 0. Local answers from one party."
    )


def firsts(comparison: Comparison) -> dict[str, list[int]]:
    """Return, for each method, the numbers of present parties with which it has the highest mean accuracy."""
    found = scores(comparison)
    best = {n: max(mean for (_, count), (mean, _) in found.items() if count == n) for n in counts(comparison)}
    return {name: [n for n in best if (name, n) in found and found[name, n][0] == best[n]]
            for name in comparison.methods}  # fmt: skip


def leader(comparison: Comparison) -> str:
    """Return the method that has the highest mean accuracy in the most columns of the table."""
    wins = firsts(comparison)
    return max(wins, key=lambda name: len(wins[name]))


def verdicts(comparison: Comparison) -> Iterator[str]:
    """Yield sentences about the comparison: its best method, methods with equal scores, methods that cannot predict.

    Two methods count as equal if the 95 % interval of their paired difference includes 0.
    """
    found, present, best = scores(comparison), counts(comparison), leader(comparison)
    yield f"{best} has the highest mean with {_columns(firsts(comparison)[best], present)}."
    level: dict[int, list[str]] = {n: [] for n in present}
    if len(comparison.seeds) > 1:
        for row in comparison.paired(best, by="present").iter_rows(named=True):
            if (row["method"], row["present"]) in found and row["high"] >= 0:
                level[row["present"]].append(row["method"])
    for names in dict.fromkeys(tuple(each) for each in level.values() if each):
        where = _columns([n for n in present if tuple(level[n]) == names], present)
        yield f"{_and(names)} {'is' if len(names) == 1 else 'are'} level with it with {where}."
    silent = [name for name in comparison.methods if any((name, n) not in found for n in present)]
    if silent:
        yield f"{_and(silent)} cannot answer if a party is away."


def _columns(which: Sequence[int], present: Sequence[int]) -> str:
    return _and([absent_count(n, len(present)) for n in which])


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# Plot of results


def plot(comparison: Comparison, kind: str, theme: str = "light") -> bytes:
    """Draw the accuracies of all methods, and return the content of the image file.

    Args:
        comparison: the scores.
        kind: "png" or "svg".
        theme: "light" or "dark".
    """
    ink, muted, faint, paper = COLOURS[theme]
    own = {"text.color": ink, "axes.titlecolor": ink, "axes.labelcolor": muted, "xtick.labelcolor": muted,
           "ytick.labelcolor": muted, "axes.edgecolor": faint, "grid.color": faint, "svg.fonttype": "path"}  # fmt: skip
    with style.styled(), rc_context(own):  # type: ignore[arg-type]
        figure = Figure(figsize=(style.WIDTH, 3.8), layout="constrained")
        draw(figure.subplots(), comparison, muted)
        figure.legend(loc="outside lower center", ncols=6, columnspacing=1.2, handletextpad=0.4)
        file = BytesIO()
        metadata = {"png": {"Software": None}, "svg": {"Date": None}}[kind]
        figure.savefig(file, format=kind, dpi=style.DPI, bbox_inches="tight", facecolor=paper, metadata=metadata)
    return file.getvalue()


def draw(axes: Axes, comparison: Comparison, muted: str) -> None:
    """Draw a line for each method; a cross at the bottom marks numbers of parties with which it cannot predict."""
    found, present, best = scores(comparison), counts(comparison), leader(comparison)
    floor = min(mean for mean, _ in found.values()) - 9
    for m, name in enumerate(comparison.methods):
        shift, points = (m - (len(comparison.methods) - 1) / 2) * 0.04, _points(found, name, present)
        colour, marker = LINES.get(name, (f"C{m}", "o"))
        first = name == best
        axes.errorbar(
            [place + shift for place in points], [mean for mean, _ in points.values()],
            [deviation for _, deviation in points.values()], fmt=f"{marker}-", color=colour, capsize=2.5,
            linewidth=2.6 if first else 1.2, markersize=7 if first else 5, label=name, zorder=3 if first else 2,
        )  # fmt: skip
        silent = [place for place in range(len(present)) if place not in points]
        axes.plot(silent, [floor] * len(silent), "x", color=colour, markersize=7, markeredgewidth=2)
        if silent:
            axes.annotate(f"{name}: no answer", (silent[0], floor), xytext=(9, 0), textcoords="offset points",
                          va="center", fontsize=8.5, color=muted)  # fmt: skip
    axes.set_xticks(range(len(present)), [absent_count(n, len(present)) for n in present])
    axes.set_ylim(floor - 5, 100)
    axes.set_ylabel("test accuracy, %")
    style.lines(axes, "y")
    axes.set_title("Digits in four quadrants at four parties, half of the quadrants missing in training")


def _points(
    found: Mapping[tuple[str, int], tuple[float, float]], name: str, present: Sequence[int]
) -> dict[int, tuple[float, float]]:
    """Return a method's mean and standard deviation (0 if unknown) at each position of the x axis."""
    known = {place: found[name, n] for place, n in enumerate(present) if (name, n) in found}
    return {place: (mean, 0.0 if math.isnan(deviation) else deviation) for place, (mean, deviation) in known.items()}
