"""The demo: three parties' tables with gaps, every method trained on them, one table and one plot.

    from anyparty import demo
    study = demo.run("anyparty-demo", seeds=5)

Learning rate, widths and epochs are the same for all methods and were chosen on validation rows alone, by the mean
validation log-loss over the six methods: see ``anyparty.demo.choose``.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from anyparty import config
from anyparty.demo import data, show
from anyparty.demo.study import Score, Study, compare, title
from anyparty.methods.table import SPLIT
from anyparty.run.federation import Federation


def run(folder: Path | str, *, seeds: int = 5, jobs: int | None = None, console: Console | None = None) -> Study:
    """Write the demo's files into ``folder``, train all methods, show and keep the table and the plot.

    Args:
        folder: made if it is not there; what the demo did not write is never written over.
        seeds: how many each method is trained with.
        jobs: how many processes train at once; by default two, if the machine has two cores.
        console: where it shows; by default nowhere.

    Raises:
        ConfigError: the folder holds something else, or files that were changed since the demo wrote them.
    """
    folder, console = Path(folder), console or Console(quiet=True)
    data.write(folder)
    settings = config.load(folder / "federation.toml")
    federation = Federation.from_config(settings)
    console.print(Text(f"Three parties' tables are in {folder}.  Who has which rows:\n"), soft_wrap=True)
    console.print(federation.overlap.render())
    scores = _compared(settings, seeds, jobs or min(2, os.cpu_count() or 1), console)
    study = Study(tuple(scores), data.tests()[data.LEAD].height)
    results = {
        "accuracy.csv": study.frame().write_csv().encode(),
        "accuracy.png": show.plot(study, "png"),
        "accuracy.svg": show.plot(study, "svg"),
    }
    data.keep(folder, results)
    console.print()
    console.print(show.table(study))
    end = (
        f"\nThe plot is {folder / 'accuracy.png'} (and .svg), each seed's numbers are in accuracy.csv.\n"
        f"Now change {folder / 'federation.toml'} as you like, and: anyparty train {folder / 'federation.toml'}"
    )
    console.print(Text(end), soft_wrap=True)
    return study


def _compared(settings: config.Config, seeds: int, jobs: int, console: Console) -> list[Score]:
    """Run the comparison behind a progress bar."""
    columns = (TextColumn("training {task.description:<13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    scores: list[Score] = []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=seeds * len(SPLIT))
        for each in compare(settings, seeds, jobs):
            scores += each
            bar.update(task, advance=1, description=title(each[0].method))
    return scores
