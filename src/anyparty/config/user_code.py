"""Import user-defined code to which settings refer as ``"module:Name"``, if the user has allowed this code.

Importing a module runs its code, so a name in a file is never a sufficient permission.  Code is loaded in two cases:

- the user allows its module in the same call: ``--allow-code MODULE`` on the command line, ``allow_code=("MODULE",)``
  in Python, or a settings file that the user wrote and passes to ``anyparty train``;
- an installed package registers the same ``module:Name`` as an entry point, group ``anyparty.methods`` or
  ``anyparty.encoders``.

In both cases, the named object must be a method, or make a method or a network.  A class or a function must also be
defined in the named module.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from torch import nn

from anyparty.errors import CodeNotAllowed, ConfigError, blamed, nearest
from anyparty.networks.encoders import Factory


@dataclass(frozen=True, kw_only=True)
class AllowedCode:
    """The permission to import user-defined code, to which a settings file refers as ``"module:Name"``.

    Attributes:
        names: allowed modules or packages (``"my_package"`` covers ``"my_package.rules:Mine"``), or whole references.
        everything: whether every reference may be imported, as for a settings file that the user wrote.
        source: the file that refers to the code, for error messages.

    """

    names: tuple[str, ...] = field(default=(), compare=False)  # settings are equal if only their permissions differ
    everything: bool = field(default=False, compare=False)
    source: str = field(default="", compare=False)

    def permits(self, reference: str, group: str) -> bool:
        """Return True if ``reference`` may be imported; entry points in ``group`` are always permitted."""
        module = reference.partition(":")[0]
        named = any(reference == name or f"{module}.".startswith(f"{name}.") for name in self.names)
        return self.everything or named or any(point.value == reference for point in entry_points(group=group))


NOTHING = AllowedCode()


@dataclass(frozen=True, kw_only=True)
class CodeKind:
    """The kind of object, such as an encoder, to which a reference ``"module:Name"`` in the settings must refer.

    Attributes:
        group: the group of entry points that may be loaded without further permission.
        expected: a description of the kind, for error messages.
        is_class: returns True for a class of this kind.
        is_made: returns True for an instance of this kind.

    """

    group: str
    expected: str
    is_class: Callable[[type], bool]
    is_made: Callable[[object], bool] = lambda found: False  # noqa: ARG005


ENCODER = CodeKind(
    group="anyparty.encoders",
    expected="a subclass of torch.nn.Module that takes (inputs, outputs), or a function annotated to return one",
    is_class=lambda found: issubclass(found, nn.Module),
)


def load_encoder(reference: str, setting: str, allowed: AllowedCode) -> Factory:
    """Import the factory of a user-defined encoder.

    Raises:
        CodeNotAllowed: the user has not allowed the reference.
        ConfigError: the factory cannot be imported, or is not an encoder.
    """
    factory: Factory = load_code(reference, setting, allowed, ENCODER)
    return factory


def load_code(reference: str, setting: str, allowed: AllowedCode, kind: CodeKind) -> Any:
    """Import a user-defined class, function or object.

    Args:
        reference: the module and the object's name in it, ``"module:Name"``.
        setting: the name of the setting that holds the reference, for error messages.
        allowed: the references that may be imported.
        kind: the kind of object to which the reference must refer.

    Raises:
        CodeNotAllowed: the user has not allowed the reference.
        ConfigError: the reference is malformed or refers to a module of the standard library; the module cannot be
            imported or lacks the name; or the object is of another kind, or is defined in another module.
    """
    module = check_reference(reference, setting, allowed, kind)
    fails = f"{setting}: cannot import factory {reference!r}"
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{fails}: there is no module {error.name!r}; commands search the folder of the "
                              "settings file, the current folder and among installed packages") from None  # fmt: skip
        raise ConfigError(f"{fails}: {blamed(error)}") from error
    found = _attribute(imported, reference.partition(":")[2], fails)
    if problem := _misfit(found, module, kind):
        raise ConfigError(f"{setting}: factory {reference!r} is {problem}; expected {kind.expected}, defined in "
                          f"{module!r}")  # fmt: skip
    return found


def check_reference(reference: str, setting: str, allowed: AllowedCode, kind: CodeKind) -> str:
    """Check a reference ``"module:Name"`` before its module is imported, and return the module's name.

    Raises:
        CodeNotAllowed: the user has not allowed the reference.
        ConfigError: the reference is malformed, or refers to a module of the standard library.
    """
    fails = f"{setting}: cannot import factory {reference!r}"
    module, _, name = reference.partition(":")
    if not module or not name or ":" in name or "/" in module or module.startswith(".") or module.endswith(".py"):
        raise ConfigError(f"{fails}: write it as 'module:name'")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"{fails}: {module!r} is a module of Python's standard library, which has no method and no "
                          f"encoder; name a module of your own")  # fmt: skip
    if not allowed.permits(reference, kind.group):
        where = f"{allowed.source}: " if allowed.source else ""
        raise CodeNotAllowed(
            f"{where}{setting} names the code {reference!r}, and a file never runs code by itself. If you trust this "
            f"code, allow it in this call: --allow-code {module}, in Python allow_code=({module!r},); or install its "
            f"package with an entry point in the group {kind.group!r}"
        )
    return module


def allowing(allow_code: Iterable[str], source: str = "") -> AllowedCode:
    """Return permission to import the modules in ``allow_code``.

    Raises:
        ConfigError: ``allow_code`` is a string instead of a list, or an item is not a non-empty string.
    """
    names = () if isinstance(allow_code, str) else tuple(allow_code)
    if isinstance(allow_code, str) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f'allow_code: expected names of modules, such as ("my_methods",), got {allow_code!r}')
    return AllowedCode(names=names, source=source)


def _attribute(module: ModuleType, name: str, fails: str) -> object:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise ConfigError(f"{fails}: {module.__file__ or module.__name__} has no {name!r}"
                          f"{nearest(name, known) if known else ''}") from None  # fmt: skip


def _misfit(found: Any, module: str, kind: CodeKind) -> str:
    """Describe why an object is not of the expected kind; return an empty string for an object of this kind."""
    if not callable(found) or kind.is_made(found):
        return "" if kind.is_made(found) else f"an object of type {type(found).__name__}"
    defined = str(getattr(found, "__module__", ""))
    if not f"{defined}.".startswith(f"{module}."):
        return f"defined in another module, {defined!r}"
    if isinstance(found, type):
        return "" if kind.is_class(found) else "another kind of class"
    if not isinstance(found, FunctionType):
        return f"an object of type {type(found).__name__}"
    returns = _returns(found)
    if isinstance(returns, type) and kind.is_class(returns):
        return ""
    return "a function whose return annotation is " + ("missing" if returns is inspect.Parameter.empty else "another")


def _returns(function: FunctionType) -> Any:
    annotation = function.__annotations__.get("return", inspect.Parameter.empty)
    if not isinstance(annotation, str):
        return annotation
    try:
        return get_type_hints(function).get("return", inspect.Parameter.empty)
    except (NameError, TypeError, AttributeError):  # a type may be imported only for type checkers
        try:
            return operator.attrgetter(annotation)(_Namespace(function.__globals__))
        except AttributeError:
            return annotation


class _Namespace:
    """An object with a module's names as attributes, for ``operator.attrgetter``."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__.update(names)
