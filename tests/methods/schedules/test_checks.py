"""Split methods under schedules pass the checks of every method."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from anyparty.methods.method import Method
from anyparty.methods.schedules.virtual_clock import VirtualClock
from tests.methods.cases import Case
from tests.methods.checks import CHECKS
from tests.methods.schedules.scheduled_runs import EVERYBODY, under

CLOCK = VirtualClock(iteration={"a": 2.0}, timeout=6, use={"a": (0.0, 0.4)})  # a makes 3 or 1 iterations, the others 6


@dataclass(frozen=True, kw_only=True)
class Timed(Case):
    """A case under a schedule."""

    schedule: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Method:
        clock = VirtualClock() if self.schedule["name"] == "p-bcd" else CLOCK
        return under(of=self.of, clock=clock, parameters=self.parameters, **self.schedule)


CASES = (
    Timed(title="p-bcd over laser", of="laser", schedule={"name": "p-bcd"}),
    Timed(title="flex over laser", of="laser", schedule={"name": "flex"}),
    Timed(title="flex over standard", of="standard", schedule={"name": "flex"}),
    Timed(title="flex over plug, shared labels", of="plug", schedule={"name": "flex", "labels": "shared"},
          world=EVERYBODY),
    Timed(title="adaptive-flex over laser", of="laser", schedule={"name": "adaptive-flex"}),
    Timed(title="vafl over laser", of="laser", schedule={"name": "vafl"}),
)  # fmt: skip
NAMED = {
    "says what it can", "only declared messages cross", "unobserved cells do not matter", "same seed same bits",
    "prediction ignores batching and row order", "one party", "rows that nobody has get no number",
    "absent parties are not asked", "finds a signal planted at a passive party",
    "learns nothing from shuffled labels",
}  # fmt: skip
ALSO = {
    "p-bcd over laser": {"no labels in the batch", "unlabelled rows in a batch teach nothing",
                         "a party that leaves is missed and not replaced"},
    "flex over laser": {"no labels in the batch", "a party that leaves is missed and not replaced",
                        "what is no longer a number is named"},
    "adaptive-flex over laser": {"no labels in the batch"},
}  # fmt: skip
"""Checks of a single step that hold under some schedules; carriers and resuming are in ``test_rounds.py``."""
QUICK = {"p-bcd over laser", "flex over laser", "vafl over laser"}


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(check, case, id=f"{check}-{case.title}", marks=[] if case.title in QUICK else [pytest.mark.slow])
        for case in CASES
        for check in CHECKS
        if check in NAMED | ALSO.get(case.title, set())
    ],
)
def test(check, case, tmp_path):
    CHECKS[check](case, tmp_path)
