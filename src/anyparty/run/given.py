"""What a user gives in Python where settings would stand: of the right kind, and for parties that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from anyparty.config import ClockSettings, Config, TrainSettings, load
from anyparty.config.user_code import AllowedCode
from anyparty.errors import ConfigError, nearest, some
from anyparty.methods.table import METHODS, parameters_of
from anyparty.nets.mlp import MLP
from anyparty.nets.optimizer import Optimizer
from anyparty.run.holders import check_parties
from anyparty.run.watch import Watch
from anyparty.terms import Roster


def settings(config: Any) -> Config:
    """Return settings, or read those of the file that ``config`` names.

    Raises:
        ConfigError: it is neither, or the file's settings cannot be used.
    """
    if isinstance(config, str | Path):
        return load(config)
    if not isinstance(config, Config):
        raise ConfigError(f'config: expected the name of a settings file, or config.load("FILE.toml"), got '
                          f"{type(config).__name__}; Config.of(...) makes settings of a mapping")  # fmt: skip
    return config


def over(
    config: Config, method: Any, parameters: Mapping[str, Any] | None, schedule: str | Mapping[str, Any] | None,
    clock: Mapping[str, Any] | None, train: Mapping[str, Any],
) -> Config:  # fmt: skip
    """Return settings with what a call of ``Federation.train`` says in place of theirs.

    Raises:
        ConfigError: a setting does not exist or is out of range, or parameters are given beside a method that is made.
    """
    changed: dict[str, Any] = {}
    if isinstance(method, str) and ":" in method:  # the call itself names the code
        config = config.allowing(AllowedCode(names=(method,), everything=config.allowed_code.everything))
    check_mapping(parameters, "parameters", "{'embedding': 32}")
    check_mapping(clock, "clock", "{'latency': 2.0}")
    if isinstance(method, str) or (method is None and parameters):
        chosen = config.method.model_dump() if method is None else {_key(method): method}
        changed["method"] = Config.of({"method": chosen | dict(parameters or {})}, "train").method
    elif parameters:
        raise ConfigError(f"parameters ({some(sorted(parameters))}) go with a method's name; this method is made "
                          "already: give them where it is made")  # fmt: skip
    if schedule is not None:
        named = {"name": schedule} if isinstance(schedule, str) else schedule
        if not isinstance(named, Mapping):
            raise ConfigError(f"schedule: expected a name, as 'flex', or a name with parameters, as "
                              f"{{'name': 'flex', ...}}, got {named!r}; a schedule that is made goes into "
                              f"Scheduled(split=..., schedule=...)")  # fmt: skip
        changed["schedule"] = Config.of({"schedule": named}, "train").schedule
    if clock is not None:
        changed["clock"] = ClockSettings.of(clock, "clock")
    if train:
        _check_homes(train, method if isinstance(method, str) else None if method else config.method.name)
        changed["train"] = TrainSettings.of(config.train.model_dump() | dict(train), "train")
    return config.model_copy(update=changed)


def _check_homes(train: Mapping[str, Any], method: str | None) -> None:
    """Say where a setting goes that is none of training's, but the optimizer's, the encoder's or the method's.

    Raises:
        ConfigError: there is one.
    """
    homes = {each.name: f"encoder=MLP({each.name}=...)" for each in fields(MLP)}
    homes |= {each.name: f"optimizer=Optimizer({each.name}=...)" for each in fields(Optimizer)}
    homes["learning_rate"] = homes["lr"]
    owners = parameters_of(method) if method in METHODS else ()
    homes |= {each.name: f"parameters={{{each.name!r}: ...}}" for owner in owners for each in fields(owner)}
    for name in train:
        if name in homes and name not in TrainSettings.model_fields:
            raise ConfigError(f"train: {name!r} is no setting of training: give {homes[name]}")


def _key(method: str) -> str:
    """Return the setting that names a method: one that ships, or the user's own, "module:name"."""
    return "factory" if ":" in method else "name"


def check_mapping(value: Any, what: str, example: str) -> None:
    """Refuse what is no mapping; ``example`` is one for the sentence, which shows no cell.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"{what}: expected a dict, such as {example}, got {type(value).__name__}")


def folder(named: Any) -> Path | None:
    """Return the folder that is named; an empty name is none, and would be the folder in which one works.

    Raises:
        ConfigError: it is neither a name nor ``None``.
    """
    if named == "" or not isinstance(named, str | Path | None):
        raise ConfigError(f'folder: expected the name of a folder, such as "runs/first", got {named!r}; leave it out '
                          f"to keep the run in memory")  # fmt: skip
    return None if named is None else Path(named)


def check_kinds(method: Any, watch: Any) -> None:
    """Refuse what is no method, or no watcher.

    Raises:
        ConfigError: saying what was expected.
    """
    if isinstance(method, type):
        raise ConfigError(f"method: expected a method, got the class {method.__name__}: make one, as with "
                          f"Split(rule=...)")  # fmt: skip
    if method is not None and not isinstance(method, str) and not hasattr(method, "can"):
        raise ConfigError(f"method: expected a name, or a method such as method('laser'), got {method!r}")
    if hasattr(method, "can") and not hasattr(method, "begin"):
        raise ConfigError(f"method: {method!r} is a rule of a split method: give Split(rule=...), from "
                          f"anyparty.methods.split")  # fmt: skip
    if not isinstance(watch, Watch | None):
        raise ConfigError(f"watch: expected a Watch, a class of yours that inherits from it, got {watch!r}")
    known = [name for name in dir(Watch) if name.startswith("on_")]
    for name in dir(watch):
        if name.startswith("on_") and name not in known:
            raise ConfigError(f"watch: nothing calls {type(watch).__name__}.{name}{nearest(name, known)}")


def by_party(given: Any, roster: Roster, what: str) -> dict[str, Any]:
    """Return a value for each party that has one.

    Raises:
        ConfigError: a party that is not there, or a value of another kind.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        check_parties(given, roster.names, what)
    each = dict(given) if isinstance(given, Mapping) else dict.fromkeys(roster.names, given)
    fits: dict[str, tuple[Any, str]] = {
        "encoder": (Callable, "a function of (inputs, outputs) that makes one, such as MLP(hidden=(64,))"),
        "optimizer": (Optimizer, 'an Optimizer, such as Optimizer(name="sgd", lr=0.1)'),
    }
    kind, wanted = fits[what]
    for name, one in each.items():
        if not isinstance(one, kind):
            raise ConfigError(f"party {name!r}: {what} should be {wanted}, got {one!r}")
    return each
