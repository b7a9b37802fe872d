"""Time until anyparty is ready, for imports and quick commands, beside its libraries: python -m benchmarks.startup.

Every start is a process of its own. The contenders take turns in a new order in every round, after one warm-up start of
each, which compiles its modules and fills the file cache.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Spread

LIBRARIES = "import torch, polars"
STARTS: dict[str, tuple[list[str], float | None]] = {
    LIBRARIES: (["-c", LIBRARIES], None),
    "import anyparty": (["-c", "import anyparty"], 0.3),
    "from anyparty import Federation": (["-c", "from anyparty import Federation"], 1.5),
    "anyparty --help": (["-m", "anyparty", "--help"], 0.5),
    "anyparty methods": (["-m", "anyparty", "methods"], 1.0),
}
"""The words after ``python`` of each start, and the most seconds that it should take."""


def start(words: list[str], compiled: str) -> tuple[float, float]:
    """Run Python with the arguments ``words``; return wall-clock and CPU seconds.  ``compiled`` keeps the bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = compiled
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True)  # noqa: S603
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(*, quick: bool) -> None:
    """Time all starts, and write the page."""
    page = Page("startup", "Imports and quick commands", quick)
    rounds = 2 if quick else 7
    order, lots = list(STARTS), random.Random(0)  # noqa: S311 - the order is not a secret
    wall: dict[str, list[float]] = {name: [] for name in STARTS}
    cpu: dict[str, list[float]] = {name: [] for name in STARTS}
    with TemporaryDirectory() as compiled:
        for name in order:
            start(STARTS[name][0], compiled)
        for _ in range(rounds):
            lots.shuffle(order)
            for name in order:
                taken = start(STARTS[name][0], compiled)
                wall[name].append(taken[0])
                cpu[name].append(taken[1])
    page.say(
        f"{rounds} starts of each, in turns; medians and quartiles. CPU seconds are user and system time, which "
        f"other processes affect less than wall-clock time. The ratio compares CPU times in one round with "
        f"`{LIBRARIES}`, which every training run needs. On one thread an idle machine takes about the CPU time, so "
        "the targets are for CPU seconds."
    )
    rows = []
    for name, (_, most) in STARTS.items():
        ratio = Spread.of([a / b for a, b in zip(cpu[name], cpu[LIBRARIES], strict=True)])
        own = Spread.of(cpu[name])
        rows.append([f"`{name}`", str(own), str(ratio), target(own, most), str(Spread.of(wall[name]))])
    page.table("Seconds to start", ["start", "CPU seconds", "ratio", "target", "wall-clock seconds"], rows)
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
