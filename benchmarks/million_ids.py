"""Private alignment of four tables with a million ids each: time, memory, a killed party, and new ids.

Every party is a process of its own with a state on disk, and sends its messages through sockets on this machine. All
parties share this machine's cores, while in a real federation each party has its own machine.

    python -m benchmarks.million_ids

For the comparison with ``openmined-psi``, see ``private_alignment``.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from torch import Tensor

from anyparty.alignment import private
from anyparty.core.types import Channel, Party, Roster, Tensors, TensorSpec
from anyparty.errors import PartyLost
from anyparty.transport.codec import Header, decode, encode
from anyparty.transport.contract import ContractChannel
from benchmarks.page import Page, quick_asked, target
from benchmarks.private_alignment import beside

PARTIES, IDS, NEW, LIMIT_S, LIMIT_GIB = 4, 1_000_000, 0.01, 600, 1.5
NAMES = tuple(f"p{k}" for k in range(PARTIES))
PARTY = (sys.executable, "-m", "benchmarks.million_ids", "--party")
ROSTER = Roster(tuple(Party(name=name) for name in NAMES), NAMES[0])


@dataclass
class SocketChannel(Channel):
    """A party's channel to parties in other processes on this machine, through sockets in a folder."""

    me: str
    folder: Path
    messages: dict[tuple[str, str], asyncio.Queue[bytes | None]] = field(
        default_factory=lambda: defaultdict(asyncio.Queue)
    )
    writers: dict[str, asyncio.StreamWriter] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    async def start(self) -> SocketChannel:
        """Accept connections from all parties, and connect to all."""
        await asyncio.start_unix_server(self._accept, self.folder / self.me)
        for name in NAMES:
            while name != self.me and name not in self.writers:
                try:
                    _, self.writers[name] = await asyncio.open_unix_connection(self.folder / name)
                except OSError:
                    await asyncio.sleep(0.1)
        for writer in self.writers.values():
            self._write(writer, b"", "hello")  # the first message names the sender
        return self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frm, tag = "", ""
        try:
            while True:
                frm, tag = (await reader.readline()).decode().split()
                size = int(await reader.readline())
                self.messages[frm, tag].put_nowait(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ValueError):
            self.lost.add(frm)
            for (sender, _), queue in list(self.messages.items()):
                if sender == frm:
                    queue.put_nowait(None)
        finally:
            writer.close()

    def _write(self, writer: asyncio.StreamWriter, data: bytes, tag: str) -> None:
        writer.writelines([f"{self.me} {tag}\n{len(data)}\n".encode(), data])

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send a message, and wait until the socket accepts it."""
        try:
            self._write(self.writers[to], encode(Header(run="r", frm=self.me, to=to, tag=tag, number=0), tensors), tag)
            await self.writers[to].drain()
        except ConnectionError:
            raise PartyLost(to, "its process has ended") from None

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the next message."""
        queue = self.messages[frm, tag]
        data = None if frm in self.lost and queue.empty() else await queue.get()
        if data is None:
            raise PartyLost(frm, "its process has ended")
        return decode(data).tensors

    async def close(self) -> None:
        """Close the connections to all parties."""
        for writer in self.writers.values():
            writer.close()


