"""The documentation's pages: their code blocks, links and anchors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?P<place>[^)\s]+)\)")
ELSEWHERE = {
    "how-to/two-machines.md": "tests/deployment/test_two_machines.py",
    "how-to/serve.md": "tests/docs/test_serve_page.py",
}


@dataclass(frozen=True)
class Block:
    """A code block of a page; its mark is ``how: what``, such as ``file: credit.toml``."""

    page: str
    how: str
    what: str
    kind: str
    text: str


def pages() -> list[str]:
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    found = []
    for each in BLOCK.finditer(text(page)):
        how, _, what = (each["mark"] or "").partition(": ")
        found.append(Block(page, how, what, each["kind"], each["text"]))
    return found


def without_code(page: str) -> str:
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text(page)))


def anchors(markdown: str) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    heads = re.findall(r"^#+ (.+)$", markdown, flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower())).strip("-") for head in heads}
