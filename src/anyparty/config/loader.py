"""Read a TOML settings file, apply changes such as those of ``--set``, and resolve relative paths."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyparty.config.schema import Config, RunSettings, superseded
from anyparty.config.user_code import AllowedCode, allowing
from anyparty.core.storage import read_bytes, user_path
from anyparty.core.types import of_python
from anyparty.errors import ConfigError, locating
from anyparty.tables.readers import located

OTHER = {"name": "factory", "factory": "name"}  # a method has only one of these keys, so setting one removes the other


def load(path: Path | str, changes: Sequence[str] = (), *, allow_code: Iterable[str] = ()) -> Config:
    """Read a TOML settings file, and resolve its relative paths against the file's folder.

    Args:
        path: the file.
        changes: settings that override those of the file, such as ``"train.epochs=5"``.  Changing the ``kind`` or
            ``factory`` of an encoder drops the file's parameters that the new encoder does not take.  Changing the
            method's ``name`` drops its ``factory``, and changing its ``factory`` drops its ``name``.
        allow_code: user modules that the settings may load.  Only settings in a run or model folder need this, because
            the user may not have read them. All other settings files may load any code.

    Raises:
        ConfigError: the file does not exist, is a folder or is not TOML; a key does not exist, a value is out of range,
            or a party is named twice.
    """
    path = user_path(path)
    received = any((path.parent / name).exists() for name in ("record.json", "model.json"))
    try:
        # A received file must be regular and small.  Users may name a pipe, such as <(command) in a shell.
        content = (read_bytes(path) if received else path.read_bytes()).decode("utf-8-sig")  # a mark of some editors
        values = of_python(tomllib.loads(content.replace("\r\n", "\n").replace("\r", "\n")))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file; `anyparty demo` writes one to start from", code="no-file",
                          file=str(path)) from None  # fmt: skip
    except OSError as error:
        what = "is a folder; name a settings file in it" if path.is_dir() else f"cannot be read: {error.strerror}"
        raise ConfigError(f"{path} {what}", file=str(path)) from None
    except RecursionError:
        raise ConfigError(f"{path}: values are nested too deeply for settings; copy the file again",
                          file=str(path)) from None  # fmt: skip
    except ValueError as error:  # not TOML, not UTF-8, or a number with too many digits
        twice = "; a party's name may stand only once" if "Cannot declare" in str(error) else ""
        raise ConfigError(f"{path}: this is not TOML: {error}{twice}{_backslash(error)}", code="not-toml",
                          file=str(path)) from None  # fmt: skip
    with locating(file=str(path)):
        config = from_values(values, changes, source=str(path), folder=path.parent)
    return config.allowing(allowing(allow_code, str(path)) if received else AllowedCode(everything=True))


def config_of(config: Any) -> Config:
    """Return ``config`` if it is a ``Config``; if it is the name of a settings file, load the file.

    Raises:
        ConfigError: ``config`` is neither a ``Config`` nor a file name, or the file's settings cannot be used.
    """
    if isinstance(config, str | Path):
        return load(config)
    if not isinstance(config, Config):
        raise ConfigError(f'config: expected the name of a settings file, or config.load("FILE.toml"), got '
                          f"{type(config).__name__}; Config.of(...) makes settings of a mapping")  # fmt: skip
    return config


def from_values(values: dict[str, Any], changes: Sequence[str] = (), *, source: str, folder: Path) -> Config:
    """Apply ``changes`` to settings in nested dicts, validate them, and resolve relative paths against ``folder``.

    The returned settings may not load user-defined code.

    Raises:
        ConfigError: a key does not exist, or a value is out of range; the message begins with ``source``.
    """
    parsed = [_parsed(change) for change in changes]
    for where, value in parsed:
        _choose(values, where, value)
    for change, (where, value) in zip(changes, parsed, strict=True):
        _apply(values, change, where, value)
    config: Config = Config.of(values, source)
    return _with_paths(config, folder)


def _backslash(error: ValueError) -> str:
    r"""Return a hint for a TOML error that a backslash caused, as in a Windows path; "" for other errors."""
    if not any(word in str(error) for word in ("Unescaped", "hex value", "Unicode")):
        return ""
    return r"; in a path, write / for each \ or use single quotes: table = 'C:\data\shop.csv'"


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a copy of the settings with ``changes`` applied, such as ``{"optimizer.lr": 0.01}``.

    Raises:
        ConfigError: a setting does not exist, or a value is out of range.
    """
    of_method = {name: value for name, value in changes.items() if name.startswith("method.")}
    made = _changed(config, of_method) if of_method else config
    rest = {name: value for name, value in changes.items() if name not in of_method}
    return _changed(made.with_method_defaults(), rest) if rest else made  # the method decides the defaults of the rest


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    values = config.model_dump(exclude_unset=True)
    for name, value in changes.items():
        where = name.split(".")
        _choose(values, where, value)
        _apply(values, f"{name}={value}", where, value)
    made: Config = Config.of(values, "settings")
    return made.allowing(config.allowed_code)


def _parsed(change: str) -> tuple[list[str], Any]:
    """Split the argument ``a.b=value`` of ``--set`` into the path of the key, ``["a", "b"]``, and the value."""
    where, equals, text = change.partition("=")
    if not equals or not where.strip():
        raise ConfigError(f"--set {change}: write it as group.key=value, for example train.epochs=5", setting=change)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return [part.strip() for part in where.split(".")], value


def _choose(values: Any, where: Sequence[str], value: Any) -> None:
    """Remove the settings of the encoder or method that is replaced if ``where`` is set to ``value``."""
    *groups, key = where
    for group in groups:
        values = values.get(group) if isinstance(values, dict) else None
    if isinstance(values, dict) and groups[-1:] == ["encoder"]:
        for name in superseded(key, value):
            values.pop(name, None)
    if isinstance(values, dict) and groups == ["method"] and key in OTHER:
        values.pop(OTHER[key], None)
        values.pop("own", None)  # in a run's config.toml, "own" describes the previous method


def _apply(values: dict[str, Any], change: str, where: Sequence[str], value: Any) -> None:
    *groups, key = where
    for group in groups:
        values = values.setdefault(group, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change}: {group!r} is a value, not a group of settings",
                              setting=".".join(where))  # fmt: skip
    values[key] = value


def _with_paths(config: Config, folder: Path) -> Config:
    """Return the settings with absolute paths; relative paths start from ``folder``."""
    folder = folder.absolute()
    parties = {
        name: party if party.table is None else party.model_copy(update={"table": located(party.table, folder)})
        for name, party in config.parties.items()
    }
    run = config.run if config.run.folder is None else RunSettings(folder=folder / config.run.folder)
    clock = config.clock
    if clock is not None and clock.trace is not None:
        clock = clock.model_copy(update={"trace": folder / clock.trace})
    return config.model_copy(update={"parties": parties, "run": run, "clock": clock})
