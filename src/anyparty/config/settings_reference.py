"""The reference of all settings: type, default and meaning, for the documentation and for ``anyparty settings``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined


def groups(config: type[BaseModel]) -> Iterator[tuple[str, type]]:
    """Yield the title and the model of each group, in the order of the file."""
    for name, field in config.model_fields.items():
        for model in models(field.annotation):
            yield (f"{name}.NAME" if name == "parties" else name), model


def models(annotation: Any) -> Iterator[type]:
    """Yield the classes of settings that an annotation holds: pydantic models and dataclasses."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from models(part)


def fields(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the annotation and the default of each setting of a group."""
    if issubclass(model, BaseModel):
        for key, field in model.model_fields.items():
            yield key, field.annotation, field.get_default(call_default_factory=True)
    else:
        annotations = get_type_hints(model)
        for each in dataclasses.fields(model):
            default = PydanticUndefined if each.default is dataclasses.MISSING else each.default
            yield each.name, annotations[each.name], default


def default_of(value: Any) -> str:
    """Return a default as TOML writes it, or "required", or "a table"."""
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value) or value == {}:
        return "a table"
    text = {"True": "true", "False": "false", "None": "none"}.get(str(value), str(value))
    return str(list(value)) if isinstance(value, tuple) else text


def meaning(model: type, key: str) -> str:
    """Return the entry of a setting in the attributes of its group, or the first sentence that names the setting.

    >>> from anyparty.networks.optimizer import Optimizer
    >>> meaning(Optimizer, "momentum")
    'the momentum of SGD.'
    """
    for each in model.__mro__[:-1]:  # parties also have the settings of a base class
        text, _, attributes = inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")
        found = re.search(rf"^    {key}: (.+(?:\n        .+)*)", attributes, flags=re.MULTILINE)
        sentences = [found[1]] if found else re.split(r"(?<=[.;])\s+", text)
        for sentence in sentences:
            if found or f"``{key}``" in sentence:
                return " ".join(sentence.removesuffix(";").replace("``", "").split())
    return ""


def shown(annotation: Any) -> str:
    """Return an annotation as a reader of TOML writes it: without module names and validators.

    >>> from typing import Literal
    >>> shown(Literal["a"] | None)
    '"a" or none'
    >>> shown(dict[str, tuple[int, ...]])
    'table of list of int'
    """
    words = {bool: "true or false", str: "text", int: "int", float: "float", type(None): "none", Any: "any value"}
    parts = [part for part in getattr(annotation, "__args__", ()) if part is not ...]
    origin = getattr(annotation, "__origin__", None)
    if annotation in words:
        found = words[annotation]
    elif getattr(annotation, "__metadata__", None):
        found = shown(origin)
    elif origin in {dict, tuple, list}:
        found = f"table of {shown(parts[1])}" if origin is dict else f"list of {shown(parts[0])}"
    elif parts:
        found = " or ".join(f'"{part}"' if isinstance(part, str) else shown(part) for part in parts)
    else:
        found = "path" if annotation.__name__ == "Path" else "table"
    return found
