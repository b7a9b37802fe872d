"""Print docstrings, comments and documentation sentences drawn at random, for a reader who has not seen the code.

    python tools/language_sample.py                  # the same sample for everyone at one commit
    python tools/language_sample.py --seed TEXT      # another sample

The reader marks each entry that needs a second reading. At least 95 % must be clear at first reading.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCSTRINGS, COMMENTS, SENTENCES = 70, 30, 40
SKIPPED = ("docs/decisions", "docs/explanation/findings.md", "docs/explanation/all-results.md")
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Entry = tuple[str, str]
"""Where a text stands, and the text."""


def docstrings(path: Path) -> Iterator[Entry]:
    """Yield the docstrings of a module, its classes and functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
            yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text


def comments(path: Path) -> Iterator[Entry]:
    """Yield the comments with the line of code that they are about; lines that follow one another are one comment."""
    lines = path.read_text().splitlines()
    whole: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type != tokenize.COMMENT or re.match(r"# (type|noqa|pragma|fmt)\b", token.string):
            continue
        number, column = token.start
        if lines[number - 1][:column].strip():
            yield f"{path.relative_to(ROOT)}:{number}", lines[number - 1].strip()
        else:
            whole[number] = token.string
    for number in whole:
        if number - 1 not in whole:
            last = number
            while last in whole:
                last += 1
            block = [line.strip() for line in lines[number - 1 : last]]
            yield f"{path.relative_to(ROOT)}:{number}", "\n".join(block)


def sentences(path: Path) -> Iterator[Entry]:
    """Yield the sentences of a page's paragraphs and lists, without code, tables and headings."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
        if paragraph.lstrip().startswith(("|", "#", "<", "!", ":::", "$$")):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", " ".join(paragraph.split())):
            if len(sentence.split()) > 3:
                yield str(path.relative_to(ROOT)), sentence


def pages() -> list[Path]:
    """Return the pages for readers, without logs and pages of results."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found = sorted((ROOT / "docs").rglob("*.md"))
    return top + [page for page in found if not str(page.relative_to(ROOT)).startswith(SKIPPED)]


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    parser.add_argument("--seed", default=commit.stdout.strip())
    draw = random.Random(parser.parse_args().seed)  # noqa: S311 - a sample, not a secret
    code = sorted((ROOT / "src").rglob("*.py"))
    kinds = (
        ("Docstrings", DOCSTRINGS, [entry for path in code for entry in docstrings(path)]),
        ("Comments", COMMENTS, [entry for path in code for entry in comments(path)]),
        ("Sentences of the documentation", SENTENCES, [entry for page in pages() for entry in sentences(page)]),
    )
    number = 0
    for title, count, entries in kinds:
        print(f"\n# {title}: {count} of {len(entries)}\n")
        for place, text in draw.sample(entries, count):
            number += 1
            print(f"[{number}] {place}\n{text}\n")


if __name__ == "__main__":
    main()
