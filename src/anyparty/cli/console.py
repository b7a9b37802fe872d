"""Print the results of commands, such as predictions, as text or JSON, and check the paths of output files."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.protocol import rich_cast
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    import polars as pl

    from anyparty.core.predictions import Predictions
    from anyparty.core.types import Capabilities

LONGEST_WORD = 16  # in a narrow table, only words with more letters than this are broken
MAX_SETS = 16  # maximum number of sets of parties in a summary of predictions


class Screen(Console):
    """A console that prints a command's output as text for people or as one JSON object.

    It prints ``:ab:`` and ``[red]`` unchanged. By default, rich would print them as an emoji and as a colour.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False, as_json: bool = False) -> None:
        """Make the console; if ``as_json`` is true, ``print`` prints nothing, and ``result`` prints JSON."""
        system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        super().__init__(stderr=stderr, quiet=quiet or as_json, color_system=system, emoji=False, markup=False,
                         highlight=False)  # fmt: skip
        self.as_json = as_json

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like ``rich``, but fit wide tables to the terminal: narrow their columns, or print a list instead."""
        super().print(*(_fitted(each, self) for each in objects), **options)

    def result(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Print the result of ``values()`` as indented JSON on stdout if the command was called with --json.

        A number that is not finite becomes ``null``; dates and paths become text.  ``json_keys`` describes the keys.
        """
        if self.as_json:
            from anyparty.core.storage import finite  # this import loads polars

            print(json.dumps(finite(values()), indent=2, ensure_ascii=False, default=str))


def screen(*, stderr: bool = False, quiet: bool = False, as_json: bool = False) -> Screen:
    """Make the console of a command."""
    return Screen(stderr=stderr, quiet=quiet, as_json=as_json)


# Fit tables to the width of a terminal


def _fitted(shown: Any, console: Console) -> Any:
    """Fit tables to the width of the console without breaking a number or a short word."""
    shown = rich_cast(shown)
    if isinstance(shown, Group):
        return Group(*(_fitted(each, console) for each in shown.renderables))
    return _fitted_table(shown, console) if isinstance(shown, Table) and shown.box else shown


