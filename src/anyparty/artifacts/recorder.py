"""Callbacks that write a run's record during the run, with the cost of its messages.

``LocalRecorder`` writes the record of a run in one process after every epoch.  ``SiteRecorder`` writes one party's
record when the alignment is known, when a stage begins and after every checkpoint.  If the process is killed, the last
written record remains.  A resumed run continues the counts of messages and bytes.

A run can only be resumed with the same settings and tables. If a setting or a table differs, the error names it.  The
path of a table may change, because the fingerprint identifies the table.

``anyparty.core.costs`` has the formulas of communication costs.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from pydantic import ValidationError
from torch import nn

from anyparty.alignment.overlap import Overlap
from anyparty.artifacts.record import (
    FILE,
    FORMAT,
    MAY_DIFFER,
    EpochEntry,
    EvaluationEntry,
    LedgerEntry,
    RunRecord,
    declared_by,
    is_cut,
    place_of,
    versions,
)
from anyparty.artifacts.run_folder import ID_HASHES, LOCK, take
from anyparty.config import Config, TrainSettings
from anyparty.core.costs import HasCosts, PartyShape, RunShape, published
from anyparty.core.draws import DRAWS
from anyparty.core.storage import writing
from anyparty.core.types import Capabilities
from anyparty.errors import ConfigError, ModelError, ResumeError, remark
from anyparty.methods.method import Method
from anyparty.methods.method_registry import differences
from anyparty.problem.splits import TEST, TRAIN, UNUSED
from anyparty.training.callbacks import Callback, now
from anyparty.training.checkpoint import PROGRESS, Checkpoints, read
from anyparty.training.party import PartyResult
from anyparty.training.party_run import TrainedParty
from anyparty.transport.ledger import Ledger


@dataclass
class Recorder(Callback):
    """Base class of recorders: callbacks that build a run's record and write it.

    Attributes:
        path: the file record.json.
        record: the record, which grows during the run.
        ledger: the numbers of messages and bytes that have been sent.
        lock: the lock of the run's folder; ``None`` if the recorder did not lock it.

    """

    path: Path
    record: RunRecord
    ledger: Ledger = field(default_factory=Ledger)
    lock: FileLock | None = None

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:  # noqa: ARG002
        """Remove the epochs of ``stage`` after ``first_epoch`` from the history; a resumed stage repeats them."""
        self.record.history = list(
            takewhile(lambda epoch: epoch.stage != stage or epoch.epoch <= first_epoch, self.record.history)
        )

    def finish(
        self, trained: TrainedParty, evaluation: Mapping[str, Any] | None, costs: Mapping[str, Any] | None = None
    ) -> None:
        """Record the result of training, the test scores and the costs."""
        self._note(trained.history, trained.best_epoch)
        if costs is not None:
            self.record.costs = dict(costs)
        if evaluation is not None:
            self.record.evaluation = EvaluationEntry.of(evaluation, "evaluation")

    def _note(self, history: Sequence[Mapping[str, Any]], best_epoch: int) -> None:
        self.record.history = [EpochEntry.of(epoch, "epoch") for epoch in history]
        self.record.best_epoch = best_epoch

    @contextmanager
    def open(self) -> Iterator[None]:
        """Write the record at the end of the ``with`` block, even after an error, then unlock the run's folder."""
        try:
            with self.record.noting():
                yield
        finally:
            try:
                self.write()
            finally:
                if self.lock is not None:
                    self.lock.release()

    def write(self) -> None:
        """Write the record, with the numbers of messages and bytes that have been sent until now.

        Raises:
            StorageError: the file cannot be written.
        """
        self.record.ledger = [LedgerEntry.model_validate(row) for row in self.ledger.rows()]
        self.record.write(self.path)


def check_folder(folder: Path, *, resume: bool) -> None:
    """Check that a run can begin or resume in a folder, before its tables are read.

    Raises:
        ConfigError, ResumeError: as ``LocalRecorder.begin``.
        ModelError: the record in the folder cannot be read.
    """
    if resume and not folder.exists():
        raise ResumeError(f"{folder} holds no run to resume; start without --resume (resume=True)")
    with ExitStack() as held:
        if (folder / LOCK).exists():  # without a lock file, no run is in progress
            held.callback(take(folder).release)
        _readable(folder, resume=resume)


