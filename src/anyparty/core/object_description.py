"""Describe objects as plain data, and functions by name, so that another process can compare them.

A dataclass is described by its class name and its fields. Fields with ``repr=False`` or ``compare=False`` are left out,
because they change neither training nor answers. Any other object is described by its class name and by those
constructor arguments that it stores under the same name. Numbers, text, booleans, lists and tables are stored
unchanged. Functions and classes are stored by name. Tensors and arrays are stored by a hash of their numbers. Names do
not include the module, so a description stays valid if a class is moved from a script into a module.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import linecache
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from anyparty.core.types import MessageSpec

CLASS = "class"  # a Python keyword, so no field has this name
DEEPEST = 8
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NO_REPR: Any = object.__repr__


def described(made: object, *, with_defaults: bool = True, code: bool = False, depth: int = 0) -> dict[str, Any]:
    """Return a description of the object ``made`` as data that JSON and TOML can store.

    If ``with_defaults`` is false, values that are equal to their defaults are left out.  If ``code`` is true, lambdas
    and local functions include a hash of their source and of the outer variables that they use.

    >>> from anyparty.methods.method_registry import method
    >>> described(method("laser", embedding=8), with_defaults=False)
    {'class': 'Split', 'rule': {'class': 'Laser'}, 'embedding': 8}
    """
    values: dict[str, Any] = {CLASS: _name(type(made))}
    for name, value, default in _parts(made):
        description = _plain(value, with_defaults, code, depth + 1)
        if (
            with_defaults
            or default is MISSING
            or _plain(value, True, code, depth + 1) != _plain(default, True, code, depth + 1)
        ):
            values[name] = description
    return values


def _parts(made: object) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, value and default of each constructor argument that an object stores under its name."""
    if is_dataclass(made):
        for each in fields(made):
            if each.init and each.repr and each.compare:
                default = each.default_factory() if callable(each.default_factory) else each.default
                # not "is MISSING", because a pickled class may have its own copy of MISSING
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
    kept = dict(getattr(made, "__dict__", {}))
    if isinstance(made, nn.Module):  # parameters, buffers and modules are not in __dict__
        kept |= [*made.named_parameters(recurse=False), *made.named_buffers(recurse=False), *made.named_children()]
    for name, taken in takes.items():
        if name in kept:
            yield name, kept[name], MISSING if taken.default is taken.empty else taken.default


