"""Check the English of docstrings, comments, documentation pages and commit subjects.

    python tools/language_lint.py                    # all files, and the commits of this branch
    python tools/language_lint.py PATH ...           # print every hit in these files
    python tools/language_lint.py --update           # rewrite the baseline; the total may only fall
    python tools/language_lint.py --message FILE     # one commit message (the commit-msg hook)

``language_baseline.txt`` beside this program lists the files that still have hits, with the highest number allowed.
A file that is not listed may have none.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASELINE = Path(__file__).with_name("language_baseline.txt")
SOURCES = ("src", "tests", "benchmarks", "examples", "tools", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUBJECT = re.compile(r"(feat|fix|docs|test|refactor|perf|build|ci|chore|style|revert)(\([\w., /-]+\))?!?: \S.*")
SUBJECT_LENGTH = 72
SENTENCE_WORDS = 40

# What the sentence says, and what to write instead.
PATTERNS = {
    r"anew": "again, or 're-' before the verb",
    r"mend(s|ed|ing)?": "fix, correct, repair",
    r"knock(s|ed|ing)?": "ask to rejoin",
    r"who(m|so)?ever|whom": "name the party or the person",
    r"(some|any|every|no)body|someone": "name the party or the person",
    r"told|(?<!be )said": "name what reports it, and how: 'the log shows', 'the error names'",
    r"(what|nothing|something) c[ao]mes? (of|to)|what came (of|to)|comes? to(?! rest\b)": "results in, amounts to, is",
    r"(is|are|was|were) none": "does not exist, is empty, is None",
    r"(?<!there )(is|are|was|were) no (?!longer\b|more\b|less\b|other\b)": "negate the verb: 'is not a number'",
    r"(a|the|its|their|own) (door|desk)s?": "membership, admin client",
    r"(at|in|of|its|own|each|a|other) (house|home)s?(?! (page|directory|folder))": "site, federation folder",
    r"of one's own|as it (is|was) asked|be it": "say it with a subject and a verb",
    r"it is said|is spoken of|speaks? of": "name what describes it",
}
WORDS = {re.compile(rf"\b({words})\b", re.IGNORECASE): advice for words, advice in PATTERNS.items()}
OPENINGS = {
    re.compile(r"Returns? (what|who|whether or|where|how)\b(?! (many|much|long|far|often))"): "name what it returns",
    re.compile(r"(What|Who|Whose|Whom|Whoever|Whether|Where|When|That|Of(?! course))\b"): "begin with a verb or a noun",
}
FRONTED = re.compile(r"(?:^|[.;:] )(Of|Where) (?!course)[a-z][^,.;:]{2,60}, (?!and\b|or\b)")
SKIPPED = re.compile(r"``.*?``|`[^`]*`|https?://\S+|\"[^\"\n]*\"|<!--.*?-->|\]\([^)]*\)", re.DOTALL)

Text = tuple[int, str, bool]
"""A line number, the words, and whether they open a docstring."""


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings and comments of a Python file; adjoining comment lines are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                words = re.sub(r"^ *(>>>|\.\.\. ).*$", "", str(first.value.value), flags=re.MULTILINE)
                yield first.lineno, words, True
    before, start, words = -1, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(type:|fmt:|noqa|!)", token.string):
            if token.start[0] != before + 1 or not token.line.lstrip().startswith("#"):
                yield start, words, False
                start, words = token.start[0], ""
            before, words = token.start[0], f"{words} {token.string.lstrip('# ')}"
    yield start, words, False


def page_texts(page: str) -> Iterator[Text]:
    """Yield the paragraphs, list items and table rows of a Markdown page, without code blocks and generated tables."""
    blank = re.compile(r"^```.*?^```|<!-- table: .*?<!-- end -->|\$\$.*?\$\$", re.DOTALL | re.MULTILINE)
    page = blank.sub(lambda code: "\n" * code[0].count("\n"), page)
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*|#>]|\d+\.) ?))", page):
        yield line, part, False
        line += part.count("\n")


def hits(texts: Iterator[Text]) -> Iterator[tuple[int, str]]:
    """Yield the line and a description of every hit in ``texts``."""
    for line, words, opens in texts:
        plain = " ".join(SKIPPED.sub("x", words).split())
        for pattern, advice in WORDS.items():
            yield from ((line, f"{found[0]!r}: {advice}") for found in pattern.finditer(plain))
        for pattern, advice in OPENINGS.items() if opens else ():
            if found := pattern.match(plain):
                yield line, f"{found[0]!r} opens a docstring: {advice}"
        yield from ((line, f"{found[0].strip('.;: ')!r}: put the condition last") for found in FRONTED.finditer(plain))
        for sentence in re.split(r"[.!?:;](?=\s)|\|", plain):
            if len(sentence.split()) > SENTENCE_WORDS:
                yield line, f"{len(sentence.split())} words in one sentence: {sentence[:40].strip()} ..."


def hits_of_file(path: Path) -> list[tuple[int, str]]:
    """Return the hits in a Python file or a Markdown page, in the order of lines."""
    source = path.read_text(encoding="utf-8")
    return sorted(hits(python_texts(source) if path.suffix == ".py" else page_texts(source)))


def hits_of_subject(subject: str) -> list[str]:
    """Return the faults of a commit's subject; merges and reverts made by git have none.

    >>> hits_of_subject("fix(tables): keep leading zeros in ids")
    []
    >>> hits_of_subject("Keep zeros")
    ["'Keep zeros' is not 'type(scope): subject'"]
    """
    if subject.startswith(("Merge ", 'Revert "', "fixup! ", "squash! ")):
        return []
    found = [advice for _, advice in hits(iter([(0, subject, False)]))]
    if not SUBJECT.fullmatch(subject):
        found.append(f"{subject!r} is not 'type(scope): subject'")
    if len(subject) > SUBJECT_LENGTH:
        found.append(f"{len(subject)} characters, more than {SUBJECT_LENGTH}")
    return found


def subjects() -> list[str]:
    """Return the subjects of this branch's commits that main lacks, or else of the last commit."""

    def log(*words: str) -> list[str]:
        command = ["git", "log", "--no-merges", "--format=%s", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

    return log("origin/main..HEAD") or log("main..HEAD") or log("-1")


def files() -> list[Path]:
    """Return the files to check."""
    found = (path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"})
    return sorted([*found, *(ROOT / page for page in PAGES if (ROOT / page).exists())])


def baseline() -> dict[str, int]:
    """Return the highest number of hits allowed for each file that may have any."""
    lines = BASELINE.read_text(encoding="utf-8").splitlines() if BASELINE.exists() else []
    return {path: int(count) for count, path in (line.split(maxsplit=1) for line in lines if not line.startswith("#"))}


def update(found: dict[str, int]) -> str:
    """Write the baseline from the numbers of hits; return an error if their total rose."""
    allowed = baseline()
    if allowed and sum(found.values()) > sum(allowed.values()):
        return f"{sum(found.values())} hits, and the baseline allows {sum(allowed.values())}: correct the new ones"
    head = "# Hits of tools/language_lint.py that remain, by file. Numbers may only fall; --update writes them.\n"
    lines = "".join(f"{count} {path}\n" for path, count in sorted(found.items()) if count)
    BASELINE.write_text(head + lines, encoding="utf-8")
    return ""


def check() -> list[str]:
    """Return an error for each file with more hits than the baseline allows, and for each faulty commit subject."""
    allowed, errors = baseline(), []
    for path in files():
        name, found = path.relative_to(ROOT).as_posix(), hits_of_file(path)
        if len(found) > (most := allowed.get(name, 0)):
            errors += [f"{name}:{line}: {advice}" for line, advice in found]
            errors.append(f"{name}: {len(found)} hits, at most {most} allowed")
    return errors + [f"commit {subject!r}: {advice}" for subject in subjects() for advice in hits_of_subject(subject)]


def main() -> int:
    """Run the check that the arguments ask for, print its errors, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="print every hit in these files only")
    parser.add_argument("--update", action="store_true", help="rewrite the baseline")
    parser.add_argument("--message", type=Path, help="check the subject of a commit message")
    asked = parser.parse_args()
    if asked.message:
        errors = hits_of_subject(asked.message.read_text(encoding="utf-8").splitlines()[0])
    elif asked.paths:
        errors = [f"{path}:{line}: {advice}" for path in asked.paths for line, advice in hits_of_file(path)]
    elif asked.update:
        errors = list(filter(None, [update({p.relative_to(ROOT).as_posix(): len(hits_of_file(p)) for p in files()})]))
    else:
        errors = check()
    print("\n".join(errors), end="\n" if errors else "")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
