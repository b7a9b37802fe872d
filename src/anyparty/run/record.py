"""What a run leaves to read: settings, versions, data fingerprints, history, messages, scores.

    config.toml     the settings, resolved
    record.json     everything else; written at the start, after every epoch, and at the end, whatever that is

    status          "running" (so it says; perhaps it was killed), "done", "stopped" (Ctrl-C) or "failed"
    error           why it failed, with the kind of error
    evaluation      test scores, as ``Evaluation.to_json``
    declared        the messages that a method of the user's own declares

A run that is resumed must be the same run: other settings or other tables are refused, and named.  Where a table lies
may differ, for its fingerprint says whether it is the same.
"""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import ValidationError

import anyparty
from anyparty.blocks.splits import TEST
from anyparty.config import Config
from anyparty.errors import ConfigError, ModelError, ResumeError, remark
from anyparty.methods.method import Method
from anyparty.run import own_method
from anyparty.run.alone import take
from anyparty.run.checkpoint import PROGRESS, Checkpoints, read, write
from anyparty.run.files import write_json
from anyparty.run.kept_record import FORMAT, is_cut, read_record
from anyparty.run.model import Model
from anyparty.run.watch import Watch, before, noted, now
from anyparty.storage import writing
from anyparty.terms import Declared
from anyparty.wire.ledger import Ledger

if TYPE_CHECKING:
    from anyparty.run.federation import Federation

TRAINED = "trained.safetensors"
MAY_DIFFER = {
    "run.folder", "train.device", "train.checkpoint_every", "track.tensorboard", "track.mlflow", "track.experiment",
    "train.require",
}  # fmt: skip


@dataclass
class Record(Watch):
    """A run's folder, and what is written into it."""

    folder: Path
    values: dict[str, Any]
    ledger: Ledger = field(default_factory=Ledger)
    lock: FileLock | None = None

    @classmethod
    def begin(
        cls, folder: Path, federation: Federation, config: Config, *, resume: bool, own: Method | None = None,
        declared: Sequence[Declared] = (),
    ) -> Record:  # fmt: skip
        """Open a run's folder, and keep other runs out of it until ``open`` has ended.

        ``own`` is the method where it is the user's own, with what it ``declared``, which stands nowhere else.

        Raises:
            ConfigError: another run is at work in it, or it has a config.toml or a model that is no run's.
            ResumeError: it holds a run already, or, to resume, another one or none.
        """
        if resume and not folder.exists():
            raise ResumeError(f"{folder} holds no run to resume; start without --resume (resume=True)")
        lock = take(folder)
        try:
            record = cls._begin(folder, federation, config, resume=resume, own=own, declared=declared)
        except BaseException:
            lock.release()
            raise
        record.lock = lock
        return record

    @classmethod
    def _begin(
        cls, folder: Path, federation: Federation, config: Config, *, resume: bool, own: Method | None,
        declared: Sequence[Declared],
    ) -> Record:  # fmt: skip
        path, settings = folder / "record.json", folder / "config.toml"
        there, cut = path.exists(), is_cut(path)
        kept = read_record(path) if there and not cut else {}
        if (cut or kept.get("history")) and not resume:  # one that failed at once may go
            raise ResumeError(f"{folder} holds a run already: resume it (--resume, or resume=True in "
                              f"Python), or name another folder (--run, or folder=...)")  # fmt: skip
        if resume and not (there and settings.exists()):
            raise ResumeError(f"{folder} holds no run to resume; start without --resume (resume=True)")
        if not there and settings.exists():
            raise ConfigError(f"{settings}: this file is no run's, and the run's own settings would take its place; "
                              f"name another folder (--run, or folder=...), or move the file")  # fmt: skip
        if not resume and (folder / "model.json").exists():
            raise ConfigError(f"{folder} holds a model already (model.json), and the run's own would take its place; "
                              f"name another folder (--run, or folder=...), or move what lies there")  # fmt: skip
        began: dict[str, Any] = {
            "format": FORMAT,
            "status": "running",
            "error": "",
            "began": now(),
            "versions": versions(),
            "tables": {name: table.fingerprint for name, table in federation.tables.items()},
            "rows": federation.alignment.n,
            "overlap": federation.overlap.to_json(),
            "history": [],
            "ledger": [],
        }
        said = {"declared": [{key: str(value) for key, value in asdict(each).items()} for each in declared]}
        said = said if declared else {}
        if resume:
            old = {"history": [], "ledger": []} | (_anew(folder, federation, began) if cut else kept)
            _same(old.get("tables", {}), began["tables"], "the tables changed since the run began", "party")
            try:
                same_settings(settings.read_text(encoding="utf-8"), config.to_toml(), own)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ResumeError(f"{settings}: this is not TOML ({error}); copy the run's folder anew") from None
            if all(party.table for party in config.parties.values()):  # perhaps they lie elsewhere by now
                _write(settings, config)
            old |= {"status": "running", "error": "", **said}
            old.pop("ended", None)
            _note_trained(folder / TRAINED, federation, config)
            return cls(folder, old, Ledger.of(old["ledger"]))
        began |= said
        write_json(folder / "record.json", began)  # first: config.toml alone is somebody else's
        _write(settings, config)
        _note_trained(folder / TRAINED, federation, config)
        return cls(folder, began)

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:  # noqa: ARG002
        """Drop the epochs that a resumed run does anew."""
        self.values["history"] = before(self.values["history"], stage, first_epoch)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Keep the epoch."""
        self.values["history"].append(record)
        self.values["ledger"] = self.ledger.rows()
        write_json(self.folder / "record.json", self.values)

    def finish(self, model: Model, evaluation: Mapping[str, Any] | None) -> None:
        """Take over the model's history and costs, and the test scores."""
        self.values |= {"best_epoch": model.best_epoch + 1, "history": model.history, "costs": model.costs}
        if evaluation is not None:
            self.values["evaluation"] = dict(evaluation)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Write at the end of the run, whatever it is."""
        try:
            with noted(self.values):
                yield
        finally:
            try:
                self.values["ledger"] = self.ledger.rows()
                write_json(self.folder / "record.json", self.values)
            finally:
                if self.lock is not None:
                    self.lock.release()


def _anew(folder: Path, federation: Federation, began: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run that lost its own, as after a power failure: its history is in its checkpoints."""
    remark(
        f"{folder / 'record.json'}: cut short, as by a power failure; the run goes on from its checkpoints, "
        f"without an account of what crossed before, and whether its tables are the same, nothing tells"
    )
    for path in reversed(Checkpoints(folder / "parties" / federation.roster.active / "checkpoints").files()):
        with suppress(ModelError, ValidationError):  # whoever loads it says what it is
            return began | {"history": PROGRESS.validate_python(read(path)[1]).history}
    return began


