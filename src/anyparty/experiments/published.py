"""The list of all tables and figures of the four papers: which suite repeats each, or why none does."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Literal

from anyparty.config.settings_group import Settings

EXPLANATIONS = {
    "reproduced": "`benchmarks/results` has our numbers beside the paper's",
    "reproduced on other data": "the experiment is repeated on data sets in place of the paper's",
    "runs with the data": "the suite has the data set; we have no numbers",
    "not built": "no suite repeats it",
    "not a result": "a diagram or a list, which no run can repeat",
}


class PublishedEntry(Settings):
    """A table or figure of a paper, or the part of it with some data sets.

    Attributes:
        paper: the method that the paper introduces.
        place: numbers of the tables or figures.
        shows: the content.
        state: one of ``EXPLANATIONS``.
        suites: the suites that repeat it.
        data: the data sets of the suites.
        why: the reason for the state, or a restriction.

    """

    paper: Literal["LASER-VFL", "Flex-VFL", "APC-VFL", "FALSE-VFL"]
    place: str
    shows: str
    state: Literal["reproduced", "reproduced on other data", "runs with the data", "not built", "not a result"]
    suites: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    why: str = ""

    @property
    def outcome(self) -> str:
        """The state, the data sets and the reason as one text."""
        data = f"{self.state} ({', '.join(self.data)})" if self.data else self.state
        return f"{data}: {self.why}" if self.why else data


def published_entries() -> list[PublishedEntry]:
    """Return the tables and figures of all papers, paper by paper."""
    text = (files(__package__) / "published.toml").read_text(encoding="utf-8")
    return [PublishedEntry.model_validate(entry) for entry in tomllib.loads(text)["entry"]]
