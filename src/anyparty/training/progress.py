"""A progress bar for training: loss, metric, rows per second, time left."""

from __future__ import annotations

import math
import time
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from anyparty.alignment.overlap import Overlap
from anyparty.training.callbacks import Callback

OFTEN = 0.1  # minimum seconds between updates, so that fast steps do not wait for the terminal


def progress_console() -> Console:
    """Return the console for progress bars: standard error, or a widget in a notebook.

    In a notebook without ipywidgets, rich would warn and show no bar.  A line at the end of each stage is shown then.
    """
    console = Console(stderr=True)
    if console.is_jupyter:
        try:
            import_module("ipywidgets")
        except ImportError:
            return Console(stderr=True, force_jupyter=False, force_terminal=False, width=console.width)
    return console


class Bar(Callback):
    """A callback that shows one line per stage."""

    def __init__(self, console: Console | None = None) -> None:
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),  # names of parties may contain brackets
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[seen]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console or progress_console(),
        )
        self.task: TaskID | None = None
        self.rows = self.since = 0.0
        self.loss, self.metric = "", ""

    def on_align_progress(self, done: int, total: int) -> None:
        """Show the share of the private alignment that is done, and the time left."""
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task("private alignment", total=total, completed=done, seen="points")
        self.bar.update(self.task, completed=done)

    def on_aligned(self, overlap: Overlap, predicted: str) -> None:  # noqa: ARG002
        """End the line of the alignment."""
        if self.task is not None:
            self.bar.stop()
            self.task = None

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:  # noqa: ARG002
        """Start a line."""
        self.bar.start()
        self.task = self.bar.add_task(stage, total=epochs, completed=first_epoch, seen="")
        self.rows, self.since = 0.0, time.perf_counter()

    def on_batch_end(self, rows: int, loss: float) -> None:
        """Show the loss, at most once every ``OFTEN`` seconds."""
        self.rows += rows
        now = time.perf_counter()
        if now - self.since >= OFTEN and self.task is not None:
            self.loss = f"loss {loss:.4f}" if math.isfinite(loss) else ""
            self.bar.update(self.task, seen=f"{self.loss} {self.metric} {self.rows / (now - self.since):,.0f} rows/s")
            self.rows, self.since = 0.0, now

    def on_party_lost(self, party: str, why: str) -> None:
        """Print the name of the lost party and the reason above the progress line."""
        self.bar.console.print(Text(f"{party} is gone ({why}); the others go on without it", "yellow"), soft_wrap=True)

    def on_party_joined(self, party: str) -> None:
        """Print the name of the returned party above the progress line."""
        self.bar.console.print(Text(f"{party} takes part again", "yellow"), soft_wrap=True)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Count the epoch and show the metric."""
        self.metric = " ".join(f"{name} {value:.4f}" for name, value in record.get("validation", {}).items())
        self.loss = f"loss {record['loss']:.4f}" if "loss" in record else ""
        if self.task is not None:
            self.bar.update(self.task, advance=1, seen=f"{self.loss} {self.metric}")

    def on_stage_end(self, stage: str, reason: str) -> None:
        """Show why the stage ended, and stop updating the line."""
        if self.task is not None:
            self.bar.update(self.task, description=f"{stage}: {reason}")
        self.bar.stop()

    def close(self) -> None:
        """Stop the display, also if the run was interrupted."""
        if self.bar.live.is_started:
            self.bar.stop()
