"""Every page is in the site, its links work, its code blocks run or say why not, and its tables are up to date."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import polars as pl
import pytest

import anyparty
from anyparty import METHODS, Federation, config
from anyparty.config import Config
from anyparty.report import party_set_scores
from docs import generate_tables
from tests.conftest import adopt
from tests.docs.pages import DOCS, ELSEWHERE, LINK, ROOT, anchors, blocks, pages, text, without_code
from tests.ports import free_port

FIRST = "tutorials/ten-minutes.md"
OTHERS = (
    "explanation/choose.md", "how-to/report.md", "how-to/attack.md", "how-to/watch.md", "how-to/your-encoder.md",
    "how-to/your-method.md", "how-to/scikit-learn.md", "how-to/troubleshooting.md", "reference/tables.md",
)  # fmt: skip
HOW = {"run", "file", "shown", "serve", "ask", "not run"}


def test_every_page_is_in_the_site_and_in_llms_txt() -> None:
    named = re.findall(r"(?:- |: )(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    books = [path.relative_to(DOCS) for path in DOCS.rglob("*.ipynb")]
    assert sorted(named) == sorted([*pages(), *(book.with_suffix(".md").as_posix() for book in books)])
    told = set(LINK.findall((DOCS / "llms.txt").read_text(encoding="utf-8")))
    inside = {page for page in pages() if not page.startswith("decisions/")} - {"index.md", "explanation/findings.md"}
    assert told == inside | {book.as_posix() for book in books}


@pytest.mark.parametrize("page", [*pages(), "../README.md", "../CONTRIBUTING.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    for place in LINK.findall(without_code(page)):
        if place.startswith("https://"):
            continue
        path, _, anchor = place.partition("#")
        target = ((DOCS / page).parent / path).resolve() if path else (DOCS / page).resolve()
        assert target.exists(), f"{page} links to {place}"
        assert target.is_relative_to(ROOT), f"{page} links out of the repository: {place}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: no heading {anchor} in {path}"


@pytest.mark.parametrize("page", [*pages(), "../README.md"])
def test_a_picture_is_shown_once_in_any_viewer(page: str) -> None:
    """A plain viewer shows all images, whatever their anchor; it chooses one in a <picture>, and so does the site."""
    shown = without_code(page)
    assert not re.search(r"#only-(light|dark)", shown), f"{page}: write <picture>, see docs/index.md"
    pictures = list(runpy.run_path(str(DOCS / "hooks.py"))["PICTURE"].finditer(shown))
    assert len(pictures) == shown.count("<picture>") == shown.count("<img ")
    for picture in pictures:
        light, dark = ((DOCS / page).parent / picture[theme] for theme in ("light", "dark"))
        assert light.is_file(), light
        assert dark.is_file(), dark
        assert light != dark


@pytest.mark.parametrize("page", [page for page in pages() if page not in ELSEWHERE])
def test_every_block_is_marked_or_can_be_read(page: str) -> None:
    for block in blocks(page):
        if block.how:
            assert block.how in HOW, f"{page}: nothing runs <!-- {block.how} -->"
        elif block.kind == "toml":
            Config.of(tomllib.loads(block.text))
        elif block.kind == "python":
            ast.parse(block.text)
        elif block.kind == "mermaid":
            assert block.text.startswith(("flowchart ", "sequenceDiagram\n")), f"{page}: not a drawing:\n{block.text}"
        else:
            pytest.fail(f"{page}: say how this block is run:\n{block.text}")
        if block.how == "not run":
            assert len(block.what) > 5, f"{page}: say why"


@pytest.mark.parametrize("page", [*pages(), "../README.md", "../CONTRIBUTING.md"])
def test_no_page_scores_rows_that_training_saw(page: str) -> None:
    """``evaluate`` scores a run's own test rows; with other tables, it could score training rows."""
    for block in blocks(page):
        assert not re.search(r"\.evaluate\((?!\)|parties=)", block.text), f"{page} scores tables:\n{block.text}"
        assert not re.search(r"anyparty evaluate .*--table", block.text), f"{page} scores tables:\n{block.text}"


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text(encoding="utf-8")


def test_pages_with_blocks_to_run_are_run() -> None:
    to_run = {page for page in pages() if any(block.how in {"run", "file", "serve", "ask"} for block in blocks(page))}
    assert to_run - ELSEWHERE.keys() == {FIRST, *OTHERS}


def write_files(page: str, folder: Path) -> None:
    for block in blocks(page):
        if block.how == "file":
            (folder / block.what).write_text(block.text, encoding="utf-8")