def ids(k: int, n: int, new: int) -> pl.Series:
    """Return n ids of party k, of which it shares half with each neighbour, and some that no other party has."""
    numbers = pl.concat([pl.int_range(n, eager=True) + k * (n // 2), pl.int_range(new, eager=True) + (k + 10) * n])
    return pl.select(pl.format("id-{}", numbers)).to_series()


def party(me: str, folder: str, n: str, new: str, batch: str) -> None:
    """Align one party; print its progress, and at the end its measurements."""
    own = ids(NAMES.index(me), int(n), int(new))
    before = _peak()

    def progress(done: int, total: int) -> None:
        print(f"{done} {total}", flush=True)

    async def run() -> int:
        channel: Channel = ContractChannel(
            await SocketChannel(me, Path(folder) / "sockets").start(), ROSTER, private.MESSAGES
        )
        found = await private.align(
            channel, ROSTER, own, salt="benchmark", batch=int(batch), progress=progress, state=Path(folder) / me
        )
        await channel.close()
        return found.n

    used = _cpu()
    rows = asyncio.run(run())
    print(json.dumps({"cpu": _cpu() - used, "before": before, "peak": _peak(), "rows": rows}), flush=True)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Outcome:
    """The measurements of one alignment.

    Attributes:
        seconds: from the start of the processes to the end of the last one.
        cpu: CPU seconds of each party that finished, without the start of its process.
        peak: the largest peak memory of a party, in GiB.
        before: the largest memory of a party before the alignment, in GiB.
        rows: number of aligned rows, N; 0 if a party was killed.
        share: the largest share of its work that a party had done.
        first: the smallest share of its work that a party had done at its first report, in an interrupted run too.
    """

    seconds: float
    cpu: float
    peak: float
    before: float
    rows: int
    share: float
    first: float


def align(folder: Path, n: int, new: int, batch: int, kill_at: float = 2.0) -> Outcome:
    """Run all parties; kill the last one with SIGKILL when it has done the share ``kill_at`` of its work."""
    sockets = folder / "sockets"
    sockets.mkdir(exist_ok=True)
    for old in sockets.iterdir():
        old.unlink()
    began = time.perf_counter()
    settings = [str(folder), str(n), str(new), str(batch)]
    errors = subprocess.DEVNULL if kill_at < 1 else None
    running = [
        subprocess.Popen([*PARTY, name, *settings], stdout=subprocess.PIPE, stderr=errors, text=True)  # noqa: S603
        for name in NAMES
    ]
    reports = asyncio.run(_follow(running, kill_at, began))
    for each in running:
        each.communicate()
    done = [report for report in reports if "cpu" in report]
    share = max(report.get("share", 0.0) for report in reports)
    return Outcome(
        time.perf_counter() - began,
        sum(each["cpu"] for each in done),
        max((each["peak"] for each in done), default=0.0),
        max((each["before"] for each in done), default=0.0),
        done[0]["rows"] if len(done) == PARTIES else 0,
        share,
        min(report.get("first", 0.0) for report in reports),
    )


async def _follow(running: Sequence[subprocess.Popen[str]], kill_at: float, began: float) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(asyncio.to_thread(_read, each, kill_at, began) for each in running)))


def _read(process: subprocess.Popen[str], kill_at: float, began: float) -> dict[str, Any]:
    """Read a party's lines; kill it at the share ``kill_at`` if it is the last party."""
    report: dict[str, Any] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return {**report, **json.loads(line)}
        done, total = map(int, line.split())
        report["share"] = done / total
        report.setdefault("first", report["share"])
        if sys.stderr.isatty():
            left = (time.perf_counter() - began) * (total - done) / done
            print(f"\r{done / total:4.0%}, about {left:,.0f} s left ", end="", file=sys.stderr)
        if report["share"] >= kill_at and NAMES[-1] in process.args:  # type: ignore[operator]
            process.send_signal(signal.SIGKILL)
    return report


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ap") as made:
        yield Path(made)


def row(name: str, out: Outcome, whole: Outcome | None = None, goal: str = "") -> list[str]:
    share = "" if whole is None or not out.cpu else f"{out.cpu / whole.cpu:.1%}"
    cells = [f"{out.cpu:,.0f}", share, f"{out.peak:.2f}", f"{out.before:.2f}", f"{out.rows:,}"]
    return [name, f"{out.seconds:,.0f}", *(cells if out.cpu else ["", "", "", "", ""]), goal]


COLUMNS = ["", "s", "CPU s, all parties", "of the whole", "GiB, largest party", "GiB before", "rows", "target"]


def table(page: Page, n: int, batch: int) -> Outcome:
    """Align n ids of each party, and then some new ids; return the measurements of the first alignment."""
    new = int(n * NEW)
    with _folder() as folder:
        whole, added = align(folder, n, 0, batch), align(folder, n, new, batch)
    assert added.rows == whole.rows + PARTIES * new
    goal = f"{target(whole.seconds, LIMIT_S)} s" if n == IDS else ""
    rows = [row("whole", whole, whole, goal), row(f"{new:,} new ids each", added, whole)]
    page.table(f"{PARTIES} x {n:,} ids, batches of {batch:,}", COLUMNS, rows)
    memory = target(max(whole.peak, added.peak), LIMIT_GIB)
    page.say(f"CPU seconds on {os.cpu_count()} idle cores: about {whole.cpu / (os.cpu_count() or 1):,.0f} s for the "
             f"whole. Memory of the largest party, in GiB: {memory}.")  # fmt: skip
    return whole


def killed(page: Page, n: int, batch: int, whole: Outcome) -> None:
    """Kill a party during an alignment of n ids of each party, and align again."""
    with _folder() as folder:
        cut = align(folder, n, 0, batch, kill_at=0.6)
        again = align(folder, n, 0, batch)
    rows = [row(f"one party killed at {cut.share:.0%}", cut), row("the same, started again", again, whole)]
    page.table(f"{PARTIES} x {n:,} ids, with a killed party", COLUMNS, rows)


def main() -> None:
    """Run all measurements; the page is saved after each of them, because the last ones take long."""
    quick = quick_asked(__doc__)
    page = Page("million_ids", "Private alignment of a million ids", quick)
    page.say(
        "Neighbouring parties share half their ids. Every party is a process with its state on disk. Seconds: by the "
        "clock, with the start of the processes. CPU seconds: without the start; they depend little on other jobs on "
        "the machine. GiB: peak of the whole process, and its peak before the alignment. The active party "
        "has the largest peak. Killed: the last party gets SIGKILL, the others end with an error, and all start again "
        "with the same command."
    )
    small = 5_000 if quick else IDS // 10
    sizes = [(small, small // 12)] if quick else [(IDS, private.BATCH), (small, small // 12)]
    whole = []
    for n, batch in sizes:
        whole.append(table(page, n, batch))
        page.write()
    beside(page, small * 3 // 10, 3)
    for (n, batch), each in reversed(list(zip(sizes, whole, strict=True))):
        killed(page, n, batch, each)
        page.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--party"]:
        party(*sys.argv[2:])
    else:
        main()
