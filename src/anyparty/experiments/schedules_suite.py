"""Suites of schedules as data, and their runs, whose scores are measured over the time units of a virtual clock.

The experiments are published in the Flex-VFL paper. A suite has data sets, cases (the parties, their speeds and the
time-out) and algorithms. Its runs have two steps:

1. For every data set and case, each algorithm trains with seed 0 at each learning rate of a grid. The reference, a
   training without a schedule, is run with every seed. The target is a share of the reference's score.
2. Each algorithm trains with all seeds but 0, at the rate with the lowest final training loss of the first step (the
   paper's section VII-A). The run of the first step at this rate gives the result for seed 0.

The second step reads the rates from the records of the first step, so an interrupted suite continues with the same
rates. In a schedule with rounds, latency changes only the duration of rounds, so one training gives the results for all
latencies. With VAFL, the active party exchanges messages with one party at a time, and latency changes the order of the
parties. VAFL therefore trains once for each latency, at the rate that was chosen at the latency ``search_latency``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyparty.config import Encoder, Settings
from anyparty.config.method_factory import schedule as schedule_by_name
from anyparty.core.seeds import Seeds
from anyparty.data.datasets import Dataset
from anyparty.errors import Diverged
from anyparty.experiments.party_tables import LABELS, blocks_of, federation, tables
from anyparty.experiments.results import Records
from anyparty.experiments.suite import ALL, Selection, Suite, SuiteDataset, SuiteRun, select, timed
from anyparty.methods.schedules.flex import greatest
from anyparty.methods.schedules.virtual_clock import VirtualClock, google_trace
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback


@dataclass(frozen=True, kw_only=True)
class SchedulesRun(SuiteRun):
    """One training of an algorithm under a virtual clock.

    Attributes:
        case: name of the case in the suite.
        rate: learning rate of all parties; for Adaptive Flex-VFL, the rate in a round in which all machines are idle.
        latency: duration of a round trip between a party and the active party, in time units of the clock.

    """

    case: str
    rate: float
    latency: float

    @property
    def label(self) -> str:
        """A readable name of the run: data set, case, algorithm, latency, learning rate, seed."""
        case = self.case.replace(" ", "-")
        return f"{self.dataset}-{case}-{self.method}-l{self.latency:g}-r{self.rate:g}-s{self.seed}"

    def train_and_score(self, data: Dataset, data_dir: Path | None) -> dict[str, Any]:
        """Train once; return the loss, score and clock after each epoch, and the test score.

        A training that diverges is a result, too. Its curve ends with the last finished epoch.
        """
        seeds, settings, case = Seeds(self.seed), self.settings, self.settings["case"]
        data = data.split(seeds)
        assert data.X_test is not None
        assert data.y_test is not None
        pick = np.arange(len(data.X_train))
        if settings["rows"]:
            pick = np.sort(seeds.numpy("rows").permutation(len(pick))[: settings["rows"]])
        shared = settings.get("schedule", {}).get("labels") == "shared"
        train, test = (
            tables(blocks_of(X, settings["cut"], case["parties"]), y, np.ones((len(y), case["parties"]), bool),
                   shared=shared)
            for X, y in ((data.X_train[pick], data.y_train[pick]), (data.X_test, data.y_test))
        )  # fmt: skip
        curve, diverged, score = CurveRecorder(settings["metric"]), "", None
        with timed() as times:
            try:
                model = federation(train, scale=settings["scale"]).train(
                    settings["name"], parameters=settings["parameters"],
                    encoder=Encoder.model_validate(settings["encoder"]).make(), epochs=settings["epochs"],
                    batch_size=settings["batch_size"], seed=self.seed, validation=settings["held_out"], test=0.0,
                    patience=None, score_training=0, keep="last", watch=curve,
                    **_schedule_arguments(self, seeds, data_dir),
                    **({"device": settings["device"]} if "device" in settings else {}),
                )  # fmt: skip
                score = model.evaluate(test).overall[settings["metric"]]
            except Diverged as error:
                diverged = str(error)
        return {"curve": curve.points, "test": score, "diverged": diverged, **times}


class CurveRecorder(Callback):
    """A callback that keeps the loss, held-out score and clock of every epoch, also of a run that diverges later."""

    def __init__(self, metric: str) -> None:
        self.metric, self.points = metric, list[dict[str, float]]()

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Keep the loss, the held-out score and the clock's values of one epoch."""
        clock: dict[str, float] = {key: record[key] for key in ("time", "rounds", "trace_began_anew") if key in record}
        self.points.append({"loss": record["loss"], "score": record["validation"][self.metric], **clock})


