"""The page of a benchmark: it is printed while it is made, and saved as Markdown with the command and the machine."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Spread

RESULTS = Path(__file__).parent / "results"


@dataclass
class Page:
    """Tables and sentences of one benchmark, in order.

    Attributes:
        name: name of the program, ``python -m benchmarks.NAME``.
        title: subject of the measurement.
        quick: fewer rounds and smaller sizes; saved in a separate folder, so that it replaces no real result.
        words: words of the command, if they differ from the name.
    """

    name: str
    title: str
    quick: bool
    words: str = ""
    parts: list[str] = field(default_factory=list)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    console: Console = field(default_factory=lambda: Console(width=None if Console().is_terminal else 150))

    @property
    def folder(self) -> Path:
        """Folder of the page and its plots."""
        folder = RESULTS / "quick" if self.quick else RESULTS
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def table(self, heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table and add it to the page; on the terminal, an empty row is shown as a line."""
        shown = Table(title=heading, title_justify="left")
        for i, column in enumerate(columns):
            shown.add_column(column, justify="right" if i else "left")
        for row in rows:
            shown.add_row(*row) if row else shown.add_section()
        self.console.print(shown)
        lines = [_line(columns), _line(["---", *["---:"] * (len(columns) - 1)]), *(_line(row) for row in rows if row)]
        self.parts += [f"## {heading}", "\n".join(lines)]

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.console.print(text, markup=False, highlight=False)
        self.parts.append(text)

    def plot(self, file: Path, caption: str) -> None:
        """Add a picture from the folder of the page."""
        self.console.print(f"plot: {file}", highlight=False)
        self.parts.append(f"![{caption}]({file.name})")

    def write(self) -> Path:
        """Write the page."""
        file = self.folder / f"{self.name}.md"
        file.write_text("\n\n".join([f"# {self.title}", self._made(), *self.parts]) + "\n", encoding="utf-8")
        self.console.print(f"written: {file}", highlight=False)
        return file

    def _made(self) -> str:
        took = (datetime.now(UTC) - self.began).total_seconds()
        packages = ", ".join(f"{name} {version(name)}" for name in ("anyparty", "torch", "numpy", "polars"))
        threads = torch.get_num_threads()
        command = f"python -m benchmarks.{self.words or self.name}{' --quick' if self.quick else ''}"
        return "\n".join([
            f"- Command: `{command}`, {took:.0f} s",
            f"- Date: {self.began:%Y-%m-%d %H:%M} UTC",
            f"- Versions: Python {platform.python_version()}, {packages}",
            f"- Machine: {_processor()}, {os.cpu_count()} cores, {_memory():.0f} GiB, {threads} torch threads",
            f"- Load before the run: {self.load:.1f} (other jobs on the machine)",
        ])  # fmt: skip


def target(value: float | Spread, most: float | None = None, *, least: float | None = None) -> str:
    """Return a target in words and whether ``value`` meets it.

    A spread is judged by its median, unless it is too wide.
    """
    if most is None and least is None:
        return ""
    bound = f"<= {most:g}" if most is not None else f">= {least:g}"
    if isinstance(value, Spread):
        if value.high - value.low > value.median / 2:
            return f"{bound} too noisy to say"
        value = value.median
    value = round(value, 2)  # the page shows two decimals, so they decide
    met = (most is None or value <= most) and (least is None or value >= least)
    return f"{bound} {'met' if met else 'MISSED'}"


def quick_asked(about: str | None) -> bool:
    """Return whether the command line has ``--quick``."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes: a look, not a result")
    return bool(parser.parse_args().quick)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