def _readable(folder: Path, *, resume: bool) -> tuple[bool, dict[str, Any]]:
    """Check the files of a locked folder; return whether its record is incomplete, and the fields of the record."""
    path, settings = folder / FILE, folder / "config.toml"
    there, cut = path.exists(), is_cut(path)
    kept = RunRecord.read(path).to_json() if there and not cut else {}
    if (cut or kept.get("history")) and not resume:  # a run that finished no epoch may be replaced
        raise ResumeError(f"{folder} holds a run already: resume it (--resume, or resume=True in "
                          f"Python), or name another folder (--run, or folder=...)")  # fmt: skip
    if resume and not (there and settings.exists()):
        raise ResumeError(f"{folder} holds no run to resume; start without --resume (resume=True)")
    if not there and settings.exists():
        raise ConfigError(f"{settings}: this file does not belong to a run, and the run's settings would "
                          "overwrite it; name another folder (--run, or folder=...), or "
                          "move the file")  # fmt: skip
    if not resume and (folder / "model.json").exists():
        raise ConfigError(f"{folder} already holds a model (model.json), which the run's model would overwrite; "
                          "name another folder (--run, or folder=...), or move the model")  # fmt: skip
    return cut, kept


class LocalRecorder(Recorder):
    """A recorder that writes the record of a run with all parties in one process."""

    @classmethod
    def begin(
        cls, folder: Path, config: Config, *, tables: Mapping[str, str], overlap: Overlap, active: str,
        can: Capabilities, own: Method | None = None, loss: str = "", code: Mapping[str, str] | None = None,
        resume: bool = False,
    ) -> LocalRecorder:  # fmt: skip
        """Begin the record of a run, and lock the run's folder until the ``with`` block of ``open`` ends.

        Args:
            folder: the run's folder.
            config: the settings used in training.
            tables: the fingerprint of each party's table.
            overlap: the number of rows that each set of parties shares.
            active: the active party.
            can: the method's capabilities.
            own: the method, if it is user-defined.
            loss: "module:name" of a custom loss; empty for the built-in loss.
            code: for each use of a user-defined function or class, such as "encoder of bank", a hash of its source.
            resume: whether to resume the run in the folder.

        Raises:
            ConfigError: another run is in progress in the folder, or the folder has a config.toml without a run, or a
                model that this run would overwrite.
            ResumeError: the folder already has a run and ``resume`` is false; or ``resume`` is true, and the folder has
                no run, or a run with other settings, tables or loss.
        """
        if resume and not folder.exists():
            raise ResumeError(f"{folder} holds no run to resume; start without --resume (resume=True)")
        lock = take(folder)
        try:
            return cls._begin(folder, config, lock, tables, overlap, active, can, own, loss, code or {}, resume=resume)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _begin(
        cls, folder: Path, config: Config, lock: FileLock, tables: Mapping[str, str], overlap: Overlap, active: str,
        can: Capabilities, own: Method | None, loss: str, code: Mapping[str, str], *, resume: bool,
    ) -> LocalRecorder:  # fmt: skip
        path, settings = folder / FILE, folder / "config.toml"
        cut, kept = _readable(folder, resume=resume)
        values: dict[str, Any] = {
            "format": FORMAT,
            "status": "running",
            "error": "",
            "began": now(),
            "versions": versions(),
            "tables": dict(tables),
            "place": place_of(folder),
            "rows": overlap.rows,
            "draws": DRAWS,
            "loss": loss,
            "code": dict(code),
            "overlap": overlap.to_json(),
            "history": [],
            "ledger": [],
            "settings": config.to_toml(),
        }
        if resume:
            old = {"history": [], "ledger": []} | (_cut_record(path, active, values) if cut else kept)
            _check_draws(path, old.get("draws", 1))
            _same(old.get("tables", {}), tables, "the tables changed since the run began", "party")
            if old.get("loss", loss) != loss:  # records of earlier versions have no loss
                was, now_is = (name or "the built-in loss" for name in (old["loss"], loss))
                raise ResumeError(f"cannot resume with another loss: the run began with {was}, and this call has "
                                  f"{now_is}; pass the first one to train(loss=...), or train again")  # fmt: skip
            try:
                same_settings(settings.read_text(encoding="utf-8"), config.to_toml(), own)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ResumeError(f"{settings}: this is not TOML ({error}); copy the run's folder again") from None
            _same(old.setdefault("code", dict(code)), code,  # records of earlier versions have no hashes
                  "the source of your functions changed since the run began", "source of")  # fmt: skip
            kept_place = {"place": place_of(folder)}  # the user has named the tables, so this is a run of this machine
            values = old | kept_place | {"status": "running", "error": "", "settings": config.to_toml()}
            values.pop("ended", None)
        recorder = cls(path, RunRecord.of(values | declared_by(can), str(path)), Ledger.of(values["ledger"]), lock)
        if not resume:
            recorder.record.write(path)  # first, because the next start rejects a config.toml without a record
        if not resume or all(party.table for party in config.parties.values()):  # the tables' paths may have changed
            with writing(settings) as beside:
                beside.write_text(config.to_toml(), encoding="utf-8")
        (folder / ID_HASHES).unlink(missing_ok=True)
        return recorder

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Add the epoch to the history and write the record."""
        self.record.history.append(EpochEntry.of(record, "epoch"))
        self.write()


class SiteRecorder(Recorder):
    """A recorder that writes the record of one party at its own site."""

    @classmethod
    def begin(
        cls, folder: Path, *, party: str, active: str, parties: Sequence[str], settings: str, table: str,
        can: Capabilities, job: str = "", resume: bool = False,
    ) -> SiteRecorder:  # fmt: skip
        """Begin or continue the record of one party, and write it.

        If the folder already has the party's record of this run, the new record continues its history and its counts of
        messages.

        Args:
            folder: the party's folder.
            party: the party's name.
            active: the active party.
            parties: all parties, in the roster's order.
            settings: the run's settings as TOML, without paths.
            table: the fingerprint of the party's table.
            can: the method's capabilities.
            job: the name that the transport gave the run; empty if the transport gave no name.
            resume: whether the run is resumed.

        Raises:
            ResumeError: the run began with other settings.
        """
        path, old = folder / FILE, RunRecord()
        with suppress(ModelError):
            old = RunRecord.read(path)
        if old.party != party or not (resume or (job and old.job == job)):
            old = RunRecord()
        else:
            _check_draws(path, old.draws)
            same_settings(old.settings, settings)
        record = RunRecord(
            format=FORMAT, draws=DRAWS, party=party, active=active, parties=list(parties), job=job, status="running",
            error="", began=old.began or now(), versions=versions(), settings=settings, table=table, ledger=old.ledger,
            stages=dict(old.stages), history=list(old.history), remarks=list(old.remarks), **declared_by(can),
        )  # fmt: skip
        recorder = cls(path, record, Ledger.of([row.model_dump() for row in old.ledger]))
        recorder.write()
        return recorder

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        """Record the number of epochs, the number of rows and the first epoch of a stage."""
        super().on_stage_begin(stage, epochs, rows, first_epoch)
        self.record.stages[stage] = {"epochs": epochs, "rows": rows, "first_epoch": first_epoch}
        self.write()

    def on_checkpoint(self, history: Sequence[Mapping[str, Any]], best_epoch: int) -> None:
        """Write the record after a checkpoint.

        ``best_epoch`` is the place of the best epoch in ``history``, counted from 1; 0 if there is no best epoch yet.
        """
        self._note(history, best_epoch)
        self.write()

    def on_align_progress(self, done: int, total: int) -> None:
        """Record how many elliptic-curve points the party has computed in a private alignment, and their total."""
        self.record.aligning = [done, total]
        self.write()

    def aligned(
        self, number: bytes, agreed: Mapping[str, str], rows: int, overlap: Overlap | None, predicted: str
    ) -> None:
        """Record the alignment and the settings that all parties must share, after the parties have agreed on both.

        Args:
            number: an identifier of the alignment.
            agreed: by name, the text of each group of shared settings; the record stores hashes of the texts.
            rows: the number of aligned rows.
            overlap: at the active party, the number of rows that each set of parties shares; ``None`` at passive
                parties.
            predicted: at the active party, a description of the task in one line.

        """
        self.record.alignment, self.record.rows = number.hex(), rows
        self.record.agreed = {group: hashlib.sha256(text.encode()).hexdigest() for group, text in agreed.items()}
        if overlap is not None:
            self.record.overlap, self.record.predicted = overlap, predicted
        self.write()


def _cut_record(path: Path, active: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that replaces a truncated record file.

    ``values`` are all fields except the history. The history is read from the active party's last readable checkpoint.
    """
    remark(
        f"{path}: truncated, for example by a power failure; the run resumes from its checkpoints. Its record of "
        "earlier messages is lost, and whether its tables changed cannot be checked"
    )
    for file in reversed(Checkpoints(path.parent / "parties" / active / "checkpoints").files()):
        with suppress(ModelError, ValidationError):  # training reports a damaged checkpoint later
            return values | {"history": PROGRESS.validate_python(read(file)[1]).history}
    return values