def _schedule_arguments(run: SchedulesRun, seeds: Seeds, data_dir: Path | None) -> dict[str, Any]:
    """Return the arguments of ``Federation.train`` that a run sets: schedule, clock and each party's optimizer.

    The reference trains without a schedule and a clock, with the same optimizer at all parties.
    """
    settings, case = run.settings, run.settings["case"]
    if "schedule" not in settings:
        return {"optimizer": Optimizer(**settings["optimizer"])}
    names = [*(f"party{k + 1}" for k in range(case["parties"])), LABELS]
    momentum = dict(zip(names, case["momentum"], strict=True))
    clock: dict[str, Any] = {"latency": run.latency, "timeout": case["timeout"]}
    if case["trace"]:
        clock["use"] = google_trace(names, seeds, average=case["trace"] == "average", data_dir=data_dir)
    else:
        within = (*case["iterations"], case["server"])
        clock["iteration"] = {name: case["within"] / each for name, each in zip(names, within, strict=True)}
    schedule = dict(settings["schedule"])
    if schedule_by_name(**schedule)[0].adapts:
        schedule["A"] = flex_amounts(run.rate, clock, momentum)
    optimizers = {name: Optimizer(name="sgd", lr=run.rate, momentum=each) for name, each in momentum.items()}
    return {"schedule": schedule, "clock": clock, "optimizer": optimizers}


def flex_amounts(rate: float, clock: Mapping[str, Any], momentum: Mapping[str, float]) -> dict[str, float]:
    """Return for each party the constant A_k of the paper that gives the learning rate ``rate`` on an idle machine.

    Flex-VFL with a fixed rate eta satisfies the paper's equation (14) in every round if eta = A_k / (tau wbar), by
    section VII-F. Here tau is the greatest possible number of local iterations, and wbar is the greatest weight of
    equation (8).
    """
    idle = VirtualClock(iteration=clock.get("iteration", 1.0), timeout=clock["timeout"])
    tau = {name: idle.fits(name, 0) for name in momentum}
    return {name: rate * tau[name] * greatest(tau[name], momentum=momentum[name], pull=0.0) for name in momentum}


REFERENCE = "reference"


class SchedulesDataset(SuiteDataset):
    """Settings of one data set.

    Attributes:
        rows: number of training rows, drawn by the seed; 0 takes all rows.
        share: the target as a share of the reference's score, in place of the share in ``ReferenceEntry``.
        rates: the grid of learning rates, in place of the suite's grid; empty to keep the suite's grid.

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
    """A case: the parties and the clock under which all algorithms are compared.

    Attributes:
        timeout: time-out of a round, in time units.
        within: time in which each party completes the number of iterations in ``iterations``, and the server the number
            in ``server``.
        trace: if not empty, speeds come from a trace in place of ``iterations``: the seed draws a machine of Google's
            cluster for each party. An iteration takes 1 time unit on an idle machine. With "average", the machine's
            mean CPU use applies to all rounds; with "varying", each sample of its CPU use applies to one round.
        momentum: local momentum of each party, in order; the last number is the momentum of the server.

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
    """An algorithm: a schedule, its number of epochs and its grid of learning rates.

    Attributes:
        epochs: number of epochs.  If the active party exchanges messages with one party at a time, this number is
            multiplied by the number of parties.
        rates: the grid of learning rates, in place of the suite's grid; empty to keep the suite's grid.
        rate_of: name of the algorithm whose chosen rate is used, so that this algorithm needs no search; empty to
            search.

    """

    title: str
    schedule: dict[str, Any]
    epochs: int
    rates: tuple[float, ...] = ()
    rate_of: str = ""

    @property
    def at_once(self) -> bool:
        """True if the active party exchanges messages with one party at a time, when this party is ready.

        The latency then changes the order of the parties.
        """
        return schedule_by_name(**self.schedule)[0].at_once


