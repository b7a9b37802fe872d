"""The record of a training run: record.json in the run's folder, or in the folder of a party at its own site.

Fields of every record:

    status: "running" (also after the process was killed), "done", "stopped" (by Ctrl-C, or because a site stopped) or
        "failed"
    error: the type and message of the error of a failed run
    began, ended: the times at which the run started and ended, in ISO 8601 and UTC
    remarks: the warnings that were issued during the run
    versions: the versions of Python, of this package and of the packages that affect results
    rows: N, the number of aligned rows
    overlap: the number of rows that each set of parties shares
    history: one entry per epoch
    best_epoch: the place in the history, counted from 1, of the epoch whose weights were kept; 0 if no epoch was chosen
    loss: "module:name" of a custom loss; empty for the built-in loss
    code: for each use of a user-defined function or class, such as "encoder of bank", a hash of its source
    ledger: the numbers of messages and bytes by sender, receiver and tag
    evaluation: the test scores, in the form of ``Evaluation.to_json``
    costs: the rounds and bytes of messages: "sent" has the counted values, and "published" the values that the formulas
        of the APC-VFL paper give
    draws: the format of the training's random numbers (``core.draws``); 1 for runs of version 0.1
    execution: for each stage, "joint", or "protocol" with the reason why the stage was not computed jointly; "all" if
        the settings ask for the protocol. A run that was resumed in the other execution names both
    title, declared: the method's title, and the messages that the method declares
    settings: the settings as TOML; a record of one party has only the settings that all parties share

The record of a run in one process also has ``tables``: for each party, the fingerprint of its table.  Earlier versions
stored the settings of such a run only in config.toml.  The field ``place`` identifies the run's folder on the machine
that trained the run, as ``place_of`` returns it.

Further fields in the record of a party at its own site:

    party, active, parties: the names of this party, of the active party, and of all parties
    job: the name that the transport gave the run
    agreed: for each group of settings that all parties must share, a hash of the group
    table: the fingerprint of the party's table
    alignment: an identifier of the alignment in hexadecimal, which is equal at all parties
    aligning: the number of elliptic-curve points that this party has computed in a private alignment, and the total
        number
    stages: for each stage, the number of epochs, the number of rows per epoch, and the first epoch
    shape: the sizes of the party's network, for cost formulas, in the form of ``core.costs.PartyShape``
    predicted: a description of the task in one line; only at the active party
    attendance: warnings about parties that missed epochs; only at the active party

Reports read the record without importing a method.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, WrapValidator
from rich.table import Table
from rich.text import Text

import anyparty
from anyparty.alignment.overlap import Overlap
from anyparty.config.settings_group import Settings
from anyparty.core.display import html_of, shown_in_notebooks
from anyparty.core.storage import check_format, read_bytes, read_json, write_json
from anyparty.core.types import Capabilities
from anyparty.errors import ConfigError, ModelError, remarks_to
from anyparty.training.callbacks import error_text, now, status_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
FILE = "record.json"
MAY_DIFFER = {
    "run.folder", "train.device", "train.execution", "train.checkpoint_every", "train.extreme", "track.tensorboard",
    "track.mlflow", "track.experiment", "train.require",
}  # fmt: skip
"""Settings that may change when a run is resumed.  Reports treat runs that differ only in them as one variant."""


class Entry(Settings):
    """A group of fields in a record.  Unknown fields are kept unchanged."""

    model_config = ConfigDict(extra="allow", frozen=False)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that have been set, as values for JSON."""
        return self.model_dump(exclude_unset=True)


class EpochEntry(Entry):
    """One epoch: its stage, number, loss, duration, scores, absent parties, and parties that came back."""

    stage: str
    epoch: int
    loss: float | None = None
    seconds: float | None = None
    validation: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    back: list[str] = []


class LedgerEntry(Entry):
    """The number and the bytes of all messages with one tag from one party to another."""

    sender: str
    receiver: str
    tag: str
    messages: int
    bytes_sent: int