def _check_draws(path: Path, draws: int) -> None:
    """Check that a run to resume draws its random numbers as this version does.

    Raises:
        ResumeError: it draws them in another way.
    """
    if draws != DRAWS:
        raise ResumeError(f"{path}: the run began with random numbers of format {draws}, and this version draws format "
                          f"{DRAWS}, so that the run cannot be resumed: train again in another folder. Its saved model "
                          "predicts as before")  # fmt: skip


def same_settings(old: str, new: str, own: Method | None = None) -> None:
    """Check that two TOML texts are settings of the same run; the paths of tables may differ.

    ``own`` is the method of the new settings, if it is user-defined.  If the old settings do not describe their
    user-defined method, as in earlier versions, only the titles of the methods are compared.

    Raises:
        ResumeError: a setting or the order of the parties differs.
    """
    was, now = tomllib.loads(old), tomllib.loads(new)
    for party in (party for values in (was, now) for party in values.get("parties", {}).values()):
        party.pop("table", None)
    kept = was.get("method", {}).pop("own", None)
    now.get("method", {}).pop("own", None)
    differs = {} if own is None or kept is None else differences(kept, own)
    before, after = ({f"method.own.{key}": pair[side] for key, pair in differs.items()} for side in (0, 1))
    _same(_flat(was) | before, _flat(now) | after, "other settings", "setting")
    those, these = list(was.get("parties", {})), list(now.get("parties", {}))
    if those != these:  # a party's index selects its network
        raise ResumeError(f"cannot resume, the settings list the parties in another order: it was {', '.join(those)}, "
                          f"is {', '.join(these)}; restore the order in which the run began")  # fmt: skip


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _same(old: Mapping[str, Any], new: Mapping[str, Any], what: str, kind: str) -> None:
    differs = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in MAY_DIFFER)
    if differs:
        those = "; ".join(f"{kind} {key}: was {_short(old.get(key))}, is {_short(new.get(key))}" for key in differs[:5])
        raise ResumeError(f"cannot resume, {what}: {those}; restore them, or train again")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 or ":" in text else text[:20] + "...'"


