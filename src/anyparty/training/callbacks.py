"""Callbacks: progress bars, trackers, records and users' own code follow a run through the same calls.

    on_run_begin                     settings
      on_aligned                     which parties have which rows, and what is predicted
      on_stage_begin                 once a stage; most methods have one, "train"
        on_batch_end                 after every batch
        on_party_lost, on_party_joined   before the end of the epoch in which the active party noticed
        on_epoch_end                 after every epoch, with its entry in the history
      on_stage_end
    on_run_end                       status and test scores

``Federation.train(watch=...)`` takes a callback.  With parties on their own machines,
``anyparty.deployment.coordinator.train(watch=...)`` makes the same calls at the active party's machine.
There, epochs are reported up to a second late, and batches are not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from anyparty.alignment.overlap import Overlap
from anyparty.errors import Stopped


class Callback:
    """Base class of callbacks: every hook does nothing.

    Hooks are called at the active party.  An exception in a hook ends the run, which is then recorded as failed.
    """

    def on_run_begin(self, settings: Mapping[str, Any]) -> None:
        """Handle the begin or the resumption of a run; ``settings`` are resolved and grouped as in the TOML file."""

    def on_aligned(self, overlap: Overlap, predicted: str) -> None:
        """Handle the alignment: which parties have which rows; ``predicted`` describes the task in a line."""

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """Handle the begin of a stage of ``rows`` rows an epoch; a resumed one continues after ``first_epoch``."""

    def on_batch_end(self, rows: int, loss: float) -> None:
        """Handle the end of a batch of ``rows`` rows."""

    def on_party_lost(self, party: str, why: str) -> None:
        """Handle the loss of a party; the others continue without it."""

    def on_party_joined(self, party: str) -> None:
        """Handle the return of a lost party, which takes part from the next epoch."""

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Handle the end of an epoch; ``record`` has its stage, epoch, loss, seconds and validation scores."""

    def on_stage_end(self, stage: str, reason: str) -> None:
        """Handle the end of a stage, with its reason."""

    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:
        """Handle the end of a run.

        Args:
            status: "done", "stopped" (by Ctrl-C, or with a party's site) or "failed".
            evaluation: test scores as ``Evaluation.to_json``; ``None`` without test rows, or if the run failed.
            error: the error of a failed run, in a sentence.
        """


@dataclass
class CallbackList(Callback):
    """Call several callbacks in turn.

    It also reports lost and returned parties, which the entries of epochs name.
    """

    each: list[Callback]
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Flatten nested lists, so that each callback is called once."""
        self.each = [one for each in self.each for one in (each.each if isinstance(each, CallbackList) else [each])]

    def on_party_lost(self, party: str, why: str) -> None:
        """Call each, once a loss."""
        if party not in self.gone:
            self.gone.add(party)
            for watch in self.each:
                watch.on_party_lost(party, why)

    def on_party_joined(self, party: str) -> None:
        """Call each."""
        self.gone.discard(party)
        for watch in self.each:
            watch.on_party_joined(party)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Call each, after reporting lost and returned parties."""
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


for _hook in ("on_run_begin", "on_aligned", "on_stage_begin", "on_batch_end", "on_stage_end", "on_run_end"):
    setattr(CallbackList, _hook, _call_each(_hook))


@dataclass
class Absences(Callback):
    """Count the epochs in which each party was absent."""

    epochs: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # by stage and epoch: some twice

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Note the absent parties of an epoch."""
        self.epochs[record["stage"], record["epoch"]] = tuple(record.get("absent", ()))

    def count(self) -> dict[str, int]:
        """Return the number of epochs that each party missed; parties that missed none are left out."""
        return dict(Counter(name for absent in self.epochs.values() for name in absent))


@contextmanager
def reporting(watch: Callback, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Report the begin and the end of a run.

    The body puts the test scores under "evaluation" into the yielded dictionary.
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
    """Return the time for a record: ISO 8601, UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def status_of(error: BaseException) -> str:
    """Return the status of a run that ended with ``error``."""
    return "stopped" if isinstance(error, KeyboardInterrupt | Stopped) else "failed"


def error_text(error: BaseException) -> str:
    """Return an error's kind and sentence; an empty text for Ctrl-C.

    >>> error_text(ValueError("no rows"))
    'ValueError: no rows'
    """
    if isinstance(error, Stopped):
        return str(error)
    return "" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}".rstrip(": ")
