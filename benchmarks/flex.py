"""Time units to a training loss under every schedule: python -m benchmarks.flex.

HAPT, 2,560 of its training rows, four parties and a server that has the labels; the speeds of the Flex-VFL paper's
ImageNet100 experiment: 2, 4, 6 and 8 local iterations within a time-out of 10, the server 10.  One seed; one learning
rate for all, then each schedule at whichever of three gets there first: a look at the clock and the schedules, not yet
the paper's tables.  Needs ANYPARTY_DATA.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from anyparty import MLP, Federation, Optimizer, Watch
from anyparty.bench.parties import blocks_of, tables
from anyparty.config import Config
from anyparty.errors import Diverged
from anyparty.tables import datasets
from benchmarks.page import Page, quick_asked

SPEEDS = {"server": 1.0, "party1": 5.0, "party2": 2.5, "party3": 10 / 6, "party4": 1.25}
LATENCIES, TIMEOUT, RATES, TARGET, ROWS, WINDOW = (1.0, 10.0, 50.0), 10.0, (0.1, 0.3, 1.0), 0.2, 2560, 17
RUNS = (  # schedule, who has labels, most epochs
    ("p-bcd", "active", 40), ("vafl", "active", 100), ("sync-min", "active", 24), ("sync-max", "shared", 10),
    ("flex", "active", 16), ("flex", "shared", 16),
)  # fmt: skip


class Losses(Watch):
    """Keeps the loss of every batch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_batch_end(self, rows: int, loss: float) -> None:  # noqa: ARG002
        """Keep it."""
        self.losses.append(loss)


def federation(labels: str) -> Federation:
    """Return four parties with columns and a server; with "shared" labels, all of them have the label too."""
    data = datasets.load("hapt", progress=False)
    pick = np.random.default_rng(0).permutation(len(data.X_train))[:ROWS]
    frames = tables(blocks_of(data.X_train[pick], "columns", 4), data.y_train[pick], np.ones((ROWS, 4), bool))
    parties: dict[str, dict[str, object]] = {name: {"scale": True} for name in frames}
    if labels == "shared":
        label = frames["server"]["label"]
        frames = {name: frame.with_columns(label=label) for name, frame in frames.items()}
        parties = {name: {**own, "label": "label"} for name, own in parties.items()}
    config = Config.of({"federation": {"label": "label", "active": "server"}, "parties": parties})
    return Federation.from_config(config, frames)


def time_units(schedule: str, labels: str, latency: float, rate: float, epochs: int) -> float | None:
    """Return the time until the mean loss of an epoch's worth of batches is at most the target; ``None``: never."""
    watch, named = Losses(), {"name": schedule} | ({} if schedule == "vafl" else {"labels": labels})
    try:
        model = federation(labels).train(
            "standard", parameters={"embedding": 32}, encoder=MLP(hidden=(64,)), schedule=named,
            clock={"iteration": SPEEDS, "latency": latency, "timeout": TIMEOUT},
            optimizer=Optimizer(name="sgd", lr=rate, momentum=0.0), epochs=epochs, batch_size=128, seed=0,
            validation=0.15, test=0.0, patience=None, keep="last", watch=watch,
        )  # fmt: skip
    except Diverged:
        return None
    means = np.convolve(watch.losses, np.ones(WINDOW) / WINDOW, "valid")
    hit = np.nonzero(means <= TARGET)[0]
    last = model.history[-1]
    return None if not len(hit) else float(hit[0] + WINDOW) * last["time"] / last["rounds"]


def said(value: float | None) -> str:
    """Return a time, or that there is none."""
    return "not reached" if value is None else f"{value:.0f}"


def main(*, quick: bool) -> None:
    torch.set_num_threads(1)
    page = Page("flex", "Schedules: time units to a training loss", quick)
    rates = RATES[:1] if quick else RATES
    first, best = [], []
    for schedule, labels, epochs in RUNS:
        found = {
            (latency, rate): time_units(schedule, labels, latency, rate, 2 if quick else epochs)
            for latency in LATENCIES
            for rate in rates
        }
        name = f"{schedule}, labels {labels}"
        first.append([name, *(said(found[latency, RATES[0]]) for latency in LATENCIES)])
        soonest = {at: min(rates, key=lambda rate, at=at: found[at, rate] or math.inf) for at in LATENCIES}
        best.append([name, *(f"{said(found[at, rate])} ({rate:g})" for at, rate in soonest.items())])
    page.say((__doc__ or "").split("\n\n", 1)[1].replace("\n", " "))
    columns = ("schedule", *(f"latency {latency:g}" for latency in LATENCIES))
    page.table(f"Time units to a mean loss of {TARGET} over {WINDOW} batches, learning rate {RATES[0]}", columns, first)
    page.table(f"The same, each at the soonest of the rates {rates}", columns, best)
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
