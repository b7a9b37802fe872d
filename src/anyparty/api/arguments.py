"""Validate the arguments of calls in Python: their types, and the names of parties."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from anyparty.config import ClockSettings, Config, SplitSettings, TrainSettings
from anyparty.config.label_columns import check_parties
from anyparty.config.user_code import AllowedCode
from anyparty.core.storage import user_path
from anyparty.core.types import Roster
from anyparty.errors import ConfigError, PredictionError, nearest, some
from anyparty.methods.method import PartyContext
from anyparty.methods.method_registry import METHODS, parameters_of
from anyparty.networks.encoders import MLP, Factory, describe
from anyparty.networks.optimizer import CustomOptimizer, Optimizer, optimizer_from
from anyparty.problem.splits import PARTS
from anyparty.tables.data_frames import series_of
from anyparty.tables.ids import JOINT, id_texts, normalized
from anyparty.tables.table import Table
from anyparty.training.callbacks import Callback


def over(
    config: Config, method: Any, parameters: Mapping[str, Any] | None, schedule: str | Mapping[str, Any] | None,
    clock: Mapping[str, Any] | None, train: Mapping[str, Any],
) -> Config:  # fmt: skip
    """Return a copy of the settings ``config`` in which arguments of ``Federation.train`` replace values.

    ``train`` holds the arguments for the settings group [train], such as ``epochs``.

    Raises:
        ConfigError: a setting does not exist or is out of range, or ``parameters`` are given with a method object.
    """
    changed: dict[str, Any] = {}
    if isinstance(method, str) and ":" in method:  # by passing "module:name", the caller allows its import
        config = config.allowing(AllowedCode(names=(method,), everything=config.allowed_code.everything))
    if isinstance(method, str) or (method is None and parameters):
        key = "factory" if method is not None and ":" in method else "name"  # "module:name" refers to user code
        chosen = config.method.model_dump() if method is None else {key: method}
        changed["method"] = Config.of({"method": chosen | dict(parameters or {})}, "train").method
    elif parameters:
        raise ConfigError(f"parameters ({some(sorted(parameters))}) only apply to a method's name, but a method "
                          "object was given: pass them to its constructor")  # fmt: skip
    if schedule is not None:
        named = {"name": schedule} if isinstance(schedule, str) else schedule
        if not isinstance(named, Mapping):
            raise ConfigError(f"schedule: expected a name, as 'flex', or a name with parameters, as "
                              f"{{'name': 'flex', ...}}, got {named!r}; pass a schedule object as "
                              "Scheduled(split=..., schedule=...)")  # fmt: skip
        changed["schedule"] = Config.of({"schedule": named}, "train").schedule
    if clock is not None:
        changed["clock"] = ClockSettings.of(clock, "clock")
    if train:
        if not train.keys() <= TrainSettings.model_fields.keys():
            _check_homes(train, method if isinstance(method, str) else None if method else config.method.name)
        changed["train"] = TrainSettings.of(config.train.model_dump(exclude_unset=True) | dict(train), "train")
    made = config.model_copy(update=changed)
    return made.with_method_defaults() if method is None or isinstance(method, str) else made


def _check_homes(train: Mapping[str, Any], method: str | None) -> None:
    """Reject training settings that belong to the optimizer, the encoder or the method ``method``.

    Raises:
        ConfigError: ``train`` contains such a setting; the message names the argument that takes the setting.
    """
    homes = {each.name: f"encoder=MLP({each.name}=...)" for each in fields(MLP)}
    homes |= {each.name: f"optimizer=Optimizer({each.name}=...)" for each in fields(Optimizer)}
    homes["learning_rate"] = homes["lr"]
    owners = parameters_of(method) if method in METHODS else ()
    homes |= {each.name: f"parameters={{{each.name!r}: ...}}" for owner in owners for each in fields(owner)}
    for name in train:
        if name in homes and name not in TrainSettings.model_fields:
            raise ConfigError(f"train: {name!r} is not a setting of [train]: use {homes[name]}")


def folder(named: Any) -> Path | None:
    """Return the argument ``named`` as a path; ``None`` stays ``None``.

    An empty name is rejected, because it would mean the current working directory.

    Raises:
        ConfigError: ``named`` is neither a non-empty name nor ``None``.
    """
    if named == "" or not isinstance(named, str | Path | None):
        raise ConfigError(f'folder: expected the name of a folder, such as "runs/first", got {named!r}; leave it out '
                          f"to keep the run in memory")  # fmt: skip
    return None if named is None else user_path(named)


def place(named: Any, what: str) -> Path:
    """Convert the name of a file or folder to a path, with ``~`` replaced by the home folder.

    Raises:
        ConfigError: ``named`` is not a non-empty name; the message begins with ``what``, the name of the argument.
    """
    if named == "" or not isinstance(named, str | Path):
        raise ConfigError(f'{what}: expected a name, such as "runs/first", got {named!r}')
    return user_path(named)


def check_kinds(method: Any, watch: Any) -> None:
    """Check the types of the argument ``method`` and of the callback ``watch``; each may be ``None``.

    Raises:
        ConfigError: one of them has the wrong type, or the callback has an unknown function ``on_...``, which would
            never be called.
    """
    if isinstance(method, type):
        raise ConfigError(f"method: expected a method, got the class {method.__name__}: make one, as with "
                          f"Split(rule=...)")  # fmt: skip
    if method is not None and not isinstance(method, str) and not hasattr(method, "can"):
        raise ConfigError(f"method: expected a name, or a method such as method('laser'), got {method!r}")
    if hasattr(method, "can") and not hasattr(method, "begin"):
        raise ConfigError(
            f"method: {method!r} is a rule of a split method: give Split(rule=...), from "
            f"anyparty.methods.split.split_method"
        )
    if watch is None:
        return
    if not isinstance(watch, Callback):
        raise ConfigError(f"watch: expected a Callback, a class of yours that inherits from it, got {watch!r}")
    known = [name for name in dir(Callback) if name.startswith("on_")]
    for name in dir(watch):
        if name.startswith("on_") and name not in known:
            raise ConfigError(f"watch: nothing calls {type(watch).__name__}.{name}{nearest(name, known)}")


def by_party(given: Any, roster: Roster, what: str) -> dict[str, Any]:
    """Return an argument's value for each party, in a mapping.

    A single value applies to all parties. ``None`` gives an empty mapping.

    Raises:
        ConfigError: a party is unknown. The message begins with ``what``, the name of the argument.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        check_parties(given, roster.names, what)
    return dict(given) if isinstance(given, Mapping) else dict.fromkeys(roster.names, given)