def run(page: str, folder: Path, call, what: str = "") -> None:
    """Run a page's blocks in order, in the current folder; only those that need the extra ``what``, if given."""
    write_files(page, folder)
    for block in blocks(page):
        if block.how != "run" or block.what != what:
            continue
        if block.kind == "python":
            program([sys.executable, "-c", block.text], folder)
        else:
            for line in filter(None, block.text.splitlines()):
                first, *words = shlex.split(line, comments=True)
                if first == "python":
                    program([sys.executable, *words], folder)
                    continue
                assert first == "anyparty", line
                shown = call(*words)
                found = words == ["doctor"] and shown.exit_code == 2  # its findings depend on this machine
                assert shown.exit_code == 0 or found, f"{page}: {line}\n{shown.output}"


def program(words: list[str], folder: Path) -> None:
    quick = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)])}
    shown = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=quick)  # noqa: S603
    assert shown.returncode == 0, f"{words[-1][:200]}\n{shown.stderr}"
    assert "Warning" not in shown.stderr


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_set_scores, "RESAMPLES", 5)
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Return the folder of a reader who has followed the first page."""
    from typer.testing import CliRunner  # noqa: PLC0415

    from anyparty.cli.app import app  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        run(FIRST, folder, lambda *words: CliRunner().invoke(app, [str(word) for word in words]))
    return folder


def test_the_first_page_runs(started) -> None:
    answers = pl.read_csv(started / "answers.csv")
    assert len(answers) == 150
    assert answers["prediction"].null_count() == 0
    said = " ".join(text(FIRST).split())
    assert f"prints the task as `{Federation.from_config(config.load(started / 'credit.toml')).predicted()}`" in said
    assert "answers for 150 customers" in said
    assert (started / "runs/credit-sum-seed0/report/index.html").exists()


def test_the_first_page_shows_the_verdict_that_is_printed(started, call) -> None:
    """The numbers may differ in their last digits on another machine, and with another default method."""

    def masked(shown: str) -> list[str]:
        return [re.sub(r"\d+\.\d+", "#", line).strip() for line in shown.splitlines() if line.strip()]

    (page,) = (block.text for block in blocks(FIRST) if block.what == "verdict")
    (folder,) = (started / "runs").glob("credit-*")
    printed = masked(call("evaluate", folder).output)
    begin = printed.index("Is it worth it?")
    assert printed[begin : begin + len(masked(page))] == masked(page)


@pytest.mark.parametrize("page", OTHERS)
@pytest.mark.slow
def test_another_page_runs(page: str, started, tmp_path, monkeypatch, call) -> None:
    folder = Path(shutil.copytree(started, tmp_path / "work"))
    settings = folder / "runs" / "credit-sum-seed0" / "config.toml"
    settings.write_text(settings.read_text().replace(str(started), str(folder)))
    adopt(settings.parent)
    monkeypatch.chdir(folder)
    run(page, folder, call)
    if any(block.what == "track" for block in blocks(page)):
        pytest.importorskip("tensorboard", reason="the extra 'track' is not installed; all other blocks ran")
        run(page, folder, call, "track")
        assert list((folder / "runs" / "tracked" / "tensorboard").iterdir())


@pytest.mark.parametrize("page", [page for page in pages() if page not in ELSEWHERE])
def test_settings_in_a_page_are_settings(page: str, tmp_path) -> None:
    write_files(FIRST, tmp_path)
    whole = tomllib.loads((tmp_path / "credit.toml").read_text())
    for block in blocks(page):
        if block.how == "file" and block.what.endswith(".toml"):
            groups = tomllib.loads(block.text)
            for party, own in groups.pop("parties", {}).items():
                whole["parties"][party] |= own
            Config.of(whole | groups)
    assert config.load(tmp_path / "credit.toml").federation.label == "default"


@pytest.mark.net
def test_the_first_page_serves(started, tmp_path) -> None:
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    port = free_port()
    served, asked = (next(b.text for b in blocks(FIRST) if b.how == how).strip() for how in ("serve", "ask"))
    words = shlex.split(served.replace("8080", str(port)))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen([sys.executable, "-m", *words], cwd=started, env=environment)  # noqa: S603
    try:
        end, answer = time.monotonic() + 300, ""
        while '"took_part":["bank","shop"]' not in answer and time.monotonic() < end:  # a party may be late at first
            assert server.poll() is None
            time.sleep(0.5)
            ask = shlex.split(asked.replace("8080", str(port)))
            said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout  # noqa: S603
            answer = re.sub(r"\s", "", said)
    finally:
        server.terminate()
        server.wait(120)
    (shown,) = (block for block in blocks(FIRST) if block.how == "shown" and block.kind == "json")
    for said in ('"id":"c0300"', '"took_part":["bank","shop"]', '"prediction":"no"'):
        assert said in answer
        assert said in re.sub(r"\s", "", shown.text)


def test_the_method_of_ones_own_is_the_examples() -> None:
    """The file in the page is contained in the example, which has further imports."""
    (page,) = (block.text for block in blocks("how-to/your-method.md") if block.how == "file")
    example = (ROOT / "examples" / "your_own_method.py").read_text(encoding="utf-8")
    imports, _, method = page.partition("\n\n\n")
    assert method.strip() in example
    assert imported(imports) <= imported(example)


def test_a_method_of_ones_own_needs_at_most_eight_concepts() -> None:
    """The example's imports from anyparty, and those of the page's file, are the names that a reader has to learn."""
    example = imported((ROOT / "examples" / "your_own_method.py").read_text(encoding="utf-8"))
    names = {name for module, name in example if module.partition(".")[0] == "anyparty"}
    assert {"Rule", "Split"} <= names
    assert len(names) <= 8, sorted(names)
    (page,) = (block.text for block in blocks("how-to/your-method.md") if block.how == "file")
    method = {name for module, name in imported(page) if module.partition(".")[0] == "anyparty"}
    assert len(method | {"Split", "h", "observed"}) <= 8, sorted(method)


def imported(source: str) -> set[tuple[str, str]]:
    """Return the modules and names that a source imports."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(getattr(node, "module", ""), name.name) for node in found for name in node.names}


