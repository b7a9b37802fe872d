"""Set up a federation of parties on their own machines, and run training and prediction jobs over NVIDIA FLARE.

init("federation.toml", "federation")       write one kit with certificates for each party
site_process.start("federation")            start all sites on this machine, to try out a federation
train("federation", "federation.toml")      train; every party computes at its own site
predict("federation", "federation.toml")    predict with the connected parties
site_process.stop("federation")             stop all sites on this machine
"""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from anyparty import config as settings
from anyparty.alignment.overlap import Overlap
from anyparty.artifacts.record import FILE, RunRecord
from anyparty.artifacts.trackers import trackers
from anyparty.config import Config, TrackSettings
from anyparty.config.label_columns import check_parties
from anyparty.config.method_factory import carried, chosen, scheduled
from anyparty.core.storage import read_json, user_path
from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.site.site_prediction import ANSWERS, PROGRESS
from anyparty.errors import ConfigError, ModelError, ResumeError, RunError, remark, some
from anyparty.training.callbacks import Absences, Callback, CallbackList, reporting
from anyparty.training.control_messages import RESUMES
from anyparty.training.party_run import check_require


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job of a federation.

    Attributes:
        job: the job's name.
        status: FLARE's status of the job.
        outcomes: the job's outcome by party, with the fields of ``JobOutcome``; only for parties whose kit is on this
            machine.
        absent: for each party, the number of epochs of this training that the party missed; empty if the active party's
            kit is not on this machine.
        epochs: the number of epochs of this training.
        behind: the parties whose part of the model lacks the last epochs of this training; empty if the setting
            ``train.require`` permits their absence.

    """

    job: str
    status: str
    outcomes: Mapping[str, Mapping[str, Any]]
    absent: Mapping[str, int] = field(default_factory=dict)
    epochs: int = 0
    behind: Sequence[str] = ()


def init(
    config: Path | str,
    folder: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8002,
    site: Mapping[str, Any] | None = None,
    requests: bool = False,
) -> dict[str, Path]:
    """Write one start-up kit for each party in the settings; return the kits' folders by party.

    With ``requests``, only the active party and the administrator get a kit.  Every other party makes its own private
    key and requests a certificate from the active party (module ``flare.provisioning``).

    ``site`` contains further settings, which are written into the file ``local/anyparty.toml`` of a party's kit.

    If the settings have the path of a party's table, the path is written into the party's kit. A job never contains the
    path.

    Raises:
        ConfigError: the settings have no active party, or the folder already holds a federation.
    """
    resolved = settings.load(config)
    active = resolved.federation.active
    if active is None:
        raise ConfigError(
            f"{config}: name the active party, federation.active: on separate machines it cannot be found from the "
            "label column"
        )
    roster = Roster(tuple(Party(name=name) for name in resolved.parties), active)
    tables = {name: party.table for name, party in resolved.parties.items() if party.table is not None}
    return flare.init(user_path(folder), roster, host, port, tables=tables, site=site, requests=requests)


def train(
    folder: Path | str,
    config: Path | str,
    changes: Sequence[str] = (),
    *,
    resume: bool = False,
    again: bool = False,
    timeout_s: float = 86_400.0,
    watch: Callback | None = None,
    allow_code: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> JobResult:
    """Train with the connected parties, and wait until the training ends; Ctrl-C stops it at all parties.

    If the parties have trained before, ``resume`` continues the earlier training, and ``again`` replaces it.  The
    callback ``watch`` is called during the training, and the trackers in the settings record it, if the active party's
    kit is on this machine.

    If ``config`` is the settings file in a run's folder, user-defined code is imported only from the modules in
    ``allow_code``. A settings file that the user wrote needs no permission. Each party's own kit determines which code
    may be imported at that party.

    Parties that missed epochs are reported as warnings. ``say`` gets a sentence that says where a resumed training
    continues.

    Raises:
        ConfigError: the settings are invalid, or they enable trackers and the active party's kit is on another machine.
        ResumeError: the parties have trained already, and neither ``resume`` nor ``again`` is set.
        RunError: the federation cannot be reached, or training ended with an error at the active party. The message
            contains ``Incomplete`` if a party's share of the model was not saved, or if ``train.require`` is not met.
    """
    folder, resolved = user_path(folder), settings.load(config, changes, allow_code=allow_code).with_method_defaults()
    scheduled(chosen(resolved), resolved)  # raises an error for invalid settings, before a job is submitted
    check_require(resolved.train.require, flare.read_federation(folder).get("parties", resolved.parties))
    lead = flare.keeps(folder, flare.read_federation(folder)["active"])
    if lead is not None and not resume and not again:
        _check_untrained(folder, lead / FILE)
    not_connected = {*resolved.parties, *_unnamed(folder, resolved)} - _connected(folder)
    if not_connected:
        raise RunError(
            f"{some(sorted(not_connected))} is not connected; start it ('anyparty party start KIT'), then train"
        )
    if lead is None and resolved.track != TrackSettings():
        raise ConfigError("track: the active party's kit is not on this machine, and only the record in that kit has "
                          "the epochs to track; train there, or remove [track]")  # fmt: skip
    absences = Absences()
    watches = CallbackList([absences] if watch is None else [absences, watch])
    watches.each.extend(trackers(resolved, lead, resume=resume))

    def watch_epochs(job: str, waiting: concurrent.futures.Future[Any]) -> None:
        if lead is not None:
            follow(lead / FILE, job, waiting, watches, say)

    with reporting(watches, resolved.model_dump(mode="json", exclude_none=True)) as scores:
        ended = _job(folder, resolved, "train", {"resume": resume}, timeout_s, watch_epochs)
        result = ended.outcomes.get(str(resolved.federation.active), {}).get("result") or {}
        scores["evaluation"] = result.get("evaluation")
    for sentence in result.get("attendance", ()):
        remark(sentence)
    behind = tuple(result.get("behind", ()))
    return replace(ended, absent=absences.count(), epochs=len(absences.epochs), behind=behind)


def predict(
    folder: Path | str,
    config: Path | str,
    parties: Sequence[str] | None = None,
    *,
    timeout_s: float = 86_400.0,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[JobResult, Path | None]:
    """Predict the rows of the active party's table with the connected parties.

    If a party's own settings name a table of new rows, the parties that take part align these rows first.  The
    job does not wait for a party that is not connected; the predictions name it as silent.

    Args:
        folder: the federation's folder.
        config: the settings used in training.
        parties: the parties whose columns may be used; by default all connected parties.
        timeout_s: the maximum time to wait for the end of the prediction, in seconds.
        say: a function that gets a sentence whenever the prediction begins a step or waits for another party.

    Returns:
        The result of the job, and the path of the file of predictions. The second result is ``None`` if the active
        party's kit is on another machine.

    Raises:
        ConfigError: the settings are invalid.
        RunError: the federation cannot be reached, or the prediction ended with an error at the active party.

    """
    folder, resolved = user_path(folder), settings.load(config)
    check_parties(parties or (), resolved.parties, "parties")
    if parties is None:
        _unnamed(folder, resolved)
    federation, there = flare.read_federation(folder), _connected(folder)
    asked = {"asked": None if parties is None else list(parties), "there": sorted(there)}
    away = [
        name for name in federation.get("parties", ()) if name not in there and (parties is None or name in parties)
    ]
    say("the job starts" + (f"; not connected: {', '.join(away)}" if away else ""))
    lead = flare.keeps(folder, federation["active"])

    def watch(job: str, waiting: concurrent.futures.Future[Any]) -> None:
        if lead is not None:
            _tell(lead / PROGRESS, job, waiting, say)

    ended = _job(folder, resolved, "predict", asked, timeout_s, watch)
    file = None if lead is None else lead / ANSWERS
    return ended, file if file is not None and file.exists() else None


def _check_untrained(folder: Path, record: Path) -> None:
    before = RunRecord.read(record) if record.exists() else RunRecord()
    if before.history:
        raise ResumeError(f"{folder}: the parties already have a model, of the training that began "
                          f"{before.began or 'before'} ({len(before.history)} epochs): resume it (--resume, or "
                          "resume=True), or train again and replace it (--again, or again=True)")  # fmt: skip


def _unnamed(folder: Path, resolved: Config) -> list[str]:
    """Return the federation's parties that the settings lack, and warn that these parties take part nevertheless."""
    more = [name for name in flare.read_federation(folder).get("parties", ()) if name not in resolved.parties]
    if more:
        remark(f"the settings do not name {some(more)}, but all parties of the federation in {folder} take part: to "
               "train without them, make another federation (anyparty federate init); to predict without them, name "
               "the others (--parties)")  # fmt: skip
    return more


