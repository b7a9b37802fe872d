"""What a page becomes on its way to the site.

A link that leaves docs/ becomes its own words, with the place in the repository; something must be there.  A mark
``<!-- result: SUITE/FILE.md METHOD; METHOD -->`` becomes these methods' rows of a published table, each with the
paper's below it where there is one, from benchmarks/results: no page keeps a number that a new run would change.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<place>\.\.?/[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")

RESULT = re.compile(r"<!-- result: (?P<file>\S+) (?P<methods>.+?) -->")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite a page's links that leave docs/, and put in results.

    Raises:
        FileNotFoundError: a link leads to nothing.
        ValueError: there is no such result.
    """
    docs = Path(config.docs_dir).resolve()
    here = (docs / page.file.src_path).parent
    results = docs.parent / "benchmarks" / "results"
    markdown = RESULT.sub(lambda mark: rows_of((results / mark["file"]).read_text(encoding="utf-8"), mark["methods"]),
                          markdown)  # fmt: skip

    def rewritten(link: re.Match[str]) -> str:
        target = (here / link["place"]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {link['place']}, and nothing is there")
        place = target.relative_to(docs.parent).as_posix()
        return link["words"] if place in link["words"] else f"{link['words']} (`{place}`)"

    return LINK.sub(rewritten, markdown)


def rows_of(table: str, methods: str) -> str:
    """Return a published table's head, the rows of methods (by their titles, with "; " in between), and the paper's.

    Raises:
        ValueError: the table has no such row.
    """
    lines = table.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("|---"))
    rows = lines[first - 1 : first + 1]
    for method in methods.split("; "):
        at = next((k for k, line in enumerate(lines) if line.startswith(f"| {method} |")), None)
        if at is None:
            raise ValueError(f"there is no row {method!r} in the table")
        rows += [lines[at], *(line for line in lines[at + 1 : at + 2] if line.startswith("| *paper*"))]
    return "\n".join(rows)
