"""What a run tells whoever watches it: the same calls for progress bars, trackers and a user's own.

    on_run_begin                     the settings
      on_aligned                     who has which rows, and what is predicted
      on_stage_begin                 once a stage: most methods have one, "train"
        on_batch_end                 after every batch
        on_party_lost, on_party_joined   before the epoch's end at which it was noticed
        on_epoch_end                 after every epoch, with what stands in the history
      on_stage_end
    on_run_end                       how it ended, and the test scores

``Federation.train(watch=...)`` takes one; where parties run apart, ``anyparty.run.federate.train(watch=...)`` tells it
the same at the active party's machine, epochs late by a second and batches not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from anyparty.align.overlap import Overlap
from anyparty.errors import Stopped, hearing


class Watch:
    """Does nothing; a watcher overrides what it wants to hear.  Called at the active party alone.

    What a watcher raises ends the run, which is then kept as failed.
    """

    def on_run_begin(self, settings: Mapping[str, Any]) -> None:
        """A run begins, or goes on; ``settings`` are resolved, in groups as in the TOML file."""

    def on_aligned(self, overlap: Overlap, predicted: str) -> None:
        """Who has which rows is known, and in a line what is ``predicted``."""

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """A stage begins, or goes on after ``first_epoch`` epochs: ``rows`` an epoch."""

    def on_batch_end(self, rows: int, loss: float) -> None:
        """A batch of ``rows`` rows is done."""

    def on_party_lost(self, party: str, why: str) -> None:
        """A party is gone; the others go on without it."""

    def on_party_joined(self, party: str) -> None:
        """A party that was gone takes part again from the next epoch."""

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """An epoch is done; ``record`` is what stands in the history: stage, epoch, loss, seconds, validation."""

    def on_stage_end(self, stage: str, reason: str) -> None:
        """A stage is over, and why."""

    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:
        """A run is over.

        Args:
            status: "done", "stopped" (by Ctrl-C, or with a party's site) or "failed".
            evaluation: test scores as ``Evaluation.to_json``; ``None`` without test rows, or before the end.
            error: why it failed, in a sentence.
        """


@dataclass
class All(Watch):
    """Several watchers, told in turn, and told who was lost and who came back, which stands in the epochs' records."""

    each: list[Watch]
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Take watchers out of an ``All`` among them: it would tell them a second time who is gone."""
        self.each = [one for each in self.each for one in (each.each if isinstance(each, All) else [each])]

    def on_run_begin(self, settings: Mapping[str, Any]) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_run_begin(settings)

    def on_aligned(self, overlap: Overlap, predicted: str) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_aligned(overlap, predicted)

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_stage_begin(stage, epochs, rows, first_epoch)

    def on_batch_end(self, rows: int, loss: float) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_batch_end(rows, loss)

    def on_party_lost(self, party: str, why: str) -> None:
        """Tell each, once."""
        if party not in self.gone:
            self.gone.add(party)
            for watch in self.each:
                watch.on_party_lost(party, why)

    def on_party_joined(self, party: str) -> None:
        """Tell each."""
        self.gone.discard(party)
        for watch in self.each:
            watch.on_party_joined(party)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Tell each."""
        for party, why in record.get("absent", {}).items():
            self.on_party_lost(party, why)
        for party in record.get("back", ()):
            self.on_party_joined(party)
        for watch in self.each:
            watch.on_epoch_end(record)

    def on_stage_end(self, stage: str, reason: str) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_stage_end(stage, reason)

    def on_run_end(self, status: str, evaluation: Mapping[str, Any] | None, error: str) -> None:
        """Tell each."""
        for watch in self.each:
            watch.on_run_end(status, evaluation, error)


@dataclass
class Absences(Watch):
    """Notes which parties took no part in which epochs."""

    epochs: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # by stage and epoch: some twice

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Note who was absent."""
        self.epochs[record["stage"], record["epoch"]] = tuple(record.get("absent", ()))

    def count(self) -> dict[str, int]:
        """Return in how many epochs each was, of those that ever were."""
        return dict(Counter(name for absent in self.epochs.values() for name in absent))


@contextmanager
def told(watch: Watch, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tell of a run's begin and end; test scores are what is put under "evaluation" into the dictionary it gives."""
    scores: dict[str, Any] = {"evaluation": None}
    watch.on_run_begin(settings)
    try:
        yield scores
    except BaseException as error:
        watch.on_run_end(ended(error), None, said(error))
        raise
    watch.on_run_end("done", scores["evaluation"], "")


@contextmanager
def noted(values: dict[str, Any]) -> Iterator[None]:
    """Note in a record's ``values`` how what happens inside ends, and when: status, error, ended; and its remarks."""
    remarks = values.setdefault("remarks", [])
    try:
        with hearing(lambda sentence: None if sentence in remarks else remarks.append(sentence)):
            yield
    except BaseException as error:
        values |= {"status": ended(error), "error": said(error)}
        raise
    else:
        values["status"] = "done"
    finally:
        values["ended"] = now()


def before(history: Sequence[dict[str, Any]], stage: str, first_epoch: int) -> list[dict[str, Any]]:
    """Return the epochs of a record that a stage which goes on after ``first_epoch`` leaves: what it does anew is not.

    >>> before([{"stage": "train", "epoch": epoch} for epoch in (1, 2, 3)], "train", 2)
    [{'stage': 'train', 'epoch': 1}, {'stage': 'train', 'epoch': 2}]
    """
    return list(takewhile(lambda each: each["stage"] != stage or each["epoch"] <= first_epoch, history))


def now() -> str:
    """Return the time as records say it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def ended(error: BaseException) -> str:
    """Return how a run ended that this error ended."""
    return "stopped" if isinstance(error, KeyboardInterrupt | Stopped) else "failed"


def said(error: BaseException) -> str:
    """Return an error's kind and sentence; nothing for Ctrl-C.

    >>> said(ValueError("no rows"))
    'ValueError: no rows'
    """
    if isinstance(error, Stopped):
        return str(error)
    return "" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}".rstrip(": ")
