"""A suite: a published table as data.  Its settings, its paper's numbers, and the runs that make ours."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict

from anyparty.config import Encoder, OptimizerSettings, Settings
from anyparty.errors import ConfigError, nearest


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


class Suite(BaseModel):
    """A published table.

    ``train_missing`` and ``test_missing`` name mechanisms of missingness as text: a number p is MCAR(p).  ``published``
    holds, by data set, method and training mechanism, the paper's (mean, spread) for each test mechanism.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    paper: str
    parties: list[int]
    train_missing: list[str]
    test_missing: list[str]
    differs: list[str] = []
    datasets: dict[str, DatasetEntry]
    published: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of a suite, and the test mechanisms that it is scored on.

    Attributes:
        suite: the suite's name.
        dataset: the data set's.
        method: key of the method's entry.
        parties: K.
        missing: the mechanism of the training rows.
        tests: those of the test rows.
        seed: of everything random.
        settings: all that decides the result, as data.

    """

    suite: str
    dataset: str
    method: str
    parties: int
    missing: str
    tests: tuple[str, ...]
    seed: int
    settings: dict[str, Any]

    @property
    def key(self) -> str:
        """The run's folder: its name, and a hash of everything that decides its result."""
        text = json.dumps([self.tests, self.settings], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.dataset}-{self.method}-k{self.parties}-{self.missing}-s{self.seed}-{digest}"


def names() -> list[str]:
    """Return the suites that ship with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Suite:
    """Return a suite by name.

    Raises:
        ConfigError: there is no such suite.
    """
    if name not in names():
        raise ConfigError(f"no suite {name!r}{nearest(name, names())}")
    values = tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    return Suite.model_validate({"name": name, **values})


def runs(
    suite: Suite,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 5,
    quick: bool = False,
    device: str = "cpu",
) -> Iterator[Run]:
    """Yield a suite's runs, those of one seed after those of the one before, so that a stopped suite has whole tables.

    Without ``datasets``, all that are not heavy.

    Raises:
        ConfigError: a data set or method that the suite does not have.
    """
    light = [name for name, entry in suite.datasets.items() if not entry.heavy]
    chosen = _chosen("data set", datasets or light, suite.datasets)
    known = {method for entry in suite.datasets.values() for method in entry.methods}
    wanted = _chosen("method", methods, dict.fromkeys(known))
    for seed in range(seeds):
        for dataset in chosen:
            entry = suite.datasets[dataset]
            for parties in suite.parties:
                for missing in suite.train_missing:
                    for method in (each for each in entry.methods if each in wanted):
                        if entry.methods[method].name == "combinatorial" and parties > 8:
                            continue
                        yield _run(suite, dataset, method, parties, missing, seed, quick=quick, device=device)


def _run(
    suite: Suite, dataset: str, method: str, parties: int, missing: str, seed: int, *, quick: bool, device: str
) -> Run:
    entry = suite.datasets[dataset]
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
        suite=suite.name, dataset=dataset, method=method, parties=parties, missing=missing,
        tests=tuple(suite.test_missing), seed=seed, settings={**shared, **values, "encoder": encoder},
    )  # fmt: skip


def _chosen(what: str, wanted: Sequence[str] | None, known: dict[str, Any]) -> list[str]:
    for name in wanted or ():
        if name not in known:
            raise ConfigError(f"the suite has no {what} {name!r}{nearest(name, known)}")
    return [name for name in known if not wanted or name in wanted]


def _folder() -> Any:
    return files("anyparty.bench") / "suites"
