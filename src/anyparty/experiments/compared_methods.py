"""The methods to compare: built-in or user-defined, each with its parameters and a label of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from anyparty.api import arguments
from anyparty.config import Config
from anyparty.config.method_factory import METHOD, classes_of, is_rule_class
from anyparty.config.user_code import AllowedCode, load_code
from anyparty.core import declared_types
from anyparty.core.object_description import code_hashes, described, name_of, source_of
from anyparty.errors import ConfigError, continued, nearest, some
from anyparty.methods.method import Method
from anyparty.methods.method_registry import METHODS, parameters_of, settings_of
from anyparty.methods.split.split_method import Split


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """One method of a comparison.

    Attributes:
        label: the method's name in tables and figures.
        method: the name of a built-in method, ``"module:name"``, or a method object.
        parameters: the parameters of a named method.
    """

    label: str
    method: str | Method
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def with_changes(self, changes: Mapping[str, Any]) -> ComparedMethod:
        """Return the method with changes: the entry "method.KEY" sets the parameter KEY if the method has it."""
        if not isinstance(self.method, str):
            return self
        taken = {key for of in _classes(self.method) for key in declared_types.takes(of)}
        fits = {key.removeprefix("method."): value for key, value in changes.items()
                if key.startswith("method.") and key.removeprefix("method.") in taken}  # fmt: skip
        return replace(self, parameters={**self.parameters, **fits})

    @property
    def described(self) -> dict[str, Any]:
        """The method as plain data, from which the names of its runs are derived.

        For a user-defined method, the data include a hash of its source, so that runs are repeated after an edit.
        """
        if isinstance(self.method, str):
            return {"name": self.method, **self.parameters} | _source_of(self.method)
        named = settings_of(self.method)
        return named or described(self.method) | source_hash(self.method, getattr(self.method, "rule", None))


def compared_methods(methods: Any, shared: Mapping[str, Any] | None = None) -> list[ComparedMethod]:
    """Return the methods of a comparison.

    Args:
        methods: a list of names, method objects and rules of split methods, or a mapping from labels to names, objects
            and rules. In a mapping, a value may also be a mapping with the key "name" and the method's parameters.
        shared: parameters for all methods that are given by name; a method gets only the parameters that it has.

    Raises:
        ConfigError: a method or parameter does not exist, two methods have the same label, or no method has one of the
            shared parameters.
    """
    if isinstance(methods, str):
        methods = [name.strip() for name in methods.split(",")]
    if not isinstance(methods, Iterable):
        raise ConfigError(f"methods: expected a list of names and methods, such as ['laser', Split(rule=...)], or a "
                          f"mapping from labels, got {methods!r}")  # fmt: skip
    if isinstance(methods, Mapping) and (wrong := [label for label in methods if not isinstance(label, str)]):
        raise ConfigError(f"methods: expected text as the label of a method, got {wrong[0]!r}")
    labelled = list(methods.items()) if isinstance(methods, Mapping) else [(_label(each), each) for each in methods]
    made = [_compared(label, each, shared or {}) for label, each in labelled]
    labels = [each.label for each in made]
    if not made:
        raise ConfigError("methods: the list is empty; name at least one method")
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(f"methods: {some(twice)} occurs more than once; give a mapping with a label for each, "
                          f"such as {{'wide': {{'name': 'laser', 'embedding': 64}}, ...}}")  # fmt: skip
    unused = [key for key in shared or {} if not any(key in each.parameters for each in made)]
    if unused:
        raise ConfigError(f"parameters: none of the methods has a parameter {unused[0]!r}")
    return made


def _label(method: Any) -> str:
    if isinstance(method, str):
        return method.rpartition(":")[2]
    if isinstance(method, type):
        return method.__name__
    rule = getattr(method, "rule", method)
    return (settings_of(method) or {}).get("name") or type(rule).__name__ if hasattr(method, "can") else repr(method)


def _compared(label: str, method: Any, shared: Mapping[str, Any]) -> ComparedMethod:
    own: dict[str, Any] = {}
    if isinstance(method, Mapping):
        own = dict(method)
        method = own.pop("name", None)
        if not isinstance(method, str):
            raise ConfigError(f"methods: {label!r} needs the key 'name' beside its parameters, got {dict(own)!r}")
    if isinstance(method, type) and is_rule_class(method):
        method = method()
    if hasattr(method, "can") and not hasattr(method, "begin"):
        method = Split(rule=method)
    if not isinstance(method, str):
        arguments.check_kinds(method, None)
        return ComparedMethod(label=label, method=method)
    if ":" not in method and method not in METHODS:
        advice = "a method of your own is 'module:name', or the rule or the method itself"
        raise ConfigError(continued(f"methods: no method {method!r}{nearest(method, METHODS)}", advice))
    taken = {key for of in _classes(method) for key in declared_types.takes(of)}
    fitting = {key: value for key, value in shared.items() if key in taken}
    return ComparedMethod(label=label, method=method, parameters=fitting | own)


def _classes(name: str) -> tuple[Any, ...]:
    if ":" not in name:
        return parameters_of(name)
    return classes_of(load_code(name, "methods", AllowedCode(names=(name,)), METHOD))


def check_methods(methods: Iterable[ComparedMethod], config: Config, training: Mapping[str, Any]) -> None:
    """Check every method and all training settings before any block is removed from a table.

    Raises:
        ConfigError: a parameter or a setting does not exist or is out of range.
    """
    from anyparty.api.training_run import check  # noqa: PLC0415

    for each in methods:
        resolved = arguments.over(config, each.method, each.parameters or None, None, None, training)
        if isinstance(each.method, str):
            check(resolved)


def source_hash(*things: Any) -> dict[str, str]:
    """Return {"code": a hash of the source of user-defined classes and functions}, or {} if all are built-in.

    If the source of a class or function cannot be read, its name is hashed in place of the source.
    """
    digest = hashlib.sha256()
    for each in things:
        of = each if isinstance(each, type | FunctionType) else type(each)
        if not str(of.__module__).startswith(("anyparty.", "builtins", "torch.")):
            digest.update(source_of(of).encode())
    return {"code": digest.hexdigest()[:12]} if digest.digest() != hashlib.sha256().digest() else {}


def _source_of(name: str) -> dict[str, str]:
    return source_hash(load_code(name, "methods", AllowedCode(names=(name,)), METHOD)) if ":" in name else {}


def described_option(value: Any) -> Any:
    """Return an argument of ``Federation.train`` as data; equal arguments give equal data in every process."""
    if isinstance(value, Mapping):
        return {str(key): described_option(each) for key, each in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [described_option(each) for each in value]
    if isinstance(value, type | FunctionType):
        return {"name": value.__qualname__} | code_hashes({"code": value})
    if isinstance(value, partial | MethodType):  # the name also contains the bound arguments or object
        inner = value.func if isinstance(value, partial) else value.__func__
        return {"name": name_of(value)} | source_hash(inner)
    return described(value) | source_hash(value)
