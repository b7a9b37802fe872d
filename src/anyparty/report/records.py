"""Runs as their records tell them: found on disk, held to one another, put together.

A run in one process has one record.  A run of parties apart has one at every house; those that are given are put
together, after a look at whether they are of one run: job, alignment and every group of settings must be the same.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from anyparty.config.base import Settings
from anyparty.costs import Shape, published
from anyparty.errors import ConfigError, ModelError, some
from anyparty.run.record import FILE, RunRecord
from anyparty.storage import inside, read_json
from anyparty.terms import Declared
from anyparty.wire.flare.site import Site
from anyparty.wire.ledger import Ledger

STATUS = {
    "done": "finished", "running": "not finished, or killed", "stopped": "stopped before its end", "failed": "failed",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        name: what it is called in the report.
        folder: where its model lies, if one process trained it.
        status: "done", "running" (so it says; perhaps it was killed), "stopped" or "failed".
        error: why it failed, in the words of whoever noticed.
        parties: all of them; ``active`` leads.
        settings: as its TOML says, resolved.
        history: one record an epoch.
        best_epoch: counted from 1; 0 if none was chosen.
        rows: N.
        overlap: who has which rows, as ``Overlap.to_json``; ``None`` if no record says.
        evaluation: as ``Evaluation.to_json``; ``None`` if no record says.
        ledger: what crossed, as far as the records say.
        published: what the formulas of a paper say of it, as ``run.costs`` wrote it.
        tables: each party's table's fingerprint.
        versions: by whoever recorded them.
        began, ended: ISO times; ``ended`` is empty for a run that did not say.
        command: what repeats the run: a command, or a line of Python with a method of the user's own for METHOD.
        remarks: what was remarked while it ran, in sentences.
        title: the method's name for people; empty if no record has it.
        declared: the messages that the method declares; none if no record has them.
        lacks: what the records do not say, in sentences.
    """

    name: str
    folder: Path | None
    status: str
    error: str
    active: str
    parties: tuple[str, ...]
    settings: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    best_epoch: int
    rows: int | None
    overlap: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None
    ledger: Ledger
    published: Sequence[Mapping[str, Any]]
    tables: Mapping[str, str]
    versions: Mapping[str, Mapping[str, str]]
    began: str
    ended: str
    command: str
    remarks: tuple[str, ...] = ()
    title: str = ""
    declared: tuple[Declared, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """How it ended, in words, and why where it failed."""
        return STATUS.get(self.status, self.status) + (f": {self.error}" if self.error else "")

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method", {}).get("name", ""))

    @property
    def by_settings(self) -> bool:
        """Whether settings can make the method; else it was given in Python, and is nowhere named."""
        return _by_settings(self.settings)

    @property
    def seed(self) -> int:
        """The root seed."""
        return int(self.settings.get("train", {}).get("seed", 0))


def find(paths: Iterable[Path | str] | Path | str) -> list[Run]:
    """Return the runs that lie at ``paths``, or at one path.

    A path is a run's folder, a federation's folder with kits on this machine, or one party's record or the folder that
    it lies in; the last are put together into one run.

    Raises:
        ModelError: nothing of the kind is there, or parties' records are of different runs.
    """
    runs, apart = [], []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path.is_dir() and (path / "kits").is_dir():
            runs.append(_of_houses(_in_kits(path), path.name, f"anyparty federate train {path} CONFIG.toml"))
            continue
        record = inside(path, FILE) if path.is_dir() else path
        if not record.exists():
            raise ModelError(f"{path} is not a run: expected the folder that `anyparty train` left, the folder of a "
                             f"federation, or a party's {FILE}")  # fmt: skip
        values = _readable(RunRecord.read(record).to_json())
        if "party" in values:
            apart.append((record, values))
        else:
            runs.append(_of_folder(record.parent, values))
    return runs + ([_of_houses(apart, apart[0][1].get("job") or "run", "")] if apart else [])


SAME = ("job", "active", "parties", "alignment")
Kept = tuple[Path, dict[str, Any]]  # where a party's record lies, and what it says


def _in_kits(folder: Path) -> list[Kept]:
    """Return the records of all kits on this machine.

    Raises:
        ModelError: there is none.
    """
    found = []
    for kit in sorted((folder / "kits").iterdir()):
        try:
            path = Site.read(kit.resolve()).folder / FILE
        except ConfigError:  # the administrator's
            continue
        if path.exists():
            found.append((path, _readable(RunRecord.read(path).to_json())))
    if not found:
        raise ModelError(f"{folder}: no party here has a record yet; train first: anyparty federate train")
    return found


def _of_folder(folder: Path, values: Mapping[str, Any]) -> Run:
    """Return the run of one process that a folder holds."""
    lacks = _lacking(values, ("ledger", "overlap", "versions", "tables", "declared"))
    path = inside(folder, "config.toml")
    settings = _toml(path.read_bytes()) if path.exists() else {}
    if not settings:
        lacks.append(f"its settings: {path} is not there, or cannot be read")
    tables = dict(values.get("tables", {}))
    ledger = Ledger.of(values.get("ledger", []))
    parties = tuple(settings.get("parties", {})) or tuple(tables) or tuple(sorted({f.sender for f in ledger.flows}))
    on_disk = all("table" in party for party in settings.get("parties", {}).values())  # else it was given data frames
    command = ""
    if settings and on_disk:
        command = _command(path, _modules(settings), by_settings=_by_settings(settings))
    return Run(
        name=folder.resolve().name or str(folder), folder=folder, parties=parties,
        active=_leader(folder, settings), status=str(values.get("status", "done")),
        error=str(values.get("error", "")), settings=settings,
        history=values.get("history", []), best_epoch=int(values.get("best_epoch", 0)), rows=values.get("rows"),
        overlap=values.get("overlap"), evaluation=values.get("evaluation"), ledger=ledger,
        published=_published(values, {}), tables=tables,
        versions={"": values.get("versions", {})}, began=str(values.get("began", "")),
        ended=str(values.get("ended", "")), command=command, remarks=tuple(values.get("remarks", [])),
        title=str(values.get("title", "")), declared=_declared(values), lacks=tuple(lacks),
    )  # fmt: skip


def _declared(values: Mapping[str, Any]) -> tuple[Declared, ...]:
    return tuple(Declared(**each) for each in values.get("declared", []))


def _by_settings(settings: Mapping[str, Any]) -> bool:
    """Whether settings name the method of a run, and none was given in Python."""
    return not str(settings.get("method", {}).get("name", "")).startswith("own: ")


def _modules(settings: Mapping[str, Any]) -> list[str]:
    """Return the modules of the user's own code that settings name."""
    groups = [settings.get("method", {}), settings.get("encoder", {})]
    groups += [party.get("encoder", {}) for party in settings.get("parties", {}).values()]
    return sorted({str(group["factory"]).partition(":")[0] for group in groups if "factory" in group})


def _command(settings: Path, modules: Sequence[str], *, by_settings: bool) -> str:
    """Return what repeats a run of a folder: in Python where the method has no name for the command line."""
    if by_settings:
        allow = "".join(f" --allow-code {shlex.quote(module)}" for module in modules)
        return f"anyparty train {shlex.quote(str(settings))} --run NEW-FOLDER{allow}"
    return f"Federation.from_config(config.load({str(settings)!r})).train(METHOD, folder='NEW-FOLDER')"


def _leader(folder: Path, settings: Mapping[str, Any]) -> str:
    active = settings.get("federation", {}).get("active")
    if active is None and (folder / "model.json").exists():
        with contextlib.suppress(ModelError):  # the scores say so
            active = read_json(folder / "model.json").get("roster", {}).get("active")
    return str(active or "")


def _of_houses(kept: Sequence[Kept], name: str, command: str) -> Run:
    """Return the run that several parties' records tell of.

    Raises:
        ModelError: they are of different runs, or two are of one party.
    """
    lacks = _same(kept)
    records = {str(values["party"]): values for _, values in kept}
    first = next(iter(records.values()))
    active = str(first.get("active", ""))
    lead, parties = records.get(active, {}), tuple(first.get("parties", records))
    absent = [party for party in parties if party not in records]
    if absent:
        lacks.append(f"the record of {some(absent)}: what {'they' if len(absent) > 1 else 'it'} sent is not counted")
    if not lead:
        lacks.append("the record of the active party, which alone keeps epochs, scores and the overlap")
    errors = [f"{party}: {values['error']}" for party, values in records.items() if values.get("error")]
    status = {str(values.get("status", "done")) for values in records.values()}
    return Run(
        name=name, folder=None, parties=parties, active=active,
        status=next((each for each in ("failed", "stopped", "running") if each in status), "done"),
        error="; ".join(errors), settings=_toml(str(first.get("settings", ""))),
        history=lead.get("history", []), best_epoch=int(lead.get("best_epoch", 0)), rows=first.get("rows"),
        overlap=lead.get("overlap"), evaluation=lead.get("evaluation"),
        ledger=merged(Ledger.of(values.get("ledger", [])) for values in records.values()),
        published=_published(lead, records),
        tables={party: str(values.get("table", "")) for party, values in records.items()},
        versions={party: values.get("versions", {}) for party, values in records.items()},
        began=min((str(values.get("began", "")) for values in records.values()), default=""),
        ended=max((str(values.get("ended", "")) for values in records.values()), default=""),
        command=command, lacks=tuple(lacks), title=str(first.get("title", "")), declared=_declared(first),
        remarks=tuple(dict.fromkeys(
            each for values in records.values() for key in ("remarks", "attendance") for each in values.get(key, [])
        )),
    )  # fmt: skip


def _published(lead: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what formulas come to; some take what a passive party's own record says."""
    shapes = {party: Shape(**values["shape"]) for party, values in records.items() if "shape" in values}
    counted = published(lead.get("costs", {}).get("published", []), shapes)
    return [each for each in counted if "bytes_sent" in each]


def _same(kept: Sequence[Kept]) -> list[str]:
    """Hold parties' records to one another; return what cannot be told.

    Raises:
        ModelError: they are of different runs, or two are of one party.
    """
    lacks, records = [], {}
    for path, values in kept:
        party = str(values["party"])
        lacks += [f"{party}: {what}" for what in _lacking(values, ("alignment", "agreed", "ledger", "declared"))]
        if party in records:
            raise ModelError(f"two records of party {party!r}, {path} is the second; give one of each party")
        records[party] = {**{key: values.get(key) for key in SAME}, **(values.get("agreed") or {})}
    differs = [said for key in dict.fromkeys(key for each in records.values() for key in each)
               if (said := _apart(key, {party: each.get(key) for party, each in records.items()}))]  # fmt: skip
    if differs:
        raise ModelError(f"these are records of different runs: {'; '.join(differs)}; give the records of one run")
    return lacks


def _apart(key: str, values: Mapping[str, Any]) -> str:
    """Say who differs from whom in what; nothing where all that say it say the same."""
    those: dict[str, list[str]] = {}
    for party, value in values.items():
        if value:
            those.setdefault(repr(value), []).append(party)
    if len(those) < 2:
        return ""
    return f"{key} is one at {' and another at '.join(', '.join(each) for each in those.values())}"


def _lacking(values: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    said = {
        "ledger": "what crossed (it has no ledger)", "overlap": "who has which rows", "versions": "versions",
        "tables": "fingerprints of the tables", "declared": "which messages the method declares",
        "alignment": "which alignment it is of",
        "agreed": "with which settings it ran, so that these cannot be compared with the others'",
    }  # fmt: skip
    return [said[key] for key in keys if key not in values]


class _Group(Settings):
    """A group of a run's settings, of which only what a report reads is checked."""

    model_config = ConfigDict(extra="allow")


class _Code(_Group):
    name: str = ""
    factory: str | None = None


class _Party(_Group):
    encoder: _Code = _Code()


class _Federation(_Group):
    active: str | None = None


class _Train(_Group):
    seed: int = 0


class _Settings(_Group):
    federation: _Federation = _Federation()
    parties: dict[str, _Party] = {}
    encoder: _Code = _Code()
    method: _Code = _Code()
    train: _Train = _Train()


def _toml(text: str | bytes) -> dict[str, Any]:
    """Return settings as a report reads them; nothing if they are not TOML or have values of other types."""
    try:
        values = tomllib.loads(text if isinstance(text, str) else text.decode())
        _Settings.of(values)
        json.dumps(values, default=str)  # the page shows settings as JSON: nested too deeply, they cannot be shown
    except (ValueError, RecursionError):  # also a ConfigError
        return {}
    return values


def _readable(value: Any) -> Any:
    """Return a record's values with lone surrogates, which no file and no terminal takes, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_readable(key): _readable(each) for key, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list) else value


def merged(ledgers: Iterable[Ledger]) -> Ledger:
    """Return the sum of several ledgers."""
    whole = Ledger()
    for ledger in ledgers:
        for flow, tally in ledger.flows.items():
            both = whole.flows.setdefault(flow, type(tally)())
            both.messages += tally.messages
            both.bytes_sent += tally.bytes_sent
    return whole
