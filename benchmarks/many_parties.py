"""Time and memory of LASER-VFL's training step, and time to score a row, against the number of parties."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from anyparty.core.predictions import Predictions
from anyparty.core.types import Channel
from anyparty.training.loop import predict_rows
from anyparty.transport import memory
from benchmarks.memory import peak_since_reset, reset_peak, resident
from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Contender, Spread, alternate, now, torch_threads
from benchmarks.trainers import Coroutines
from benchmarks.worlds import Model, World

MIB = 2**20


def main(*, quick: bool) -> None:
    page = Page("many_parties", "From 4 to 64 parties", quick)
    counts = (4, 8, 16) if quick else (4, 8, 16, 32, 64)
    page.say(
        "HAPT's 560 features in K equal blocks (8 at K = 64), encoders and embeddings of 128, batch 128, 30 % of all "
        "blocks absent. One torch thread, that thread's own time; medians, quartiles in brackets. *tensors* is the "
        "peak of what torch has allocated during a step beyond data, weights and momentum, from the profiler's record "
        "of every allocation; *process* is the growth of the peak resident size from before the first of ten steps, "
        "in a process of its own, gradients and momentum included."
    )
    with torch_threads(1):
        steps = {K: training(K, quick) for K in counts}
        memory = {K: step_memory(K) for K in counts}
        scores = {K: scoring(K, quick) for K in counts}
    grown = {K: in_own_process(K) for K in counts}
    page.table(
        "A training step of LASER-VFL",
        ("K", "ms a step", "x Standard", "ms a step and party", "tensors, MiB", "x the row above", "process, MiB"),
        [
            [
                str(K), str(steps[K][0]), str(steps[K][1]), f"{steps[K][0].median / K:.2f}", f"{memory[K] / MIB:.1f}",
                f"{memory[K] / memory[K // 2]:.2f}" if K // 2 in memory else "", f"{grown[K] / MIB:.0f}",
            ]
            for K in counts
        ],
    )  # fmt: skip
    overall, last = exponent(memory, counts), exponent(memory, counts[-2:])
    page.say(
        f"Memory grows as K^{overall:.2f} over the whole table (least squares in the logarithms) and as K^{last:.2f} "
        f"from K = {counts[-2]} to {counts[-1]}; target K^2, that is x 4 a row: {target(last, 2.0)}."
    )
    page.table(
        "Scoring the rows of one pattern (half of the parties present)",
        ("K", "predictors that exist", "LASER, us a row", "Standard's one, us a row", "LASER x Standard",
         "every subset, us a row"),
        [
            [str(K), f"{2**K - 1:,}" if K < 20 else f"2^{K} - 1", str(laser), str(standard), str(ratio), every]
            for K, (laser, standard, ratio, every) in scores.items()
        ],
    )  # fmt: skip
    page.say(
        "*LASER* scores rows that K/2 parties have, by the predictor for exactly these (K/2 heads answer, and all "
        "answers are kept). *Standard's one* is one network over as many parties and the same rows: what a single "
        "predictor costs. *every subset* adds, for K up to 8, the predictors of all 2^K - 1 subsets on the same "
        "embeddings, as a program does that evaluates them all and picks one."
    )
    file = page.folder / "many_parties.png"
    plot(file, counts, steps, memory, scores)
    page.plot(file, "Step time, memory and scoring time against K")
    page.write()


def training(K: int, quick: bool) -> tuple[Spread, Spread]:
    """Return the milliseconds of a training step of LASER-VFL, and the ratio to those of Standard VFL."""
    every: dict[str, Contender] = {
        "laser": Coroutines(Model.of(World.of(K, 0.3), "laser")),
        "standard": Coroutines(Model.of(World.of(K), "standard")),
    }
    times = alternate(every, 3 if quick else 11, 0.05 if quick else 0.25)
    return times.milliseconds("laser"), times.ratio("laser", "standard")


def step_memory(K: int) -> int:
    """Return the peak of bytes allocated during a step, beyond the bytes that stay between steps."""
    train = Coroutines(Model.of(World.of(K, 0.3), "laser"))
    train(2)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        train(1)
    assert seen.profiler is not None
    kept = seen.profiler.kineto_results
    assert kept is not None
    changes = sorted((e.start_ns(), e.nbytes()) for e in kept.events() if e.name() == "[memory]")
    live = np.cumsum([size for _, size in changes])
    return int(live.max() - min(0, live.min()))


def in_own_process(K: int) -> int:
    """Return the growth in bytes of a process that trains for ten steps."""
    command = [sys.executable, "-m", "benchmarks.many_parties", "--grow", str(K)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own program
    return int(json.loads(done.stdout))


def grow(K: int) -> int:
    torch.set_num_threads(1)
    train = Coroutines(Model.of(World.of(K, 0.3), "laser"))
    before = resident()
    reset_peak()
    train(10)
    return peak_since_reset() - before


def scoring(K: int, quick: bool) -> tuple[Spread, Spread, Spread, str]:
    """Return the microseconds to score a row: LASER-VFL's, Standard VFL's, their ratio, and those of all subsets."""
    rows = 1024 if quick else 4096
    laser = Scores(K, "laser", K // 2, rows)
    every: dict[str, Contender] = {"laser": laser, "standard": Scores(K // 2, "standard", K // 2, rows, K)}
    if K <= 8:
        every["subsets"] = EverySubset(laser)
    times = alternate(every, 3 if quick else 11, 0.05 if quick else 0.25)

    def per_row(name: str) -> Spread:
        return Spread.of([1e6 * seconds / rows for seconds in times.rounds[name]])

    subsets = str(per_row("subsets")) if "subsets" in every else "not tried"
    return per_row("laser"), per_row("standard"), times.ratio("laser", "standard"), subsets


class Scores:
    """A callable that scores rows that the first ``present`` of K parties hold; a step scores all rows once."""

    def __init__(self, K: int, name: str, present: int, rows: int, features_as: int | None = None) -> None:
        world = World.of(K, n=rows, blocks=features_as or K)
        self.model, self.rows = Model.of(world, name), rows
        self.asked = world.roster.blocks[:present]

    def __call__(self, steps: int) -> float:
        """Score all rows several times; return the seconds."""
        model, wanted = self.model, torch.arange(self.rows)

        def part(name: str) -> Callable[[Channel], Awaitable[Predictions | None]]:
            state, rows = model.states[name], model.world.rows[name]
            return lambda net: predict_rows(model.method, net, state, rows, wanted, self.asked, model.seeds)

        began = now()
        for _ in range(steps):
            memory.play({name: part(name) for name in model.world.roster.names})
        return now() - began


class EverySubset:
    """A callable that scores like ``Scores``, and then evaluates the predictors of all other subsets of parties."""

    def __init__(self, one: Scores) -> None:
        self.one = one
        K = one.model.world.roster.K
        self.h = torch.randn(one.rows, K, one.model.method.embedding)
        self.members = (torch.arange(1, 2**K).unsqueeze(1) >> torch.arange(K)) & 1 == 1

    def __call__(self, steps: int) -> float:
        """Score all rows several times; return the seconds."""
        heads = self.one.model.lead.modules["heads"]
        seconds, began = self.one(steps), now()
        with torch.no_grad():
            for _ in range(steps):
                for members in self.members:
                    mean = self.h[:, members].mean(dim=1, keepdim=True)
                    heads(mean.expand(-1, self.h.shape[1], -1)).softmax(dim=-1)
        return seconds + now() - began


def exponent(values: dict[int, int], counts: tuple[int, ...]) -> float:
    """Return the exponent p of values ~ K^p."""
    return float(np.polyfit(np.log(counts), np.log([values[K] for K in counts]), 1)[0])


def plot(
    file: Path,
    counts: tuple[int, ...],
    steps: dict[int, tuple[Spread, Spread]],
    memory: dict[int, int],
    scores: dict[int, tuple[Spread, Spread, Spread, str]],
) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of its backend

    figure, (time, space, score) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    time.plot(counts, [steps[K][0].median for K in counts], "o-")
    time.set(title="training step", ylabel="ms")
    space.plot(counts, [memory[K] / MIB for K in counts], "o-", label="measured")
    first = memory[counts[0]] / MIB
    space.plot(counts, [first * (K / counts[0]) ** 2 for K in counts], ":", color="gray", label="K^2")
    space.set(title="tensors of a step", ylabel="MiB")
    space.legend()
    score.plot(counts, [scores[K][0].median for K in counts], "o-", label="LASER")
    score.plot(counts, [scores[K][1].median for K in counts], "s--", label="one predictor")
    score.set(title="scoring a row that K/2 parties have", ylabel="microseconds")
    score.legend()
    for axes in (time, space, score):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(K) for K in counts])
        axes.set_xlabel("K parties")
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(file, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--grow"]:
        print(grow(int(sys.argv[2])))
    else:
        main(quick=quick_asked(__doc__))
