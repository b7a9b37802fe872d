"""Following a federation's run from its active party's machine: what its record says, as it grows."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any

from anyparty.errors import ModelError
from anyparty.run.files import read_json
from anyparty.run.watch import Watch

EVERY_S = 1.0


def follow(record: Path, job: str, epochs: int, ended: concurrent.futures.Future[Any], watch: Watch) -> None:
    """Tell ``watch`` of every epoch in the record of the job, until it has ended.

    Args:
        record: the active party's ``record.json``, which it writes after every checkpoint.
        job: the carrier's name for the run.
        epochs: of a stage, for who counts.
        ended: done when the job is.
        watch: who is told; hears of epochs late, and of no batches.

    """
    told, stage = 0, ""
    while True:
        over = bool(concurrent.futures.wait([ended], timeout=EVERY_S).done)
        for each in _history(record, job)[told:]:
            if each["stage"] != stage:
                if stage:
                    watch.on_stage_end(stage, "all epochs done")
                stage = str(each["stage"])
                watch.on_stage_begin(stage, epochs, 0, int(each["epoch"]) - 1)
            watch.on_epoch_end(each)
            told += 1
        if over:
            break
    if stage:
        watch.on_stage_end(stage, "done")


def _history(record: Path, job: str) -> list[dict[str, Any]]:
    try:
        said = read_json(record)
    except ModelError:  # it has not begun, or is another machine's
        return []
    return list(said["history"]) if said.get("job") == job else []
