"""Suites of missing blocks as data, and the runs that make their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyparty.bench import suite as base
from anyparty.bench.missing import compare
from anyparty.bench.missing.one import execute
from anyparty.config import Encoder, OptimizerSettings, Settings


class MethodEntry(Settings):
    """How a suite trains one method; ``when`` holds changes for some shares of missing training blocks."""

    title: str
    name: str
    epochs: int
    optimizer: OptimizerSettings
    parameters: dict[str, Any] = {}
    when: dict[str, dict[str, Any]] = {}
    encoder: dict[str, Any] = {}
    train: dict[str, Any] = {}


class DatasetEntry(Settings):
    """How a suite uses one data set; a ``heavy`` one, which asks for a GPU, is run where it is named alone."""

    metric: str
    unit: str
    batch_size: int
    embedding: int
    encoder: Encoder
    cut: str = "columns"
    scale: bool = True
    balance: bool = False
    in_place_of: str = ""
    heavy: bool = False
    methods: dict[str, MethodEntry]


class Suite(base.Suite):
    """A published table of missing blocks.

    ``train_missing`` and ``test_missing`` name mechanisms of missingness as text: a number p is MCAR(p).  ``published``
    holds, by data set, method and training mechanism, the paper's (mean, spread) for each test mechanism.
    """

    parties: list[int]
    train_missing: list[str]
    test_missing: list[str]
    datasets: dict[str, DatasetEntry]
    published: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}

    def runs(
        self,
        *,
        datasets: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: int = 5,
        quick: bool = False,
        device: str = "cpu",
    ) -> Iterator[Run]:
        """See the base; without ``datasets``, all that are not heavy; ``quick`` is a tenth of the epochs."""
        light = [name for name, entry in self.datasets.items() if not entry.heavy]
        at = base.chosen("data set", datasets or light, self.datasets)
        known = dict.fromkeys(method for entry in self.datasets.values() for method in entry.methods)
        wanted = base.chosen("method", methods, known)
        for seed in range(seeds):
            for dataset in at:
                entry = self.datasets[dataset]
                for parties in self.parties:
                    for missing in self.train_missing:
                        for method in (each for each in entry.methods if each in wanted):
                            if entry.methods[method].name == "combinatorial" and parties > 8:
                                continue
                            yield self._run(dataset, method, parties, missing, seed, quick=quick, device=device)

    def _run(
        self, dataset: str, method: str, parties: int, missing: str, seed: int, *, quick: bool, device: str
    ) -> Run:
        entry = self.datasets[dataset]
        of = entry.methods[method]
        values = of.model_dump(exclude={"when", "title"}) | {}
        for change, value in of.when.get(missing, {}).items():
            values[change] = values[change] | value if isinstance(value, dict) else value
        if quick:
            values["epochs"] = max(1, values["epochs"] // 10)
        if device != "cpu":
            values["train"] = {**values["train"], "device": device}
        shared = entry.model_dump(exclude={"methods", "metric", "unit", "in_place_of", "heavy"})
        encoder = shared.pop("encoder") | values.pop("encoder")
        return Run(
            suite=self.name, dataset=dataset, method=method, parties=parties, missing=missing,
            tests=tuple(self.test_missing), seed=seed, settings={**shared, **values, "encoder": encoder},
        )  # fmt: skip

    def page(self, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> compare.Page:
        """See the base."""
        return compare.page(self, records, about)


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
        return f"{self.dataset}-{self.method}-k{self.parties}-{self.missing}-s{self.seed}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """See the base."""
        return execute(self, data_dir)

    def whole(self, record: Mapping[str, Any]) -> bool:
        """See the base: all test mechanisms are scored."""
        return set(record.get("scores", ())) == set(self.tests)