def encoders(given: Any, roster: Roster) -> dict[str, Factory]:
    """Return, for each party, the function that makes its encoder, in place of the encoder in the settings.

    ``given`` is a function for all parties, a mapping from parties to functions, or ``None``.

    Raises:
        ConfigError: a party is unknown, or a value is not a function.
    """
    each = by_party(given, roster, "encoder")
    for name, one in each.items():
        if not callable(one) or isinstance(one, nn.Module):
            raise ConfigError(f"party {name!r}: encoder should be a function of (inputs, outputs) that makes one, such "
                              f"as MLP(hidden=(64,)), got {one!r}")  # fmt: skip
    return each


def split_by(
    split: Any, tables: Mapping[str, Table], active: str, config: Config
) -> tuple[Mapping[str, Table], Config]:
    """Apply the argument ``split`` of ``Federation.train``, and return the changed tables and settings.

    Raises:
        ConfigError: an id, a part or a kind of split cannot be used.
    """
    if split is None:
        return tables, config
    if isinstance(split, Mapping) and split.keys() & PARTS.keys():
        known = pl.concat([table.ids.alias("id") for table in tables.values()])
        parts = listed_parts(split, tables[active], known, config.federation.id_normalize)
        table = replace(tables[active], part_by=parts)
        return {**tables, active: table}, config.model_copy(update={"split": SplitSettings(kind="ids")})
    kinds = Config.of({"split": {"kind": split} if isinstance(split, str) else split}, "train").split
    if kinds.column != config.split.column:
        raise ConfigError(f"split: column {kinds.column!r} is read with the tables: give this split to "
                          "Federation.from_tables, or write it in the settings")  # fmt: skip
    return tables, config.model_copy(update={"split": kinds})


def listed_parts(
    split: Mapping[str, Any], table: Table, known: pl.Series, normalize: Sequence[str] = ()
) -> pl.Series:  # fmt: skip
    """Return the part ("train", "validation" or "test") of each row of the active party's table [n].

    A row that ``split`` does not list has null.

    Args:
        split: for each part, the ids of its rows.
        table: the active party's table, with n rows.
        known: the ids in the tables of all parties.
        normalize: the changes that ids get before they are compared.

    Raises:
        ConfigError: a key of ``split`` is unknown, an id is unknown or listed twice, a row for validation or test has
            no label, or there is no row for training.
    """
    check_parts(split)
    columns = [] if table.id_columns is None else table.id_columns.columns
    listed = [
        pl.DataFrame({"id": _as_ids(list(ids), columns, normalize, f"split, {part}")}).with_columns(part=pl.lit(part))
        for part, ids in split.items()
    ]
    frame = pl.concat(listed)
    if len(twice := frame["id"].filter(frame["id"].is_duplicated()).unique(maintain_order=True)):
        raise ConfigError(f"split: id {some(twice)} is listed twice; list each id once")
    if len(unknown := frame["id"].filter(~frame["id"].is_in(known.implode()))):
        raise ConfigError(f"split: no party has the id {some(unknown)}{nearest(unknown[0] or '', known.to_list())}")
    part = table.ids.replace_strict(frame["id"], frame["part"], default=None, return_dtype=pl.String).alias("split")
    assert table.label is not None
    labelled = table.ids.filter(table.label.is_not_null())
    scored = frame.filter(pl.col("part") != "train")["id"]
    if len(lacking := scored.filter(~scored.is_in(labelled.implode()))):
        raise ConfigError(f"split: id {some(lacking)} is for validation or test, and has no label; leave it out")
    if not (part == "train").any():
        raise ConfigError('split: no row of the active party is for training; list ids for "train"')
    return part