class ReferenceEntry(Settings):
    """The reference: a training without a schedule, whose score times ``share`` is the target."""

    epochs: int
    optimizer: Optimizer
    share: float


@dataclass(frozen=True, kw_only=True)
class ChosenRate:
    """The learning rate that was chosen for an algorithm, with the losses that led to the choice.

    Attributes:
        rate: the rate with the lowest training loss.
        losses: for each rate, the mean training loss of the last epoch with seed 0; infinite if the run diverged.

    """

    rate: float
    losses: Mapping[float, float]

    @property
    def at_an_end(self) -> bool:
        """True if the rate is the lowest or highest of the grid, so that a better rate may be outside the grid."""
        return len(self.losses) > 1 and self.rate in {min(self.losses), max(self.losses)}


class SchedulesSuite(Suite):
    """A suite that measures the time units until several algorithms reach a target, under several clocks.

    Attributes:
        method: name and parameters of the split method that all algorithms train.
        rates: grid of learning rates.
        latencies: durations of a round trip for which the tables show results, in time units.
        search_latency: the latency at which rates are chosen.
        held_out: share of the training rows that are held out to score each epoch.
        beside: name of the algorithm that all algorithms are compared with.
        published: the paper's (mean, spread) in thousands of time units for each latency, by case and algorithm; an
            empty pair means that the target was not reached.
        says: paragraphs of text below the tables.

    """

    kind: Literal["schedules"] = "schedules"
    datasets: dict[str, SchedulesDataset]
    cases: dict[str, CaseEntry]
    methods: dict[str, AlgorithmEntry]
    reference: ReferenceEntry
    method: dict[str, Any]
    rates: tuple[float, ...]
    latencies: tuple[float, ...]
    search_latency: float
    held_out: float
    beside: str
    published: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {}
    says: list[str] = []

    @property
    def quick_cuts(self) -> str:
        """The share of the work that a quick run does, as a text for the page."""
        return "a tenth of the epochs and two learning rates of the search"

    def runs(self, selection: Selection = ALL) -> Iterator[SchedulesRun]:
        """Yield the runs of the first step: the reference, and each algorithm with seed 0 at each learning rate.

        A quick selection has a tenth of the epochs, and only two rates from the middle of the grid.
        """
        wanted = select("method", selection.methods, self.methods)
        named = {self.methods[name].rate_of or name for name in wanted}  # algorithms whose rates are searched
        for dataset in self.selected_datasets(selection):
            for parties in dict.fromkeys(case.parties for case in self.cases.values()):
                for seed in range(selection.seeds):
                    yield self._reference(dataset, parties, seed, selection)
            for case in self.cases:
                for name in (each for each in self.methods if each in named):
                    grid = self.methods[name].rates or self.datasets[dataset].rates or self.rates
                    for rate in grid[len(grid) // 2 :][:2] if selection.quick else grid:
                        condition = {"case": case, "rate": rate, "latency": self.search_latency}
                        yield self.run(dataset, name, condition, 0, selection)

    def later(self, records: Records, selection: Selection = ALL) -> Iterator[SchedulesRun]:
        """Yield the runs of the second step: each algorithm at its chosen rate.

        These runs have the seeds and latencies that the first step did not run. ``records`` are the results of the
        first step.
        """
        rates = self.chosen_rates(records)
        wanted = select("method", selection.methods, self.methods)
        for seed, dataset, case, name in product(
            range(selection.seeds), self.selected_datasets(selection), self.cases, wanted
        ):
            entry = self.methods[name]
            if (found := rates.get((dataset, case, name))) is not None:
                for latency in self.latencies if entry.at_once else (self.search_latency,):
                    if seed or latency != self.search_latency or entry.rate_of:
                        condition = {"case": case, "rate": found.rate, "latency": latency}
                        yield self.run(dataset, name, condition, seed, selection)

    def chosen_rates(self, records: Records) -> dict[tuple[str, str, str], ChosenRate]:
        """Return the chosen rate for each (data set, case, algorithm).

        An algorithm that diverged at all rates is left out.
        """
        losses: dict[tuple[str, str, str], dict[float, float]] = {}
        for record in records.values():
            run = record["run"]
            searched = run["method"] in self.methods and not self.methods[run["method"]].rate_of
            if searched and run["seed"] == 0 and run["latency"] == self.search_latency:
                by_rate = losses.setdefault((run["dataset"], run["case"], run["method"]), {})
                by_rate[run["rate"]] = math.inf if record["diverged"] else record["curve"][-1]["loss"]
        rates = {
            place: ChosenRate(rate=min(sorted(by_rate), key=by_rate.__getitem__), losses=dict(sorted(by_rate.items())))
            for place, by_rate in losses.items()
            if math.isfinite(min(by_rate.values()))
        }
        for dataset, case, source in list(rates):
            for name, entry in self.methods.items():
                if entry.rate_of == source:
                    rates[dataset, case, name] = rates[dataset, case, source]
        return rates

    def targets(self, records: Records) -> dict[tuple[str, int], float]:
        """Return the target for each (data set, number of parties): a share of the reference's final held-out score.

        The final score is the mean over the seeds with which the training did not diverge.
        """
        scores: dict[tuple[str, int], list[float]] = {}
        for record in records.values():
            run = record["run"]
            if run["method"] not in self.methods and not record["diverged"]:
                place = (run["dataset"], run["settings"]["case"]["parties"])
                scores.setdefault(place, []).append(record["curve"][-1]["score"])
        return {place: self.share(place[0]) * statistics.fmean(each) for place, each in scores.items()}

    def run(
        self, dataset: str, method: str, condition: Mapping[str, Any], seed: int, selection: Selection
    ) -> SchedulesRun:
        """Return the run of an algorithm in a case, with a learning rate and a latency."""
        entry, case = self.methods[method], self.cases[condition["case"]]
        epochs = max(1, entry.epochs // 10) if selection.quick else entry.epochs
        own = {
            "schedule": entry.schedule,
            "epochs": epochs * (case.parties if entry.at_once else 1),
            "case": case.model_dump(exclude={"title"}),
        }
        return SchedulesRun(suite=self.name, dataset=dataset, method=method, seed=seed, **condition,
                            settings=self._shared(dataset, selection) | own)  # fmt: skip

    def _reference(self, dataset: str, parties: int, seed: int, selection: Selection) -> SchedulesRun:
        own = {
            "epochs": max(1, self.reference.epochs // 10) if selection.quick else self.reference.epochs,
            "optimizer": asdict(self.reference.optimizer),
            "case": {"parties": parties},
        }
        return SchedulesRun(
            suite=self.name, dataset=dataset, method=REFERENCE, case=f"{parties} parties",
            rate=self.reference.optimizer.lr, latency=0.0, seed=seed, settings=self._shared(dataset, selection) | own,
        )  # fmt: skip

    def _shared(self, dataset: str, selection: Selection) -> dict[str, Any]:
        method = {key: value for key, value in self.method.items() if key != "name"}
        at = self.datasets[dataset].model_dump(exclude={"embedding", "heavy", "share", "rates", "differs"})
        parameters = {**method, "embedding": self.datasets[dataset].embedding}
        shared = {"name": self.method["name"], "parameters": parameters, "held_out": self.held_out}
        return at | shared | ({} if selection.device == "cpu" else {"device": selection.device})

    def share(self, dataset: str) -> float:
        """Return the share of the reference's score that is the target for a data set."""
        own = self.datasets[dataset].share
        return self.reference.share if own is None else own