def _fitted_table(table: Table, console: Console) -> Table:
    least = [_least_width(column, console) for column in table.columns]
    most = [max(_widths(column, console, "maximum")) for column in table.columns]
    room = console.width - 1 - 3 * len(least)  # the width for text, without frame and spaces
    if sum(most) <= room:
        return table
    if sum(least) > room:
        return _as_list(table)
    fitted, spare, wanted = copy(table), room - sum(least), sum(most) - sum(least)
    widths = [low + spare * (high - low) // wanted for low, high in zip(least, most, strict=True)]
    fitted.columns = [replace(column, width=width, overflow="fold")
                      for column, width in zip(table.columns, widths, strict=True)]  # fmt: skip
    return fitted


def _widths(column: Column, console: Console, of: str) -> list[int]:
    """Return the widths of a column's header and cells; ``of`` is "minimum" (with line breaks) or "maximum"."""
    cells = [column.header, *column.cells]
    return [getattr(Measurement.get(console, console.options, cell), of) for cell in cells]


def _least_width(column: Column, console: Console) -> int:
    """Return the smallest width of a column at which no number and no short word is broken."""
    header, *_ = minimum_widths = _widths(column, console, "minimum")
    if column.justify == "right":
        return max(header, *_widths(column, console, "maximum")[1:], 1)
    return min(max(minimum_widths), LONGEST_WORD)


def _as_list(table: Table) -> Table:
    """Convert a table to a list: a line with header and text for each cell, and a section for each row."""
    listed = Table(title=table.title, caption=table.caption, title_justify="left", show_header=False)
    listed.add_column(overflow="fold")
    listed.add_column(overflow="fold")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            if str(cell):
                header = column.header.replace("\n", " ") if isinstance(column.header, str) else column.header
                listed.add_row(header, cell)
        listed.add_section()
    return listed


# Predictions and output files


def check_output(out: Path | None, tables: Iterable[Path | None] = (), *, raw_csv: bool = False) -> None:
    """Reject an output file with an unknown format, or one that would overwrite an input table.

    Commands call this function before they do any work.

    Raises:
        ConfigError: the file is neither .parquet nor .csv, or is one of the ``tables``; or ``raw_csv`` is set without a
            .csv file.
    """
    from anyparty.core import display
    from anyparty.errors import ConfigError

    if raw_csv and (out is None or out.suffix.lower() != ".csv"):
        raise ConfigError("--raw-csv only applies to a .csv file; name one with --out, or remove --raw-csv")
    if out is None:
        return
    if any(table is not None and table.resolve() == out.resolve() for table in tables):
        raise ConfigError(f"--out {out}: this is a party's table, which would be overwritten; name another file")
    if out.suffix.lower() not in display.FRAME_KINDS:
        raise ConfigError(f"--out {out}: name a file that ends in {' or '.join(display.FRAME_KINDS)}")


def check_output_of_run(out: Path | None, run: Path, tables: Mapping[str, Path], *, raw_csv: bool = False) -> None:
    """Make the checks of ``check_output``, and also reject an output file that is one of the run's own tables."""
    from anyparty.api.runs import settings_of

    own = () if out is None else settings_of(run).parties.values()
    check_output(out, [*tables.values(), *(party.table for party in own)], raw_csv=raw_csv)


def print_or_write(frame: pl.DataFrame, out: Path | None, console: Console, *, raw_csv: bool = False) -> None:
    """Write the rows of ``frame`` to the file ``out``, or print the first rows if ``out`` is ``None``.

    Raises:
        StorageError: the disk is full, or the folder cannot be written to.
    """
    from anyparty.core import display

    if out is None:
        console.print(render_head(frame))
        console.print("Keep all rows with --out FILE.parquet or --out FILE.csv.")
        return
    display.write_frame(frame, out, raw_csv=raw_csv)
    console.print(f"{len(frame):,} rows are in {out}", soft_wrap=True)


def rows_or_file(frame: pl.DataFrame, out: Path | None) -> dict[str, Any]:
    """Return the path ``out`` of the written file for JSON, or all rows if ``out`` is ``None``."""
    return {"out": out, "rows": frame.to_dicts() if out is None else None}


def predictions_to_json(answered: Predictions) -> dict[str, Any]:
    """Return the summary of predictions for JSON: the parties used, the numbers of rows, and missing answers."""
    from anyparty.core.predictions import members

    rows = int(answered.answered.sum())
    return {
        "predictor": answered.predictor,
        "asked": members(answered.asked, answered.blocks),
        "silent": answered.silent,
        "answered": rows,
        "unanswered": len(answered) - rows,
        "answered_by": [{"parties": names, "rows": count} for names, count in _rows_by_parties(answered)],
        "reasons": sorted(set(answered.reasons.values())),
    }


def render_predictions(answered: Predictions) -> RenderableType:
    """Show how many rows each set of parties predicted, and why other rows have no prediction."""
    from anyparty.core.predictions import members

    n = len(answered)
    asked = ", ".join(members(answered.asked, answered.blocks))
    table = Table("answered by")
    for heading in ("rows", "share"):
        table.add_column(heading, justify="right")
    for names, rows in list(_rows_by_parties(answered))[:MAX_SETS]:
        table.add_row(Text(" + ".join(names)), f"{rows:,}", f"{rows / n:.1%}")
    table.add_section()
    rows = int(answered.answered.sum())
    table.add_row("answered", f"{rows:,}", f"{rows / n:.1%}")
    if rows < n:
        table.add_row("no answer", f"{n - rows:,}", f"{1 - rows / n:.1%}")
    notes = [f"No answer: {reason}." for reason in sorted(set(answered.reasons.values()))]
    notes += [f"Asked, but did not answer: {', '.join(answered.silent)}."] if answered.silent else []
    kept = members(answered.took_part.any(dim=0) & ~answered.asked, answered.blocks)
    notes += [f"Not asked: {', '.join(kept)}; their messages about these rows in training were kept."] if kept else []
    return Group(Text(f"{answered.predictor}: {n:,} rows, asked: {asked}"), table, *map(Text, notes))


def _rows_by_parties(answered: Predictions) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each set of parties that predicted rows, with the number of rows; most rows first."""
    from anyparty.core.predictions import members, patterns

    distinct, which = patterns(answered.took_part[answered.answered])
    counts = which.bincount(minlength=len(distinct))
    for p in counts.argsort(descending=True, stable=True).tolist():
        yield members(distinct[p], answered.blocks), int(counts[p])


def render_head(frame: pl.DataFrame, rows: int = 8) -> RenderableType:
    """Show the first ``rows`` rows of ``frame`` as a table."""
    table = Table(title=f"The first {min(rows, len(frame))} rows", title_justify="left")
    for name in frame.columns:
        table.add_column(Text(name))
    for row in frame.head(rows).iter_rows():
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


# Descriptions of methods


def render_methods() -> RenderableType:
    """Show all methods and their capabilities, without importing the methods, which would take seconds."""
    listed = json.loads((Path(__file__).parent / "methods.json").read_text(encoding="utf-8"))
    table = Table("method", "trains on", "predicts for", "needs, sends", show_lines=True)
    for each in listed["methods"]:
        title = Text.assemble((each["name"], "bold"), f"\n{each['title']}\n", (each["paper"], "dim"))
        table.add_row(title, each["trains_on"], each["predicts_for"], f"{each['parties']}; sends {each['sends']}")
    notes = (f"{', '.join(each['methods'])}: {each['gradients']}." for each in listed["gradients"])
    return Group(table, *notes, "Parameters, and what each message reveals: anyparty methods NAME")


def methods_to_json() -> dict[str, Any]:
    """Return the names and capabilities of all methods, for JSON."""
    from anyparty.methods.method_registry import METHODS, method

    return {"methods": [_capabilities_to_json(name, method(name).can) for name in METHODS]}


def _capabilities_to_json(name: str, can: Capabilities) -> dict[str, Any]:
    messages = [
        {"tag": each.tag, "from": each.frm, "to": each.to, "holds": each.holds, "learns": each.learns,
         "when": each.when} for each in can.messages
    ]  # fmt: skip
    same = ("title", "paper", "trains_on", "predicts_for", "needs", "most_parties")
    return {"name": name, **{key: getattr(can, key) for key in same}, "messages": messages}


def _described_method(name: str) -> tuple[Capabilities, list[dict[str, str]]]:
    """Return a method's capabilities, and the name, default and meaning of each parameter.

    Raises:
        ConfigError: the method is unknown, or a user-defined method ("module:name") cannot be imported or created.
    """
    from anyparty.config.method_factory import METHOD, classes_of, made_by
    from anyparty.config.user_code import AllowedCode, load_code
    from anyparty.methods.method_registry import method, parameters_of

    own = load_code(name, "method", AllowedCode(names=(name,)), METHOD) if ":" in name else None
    can = (method(name) if own is None else made_by(own, name.rpartition(":")[2], {})).can
    owners = parameters_of(name) if own is None else classes_of(own)
    return can, [parameter for of in owners for parameter in described_parameters(of)]


def described_parameters(of: Any) -> list[dict[str, str]]:
    """Return the name, default and description of each parameter of a class or function."""
    meanings = _documented_attributes(of)
    return [
        {"name": name, "default": default, "meaning": meanings.get(name, "")}
        for name, default in _default_parameters(of).items()
    ]


def method_to_json(name: str) -> dict[str, Any]:
    """Return a method's capabilities, messages and parameters, for JSON.

    Raises:
        ConfigError: the method is unknown, or a user-defined method cannot be imported or created.
    """
    can, parameters = _described_method(name)
    return {**_capabilities_to_json(name, can), "parameters": parameters}


def render_method(name: str) -> RenderableType:
    """Show a method's parameters with their defaults, its messages, and what each message reveals.

    Raises:
        ConfigError: the method is unknown, or a user-defined method cannot be imported or created.
    """
    can, described = _described_method(name)
    header = Table.grid(padding=(0, 2))
    for what, value in (
        ("paper", can.paper), ("trains on", can.trains_on), ("predicts for", can.predicts_for),
        ("parties", needed_parties(can)),
    ):  # fmt: skip
        header.add_row(what, value)
    parameters = Table("parameter", "default", "meaning", title="In the settings, under method", title_justify="left")
    for each in described:
        parameters.add_row(each["name"], Text(each["default"]), Text(each["meaning"]))
    messages = Table("message", "from", "to", "content", "what the receiver can learn", show_lines=True,
                     title="Messages", title_justify="left")  # fmt: skip
    for message in can.messages:
        messages.add_row(message.tag, message.frm, message.to, Text(message.holds), Text(message.learns))
    setting = "factory" if ":" in name else "name"
    title = Text(f"{can.title} (method.{setting} = {name!r})", style="bold")
    return Group(title, header, "", parameters, "", messages)


def needed_parties(can: Capabilities) -> str:
    """Describe which parties a method needs, and how many it allows."""
    most = "any number of parties" if can.most_parties is None else f"at most {can.most_parties} parties"
    return f"needs {'all parties' if can.needs == 'all' else 'any one party'}; {most}"


def _default_parameters(of: Any) -> dict[str, str]:
    """Return the default of each parameter that a settings file can store, by name."""
    from anyparty.core.declared_types import takes

    values = {name: each.default for name, each in inspect.signature(of).parameters.items()}
    if is_dataclass(of):
        values |= {each.name: each.default_factory() for each in fields(of) if callable(each.default_factory)}
    return {name: _default(values[name]) for name in takes(of) if name not in {"make_head", "make_decoder"}}


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _documented_attributes(of: Any) -> dict[str, str]:
    """Return the description of each attribute, by name, from the docstrings of a class and its base classes."""
    if not isinstance(of, type):
        return {}
    listed = [inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2] for one in reversed(inspect.getmro(of))]
    found = re.findall(r"^    (\w+): (.+(?:\n {8,}.+)*)", "\n".join(listed), flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}
