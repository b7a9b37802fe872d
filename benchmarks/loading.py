"""Time to read and cut each data set, after the first time: python -m benchmarks.loading.

A separate process reads every data set as a run does: it checks the sha256 of files, decompresses them, splits rows and
cuts them into four parties' blocks. The page lists data sets whose files are missing. Needs ANYPARTY_DATA.
"""

from __future__ import annotations

import subprocess
import sys

from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.errors import TableError
from anyparty.experiments.party_tables import blocks_of
from benchmarks.page import Page, quick_asked
from benchmarks.timing import Spread

MOST_S, PARTIES = 5.0, 4
CUTS = {"cifar10": "quadrants", "cifar100": "quadrants", "fashion-mnist": "quadrants"}
TRACES = ("google-cluster",)  # this data set has CPU use over time, and no table to cut
ONE = "import sys; from benchmarks.loading import seconds; print(seconds(sys.argv[1]))"


def seconds(name: str) -> str:
    """Return the seconds to read one data set in this process and its rows, or the reason why it is missing."""
    import time  # noqa: PLC0415 - the clock starts after the imports

    began = time.perf_counter()
    try:
        data = datasets.load(name, download=False, progress=False).split(Seeds(0))
    except TableError as error:
        return f"- {str(error).splitlines()[0]}"
    rows = 0
    for X in (data.X_train, data.X_test):
        if X is not None:
            rows += len(blocks_of(X, CUTS.get(name, "columns"), PARTIES)[0])
    return f"{time.perf_counter() - began} {rows}"


def in_a_process(name: str) -> list[str]:
    """Return the seconds and the rows, or "-" and the reason."""
    words = [sys.executable, "-c", ONE, name]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().split(" ", 1)  # noqa: S603


def main(*, quick: bool) -> None:
    page = Page("loading", "Reading and cutting the data sets", quick)
    times = 1 if quick else 5
    page.say(
        f"Seconds by the clock on the wall, {times} process(es) each, medians and quartiles; imports are not counted."
    )
    rows, absent = [], []
    for name in (name for name in datasets.NAMES if name not in TRACES):
        results = [in_a_process(name) for _ in range(times)]
        if results[0][0] == "-":
            absent.append(name)
            continue
        took = Spread.of([float(each[0]) for each in results])
        rows.append([name, results[0][1], str(took), "met" if took.high <= MOST_S else "MISSED"])
    page.table(f"Seconds to {PARTIES} parties' blocks", ["data set", "rows", "seconds", f"<= {MOST_S:g} s"], rows)
    if absent:
        page.say(f"Not on this machine: {', '.join(absent)}.")
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
