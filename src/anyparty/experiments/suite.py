"""A suite: a published experiment as data.  Its settings, its paper's numbers, the runs that make ours, their page."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from anyparty.config.base import Settings
from anyparty.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class Page:
    """A suite's results beside the paper's.

    Attributes:
        cells: the numbers, one object each.
        markdown: the tables.
        csv: one line a cell.
        draw: draws the figures beside a path, as PNG and SVG.

    """

    cells: Sequence[Any] = ()
    markdown: str
    csv: str
    draw: Callable[[Path], object]

    def plot(self, path: Path) -> None:
        """Draw the figures beside ``path``; none where there is no number."""
        if self.cells:
            self.draw(path)


@dataclass(frozen=True, kw_only=True)
class Run(ABC):
    """One run of a suite: what one process does and one record holds.

    Attributes:
        suite: the suite's name.
        dataset: the data set's.
        method: key of the method's entry.
        seed: of everything random.
        settings: all else that decides the result, as data.

    """

    suite: str
    dataset: str
    method: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def label(self) -> str:
        """What tells this run from the others of its suite, for people; a part of the folder's name."""

    @property
    def key(self) -> str:
        """The run's folder: its label, and a hash of everything that decides its result: where it trains does not."""
        text = json.dumps(vars(self) | {"settings": _anywhere(self.settings)}, sort_keys=True, default=str)
        return f"{self.label}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @abstractmethod
    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """Do the run; return its record, which holds at least ``run`` and ``seconds``.

        Raises:
            TableError: the data set is not there (the sentence says where to get it).
            AnypartyError: the run failed.
        """

    def whole(self, record: Mapping[str, Any]) -> bool:
        """Say whether a record that was found is this run's, with all that it should hold."""
        return "seconds" in record


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which of a suite's runs are wanted, and how.

    Attributes:
        datasets: some of the suite's data sets; without, all that are not heavy.
        methods: some of its methods; all without.
        seeds: how many seeds, 0, 1, ...
        quick: a small part of the work, to see that all of it works.
        device: where networks train.

    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    seeds: int = 5
    quick: bool = False
    device: str = "cpu"


ALL = Asked()


def _anywhere(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the device, on whichever level they name it."""
    return {key: _anywhere(value) if key == "train" else value for key, value in settings.items() if key != "device"}


def device_in(record: Mapping[str, Any]) -> str:
    """Return where the run of a record was trained."""
    settings = record["run"]["settings"]
    return str(settings.get("device") or settings.get("train", {}).get("device", "cpu"))


class Entry(Settings):
    """How a suite uses one data set; one that is ``heavy`` is run where it is named alone.

    ``differs`` are sentences as the suite's, which only pages with this data set have.
    """

    heavy: bool = False
    differs: tuple[str, ...] = ()


class Suite(BaseModel, ABC):
    """What every suite has; each kind adds its own settings and numbers.

    Attributes:
        name, title: the command line's name, and the page's heading.
        paper: authors, venue, year, which table.
        differs: sentences on where this is not the published experiment.
        datasets: by name, how it uses them.

    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    paper: str
    differs: list[str] = []
    datasets: Mapping[str, Entry]

    @property
    def home(self) -> str:
        """The folder of its runs, below ``runs/bench``; suites over the same runs share one."""
        return self.name

    @property
    def prefix(self) -> str:
        """What the names of its own files there begin with."""
        return "" if self.home == self.name else f"{self.name}-"

    @abstractmethod
    def runs(self, asked: Asked = ALL) -> Iterator[Run]:
        """Yield the runs, those of one seed after those of the one before: a suite that was stopped has whole tables.

        Raises:
            ConfigError: a data set or method that the suite does not have.
        """

    def later(self, records: Mapping[str, Mapping[str, Any]], asked: Asked = ALL) -> Iterator[Run]:  # noqa: ARG002
        """Yield the runs whose settings follow from the records of ``runs``, such as a learning rate; none here."""
        return iter(())

    def asked_for(self, asked: Asked) -> list[str]:
        """Return the data sets that are wanted, in the suite's order.

        Raises:
            ConfigError: the suite does not have one of them.
        """
        light = [name for name, entry in self.datasets.items() if not entry.heavy]
        return chosen("data set", asked.datasets or light, self.datasets)

    @abstractmethod
    def page(self, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> Page:
        """Return the results, from finished runs' records by key; ``about`` is said below the tables."""


def chosen(what: str, wanted: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Return the known names that are wanted, in the suite's order; all of them if nothing is.

    Raises:
        ConfigError: a name is not known; the nearest one is suggested.
    """
    names = list(known)
    for name in wanted or ():
        if name not in names:
            raise ConfigError(f"the suite has no {what} {name!r}{nearest(name, names)}")
    return [name for name in names if not wanted or name in wanted]


def footer(suite: Suite, found: Iterable[Any], about: Mapping[str, str]) -> list[str]:
    """Return a page's last lines: where the suite differs from the published experiment, and how it was made."""
    shown = {cell.dataset for cell in found}
    said = [*suite.differs, *(line for name, of in suite.datasets.items() if name in shown for line in of.differs)]
    lines = ["Where this differs from the published experiment:", "", *(f"- {line}" for line in said), ""]
    return lines + [f"- {name}: {value}" for name, value in about.items()]
