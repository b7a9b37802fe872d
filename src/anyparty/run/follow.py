"""Following a federation's run from its active party's machine: what its record says, as it grows."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from anyparty.align.overlap import Overlap
from anyparty.errors import ModelError
from anyparty.run.watch import Watch
from anyparty.storage import read_json

EVERY_S = 1.0
SCORES = ("loss", "training", "validation")


def follow(record: Path, job: str, ended: concurrent.futures.Future[Any], watch: Watch) -> None:
    """Tell ``watch`` of the alignment and of every epoch in the record of the job, until it has ended.

    Args:
        record: the active party's ``record.json``, which it writes after every checkpoint.
        job: the carrier's name for the run.
        ended: done when the job is.
        watch: who is told; hears of epochs late, and of no batches.

    """
    heard = _Heard(watch)
    while True:
        over = bool(concurrent.futures.wait([ended], timeout=EVERY_S).done)
        said = _said(record, job)
        heard.tell(said)
        if over:
            break
    if heard.stage:
        how = said.get("status", "running")
        watch.on_stage_end(heard.stage, "cut off" if how == "running" else how)


@dataclass
class _Heard:
    """What a watch has been told so far."""

    watch: Watch
    aligned: bool = False
    epochs: list[Mapping[str, Any]] = field(default_factory=list)
    stage: str = ""
    away: Set[str] = frozenset()

    def tell(self, said: Mapping[str, Any]) -> None:
        """Tell what a record says beyond that."""
        if "overlap" in said and not self.aligned:
            self.watch.on_aligned(Overlap.from_json(said["overlap"]), said["predicted"])
            self.aligned = True
        stages, history = said.get("stages", {}), said.get("history", [])
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.epochs, history, strict=False)))
        if same < len(self.epochs):  # it goes on from an earlier epoch than its record had come to, perhaps beyond that
            self.epochs, self.stage = self.epochs[:same], ""
        for each in history[same:]:
            self._begin(stages, each["stage"], each["epoch"] - 1)
            scores = {name: _numbers(each[name]) for name in SCORES if name in each}
            self.watch.on_epoch_end({**each, **scores, **self._came(each)})
            self.epochs.append(each)
        for latest in list(stages)[-1:]:
            self._begin(stages, latest, stages[latest]["first_epoch"])

    def _came(self, each: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return who takes part again: also who was away when the run ended, and was there as it went on."""
        absent = each.get("absent", {})
        back = [*each.get("back", ()), *sorted(self.away - absent.keys())]
        self.away = absent.keys() - set(back)
        return {"back": back} if back else {}

    def _begin(self, stages: Mapping[str, Mapping[str, int]], stage: str, first_epoch: int) -> None:
        if stage == self.stage:
            return
        if self.stage:
            self.watch.on_stage_end(self.stage, "all epochs done")
        self.stage = stage if stage in stages else ""  # one that ended before the record was lost, and begun anew
        if self.stage:
            self.watch.on_stage_begin(stage, stages[stage]["epochs"], stages[stage]["rows"], first_epoch)


def _numbers(value: Any) -> Any:
    """Return a loss or scores as they were before JSON made null of what is no number."""
    if isinstance(value, Mapping):
        return {name: _numbers(each) for name, each in value.items()}
    return math.nan if value is None else value


def _said(record: Path, job: str) -> dict[str, Any]:
    try:
        said = read_json(record)
    except ModelError:  # it has not begun, or is another machine's
        return {}
    return said if said.get("job") == job else {}
