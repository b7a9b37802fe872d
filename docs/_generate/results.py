"""The page with every published table: the files in benchmarks/results, with an overview of commands and dates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
COMMAND = re.compile(r"^- [Cc]ommand: `([^`]+)`", re.MULTILINE)
DATE = re.compile(r"^- (?:made|Date): (\d{4}-\d\d-\d\d)", re.MULTILINE)
SEEDS = re.compile(r"--seeds (\d+)")
HEADING = re.compile(r"^(#+) ", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)$\n?", re.MULTILINE)


def results() -> str:
    """Return the overview, then the tables of the papers, then those of speed, memory and leakage."""
    papers, others = sorted(RESULTS.glob("*/*.md")), sorted(RESULTS.glob("*.md"))
    parts = ["## Overview", "", "| table | command | seeds | date |", "|---|---|---:|---|"]
    parts += [overview(path) for path in (*papers, *others)]
    parts += ["", "## Published experiments", "", *sections(papers)]
    parts += ["", "## Speed, memory, and what can be inferred", "", *sections(others)]
    return "\n".join(parts)


def overview(path: Path) -> str:
    """Return a file's row in the overview.

    Raises:
        ValueError: the file does not name its command or its date.
    """
    text = path.read_text(encoding="utf-8")
    command, date = COMMAND.search(text), DATE.search(text)
    if command is None or date is None:
        raise ValueError(f"{path} does not name its {'date' if command else 'command'}; expected a line '- command: '")
    seeds = SEEDS.search(command[1])
    code = f'<code class="wrap">{escape(command[1])}</code>'
    return f"| [{title(path)}](#{anchor(path)}) | {code} | {seeds[1] if seeds else ''} | {date[1]} |"


def title(path: Path) -> str:
    """Return a file's title; a published experiment's title includes its data set."""
    first = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return first if path.parent == RESULTS else f"{first} ({path.stem})"


def anchor(path: Path) -> str:
    """Return the anchor of a file's section."""
    return "-".join(path.relative_to(RESULTS).with_suffix("").parts).replace("_", "-")


def sections(paths: list[Path]) -> Iterator[str]:
    """Yield each file's text, with its headings two levels lower and without pictures."""
    for path in paths:
        text = path.read_text(encoding="utf-8").partition("\n")[2]
        yield f"### {title(path)} {{#{anchor(path)}}}\n"
        yield HEADING.sub(r"##\1 ", PICTURE.sub("", text))
        yield f"File: `{path.relative_to(RESULTS.parents[1]).as_posix()}`\n"
