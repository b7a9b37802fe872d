"""Recorded runs, as found on disk, and the scores that a report shows.

A run in one process has one record.  A federated run has one record at each party.  Before the parties' records are
merged, they are checked to belong to one run: the job, the alignment and every group of settings must be equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyparty.core.types import Task
from anyparty.errors import AnypartyError, ConfigError, NotGiven
from anyparty.metrics import METRICS, headline

if TYPE_CHECKING:
    from anyparty.methods.method import Method
    from anyparty.networks.encoders import Factory
    from anyparty.report.party_set_scores import PartySetScores
import contextlib
import json
import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from anyparty.artifacts.record import FILE, RunRecord
from anyparty.config.settings_group import Settings
from anyparty.core.costs import PartyShape, published
from anyparty.core.storage import inside, read_bytes, read_json
from anyparty.core.types import MessageSpec
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.errors import ModelError, some
from anyparty.transport.ledger import Ledger

MAX_NAMES = 4  # maximum number of party names in a sentence or a table cell
STATUS = {
    "done": "finished", "running": "not finished, or killed", "stopped": "stopped before its end", "failed": "failed",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run, built from its records.

    Attributes:
        name: the run's name in the report.
        folder: the run's folder, if one process trained it.
        status: "done", "running" (or killed), "stopped" or "failed".
        error: the reason of a failure, as recorded by the party that noticed the failure.
        active: the active party.
        parties: all parties.
        settings: the settings of the run's TOML file, with defaults.
        history: one record for each epoch.
        best_epoch: the chosen epoch, counted from 1; 0 if no epoch was chosen.
        rows: number of rows, N.
        overlap: numbers of rows by set of parties, as ``Overlap.to_json`` returns them; ``None`` if not recorded.
        evaluation: the test scores, as ``Evaluation.to_json`` returns them; ``None`` if not recorded.
        ledger: numbers and bytes of the sent messages; parties without a record are missing.
        published: rounds and bytes of each passive party by the published formulas, as in ``core.costs``.
        tables: the fingerprint of each party's table.
        versions: versions of packages, by the party that recorded them.
        began, ended: ISO times; ``ended`` is empty if the run did not record it.
        command: the command that repeats the run, or a line of Python with METHOD in place of a user-defined method.
        remarks: warnings and remarks of the run, in sentences.
        title: the method's name for readers; empty if not recorded.
        declared: the messages that the method declares; empty if not recorded.
        missing: descriptions of the values that the records lack.
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
    declared: tuple[MessageSpec, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """The status in words, with the error of a run that failed."""
        return STATUS.get(self.status, self.status) + (f": {self.error}" if self.error else "")

    @property
    def purpose(self) -> str:
        """The label that the active party predicts, in a sentence; empty if the settings are not recorded."""
        label = self.settings.get("federation", {}).get("label")
        others = [name for name in self.parties if name != self.active]
        if not (label and self.active and others):
            return ""
        listed = f"{', '.join(others[:-1])} and {others[-1]}" if 1 < len(others) <= MAX_NAMES else others[0]
        rest = f"{len(others)} other parties" if len(others) > MAX_NAMES else listed
        return f"The active party, {self.active}, predicts {label!r} together with {rest}."

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method", {}).get("name", ""))

    @property
    def method_in_settings(self) -> bool:
        """True if the method is in the settings; false if the method was passed as a Python object."""
        return _method_in_settings(self.settings)

    @property
    def seed(self) -> int:
        """The root seed."""
        return int(self.settings.get("train", {}).get("seed", 0))


PartyRecord = tuple[Path, dict[str, Any]]
"""The path of a party's record file, and the values in the file."""


def find_runs(paths: Iterable[Path | str] | Path | str) -> list[RecordedRun]:
    """Return the runs that are recorded at one or several paths.

    A path is a run's folder, a federation's folder with parties' kits on this machine, the file of a party's record, or
    the folder of that file. The records of a federation's kits are merged into one run. All records of parties that are
    given by their paths are merged into one run, too.

    Raises:
        ModelError: a path holds no run, or the parties' records belong to different runs.
    """
    runs, records = [], []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path.is_dir() and (path / "kits").is_dir():
            runs.append(_merge(_records_in_kits(path), path.name, f"anyparty federate train {path} CONFIG.toml"))
            continue
        record = inside(path, FILE) if path.is_dir() else path
        if not record.exists():
            raise ModelError(f"{path} is not a run: expected the folder of a run of `anyparty train`, the folder of a "
                             f"federation, or a party's {FILE}")  # fmt: skip
        values = _printable(RunRecord.read(record).to_json())
        if "party" in values:
            records.append((record, values))
        else:
            runs.append(_run_in(record.parent, values))
    return runs + ([_merge(records, records[0][1].get("job") or "run", "")] if records else [])


