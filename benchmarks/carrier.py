"""The transport between processes: the time of a training step and of its messages alone, bytes sent, and a slow line.

Real parties run in their own processes over NVIDIA FLARE with mutual TLS; ``carrier_parts`` has their code. The last
table reads HAPT from the folder in ``ANYPARTY_DATA``.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from anyparty.core.types import Party, Roster
from anyparty.data import datasets
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder
from benchmarks.page import Page, quick_asked
from benchmarks.timing import Spread, Times

NAMES = ("p0", "p1", "p2", "p3")
ROSTER = Roster(tuple(Party(name=name) for name in NAMES), "p0")
ROUND_TRIP_S = 0.05
SETTINGS = """
[federation]
id = "id"
label = "activity"
active = "p0"
[method]
name = "laser"
embedding = 128
[encoder]
hidden = [128, 128]
[optimizer]
name = "sgd"
lr = 0.03
momentum = 0.8
[train]
epochs = {epochs}
patience = {epochs}
[parties.p0]
[parties.p1]
[parties.p2]
[parties.p3]
"""


def main(*, quick: bool) -> None:
    page = Page("carrier", "The carrier: NVIDIA FLARE between four parties' processes", quick)
    page.say(
        "Four parties on this machine, each with a site and a job process of its own, mutual TLS, one torch thread "
        "each: nine processes on the cores named above, beside whatever else runs. LASER-VFL on HAPT's shapes: 560 "
        "features in 4 equal blocks, encoders of hidden 128, 128 and embedding 128, batch 128, nothing missing, so "
        "that three embeddings of 64 KB go up and three gradients of 64 KB come down in a step. All ways of a step "
        "take turns in one job, in a fresh order each round; ratios are within a round, medians over rounds, quartiles "
        "in brackets. Times are by the clock on the wall."
    )
    result = measured(5 if quick else 15, 10 if quick else 40)
    steps(page, Times(result["seconds"]))
    weight(page, result["bytes"])
    slow_line(page, 3 if quick else 6)
    niceness = f", niceness {os.nice(0)}" if os.nice(0) else ""
    page.say(f"Load after the run: {os.getloadavg()[0]:.1f}{niceness}.")
    page.write()


def steps(page: Page, times: Times) -> None:
    abreast = min(os.cpu_count() or 1, len(NAMES))
    bare = [sum(pair) for pair in zip(times.rounds["echo"], times.rounds["compute"], strict=True)]
    shared = [echo + all_ / abreast for echo, all_ in zip(times.rounds["echo"], times.rounds["everyone"], strict=True)]
    times = Times({**times.rounds, "bare": bare, "shared": shared})
    names = {
        "step": "LASER-VFL's step, as a run does it",
        "two calls": "the same step by FLARE's own two requests",
        "echo": "the same bytes up and down over FLARE's cells, nothing else",
        "channel": "the same tensors up and down over our channel",
        "compute": "the computation of the slowest party, alone",
        "bare": "bytes over cells + slowest party's computation",
        "everyone": "the computation of all four parties, one after the other",
        "shared": f"bytes over cells + all four parties' computation, {abreast} at once",
    }
    rows = []
    for way, name in names.items():
        ours = way == "step"
        rows.append([
            name, str(times.milliseconds(way)),
            str(times.ratio(way, "bare")), judged(times.ratio(way, "bare"), 1.5) if ours else "",
            str(times.ratio(way, "two calls")), judged(times.ratio(way, "two calls"), 0.6) if ours else "",
        ])  # fmt: skip
    page.table("A step, four parties", ["", "ms a step", "x bare", "target", "x two calls", "target"], rows)
    page.say(
        f"Bare is bytes over cells + the slowest party's computation, as if every party had a core of its own. Here "
        f"{abreast} cores carry all four parties' computation, with which a step is {times.ratio('step', 'shared')} of "
        f"the last row."
    )


def judged(ratio: Spread, most: float) -> str:
    """Return the target ``most`` and a verdict: met or missed if both quartiles agree, else too noisy."""
    side = {(True, True): "met", (False, False): "MISSED"}.get((ratio.low <= most, ratio.high <= most))
    return f"<= {most:g} {side or 'too noisy to say'}"


def weight(page: Page, crossed: Mapping[str, tuple[int, int]]) -> None:
    rows = []
    for shape, (tensors, wire) in crossed.items():
        high, wide = map(int, shape.split("x"))
        messages = tensors / (4 * high * wide)
        more = (wire - tensors) / messages
        rows.append([
            f"{high} x {wide}: {4 * high * wide / 1024:.0f} KB", f"{tensors / 2**20:.1f}", f"{wire / 2**20:.1f}",
            f"{more:.0f}", f"{wire / tensors:.3f}", judged(Spread.of([wire / tensors]), 1.02),
        ])  # fmt: skip
    columns = ["float32 in a message", "MiB of tensors", "MiB on the line", "bytes more a message", "ratio", "target"]
    page.table("Bytes that crossed, both directions", columns, rows)
    page.say(
        "On the line: what the kernel counted in the TCP streams of the server's port (`ss -ti`): TLS, HTTP/2, FLARE's "
        "and our own headers, receipts and signs of life, but not TCP's own headers. FLARE's header alone is about "
        "1,000 bytes (the party's token and its signature 380; the route and both ends' names 290), ours 250, "
        "TLS and HTTP/2 40 for each 16 KB: below about 80 KB a message the target is out of reach on FLARE."
    )


def slow_line(page: Page, epochs: int) -> None:
    data = os.environ.get("ANYPARTY_DATA")
    if data is None:
        page.say("ANYPARTY_DATA names no folder with HAPT, so the slow line was not measured.")
        return
    with tempfile.TemporaryDirectory() as home:
        result = trained(Path(home), epochs)
    batches = result["batches"]
    floor = batches * ROUND_TRIP_S
    seconds = Spread.of(result["seconds"])
    ratio = Spread.of([each / floor for each in result["seconds"]])
    page.table(
        "LASER-VFL on HAPT, four parties, 50 ms from party to server and back",
        ["epochs", "batches an epoch", "batches x 50 ms, s", "an epoch, s", "ratio", "target"],
        [[str(len(result["seconds"])), str(batches), f"{floor:.2f}", str(seconds), str(ratio), judged(ratio, 1.5)]],
    )
    page.say(
        "Every passive party's connections go through a relay that holds each chunk back for 25 ms in each direction "
        "(this machine's kernel need not have netem). An epoch is the training alone, as the run's own history has it; "
        "the first one, in which connections and threads warm up, is left out."
    )


@contextmanager
def started(folder: Path) -> Iterator[Path]:
    """Run the sites of a federation on this machine."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    try:
        federation_folder.start(folder, 120)
        yield folder
    finally:
        federation_folder.stop(folder)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def measured(rounds: int, count: int) -> dict[str, Any]:
    """Let four parties run the steps in all ways, in turns; return the active party's measurements."""
    with tempfile.TemporaryDirectory() as home:
        folder, port = Path(home) / "fed", free_port()
        site = {"parts": {"train": "benchmarks.carrier_parts:turns"}, "threads": 1}
        federation_folder.init(folder, ROSTER, port=port, site=site)
        with started(folder):
            job = federation_folder.submit(folder, "", asked={"rounds": rounds, "steps": count, "port": port}, least=3)
            status = federation_folder.wait(folder, job, 1800)
            ended = federation_folder.outcome(folder, "p0", job)
    assert ended is not None, status
    assert not ended["error"], ended["sentence"]
    return dict(ended["result"])


