"""Private alignment: ids per second, memory and bytes, all parties on one machine; compared with ``openmined.psi``.

Every measurement runs in a separate process, so that its memory is measured separately. ``openmined-psi`` is not a
dependency; install it in a separate environment and name that environment's Python:

    python -m venv /tmp/psi && /tmp/psi/bin/pip install openmined-psi
    PSI_PYTHON=/tmp/psi/bin/python python -m benchmarks.private_alignment
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from anyparty.alignment import private
from anyparty.alignment.x25519 import Secret, blind, hashed
from anyparty.core.types import ChannelWrapper, Party, Roster, Tensors, TensorSpec
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from benchmarks.page import Page, quick_asked, target

ROUNDS = 3

PSI = """
import json, resource, sys, time
import private_set_intersection.python as psi

n = int(sys.argv[1])
ours, theirs = [f"id-{i}" for i in range(n)], [f"id-{i}" for i in range(n // 2, n + n // 2)]
began = time.perf_counter()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-9, n, theirs, psi.DataStructure.RAW)
response = server.ProcessRequest(client.CreateRequest(ours))
shared = len(client.GetIntersection(setup, response))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": used.ru_utime + used.ru_stime, "shared": shared,
                  "version": psi.__version__}))
"""


@dataclass
class _Transit:
    """The number of bytes in transit between all parties, now and at most."""

    now: int = 0
    most: int = 0
    total: int = 0

    def add(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)
        self.total += max(count, 0)


@dataclass
class _Weighed(ChannelWrapper):
    """A channel that counts the bytes in transit."""

    transit: _Transit

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        self.transit.add(sum(tensor.nbytes for tensor in tensors.values()))
        return await super().send(to, tag, tensors)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
        tensors = await super().recv(frm, tag, expect)
        self.transit.add(-sum(tensor.nbytes for tensor in tensors.values()))
        return tensors


def align(parties: int, n: int, batch: int) -> dict[str, float]:
    """Align tables in this process, of which neighbours share half of their ids; return the measurements."""
    names = [f"p{k}" for k in range(parties)]
    roster = Roster(tuple(Party(name=name) for name in names), names[0])
    ids = {name: [f"id-{i}" for i in range(k * (n // 2), k * (n // 2) + n)] for k, name in enumerate(names)}
    parts = {
        name: partial(private.align, roster=roster, ids=own, salt="benchmark", batch=batch) for name, own in ids.items()
    }
    transit = _Transit()
    before, used = _peak(), _cpu()
    began = time.perf_counter()
    found = memory.play(parts, lambda channel: ContractChannel(_Weighed(channel, transit), roster, private.MESSAGES))
    seconds, cpu = time.perf_counter() - began, _cpu() - used
    assert found[names[0]].n == n + (parties - 1) * (n // 2)
    return {
        "seconds": seconds,
        "cpu": cpu,
        "curve": _curve(n, parties),
        "memory": _peak() - before,
        "most": transit.most / 2**20,
        "bytes": transit.total / (parties * n),
    }


def _curve(n: int, parties: int) -> float:
    """Return the CPU seconds of the arithmetic: an id is hashed once, and its point is blinded K + 1 times, or K times
    at the passive one of two parties, which has no other party to visit.
    """
    few = [f"id-{i}" for i in range(4_000)]
    began = time.thread_time()
    points = hashed(few, "benchmark")
    hashing = time.thread_time() - began
    blind(Secret.of().scalar, points)
    blinding = time.thread_time() - began - hashing
    blinded = parties * (parties + 1) - (1 if parties == 2 else 0)
    return n / len(few) * (parties * hashing + blinded * blinding)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(*numbers: int) -> dict[str, float]:
    """Run ``align`` in a separate process."""
    code = f"import json; from benchmarks.private_alignment import align; print(json.dumps(align{numbers}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    return dict(json.loads(done.stdout))


def psi(n: int) -> dict[str, float] | None:
    """Run ``openmined.psi``, both parties in one process; return ``None`` if it is not installed."""
    python = os.environ.get("PSI_PYTHON", sys.executable)
    done = subprocess.run([python, "-c", PSI, str(n)], check=False, capture_output=True, text=True)  # noqa: S603
    return dict(json.loads(done.stdout)) if done.returncode == 0 else None


def table(page: Page, sizes: list[tuple[int, int, int]], goal: tuple[int, int]) -> None:
    rows = []
    for parties, n, batch in sizes:
        took = measured(parties, n, batch)
        rows.append([
            f"{parties} x {n:,}", f"{batch:,}", f"{took['seconds']:.1f}", f"{parties * n / took['seconds']:,.0f}",
            f"{took['cpu']:.1f}", f"{took['curve']:.1f}", f"{took['most']:.1f}", f"{took['memory']:.0f}",
            f"{took['bytes']:.0f}", target(took["seconds"], 60) if (parties, n) == goal else "",
        ])  # fmt: skip
    columns = ["parties x ids", "batch", "s", "ids a s", "CPU s", "the curve alone", "MiB on their way", "MiB more",
               "bytes an id", "target"]  # fmt: skip
    page.table("All parties in one process", columns, rows)
    page.say(
        "Neighbouring parties share half their ids. Ids a second: of all tables together, by the clock. CPU seconds: "
        "of all parties together, which depend little on what else the machine does, and halve on two idle cores; "
        "beside them, what hashing and blinding alone take in one loop. On their way: most bytes in messages at any "
        "time. MiB more: the process's peak beyond what it held with the ids made, for all parties. Bytes an id: all "
        "that crossed, by all ids of all tables; a point has 32."
    )


def beside(page: Page, n: int, rounds: int) -> None:
    pairs = [(measured(2, n, private.BATCH), psi(n)) for _ in range(rounds)]
    theirs = [each for _, each in pairs if each is not None]
    if not theirs:
        page.say("openmined.psi is not installed here, so nothing stands beside ours: see the program's first lines.")
        return
    assert all(each["shared"] == n - n // 2 for each in theirs)
    rows = []
    for name, runs in {
        "anyparty": [each for each, _ in pairs],
        f"openmined.psi {theirs[0]['version']}": theirs,
    }.items():
        seconds, cpu = (sorted(run[what] for run in runs) for what in ("seconds", "cpu"))
        rows.append([name, *(f"{each[len(each) // 2]:.1f} ({each[0]:.1f}..{each[-1]:.1f})" for each in (seconds, cpu))])
    page.table(f"Two parties x {n:,} ids, in turns, {rounds} rounds", ["", "s (least..most)", "CPU s, both"], rows)
    ratios = sorted(other["cpu"] / own["cpu"] for own, other in pairs if other is not None)
    page.say(
        f"CPU seconds of openmined.psi divided by those of anyparty: {ratios[len(ratios) // 2]:.2f} "
        f"({ratios[0]:.2f}..{ratios[-1]:.2f}). "
        "openmined.psi: both parties one after the other in one process, its raw set (exact); one party learns which "
        "of its ids the other has. anyparty: both parties on both cores, and the result is the alignment."
    )


def main() -> None:
    quick = quick_asked(__doc__)
    page = Page("private_alignment", "Private alignment: ids a second", quick)
    n = 5_000 if quick else 100_000
    table(page, [(2, n, 65_536), (4, n // 10, 65_536), (4, n, 65_536), (4, n, 8_192)], (4, 100_000))
    beside(page, 3 * n // 10, ROUNDS)
    page.write()


if __name__ == "__main__":
    main()
