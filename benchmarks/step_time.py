"""The time of a training step: LASER-VFL and other methods, compared with Standard VFL and with a plain loop."""

from __future__ import annotations

import math

import torch

from anyparty.methods.method import Batch
from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Contender, Times, alternate, torch_threads
from benchmarks.trainers import Coroutines, OneGraph, PlainLoop, embeddings, loss_of
from benchmarks.worlds import Model, World

OURS = {4: 1.6, 8: 2.0}  # target: greatest ratio of LASER-VFL's step to Standard VFL's, by K
LOSES = {4: 1.4, 8: 2.0}  # target: smallest ratio of the plain loop's step to ours, by K


def main(*, quick: bool) -> None:
    page = Page("step_time", "A training step, against Standard VFL's", quick)
    check_reference()
    page.say(
        "HAPT's shapes: 560 features in K equal blocks, encoders of hidden 128, 128 and embedding 128, 12 classes, "
        "batch 128, SGD with momentum. All parties are coroutines in one process, channels guarded and counted as in a "
        "run. Ratios are medians over rounds in which the contenders take turns, quartiles in brackets. With one torch "
        "thread, times are that thread's own; with two, of the clock on the wall, and no target is judged: "
        "threads that wait for each other tell more of a machine's other jobs than of ours. Standard VFL always trains "
        "on rows that everybody has. *plain loop* is LASER-VFL written as a loop over heads and sampled subsets in one "
        "autograd graph, without parties or messages (`benchmarks/trainers.py`); *one graph* is our own loss in such a "
        "graph: the like-for-like neighbour of the plain loop."
    )
    for threads in (1,) if quick else (1, 2):
        rows = []
        for K in (4, 8):
            for missing in (0.0, 0.3):
                with torch_threads(threads):
                    times = alternate(
                        contenders(K, missing, few=quick or threads > 1), 3 if quick else 21, 0.03 if quick else 0.12
                    )
                rows += [*report(K, missing, times, judged=threads == 1), []]
        heading = f"Step time, {threads} torch thread{'s' if threads > 1 else ''}"
        columns = ("K, missing", "method", "ms a step", "x Standard", "target", "x LASER", "target")
        page.table(heading, columns, rows[:-1])
    page.say(
        "Targets: LASER at most 1.6 (K = 4) and 2.0 (K = 8) times Standard, where the authors' program takes 2.0 and "
        "4.0; the plain loop at least 1.4 (K = 4) and 2 (K = 8) times LASER as it runs, messages and all."
    )
    page.write()


def contenders(K: int, missing: float, *, few: bool) -> dict[str, Contender]:
    full, world = World.of(K), World.of(K, missing)
    every: dict[str, Contender] = {
        "Standard": Coroutines(Model.of(full, "standard")),
        "LASER": Coroutines(Model.of(world, "laser")),
        "LASER, one graph": OneGraph(Model.of(world, "laser")),
        "LASER, plain loop": PlainLoop(Model.of(world, "laser")),
        "Local, Ensemble": Coroutines(Model.of(world, "local")),
        "PlugVFL": Coroutines(Model.of(world, "plug")),
    }
    if K <= 4 or not few:
        every["LASER, all subsets"] = Coroutines(Model.of(world, "laser", tasks="all"))
        every["Combinatorial"] = Coroutines(Model.of(world, "combinatorial"))
    return every


def report(K: int, missing: float, times: Times, *, judged: bool) -> list[list[str]]:
    rows = []
    for name in times.rounds:
        ratio, loses = times.ratio(name, "Standard"), times.ratio(name, "LASER")
        rows.append([
            f"{K}, {missing:.0%}", name, str(times.milliseconds(name)),
            str(ratio), target(ratio, OURS[K]) if judged and name == "LASER" else "",
            str(loses), target(loses, least=LOSES[K]) if judged and name == "LASER, plain loop" else "",
        ])  # fmt: skip
    return rows


def check_reference(draws: int = 300) -> None:
    """Check that the plain loop's mean over many draws equals the exact sum over all subsets."""
    for missing in (0.0, 0.3):
        model = Model.of(World.of(4, missing, n=512), "laser", tasks="all")
        batch, loop = model.batches(1)[0], PlainLoop(model)
        h, observed, y = embeddings(model, batch)
        exact = loss_of(model, batch, h, observed, y).detach()
        drawn = [loop.loss(Batch(batch.rows, model.seeds, ("train", 0, i))).detach().double() for i in range(draws)]
        estimates = torch.stack(drawn)
        error = float(estimates.mean() - exact)
        assert abs(error) < 4 * float(estimates.std()) / math.sqrt(draws) + 1e-6, (missing, error)


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
