"""Pages of the reference that are generated when the site is built.

A mark ``<!-- generated: NAME -->`` in a page stands for a text from here: ``settings``, ``commands`` or ``results``.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import typer
import typer.main
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

GENERATED = re.compile(r"<!-- generated: (\w+) -->")


def generated(name: str) -> str:
    """Return the generated text that a page's mark names.

    Raises:
        KeyError: there is no such text.
    """
    from results import results  # noqa: PLC0415 - beside this file, and not a package

    return {"settings": settings, "commands": commands, "results": results}[name]()


def settings() -> str:
    """Return a section for each group of settings: its description, and a table of names, types and defaults."""
    from anyparty.config import Config  # noqa: PLC0415 - torch takes a second

    return "\n".join(section for name, model in groups(Config) for section in group(name, model))


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


def group(name: str, model: type) -> Iterator[str]:
    """Yield the lines of one group's section."""
    yield f"## `[{name}]`\n"
    yield described_class(model)
    yield "| setting | type | default |"
    yield "|---|---|---|"
    for key, annotation, default in fields(model):
        yield f"| `{key}` | {shown(annotation)} | {'required' if default is PydanticUndefined else code(default)} |"
    yield ""


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


def described_class(model: type) -> str:
    """Return a class's docstring as Markdown: its attributes as a list, without the sections below them."""
    text, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")
    attributes = re.split(r"\n\n(?=\w+:\n)", rest)[0] if rest else ""
    listed = re.sub(r"^    (\w+): ", r"- `\1`: ", attributes, flags=re.MULTILINE)
    return f"{text}\n\n{listed}\n".replace("``", "`")


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


def code(value: Any) -> str:
    """Return a value in code marks, as TOML writes it."""
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value) or value == {}:
        return "a table"
    text = {"True": "true", "False": "false", "None": "none"}.get(str(value), str(value))
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{text}`"


def commands() -> str:
    """Return a section for every command of ``anyparty``: its usage, description and options."""
    from anyparty.cli.app import app  # noqa: PLC0415

    return "\n".join(described(typer.main.get_command(app), ["anyparty"]))


def described(command: Any, words: list[str]) -> Iterator[str]:
    """Yield the lines of a command's section, then those of its subcommands."""
    context = typer.Context(command, info_name=" ".join(words))
    children = getattr(command, "commands", {})
    if not children:
        yield f"## `{' '.join(words)}`\n"
        yield f"```text\n{' '.join(words)} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        yield inspect.cleandoc(command.help or "").replace("\b\n", "").replace("<", "&lt;") + "\n"
        rows = [record for each in command.params if (record := each.get_help_record(context))]
        if rows:
            yield "| option | meaning |"
            yield "|---|---|"
            for names, meaning in rows:
                yield f"| `{names.replace('|', '/')}` | {' '.join(meaning.split()).replace('|', '/')} |"
            yield ""
        yield from json_keys(" ".join(words[1:]))
    for name, child in children.items():
        yield from described(child, [*words, name])


def json_keys(command: str) -> Iterator[str]:
    """Yield a table of the keys of a command's JSON; nothing if the command prints none."""
    from anyparty.cli.json_keys import JSON_KEYS  # noqa: PLC0415

    for form in (command, f"{command} NAME"):
        if form in JSON_KEYS:
            yield f"The JSON of `anyparty {form}`:\n"
            yield "| key | value |"
            yield "|---|---|"
            yield from (f"| `{key}` | {meaning} |" for key, meaning in JSON_KEYS[form].items())
            yield ""