def trained(home: Path, epochs: int) -> dict[str, Any]:
    """Train on HAPT over a slow line; return the seconds of each epoch but the first, and the batches per epoch."""
    tables = hapt(home)
    port, relay = free_port(), free_port()
    folder, path = home / "fed", home / "hapt.toml"
    path.write_text(SETTINGS.format(epochs=epochs), encoding="utf-8")
    federation_folder.init(folder, ROSTER, port=port, tables=tables, site={"threads": 1})
    for name in NAMES[1:]:
        file = folder / "kits" / name / "startup" / "fed_client.json"
        file.write_text(file.read_text().replace(f":{port}", f":{relay}"), encoding="utf-8")
    with delayed(relay, port, ROUND_TRIP_S / 2), started(folder):
        coordinator.train(folder, path)
    record = json.loads((folder / "kits" / "p0" / "runs" / "record.json").read_text(encoding="utf-8"))
    sent = [row for row in record["ledger"] if row["tag"] == "gradient" and row["receiver"] == "p1"]
    batches = sum(row["messages"] for row in sent) // epochs
    return {"seconds": [each["seconds"] for each in record["history"][1:]], "batches": batches}


def hapt(home: Path) -> dict[str, Path]:
    """Write HAPT as the tables of four parties."""
    data, tables = datasets.load("hapt"), {}
    ids = [f"window {i}" for i in range(len(data.X_train))]
    wide = data.X_train.shape[1] // 4
    for k, name in enumerate(NAMES):
        frame = pl.DataFrame(data.X_train[:, k * wide : (k + 1) * wide]).with_columns(pl.Series("id", ids))
        if k == 0:
            frame = frame.with_columns(pl.Series("activity", [f"a{y}" for y in data.y_train]))
        tables[name] = home / f"{name}.parquet"
        frame.write_parquet(tables[name])
    return tables


@contextmanager
def delayed(port: int, to: int, delay_s: float) -> Iterator[None]:
    """Relay connections and delay each chunk in both directions."""
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:

        def accept() -> None:
            while True:
                try:
                    near, _ = server.accept()
                except OSError:
                    return
                try:
                    far = socket.create_connection(("127.0.0.1", to))
                except OSError:  # the server does not listen yet
                    near.close()
                    continue
                for pair in ((near, far), (far, near)):
                    pair[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    hold(*pair, delay_s)

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)


def hold(frm: socket.socket, to: socket.socket, delay_s: float) -> None:
    """Relay the bytes received on one connection to another after a delay."""
    chunks: deque[tuple[float, bytes]] = deque()
    some = threading.Semaphore(0)

    def take() -> None:
        while True:
            try:
                data = frm.recv(1 << 18)
            except OSError:
                data = b""
            chunks.append((time.monotonic() + delay_s, data))
            some.release()
            if not data:
                return

    def give() -> None:
        while True:
            some.acquire()
            when, data = chunks.popleft()
            time.sleep(max(0.0, when - time.monotonic()))
            try:
                to.sendall(data) if data else to.shutdown(socket.SHUT_WR)
            except OSError:
                return
            if not data:
                return

    for work in (take, give):
        threading.Thread(target=work, daemon=True).start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
