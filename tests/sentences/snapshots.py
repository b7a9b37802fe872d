"""Compare the sentences of errors with the files in this folder.

``pytest --renew-sentences TESTS`` writes the files again. Read the differences before you commit them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from anyparty.errors import AnypartyError

FOLDER = Path(__file__).parent
ATTRIBUTES = ("code", "setting", "party", "file")


class Sentences:
    """Compares the errors of calls with a file: NAME.txt has the class, the attributes and the sentence of each."""

    def __init__(self, places: Mapping[str, str], *, renew: bool) -> None:
        self.places, self.renew = places, renew

    def check(self, name: str, calls: Mapping[str, Callable[[], object]]) -> None:
        """Check that each call raises an anyparty error, and that its description is the one in the file."""
        self.compare(name, {case: self.describe(case, call) for case, call in calls.items()})

    def compare(self, name: str, said: Mapping[str, str]) -> None:
        """Check that the texts, by the name of their cases, are those in the file."""
        file = FOLDER / f"{name}.txt"
        said = {case: self.without_places(text).strip() for case, text in said.items()}
        if self.renew:
            blocks = [f"[{case}]\n{text}\n" for case, text in said.items()]
            file.write_text("\n".join(blocks), encoding="utf-8")
        kept = file.read_text(encoding="utf-8") if file.exists() else ""
        blocks = re.split(r"^\[(.+)\]\n", kept, flags=re.MULTILINE)
        assert said == {case: text.strip() for case, text in zip(blocks[1::2], blocks[2::2], strict=True)}

    @staticmethod
    def describe(case: str, call: Callable[[], object]) -> str:
        """Return the class, the attributes and the sentence of the error that a call raises."""
        try:
            call()
        except AnypartyError as error:
            told = [f"{name}={value}" for name in ATTRIBUTES if (value := getattr(error, name))]
            return f"{type(error).__name__}({', '.join(told)})\n{error}"
        pytest.fail(f"{case}: no error")

    def without_places(self, text: str) -> str:
        for path, name in self.places.items():
            text = text.replace(path, name)
        return text
