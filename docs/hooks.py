"""Prepare a page for the site.

- A link that leaves docs/ becomes its words and the path in the repository, which must exist.
- ``<!-- result: SUITE/FILE.md METHOD; METHOD -->`` becomes these methods' rows of a published table, each with the
  paper's row below it if there is one. So no page repeats a number that a new run would change.
- ``<!-- generated: NAME -->`` becomes a text from ``_generate/reference.py``.
- ``<!-- diagram: METHOD -->`` becomes a drawing of the method's messages.
- A Mermaid block becomes a drawing.
- A ``<picture>`` for light and dark readers becomes two images, of which the site shows the one of its own theme.
- A notebook of tutorials/ is executed and becomes a page of the same name; links to it lead to the page.
- Formulas between ``$$`` and ``$$``, or within a line between ``$`` marks and backticks, become MathML, which browsers
  show without a script.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<place>\.\.?/[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
NOTEBOOK = re.compile(r"\.ipynb\)")
RESULT = re.compile(r"<!-- result: (?P<file>\S+) (?P<methods>.+?) -->")
DIAGRAM = re.compile(r"<!-- diagram: (\S+) -->")
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*<img (?P<alt>[^>]*?) '
                     r'src="(?P<light>[^"]+)">\s*</picture>')  # fmt: skip
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|\$`(?P<inline>[^`]+)`\$", re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Execute the notebooks, and add their pages and figures.

    Raises:
        CellExecutionError: a cell raised an error.
    """
    from mkdocs.structure.files import File  # type: ignore[import-not-found] # noqa: PLC0415 - in the extra docs

    sys.path.insert(0, str(Path(config.docs_dir).resolve() / "_generate"))
    from notebooks import page  # noqa: PLC0415 - beside this file, and not a package

    for path in sorted((Path(config.docs_dir) / "tutorials").glob("*.ipynb")):
        markdown, figures = page(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=markdown))
        for name, data in figures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=data))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite a page's links that leave docs/, and insert results, generated texts, diagrams and formulas.

    Raises:
        FileNotFoundError: the target of a link does not exist.
        ValueError: a published table has no such row.
    """
    docs = Path(config.docs_dir).resolve()
    here = (docs / page.file.src_path).parent
    results = docs.parent / "benchmarks" / "results"
    sys.path.insert(0, str(docs / "_generate"))
    import mermaid  # noqa: PLC0415 - beside this file, and not a package
    from diagrams import diagram  # noqa: PLC0415
    from reference import GENERATED, generated  # noqa: PLC0415

    markdown = RESULT.sub(lambda mark: rows_of((results / mark["file"]).read_text(encoding="utf-8"), mark["methods"]),
                          markdown)  # fmt: skip
    markdown = GENERATED.sub(lambda mark: generated(mark[1]), markdown)
    markdown = PICTURE.sub(r'<img \g<alt> src="\g<light>#only-light"><img \g<alt> src="\g<dark>#only-dark">', markdown)
    markdown = mermaid.BLOCK.sub(mermaid.drawn, markdown)
    markdown = DIAGRAM.sub(lambda mark: diagram(mark[1]), markdown)

    def rewritten(link: re.Match[str]) -> str:
        target = (here / link["place"]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {link['place']}, which does not exist")
        place = target.relative_to(docs.parent).as_posix()
        if place.endswith(link["words"].strip("`")):
            return f"`{place}`"
        return link["words"] if place in link["words"] else f"{link['words']} (`{place}`)"

    return FORMULA.sub(mathml, LINK.sub(rewritten, NOTEBOOK.sub(".md)", markdown)))


def mathml(formula: re.Match[str]) -> str:
    """Return a formula as MathML.

    Markdown takes a line that begins with the tag ``math`` as a paragraph of its own; a ``span`` keeps the formula in
    its sentence.
    """
    from latex2mathml.converter import convert  # type: ignore[import-not-found] # noqa: PLC0415 - in the extra docs

    if formula["inline"]:
        return f"<span>{convert(formula['inline'])}</span>"
    return f'\n<div class="formula">{convert(formula["block"].strip(), display="block")}</div>\n'


def rows_of(table: str, methods: str) -> str:
    """Return a published table's head, the rows of methods (by title, separated by "; "), and the paper's rows.

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
