"""Compare a user's own method with its description in a run folder or model, which store no code.

If the user passes the method for a saved model, its description by ``core.object_description`` must equal the saved
one. The same holds for the parameters of a built-in method. There is one exception: a field that was added to the class
after the model was saved may have its default value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyparty.core.object_description import CLASS, described
from anyparty.errors import ModelError
from anyparty.methods.method import Method
from anyparty.methods.method_registry import settings_of
from anyparty.methods.schedules.scheduled import Scheduled


def differences(kept: Any, made: object) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the saved description ``kept`` and a method differ: {name: (saved, present)}.

    >>> from anyparty.methods.method_registry import method
    >>> differences(described(method("laser", embedding=8)), method("laser", embedding=4))
    {'embedding': (8, 4)}
    """
    was, now, given = _flat(kept), _flat(described(made)), _flat(described(made, whole=False))
    keys = [key for key in [*was, *(now.keys() - was.keys())] if key in was or key in given]
    differs = {key: (was.get(key), now.get(key)) for key in sorted(keys) if was.get(key) != now.get(key)}
    classes = {key: pair for key, pair in differs.items() if key.rpartition(".")[2] == CLASS}
    return classes or differs  # if classes differ, their fields cannot be compared


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested descriptions to {dotted field name: value}; a mapping without a class name stays one value."""
    if not isinstance(values, Mapping) or CLASS not in values:
        return {prefix: values}
    within = f"{prefix}." if prefix else ""
    return {name: each for key, value in values.items() for name, each in _flat(value, f"{within}{key}").items()}


def check(source: Path, own: Mapping[str, Any] | None, shipped: Method | None, given: Any) -> None:
    """Check that ``given``, the method that a user passes for a saved model, is the method that trained the model.

    Args:
        source: the path of the model, for error messages.
        own: the saved description of the user's own method; ``None`` if the model was saved without a description, as
            in earlier versions.
        shipped: the model's method if it is built in, else ``None``.
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
    """Return a text with the class name of a method and, if the method has a rule, the class name of the rule."""
    rule = getattr(given, "rule", None)
    return type(given).__name__ + ("" if rule is None else f"(rule={type(rule).__name__})")


def _said(value: Any) -> str:
    return "not there" if value is None else repr(value)
