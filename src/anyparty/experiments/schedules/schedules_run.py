"""One run of a schedules suite: a split method trained under a schedule, and its curve over the clock's time units."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyparty.artifacts.record import versions
from anyparty.config import Encoder
from anyparty.config.method_factory import schedule as schedule_by_name
from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.errors import Diverged
from anyparty.experiments.party_tables import LABELS, blocks_of, federation, tables
from anyparty.experiments.suite import SuiteRun
from anyparty.methods.schedules.flex import greatest
from anyparty.methods.schedules.virtual_clock import VirtualClock, google_trace
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback


@dataclass(frozen=True, kw_only=True)
class SchedulesRun(SuiteRun):
    """One training on the clock.

    Attributes:
        case: key of the case's entry.
        rate: learning rate of all parties; for Adaptive Flex-VFL, the rate in a round in which all machines are idle.
        latency: latency of the clock, in time units.

    """

    case: str
    rate: float
    latency: float

    @property
    def label(self) -> str:
        """See the base class."""
        case = self.case.replace(" ", "-")
        return f"{self.dataset}-{case}-{self.method}-l{self.latency:g}-r{self.rate:g}-s{self.seed}"

    def execute(self, data_dir: Path | None) -> dict[str, Any]:
        """See the base class. A run that diverges is a result, too; its curve ends with the last finished epoch."""
        torch.set_num_threads(1)  # runs are parallel, one thread each
        seeds, settings, case = Seeds(self.seed), self.settings, self.settings["case"]
        data = datasets.load(self.dataset, data_dir=data_dir, progress=False).split(seeds)
        assert data.X_test is not None
        assert data.y_test is not None
        pick = np.arange(len(data.X_train))
        if settings["rows"]:
            pick = np.sort(seeds.numpy("rows").permutation(len(pick))[: settings["rows"]])
        parts = [(data.X_train[pick], data.y_train[pick]), (data.X_test, data.y_test)]
        shared = settings.get("schedule", {}).get("labels") == "shared"
        train, test = (
            tables(blocks_of(X, settings["cut"], case["parties"]), y, np.ones((len(y), case["parties"]), bool),
                   shared=shared)
            for X, y in parts
        )  # fmt: skip
        curve, diverged, score = CurveRecorder(settings["metric"]), "", None
        began, began_cpu = time.perf_counter(), time.process_time()
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
        return {
            "run": vars(self) | {"key": self.key},
            "curve": curve.points,
            "test": score,
            "diverged": diverged,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - began_cpu,
            "data": data.note,
            "versions": versions(),
        }


class CurveRecorder(Callback):
    """Records loss, held-out score and clock of every epoch, also of a run that diverges later."""

    def __init__(self, metric: str) -> None:
        self.metric, self.points = metric, list[dict[str, float]]()

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Record one epoch."""
        clock: dict[str, float] = {key: record[key] for key in ("time", "rounds", "trace_began_anew") if key in record}
        self.points.append({"loss": record["loss"], "score": record["validation"][self.metric], **clock})


def _schedule_arguments(run: SchedulesRun, seeds: Seeds, data_dir: Path | None) -> dict[str, Any]:
    """Return the arguments of a training: the schedule, the clock and each party's optimizer.

    The reference has no schedule and no clock, and the same optimizer at all parties.
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
    """Return each party's A_k for which the party's learning rate is ``rate`` in a round with an idle machine.

    Flex-VFL with a fixed rate eta satisfies the paper's (14) in every round if eta = A_k / (tau wbar), where tau is the
    greatest possible number of local iterations (section VII-F).
    """
    idle = VirtualClock(iteration=clock.get("iteration", 1.0), timeout=clock["timeout"])
    tau = {name: idle.fits(name, 0) for name in momentum}
    return {name: rate * tau[name] * greatest(tau[name], momentum=momentum[name], pull=0.0) for name in momentum}
