"""Base classes of suites: a suite describes one published experiment as data, and yields the runs that repeat it."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict

from anyparty.artifacts.record import versions
from anyparty.config.settings_group import Settings
from anyparty.data import datasets
from anyparty.data.datasets import Dataset
from anyparty.errors import ConfigError, nearest
from anyparty.experiments.results import Cell, Record, Records, group_records


@dataclass(frozen=True, kw_only=True)
class SuiteRun(ABC):
    """One run of a suite: one process executes it and writes one record.

    Attributes:
        suite: name of the suite.
        dataset: name of the data set.
        method: name of the method's entry in the suite.
        seed: seed of all random numbers.
        settings: all further values that determine the result, as data.

    """

    suite: str
    dataset: str
    method: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def label(self) -> str:
        """A readable name that no other run of the suite has; the name of the run's folder starts with this label."""

    @property
    def key(self) -> str:
        """The name of the run's folder: its label, and a hash of all values that determine the result.

        The device is not part of the hash.
        """
        text = json.dumps(vars(self) | {"settings": _without_device(self.settings)}, sort_keys=True, default=str)
        return f"{self.label}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """Execute the run and return its record, which has at least ``run`` and ``seconds``.

        Raises:
            TableError: the data set is not found (the message says where to get it).
            AnypartyError: the run failed.
        """
        torch.set_num_threads(1)  # one thread for each run, because runs execute in parallel
        data = datasets.load(self.dataset, data_dir=data_dir, progress=False)
        results = self.train_and_score(data, data_dir)
        return {"run": vars(self) | {"key": self.key}, **results, "data": data.note, "versions": versions()}

    def train_and_score(self, data: Dataset, data_dir: Path | None) -> dict[str, Any]:
        """Train on a data set; return the scores, the costs, and the times that ``timed`` measures.

        ``data_dir`` is the folder of data sets, for runs that read further files.
        """
        raise NotImplementedError

    def is_complete(self, record: Mapping[str, Any]) -> bool:
        """Return True if a stored record has all results of this run."""
        return "seconds" in record


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Measure the duration and the CPU time of a ``with`` block; they are in the yielded dict after the block."""
    began, began_cpu, times = time.perf_counter(), time.process_time(), dict[str, float]()
    yield times
    times |= {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - began_cpu}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The runs of a suite that a user selects.

    Attributes:
        datasets: some of the suite's data sets; by default all that are not heavy.
        methods: some of the suite's methods; by default all.
        seeds: number of seeds; the seeds are 0, 1, ...
        quick: train only briefly, to check that everything works.
        device: PyTorch device on which networks train, such as "cuda".
        missing: some of the suite's mechanisms, which determine the missing blocks in training; by default all.

    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    seeds: int = 5
    quick: bool = False
    device: str = "cpu"
    missing: Sequence[str] | None = None


ALL = Selection()


