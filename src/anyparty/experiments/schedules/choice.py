"""From the records of a suite's first step: each algorithm's learning rate, and the targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyparty.experiments.schedules.suite import Suite

Records = Mapping[str, Mapping[str, Any]]
Place = tuple[str, str, str]  # data set, case, algorithm


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The rate of an algorithm.

    Attributes:
        rate: the one with the lowest training loss.
        losses: by rate, the mean training loss of the last epoch with seed 0; infinite where it diverged.

    """

    rate: float
    losses: Mapping[float, float]

    @property
    def at_an_end(self) -> bool:
        """Whether the rate is the lowest or highest of the grid: a better one may lie beyond."""
        return len(self.losses) > 1 and self.rate in {min(self.losses), max(self.losses)}


def rates(suite: Suite, records: Records) -> dict[Place, Choice]:
    """Return the choice for each data set, case and algorithm that has one: none where every rate diverged."""
    losses: dict[Place, dict[float, float]] = {}
    for record in records.values():
        run = record["run"]
        searched = run["method"] in suite.algorithms and not suite.algorithms[run["method"]].rate_of
        if searched and run["seed"] == 0 and run["latency"] == suite.search_latency:
            found = losses.setdefault((run["dataset"], run["case"], run["method"]), {})
            found[run["rate"]] = math.inf if record["diverged"] else record["curve"][-1]["loss"]
    made = {
        place: Choice(rate=min(sorted(found), key=found.__getitem__), losses=dict(sorted(found.items())))
        for place, found in losses.items()
        if math.isfinite(min(found.values()))
    }
    for dataset, case, source in list(made):
        for name, entry in suite.algorithms.items():
            if entry.rate_of == source:
                made[dataset, case, name] = made[dataset, case, source]
    return made


def targets(suite: Suite, records: Records) -> dict[tuple[str, int], float]:
    """Return the target for each data set and number of parties: a share of the reference's mean last score."""
    scores: dict[tuple[str, int], list[float]] = {}
    for record in records.values():
        run = record["run"]
        if run["method"] not in suite.algorithms and not record["diverged"]:
            place = (run["dataset"], run["settings"]["case"]["parties"])
            scores.setdefault(place, []).append(record["curve"][-1]["score"])
    return {place: suite.share(place[0]) * statistics.fmean(found) for place, found in scores.items()}
