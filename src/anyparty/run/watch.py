"""What a run tells whoever watches it: the same calls for progress bars, trackers and a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Watch:
    """Does nothing; a watcher overrides what it wants to hear.  Called at the active party alone."""

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """A stage begins, or goes on after ``first_epoch`` epochs: ``rows`` an epoch."""

    def on_batch_end(self, rows: int, loss: float) -> None:
        """A batch of ``rows`` rows is done."""

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """An epoch is done; ``record`` is what stands in the history."""

    def on_stage_end(self, stage: str, reason: str) -> None:
        """A stage is over, and why."""


@dataclass(frozen=True)
class All(Watch):
    """Several watchers, told in turn."""

    each: Sequence[Watch]

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_stage_begin(stage, epochs, rows, first_epoch)

    def on_batch_end(self, rows: int, loss: float) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_batch_end(rows, loss)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_epoch_end(record)

    def on_stage_end(self, stage: str, reason: str) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_stage_end(stage, reason)