def counted_costs(
    method: Method, outcomes: Mapping[str, PartyResult], settings: TrainSettings, ledger: Ledger
) -> dict[str, Any]:
    """Return the communication costs of a training run, for its record.

    Args:
        method: the method that was trained.
        outcomes: for each party, its result of training.  Only the active party's result is required.
        settings: the settings of training.
        ledger: the numbers of messages and bytes that the parties sent.

    Returns:
        A mapping with two lists.  "sent" has the rounds and bytes of the method's own messages.  "published" has the
        rounds and bytes that the formulas of the APC-VFL paper give, and is empty if no formula covers the method.
    """
    own = {message.tag for message in method.can.messages}
    shapes = {name: sizes_of(outcome) for name, outcome in outcomes.items()}
    counted = method.published_costs(_ran(outcomes, settings)) if isinstance(method, HasCosts) else []
    return {
        "sent": [vars(each) for each in ledger.exchanges() if each.tag in own],
        "published": published([vars(each) for each in counted], shapes),
    }


def sizes_of(outcome: PartyResult) -> PartyShape:
    """Return the network sizes of a party, for cost formulas."""
    encoder = outcome.trained.state.modules.get("encoder", nn.Identity())
    layers = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    last = sum(parameter.numel() for parameter in layers[-1].parameters()) if layers else 0
    return PartyShape(columns=outcome.trained.state.seat.inputs, last_layer=last)


def _ran(outcomes: Mapping[str, PartyResult], settings: TrainSettings) -> RunShape:
    roster = next(iter(outcomes.values())).view.roster
    lead = outcomes[roster.active]
    rows, use = lead.rows, torch.from_numpy(lead.view.use)
    assert rows.observed is not None
    observed, stages = rows.observed.cpu(), [str(record["stage"]) for record in lead.trained.history]
    own = observed[:, roster.blocks.index(roster.active)] if roster.active in roster.blocks else torch.zeros(rows.n)
    both = {
        name: int((own.bool() & observed[:, k] & (use != TEST) & (use != UNUSED)).sum())
        for k, name in enumerate(roster.blocks)
        if name != roster.active
    }
    labelled = rows.teaching.cpu()
    return RunShape(
        roster=roster,
        observed=observed,
        labelled=labelled,
        training=use == TRAIN,
        shared=both,
        epochs={stage: stages.count(stage) for stage in stages},
        batch_size=settings.rows_per_batch(int((labelled & (use == TRAIN)).sum())),
        columns=lead.trained.state.seat.inputs,
    )
