"""Suites of schedules as data, and the runs that make their tables.

A suite has data sets, cases (parties, their speeds and the time-out) and algorithms.  Its runs come in two steps:

1. of every data set and case: each algorithm at each rate of the grid with seed 0, and the reference, which has no
   schedule, with every seed: the target is a share of what the reference reaches;
2. each algorithm at the rate whose training loss was lowest at the end (the paper's way, section VII-A), with the
   other seeds.  Seed 0 of that rate is done already and counts.

The choice is read from the first step's records, so that it is as resumable as they are, and stands in the page.  In
a schedule of rounds, latency only stretches time: one training serves every latency.  Where parties meet one by one
(VAFL), latency decides their order: such an algorithm trains once for each, at the rate that was chosen at one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from anyparty.config import Encoder, Settings
from anyparty.experiments import suite as base
from anyparty.experiments.schedules import choice, compare
from anyparty.experiments.schedules.one import execute
from anyparty.nets.optimizer import Optimizer
from anyparty.schedules.table import schedule

REFERENCE = "reference"


class DatasetEntry(base.Entry):
    """How a suite uses one data set; ``rows`` are drawn from its training rows by the seed, 0 takes all.

    ``share`` takes the place of the reference's, ``rates`` that of the suite's.
    """

    metric: Literal["accuracy"] = "accuracy"
    batch_size: int
    embedding: int
    encoder: Encoder
    cut: str = "columns"
    scale: bool = True
    rows: int = 0
    share: float | None = None
    rates: tuple[float, ...] = ()


class CaseEntry(Settings):
    """Parties and clock: what is the same for all algorithms of a case.

    ``iterations`` are what each party completes within ``within`` time units, ``server`` what the server does.  With a
    trace, a machine of Google's cluster is drawn for each by the seed instead, and an iteration of an idle one takes 1
    time unit: its mean use stands for all rounds ("average"), or each sample for one round ("varying").  ``momentum``
    is the parties' local one, the server's last.
    """

    title: str
    parties: int
    timeout: float
    within: float = 1.0
    iterations: tuple[float, ...] = ()
    server: float = 1.0
    trace: Literal["", "average", "varying"] = ""
    momentum: tuple[float, ...]


class AlgorithmEntry(Settings):
    """A schedule, how long it trains, and its grid.

    ``epochs`` are those of one party's visits: a schedule in which parties meet one by one has them times the number
    of parties.  ``rate_of`` names the algorithm whose chosen rate this one takes instead of searching its own.
    """

    title: str
    schedule: dict[str, Any]
    epochs: int
    rates: tuple[float, ...] = ()
    rate_of: str = ""

    @property
    def at_once(self) -> bool:
        """Whether its parties meet one by one, in an order that latency decides."""
        return schedule(**self.schedule)[0].at_once


class ReferenceEntry(Settings):
    """The training without a schedule that says what can be reached; a target is the share ``share`` of that."""

    epochs: int
    optimizer: Optimizer
    share: float


class Suite(base.Suite):
    """Time units until a target, for some algorithms under some clocks.

    ``rates`` is the grid, ``beside`` the algorithm that others are compared with, ``search_latency`` the one at which
    an algorithm that depends on latency has its rate chosen.  ``published`` holds, by case and algorithm, the paper's
    (mean, spread) in thousands of time units for each latency; an empty pair is a target that it did not reach.
    """

    datasets: dict[str, DatasetEntry]
    cases: dict[str, CaseEntry]
    algorithms: dict[str, AlgorithmEntry]
    reference: ReferenceEntry
    method: dict[str, Any]
    rates: tuple[float, ...]
    latencies: tuple[float, ...]
    search_latency: float
    held_out: float
    beside: str
    published: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {}
    says: list[str] = []

    def runs(self, asked: base.Asked = base.ALL) -> Iterator[Run]:
        """See the base: the first step; ``quick`` is a tenth of the epochs and two rates in the middle of the grid."""
        wanted = base.chosen("method", asked.methods, self.algorithms)
        for dataset in self.asked_for(asked):
            for parties in dict.fromkeys(case.parties for case in self.cases.values()):
                for seed in range(asked.seeds):
                    yield self._reference(dataset, parties, seed, asked)
            for case in self.cases:
                for name in self._searched(wanted):
                    for rate in self._grid(dataset, name, asked):
                        yield self._run(dataset, case, name, rate, 0, self.search_latency, asked)

    def later(self, records: Mapping[str, Mapping[str, Any]], asked: base.Asked = base.ALL) -> Iterator[Run]:
        """See the base: the second step."""
        rates = choice.rates(self, records)
        wanted = base.chosen("method", asked.methods, self.algorithms)
        for seed in range(asked.seeds):
            for dataset in self.asked_for(asked):
                for case in self.cases:
                    for name in wanted:
                        found, entry = rates.get((dataset, case, name)), self.algorithms[name]
                        if found is None:
                            continue
                        for latency in self.latencies if entry.at_once else (self.search_latency,):
                            if seed or latency != self.search_latency or entry.rate_of:
                                yield self._run(dataset, case, name, found.rate, seed, latency, asked)

    def _searched(self, wanted: Sequence[str]) -> list[str]:
        """Return the algorithms that need a search: those that are wanted, or whose rate one of them takes."""
        named = {self.algorithms[name].rate_of or name for name in wanted}
        return [name for name in self.algorithms if name in named]

    def _grid(self, dataset: str, name: str, asked: base.Asked) -> tuple[float, ...]:
        grid = self.algorithms[name].rates or self.datasets[dataset].rates or self.rates
        return grid[len(grid) // 2 :][:2] if asked.quick else grid

    def _run(
        self, dataset: str, case: str, name: str, rate: float, seed: int, latency: float, asked: base.Asked
    ) -> Run:
        entry, of = self.algorithms[name], self.cases[case]
        epochs = max(1, entry.epochs // 10) if asked.quick else entry.epochs
        own = {
            "schedule": entry.schedule,
            "epochs": epochs * (of.parties if entry.at_once else 1),
            "case": of.model_dump(exclude={"title"}),
        }
        return Run(
            suite=self.name, dataset=dataset, method=name, case=case, rate=rate, latency=latency, seed=seed,
            settings=self._shared(dataset, asked) | own,
        )  # fmt: skip

    def _reference(self, dataset: str, parties: int, seed: int, asked: base.Asked) -> Run:
        own = {
            "epochs": max(1, self.reference.epochs // 10) if asked.quick else self.reference.epochs,
            "optimizer": asdict(self.reference.optimizer),
            "case": {"parties": parties},
        }
        return Run(
            suite=self.name, dataset=dataset, method=REFERENCE, case=f"{parties} parties",
            rate=self.reference.optimizer.lr, latency=0.0, seed=seed, settings=self._shared(dataset, asked) | own,
        )  # fmt: skip

    def _shared(self, dataset: str, asked: base.Asked) -> dict[str, Any]:
        method = {key: value for key, value in self.method.items() if key != "name"}
        at = self.datasets[dataset].model_dump(exclude={"embedding", "heavy", "share", "rates", "differs"})
        parameters = {**method, "embedding": self.datasets[dataset].embedding}
        shared = {"name": self.method["name"], "parameters": parameters, "held_out": self.held_out}
        return at | shared | ({} if asked.device == "cpu" else {"device": asked.device})

    def share(self, dataset: str) -> float:
        """Return which part of what the reference reaches is the target."""
        own = self.datasets[dataset].share
        return self.reference.share if own is None else own

    def page(self, records: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> base.Page:
        """See the base."""
        return compare.page(self, records, about)


@dataclass(frozen=True, kw_only=True)
class Run(base.Run):
    """One training on the clock.

    Attributes:
        case: key of the case's entry.
        rate: the learning rate, of all parties; of Adaptive Flex-VFL, what its rate would be in an idle round.
        latency: of the clock.

    """

    case: str
    rate: float
    latency: float

    @property
    def label(self) -> str:
        """See the base."""
        case = self.case.replace(" ", "-")
        return f"{self.dataset}-{case}-{self.method}-l{self.latency:g}-r{self.rate:g}-s{self.seed}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """See the base."""
        return execute(self, data_dir)
