"""The prediction service: latency of a request for one id beside large requests, in a thread or the event loop.

Three parties and the service run in one process without HTTP. The networks are so wide that a request for thousands of
ids takes seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from anyparty.api.federation import Federation
from anyparty.config.loader import load
from anyparty.networks.encoders import MLP
from anyparty.serving import batch_executor
from anyparty.serving.backends import in_process_peers, load_run
from anyparty.serving.loaded_party import LoadedParty
from anyparty.serving.predictor import Predictor
from anyparty.serving.serving_protocol import MAX_ROWS
from benchmarks.page import Page, quick_asked, target
from benchmarks.service import made
from benchmarks.timing import Spread

ROWS, WIDE, BUDGET_S, MOST_MS = 5_000, 1_500, 60.0, 100.0
THREAD, LOOP = "in a thread beside the loop", "on the loop"
WAYS = {THREAD: batch_executor.INLINE_ROWS, LOOP: 10**9}
PAUSE_S, SHOWN = 0.02, (50, 99, 100)


def main(*, quick: bool) -> None:
    page = Page("beside_batches", "Prediction service: one id, beside batches", quick)
    torch.set_num_threads(1)
    rounds, turns = (2, 5) if quick else (5, 15)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        federation = Federation.from_config(load(made(home, ROWS)))
        federation.train(encoder=MLP(hidden=(WIDE,) * 3), epochs=1, folder=home / "run", batch_size=1024)
        service, others = load_run(home / "run")
        alone = asyncio.run(waits(service, others, 3 * turns, batches=False))
        found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, few in WAYS.items():
                batch_executor.INLINE_ROWS = few
                found[way].append(asyncio.run(waits(service, others, turns, batches=True)))
    page.say(
        f"Three parties and the service in one process, encoders with three layers of {WIDE:,}, one torch thread each. "
        f"Batches of {MAX_ROWS:,} ids one after the other, and beside them one id at a time, {1e3 * PAUSE_S:.0f} ms "
        f"apart. Batches are computed either way in turns, {rounds} times with {turns} requests each; medians over "
        f"rounds, quartiles in brackets. The clock on the wall, on which other jobs of the machine count."
    )
    page.table(
        "Milliseconds for one id",
        ["batches", "p50", "p99", "longest", "p99, target"],
        [
            ["none", *(str(_at([alone], q)) for q in SHOWN), ""],
            *([way, *(str(_at(each, q)) for q in SHOWN), target(_at(each, 99), MOST_MS if way == THREAD else None)]
              for way, each in found.items()),
        ],
    )  # fmt: skip
    ratio = Spread.of([float(np.median(b) / np.median(a)) for a, b in zip(found[THREAD], found[LOOP], strict=True)])
    page.say(f"On the loop a request for one id takes {ratio} times as long, by the median of a round.")
    page.write()


async def waits(service: Predictor, others: Mapping[str, LoadedParty], turns: int, *, batches: bool) -> list[float]:
    """Return the latencies of requests for one id, in ms; with ``batches``, large requests compute at the same time."""
    ids, found, lots = list(service.index.places)[:MAX_ROWS], [], np.random.default_rng(0)

    async def one_after_the_other() -> None:
        while True:
            await service.predict(ids, budget_s=BUDGET_S)

    async with in_process_peers(service, others):
        background = asyncio.create_task(one_after_the_other()) if batches else None
        await asyncio.sleep(PAUSE_S)
        for row in lots.integers(0, len(ids), turns):
            began = time.perf_counter()
            (answer,) = await service.predict([ids[row]], budget_s=BUDGET_S)
            found.append(1e3 * (time.perf_counter() - began))
            assert len(answer.took_part) == 3, answer
            await asyncio.sleep(PAUSE_S)
        if background is not None:
            background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background
    return found


def _at(rounds: list[list[float]], q: float) -> Spread:
    return Spread.of([float(np.percentile(each, q)) for each in rounds])


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
