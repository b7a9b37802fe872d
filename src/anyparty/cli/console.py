"""Output of commands: predictions, descriptions of methods, and checks of output files."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import polars as pl

    from anyparty.core.predictions import Predictions
    from anyparty.core.types import Capabilities

MAX_SETS = 16  # sets of parties in a summary of predictions


def screen(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Make a console that prints text unchanged: rich would read ``:ab:`` as an emoji and ``[red]`` as a colour."""
    return Console(stderr=stderr, quiet=quiet, emoji=False, markup=False, highlight=False)


def print_json(values: object) -> None:
    """Print values as indented JSON on stdout; a number that is not finite becomes ``null``."""
    from anyparty.core.storage import finite

    print(json.dumps(finite(values), indent=2, ensure_ascii=False))


# Predictions


def check_output(out: Path | None, tables: Iterable[Path | None] = (), *, raw_csv: bool = False) -> None:
    """Reject, before any work is done, an output file that has an unknown format or is one of the ``tables``.

    Raises:
        ConfigError: the file is neither .parquet nor .csv, or is a table that would be lost; or ``raw_csv`` is set
            without a .csv file.
    """
    from anyparty.core import storage
    from anyparty.errors import ConfigError

    if raw_csv and (out is None or out.suffix.lower() != ".csv"):
        raise ConfigError("--raw-csv only applies to a .csv file; name one with --out, or remove --raw-csv")
    if out is None:
        return
    if any(table is not None and table.resolve() == out.resolve() for table in tables):
        raise ConfigError(f"--out {out}: this is a party's table, which would be overwritten; name another file")
    if out.suffix.lower() not in storage.FRAME_KINDS:
        raise ConfigError(f"--out {out}: name a file that ends in {' or '.join(storage.FRAME_KINDS)}")


def check_output_of_run(out: Path | None, run: Path, tables: Mapping[str, Path], *, raw_csv: bool = False) -> None:
    """Check an output file as ``check_output`` does, against ``tables`` and the tables of a run."""
    from anyparty.api.runs import settings_of

    own = () if out is None else settings_of(run).parties.values()
    check_output(out, [*tables.values(), *(party.table for party in own)], raw_csv=raw_csv)


def print_or_write(frame: pl.DataFrame, out: Path | None, console: Console, *, raw_csv: bool = False) -> None:
    """Write rows to ``out`` (``export.write``), or print the first rows if no file is named.

    Raises:
        StorageError: the disk is full, or the folder cannot be written to.
    """
    from anyparty.core import storage

    if out is None:
        console.print(render_head(frame))
        console.print("Keep all rows with --out FILE.parquet or --out FILE.csv.")
        return
    storage.write_frame(frame, out, raw_csv=raw_csv)
    console.print(f"{len(frame):,} rows are in {out}", soft_wrap=True)


def render_predictions(answered: Predictions) -> RenderableType:
    """Show the number of rows with an answer by set of parties, and the reasons why other rows have no answer."""
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
    """Yield the sets of parties that took part and the number of their answers, most first."""
    from anyparty.core.predictions import members, patterns

    distinct, which = patterns(answered.took_part[answered.answered])
    counts = which.bincount(minlength=len(distinct))
    for p in counts.argsort(descending=True, stable=True).tolist():
        yield members(distinct[p], answered.blocks), int(counts[p])


def render_head(frame: pl.DataFrame, rows: int = 8) -> RenderableType:
    """Show the first rows as a table."""
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


# Methods


def render_methods() -> RenderableType:
    """Show all methods and their capabilities."""
    from anyparty.methods.method_registry import METHODS, method

    table = Table("method", "trains on", "predicts for", "needs, sends", show_lines=True)
    for name in METHODS:
        can = method(name).can
        title = Text.assemble((name, "bold"), f"\n{can.title}\n", (can.paper, "dim"))
        sends = f"{_needs(can)}; {_parties(can)}; sends {', '.join(message.tag for message in can.messages)}"
        table.add_row(title, can.trains_on, can.predicts_for, sends)
    return Group(table, *_gradient_notes(), "Parameters, and what each message reveals: anyparty methods NAME")


def methods_by_gradient_leakage() -> dict[str, tuple[str, ...]]:
    """Group methods by what passive parties can learn from the gradients that they receive.

    The key "" stands for methods that send no gradients to passive parties.
    """
    from anyparty.methods.method_registry import METHODS, method

    found: dict[str, list[str]] = {}
    for name in METHODS:
        for learns in {message.learns for message in method(name).can.gradients} or {""}:
            found.setdefault(learns, []).append(name)
    return {learns: tuple(names) for learns, names in found.items()}


def _gradient_notes() -> Iterator[str]:
    for learns, names in methods_by_gradient_leakage().items():
        sent = (
            "sends gradients to passive parties. They can learn: "
            if learns
            else "sends no gradients to passive parties"
        )
        yield f"{', '.join(names)}: {sent}{learns}."


def render_method(name: str) -> RenderableType:
    """Show a method's parameters with their defaults, its messages, and what each message reveals.

    Raises:
        ConfigError: the method is unknown, or it is a user's own ("module:name") and cannot be imported or created.
    """
    from anyparty.config.method_factory import METHOD, classes_of, made_by
    from anyparty.config.user_code import AllowedCode, load_code
    from anyparty.methods.method_registry import method, parameters_of

    own = load_code(name, "method", AllowedCode(names=(name,)), METHOD) if ":" in name else None
    can = (method(name) if own is None else made_by(own, name.rpartition(":")[2], {})).can
    about = Table.grid(padding=(0, 2))
    for what, value in (
        ("paper", can.paper), ("trains on", can.trains_on), ("predicts for", can.predicts_for),
        ("parties", f"{_needs(can)}; {_parties(can)}"),
    ):  # fmt: skip
        about.add_row(what, value)
    parameters = Table("parameter", "default", "meaning", title="In the settings, under method", title_justify="left")
    for of in parameters_of(name) if own is None else classes_of(own):
        meanings = _documented_attributes(of)
        for key, default in _default_parameters(of).items():
            parameters.add_row(key, Text(default), Text(meanings.get(key, "")))
    messages = Table("message", "from", "to", "content", "what the receiver can learn", show_lines=True,
                     title="Messages", title_justify="left")  # fmt: skip
    for message in can.messages:
        messages.add_row(message.tag, message.frm, message.to, Text(message.holds), Text(message.learns))
    setting = "name" if own is None else "factory"
    title = Text(f"{can.title} (method.{setting} = {name!r})", style="bold")
    return Group(title, about, "", parameters, "", messages)


def _needs(can: Capabilities) -> str:
    return "needs all parties" if can.needs == "all" else "needs any one party"


def _parties(can: Capabilities) -> str:
    return "any number of parties" if can.most_parties is None else f"at most {can.most_parties} parties"


def _default_parameters(of: Any) -> dict[str, str]:
    """Return the parameters that settings can hold, with their defaults; parameters for functions are left out."""
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
    """Return the attributes that the docstrings of a class and its bases describe."""
    if not isinstance(of, type):
        return {}
    listed = [inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2] for one in reversed(inspect.getmro(of))]
    found = re.findall(r"^    (\w+): (.+(?:\n {8,}.+)*)", "\n".join(listed), flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}