def _as_ids(ids: Sequence[Any], columns: Sequence[str], normalize: Sequence[str], where: str) -> pl.Series:
    """Convert listed ids to the form of ``Table.ids``; an id of several ``columns`` is a tuple of values.

    Raises:
        ConfigError: an id is not a tuple with a value for each column.
        TableError: an id is missing, or is neither text nor a number.
    """
    if not ids:
        return pl.Series("id", [], dtype=pl.String)
    rows = [each if isinstance(each, tuple) else (each,) for each in ids]
    if wrong := [each for each in rows if len(each) != max(1, len(columns))]:
        raise ConfigError(f"{where}: expected ids of the columns {some(columns)}, such as a tuple with a value for "
                          f"each, got {wrong[0]!r}")  # fmt: skip
    columns_of = [series_of("id", list(part), where) for part in zip(*rows, strict=True)]
    parts = [normalized(id_texts(column, where), normalize) for column in columns_of]
    return parts[0] if len(parts) == 1 else pl.select(pl.concat_str(parts, separator=JOINT)).to_series().alias("id")


def check_parts(split: Mapping[str, Any]) -> None:
    """Check that a split maps "train", "validation" and "test" to lists of ids.

    Raises:
        ConfigError: the split has another key, or its value is not a list of ids.
    """
    for part, ids in split.items():
        if part not in PARTS:
            raise ConfigError(f"split: there is no part {part!r}{nearest(part, PARTS)}")
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise ConfigError(f"split: expected a list of ids for {part!r}, got {type(ids).__name__}")
        if nested := [each for each in ids if not isinstance(each, Hashable)]:
            raise ConfigError(f"split: expected ids for {part!r}, got {nested[0]!r} in their list")


def optimizers(
    given: Any, scheduler: Any, config: Config, roster: Roster, clip: float | None = None
) -> dict[str, Optimizer]:  # fmt: skip
    """Return, for each party, the optimizer that replaces the optimizer of the settings.

    ``given``, ``scheduler`` and ``clip`` are the arguments ``optimizer``, ``scheduler`` and ``clip`` of
    ``Federation.train``.

    Raises:
        ConfigError: a party is unknown, a value has the wrong type, or a value is a function although the settings have
            a schedule, which sets the learning rates.
    """
    each = by_party(given, roster, "optimizer")
    names = roster.names if scheduler is not None or clip is not None else tuple(each)
    found = {name: optimizer_from(each.get(name), scheduler, config.optimizer_of(name), name, clip) for name in names}
    if config.schedule is not None and any(isinstance(one, CustomOptimizer) for one in found.values()):
        raise ConfigError(f"optimizer and scheduler: a function cannot be used with schedule = "
                          f"{config.schedule.name!r}, which sets the rates; give Optimizer(lr=...)")  # fmt: skip
    return found


def whom_to_ask(roster: Roster, tables: Any, parties: Sequence[str] | None) -> list[str]:
    """Return the parties that can be used in a prediction: parties with columns and a table, in the roster's order.

    ``parties`` restricts the result to some of the parties.

    Raises:
        PredictionError: ``tables`` is not a mapping, a name is not the name of a party, a party in ``parties`` has no
            columns or no table, or no party is left.
    """
    if not isinstance(tables, Mapping):
        one = roster.active
        raise PredictionError(f"tables: expected a table by the name of its party, {{{one!r}: ...}}, got "
                              f"{type(tables).__name__}")  # fmt: skip
    for what, names in (("tables", tables), ("parties", parties or ())):
        for name in names:
            if name not in roster.names:
                raise PredictionError(f"{what}: the model has no party {name!r}{nearest(name, roster.names)}")
    asked = [name for name in roster.blocks if name in tables and (parties is None or name in parties)]
    for name in parties or ():
        if name not in roster.blocks:
            raise PredictionError(f"party {name!r} holds no columns that could take part; leave it out of parties")
    lacking = [name for name in parties or () if name not in tables]
    if lacking:
        raise PredictionError(f"party {lacking[0]!r} is listed in parties, but has no table: add it to tables")
    if not asked:
        raise PredictionError("tables, parties: no party with columns was selected; name at least one")
    return asked


def no_test_rows(shipped: bool, seats: Iterable[PartyContext]) -> PredictionError:
    """Return the error that a loaded model has no test rows in memory.

    Args:
        shipped: whether the method is built in. If not, the error asks the user to pass the method again.
        seats: the parties' contexts. If one of them has a user-defined encoder, the error asks the user to pass it
            again.
    """
    own = any(seat.inputs and describe(seat.encoder) is None for seat in seats)
    given = [*([] if shipped else ["method=..."]), *(["encoders=..."] if own else [])]
    also = f"; pass {' and '.join(given)} to these, too" if given else ""
    return PredictionError(
        "this model has no test rows in memory: give tables; to read a run's tables again, use "
        f"anyparty.api.runs.evaluate_run(folder), or predict_run(folder){also}"
    )