def _connected(folder: Path) -> set[str]:
    """Return the connected parties, including the active party, which runs the server."""
    return {flare.read_federation(folder)["active"], *flare.status(folder)["sites"]}


def _job(
    folder: Path, resolved: Config, work: str, asked: Mapping[str, Any], timeout_s: float,
    watch: Callable[[str, concurrent.futures.Future[Any]], None],
) -> JobResult:  # fmt: skip
    """Run a job; ``watch(job, ended)`` is called when it is submitted, and returns when ``ended`` is done."""
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(flare.submit, folder, carried(resolved).to_toml(), work=work, asked=asked)
        try:
            job = submitting.result()
            waiting = pool.submit(flare.wait, folder, job, timeout_s, until_led=work == "predict")
            watch(job, waiting)
            status = waiting.result()
        except KeyboardInterrupt:
            # ``exception`` waits until the job is submitted, because only then can it be aborted.
            if submitting.exception() is None:
                flare.abort(folder, submitting.result())
            raise
    name = str(flare.read_federation(folder)["active"])
    here = [each for each in resolved.parties if flare.keeps(folder, each) is not None]
    end = time.monotonic() + OUTCOME_S
    while True:
        found = {each: flare.outcome(folder, each, job) for each in here}
        gone = (found.get(name) or {}).get("gone", {})
        if all(found[each] or each in gone for each in here) or time.monotonic() > end:
            break
        time.sleep(0.1)
    outcomes = {each: outcome for each, outcome in found.items() if outcome is not None}
    leads = outcomes.get(name)
    if leads and leads["error"]:
        others = [f"; {party!r} ended with {each['error']}: {each['sentence']}" for party, each in outcomes.items()
                  if party != name and each["error"] not in {"", "PartyLost"}]  # fmt: skip
        raise RunError(f"job {job}: the active party {name!r} ended with {leads['error']}: {leads['sentence']}"
                       f"{''.join(others)}")  # fmt: skip
    if leads is None and status != flare.COMPLETED:
        raise RunError(f"job {job} has the status {status}, and the active party {name!r} has left no result: if the "
                       "job has ended, site.log in the party's kit says why; if not, it still runs")  # fmt: skip
    return JobResult(job=job, status=status, outcomes=outcomes)