class MessageEntry(Entry):
    """A message that the method declares; its fields are those of ``core.types.MessageSpec``."""

    tag: str
    frm: str
    to: str
    holds: str
    learns: str
    when: str = ""


def _as_read(value: Any, validate: Any) -> Any:
    """Validate a number; keep an integer an integer, although the field's type is float."""
    number = validate(value)
    return value if type(value) is int else number


_Number = Annotated[float | None, WrapValidator(_as_read), PlainSerializer(lambda number: number)]


def _with_rows(scores: dict[str, float | None]) -> dict[str, float | None]:
    if scores.get("rows") is None:
        raise ValueError("expected the number of scored rows under 'rows'")
    return scores


_OfRows = Annotated[dict[str, _Number], AfterValidator(_with_rows)]


class WorthLine(Entry):
    """The scores of one way to answer the test rows, in the form of ``metrics.worth.Line``."""

    name: str
    kind: str
    scores: dict[str, _Number]
    rows: int


class WorthEntry(Entry):
    """The comparison of the model with boosted trees, in the form of ``metrics.worth.Worth``."""

    active: str
    passive: list[str]
    every: bool
    metric: Literal["auroc", "rmse"]
    lines: Annotated[list[WorthLine], Field(min_length=1)]
    difference: _Number
    half_width: _Number
    reference: Literal["own", "alone"] = "own"
    notes: list[str] = []


class EvaluationEntry(Entry):
    """The test scores of all test rows, and scores grouped by the number and by the set of present parties."""

    task: Literal["classification", "regression"]
    classes: list[str]
    overall: _OfRows
    by_count: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], _OfRows]
    by_pattern: dict[str, _OfRows]
    worth: WorthEntry | None = None


def _of_all_blocks(overlap: Overlap | None) -> Overlap | None:
    if overlap is None:
        return None
    if not overlap.blocks:
        raise ValueError("expected at least one party under 'blocks'")
    for name in overlap.blocks:
        if name not in overlap.held or name not in overlap.alone:
            raise ValueError(f"expected the number of rows of party {name!r} under both 'held' and 'alone'")
    return overlap


