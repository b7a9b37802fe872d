"""A user's own code by name, as ``factory = "module:name"`` says."""

from __future__ import annotations

import importlib
import operator
from types import ModuleType

from anyparty.errors import ConfigError, blamed, nearest
from anyparty.nets.mlp import Factory


def network(factory: str, setting: str) -> Factory:
    """Return what makes a network, imported by its name.

    Raises:
        ConfigError: as ``imported``, or it is no function.
    """
    made = imported(factory, setting)
    if not callable(made):
        raise ConfigError(f"{setting}: factory {factory!r} is no function of (inputs, outputs), but a "
                          f"{type(made).__name__}")  # fmt: skip
    return made


def imported(factory: str, setting: str) -> object:
    """Return what stands in a module under a name.

    Args:
        factory: "module:name".
        setting: which setting says so, for the sentence.

    Raises:
        ConfigError: the name has another form, there is no such module or nothing of that name in it, or its file fails
            as it is imported (the sentence says in which line).
    """
    fails = f"{setting}: cannot import factory {factory!r}"
    module, _, name = factory.partition(":")
    if not module or not name or ":" in name or "/" in module or module.startswith(".") or module.endswith(".py"):
        raise ConfigError(f"{fails}: write it as 'module:name'")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{fails}: there is no module {error.name!r}; commands look for it beside the settings, "
                              f"in the current folder and among installed packages") from None  # fmt: skip
        raise ConfigError(f"{fails}: {blamed(error)}") from error
    return _of(found, name, fails)


def _of(module: ModuleType, name: str, fails: str) -> object:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise ConfigError(f"{fails}: {module.__file__ or module.__name__} has no {name!r}"
                          f"{nearest(name, known) if known else ''}") from None  # fmt: skip