def test_the_table_of_methods_is_what_they_declare() -> None:
    page = text("explanation/choose.md")
    tables = generate_tables.method_tables()
    assert tables["methods"] in page
    assert generate_tables.with_tables(page, tables) == page
    assert [name for name in METHODS if f"`{name}`" not in page] == []
    assert {generate_tables.SHARED_PAGES.get(name, name) for name in METHODS} <= {
        path.stem for path in (DOCS / "explanation" / "methods").glob("*.md")
    }


def test_every_trouble_is_a_sentence_of_ours() -> None:
    """Each quoted message occurs in the source, with ... in place of inserted values."""
    source = " ".join(words for path in (ROOT / "src").rglob("*.py") for words in strings(path))
    rows = re.findall(r"^\| `(.+?)` \|", text("how-to/troubleshooting.md"), flags=re.MULTILINE)
    assert len(rows) >= 14
    pieces = [(row, piece.strip()) for row in rows for piece in row.split("…")]
    assert [row for row, piece in pieces if piece not in source] == []


def test_reference_pages_name_every_setting_and_command() -> None:
    reference = runpy.run_path(str(DOCS / "_generate" / "reference.py"))
    settings, commands = reference["settings"](), reference["commands"]()
    for group in Config.model_fields:
        assert f"## `[{group}{'.NAME' if group == 'parties' else ''}]`" in settings
    for setting in ("patience", "lr", "hidden", "max_cell_bytes", "mlflow"):
        assert f"| `{setting}` |" in settings
    for command in ("train", "evaluate", "federate init", "party start"):
        assert f"## `anyparty {command}`" in commands
    assert "| `--resume` |" in commands
    for page, name in (("settings", "settings"), ("commands", "commands")):
        assert reference["GENERATED"].findall(text(f"reference/{page}.md")) == [name]
    public = set(anyparty.__all__) - {"__version__"}
    assert {name for name in public if f"anyparty.{name}\n" not in text("reference/api.md")} == {"METHODS"}


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="the extra 'docs' is not installed")
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    shown = hooks["FORMULA"].sub(hooks["mathml"], "With $`\\lambda`$:\n\n$$\n\\sum_k h_k\n$$\n")
    assert shown.count("<math") == 2
    assert "$" not in shown


def test_a_formula_at_the_beginning_of_a_line_stays_in_its_sentence() -> None:
    pytest.importorskip("latex2mathml", reason="the extra 'docs' is not installed")
    markdown = pytest.importorskip("markdown", reason="the extra 'docs' is not installed")
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    shown = markdown.markdown(hooks["FORMULA"].sub(hooks["mathml"], "The party draws samples\n$`z_l`$, and then h.\n"))
    assert shown.startswith("<p>The party draws samples\n<span><math")
    assert shown.endswith("</math></span>, and then h.</p>")


def test_every_page_that_the_source_names_exists() -> None:
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".toml"}]
    named = {name for path in sources for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert {name for name in named if not (ROOT / name).exists()} == set()


def strings(path: Path):
    """Yield every string of a file; in f-strings, a NUL character replaces each inserted value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_results_in_pages_are_there() -> None:
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    marks = [mark for page in pages() for mark in hooks["RESULT"].finditer(text(page))]
    assert len(marks) >= 6
    for mark in marks:
        table = (ROOT / "benchmarks" / "results" / mark["file"]).read_text(encoding="utf-8")
        head, line, *rows = hooks["rows_of"](table, mark["methods"]).splitlines()
        assert (head[:2], line[:4]) == ("| ", "|---")
        ours = [row for row in rows if not row.startswith("| *paper*")]
        assert [row.split(" |")[0] for row in ours] == [f"| {name}" for name in mark["methods"].split("; ")]
        if mark["file"].startswith("laser"):
            assert len(rows) == 2 * len(ours)
    with pytest.raises(ValueError, match="no row 'Nobody'"):
        hooks["rows_of"](table, "Nobody")