class StatusEntry(Entry):
    """The status, the error, the end time and the warnings of a run or of other work of one process."""

    status: str = "done"
    error: str = ""
    ended: str = ""
    remarks: list[str] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Record the result of a ``with`` block: its warnings, final status, error and end time."""
        self.remarks = list(self.remarks)

        def remark(sentence: str) -> None:
            if sentence not in self.remarks:
                self.remarks.append(sentence)

        try:
            with remarks_to(remark):
                yield
        except BaseException as error:
            self.status, self.error = status_of(error), error_text(error)
            raise
        else:
            self.status = "done"
        finally:
            self.ended = now()


class RunRecord(StatusEntry):
    """The record of a run, or of one party in a run; the module's docstring describes the fields."""

    format: int = FORMAT
    began: str = ""
    versions: dict[str, str] = {}
    tables: dict[str, str] = {}
    place: str = ""
    rows: int | None = None
    overlap: Annotated[
        Overlap | None, AfterValidator(_of_all_blocks), PlainSerializer(lambda overlap: overlap and overlap.to_json())
    ] = None
    history: list[EpochEntry] = []
    ledger: list[LedgerEntry] = []
    title: str = ""
    attendance: list[str] = []
    declared: list[MessageEntry] = []
    best_epoch: int = 0
    draws: int = 1
    execution: dict[str, str] = {}
    loss: str = ""
    code: dict[str, str] = {}
    costs: dict[str, Any] = {}
    evaluation: EvaluationEntry | None = None
    party: str = ""
    active: str = ""
    parties: list[str] = []
    job: str = ""
    settings: str = ""
    table: str = ""
    alignment: str = ""
    aligning: list[int] = []
    agreed: dict[str, str] = {}
    predicted: str = ""
    stages: dict[str, dict[str, int]] = {}
    shape: dict[str, int] | None = None

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read a record from a file that was written in the format of this version.

        Raises:
            ModelError: the file does not exist, is damaged, is of another version, or is not a record.
        """
        values = read_json(path)
        _check_format(path, values)
        try:
            record: RunRecord = cls.of(values, str(path))
        except ConfigError as error:
            raise ModelError(f"{error}; the record was damaged or changed: copy the folder again") from None
        return record

    def plot(self) -> Figure:
        """Draw the learning curves: the loss and the validation scores by epoch, with the chosen epoch marked.

        Raises:
            ConfigError: no epoch is recorded.
        """
        from anyparty.metrics.plots import draw_training  # noqa: PLC0415 - matplotlib is slow

        if not self.history:
            raise ConfigError("the record has no epoch to draw; the run stopped before the first epoch ended")
        return shown_in_notebooks(draw_training([each.to_json() for each in self.history], self.best_epoch))

    def _repr_html_(self) -> str:
        """Return the run's state and its test scores as HTML, for notebooks."""
        title = Text(f"Run of {self.title or 'an unknown method'}: {self.status}")
        table = Table("", "", title=title, title_justify="left", show_header=False)
        facts = {
            "parties": ", ".join(self.parties or list(self.tables)),
            "began": self.began,
            "ended": self.ended,
            "epochs": str(len(self.history)),
            "chosen epoch": str(self.best_epoch or ""),
            "error": self.error,
        }
        scores = self.evaluation.overall if self.evaluation is not None else {}
        facts |= {f"test {name}": f"{value:.4g}" for name, value in scores.items() if value is not None}
        for name, value in facts.items():
            if value:
                table.add_row(Text(name), Text(value))
        return html_of(table)

    def write(self, path: Path) -> None:
        """Write the record to ``path`` as JSON.

        Raises:
            StorageError: the file cannot be written.
        """
        write_json(path, self.to_json())


def _check_format(path: Path, values: Mapping[str, Any]) -> None:
    wrote = values.get("versions")
    by = str(wrote.get("anyparty", "")) if isinstance(wrote, dict) else ""
    check_format(path, values.get("format", FORMAT), range(FORMAT, FORMAT + 1), "a record", by)


def declared_by(can: Capabilities) -> dict[str, Any]:
    """Return a record's fields ``title`` and ``declared`` for a method with the capabilities ``can``."""
    return {
        "title": can.title,
        "declared": [{key: str(value) for key, value in asdict(each).items()} for each in can.messages],
    }


def versions() -> dict[str, str]:
    """Return the machine's architecture, and the versions of Python and of the packages that affect results."""
    packages = ("torch", "numpy", "polars", "scikit-learn")
    return {
        "anyparty": anyparty.__version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        **{package: version(package) for package in packages},
    }


def place_of(folder: Path) -> str:
    """Return a text that identifies a folder on this machine; it changes if the folder is copied, not if it is renamed.

    The text is the number of the folder's inode, which the author of a received run cannot know.
    """
    return f"{folder.stat().st_ino:x}"


def is_cut(path: Path) -> bool:
    """Return True if the record file ``path`` exists but is not valid JSON, which a power failure can cause."""
    try:
        json.loads(read_bytes(path).decode())
    except OSError:
        return False
    except ValueError:
        return True
    return False


def has_model(path: Path) -> bool:
    """Return True if the folder of a record file has the model of the recorded run.

    A run has written its model if its status is "done" or its record has a ``best_epoch``. The result is also True if
    the record is damaged.

    Raises:
        ModelError: the record is in a format that this version does not read.
    """
    try:
        values = read_json(path)
    except ModelError:
        return True
    _check_format(path, values)
    try:
        record: RunRecord = RunRecord.of(values, str(path))
    except ConfigError:
        return True
    return record.status == "done" or "best_epoch" in record.model_fields_set
