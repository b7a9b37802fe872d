"""The base class of all settings groups, and the group for reading a table.

Settings are immutable and validated, with clear error messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time
from functools import reduce
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    model_validator,
)

from anyparty.core.declared_types import StrictBooleans, alternatives, expected, mistake, place_of
from anyparty.core.types import of_python
from anyparty.errors import ConfigError, continued, nearest
from anyparty.tables.column_types import Kind
from anyparty.tables.date_formats import check_order
from anyparty.tables.file_content import FileSettings
from anyparty.tables.reading_rules import Limits, texts

OF_KITS = {
    "new": "; in a federation of processes, each party names its table of rows to predict in its own kit: "
    'new = "FILE" in local/anyparty.toml; in one process, use anyparty predict --table PARTY=FILE',
}  # what to do instead of settings that only a party's own kit has, by name


class Settings(StrictBooleans, BaseModel):
    """An immutable group of settings that rejects unknown keys, and booleans in place of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "settings") -> Any:
        """Validate ``values`` and return them as settings; ``source`` begins every error message.

        Raises:
            ConfigError: a key does not exist (the message suggests the most similar key), or a value is out of range.
        """
        try:
            return cls.model_validate(of_python(dict(values)))
        except ValidationError as error:
            problems = _problems(error, cls, values)
            raise ConfigError(
                f"{source}: {reduce(continued, (each.sentence for each in problems))}", code=problems[0].code,
                setting=problems[0].setting,
            ) from None  # fmt: skip


class _Problem(NamedTuple):
    code: str
    setting: str
    sentence: str


def _problems(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> list[_Problem]:
    """Describe each of pydantic's errors in a sentence, and suggest the most similar key for each unknown key.

    If a setting accepts several types, pydantic reports one error for each of them. Only the errors deepest inside the
    value are described. For a list with a wrong item, for example, the error is about the item, and does not say that
    a number is also accepted in place of the list.
    """
    problems, wrong = list[_Problem](), dict[str, list[Any]]()
    for found in error.errors(include_url=False):
        if found["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            where = ".".join(map(str, found["loc"]))
            known, key = _known(model, found["loc"][:-1]), str(found["loc"][-1])
            hint = _elsewhere(model, key) or OF_KITS.get(key if where.startswith("parties.") else "", "")
            problems.append(_Problem("unknown-setting", where, f"no setting {where!r}{hint or nearest(key, known)}"))
        else:
            place = place_of(values, found["loc"])[0] if found["type"] != "missing" else found["loc"]
            wrong.setdefault(".".join(map(str, place)) or "settings", []).append(found)
    for where, each in wrong.items():
        if any(other.startswith(f"{where}.") for other in wrong):
            continue
        message = mistake(each[0])
        if len(each) > 1 and all(one["type"] != "value_error" for one in each):
            message = f"expected {alternatives(map(expected, each))}"
        message = message.removeprefix(f"{where.rpartition('.')[2]}: ")
        value = each[0]["input"]
        named = isinstance(value, dict) or message.endswith("?")  # a question repeats the value
        sentence = f"{where}: {message}" + ("" if named else f", got {value!r}")
        problems.append(_Problem("invalid-value", "" if where == "settings" else where, sentence))
    return problems


def _elsewhere(model: type[BaseModel], key: str) -> str:
    """Return the question "did you mean GROUP.key?" if another settings group has this key, else ""."""
    hints = {name: hint for name, hint in get_type_hints(model).items() if name in model.model_fields and _group(hint)}
    places = [f"{name}.NAME" if get_origin(hint) is dict else name
              for name, hint in hints.items() if key in _known(model, [name])]  # fmt: skip
    return f"; did you mean {' or '.join(f'{place}.{key}' for place in places)}?" if places else ""


def _known(group: type[Any], where: Sequence[int | str]) -> list[str]:
    """Return the keys of the settings group at the path ``where``."""
    for part in where:
        group = _group(get_type_hints(group).get(str(part))) or group
    return [field.name for field in fields(group)] if is_dataclass(group) else list(group.model_fields)


def _group(annotation: Any) -> type[Any] | None:
    """Return the first pydantic model or dataclass in a type annotation, or None."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for part in get_args(annotation) if (found := _group(part))), None)


# the types of values that settings can store, also ``datetime``, a subclass of ``date``
HELD = (str, int, float, list, tuple, dict, date, time, type(None))


def check_held(key: str, value: Any) -> None:
    """Reject a value that TOML cannot store, also inside lists and dicts.

    Callables are accepted, because the caller rejects them with a better message.  None is accepted too: TOML leaves
    the setting out.  Inside lists and dicts, None causes an error when the settings are saved.

    Raises:
        ValueError: TOML cannot store the value; the message names its key.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key}: expected a finite number, got {value}")
    if not (callable(value) or isinstance(value, HELD)):
        raise ValueError(
            f"{key}: expected a value that settings can store (text, a number, true or false, or a list or table of "
            f"these), got {value!r}; pass a method object in Python instead"
        )
    for each in _within(value):
        check_held(key, each)


def nones(value: Any, where: str = "") -> Iterator[str]:
    """Yield the path of each None inside nested lists and dicts."""
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


class ReadingSettings(Settings):
    """Settings for reading a party's table; they replace values that are detected in the file."""

    separator: str | None = None
    decimal: str | None = None
    quote: str | None = None
    encoding: str | None = None
    sheet: str | int | None = None
    types: dict[str, Kind] = {}
    missing: dict[str, Annotated[tuple[str, ...], BeforeValidator(texts)]] = {}
    limits: dict[str, Limits] = {}
    dates: dict[str, Annotated[str, AfterValidator(check_order)]] = {}

    @model_validator(mode="after")
    def _possible(self) -> ReadingSettings:
        assert self.file is not None
        return self

    @property
    def file(self) -> FileSettings:
        """The settings for reading the file itself, such as its separator and encoding."""
        return FileSettings(
            separator=self.separator, decimal=self.decimal, quote=self.quote, encoding=self.encoding, sheet=self.sheet
        )
