"""Describe a user's own method as plain data. Run folders and models store this description instead of code.

A dataclass is described by its class name and its fields. Fields with ``repr=False`` or ``compare=False`` are left out,
because they change neither training nor answers. Any other object is described by its class name and by those
constructor arguments that it stores under the same name. Numbers, text, truth values, lists and tables are stored
unchanged, functions and classes by name, tensors and arrays by a hash of their numbers. Names do not include the
module, so a class may move from a script into a module.

If the user later passes the method together with a saved model, its description must equal the saved one. In the same
way, the parameters of a shipped method must equal the saved ones. A field that was added to the class after the model
was saved is accepted if it has its default value.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anyparty.core.types import MessageSpec
from anyparty.errors import ModelError
from anyparty.methods.method import Method
from anyparty.methods.method_registry import settings_of
from anyparty.methods.schedules.scheduled import Scheduled

CLASS = "class"  # a Python keyword, so no field has this name
DEEPEST = 8
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NO_REPR: Any = object.__repr__


def described(made: object, *, whole: bool = True, depth: int = 0) -> dict[str, Any]:
    """Convert an object to data that JSON and TOML can store.

    If ``whole`` is false, values that are equal to their defaults are left out.

    >>> from anyparty.methods.method_registry import method
    >>> described(method("laser", embedding=8), whole=False)
    {'class': 'Split', 'rule': {'class': 'Laser'}, 'embedding': 8}
    """
    values: dict[str, Any] = {CLASS: _name(type(made))}
    for name, value, default in _parts(made):
        told = _plain(value, whole, depth + 1)
        if whole or default is MISSING or _plain(value, True, depth + 1) != _plain(default, True, depth + 1):
            values[name] = told
    return values


def _parts(made: object) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, value and default of each constructor argument of an object."""
    if is_dataclass(made):
        for each in fields(made):
            if each.init and each.repr and each.compare:
                default = each.default_factory() if callable(each.default_factory) else each.default
                # a class pickled by value to another process has its own copy of MISSING
                yield (
                    each.name,
                    getattr(made, each.name, None),
                    MISSING if isinstance(default, type(MISSING)) else default,
                )
        return
    try:
        takes = inspect.signature(type(made)).parameters
    except (TypeError, ValueError):  # a class implemented in C may have no signature
        return
    kept = getattr(made, "__dict__", {})
    for name, taken in takes.items():
        if name in kept:
            yield name, kept[name], MISSING if taken.default is taken.empty else taken.default


