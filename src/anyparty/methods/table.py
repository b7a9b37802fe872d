"""All methods, by name: written by hand, so that what can run is what stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from anyparty.errors import ConfigError, nearest
from anyparty.methods.combinatorial import Combinatorial
from anyparty.methods.ensemble import Ensemble
from anyparty.methods.fusion import Rule
from anyparty.methods.laser import Laser
from anyparty.methods.local import Local
from anyparty.methods.method import Method
from anyparty.methods.plug import Plug
from anyparty.methods.split import Split
from anyparty.methods.standard import Standard

METHODS: dict[str, Callable[..., Rule]] = {
    "local": Local,
    "standard": Standard,
    "ensemble": Ensemble,
    "combinatorial": Combinatorial,
    "plug": Plug,
    "laser": Laser,
}


def method(name: str, **parameters: Any) -> Method:
    """Return the method ``name`` with its parameters, and those of the family it belongs to.

    >>> method("laser", tasks="all", embedding=32).can.title
    'LASER-VFL'

    Raises:
        ConfigError: no such method, no such parameter, or a value out of range.
    """
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}{nearest(name, METHODS)}")
    rule = METHODS[name]
    own = {field.name for field in fields(rule) if field.repr}  # type: ignore[arg-type]
    shared = {field.name for field in fields(Split)} - {"rule"}
    unknown = sorted(parameters.keys() - own - shared)
    if unknown:
        raise ConfigError(f"method {name!r} has no parameter {unknown[0]!r}{nearest(unknown[0], own | shared)}")
    hints = get_type_hints(Split) | get_type_hints(rule)
    values = {key: _of_type(hints[key], value, f"method {name!r}: {key}") for key, value in parameters.items()}
    made = rule(**{key: value for key, value in values.items() if key in own})
    return Split(rule=made, **{key: value for key, value in values.items() if key in shared})


def _of_type(hint: Any, value: Any, what: str) -> Any:
    """Return a parameter as the type that its method declares: settings come from files, as whatever was written."""
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{what}: {error.errors()[0]['msg'].lower()}, got {value!r}") from None
