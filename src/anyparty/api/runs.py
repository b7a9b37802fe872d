"""Work with the folder of a training run: load its model, predict, evaluate; or collect many runs in a frame.

Equivalent commands: ``anyparty evaluate RUN`` is ``evaluate_run("RUN")``, and ``anyparty predict RUN --table
bank=new.csv`` is ``predict_run("RUN", {"bank": "new.csv"})``.
"""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import polars as pl

from anyparty import config as settings
from anyparty.api.arguments import place
from anyparty.api.federation import Federation, read_party
from anyparty.api.model import Model
from anyparty.artifacts.model_files import ModelSummary
from anyparty.artifacts.record import FILE, RunRecord, has_model, place_of
from anyparty.config import Config, SplitSettings
from anyparty.config.method_factory import chosen
from anyparty.config.user_code import allowing
from anyparty.core.declared_types import checked
from anyparty.core.predictions import Predictions
from anyparty.core.storage import inside, read_bytes
from anyparty.errors import ConfigError, ModelError, PredictionError, TableError, UserError, remark, some
from anyparty.methods.method import Method
from anyparty.metrics import METRICS, Evaluation
from anyparty.metrics.worth import Worth
from anyparty.networks.encoders import Factory
from anyparty.problem.rows import assemble
from anyparty.tables import readers
from anyparty.tables.preprocessing import Features
from anyparty.tables.target import encode
from anyparty.training.loop import device_of

ALWAYS = ("method.name", "train.seed")


