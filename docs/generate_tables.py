"""Write the generated tables of pages in docs/reference and docs/explanation from what the code declares.

    python -m docs.generate_tables

In a page, a table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. The program also writes the list that
``anyparty methods`` shows, so that this command imports no method.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docs._generate.reading_examples import example_rows

import anyparty.cli
from anyparty.alignment import private
from anyparty.cli.console import described_parameters, needed_parties
from anyparty.config.schema import ClockSettings
from anyparty.core.types import MessageSpec
from anyparty.deployment.site import alignment_cache, site_prediction
from anyparty.errors import UserError, nearest
from anyparty.experiments.published import EXPLANATIONS, published_entries
from anyparty.methods.method_registry import METHODS, SPLIT, method
from anyparty.methods.schedules.flex import AdaptiveFlex
from anyparty.methods.schedules.schedule import MESSAGES as SCHEDULES
from anyparty.methods.schedules.schedule import LocalIterations
from anyparty.methods.split.pseudo_labels import Pseudo
from anyparty.methods.split.split_method import Split
from anyparty.serving import serving_protocol
from anyparty.tables import cells, checks, column_types, csv_file, file_content, label_cells, reading_rules
from anyparty.tables import preprocessing as prepare
from anyparty.tables import target as labels
from anyparty.tables.ids import NORMALIZATIONS
from anyparty.training import control_messages

DOCS = Path(__file__).parent
METHODS_FILE = Path(anyparty.cli.__file__).parent / "methods.json"
MARKED = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ALL_METHODS = "all"
NO_DEFAULT = dict.fromkeys(("", "None", "{}"), "none")
NO_GRADIENTS = "nothing from gradients: none are sent"
BASELINES = ("local", "standard", "ensemble", "combinatorial", "plug")
MORE = {"boosting": {"exchange": "bins"}}  # parameters with which a method sends messages that it does not by default
SHARED_PAGES = {  # other methods: a page with their own name
    **dict.fromkeys(BASELINES, "baselines"),
    **dict.fromkeys(("false-vfl-1", "false-vfl-2"), "false_vfl"),
}


@dataclass(frozen=True, kw_only=True)
class DocumentedMessage:
    """A message that may be sent, and the methods that send it; no methods if every run may send the message."""

    message: MessageSpec
    methods: tuple[str, ...] = ()


def documented_messages() -> dict[str, tuple[DocumentedMessage, ...]]:
    """Return all messages that anyparty may send, by table.

    - ``alignment``: private alignment
    - ``run``: common to all methods
    - ``methods``: sent by methods
    - ``schedules``: sent in addition or instead if parties have their own pace
    - ``prediction``: common to predictions of many rows
    - ``service``: predictions on request
    """
    common = (*alignment_cache.MESSAGES, *control_messages.MESSAGES, *control_messages.PART_MESSAGES)
    return {
        "alignment": _documented(private.MESSAGES),
        "run": _documented(common),
        "methods": messages_of_methods(METHODS),
        "schedules": _documented(SCHEDULES),
        "prediction": _documented(site_prediction.MESSAGES),
        "service": _documented(serving_protocol.MESSAGES),
    }


def _documented(messages: Iterable[MessageSpec]) -> tuple[DocumentedMessage, ...]:
    return tuple(DocumentedMessage(message=message) for message in messages)


def messages_of_methods(names: Iterable[str]) -> tuple[DocumentedMessage, ...]:
    """Return the messages of methods, each once, with the methods that send it."""
    senders: dict[MessageSpec, list[str]] = {}
    for name in names:
        for message in (*method(name).can.messages, *method(name, **MORE.get(name, {})).can.messages):
            if name not in senders.setdefault(message, []):
                senders[message].append(name)
    return tuple(DocumentedMessage(message=message, methods=tuple(those)) for message, those in senders.items())


def privacy_tables() -> dict[str, str]:
    """Return the tables of docs/reference/messages.md as Markdown."""
    tables = {name: message_table(messages) for name, messages in documented_messages().items()}
    return tables | {"gradients": _gradient_table()}


def methods_by_gradient_leakage() -> dict[str, tuple[str, ...]]:
    """Group methods by what passive parties can learn from the gradients that they receive.

    The key "" stands for methods that send no gradients to passive parties.
    """
    found: dict[str, list[str]] = {}
    for name in METHODS:
        for learns in {message.learns for message in method(name).can.gradients} or {""}:
            found.setdefault(learns, []).append(name)
    return {learns: tuple(names) for learns, names in found.items()}


def methods_list() -> str:
    """Return the list that ``anyparty methods`` shows, as JSON."""
    methods = []
    for name in METHODS:
        can = method(name).can
        methods.append(
            {
                "name": name,
                "title": can.title,
                "paper": can.paper,
                "trains_on": can.trains_on,
                "predicts_for": can.predicts_for,
                "parties": needed_parties(can),
                "sends": ", ".join(message.tag for message in can.messages),
            }
        )
    gradients = [
        {
            "methods": names,
            "gradients": f"sends gradients to passive parties. They can learn: {learns}"
            if learns
            else "sends no gradients to passive parties",
        }
        for learns, names in methods_by_gradient_leakage().items()
    ]
    return json.dumps({"methods": methods, "gradients": gradients}, indent=1, ensure_ascii=False) + "\n"


def _gradient_table() -> str:
    rows = [
        ["no" if not learns else "yes", ", ".join(f"`{name}`" for name in names), learns or NO_GRADIENTS]
        for learns, names in sorted(methods_by_gradient_leakage().items(), key=lambda each: not each[0])
    ]
    return _markdown(["gradients to passive parties", "methods", "what can be learnt of labels"], rows)


def message_table(messages: Iterable[DocumentedMessage]) -> str:
    """Return messages as a Markdown table, with the condition of messages that not every run sends."""
    messages = list(messages)
    of_methods = any(each.methods for each in messages)
    rows = []
    for each in messages:
        declared = each.message
        holds = f"{declared.holds}. Sent only if {declared.when}" if declared.when else declared.holds
        cells = [f"`{declared.tag}`", f"{declared.frm} → {declared.to}", holds, declared.learns]
        if of_methods:
            names = ", ".join(f"`{name}`" for name in each.methods)
            cells.insert(1, ALL_METHODS if len(each.methods) == len(METHODS) else names)
        rows.append(cells)
    headers = ["message", "from → to", "what it holds", "what can be learnt from it"]
    if of_methods:
        headers.insert(1, "methods")
    return _markdown(headers, rows)


def method_tables() -> dict[str, str]:
    """Return the table of docs/explanation/choose.md as Markdown."""
    rows = []
    for name in METHODS:
        can = method(name).can
        most = "" if can.most_parties is None else f", at most {can.most_parties} of them"
        needs = ("all parties there" if can.needs == "all" else "any one party") + most
        sends = ", ".join(f"`{message.tag}`" for message in can.messages)
        link = f"[`{name}`](methods/{SHARED_PAGES.get(name, name)}.md)"
        rows.append([link, can.trains_on, can.predicts_for, needs, sends])
    return {"methods": _markdown(["`method.name`", "trains on", "predicts", "needs", "sends"], rows)}


def parameter_tables(*owners: Any, clock: bool = False) -> dict[str, str]:
    """Return a table of parameters with defaults and meanings, from the docstrings of the classes that have them."""
    parameters = [("", each) for of in owners for each in described_parameters(of)]
    parameters += [("clock.", each) for each in described_parameters(ClockSettings) if clock]
    rows = [
        [f"`{group}{each['name']}`", NO_DEFAULT.get(each["default"], f"`{each['default']}`"),
         each["meaning"].replace("``", "`").rstrip(".")]
        for group, each in parameters
    ]  # fmt: skip
    return {"parameters": _markdown(["parameter", "default", "meaning"], rows)}


def package_tables() -> dict[str, str]:
    """Return the table of docs/explanation/architecture.md: the packages in the order of imports."""
    source = Path(anyparty.__file__).parent
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    (order,) = settings["tool"]["importlinter"]["contracts"]
    rows = []
    for name in " | ".join(reversed(order["layers"])).split(" | "):
        if (package := source / name).is_dir():
            about = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
            rows.append([f"`{name}/`", about.partition("\n\n")[0].replace("``", "`")])
    return {"packages": _markdown(["package", "content"], rows)}


def reading_tables() -> dict[str, str]:
    """Return the tables of docs/reference/tables.md as Markdown."""
    firsts = {"ids": ["id", "another party's id"], "files": ["file"]}
    examples = {
        name: _markdown([*firsts.get(name, ["cells", "beside"]), "what happens", "with a setting"], rows)
        for name, rows in example_rows().items()
    }
    return examples | {
        "missing": _markdown(["column", "cells that are missing"], _missing_marks()),
        "words": _markdown(["words that stop among labels"], [[_code(sorted(label_cells.MAY_BE_MISSING))]]),
        "id-changes": _markdown(["change", "removes a difference in"], _id_changes()),
        "formats": _markdown(["what", "recognised"], _formats()),
        "limits": _markdown(["limit", "what happens beyond it"], _reading_limits()),
    }


def _missing_marks() -> list[list[str]]:
    numbers, more = reading_rules.NOT_A_NUMBER, label_cells.MARKS - set(cells.MISSING)
    return [
        ["all columns", f"empty, {_code(mark for mark in cells.MISSING if mark)}"],
        ["numbers", f"also {_code(numbers)}"],
        ["labels", f"also {_code(sorted(more))}"],
    ]


def _id_changes() -> list[list[str]]:
    return [[f"`{name}`", change.difference] for name, change in NORMALIZATIONS.items()]


def _formats() -> list[list[str]]:
    tables = sorted({name for _, name in file_content.FORMATS} | {"CSV", "Excel"})
    others = dict.fromkeys(what for _, what, _ in file_content.NOT_TABLES)
    return [
        ["tables", ", ".join(tables)],
        ["compression", ", ".join(name for _, name in file_content.PACKED)],
        ["separators", ", ".join("tab" if mark == "\t" else f"`{mark}`" for mark in csv_file.SEPARATORS)],
        ["currencies", f"every sign, such as `$` and `€`, and {_code(reading_rules.CURRENCY.split('|')[1:])}"],
        ["shares", _code(reading_rules.SHARES)],
        ["not tables; they stop with their kind", ", ".join([*others, "an HTML page", "JSON", "XML", "binary data"])],
    ]


def _reading_limits() -> list[list[str]]:
    few, share = column_types.FEW_LEVELS, checks.UNSEEN_SHARE
    grouped = "the rarest are one category, with a remark"
    rows = {
        f"{cells.MAX_BYTES:,} bytes in a text cell or a column name": "stops; see `federation.max_cell_bytes`",
        f"{labels.MANY_CLASSES} different whole numbers as labels": "classes, regression or a question; see Labels",
        f"{labels.MANY_VALUES:,} classes, and half of the labels": "stops",
        f"one of {label_cells.SMALL} labels is a word for missing": "the word is a class, with a remark",
        f"{few} different numbers in another notation": "numbers; up to it may be categories, with a remark",
        f"{column_types.NUMERIC_SHARE:.0%} of a column's cells are numbers": "other cells stop",
        f"{column_types.MANY_LEVELS} different texts, and half of the cells": "left out, with a remark",
        f"{prepare.MANY_LEVELS} categories in the training rows": grouped,
        f"{cells.SEARCHED:,} categories": "different spellings are not searched for",
        f"{share:.0%} of the numbers at prediction are {checks.FAR} standard deviations from training": "a remark",
        f"{column_types.LARGEST:.1e} in a number": "stops",
    }
    return [list(row) for row in rows.items()]


def _code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _markdown(headers: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(_row(cells) for cells in (headers, ["---"] * len(headers), *rows)) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def published_tables() -> dict[str, str]:
    """Return the table of docs/explanation/results.md: every table and figure of the papers, and what repeats it."""
    rows = [
        [each.paper, each.place, each.shows, ", ".join(f"`{name}`" for name in each.suites), each.outcome]
        for each in published_entries()
    ]
    return {
        "published": _markdown(["paper", "place", "content", "suites", "outcome"], rows),
        "outcomes": _markdown(["outcome", "meaning"], [list(each) for each in EXPLANATIONS.items()]),
    }


PAGES: Mapping[str, Callable[[], dict[str, str]]] = {
    "reference/messages.md": privacy_tables,
    "reference/tables.md": reading_tables,
    "explanation/architecture.md": package_tables,
    "explanation/choose.md": method_tables,
    "explanation/results.md": published_tables,
    "explanation/methods/baselines.md": partial(parameter_tables, Split, *(SPLIT[name] for name in BASELINES)),
    "explanation/methods/laser.md": partial(parameter_tables, METHODS["laser"]),
    "explanation/methods/sum.md": partial(parameter_tables, METHODS["sum"]),
    "explanation/methods/pseudo.md": partial(parameter_tables, Pseudo),
    "explanation/methods/apc.md": partial(parameter_tables, METHODS["apc"]),
    "explanation/methods/vfedtrans.md": partial(parameter_tables, METHODS["vfedtrans"]),
    "explanation/methods/boosting.md": partial(parameter_tables, METHODS["boosting"]),
    "explanation/methods/fedhssl.md": partial(parameter_tables, METHODS["fedhssl"]),
    "explanation/methods/false_vfl.md": partial(parameter_tables, METHODS["false-vfl-2"]),
    "explanation/methods/flex.md": partial(parameter_tables, LocalIterations, AdaptiveFlex, clock=True),
}


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with its tables replaced by ``tables``.

    Raises:
        UserError: the page has a table that is not in ``tables``, or lacks one.
    """
    names = [mark["name"] for mark in MARKED.finditer(page)]
    unknown = sorted(set(names) - tables.keys())
    if unknown:
        raise UserError(f"there is no table {unknown[0]!r}{nearest(unknown[0], tables)}")
    lacking = sorted(tables.keys() - set(names))
    if lacking:
        raise UserError(f"the page lacks a place for table {lacking[0]!r}: <!-- table: {lacking[0]} --> <!-- end -->")
    return MARKED.sub(lambda mark: f"{mark[1]}{tables[mark['name']]}{mark[3]}", page)


def main(folder: Path = DOCS) -> None:
    """Write the tables of all pages."""
    for name, tables in PAGES.items():
        page = folder / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
    METHODS_FILE.write_text(methods_list(), encoding="utf-8")
