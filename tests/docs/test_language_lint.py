"""The language lint finds the sentences of the style guide, and passes their rewrites."""

import runpy
import subprocess

import pytest

from tests.docs.pages import ROOT

LINT = ROOT / "tools" / "language_lint.py"
lint = runpy.run_path(str(LINT))


def found(words: str, *, docstring: bool = False) -> list[str]:
    return [advice for _, advice in lint["hits"](iter([(1, words, docstring)]))]


@pytest.mark.parametrize(
    "words",
    [
        "Whoever reads the table", "A party that was told of it", "Train the model anew.", "There it is none.",
        "Nobody answered.", "What it comes to.", "A value that is no number.", "A party that knocks.",
        "Read: Of rows that others know, it has no id.", "It says so. Where a party is late, it is left out.",
        "word " * 41,
    ],
)  # fmt: skip
def test_it_finds(words: str) -> None:
    assert found(words)


@pytest.mark.parametrize("words", ["Return what gives a body.", "Whether it runs.", "Of a name, the rest."])
def test_it_finds_openings_of_docstrings(words: str) -> None:
    assert found(words, docstring=True)


@pytest.mark.parametrize(
    "words",
    [
        "Load a party's encoder.", "The value is not a number.", "It is no longer used.", "There is no other party.",
        "``anew`` and `whoever` are names.", "Return how many rows the party has.", "Of course, this is fine.",
    ],
)  # fmt: skip
def test_it_passes(words: str) -> None:
    assert found(words, docstring=True) == []


def test_it_reads_docstrings_and_comments_but_no_code() -> None:
    source = '"""Load it.\n\n>>> anew()\n"""\n\n# a comment of\n# two lines\nanew = "whoever"  # noqa: A001\n'
    assert [words.split() for _, words, _ in lint["python_texts"](source) if words.strip()] == [
        ["Load", "it."], ["a", "comment", "of", "two", "lines"]
    ]  # fmt: skip


def test_it_reads_pages_without_code() -> None:
    page = "# Head\n\nSome text\nin lines.\n\n- an item\n- another\n\n```console\nanew\n```\n"
    texts = [" ".join(words.split()) for _, words, _ in lint["page_texts"](page) if words.strip()]
    assert texts == ["# Head", "Some text in lines.", "- an item", "- another"]


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("fix(tables): keep leading zeros in ids", ""),
        ("Merge branch 'topology'", ""),
        ("keep leading zeros", "is not 'type(scope): subject'"),
        ("fix: " + "long " * 15, "characters, more than 72"),
        ("fix: who was told trains anew", "'anew'"),
    ],
)
def test_it_checks_subjects(subject: str, fault: str) -> None:
    faults = lint["hits_of_subject"](subject)
    assert any(fault in each for each in faults) if fault else faults == []


def test_the_total_of_the_baseline_may_only_fall(tmp_path, monkeypatch) -> None:
    baseline = tmp_path / "baseline.txt"
    monkeypatch.setitem(lint["update"].__globals__, "BASELINE", baseline)
    assert lint["update"]({"a.py": 2, "b.py": 1, "c.py": 0}) == ""
    assert lint["baseline"]() == {"a.py": 2, "b.py": 1}
    assert lint["update"]({"moved.py": 2, "b.py": 0}) == ""
    assert "3 hits, and the baseline allows 2" in lint["update"]({"moved.py": 3})
    assert lint["baseline"]() == {"moved.py": 2}


def test_a_file_may_have_no_more_hits_than_the_baseline_says(tmp_path, monkeypatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("Train anew.\n")
    (tmp_path / "baseline.txt").write_text("1 page.md\n")
    names = {"ROOT": tmp_path, "BASELINE": tmp_path / "baseline.txt", "files": lambda: [page], "subjects": list}
    for name, value in names.items():
        monkeypatch.setitem(lint["check"].__globals__, name, value)
    assert lint["check"]() == []
    page.write_text("Train anew.\n\nThen align anew.\n")
    assert lint["check"]()[-1] == "page.md: 2 hits, at most 1 allowed"


def test_make_check_runs_it() -> None:
    done = subprocess.run(["make", "--dry-run", "check"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    assert "tools/language_lint.py" in done.stdout