def _without_device(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the device, which may be at the top level or in ``train``."""
    return {key: _without_device(value) if key == "train" else value for key, value in settings.items()
            if key != "device"}  # fmt: skip


def training_device(record: Mapping[str, Any]) -> str:
    """Return the device on which the run of a record was trained."""
    settings = record["run"]["settings"]
    return str(settings.get("device") or settings.get("train", {}).get("device", "cpu"))


class SuiteDataset(Settings):
    """Settings of one data set in a suite.

    Attributes:
        heavy: whether this data set is run only if the user selects it explicitly.
        differs: sentences that state where the suite differs from the published experiment on this data set; only pages
            with this data set show them.

    """

    heavy: bool = False
    differs: tuple[str, ...] = ()


class Suite(BaseModel, ABC):
    """Base class of suites: the fields and methods that all kinds of suites have.

    Attributes:
        name: name of the suite on the command line.
        kind: kind of experiment; it selects the suite's class and the module that renders the page.
        title: heading of the page.
        paper: authors, venue, year and table of the publication.
        differs: sentences that state where the suite differs from the published experiment.
        datasets: entries of the data sets, by name.
        condition_names: the fields of ``SuiteRun`` that ``conditions`` yields, in order.

    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    condition_names: ClassVar[tuple[str, ...]] = ()

    name: str
    kind: str
    title: str
    paper: str
    differs: list[str] = []
    datasets: Mapping[str, SuiteDataset]

    @property
    def folder_name(self) -> str:
        """The name of the folder in runs/bench that has the runs; suites with the same runs share this folder."""
        return self.name

    @property
    def prefix(self) -> str:
        """The prefix of the suite's files in ``folder_name``; empty if the folder has the name of this suite."""
        return "" if self.folder_name == self.name else f"{self.name}-"

    @property
    @abstractmethod
    def quick_cuts(self) -> str:
        """The share of the work that a quick run does, as a text for the page, such as "1/10 of the epochs"."""

    def with_own_methods(self, names: Sequence[str]) -> Self:
        """Return the suite with additional methods of the user, which ``names`` lists as "module:name".

        Raises:
            ConfigError: suites of this kind do not accept further methods, or there is no method with one of the names.
        """
        if names:
            raise ConfigError(f"suite {self.name!r} takes no method of your own, such as {names[0]!r}: it compares "
                              "schedules, or methods of one exchange; name one of laser-table1, laser-table3, "
                              "laser-fig2, false-tables and false-table18, or compare on your own tables with "
                              "`anyparty compare`")  # fmt: skip
        return self

    def methods_of(self, dataset: str) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the entries of a data set's methods, by name; in most suites, all data sets have the same."""
        found: Mapping[str, Any] = self.methods  # type: ignore[attr-defined]
        return found

    def conditions(self, dataset: str, method: str) -> Iterator[dict[str, Any]]:
        """Yield the conditions in which a method is run on a data set: the values of ``condition_names``."""
        raise NotImplementedError

    def run(self, dataset: str, method: str, condition: Mapping[str, Any], seed: int, selection: Selection) -> SuiteRun:
        """Return the run of a method on a data set in one of ``conditions``."""
        raise NotImplementedError

    def runs(self, selection: Selection = ALL) -> Iterator[SuiteRun]:
        """Yield the selected runs ordered by seed, so that a stopped suite has complete tables for fewer seeds.

        Raises:
            ConfigError: the selection contains a data set or a method that the suite does not have.
        """
        known = dict.fromkeys(method for dataset in self.datasets for method in self.methods_of(dataset))
        wanted = select("method", selection.methods, known)
        for seed in range(selection.seeds):
            for dataset in self.selected_datasets(selection):
                for method in (each for each in self.methods_of(dataset) if each in wanted):
                    for condition in self.conditions(dataset, method):
                        if not selection.missing or condition.get("missing") in selection.missing:
                            yield self.run(dataset, method, condition, seed, selection)

    def later(self, records: Records, selection: Selection = ALL) -> Iterator[SuiteRun]:  # noqa: ARG002
        """Yield the runs whose settings depend on the results of ``runs``, such as the learning rate.

        ``records`` are the results of ``runs``. By default no run depends on them.
        """
        return iter(())

    def read_cells(self, records: Records) -> list[Cell]:
        """Return the cells of the tables: those of each data set, method and condition with runs."""
        groups = group_records(records, ["dataset", "method", *self.condition_names])
        cells = list[Cell]()
        for dataset in self.datasets:
            for method in self.methods_of(dataset):
                for condition in self.conditions(dataset, method):
                    if found := groups.get((dataset, method, *condition.values())):
                        cells += self.measure({"dataset": dataset, "method": method, **condition}, found)
        return cells

    def measure(self, place: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Cell]:
        """Yield the cells of one method in one condition; ``place`` has the data set, the method and the condition."""
        raise NotImplementedError

    def markdown(self, cells: Iterable[Cell], body: Iterable[str], run_facts: Mapping[str, str]) -> str:
        """Return a page in Markdown: title, tables, differences from the published experiment, facts about the runs.

        ``body`` has the lines of the tables, and ``run_facts`` has facts on how the page was made, by name.
        """
        shown = {cell["dataset"] for cell in cells}
        of_datasets = [line for name, entry in self.datasets.items() if name in shown for line in entry.differs]
        lines = [f"# {self.title}", "", f"{self.paper}. Suite `{self.name}`.", "", *body]
        lines += ["Where this differs from the published experiment:", ""]
        lines += [*(f"- {line}" for line in [*self.differs, *of_datasets]), ""]
        lines += [f"- {name}: {value}" for name, value in run_facts.items()]
        return "\n".join(lines) + "\n"

    def selected_datasets(self, selection: Selection) -> list[str]:
        """Return the names of the selected data sets, in the suite's order.

        Raises:
            ConfigError: a selected data set or mechanism is not in the suite.
        """
        select("mechanism of missing blocks", selection.missing, getattr(self, "train_missing", ()))
        light = [name for name, entry in self.datasets.items() if not entry.heavy]
        return select("data set", selection.datasets or light, self.datasets)


def select(what: str, wanted: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Return the names in ``wanted``, in the order of ``known``; return all names in ``known`` if ``wanted`` is empty.

    ``what`` describes the names in an error, such as "method".

    Raises:
        ConfigError: a name in ``wanted`` is not in ``known``; the message suggests the nearest known name.
    """
    names = list(known)
    for name in wanted or ():
        if name not in names:
            raise ConfigError(f"the suite has no {what} {name!r}{nearest(name, names)}")
    return [name for name in names if not wanted or name in wanted]
