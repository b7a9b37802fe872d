"""A run's record, or a party's, read back: what it may say, checked field by field."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from anyparty.align.overlap import Overlap
from anyparty.config.base import Settings
from anyparty.errors import ConfigError, ModelError
from anyparty.storage import read_json
from anyparty.terms import Capabilities

FORMAT = 1
FILE = "record.json"
MAY_DIFFER = {
    "run.folder", "train.device", "train.checkpoint_every", "train.extreme", "track.tensorboard", "track.mlflow",
    "track.experiment", "train.require",
}  # fmt: skip
"""Settings that a run which is resumed may change, and that make no other variant of it."""


class _Fields(Settings):
    model_config = ConfigDict(extra="allow")


class _Epoch(_Fields):
    stage: str
    epoch: int
    loss: float | None = None
    seconds: float | None = None
    validation: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    back: list[str] = []


class _Sent(_Fields):
    sender: str
    receiver: str
    tag: str
    messages: int
    bytes_sent: int


class _Message(_Fields):
    tag: str
    frm: str
    to: str
    holds: str
    learns: str
    when: str = ""


def _with_rows(scores: dict[str, float | None]) -> dict[str, float | None]:
    if scores.get("rows") is None:
        raise ValueError("expected how many rows it is of, under 'rows'")
    return scores


_OfRows = Annotated[dict[str, float | None], AfterValidator(_with_rows)]


class _Scores(_Fields):
    task: Literal["classification", "regression"]
    classes: list[str]
    overall: _OfRows
    by_count: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], _OfRows]
    by_pattern: dict[str, _OfRows]


def _of_all_blocks(overlap: Overlap | None) -> Overlap | None:
    if overlap is None:
        return None
    if not overlap.blocks:
        raise ValueError("expected at least one party under 'blocks'")
    for name in overlap.blocks:
        if name not in overlap.held or name not in overlap.alone:
            raise ValueError(f"expected how many rows party {name!r} has, under 'held' and 'alone'")
    return overlap


class _Record(_Fields):
    status: str = "done"
    error: str = ""
    began: str = ""
    ended: str = ""
    versions: dict[str, str] = {}
    tables: dict[str, str] = {}
    rows: int | None = None
    overlap: Annotated[Overlap | None, AfterValidator(_of_all_blocks)] = None
    history: list[_Epoch] = []
    ledger: list[_Sent] = []
    remarks: list[str] = []
    title: str = ""
    attendance: list[str] = []
    declared: list[_Message] = []
    best_epoch: int = 0
    costs: dict[str, Any] = {}
    evaluation: _Scores | None = None
    party: str = ""
    active: str = ""
    parties: list[str] = []
    job: str = ""
    settings: str = ""
    table: str = ""
    agreed: dict[str, str] = {}
    shape: dict[str, int] | None = None


def told_of(can: Capabilities) -> dict[str, Any]:
    """Describe a method for a record: its title, and the messages that it declares.

    A report shows both without importing the method.
    """
    return {
        "title": can.title,
        "declared": [{key: str(value) for key, value in asdict(each).items()} for each in can.messages],
    }


def read_record(path: Path) -> dict[str, Any]:
    """Read a record of this version, as it was written.

    Raises:
        ModelError: it is absent, of another version, damaged, or somebody's own.
    """
    values = read_json(path)
    if (found := values.get("format", FORMAT)) != FORMAT:
        wrote = values.get("versions")
        by = f": anyparty {wrote['anyparty']}" if isinstance(wrote, dict) and "anyparty" in wrote else ""
        raise ModelError(f"{path}: a record in format {found}, this version reads format {FORMAT}; use the version "
                         f"that wrote it{by}")  # fmt: skip
    try:
        _Record.of(values, str(path))
    except ConfigError as error:
        raise ModelError(f"{error}; the record was damaged or changed: copy the folder anew") from None
    return values


def is_cut(path: Path) -> bool:
    """Whether a record is there and not whole, as a power failure leaves it: empty, or no JSON any more."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:
        return True
    return False


def has_model(path: Path) -> bool:
    """Whether the model that lies beside a run's record is, as far as the record tells, that run's own.

    ``best_epoch`` enters a record once the model is written, and stays where the run ended badly after that.
    """
    try:
        record = read_record(path)
    except ModelError:
        return True
    return record.get("status", "done") == "done" or "best_epoch" in record
