"""What a user gives in Python where settings would stand: of the right kind, and for parties that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyparty.errors import ConfigError
from anyparty.nets.optimizer import Optimizer
from anyparty.run.holders import check_parties
from anyparty.run.watch import Watch
from anyparty.terms import Roster


def check_kinds(method: Any, watch: Any) -> None:
    """Refuse what is no method, or no watcher.

    Raises:
        ConfigError: saying what was expected.
    """
    if method is not None and not isinstance(method, str) and not hasattr(method, "can"):
        raise ConfigError(f"method: expected a name, or a method such as method('laser'), got {method!r}")
    if hasattr(method, "can") and not hasattr(method, "begin"):
        raise ConfigError(f"method: {method!r} is a rule of a split method: give Split(rule=...), from "
                          f"anyparty.methods.split")  # fmt: skip
    if not isinstance(watch, Watch | None):
        raise ConfigError(f"watch: expected a Watch, a class of yours that inherits from it, got {watch!r}")


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
