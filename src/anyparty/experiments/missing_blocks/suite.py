"""Suites of missing blocks as data, and the runs that make their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anyparty.config import Encoder, Settings
from anyparty.experiments import suite as base
from anyparty.experiments.missing_blocks import page as pages
from anyparty.experiments.missing_blocks.one import execute
from anyparty.nets.optimizer import Optimizer


class MethodEntry(Settings):
    """How a suite trains one method.

    Attributes:
        when: changes for some mechanisms of the training rows.
        batch_size: instead of the data set's.
        labels_at: the party that leads and has the labels, of the rows that it has; without, one that has no columns
            and all labels.
        own: whether it is the paper's own method, and not one that it is compared with.
        beyond: whether it is neither, but ours alone: no summary of the paper's comparison counts it.
        most_parties: with more than these it is not run.

    """

    title: str
    name: str
    epochs: int
    optimizer: Optimizer
    parameters: dict[str, Any] = {}
    when: dict[str, dict[str, Any]] = {}
    encoder: dict[str, Any] = {}
    train: dict[str, Any] = {}
    batch_size: int | None = None
    labels_at: str | None = None
    own: bool = False
    beyond: bool = False
    most_parties: int | None = None


class Labelled(Settings):
    """How many training rows have a label, and how many of those all parties have."""

    n: int
    aligned: int


class DatasetEntry(base.Entry):
    """How a suite uses one data set.

    Attributes:
        parties: K, where data sets differ in it.
        labelled: how scarce labels are.
        rows: how many training rows are drawn; all without.
        repeats: of views of an object, how often each training and each test object is dealt out anew.

    """

    metric: str
    unit: str
    batch_size: int
    embedding: int
    encoder: Encoder
    cut: str = "columns"
    scale: bool = True
    balance: bool = False
    in_place_of: str = ""
    parties: int | None = None
    labelled: Labelled | None = None
    rows: int | None = None
    repeats: tuple[int, int] | None = None
    methods: dict[str, MethodEntry]


class Suite(base.Suite):
    """A published table of missing blocks.

    Attributes:
        parties: the numbers of parties, for data sets that do not say it themselves.
        train_missing, test_missing: mechanisms of missingness by name; a number p is MCAR(p).
        mechanisms: what names stand for that are this suite's own; with any, mechanisms look at normalised features.
        layout: a table for each data set, or for each and "training" mechanism, or one of "ratios": the metric trained
            under the last of ``train_missing`` over that under the first, in per cent.
        quick: a quick run takes one epoch of so many.
        runs_of: the suite whose runs these are, if they are not its own.
        published: by data set, method and training mechanism, the paper's (mean, spread) for each test mechanism.
        published_ratios: by data set and method, the paper's ratio for each test mechanism.

    """

    parties: list[int] = []
    train_missing: list[str]
    test_missing: list[str]
    mechanisms: dict[str, dict[str, Any]] = {}
    layout: Literal["columns", "training", "ratios"] = "columns"
    quick: int = 10
    runs_of: str = ""
    datasets: dict[str, DatasetEntry]
    published: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    published_ratios: dict[str, dict[str, list[float]]] = {}

    @property
    def home(self) -> str:
        """See the base."""
        return self.runs_of or self.name

    def parties_of(self, dataset: str) -> list[int]:
        """Return the numbers of parties that a data set is cut for."""
        own = self.datasets[dataset].parties
        return self.parties if own is None else [own]

    def runs(self, asked: base.Asked = base.ALL) -> Iterator[Run]:
        """See the base."""
        known = dict.fromkeys(method for entry in self.datasets.values() for method in entry.methods)
        wanted = base.chosen("method", asked.methods, known)
        for seed in range(asked.seeds):
            for dataset in self.asked_for(asked):
                entry = self.datasets[dataset]
                for parties in self.parties_of(dataset):
                    for missing in self.train_missing:
                        for method in (each for each in entry.methods if each in wanted):
                            if parties > (entry.methods[method].most_parties or parties):
                                continue
                            yield self._run(dataset, method, parties, missing, seed, asked)

    def _run(self, dataset: str, method: str, parties: int, missing: str, seed: int, asked: base.Asked) -> Run:
        entry = self.datasets[dataset]
        of = entry.methods[method]
        values = of.model_dump(exclude={"when", "title", "own", "beyond", "most_parties"}, exclude_none=True) | {}
        for change, value in of.when.get(missing, {}).items():
            values[change] = values[change] | value if isinstance(value, dict) else value
        if asked.quick:
            values["epochs"] = max(1, values["epochs"] // self.quick)
            stages = values["parameters"].keys() & {"pretrain_epochs", "unlabelled_epochs"}
            fewer = {stage: max(1, values["parameters"][stage] // self.quick) for stage in stages}
            values["parameters"] = {**values["parameters"], **fewer}
        if asked.device != "cpu":
            values["train"] = {**values["train"], "device": asked.device}
        about = {"methods", "metric", "unit", "in_place_of", "heavy", "parties", "encoder", "differs"}
        shared = entry.model_dump(exclude=about, exclude_none=True)
        if self.mechanisms:
            shared["mechanisms"] = {name: self.mechanisms[name] for name in (missing, *self.test_missing)}
        encoder = entry.encoder.model_dump() | values.pop("encoder")
        return Run(
            suite=self.home, dataset=dataset, method=method, parties=parties, missing=missing,
            tests=tuple(self.test_missing), seed=seed, settings={**shared, **values, "encoder": encoder},
        )  # fmt: skip

    def page(self, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> base.Page:
        """See the base."""
        return pages.page(self, records, about)


@dataclass(frozen=True, kw_only=True)
class Run(base.Run):
    """One training, and the test mechanisms that it is scored on.

    Attributes:
        parties: K.
        missing: the mechanism of the training rows.
        tests: those of the test rows.

    """

    parties: int
    missing: str
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        """See the base."""
        missing = self.missing.lower().replace(" ", "")
        return f"{self.dataset}-{self.method}-k{self.parties}-{missing}-s{self.seed}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """See the base."""
        return execute(self, data_dir)

    def whole(self, record: Mapping[str, Any]) -> bool:
        """See the base: all test mechanisms are scored."""
        return set(record.get("scores", ())) == set(self.tests)
