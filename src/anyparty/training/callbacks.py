"""Callbacks, through which progress bars, trackers, records and user code follow a run.

A run calls these hooks, in this order:

    on_run_begin: with the settings
      on_align_progress: during a private alignment, with the number of computed elliptic-curve points, and the total
      on_aligned: with the overlap and a description of the task
      on_stage_begin: once per stage; most methods have a single stage, "train"
        on_batch_end: after every batch
        on_party_lost, on_party_joined: before on_epoch_end of the epoch in which the active party noticed the change
        on_epoch_end: after every epoch, with its entry in the history
      on_stage_end: with the reason why the stage ended
    on_run_end: with the status and test scores

``Federation.train(watch=...)`` takes a callback.  With parties on their own machines,
``anyparty.deployment.coordinator.train(watch=...)`` makes the same calls at the active party's machine.
There, an epoch is reported up to a second after its end, and batches are not reported.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from anyparty.alignment.overlap import Overlap
from anyparty.errors import ConfigError, Stopped


class Callback:
    """Base class of callbacks: every hook does nothing.

    Hooks are called at the active party.  An exception in a hook ends the run, which is then recorded as failed.

    If all parties are in this process, the run sets ``embedder``, the function that ``embeddings`` calls.
    """

    embedder: Callable[[Sequence[str] | None], dict[str, pl.DataFrame]] | None = None

    def embeddings(self, parties: Sequence[str] | None = None) -> dict[str, pl.DataFrame]:
        """Return each party's embeddings of all rows of its table, with the current weights; for use in a hook.

        Args:
            parties: the names of the parties; by default all parties that compute embeddings.

        Returns:
            For each party, a frame with the columns id, h0, h1, ... as ``Model.embed`` returns it.  If there are no
            validation rows, a passive party may not have finished the last step of the epoch yet.

        Raises:
            ConfigError: one of ``parties`` does not exist, or the parties run on their own machines.

        """
        if self.embedder is None:
            raise ConfigError("embeddings: only a run with all parties in one process shows them, in its hooks after "
                              "on_run_begin; between machines, embeddings stay with their party")  # fmt: skip
        return self.embedder(parties)

    def on_run_begin(self, settings: Mapping[str, Any]) -> None:
        """Handle the start or the resumption of a run; ``settings`` has the groups of the TOML file."""

    def on_align_progress(self, done: int, total: int) -> None:
        """Handle the progress of a private alignment, in elliptic-curve points (several for each id).

        ``done`` points of ``total`` are computed at the active party.
        """

    def on_aligned(self, overlap: Overlap, predicted: str) -> None:
        """Handle the alignment: ``overlap`` counts the rows by set of parties; ``predicted`` describes the task."""

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """Handle the start of a stage with ``rows`` rows per epoch; a resumed stage continues after ``first_epoch``."""

    def on_batch_end(self, rows: int, loss: float) -> None:
        """Handle the end of a batch of ``rows`` rows; ``loss`` is NaN if the active party computed no loss."""

    def on_party_lost(self, party: str, why: str) -> None:
        """Handle the loss of a party for the reason ``why``; the other parties continue without it."""

    def on_party_joined(self, party: str) -> None:
        """Handle the return of a lost party, which takes part from the next epoch."""

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Handle the end of an epoch; ``record`` has its stage, epoch, loss, seconds and validation scores."""

    def on_stage_end(self, stage: str, reason: str) -> None:
        """Handle the end of a stage; ``reason`` says why it ended."""

    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:
        """Handle the end of a run.

        Args:
            status: "done", "stopped" (by Ctrl-C, or because a party's site stopped) or "failed".
            evaluation: test scores as ``Evaluation.to_json``; ``None`` if there are no test rows or the run failed.
            error: the error of a failed run, in a sentence.
        """


@dataclass
class CallbackList(Callback):
    """A callback that calls several callbacks in turn.

    If the record of an epoch lists parties as absent or back, each callback's ``on_party_lost`` and ``on_party_joined``
    are called for these parties before ``on_epoch_end``.
    """

    each: list[Callback]
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Replace each nested list of callbacks by the callbacks in it."""
        self.each = [one for each in self.each for one in (each.each if isinstance(each, CallbackList) else [each])]

    def on_party_lost(self, party: str, why: str) -> None:
        """Report the loss of a party to each callback, unless this loss has already been reported."""
        if party not in self.gone:
            self.gone.add(party)
            for watch in self.each:
                watch.on_party_lost(party, why)

    def on_party_joined(self, party: str) -> None:
        """Report the return of a party to each callback."""
        self.gone.discard(party)
        for watch in self.each:
            watch.on_party_joined(party)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Report the lost and the returned parties to each callback, then the end of the epoch."""
        for party, why in record.get("absent", {}).items():
            self.on_party_lost(party, why)
        for party in record.get("back", ()):
            self.on_party_joined(party)
        for watch in self.each:
            watch.on_epoch_end(record)


def _call_each(hook: str) -> Callable[..., None]:
    def call(self: CallbackList, *values: Any) -> None:
        for watch in self.each:
            getattr(watch, hook)(*values)

    return call


for _hook in (
    "on_run_begin",
    "on_align_progress",
    "on_aligned",
    "on_stage_begin",
    "on_batch_end",
    "on_stage_end",
    "on_run_end",
):
    setattr(CallbackList, _hook, _call_each(_hook))