@checked()
def frame(
    paths: Path | str | Iterable[Path | str], *, settings: Literal["differing", "all"] = "differing"
) -> pl.DataFrame:
    """Return a frame with one row for each run: its status, settings, scores and costs.

    Args:
        paths: a pattern such as ``"sweep/*"``, or the runs' folders.  Folders without a record are left out.
        settings: the settings that become columns.  "differing" selects the method, the seed and all settings that
            differ between the runs.  "all" selects all settings.

    Returns:
        The columns run, status, error, epochs, best_epoch (from 1; 0 if no epoch was chosen) and seconds of training;
        one column for each setting, such as ``train.seed``; the best validation scores, such as
        ``validation.log_loss``; the test scores, such as ``test.accuracy``; the scores of boosted trees on the active
        party's own columns and on all columns in one place, such as ``own.auroc`` and ``pooled.auroc``, the model's
        ``gain.auroc`` over the first and half of its 95 % interval; and bytes_sent by all parties in training.

    Raises:
        ConfigError: no folder has the record of a run.
        ModelError: a record is damaged.
    """
    folders = sorted(map(Path, glob.glob(str(paths)) if isinstance(paths, str | Path) else paths))  # noqa: PTH207
    found = [(folder, RunRecord.read(inside(folder, FILE))) for folder in folders if (folder / FILE).is_file()]
    if not found:
        raise ConfigError(f"{paths}: there is no folder of a run; name them as in frame('sweep/*')")
    each = [dict(_flat(_settings(folder, record))) for folder, record in found]
    keys = dict.fromkeys(key for values in each for key in values)
    differing = [key for key in keys if len({repr(values.get(key)) for values in each}) > 1]
    chosen = list(keys) if settings == "all" else [*ALWAYS, *(key for key in differing if key not in ALWAYS)]
    rows = [
        {**_about(folder, record), **{key: values.get(key) for key in chosen}, **_scores(record)}
        for (folder, record), values in zip(found, each, strict=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _settings(folder: Path, record: RunRecord) -> dict[str, Any]:
    if record.settings:
        return tomllib.loads(record.settings)
    try:
        return tomllib.loads(read_bytes(inside(folder, "config.toml")).decode())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: its settings cannot be read: {error}") from None


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value) if isinstance(value, list) else value


def _about(folder: Path, record: RunRecord) -> dict[str, Any]:
    seconds = sum(entry.seconds or 0.0 for entry in record.history)
    return {"run": folder.name, "status": record.status, "error": record.error or None, "epochs": len(record.history),
            "best_epoch": record.best_epoch, "seconds": seconds}  # fmt: skip


def _scores(record: RunRecord) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for name in dict.fromkeys(name for entry in record.history for name in entry.validation):
        values = [value for entry in record.history if (value := entry.validation.get(name)) is not None]
        best = max if name in METRICS and METRICS[name].greater else min
        scores[f"validation.{name}"] = best(values) if values else None
    if record.evaluation is not None:
        scores |= {f"test.{name}": value for name, value in record.evaluation.overall.items()}
        scores |= {} if (worth := record.evaluation.worth) is None else _gain(Worth.of_json(worth.to_json()))
    return scores | {"bytes_sent": sum(entry.bytes_sent for entry in record.ledger)}


def _gain(found: Worth) -> dict[str, Any]:
    scores = {f"{line.kind}.{name}": value for line in found.lines if line.kind in {"own", "pooled"}
              for name, value in line.scores.items()}  # fmt: skip
    return {**scores, f"gain.{found.metric}": found.difference, f"gain.{found.metric}.half_width": found.half_width}


__all__ = [
    "check_named_tables", "default_folder", "evaluate_run", "federation_of_run", "frame", "hold_out", "model_for_run",
    "own_tables", "predict_run", "record", "settings_of", "tables_from",
]  # fmt: skip


def default_folder(path: Path | str, config: Config) -> Path:
    """Return the run folder for the settings file ``path``: ``run.folder``, or by default a folder beside the file.

    >>> default_folder("work/shop.toml", Config()).as_posix()
    'work/runs/shop-sum-seed0'
    """
    path = place(path, "path")
    name = f"{path.stem}-{config.method.name}-seed{config.train.seed}"
    return config.run.folder or path.parent / "runs" / name


def settings_of(folder: Path | str, *, allow_code: Sequence[str] = ()) -> Config:
    """Return the settings of a run, in which all paths are absolute.

    Args:
        folder: the run's folder.
        allow_code: the user modules that these settings may load; no other user code is imported.

    Raises:
        ModelError: the folder does not hold a run.
    """
    path = inside(place(folder, "folder"), "config.toml")
    if not path.exists():
        if path.with_name("model.json").is_file():
            raise ModelError(f"{folder} is a saved model, not the folder of a run; use it in Python: "
                             f"anyparty.Model.load({str(folder)!r})")  # fmt: skip
        raise ModelError(f"{folder} is not the folder of a run: it has no config.toml; `anyparty train` makes one")
    config = settings.load(path).allowing(allowing(allow_code, str(path)))
    if "split" not in config.model_fields_set:  # in earlier versions, every split was random
        return config.model_copy(update={"split": SplitSettings(kind="random")})
    return config


@checked(by_hand=("folder", "method", "encoders"))
def model_for_run(
    folder: Path | str, *, device: str | None = None, method: Method | None = None,
    encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
) -> Model:  # fmt: skip
    """Load the model of a run.

    The run's settings may refer to a user-defined method or to user-defined encoders. Their code is imported only if
    ``allow_code`` contains its module, or if an installed package registers the code as an entry point.

    Args:
        folder: the run's folder.
        device: the device for the networks; by default the device used in training, or the CPU if this machine does
            not have that device.
        method: the method that was trained, if it is user-defined.
        encoders: for each party, the function that makes its encoder, if it was passed in Python and cannot be
            imported.
        allow_code: modules that the run's settings may load, such as ``("my_methods",)``.

    Raises:
        ModelError: the run does not exist or is unfinished, a file is damaged or from another run, or a user-defined
            method or encoder is not given or differs from the trained one.
        CodeNotAllowed: the settings refer to code that ``allow_code`` does not contain.
        ConfigError: a user-defined method or encoder cannot be imported, or this machine has no such ``device``.
    """
    folder = place(folder, "folder")
    config = settings_of(folder, allow_code=allow_code)
    if device is not None:
        device_of(device, "device")
    record = inside(folder, "record.json")
    if record.exists() and not ((folder / "model.json").exists() and has_model(record)):
        raise ModelError(f"{folder}: this run has not finished; resume it: anyparty train ... --resume, or "
                         f"train(folder={str(folder)!r}, resume=True)")  # fmt: skip
    given = dict(encoders or {})
    made = {name: config.encoder_of(name) for name in _with_own_encoder(config) if name not in given}
    if method is None and _importable(config.method.factory):
        method = chosen(config)
    return Model.load(folder, encoders=made | given, method=method, device=device or _here(config))


def _here(config: Config) -> str:
    """Return the device of a run's training, or "cpu" if this machine does not have that device."""
    try:
        device_of(config.train.device)
    except ConfigError:
        return "cpu"
    return config.train.device


def record(folder: Path | str) -> RunRecord:
    """Read the record of a run: its status, settings, history and scores.  ``record("RUN").plot()`` draws the curves.

    Raises:
        ModelError: the folder does not hold a run, or its record is damaged.
    """
    return RunRecord.read(inside(place(folder, "folder"), "record.json"))


def federation_of_run(folder: Path | str) -> Federation:
    """Re-read the files of the tables that a run was trained on, and return the federation of these tables.

    Raises:
        ModelError: the run does not exist, was trained from data frames, or a table has changed.
        TableError: a table cannot be read or used.
    """
    folder = place(folder, "folder")
    return _unchanged(folder, Federation.from_config(_with_task(folder, _with_tables(folder))))


def _with_task(folder: Path, config: Config) -> Config:
    """Return a run's settings with the task of its model, so that no rule for ``task = "auto"`` decides again."""
    path = folder / "model.json"
    task = ModelSummary.load(path).task if config.federation.task == "auto" and path.is_file() else None
    if task is None or not task.outputs:
        return config
    return config.model_copy(update={"federation": config.federation.model_copy(update={"task": task.kind})})


def _unchanged(folder: Path, federation: Federation) -> Federation:
    """Check that the federation's tables are the run's training tables, and return the federation.

    Raises:
        ModelError: a table has changed, or the run's test rows were listed by their ids, which are not stored.
    """
    if federation.config.split.kind == "ids":
        raise ModelError("the test rows of this run were listed by their ids, and a run's folder stores no ids: give "
                         "tables that have only these rows")  # fmt: skip
    before = RunRecord.read(inside(folder, "record.json")).tables
    for name, table in federation.tables.items():
        if table.fingerprint != before.get(name):
            raise ModelError(
                f"{folder}: the table of party {name!r}, {federation.config.parties[name].table}, changed since the "
                f"run was trained, so its test rows cannot be found again; score other rows with --table, "
                f"or evaluate_run(folder, tables)"
            )
    return federation


@checked(PredictionError, by_hand=("folder", "tables", "method", "encoders"))
def evaluate_run(
    folder: Path | str, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
    method: Method | None = None, encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
) -> Evaluation:  # fmt: skip
    """Score a run's model on the labelled rows of ``tables``; without tables, on the run's held-out test rows.

    Args:
        folder: the run's folder.
        tables: for each party, a file name or data frame with new rows; all labelled rows are scored. Without tables,
            the training tables are read again, and the test rows that the run's seed selects are scored. The same
            happens, with a warning, if ``tables`` are the training tables. Otherwise a warning counts the scored rows
            that the model was trained on, as ``Model.evaluate`` does. A run's folder holds no ids and no hashes of ids,
            so these rows can be counted only while the files of the training tables are unchanged.
        parties: the parties whose columns may be used; by default all parties with a table.
        method: the method that was trained, if it is user-defined.
        encoders: for each party, the function that makes its encoder, if it was passed in Python and cannot be
            imported.
        allow_code: modules that the run's settings may load, such as ``("my_methods",)``.

    Returns:
        The metrics of all scored rows, and metrics grouped by the number and by the set of present parties.

    Raises:
        ModelError: the run does not exist or is unfinished, its files cannot be used, or its tables cannot be read
            again.
        PredictionError: a party is unknown, or no scored row has a label.
        TableError: a table lacks a column that the model was trained on, or has a class that training did not see.
    """
    model = model_for_run(folder, method=method, encoders=encoders, allow_code=allow_code)
    if not tables:
        hold_out(model, federation_of_run(folder))
        return model.evaluate(parties=parties)
    same = [name for name in tables if _as_in_training(place(folder, "folder"), model, name, tables[name])]
    if model.roster.active in same and set(same) == {*tables, *(parties or ())}:
        with suppress(UserError):  # ``from_config`` raises an error if a party's table is missing
            config = check_named_tables(place(folder, "folder"), settings_of(folder), tables)
            config = _with_task(place(folder, "folder"), config)
            hold_out(model, _unchanged(place(folder, "folder"), Federation.from_config(config, tables)))
    if model.test_rows:
        remark("the model was trained on these tables: only the rows that its run held out are scored")
        there = [name for name in same if name in model.roster.blocks]  # ``blocks`` lacks parties that hold only labels
        return model.evaluate(parties=there if parties is None else parties)
    with suppress(UserError):  # the training tables were frames, or have changed
        hold_out(model, federation_of_run(folder))
    scored = model.evaluate(tables, parties)
    if same and model.taught is None:
        remark(
            f"the table of party {some(same)} is the one that the model was trained on, so the model has seen most of "
            "its rows; give another table for an unbiased score"
        )
    return scored


def _as_in_training(folder: Path, model: Model, name: str, source: Any) -> bool:
    """Return True if ``source`` has the fingerprint of the table that the party had in training."""
    config = settings_of(folder)
    if name not in config.parties or name not in model.members:
        return False
    try:
        table = read_party(config, name, source, model.members[name].label, leads=name == model.roster.active)
    except TableError:
        return False
    record = inside(folder, "record.json")
    before = RunRecord.read(record).tables if record.exists() else {}
    return bool(table.fingerprint == before.get(name))


@checked(PredictionError, by_hand=("folder", "tables", "method", "encoders"))
def predict_run(
    folder: Path | str, tables: Mapping[str, Any] | None = None, parties: Sequence[str] | None = None, *,
    method: Method | None = None, encoders: Mapping[str, Factory] | None = None, allow_code: Sequence[str] = (),
) -> Predictions:  # fmt: skip
    """Predict every row of ``tables``; without tables, of the tables that the run was trained on.

    Each row is predicted from the columns of the selected parties that have the row.

    Args:
        folder: the run's folder.
        tables: for each party, a file name or data frame; a party without a table is absent.
        parties: the parties whose columns may be used; by default all parties with a table.
        method: the method that was trained, if it is user-defined.
        encoders: for each party, the function that makes its encoder, if it was passed in Python and cannot be
            imported.
        allow_code: modules that the run's settings may load, such as ``("my_methods",)``.

    Returns:
        For each row the scores [C], the id and the parties that took part, as ``Model.predict`` returns them.

    Raises:
        ModelError: the run does not exist or is unfinished, or its files cannot be used.
        PredictionError: a party is unknown, or no party can be used.
        TableError: a table lacks a column that the model was trained on.
    """
    model = model_for_run(folder, method=method, encoders=encoders, allow_code=allow_code)
    return model.predict(tables or own_tables(folder, parties), parties)


def own_tables(folder: Path | str, parties: Sequence[str] | None = None) -> dict[str, Path]:
    """Return the file of each party's table in the training of a run.

    If ``parties`` is given, missing files of other parties are left out.

    Raises:
        ModelError: the run does not exist, or was trained from data frames.
    """
    own = {name: Path(str(party.table)) for name, party in _with_tables(place(folder, "folder")).parties.items()}
    return {name: path for name, path in own.items() if parties is None or name in parties or readers.exists(path)}


def hold_out(model: Model, federation: Federation) -> None:
    """Select a run's test rows and training rows from its training tables again.

    ``Model.hold_out`` keeps them in memory.
    """
    alignment, tables = federation.alignment, federation.tables
    use = federation.split(federation.config.train)
    features = {
        name: member.prepare.features(tables[name], new=False) if member.prepare else Features.none(len(tables[name]))
        for name, member in model.members.items()
    }
    columns = {name: federation.teaching(name).label for name in tables}
    label_columns = {name: label for name, label in columns.items() if label is not None}
    labels = {name: encode(label, model.task, name) for name, label in label_columns.items()}
    device = model.members[model.roster.active].state.seat.device
    rows = assemble(alignment, model.roster, features, labels, device)
    model.hold_out(rows, alignment, use)


def _with_tables(folder: Path) -> Config:
    """Return a run's settings; raise an error if a party's table was not a file."""
    config = settings_of(folder)
    lacking = [name for name, party in config.parties.items() if party.table is None]
    if lacking or not config.parties:
        raise ModelError(f"{folder}: the run was trained from data frames, not files: its tables are not on disk; "
                         "if the command takes tables, give them: --table party=file, or "
                         "in Python {party: frame}")  # fmt: skip
    return check_named_tables(folder, config)


def check_named_tables(folder: Path, config: Config, given: Collection[str] = ()) -> Config:
    """Check that the tables that a run's settings name may be opened, and return the settings.

    The run of another person could name any file of this machine.  Files outside the run's folder are therefore opened
    only if the run was trained in this folder.  A copy of the folder needs tables that the user names.

    Args:
        folder: the run's folder.
        config: the run's settings.
        given: the parties whose tables the user has named.

    Raises:
        ModelError: the folder is a copy, and its settings name a table outside the folder.
    """
    record = inside(folder, FILE)
    if record.exists() and RunRecord.read(record).place == place_of(folder):
        return config
    for name, party in config.parties.items():
        if name not in given and party.table and not party.table.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{folder}: this folder is a copy, and its settings name the table of {name!r} outside "
                             f"the folder ({party.table}). Such a file is opened only for a run that was trained in "
                             f"this folder; name tables: --table {name}=FILE, in Python {{party: frame}}")  # fmt: skip
    return config


def _with_own_encoder(config: Config) -> list[str]:
    return [name for name in config.parties if _importable(config.encoder_settings(name).factory)]


def _importable(factory: str | None) -> bool:
    """Return False for a lambda, a local function or a function of a script, which cannot be imported by name."""
    return factory is not None and "<" not in factory and not factory.startswith("__main__:")


@checked()
def tables_from(pairs: Sequence[str]) -> dict[str, Path]:
    """Parse ``party=file`` strings into a mapping.

    >>> tables_from(["bank=new/bank.csv"])
    {'bank': PosixPath('new/bank.csv')}

    Raises:
        ConfigError: a string does not have the form ``party=file``, or a party is named twice.
    """
    tables: dict[str, Path] = {}
    for pair in pairs:
        party, equals, file = pair.partition("=")
        if not equals or not party.strip() or not file.strip():
            raise ConfigError(f"--table {pair}: write it as party=file, for example bank=bank.csv")
        if party.strip() in tables:
            raise ConfigError(f"--table: party {party.strip()!r} is named twice; each has one table")
        tables[party.strip()] = Path(file.strip())
    return tables
