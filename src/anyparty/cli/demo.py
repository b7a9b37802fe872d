"""The demo: three parties' tables with gaps, all split methods trained on them, one table and one plot.

    from anyparty.cli import demo
    study = demo.run("anyparty-demo", seeds=5)

A seed draws the gaps, the validation rows, the first weights and the batches; the test rows are equal for all seeds.
Several draws of gaps are needed, because the ranks of methods change from draw to draw.  With 2 of the 3 parties
present, an accuracy is the mean over the three pairs of parties.  With 1 party present, it is the mean over the three
parties.

Learning rate, widths and epochs are equal for all methods.  They were chosen only on validation rows, by the mean
validation log-loss over the six methods: see ``benchmarks.demo_settings``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
from joblib import Parallel, delayed, parallel_config
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from anyparty import config
from anyparty.api.federation import Federation
from anyparty.api.model import Model
from anyparty.cli import demo_data
from anyparty.config import Config
from anyparty.methods.method_registry import SPLIT, method
from anyparty.report import style
from anyparty.report.style import WIDTH, lines, styled

FORMATS = {"png": style.png, "svg": style.svg}
NO_ANSWER = "–"


@dataclass(frozen=True, kw_only=True)
class DemoScore:
    """A method's test accuracy on answered rows with ``present`` parties present; NaN if no row has an answer."""

    method: str
    seed: int
    present: int
    accuracy: float
    coverage: float


@dataclass(frozen=True)
class DemoStudy:
    """The scores of all methods on ``rows`` test rows."""

    scores: tuple[DemoScore, ...]
    rows: int

    @property
    def counts(self) -> list[int]:
        """The numbers of parties present, most first."""
        return sorted({score.present for score in self.scores}, reverse=True)

    @property
    def seeds(self) -> int:
        """The number of seeds of each method."""
        return len({score.seed for score in self.scores})

    def accuracies(self, name: str, present: int) -> NDArray[np.float64]:
        """Return a method's accuracies, one for each seed; NaN if no row has an answer."""
        return np.array([score.accuracy for score in self.scores if (score.method, score.present) == (name, present)])

    def mean_accuracy(self, name: str, present: int) -> tuple[float, float]:
        """Return the mean and the standard deviation of a method's accuracies."""
        values = self.accuracies(name, present)
        return float(values.mean()), _deviation(values)

    def better_than(self, present: int, name: str = "laser") -> list[tuple[str, float, float]]:
        """Return the methods with a higher mean accuracy than ``name``, with each difference and its standard error.

        The differences are paired by seed, because a seed draws the same gaps for both methods.
        """
        reference = self.accuracies(name, present)
        gaps = {other: self.accuracies(other, present) - reference for other in SPLIT if other != name}
        return [
            (other, float(gap.mean()), _deviation(gap) / math.sqrt(len(gap)))
            for other, gap in gaps.items()
            if gap.mean() > 1e-9
        ]

    def frame(self) -> pl.DataFrame:
        """Return a row for each method, seed and number of parties present."""
        return pl.DataFrame([vars(score) for score in self.scores])