def _records_in_kits(folder: Path) -> list[PartyRecord]:
    """Return the record of each party whose kit is in the federation's folder on this machine.

    Raises:
        ModelError: no kit has a record.
    """
    found = []
    for kit in sorted((folder / "kits").iterdir()):
        try:
            path = SiteConfig.read(kit.resolve()).folder / FILE
        except ConfigError:  # for example, the administrator's kit is not a party's kit
            continue
        if path.exists():
            found.append((path, _printable(RunRecord.read(path).to_json())))
    if not found:
        raise ModelError(f"{folder}: no party here has a record yet; train first: anyparty federate train")
    return found


def _run_in(folder: Path, values: Mapping[str, Any]) -> RecordedRun:
    """Return the run that one process recorded in ``folder``; ``values`` are the values of its record."""
    missing = _missing(values, ("ledger", "overlap", "versions", "tables", "declared"))
    path = inside(folder, "config.toml")
    settings = _toml_file(path) if path.exists() else {}
    if not settings:
        missing.append(f"the settings: {path} does not exist or cannot be read")
    tables = dict(values.get("tables", {}))
    ledger = Ledger.of(values.get("ledger", []))
    parties = tuple(settings.get("parties", {})) or tuple(tables) or tuple(sorted({f.sender for f in ledger.flows}))
    # The settings have no path for a table that was passed as a data frame.
    on_disk = all("table" in party for party in settings.get("parties", {}).values())
    command = ""
    if settings and on_disk:
        command = _command(path, _modules(settings), method_in_settings=_method_in_settings(settings))
    return RecordedRun(
        name=folder.resolve().name or str(folder), folder=folder, parties=parties,
        active=_active_party(folder, settings), status=str(values.get("status", "done")),
        error=str(values.get("error", "")), settings=settings,
        history=values.get("history", []), best_epoch=int(values.get("best_epoch", 0)), rows=values.get("rows"),
        overlap=values.get("overlap"), evaluation=values.get("evaluation"), ledger=ledger,
        published=_published(values, {}), tables=tables,
        versions={"": values.get("versions", {})}, began=str(values.get("began", "")),
        ended=str(values.get("ended", "")), command=command, remarks=tuple(values.get("remarks", [])),
        title=str(values.get("title", "")), declared=_declared(values), missing=tuple(missing),
    )  # fmt: skip


def _declared(values: Mapping[str, Any]) -> tuple[MessageSpec, ...]:
    return tuple(MessageSpec(**each) for each in values.get("declared", []))


def _method_in_settings(settings: Mapping[str, Any]) -> bool:
    """Return True if the method is in the settings, False if it was passed as a Python object."""
    return not str(settings.get("method", {}).get("name", "")).startswith("own: ")


