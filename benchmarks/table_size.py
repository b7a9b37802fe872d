"""Time and memory to read one party's table of 10 million rows from CSV and from Parquet."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from anyparty.tables.table import read_table
from benchmarks.page import Page, quick_asked

GIB = 2**30


def main(*, quick: bool) -> None:
    n = 20_000 if quick else 10_000_000
    page = Page("table_size", f"a table of {n:,} rows", quick)
    rows = []
    with tempfile.TemporaryDirectory(prefix="anyparty-size-") as folder:
        for kind in ("csv", "parquet"):
            path = write_table(Path(folder), n, kind)
            command = [sys.executable, "-m", "benchmarks.table_size", "--read", str(path)]
            made = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own program
            seconds, processor, peak = json.loads(made.stdout)
            size = path.stat().st_size / GIB
            rows.append([kind, f"{size:.2f}", f"{seconds:.1f}", f"{processor:.1f}", f"{peak:.2f}"])
    page.say(
        f"{n:,} rows of one party: a whole number as id, three columns of numbers and one of 8 categories. Each file "
        "is read in its own process; *peak* is the greatest resident size of this process (1 GiB = 2^30 bytes)."
    )
    page.table("Reading the table", ("file", "size, GiB", "s", "processor s", "peak, GiB"), rows)
    page.write()


def write_table(folder: Path, n: int, kind: str) -> Path:
    """Write the table and return its path."""
    random = np.random.default_rng(0)
    numbers = {name: random.normal(size=n).round(4) for name in ("a", "b", "c")}
    levels = pl.Series("level", list("pqrstuvw")).gather(random.integers(0, 8, n))
    frame = pl.DataFrame({"id": np.arange(n), **numbers, "level": levels})
    path = folder / f"table.{kind}"
    getattr(frame, f"write_{kind}")(path)
    return path


def read(path: Path) -> tuple[float, float, float]:
    """Read a table; return the wall-clock seconds, the CPU seconds, and the peak memory in GiB."""
    start, processor = time.perf_counter(), time.process_time()
    table = read_table(path, party="bank", id="id")
    assert len(table)
    taken = time.perf_counter() - start, time.process_time() - processor
    return *taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


if __name__ == "__main__":
    if "--read" in sys.argv:
        print(json.dumps(read(Path(sys.argv[-1]))))
    else:
        main(quick=quick_asked(__doc__))