def _plain(value: Any, whole: bool, depth: int) -> Any:
    """Convert a value to data that is identical in every process."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):  # TOML has no None, JSON no NaN
        value = str(value)
    if isinstance(value, Enum):
        value = f"{_name(type(value))}.{value.name}"
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    if kind is not None:
        return kind(value)
    if depth > DEEPEST:  # stop here, because the object may contain itself
        return _name(type(value))
    inner = partial(_plain, whole=whole, depth=depth + 1)
    if isinstance(value, list | tuple):
        return [inner(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(inner, value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): inner(each) for key, each in value.items()}
    return _object(value, whole, depth)


def _object(value: Any, whole: bool, depth: int) -> Any:
    if isinstance(value, MessageSpec):  # leave out its other texts, which later versions may reword
        return f"{value.tag}: {value.frm} → {value.to}"
    if isinstance(value, partial):
        parts = {"of": value.func, "args": value.args, **value.keywords}
        return {CLASS: "partial", **{key: _plain(each, whole, depth + 1) for key, each in parts.items()}}
    if isinstance(value, torch.Tensor | np.ndarray):
        return _numbers(value)
    if hasattr(value, "__qualname__"):  # a class or a function
        return _name(value)
    if is_dataclass(value) or isinstance(value, nn.Module) or type(value).__repr__ is _NO_REPR:
        return described(value, whole=whole, depth=depth)
    return _shown(value)


def _shown(value: Any) -> str:
    try:
        return ADDRESS.sub("", repr(value))
    except Exception:  # repr of a user's class may fail
        return _name(type(value))


def _numbers(value: Any) -> str:
    """Describe a tensor or array by type, dtype and shape.

    A hash of its numbers follows, unless the tensor requires a gradient or is on the meta device.
    """
    told = f"{_name(type(value))} {value.dtype} {list(value.shape)}"
    if getattr(value, "requires_grad", False) or getattr(value, "is_meta", False):
        return told
    return f"{told} {hashlib.sha256(ADDRESS.sub('', repr(value.tolist())).encode()).hexdigest()[:16]}"


def _name(of: Any) -> str:
    """Return the name of a class or function without its module or enclosing function."""
    return str(getattr(of, "__qualname__", type(of).__qualname__)).rpartition("<locals>.")[2]


def differences(kept: Any, made: object) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which a saved description ``kept`` and a method differ: {name: (saved, present)}.

    >>> from anyparty.methods.method_registry import method
    >>> differences(described(method("laser", embedding=8)), method("laser", embedding=4))
    {'embedding': (8, 4)}
    """
    was, now, given = _flat(kept), _flat(described(made)), _flat(described(made, whole=False))
    keys = [key for key in [*was, *(now.keys() - was.keys())] if key in was or key in given]
    differs = {key: (was.get(key), now.get(key)) for key in sorted(keys) if was.get(key) != now.get(key)}
    classes = {key: pair for key, pair in differs.items() if key.rpartition(".")[2] == CLASS}
    return classes or differs  # fields of different classes cannot be compared


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a description, with those inside it, to {dotted field name: value}; a plain table stays one value."""
    if not isinstance(values, Mapping) or CLASS not in values:
        return {prefix: values}
    within = f"{prefix}." if prefix else ""
    return {name: each for key, value in values.items() for name, each in _flat(value, f"{within}{key}").items()}


def check(source: Path, own: Mapping[str, Any] | None, shipped: Method | None, given: Any) -> None:
    """Check that the method passed for a model is the one that the model was trained with.

    Args:
        source: the model.
        own: the saved description of the user's own method; ``None`` if the model was saved without a description, as
            in earlier versions.
        shipped: the model's method if it is a shipped one, else ``None``.
        given: the method that was passed.

    Raises:
        ModelError: ``given`` is a different method, or not a method.
    """
    if not hasattr(given, "begin"):
        raise ModelError(
            f"{source}: method: expected a method, such as Split(rule=...) of anyparty.methods.split.split_method, "
            f"got {given!r}"
        )
    given = given.split if isinstance(given, Scheduled) else given  # a schedule affects only training
    if shipped is not None:
        was, now = settings_of(shipped, whole=True) or {}, settings_of(given, whole=True) or {}
        if was.get("name") != now.get("name"):
            raise ModelError(f"{source}: trained with {was.get('name')!r}, but another method was passed, "
                             f"{_told(given)}; leave it out, because the model makes its own")  # fmt: skip
        found = {key: (was.get(key), now.get(key)) for key in sorted(was.keys() | now.keys())}
        differs, instead = {key: pair for key, pair in found.items() if pair[0] != pair[1]}, "or leave it out"
    else:
        differs, instead = {} if own is None else differences(own, given), "as it was trained"
    if differs:
        said = "; ".join(f"{key} was {_said(was)}, is {_said(now)}" for key, (was, now) in list(differs.items())[:5])
        raise ModelError(f"{source}: the method that was passed differs from the one that was trained: {said}; pass "
                         f"that one, {instead}")  # fmt: skip


def _told(given: Any) -> str:
    """Return the class name of a method, and of its rule if it has one."""
    rule = getattr(given, "rule", None)
    return _name(type(given)) + ("" if rule is None else f"(rule={_name(type(rule))})")


def _said(value: Any) -> str:
    return "not there" if value is None else repr(value)
