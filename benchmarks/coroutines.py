"""The cost of running the parties as coroutines, compared with the same mathematics in one autograd graph."""

from __future__ import annotations

from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Contender, alternate, torch_threads
from benchmarks.trainers import Coroutines, Cut, OneGraph
from benchmarks.worlds import Model, World

MOST = 1.25


def main(*, quick: bool) -> None:
    page = Page("coroutines", "Parties as coroutines, against one autograd graph", quick)
    page.say(
        "The same modules, loss, batches and optimizers three times. *coroutines*: as a run does it, every message "
        "copied, counted and checked. *one graph*: one owner of all data, one backward pass, nothing copied. *cut*: "
        "one owner, but a graph of its own for every party, embeddings copied up and gradients down: what vertical "
        "federated learning asks of torch with no carrier at all. The three end with the same weights (checked first: "
        "to a millionth). Ratios are medians over rounds in which they take turns, quartiles in brackets. "
        "With one torch thread, times are that thread's own; with two, of the clock on the wall, and "
        "no target is judged: threads that wait for each other tell more of a machine's other jobs than of ours."
    )
    for name in ("laser", "standard"):
        check_same_weights(name)
    for threads in (1,) if quick else (1, 2):
        rows = [
            [name, f"{K}, {missing:.0%}", *measure(name, K, missing, threads, quick)]
            for name, absences in (("laser", (0.0, 0.3)), ("standard", (0.0,)))
            for K in (4, 8)
            for missing in absences
        ]
        columns = ("method", "K, missing", "one graph, ms", "coroutines, ms", "coroutines x one graph", "target")
        heading = f"Step time, {threads} torch thread{'s' if threads > 1 else ''}"
        page.table(heading, (*columns, "cut x one graph", "coroutines x cut"), rows)
    page.say(
        "Where the target is missed, *cut x one graph* says how much of the time no carrier could save: a backward "
        "pass and an optimizer step of each party's own, on networks so small that each takes a tenth of a millisecond."
    )
    page.write()


def measure(name: str, K: int, missing: float, threads: int, quick: bool) -> list[str]:
    world = World.of(K, missing)
    every: dict[str, Contender] = {
        "one graph": OneGraph(Model.of(world, name)),
        "cut": Cut(Model.of(world, name)),
        "coroutines": Coroutines(Model.of(world, name)),
    }
    with torch_threads(threads):
        times = alternate(every, 5 if quick else 25, 0.03 if quick else 0.12)
    ratio = times.ratio("coroutines", "one graph")
    return [
        str(times.milliseconds("one graph")), str(times.milliseconds("coroutines")), str(ratio),
        target(ratio, MOST) if threads == 1 else "",
        str(times.ratio("cut", "one graph")), str(times.ratio("coroutines", "cut")),
    ]  # fmt: skip


def check_same_weights(name: str) -> None:
    models = [Model.of(World.of(4, 0.3 if name == "laser" else 0.0), name) for _ in range(3)]
    Coroutines(models[0])(10)
    Cut(models[1])(10)
    OneGraph(models[2])(10)
    for one, *others in zip(*(model.parameters() for model in models), strict=True):
        assert all((one - other).abs().max() < 1e-6 for other in others)


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
