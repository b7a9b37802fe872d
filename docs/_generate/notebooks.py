"""Pages from the notebooks of docs/tutorials: each is executed while the site is built, and shown with its outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter  # type: ignore[import-not-found] # in the extra docs

CELL_SECONDS = 120  # one cell may take this long on a slow machine


def executed(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a run in a kernel of this Python.

    Raises:
        CellExecutionError: a cell raised an error.
    """
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(book, kernel_name="python3", timeout=CELL_SECONDS, resources=resources).execute()
    return book


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook's page in Markdown, and its figures by file name."""
    markdown, resources = MarkdownExporter().from_notebook_node(executed(path))
    figures = {f"{path.stem}-{name}": data for name, data in resources["outputs"].items()}
    for name in resources["outputs"]:
        markdown = markdown.replace(f"]({name})", f"]({path.stem}-{name})")
    return markdown, figures
