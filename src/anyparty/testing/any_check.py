"""Check an object by its kind: a method, a module of ``module_method``, an encoder, or a missingness mechanism."""

from __future__ import annotations

import importlib
import inspect
import operator
from typing import Any

from torch import nn

from anyparty.errors import ConfigError, blamed
from anyparty.methods.split.module_method import module_method
from anyparty.methods.split.rule import Rule
from anyparty.testing.encoder_contract import check_encoder
from anyparty.testing.mechanism_contract import check_mechanism
from anyparty.testing.rule_check import check_method


def check(found: Any, *, inputs: int = 12) -> str:
    """Check a method, an encoder or a mechanism, and return its kind.

    A class is made without arguments first. A class of modules, or a function, with three arguments (K, H, C) is the
    module of a method; with two, (inputs, outputs), it is an encoder.

    Args:
        found: the object, its class, or its name ``"module:name"``, which is imported.
        inputs: the number of columns with which an encoder is tried.

    Returns:
        "method", "encoder" or "mechanism".

    Raises:
        ConfigError: the object fails a check, cannot be imported or made, or is of no such kind.

    """
    name = found if isinstance(found, str) else getattr(found, "__name__", type(found).__name__)
    if isinstance(found, str):
        found = _imported(found)
    is_network = inspect.isfunction(found) or (isinstance(found, type) and issubclass(found, nn.Module))
    if is_network and (count := _arguments(found)) in {2, 3}:
        if count == 3:
            check_method(module_method(found))
            return "method"
        check_encoder(found, inputs=inputs)
        return "encoder"
    if isinstance(found, type) or inspect.isfunction(found):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(f"check: {name} cannot be made without arguments ({blamed(error)}): give an object, or a "
                              "function without arguments that makes one") from error  # fmt: skip
    if callable(getattr(found, "draw", None)):
        check_mechanism(found)
        return "mechanism"
    if isinstance(found, Rule) or hasattr(found, "begin"):
        check_method(found)
        return "method"
    if callable(found) and not isinstance(found, nn.Module):
        check_encoder(found, inputs=inputs)
        return "encoder"
    raise ConfigError("check: expected a rule or method, an encoder (a function of inputs and outputs that makes a "
                      f"module), or a mechanism (an object with draw), got {found!r}")  # fmt: skip


def _arguments(function: Any) -> int:
    """Return the number of arguments without a default value."""
    parameters = inspect.signature(function).parameters.values()
    return sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    if not module or not name or module.endswith(".py") or "/" in module:
        raise ConfigError(f"check: expected module:name, such as my_rules:Maximum, got {reference!r}")
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"check: {reference} cannot be imported ({blamed(error)}): commands search the current "
                          "folder and installed packages") from error  # fmt: skip