@dataclass
class Absences(Callback):
    """A callback that counts the epochs in which each party was absent."""

    # The absent parties of each (stage, epoch).
    epochs: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Record the absent parties of an epoch."""
        self.epochs[record["stage"], record["epoch"]] = tuple(record.get("absent", ()))

    def count(self) -> dict[str, int]:
        """Return the number of epochs that each party missed; parties that missed no epoch are left out."""
        return dict(Counter(name for absent in self.epochs.values() for name in absent))


@contextmanager
def reporting(watch: Callback, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Report the start and the end of a run to a callback.

    The body of the ``with`` statement stores the test scores in the yielded dictionary, under "evaluation".
    """
    scores: dict[str, Any] = {"evaluation": None}
    watch.on_run_begin(settings)
    try:
        yield scores
    except BaseException as error:
        watch.on_run_end(status_of(error), None, error_text(error))
        raise
    watch.on_run_end("done", scores["evaluation"], "")


def now() -> str:
    """Return the current time as text for a record: ISO 8601, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def status_of(error: BaseException) -> str:
    """Return the status of a run that ended with an error: "stopped" or "failed"."""
    return "stopped" if isinstance(error, KeyboardInterrupt | Stopped) else "failed"


def error_text(error: BaseException) -> str:
    """Return an error's type and message, only the message for ``Stopped``, or an empty string for Ctrl-C.

    >>> error_text(ValueError("no rows"))
    'ValueError: no rows'
    """
    if isinstance(error, Stopped):
        return str(error)
    return "" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}".rstrip(": ")


OFTEN = 0.1  # minimum time between two updates of the bar, in seconds


def progress_console() -> Console:
    """Return the console for progress bars: standard error, or a widget in a notebook.

    In a notebook without ipywidgets, rich would warn and show no bar.  The console then shows one line at the end of
    each stage instead.
    """
    console = Console(stderr=True)
    if console.is_jupyter:
        try:
            import_module("ipywidgets")
        except ImportError:
            return Console(stderr=True, force_jupyter=False, force_terminal=False, width=console.width)
    return console


class Bar(Callback):
    """A callback that shows a progress bar during each stage, and a sentence with the last scores after it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or progress_console()
        self.bar: Progress | None = None
        self.epochs = self.done = 0
        self.rows = self.since = 0.0
        self.loss, self.metrics = "", list[str]()

    def on_align_progress(self, done: int, total: int) -> None:
        """Show the share of the private alignment that is done, in percent, and the time left."""
        if self.bar is None:
            self._start("private alignment", 100)
        self._update(completed=100 * done / total, seen="%")

    def on_aligned(self, overlap: Overlap, predicted: str) -> None:  # noqa: ARG002
        """End the progress bar of the private alignment."""
        if self.bar is not None:
            self._end("private alignment: done")

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:  # noqa: ARG002
        """Start the progress bar of a stage."""
        self._start(stage, epochs)
        self.epochs, self.done = epochs, first_epoch
        self._update(completed=first_epoch)
        self.rows, self.since = 0.0, time.perf_counter()
        self.loss, self.metrics = "", []

    def on_batch_end(self, rows: int, loss: float) -> None:
        """Show the loss, at most once every ``OFTEN`` seconds."""
        self.rows += rows
        now = time.perf_counter()
        if now - self.since >= OFTEN and self.bar is not None:
            self.loss = f"loss {loss:.4f}" if math.isfinite(loss) else ""
            rate = f"{self.rows / (now - self.since):,.0f} rows/s"
            self._update(seen=" ".join(filter(None, [self.loss, *self.metrics[:1], rate])))
            self.rows, self.since = 0.0, now

    def on_party_lost(self, party: str, why: str) -> None:
        """Print the name of the lost party and the reason above the progress bar."""
        self._print(f"{party} is gone ({why}); the others go on without it", "yellow")

    def on_party_joined(self, party: str) -> None:
        """Print the name of the returned party above the progress bar."""
        self._print(f"{party} takes part again", "yellow")

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Advance the progress bar by one epoch, and show the loss and the first metric."""
        self.metrics = [f"{name} {value:.4f}" for name, value in record.get("validation", {}).items()]
        self.loss = f"loss {record['loss']:.4f}" if "loss" in record else ""
        self.done += 1
        self._update(completed=self.done, seen=" ".join(filter(None, [self.loss, *self.metrics[:1]])))

    def on_stage_end(self, stage: str, reason: str) -> None:
        """Replace the progress bar by a sentence: the epochs, why the stage ended, and the last loss and metrics."""
        last = [self.loss] if self.loss else []
        last += [f"validation {', '.join(self.metrics)}"] if self.metrics else []
        scores = f" Last epoch: {', '.join(last)}." if last else ""
        self._end(f"{stage}: {self.done}/{self.epochs} epochs; {reason}.{scores}")

    def close(self) -> None:
        """Stop the progress bar, which still runs if the run was interrupted."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _start(self, description: str, total: int) -> None:
        """Start a new bar for each stage: a widget in a notebook cannot be shown again after it was closed."""
        self.close()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),  # names of parties may contain brackets
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[seen]}", markup=False, table_column=Column(overflow="fold")),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            transient=True,
        )
        self.bar.add_task(description, total=total, seen="")
        self.bar.start()

    def _update(self, **values: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], **values)

    def _end(self, sentence: str) -> None:
        self.close()
        self._print(sentence)

    def _print(self, sentence: str, style: str = "") -> None:
        self.console.print(Text(sentence, style), soft_wrap=True)