EVERY_S, LOOK_S = 1.0, 0.3
OUTCOME_S = 2.0  # the longest wait for the outcomes of passive parties whose kits are on this machine
SCORES = ("loss", "training", "validation")


def follow(
    record: Path, job: str, ended: concurrent.futures.Future[Any], watch: Callback,
    say: Callable[[str], None] = lambda _: None,
) -> None:  # fmt: skip
    """Report the alignment and every epoch in the job's record to a callback, until the job has ended.

    Args:
        record: the active party's ``record.json``, which it writes after every checkpoint.
        job: FLARE's name for the job.
        ended: a future that is done when the job has ended.
        watch: the callback. Its epoch hooks are called only after the record has been written. Its batch hooks are
            never called.
        say: a function that gets the record's remark on where a resumed training continues.

    """
    reported, resumes = _Reported(watch), set[str]()
    while True:
        over = bool(concurrent.futures.wait([ended], timeout=EVERY_S).done)
        content = _read_record(record, job)
        for sentence in content.get("remarks", ()) if content.get("stages") else ():
            if RESUMES in sentence and sentence not in resumes:
                resumes.add(sentence)
                say(sentence)
        reported.report(content)
        if over:
            break
    if reported.stage:
        how = content.get("status", "running")
        watch.on_stage_end(reported.stage, "cut off" if how == "running" else how)