def _modules(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules with user code to which the settings refer."""
    groups = [settings.get("method", {}), settings.get("encoder", {})]
    groups += [party.get("encoder", {}) for party in settings.get("parties", {}).values()]
    return sorted({str(group["factory"]).partition(":")[0] for group in groups if "factory" in group})


def _command(settings: Path, modules: Sequence[str], *, method_in_settings: bool) -> str:
    """Return the command that repeats a run, or a line of Python if the settings cannot make the method."""
    if method_in_settings:
        allow = "".join(f" --allow-code {shlex.quote(module)}" for module in modules)
        return f"anyparty train {shlex.quote(str(settings))} --run NEW-FOLDER{allow}"
    return f"Federation.from_config(config.load({str(settings)!r})).train(METHOD, folder='NEW-FOLDER')"


def _active_party(folder: Path, settings: Mapping[str, Any]) -> str:
    active = settings.get("federation", {}).get("active")
    if active is None and (folder / "model.json").exists():
        with contextlib.suppress(ModelError):  # this error is reported when the model is loaded
            active = read_json(folder / "model.json").get("roster", {}).get("active")
    return str(active or "")


def _merge(party_records: Sequence[PartyRecord], name: str, command: str) -> RecordedRun:
    """Return one run, merged from the records of several parties.

    Raises:
        ModelError: the records belong to different runs, or two records belong to one party.
    """
    missing = _check_one_run(party_records)
    records = {str(values["party"]): values for _, values in party_records}
    first = next(iter(records.values()))
    active = str(first.get("active", ""))
    lead, parties = records.get(active, {}), tuple(first.get("parties", records))
    absent = [party for party in parties if party not in records]
    if absent:
        missing.append(
            f"the record of {some(absent)}; {'their' if len(absent) > 1 else 'its'} messages are not counted"
        )
    if not lead:
        missing.append("the record of the active party; only that record has epochs, scores and the overlap")
    errors = [f"{party}: {values['error']}" for party, values in records.items() if values.get("error")]
    status = {str(values.get("status", "done")) for values in records.values()}
    return RecordedRun(
        name=name, folder=None, parties=parties, active=active,
        status=next((each for each in ("failed", "stopped", "running") if each in status), "done"),
        error="; ".join(errors), settings=_toml(str(first.get("settings", ""))),
        history=lead.get("history", []), best_epoch=int(lead.get("best_epoch", 0)), rows=first.get("rows"),
        overlap=lead.get("overlap"), evaluation=lead.get("evaluation"),
        ledger=_sum_ledgers(Ledger.of(values.get("ledger", [])) for values in records.values()),
        published=_published(lead, records),
        tables={party: str(values.get("table", "")) for party, values in records.items()},
        versions={party: values.get("versions", {}) for party, values in records.items()},
        began=min((str(values.get("began", "")) for values in records.values()), default=""),
        ended=max((str(values.get("ended", "")) for values in records.values()), default=""),
        command=command, missing=tuple(missing), title=str(first.get("title", "")), declared=_declared(first),
        remarks=tuple(dict.fromkeys(
            each for values in records.values() for key in ("remarks", "attendance") for each in values.get(key, [])
        )),
    )  # fmt: skip


def _published(lead: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the costs by published formulas that can be computed from the active party's record ``lead``.

    Some formulas also need the shape of a passive party's data, which is in that party's own record.
    """
    shapes = {party: PartyShape(**values["shape"]) for party, values in records.items() if "shape" in values}
    counted = published(lead.get("costs", {}).get("published", []), shapes)
    return [each for each in counted if "bytes_sent" in each]


SAME = ("job", "active", "parties", "alignment")  # keys of a record whose values are equal at all parties of a run


def _check_one_run(party_records: Sequence[PartyRecord]) -> list[str]:
    """Check that parties' records belong to one run; return descriptions of the values that the records lack.

    Raises:
        ModelError: the records belong to different runs, or two records belong to one party.
    """
    missing, records = [], {}
    for path, values in party_records:
        party = str(values["party"])
        missing += [f"{party}: {each}" for each in _missing(values, ("alignment", "agreed", "ledger", "declared"))]
        if party in records:
            raise ModelError(f"two records of party {party!r}, {path} is the second; give one of each party")
        records[party] = {**{key: values.get(key) for key in SAME}, **(values.get("agreed") or {})}
    keys = dict.fromkeys(key for each in records.values() for key in each)
    differences = [_difference(key, {party: each.get(key) for party, each in records.items()}) for key in keys]
    if found := [each for each in differences if each]:
        raise ModelError(f"these are records of different runs: {'; '.join(found)}; give the records of one run")
    return missing


def _difference(key: str, values: Mapping[str, Any]) -> str:
    """Return a sentence on the parties with different values of ``key``; "" if all recorded values are equal."""
    parties: dict[str, list[str]] = {}
    for party, value in values.items():
        if value:
            parties.setdefault(repr(value), []).append(party)
    if len(parties) < 2:
        return ""
    return f"{key} is one at {' and another at '.join(', '.join(each) for each in parties.values())}"


def _missing(values: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    phrases = {
        "ledger": "the ledger of messages", "overlap": "which party has which rows", "versions": "versions",
        "tables": "fingerprints of the tables", "declared": "the messages that the method declares",
        "alignment": "the alignment of the run",
        "agreed": "a fingerprint of the settings, so that they cannot be compared with the other parties'",
    }  # fmt: skip
    return [phrases[key] for key in keys if key not in values]


class _CheckedGroup(Settings):
    """A group of a run's settings, of which only the settings that a report reads are checked."""

    model_config = ConfigDict(extra="allow")


class _CodeGroup(_CheckedGroup):
    name: str = ""
    factory: str | None = None


class _PartyGroup(_CheckedGroup):
    encoder: _CodeGroup = _CodeGroup()


class _FederationGroup(_CheckedGroup):
    active: str | None = None


class _TrainGroup(_CheckedGroup):
    seed: int = 0


class _CheckedSettings(_CheckedGroup):
    federation: _FederationGroup = _FederationGroup()
    parties: dict[str, _PartyGroup] = {}
    encoder: _CodeGroup = _CodeGroup()
    method: _CodeGroup = _CodeGroup()
    train: _TrainGroup = _TrainGroup()


def _toml(text: str | bytes) -> dict[str, Any]:
    """Parse settings in TOML; return an empty dictionary if they are not TOML or a value has a wrong type."""
    try:
        values = tomllib.loads(text if isinstance(text, str) else text.decode())
        _CheckedSettings.of(values)
        json.dumps(values, default=str)  # raises an error for settings that are nested too deeply for the page
    except (ValueError, RecursionError):  # ``ConfigError`` is a subclass of ``ValueError``
        return {}
    return values


def _toml_file(path: Path) -> dict[str, Any]:
    """Return the settings in a file; return an empty dictionary if they cannot be read."""
    try:
        return _toml(read_bytes(path))
    except OSError:
        return {}


def _printable(value: Any) -> Any:
    """Return a record's values with lone surrogates escaped, because files and terminals cannot encode them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list) else value


def _sum_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    whole = Ledger()
    for ledger in ledgers:
        whole.merge(ledger)
    return whole


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The scores of a run.

    Attributes:
        sets: scores of the model by set of parties; ``None`` if the model is not loaded.
        reason: the reason why the model is not loaded.
        metric: the metric that the user asked for.
    """

    sets: PartySetScores | None = None
    reason: str = ""
    metric: str | None = None

    @classmethod
    def of(
        cls, run: RecordedRun, metric: str | None = None, *, model: bool = False, method: Method | None = None,
        encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
    ) -> RunScores:  # fmt: skip
        """Return the recorded scores of a run, or load its model and score it again on its test rows.

        Args:
            run: the run.
            metric: the metric; by default accuracy, or RMSE for a regression.
            model: whether to load the model.  Methods are imported only if the model is loaded.
            method: the trained method, if it is user-defined.
            encoders: for each party, the factory of its network, if it is user-defined.
            allow_code: modules that the run's settings may load, as in ``model_for_run``.

        Raises:
            ConfigError: the metric is unknown, does not fit the task, or is not recorded and ``model`` is false.
        """
        _check_metric(run, metric, model=model)
        if not model:
            return cls(reason="the report read only records; --model, or model=True in Python, also loads the "
                              "models", metric=metric)  # fmt: skip
        if run.folder is None:
            return cls(reason="each party keeps its own part of the model, so that this report cannot score sets of "
                              "parties", metric=metric)  # fmt: skip
        # Imported here, because a report from records alone must not import methods.
        from anyparty.report.party_set_scores import PartySetScores, load_with_test_rows  # noqa: PLC0415

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # these warnings were shown during training
                tested = load_with_test_rows(run.folder, method=method, encoders=encoders, allow_code=allow_code)
        except NotGiven as error:
            name, _, value = error.argument.partition("=")
            own = f"methods={{{run.name!r}: METHOD}}" if name == "method" else f"encoders={{{run.name!r}: {value}}}"
            return cls(reason=f"{error.lacks}; give it in Python, page.write(..., {own})", metric=metric)
        except (AnypartyError, OSError) as error:
            return cls(reason=str(error), metric=metric)
        return cls(sets=PartySetScores.of(tested, metric), metric=metric)


def recorded_metric(run: RecordedRun, metric: str | None = None) -> str | None:
    """Return the recorded metric to show: ``metric``, accuracy or RMSE; ``None`` if the record has no metric."""
    recorded = (run.evaluation or {}).get("overall", {})
    return next((name for name in (metric, "accuracy", "rmse") if name in recorded), None)


def _check_metric(run: RecordedRun, metric: str | None, *, model: bool) -> None:
    """Check that a metric fits the recorded task and, if the model is not loaded, that the metric is recorded.

    Raises:
        ConfigError: the metric is unknown, does not fit the task, or is not recorded and ``model`` is false.
    """
    if metric is None:
        return
    found = run.evaluation
    if found is not None:
        headline(Task(kind=found["task"], classes=tuple(found["classes"])), metric)
        if not model and metric not in found["overall"]:
            recorded = ", ".join(name for name in found["overall"] if name in METRICS)
            raise ConfigError(f"--metric {metric}: the record of {run.name} has only {recorded}; choose one of them, "
                              f"or score the model again with --model")  # fmt: skip
    elif metric not in METRICS:
        headline(Task(kind="regression"), metric)
