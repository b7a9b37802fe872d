"""What commands print and write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from anyparty import export
from anyparty.config.user_code import AllowedCode, load_code
from anyparty.errors import ConfigError
from anyparty.methods.by_factory import METHOD, classes_of, made_by
from anyparty.methods.table import METHODS, method, parameters_of
from anyparty.methods.typed import takes
from anyparty.predictions import Predictions, members, patterns
from anyparty.report.privacy import by_gradients
from anyparty.run.runs import settings_of
from anyparty.terms import Capabilities

SHOWN = 16


# Predictions


def check_kind(out: Path | None, tables: Iterable[Path | None] = (), *, raw_csv: bool = False) -> None:
    """Reject an output file that cannot be written, or that is one of the ``tables``, before any work is done.

    Raises:
        ConfigError: neither .parquet nor .csv, a table that would be lost, or ``raw_csv`` without a CSV.
    """
    if raw_csv and (out is None or out.suffix.lower() != ".csv"):
        raise ConfigError("--raw-csv only applies to a .csv file; name one with --out, or remove --raw-csv")
    if out is None:
        return
    if any(table is not None and table.resolve() == out.resolve() for table in tables):
        raise ConfigError(f"--out {out}: this is a party's table, which would be lost; name another file")
    if out.suffix.lower() not in export.KINDS:
        raise ConfigError(f"--out {out}: name a file that ends in {' or '.join(export.KINDS)}")


def check_out(out: Path | None, run: Path, tables: Mapping[str, Path], *, raw_csv: bool = False) -> None:
    """Reject an output file for a run's answers, as ``check_kind``, before any work is done."""
    own = () if out is None else settings_of(run).parties.values()
    check_kind(out, [*tables.values(), *(party.table for party in own)], raw_csv=raw_csv)


def keep(frame: pl.DataFrame, out: Path | None, console: Console, *, raw_csv: bool = False) -> None:
    """Write the answers to ``out`` (``export.write``), or show the first ones if no file is named.

    Raises:
        StorageError: the disk is full, or the folder cannot be written to.
    """
    if out is None:
        console.print(head(frame))
        console.print("Keep all rows with --out FILE.parquet or --out FILE.csv.")
        return
    export.write(frame, out, raw_csv=raw_csv)
    console.print(f"{len(frame):,} rows are in {out}", soft_wrap=True)


def summary(answered: Predictions) -> RenderableType:
    """Return how many rows got an answer, from whom, and why others got none."""
    n = len(answered)
    asked = ", ".join(members(answered.asked, answered.blocks))
    table = Table("answered by")
    for heading in ("rows", "share"):
        table.add_column(heading, justify="right")
    for names, rows in list(_by_parties(answered))[:SHOWN]:
        table.add_row(Text(" + ".join(names)), f"{rows:,}", f"{rows / n:.1%}")
    table.add_section()
    rows = int(answered.answered.sum())
    table.add_row("answered", f"{rows:,}", f"{rows / n:.1%}")
    if rows < n:
        table.add_row("no answer", f"{n - rows:,}", f"{1 - rows / n:.1%}")
    notes = [f"No answer: {reason}." for reason in sorted(set(answered.reasons.values()))]
    notes += [f"Asked, but did not answer: {', '.join(answered.silent)}."] if answered.silent else []
    kept = members(answered.took_part.any(dim=0) & ~answered.asked, answered.blocks)
    notes += [f"Not asked: {', '.join(kept)}; what crossed of these rows in training was kept."] if kept else []
    return Group(Text(f"{answered.predictor}: {n:,} rows, asked: {asked}"), table, *map(Text, notes))


def _by_parties(answered: Predictions) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield who took part and in how many answers, most first."""
    distinct, which = patterns(answered.took_part[answered.answered])
    counts = which.bincount(minlength=len(distinct))
    for p in counts.argsort(descending=True, stable=True).tolist():
        yield members(distinct[p], answered.blocks), int(counts[p])


def head(frame: pl.DataFrame, rows: int = 8) -> RenderableType:
    """Return the first rows as a table."""
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


def all_methods() -> RenderableType:
    """Return every method and what it can do, as it declares itself."""
    table = Table("method", "trains on", "predicts for", "needs, sends", show_lines=True)
    for name in METHODS:
        can = method(name).can
        who = Text.assemble((name, "bold"), f"\n{can.title}\n", (can.paper, "dim"))
        sends = f"{_needs(can)}; {_most(can)}; sends {', '.join(message.tag for message in can.messages)}"
        table.add_row(who, can.trains_on, can.predicts_for, sends)
    return Group(table, *_labels(), "Parameters, and what each message tells: anyparty methods NAME")


def _labels() -> Iterator[str]:
    """Say which methods send gradients to passive parties, and what these can learn of labels from them."""
    for learns, names in by_gradients().items():
        sent = (
            "sends gradients to passive parties. They can learn: "
            if learns
            else "sends no gradients to passive parties"
        )
        yield f"{', '.join(names)}: {sent}{learns}."


def one_method(name: str) -> RenderableType:
    """Return a method's parameters with defaults, and its messages with what can be learnt from each.

    Raises:
        ConfigError: no such method, or the user's own, "module:name", that cannot be imported or made.
    """
    own = load_code(name, "method", AllowedCode(names=(name,)), METHOD) if ":" in name else None
    can = (method(name) if own is None else made_by(own, name.rpartition(":")[2], {})).can
    about = Table.grid(padding=(0, 2))
    for what, value in (
        ("paper", can.paper), ("trains on", can.trains_on), ("predicts for", can.predicts_for),
        ("serves", f"{_needs(can)}; {_most(can)}"),
    ):  # fmt: skip
        about.add_row(what, value)
    parameters = Table("parameter", "default", "meaning", title="In the settings, under method", title_justify="left")
    for of in parameters_of(name) if own is None else classes_of(own):
        meanings = _meanings(of)
        for key, default in _settable(of).items():
            parameters.add_row(key, Text(default), Text(meanings.get(key, "")))
    messages = Table("message", "from", "to", "what it holds", "what can be learnt from it", show_lines=True,
                     title="What leaves a party", title_justify="left")  # fmt: skip
    for message in can.messages:
        messages.add_row(message.tag, message.frm, message.to, Text(message.holds), Text(message.learns))
    setting = "name" if own is None else "factory"
    title = Text(f"{can.title} (method.{setting} = {name!r})", style="bold")
    return Group(title, about, "", parameters, "", messages)


def _needs(can: Capabilities) -> str:
    return "needs all parties" if can.needs == "all" else "needs any one party"


def _most(can: Capabilities) -> str:
    return "any number of them" if can.most_parties is None else f"at most {can.most_parties} of them"


def _settable(of: Any) -> dict[str, str]:
    """Return the parameters that settings can hold, with their defaults: no function of a user's own."""
    values = {name: each.default for name, each in inspect.signature(of).parameters.items()}
    if is_dataclass(of):
        values |= {each.name: each.default_factory() for each in fields(of) if callable(each.default_factory)}
    return {name: _default(values[name]) for name in takes(of) if name not in {"make_head", "make_decoder"}}


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "none: to be given"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _meanings(of: Any) -> dict[str, str]:
    """Return what the docstrings of a class and of those it stands on say of each of its attributes."""
    if not isinstance(of, type):
        return {}
    listed = [inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2] for one in reversed(inspect.getmro(of))]
    found = re.findall(r"^    (\w+): (.+(?:\n {8,}.+)*)", "\n".join(listed), flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}