@dataclass
class _Reported:
    """The events that a callback has already received."""

    watch: Callback
    aligned: bool = False
    aligning: list[int] = field(default_factory=list)
    epochs: list[Mapping[str, Any]] = field(default_factory=list)
    stage: str = ""
    absent: Set[str] = frozenset()

    def report(self, record: Mapping[str, Any]) -> None:
        """Report the new events of a record to the callback: those that the callback has not received yet."""
        aligning = record.get("aligning", [])
        if aligning and aligning != self.aligning and not self.aligned:
            self.aligning = aligning
            self.watch.on_align_progress(*aligning)
        if "overlap" in record and not self.aligned:
            self.watch.on_aligned(Overlap.from_json(record["overlap"]), record["predicted"])
            self.aligned = True
        stages, history = record.get("stages", {}), record.get("history", [])
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.epochs, history, strict=False)))
        if same < len(self.epochs):  # the run was resumed, and has repeated some epochs
            self.epochs, self.stage = self.epochs[:same], ""
        for each in history[same:]:
            self._begin(stages, each["stage"], each["epoch"] - 1)
            scores = {name: _numbers(each[name]) for name in SCORES if name in each}
            self.watch.on_epoch_end({**each, **scores, **self._rejoined(each)})
            self.epochs.append(each)
        for latest in list(stages)[-1:]:
            self._begin(stages, latest, stages[latest]["first_epoch"])

    def _rejoined(self, each: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return the parties that rejoined before an epoch, as ``{"back": parties}``; without such parties, ``{}``.

        A party that was absent when the run stopped, and present when the run was resumed, has rejoined, too.
        """
        absent = each.get("absent", {})
        back = [*each.get("back", ()), *sorted(self.absent - absent.keys())]
        self.absent = absent.keys() - set(back)
        return {"back": back} if back else {}

    def _begin(self, stages: Mapping[str, Mapping[str, int]], stage: str, first_epoch: int) -> None:
        if stage == self.stage:
            return
        if self.stage:
            self.watch.on_stage_end(self.stage, "all epochs done")
        self.stage = stage if stage in stages else ""  # empty if the record has lost the description of this stage
        if self.stage:
            self.watch.on_stage_begin(stage, stages[stage]["epochs"], stages[stage]["rows"], first_epoch)


def _tell(progress: Path, job: str, ended: concurrent.futures.Future[Any], say: Callable[[str], None]) -> None:
    """Pass each new sentence in the file ``progress``, which the active party writes, to ``say``, until a job ends."""
    told = ""
    while not concurrent.futures.wait([ended], timeout=LOOK_S).done:
        now = str(_read_record(progress, job).get("now", ""))
        if now != told:
            say(told := now)


def _numbers(value: Any) -> Any:
    """Return a loss, or scores by name, with NaN in place of None, because JSON stores NaN as null."""
    if isinstance(value, Mapping):
        return {name: _numbers(each) for name, each in value.items()}
    return math.nan if value is None else value


def _read_record(record: Path, job: str) -> dict[str, Any]:
    try:
        content = read_json(record)
    except ModelError:  # the run has not begun, or its record is on another machine
        return {}
    return content if content.get("job") == job else {}