def hashes(ids: pl.Series) -> NDArray[np.int64]:
    """Return a number for each id [n], the same on every machine."""
    texts = ids.cast(pl.String).to_list()
    return np.array([int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True) for text in texts],
                    dtype=np.int64)  # fmt: skip


def _note_trained(path: Path, federation: Federation, config: Config) -> None:
    """Keep whose labels train or choose epochs, as hashes of ids: scores of their rows are not those of new ones."""
    ids = federation.alignment.ids
    assert ids is not None
    use = federation.labeled & federation.observed.any(axis=1) & (federation.split(config.train) != TEST)
    write(path, {"ids": torch.from_numpy(hashes(ids.filter(pl.Series(use))))}, {})


def _write(path: Path, config: Config) -> None:
    with writing(path) as beside:
        beside.write_text(config.to_toml(), encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    packages = ("torch", "numpy", "polars", "scikit-learn")
    return {
        "anyparty": anyparty.__version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        **{package: version(package) for package in packages},
    }


def same_settings(old: str, new: str, own: Method | None = None) -> None:
    """Hold a run's settings against those with which it is to go on, both as TOML; not where its tables lie.

    ``own`` is the method that the new ones describe, where it is the user's own; one that was kept without a
    description, by an earlier version, is known by its title alone.

    Raises:
        ResumeError: a setting is another, or the parties stand in another order.
    """
    was, now = tomllib.loads(old), tomllib.loads(new)
    for party in (party for values in (was, now) for party in values.get("parties", {}).values()):
        party.pop("table", None)
    kept = was.get("method", {}).pop("own", None)
    now.get("method", {}).pop("own", None)
    differs = {} if own is None or kept is None else own_method.differences(kept, own)
    before, after = ({f"method.own.{key}": pair[side] for key, pair in differs.items()} for side in (0, 1))
    _same(_flat(was) | before, _flat(now) | after, "other settings", "setting")
    those, these = list(was.get("parties", {})), list(now.get("parties", {}))
    if those != these:  # each party's place says which of the networks is its own
        raise ResumeError(f"cannot resume, the parties stand in another order: it was {', '.join(those)}, is "
                          f"{', '.join(these)}; put them back in the order in which the run began")  # fmt: skip


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _same(old: Mapping[str, Any], new: Mapping[str, Any], what: str, kind: str) -> None:
    differs = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in MAY_DIFFER)
    if differs:
        those = "; ".join(f"{kind} {key}: was {_short(old.get(key))}, is {_short(new.get(key))}" for key in differs[:5])
        raise ResumeError(f"cannot resume, {what}: {those}; put them back as they were, or train anew")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else text[:20] + "...'"