def _plain(value: Any, with_defaults: bool, code: bool, depth: int) -> Any:
    """Convert a value to plain data, so that equal values give equal data in every process."""
    value = value.item() if isinstance(value, np.generic) else value
    # None and NaN as text, because TOML cannot store None, and JSON cannot store NaN
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        value = str(value)
    if isinstance(value, Enum):
        value = f"{_name(type(value))}.{value.name}"
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    if kind is not None:
        return kind(value)
    if depth > DEEPEST:  # the object may contain itself
        return _name(type(value))
    inner = partial(_plain, with_defaults=with_defaults, code=code, depth=depth + 1)
    if isinstance(value, list | tuple):
        return [inner(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(inner, value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): inner(each) for key, each in value.items()}
    return _object(value, with_defaults, code, depth)


def _object(value: Any, with_defaults: bool, code: bool, depth: int) -> Any:
    if isinstance(value, MessageSpec):  # without the descriptions, which later versions may reword
        return f"{value.tag}: {value.frm} → {value.to}"
    if isinstance(value, partial):
        parts = {"of": value.func, "args": value.args, **value.keywords}
        return {CLASS: "partial", **{key: _plain(each, with_defaults, code, depth + 1) for key, each in parts.items()}}
    if isinstance(value, torch.Tensor | np.ndarray):
        return _numbers(value)
    if hasattr(value, "__qualname__"):  # only classes and functions have this attribute
        return _name(value) + (_code(value, depth) if code else "")
    if is_dataclass(value) or isinstance(value, nn.Module) or type(value).__repr__ is _NO_REPR:
        return described(value, with_defaults=with_defaults, code=code, depth=depth)
    return _shown(value)


def _shown(value: Any) -> str:
    try:
        return ADDRESS.sub("", repr(value))
    except Exception:  # a user's ``repr`` may raise any exception
        return _name(type(value))


def _numbers(value: Any) -> str:
    """Describe a tensor or array: its type, dtype, shape and, unless the numbers are trained or absent, their hash."""
    description = f"{_name(type(value))} {value.dtype} {list(value.shape)}"
    if getattr(value, "requires_grad", False) or getattr(value, "is_meta", False):
        return description
    return f"{description} {hashlib.sha256(ADDRESS.sub('', repr(value.tolist())).encode()).hexdigest()[:16]}"


def _name(of: Any) -> str:
    """Return the name of a class or function without module and enclosing function."""
    return str(getattr(of, "__qualname__", type(of).__qualname__)).rpartition("<locals>.")[2]


def name_of(function: Any) -> str:
    """Return "module:name" of a function or an object, for records; different functions have different names.

    The name of an object includes its arguments that differ from the defaults.  The name of a lambda or a local
    function includes a hash of its source and of the outer variables that it uses.

    >>> name_of(nn.CrossEntropyLoss(label_smoothing=0.1))
    'torch.nn.modules.loss:CrossEntropyLoss(label_smoothing=0.1)'
    """
    of = function if hasattr(function, "__qualname__") else type(function)
    name = f"{getattr(of, '__module__', '')}:{of.__qualname__}"
    if of is function:
        return name + _code(function, 0)
    values = _plain(function, False, True, 0)
    if not isinstance(values, dict):
        return f"{name} {values}"
    shown = ", ".join(f"{key}={value!r}" for key, value in values.items() if key != CLASS)
    return f"{name}({shown})" if shown else name


def _code(function: Any, depth: int) -> str:
    """Return " (code HASH)" for a lambda, a local function or a bound method; "" for other functions."""
    if isinstance(function, MethodType) and not isinstance(function.__self__, type):
        parts: Any = _plain(function.__self__, True, True, depth + 1)
    elif isinstance(function, FunctionType) and ("<lambda>" in function.__qualname__ or "<locals>" in
                                                 function.__qualname__):  # fmt: skip
        outside = [function.__defaults__, function.__kwdefaults__, inspect.getclosurevars(function).nonlocals]
        parts = [source_of(function), [_plain(each, True, True, depth + 1) for each in outside]]
    else:
        return ""
    return f" (code {hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]})"


def code_hashes(functions: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the source of each user-defined class or function in ``functions``, by name.

    The hash of a lambda or a local function also depends on the outer variables that it uses.  Other objects have no
    hash.
    """
    hashes = {}
    for name, each in functions.items():
        builtin = str(getattr(each, "__module__", "")).startswith(("anyparty.", "builtins", "torch."))
        if isinstance(each, type | FunctionType) and not builtin:
            text = name_of(each) if "<" in each.__qualname__ else source_of(each)
            hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return hashes


def source_of(of: Any) -> str:
    """Return the source of a class or function; for a lambda, only its arguments and its body.

    If the source is not available, as in an interactive session, return a function's bytecode or a class's name.
    """
    code = getattr(of, "__code__", None)
    try:
        if code is None or code.co_name != "<lambda>":
            return textwrap.dedent(inspect.getsource(of))
        return f"{code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} {_body(code)}"
    except (OSError, TypeError):
        constants = [each for each in code.co_consts if not isinstance(each, CodeType)] if code else []
        return _name(of) if code is None else f"{code.co_code.hex()} {code.co_names} {constants}"


def _body(code: CodeType) -> str:
    """Return the source of a lambda's body.

    Raises:
        OSError: the source is not available.
    """
    lines = linecache.getlines(code.co_filename)
    places = [(line - 1, at, last - 1, end) for line, last, at, end in code.co_positions()
              if line is not None and last is not None and at is not None and end is not None and end > at]  # fmt: skip
    if not lines or not places:
        raise OSError
    (first, begin), (last, end) = min(place[:2] for place in places), max(place[2:] for place in places)
    text = [line.encode() for line in lines[first : last + 1]]  # ``co_positions`` counts bytes, not characters
    text[-1] = text[-1][:end]
    text[0] = text[0][begin:]
    return " ".join(b"".join(text).decode().split())
