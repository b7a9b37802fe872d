"""What a look gives: a sentence, how bad it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from anyparty.errors import AnypartyError


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: what was looked at.
        level: "fine", "note" (may be as it should) or "mend".
        said: what was found.
        do: what to do; empty where it is fine.
    """

    what: str
    level: Literal["fine", "note", "mend"]
    said: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}: {self.said}" + (f"; {self.do}" if self.do else "")


def mended(what: str, look: Callable[[], str], do: str = "") -> Iterator[Finding]:
    """Give what a look returns as fine, and what it raises as something to mend; errors of ours say what to do."""
    try:
        said = look()
    except AnypartyError as error:
        yield Finding(what=what, level="mend", said=str(error), do=do)
    else:
        yield Finding(what=what, level="fine", said=said)