def _deviation(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def run(folder: Path | str, *, seeds: int = 5, jobs: int | None = None, console: Console | None = None) -> DemoStudy:
    """Write the demo's files into ``folder``, train all methods, and show and save the table and the plot.

    Args:
        folder: the folder, which is created if needed; files that the demo did not write are never overwritten.
        seeds: number of seeds of each method.
        jobs: number of parallel processes; by default two, if the machine has two cores.
        console: where to print; by default nowhere.

    Raises:
        ConfigError: the folder has other files, or files that were changed since the demo wrote them.
    """
    folder, console = Path(folder), console or Console(quiet=True)
    demo_data.write(folder)
    settings = config.load(folder / "federation.toml")
    federation = Federation.from_config(settings)
    console.print(Text(f"Three parties' tables are in {folder}.  Rows of each party:\n"), soft_wrap=True)
    console.print(federation.overlap.render())
    scores = _compare_with_progress(settings, seeds, jobs or min(2, os.cpu_count() or 1), console)
    study = DemoStudy(tuple(scores), demo_data.held_out_tables()[demo_data.ACTIVE].height)
    results = {
        "accuracy.csv": study.frame().write_csv().encode(),
        "accuracy.png": plot(study, "png"),
        "accuracy.svg": plot(study, "svg"),
    }
    demo_data.write_files(folder, results)
    console.print()
    console.print(render_table(study))
    end = (
        f"\nThe plot is {folder / 'accuracy.png'} (and .svg), the numbers of each seed are in accuracy.csv.\n"
        f"Change {folder / 'federation.toml'} and train your own: anyparty train {folder / 'federation.toml'}"
    )
    console.print(Text(end), soft_wrap=True)
    return study


def _compare_with_progress(settings: Config, seeds: int, jobs: int, console: Console) -> list[DemoScore]:
    columns = (TextColumn("training {task.description:<13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    scores: list[DemoScore] = []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=seeds * len(SPLIT))
        for each in compare_methods(settings, seeds, jobs):
            scores += each
            bar.update(task, advance=1, description=method_title(each[0].method))
    return scores


# Training


def compare_methods(settings: Config, seeds: int, jobs: int) -> Iterator[list[DemoScore]]:
    """Train every method with every seed in ``jobs`` processes; yield a training's scores when the training ends."""
    work = [delayed(train_and_score)(settings, name, seed) for seed in range(seeds) for name in SPLIT]
    with parallel_config(backend="loky", inner_max_num_threads=1):  # networks are tiny: more threads are slower
        yield from Parallel(n_jobs=jobs, return_as="generator")(work)


def train_and_score(settings: Config, name: str, seed: int) -> list[DemoScore]:
    """Train one method with one seed, and score it with 3, 2 and 1 parties."""
    federation = Federation.from_config(settings, demo_data.training_tables(seed))
    shared = {"embedding": settings.method.parameters["embedding"]}  # not every method has the other parameters
    model = federation.train(name, parameters=shared, seed=seed)
    return [_score(model, name, seed, present) for present in range(len(demo_data.PARTIES), 0, -1)]


def _score(model: Model, name: str, seed: int, present: int) -> DemoScore:
    tables = demo_data.held_out_tables()
    each = [model.evaluate(tables, parties).overall for parties in combinations(tables, present)]
    answered = [scores["accuracy"] for scores in each if scores["coverage"] > 0]
    return DemoScore(
        method=name,
        seed=seed,
        present=present,
        accuracy=sum(answered) / len(answered) if answered else math.nan,
        coverage=sum(scores["coverage"] for scores in each) / len(each),
    )


# Table and plot


def method_title(name: str) -> str:
    """Return a method's name as its paper writes it."""
    return method(name).can.title


def render_table(study: DemoStudy) -> RenderableType:
    """Show a row for each method, a column for each number of parties, and a comparison with LASER-VFL."""
    table = Table("method", title="Test accuracy, %", title_justify="left")
    for present in study.counts:
        table.add_column(_present(present), justify="right")
    for name in SPLIT:
        cells = ((_cell(*study.mean_accuracy(name, n)), not study.better_than(n, name)) for n in study.counts)
        texts = (Text(cell, style="bold" if best and cell != NO_ANSWER else "") for cell, best in cells)
        table.add_row(method_title(name), *texts)
    return Group(table, *map(Text, (caption(study), "", *verdicts(study))))


def caption(study: DemoStudy) -> str:
    """Describe the numbers of the table."""
    each = "each with" if study.seeds > 1 else "with"
    return (
        f"{_statistic(study).capitalize()}, {each} random gaps (the files have those of seed 0), on the same "
        f"{study.rows} test rows; with 2 or 1 present, the mean over the pairs or the parties.  {NO_ANSWER} is no "
        f"answer: Standard VFL needs all parties (the papers count a guess, right half of the time).  Local answers "
        f"from one party: from {demo_data.ACTIVE} if {demo_data.ACTIVE} is present."
    )


def _statistic(study: DemoStudy) -> str:
    return f"mean ± standard deviation over {study.seeds} seeds" if study.seeds > 1 else "one seed"


def _present(count: int) -> str:
    return f"{count} parties present" if count > 1 else "1 party present"


def _cell(mean: float, deviation: float) -> str:
    return NO_ANSWER if math.isnan(mean) else _percent(mean, deviation)


def _percent(mean: float, deviation: float) -> str:
    """Format a share in percent, with its deviation unless that is NaN."""
    return f"{100 * mean:.1f}" + ("" if math.isnan(deviation) else f" ± {100 * deviation:.1f}")


def verdicts(study: DemoStudy) -> list[str]:
    """State for which numbers of parties LASER-VFL is at least as good as every baseline, and the gaps elsewhere."""
    better = {n: study.better_than(n) for n in study.counts}
    level = [str(n) for n, others in better.items() if not others]
    texts = [f"LASER-VFL is at or above every baseline with {' and '.join(level)} present."] if level else []
    for n, others in better.items():
        names = ", ".join(f"{method_title(name)} by {_percent(gap, error)}" for name, gap, error in others)
        what = " (± standard error)" if study.seeds > 1 else ""
        texts += [f"With {n} present LASER-VFL is below {names}{what}."] if others else []
    return texts


def plot(study: DemoStudy, kind: str) -> bytes:
    """Draw the table's accuracies as an image of the kind "png" or "svg"."""
    with styled():
        figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
        axes = figure.subplots()
        for m, name in enumerate(SPLIT):
            _draw_method(axes, study, m, name)
        axes.set_xticks(range(len(study.counts)), [_present(n) for n in study.counts])
        axes.set_ylabel("test accuracy, %")
        lines(axes, "y")
        axes.set_title(f"Breast Cancer Wisconsin, three parties, a third of each one's rows absent\n"
                       f"{_statistic(study)}, the same {study.rows} test rows")  # fmt: skip
        figure.legend(loc="outside lower center", ncols=3)  # below the axes, where no point is
    return FORMATS[kind](figure)


def _draw_method(axes: Axes, study: DemoStudy, m: int, name: str) -> None:
    """Draw the m-th method, shifted beside the others; LASER-VFL is emphasized."""
    shift, laser = (m - (len(SPLIT) - 1) / 2) * 0.07, name == "laser"
    means, deviations = zip(*(study.mean_accuracy(name, n) for n in study.counts), strict=True)
    axes.errorbar(
        [place + shift for place in range(len(means))], [100 * mean for mean in means],
        [100 * each for each in deviations], fmt="D-" if laser else "o-", color="black" if laser else f"C{m}",
        linewidth=1.8 if laser else 0.9, markersize=6, capsize=2.5, label=method_title(name), zorder=3 if laser else 2,
    )  # fmt: skip
