"""Pages of the reference that are generated when the site is built.

A mark ``<!-- generated: NAME -->`` in a page stands for a text from here: ``settings``, ``commands`` or ``results``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
import typer.main

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
    from anyparty.config.settings_reference import groups  # noqa: PLC0415

    return "\n".join(section for name, model in groups(Config) for section in group(name, model))


def group(name: str, model: type) -> Iterator[str]:
    """Yield the lines of one group's section."""
    from anyparty.config.settings_reference import default_of, fields, shown  # noqa: PLC0415

    yield f"## `[{name}]`\n"
    yield described_class(model)
    yield "| setting | type | default |"
    yield "|---|---|---|"
    for key, annotation, default in fields(model):
        yield f"| `{key}` | {shown(annotation)} | {code(default_of(default))} |"
    yield ""


def described_class(model: type) -> str:
    """Return a class's docstring as Markdown: its attributes as a list, without the sections below them."""
    text, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")
    attributes = re.split(r"\n\n(?=\w+:\n)", rest)[0] if rest else ""
    listed = re.sub(r"^    (\w+): ", r"- `\1`: ", attributes, flags=re.MULTILINE)
    return f"{text}\n\n{listed}\n".replace("``", "`")


def code(text: str) -> str:
    """Return a default in code marks, unless it is a word."""
    return text if text in {"required", "a table"} else f"`{text}`"


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

    for form in (command, f"{command} NAME", f"{command} --list"):
        if form in JSON_KEYS:
            yield f"The JSON of `anyparty {form}`:\n"
            yield "| key | value |"
            yield "|---|---|"
            yield from (f"| `{key}` | {meaning} |" for key, meaning in JSON_KEYS[form].items())
            yield ""
