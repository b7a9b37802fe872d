"""Generated parts of the site: every published table, and a diagram of each method's declared messages."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

import pytest

from anyparty.methods.method_registry import METHODS, method
from tests.docs.pages import DOCS, ROOT, text

METHOD_PAGES = sorted((DOCS / "explanation" / "methods").glob("*.md"))


@pytest.fixture(autouse=True)
def _generators(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS / "_generate"), *sys.path])


def test_the_page_of_results_has_every_published_table() -> None:
    """Each file has its command, its date and all lines of its tables, below a heading that the overview links to."""
    from results import results  # noqa: PLC0415 - beside the site's hook, and not a package

    page = results()
    anchors = set(re.findall(r"\{#([\w-]+)\}", page))
    assert anchors == set(re.findall(r"\]\(#([\w-]+)\)", page))
    files = sorted((ROOT / "benchmarks" / "results").rglob("*.md"))
    assert len(anchors) == len(files) > 40
    for file in files:
        table = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert set(table) <= set(page.splitlines()), file
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert all(re.search(r"<code.*?>(anyparty bench|python -m) .*\| \d{4}-\d\d-\d\d \|$", row) for row in rows)


def test_a_file_without_a_command_is_named(tmp_path) -> None:
    from results import overview  # noqa: PLC0415

    (tmp_path / "table.md").write_text("# A table\n\n- made: 2026-11-28\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"table\.md does not name its command"):
        overview(tmp_path / "table.md")


@pytest.mark.parametrize("name", METHODS)
def test_a_diagram_has_an_arrow_for_each_declared_message(name: str) -> None:
    from diagrams import NAMES, diagram  # noqa: PLC0415

    messages = method(name).can.messages
    (figure,) = ET.fromstring(f"<div>{diagram(name)}</div>")  # noqa: S314 - made by this project
    drawing = figure[0]
    tags = [part.text for part in drawing.iter("text") if part.get("class") == "tag"]
    assert tags == [message.tag for message in messages]
    dashed = [part for part in drawing.iter() if part.get("class") == "arrow some"]
    assert len(dashed) == sum(bool(message.when) for message in messages)
    for message in messages:
        assert f"{message.tag}, from {NAMES[message.frm]} to {NAMES[message.to]}" in drawing.get("aria-label")


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda path: path.stem)
def test_each_methods_page_has_a_diagram(page) -> None:
    from diagrams import diagram  # noqa: PLC0415

    names = re.findall(r"<!-- diagram: (\S+) -->", text(page.relative_to(DOCS).as_posix()))
    assert names
    assert all(diagram(name).startswith("<figure") for name in names)


def test_mermaid_blocks_are_drawn_with_all_their_words() -> None:
    from mermaid import BLOCK, drawn  # noqa: PLC0415

    flow, steps = (ET.fromstring(drawn(block)) for block in BLOCK.finditer(text("explanation/architecture.md")))  # noqa: S314
    boxes = {part.text: float(part.get("y")) for part in flow.iter("text")}
    for line in re.findall(r"^    (\w+(?: --> \w+)+)$", text("explanation/architecture.md"), flags=re.MULTILINE):
        heights = [boxes[name] for name in line.split(" --> ")]
        assert heights == sorted(set(heights)), line
    words = " ".join(part.text for part in steps.iter("text"))
    assert "backward: gradients of heads, own encoder" in words
    with pytest.raises(ValueError, match="is not supported: 'loop forever'"):
        drawn(BLOCK.match("```mermaid\nsequenceDiagram\n    loop forever\n```"))
