"""What each party can learn from each message: the tables of docs/privacy.md, made from what the code declares.

    python -m anyparty.report.privacy docs/privacy.md     # writes the page's tables anew; its words stay

In the page, a table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; the names are those of ``tables``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anyparty.errors import UserError, nearest
from anyparty.methods.table import METHODS, method
from anyparty.run import agree
from anyparty.schedules.schedule import MESSAGES as SCHEDULES
from anyparty.terms import Declared

MARKED = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
EVERY = "all"
NO_GRADIENTS = "nothing from gradients: none are sent"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A message that may cross, and the methods that send it; none for what belongs to every run."""

    message: Declared
    methods: tuple[str, ...] = ()


def sections() -> dict[str, tuple[Line, ...]]:
    """Return all messages that anyparty may send, by what they belong to.

    ``alignment`` is private alignment, ``run`` is what stands around every method, ``methods`` is what they send,
    ``schedules`` what crosses beside or instead of that when parties step at their own pace, ``prediction`` and
    ``service`` what stands around them when rows are predicted: many at once, or as they are asked for.
    """
    from anyparty.align import private  # noqa: PLC0415 - needs PyNaCl, an extra
    from anyparty.run import kept_alignment, parts, predict_home  # noqa: PLC0415
    from anyparty.serving import serving_protocol  # noqa: PLC0415

    around = (*kept_alignment.MESSAGES, *agree.MESSAGES, *parts.MESSAGES)
    return {
        "alignment": tuple(Line(message=message) for message in private.MESSAGES),
        "run": tuple(Line(message=message) for message in around),
        "methods": of_methods(METHODS),
        "schedules": tuple(Line(message=message) for message in SCHEDULES),
        "prediction": tuple(Line(message=message) for message in predict_home.MESSAGES),
        "service": tuple(Line(message=message) for message in serving_protocol.MESSAGES),
    }


def of_methods(names: Iterable[str]) -> tuple[Line, ...]:
    """Return what methods send, each message once, with the methods that send it."""
    senders: dict[Declared, list[str]] = {}
    for name in names:
        for message in method(name).can.messages:
            senders.setdefault(message, []).append(name)
    return tuple(Line(message=message, methods=tuple(those)) for message, those in senders.items())


def tables() -> dict[str, str]:
    """Return each table of the page as Markdown."""
    return {name: table(lines) for name, lines in sections().items()} | {"gradients": _gradients()}


def by_gradients() -> dict[str, tuple[str, ...]]:
    """Group methods by what passive parties can learn from the gradients sent back to them; "" for no gradients."""
    found: dict[str, list[str]] = {}
    for name in METHODS:
        for learns in {message.learns for message in method(name).can.gradients} or {""}:
            found.setdefault(learns, []).append(name)
    return {learns: tuple(names) for learns, names in found.items()}


def _gradients() -> str:
    rows = [
        ["no" if not learns else "yes", ", ".join(f"`{name}`" for name in names), learns or NO_GRADIENTS]
        for learns, names in sorted(by_gradients().items(), key=lambda each: not each[0])
    ]
    heads = ["gradients to passive parties", "methods", "what can be learnt of labels"]
    return "\n".join(_row(cells) for cells in (heads, ["---"] * len(heads), *rows)) + "\n"


def table(lines: Iterable[Line]) -> str:
    """Return messages as a Markdown table; one that is not sent in every run says when it is."""
    rows = []
    lines = list(lines)
    for line in lines:
        said = line.message
        holds = f"{said.holds}. Sent only where {said.when}" if said.when else said.holds
        cells = [f"`{said.tag}`", f"{said.frm} → {said.to}", holds, said.learns]
        if any(each.methods for each in lines):
            everybody = len(line.methods) == len(METHODS)
            cells.insert(1, EVERY if everybody else ", ".join(f"`{name}`" for name in line.methods))
        rows.append(cells)
    heads = ["message", "from → to", "what it holds", "what can be learnt from it"]
    if any(line.methods for line in lines):
        heads.insert(1, "methods")
    return "\n".join(_row(cells) for cells in (heads, ["---"] * len(heads), *rows)) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def filled(page: str, made: Mapping[str, str] | None = None) -> str:
    """Return a page with its tables made anew: those of ``tables``, or ``made`` by their names.

    Raises:
        UserError: a table that there is not, or one that the page lacks.
    """
    made = tables() if made is None else made
    there = [mark["name"] for mark in MARKED.finditer(page)]
    unknown = sorted(set(there) - made.keys())
    if unknown:
        raise UserError(f"there is no table {unknown[0]!r}{nearest(unknown[0], made)}")
    lacking = sorted(made.keys() - set(there))
    if lacking:
        raise UserError(f"the page lacks a place for table {lacking[0]!r}: <!-- table: {lacking[0]} --> <!-- end -->")
    return MARKED.sub(lambda mark: f"{mark[1]}{made[mark['name']]}{mark[3]}", page)


def main(path: str) -> None:
    """Write a page's tables anew."""
    page = Path(path)
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/privacy.md")
