"""What every group of settings is: frozen, checked, and clear about what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from anyparty.errors import ConfigError, nearest


class Settings(BaseModel):
    """A group of settings: frozen, and without room for a key that does not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers, and other words for true and false: pydantic reads them as such."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        _refuse_truth(value, wanted)
        if wanted is bool and not isinstance(value, bool):
            raise ValueError("expected true or false")
        return value

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "settings") -> Any:
        """Return the settings that ``values`` describe.

        Raises:
            ConfigError: a key that does not exist (with the nearest one) or a value out of range.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"{source}: {_explain(error, cls)}") from None


def _refuse_truth(value: Any, wanted: Any) -> None:
    """Refuse true and false where numbers are wanted, in lists too, and in groups that pydantic alone checks."""
    if isinstance(value, bool) and {int, float} & _leaves(wanted):
        raise ValueError("expected a number")
    if isinstance(value, list | tuple):
        for each in value:
            _refuse_truth(each, wanted)
    group = _group(wanted)
    if isinstance(value, Mapping) and group is not None and is_dataclass(group):
        for name, each in value.items():
            if isinstance(each, bool) and {int, float} & _leaves(get_type_hints(group).get(name)):
                raise ValueError(f"{name}: expected a number")


def _leaves(annotation: Any) -> set[Any]:
    """Return the types that a type is made of."""
    parts = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    return {annotation}.union(*map(_leaves, parts)) if parts else {annotation}


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Say in a sentence what pydantic found, with the nearest key for one that does not exist."""
    said = []
    for found in error.errors(include_url=False):
        where = ".".join(str(part) for part in found["loc"]) or "settings"
        if found["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            known, key = _known(model, found["loc"][:-1]), str(found["loc"][-1])
            said.append(f"no setting {where!r}{_elsewhere(model, key) or nearest(key, known)}")
        else:
            message = found["msg"].removeprefix("Value error, ").removeprefix(f"{where.rpartition('.')[2]}: ")
            said.append(
                f"{where}: {message}" + ("" if isinstance(found["input"], dict) else f", got {found['input']!r}")
            )
    return "; ".join(said)


def _elsewhere(model: type[BaseModel], key: str) -> str:
    """Return which groups have a key that another one lacks, as a question; nothing if none has it."""
    hints = {name: hint for name, hint in get_type_hints(model).items() if name in model.model_fields and _group(hint)}
    places = [f"{name}.NAME" if get_origin(hint) is dict else name
              for name, hint in hints.items() if key in _known(model, [name])]  # fmt: skip
    return f"; did you mean {' or '.join(f'{place}.{key}' for place in places)}?" if places else ""


def _known(group: type[Any], where: Sequence[int | str]) -> list[str]:
    """Return the keys of the group at ``where``."""
    for part in where:
        group = _group(get_type_hints(group).get(str(part))) or group
    return [field.name for field in fields(group)] if is_dataclass(group) else list(group.model_fields)


def _group(annotation: Any) -> type[Any] | None:
    """Return the group of settings in a type."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for part in get_args(annotation) if (found := _group(part))), None)


HELD = (str, int, float, list, tuple, dict, date, time, type(None))  # a date and time is a date


def check_held(key: str, value: Any) -> None:
    """Refuse what no file can hold, in lists and tables too; of functions it is said where they are asked for.

    None is taken: alone it is as if it were left out, and within a table it is in the way of a run's folder alone.

    Raises:
        ValueError: naming it.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key}: expected a finite number, got {value}")
    if not (callable(value) or isinstance(value, HELD)):
        raise ValueError(
            f"{key}: expected words, numbers, truth values, and lists and tables of them, which settings "
            f"can hold, got {value!r}; give the method itself, made in Python"
        )
    for each in _within(value):
        check_held(key, each)


def nones(value: Any, where: str = "") -> Iterator[str]:
    """Yield where None stands within lists and tables, for which a file has no word."""
    named = value.items() if isinstance(value, dict) else [("", each) for each in _within(value)]
    for key, each in named:
        place = f"{where}.{key}".strip(".")
        if each is None:
            yield place
        yield from nones(each, place)


def _within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
