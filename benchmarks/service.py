"""The prediction service: milliseconds for one id, over HTTP on loopback, from processes with mutual TLS between them.

Three parties with 20,000 rows run as ``anyparty federate`` starts them, the service runs in its own process, and one
client requests one id after the other over one connection. A hanging party is a stopped process (SIGSTOP): its machine
replies, but the party does not.

With ``--clients``, many clients request 1 or 100 ids at the same time, each over its own connection, and the page is
``serving``.  ``--before FOLDER`` names the ``src`` folder of an earlier version, which is measured in alternation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from anyparty import config as settings
from anyparty.api.federation import Federation
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder as flare
from anyparty.errors import ConfigError
from anyparty.serving.http_server import application, listening_socket
from anyparty.serving.service_settings import ServiceLimits
from benchmarks.page import Page, quick_asked, target

ROWS, COLUMNS, BUDGET_MS = 20_000, 20, 100
NAMES = ("bank", "shop", "clinic")
SETTINGS = """
[federation]
label = "y"
active = "bank"
[method]
name = "laser"
[train]
epochs = 1
batch_size = 1024
"""
NOTE = "the clock on the wall, so that other jobs on the machine count: read the load above"


def made(home: Path, rows: int) -> Path:
    """Write three parties' tables and settings; return the settings."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, COLUMNS * len(NAMES)))
    text = SETTINGS
    for k, name in enumerate(NAMES):
        columns = {f"{name}{c}": x[:, k * COLUMNS + c] for c in range(COLUMNS)}
        label = {"y": (x.sum(axis=1) > 0).astype(int)} if name == "bank" else {}
        pl.DataFrame({"id": [f"c{i}" for i in range(rows)], **columns, **label}).write_csv(home / f"{name}.csv")
        text += f'[parties.{name}]\ntable = "{name}.csv"\n'
    (home / "federation.toml").write_text(text, encoding="utf-8")
    return home / "federation.toml"


class Times(NamedTuple):
    """Milliseconds of requests, and the number of predictions that used all available parties."""

    ms: list[float]
    whole: int


class Client:
    """One connection to a service."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the service's reply."""
        words = None if body is None else json.dumps(body)
        self.connection.request("POST" if body else "GET", path, words, {"content-type": "application/json"})
        return json.loads(self.connection.getresponse().read())

    def until(self, parties: int, timeout_s: float = 300.0) -> None:
        """Wait until a number of parties are connected."""
        end = time.monotonic() + timeout_s
        while sum(why == "connected" for why in self.ask("/ready")["parties"].values()) != parties:
            if time.monotonic() > end:
                raise ConfigError(f"the parties did not appear within {timeout_s:g} s")
            time.sleep(0.5)

    def times(self, rounds: int, there: set[str], **how: Any) -> Times:
        """Return the milliseconds of ``rounds`` requests for one id, and how many answers used all of ``there``."""
        found, whole, lots = [], 0, np.random.default_rng(1)
        for row in lots.integers(0, 1000, rounds):
            began = time.perf_counter()
            (answer,) = self.ask("/predict", {"ids": [f"c{row}"], **how})["answers"]
            found.append(1e3 * (time.perf_counter() - began))
            assert set(answer["took_part"]) <= there, answer
            whole += set(answer["took_part"]) == there  # on a busy machine a party may answer too late
        return Times(found, whole)


@contextmanager
def service(place: Path, *, after: int = 3) -> Iterator[Client]:
    """Serve in a separate process; a party that missed ``after`` requests in a row is skipped."""
    command = [sys.executable, "-m", "benchmarks.service", "--serve", str(place), str(after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield Client(int(re.findall(r"\d+", line)[-1]))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def serve_here(place: str, after: int) -> None:
    """Serve until Ctrl-C; print the port on standard output."""
    import torch  # noqa: PLC0415
    import uvicorn  # noqa: PLC0415

    torch.set_num_threads(1)
    app = application(place, limits=ServiceLimits(budget_ms=BUDGET_MS))  # with smaller budgets, misses do not count
    app.state.predictor.breaker.after = after
    with listening_socket("127.0.0.1", 0) as listener:
        print(listener.getsockname()[1], flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listener])


@contextmanager
def federation(home: Path, rows: int) -> Iterator[Path]:
    """Start and train a federation."""
    house, config = home / "house", made(home, rows)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for kit in coordinator.init(config, house, port=port).values():
        own = kit / "local" / "anyparty.toml"
        if own.exists():
            own.write_text(own.read_text() + "threads = 1\n[patience]\nsilent_s = 600.0\n", encoding="utf-8")
    try:
        flare.start(house, 240.0)
        coordinator.train(house, config)
        yield house
    finally:
        flare.stop(house)


@contextmanager
def hanging(house: Path, party: str) -> Iterator[None]:
    """During the ``with`` block, stop a party's process in the job with SIGSTOP."""
    kit = str((house / "kits" / party).resolve())
    found = [each for each in flare.processes(house)
             if kit in (words := " ".join(each.cmdline())) and "worker_process" in words]  # fmt: skip
    assert found
    for process in found:
        process.suspend()
    try:
        yield
    finally:
        for process in found:
            process.resume()


def alone(house: Path, home: Path) -> Path:
    """Return a copy of the active party's kit without a federation."""
    kit = home / "alone" / "kits" / "bank"
    shutil.copytree(house / "kits" / "bank", kit, ignore=shutil.ignore_patterns("internal"))
    return kit


def main(*, quick: bool) -> None:
    page = Page("service", "Prediction service: milliseconds for one id", quick)
    rounds, rows = (40, 2_000) if quick else (500, ROWS)
    everybody, found = set(NAMES), []
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), rows) as house:
        with service(alone(house, Path(folder))) as client:
            client.times(20, {"bank"})
            found.append(("the active party's own block, nobody else there", client.times(rounds, {"bank"}), 10.0))
        for after in (10**9, 3):
            with service(house, after=after) as client:
                client.until(2)
                client.times(20, everybody, budget_ms=5_000)
                if after > 3:
                    times = client.times(rounds, everybody, budget_ms=5_000)
                    found.append(("all three parties", times, 60.0))
                with hanging(house, "shop"):
                    times = client.times(rounds, everybody - {"shop"}, budget_ms=BUDGET_MS)
                waits = "all requests wait" if after > 3 else "nobody waits any more after 3"
                found.append((f"one of three hangs, budget {BUDGET_MS} ms, {waits}", times, BUDGET_MS + 20.0))
    page.table(
        f"{rounds} requests each, {rows:,} rows, one client",
        ["who answers", "by all of them", "p50", "p90", "p99", "most", "p99, target"],
        [[what, str(times.whole), *(f"{np.percentile(times.ms, q):.1f}" for q in (50, 90, 99, 100)),
          target(float(np.percentile(times.ms, 99)), most)] for what, times, most in found],
    )  # fmt: skip
    page.say(f"Milliseconds by {NOTE} ({os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores, on which all "
             "parties, the service and the client run too). The parties are processes with mutual TLS over FLARE; "
             "between service and client is plain HTTP. With one party hanging, a request waits for the whole budget "
             "and is answered without it; as the service comes, it stops to wait after three misses in a row, and asks "
             "that party in the background.")  # fmt: skip
    page.write()


# ---- many clients


CLIENTS, IDS, ROUNDS = (1, 8, 64), (1, 100), 3


class Load(NamedTuple):
    """The requests of one measurement: milliseconds of the answered ones, seconds in all, and other counts."""

    ms: list[float]
    seconds: float
    refused: int
    whole: int

    @classmethod
    def total(cls, loads: list[Load]) -> Load:
        """Add several measurements."""
        ms = [each for load in loads for each in load.ms]
        seconds, refused, whole = (sum(column) for column in list(zip(*loads, strict=True))[1:])
        return cls(ms, seconds, refused, whole)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.ms) / self.seconds

    def cells(self) -> list[str]:
        """Return p50, p99, answers per second, refusals, and the share of answers of all parties."""
        p50, p99 = np.percentile(self.ms, (50, 99)) if self.ms else (np.nan, np.nan)
        share = self.whole / max(len(self.ms), 1)
        return [f"{p50:.1f}", f"{p99:.1f}", f"{self.rate:.0f}", str(self.refused), f"{100 * share:.0f} %"]


async def load_of(port: int, clients: int, ids: int, requests: int) -> Load:
    """Send a number of requests from several clients, each of which waits for its answer before the next one."""
    loop, lots = asyncio.get_running_loop(), np.random.default_rng(1)
    ms, counts, left = list[float](), {"refused": 0, "whole": 0}, iter(range(requests))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            body = json.dumps({"ids": [f"c{row}" for row in lots.integers(0, 1000, ids)]}).encode()
            head = (
                "POST /predict HTTP/1.1", "host: localhost", "content-type: application/json",
                f"content-length: {len(body)}", "", "",
            )  # fmt: skip
            began = loop.time()
            writer.write("\r\n".join(head).encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            content = await reader.readexactly(int(answer.split(b"content-length:")[1].split(b"\r")[0]))
            if answer.split()[1] != b"200":
                assert answer.split()[1] == b"503", content
                counts["refused"] += 1
            else:
                ms.append(1e3 * (loop.time() - began))
                counts["whole"] += all(len(each["took_part"]) == len(NAMES) for each in json.loads(content)["answers"])
            if b"connection: close" in answer:  # a refusal
                writer.close()
                await asyncio.sleep(float(answer.split(b"retry-after:")[1].split(b"\r")[0]))
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    began = loop.time()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(ms, loop.time() - began, counts["refused"], counts["whole"])


@contextmanager
def command_serving(place: Path, source: Path | None) -> Iterator[int]:
    """Run ``anyparty serve``, of the version in the folder ``source`` if it is not ``None``; yield the port."""
    command = [sys.executable, "-m", "anyparty", "serve", str(place), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"PYTHONPATH": str(source)} if source else {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603 - ourselves
        try:
            assert process.stdout is not None
            while not (found := re.search(r"Serving on http://127.0.0.1:(\d+)", process.stdout.readline())):
                assert process.poll() is None
            yield int(found[1])
        finally:
            process.terminate()
            process.wait(60)


def measured(ports: dict[str, int], *, quick: bool) -> list[list[str]]:
    """Return the rows of a table: each number of clients and ids, for each service, measured in alternation."""
    rows = []
    for ids in IDS:
        for clients in CLIENTS:
            requests = (50 + 8 * clients if ids == 1 else 10 + 2 * clients) // (4 if quick else 1)
            loads = {name: list[Load]() for name in ports}
            for _ in range(1 if quick else ROUNDS):
                for name, port in ports.items():
                    loads[name].append(asyncio.run(load_of(port, clients, ids, requests)))
            totals = {name: Load.total(each) for name, each in loads.items()}
            for name, load in totals.items():
                ratio = f"{load.rate / totals['before'].rate:.1f}" if "before" in totals else ""
                rows.append([f"{clients} x {ids}", name, *load.cells(), ratio])
    return rows


def many_clients(*, quick: bool, before: Path | None) -> None:
    page = Page(
        "serving",
        "Prediction service: many clients",
        quick,
        words="service --clients" + " --before FOLDER" * (before is not None),
    )
    rows = 2_000 if quick else ROWS
    columns = ["clients x ids", "version", "p50", "p99", "answers/s", "refused", "by all parties", "answers/s, ratio"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as services:
        home = Path(folder)
        Federation.from_config(settings.load(made(home, rows))).train(folder=home / "run")
        versions = {"now": None} if before is None else {"before": before, "now": None}
        ports = {
            name: services.enter_context(command_serving(home / "run", source)) for name, source in versions.items()
        }
        for port in ports.values():
            asyncio.run(load_of(port, 1, 1, 20))
        page.table(f"All parties in one process, {rows:,} rows", columns, measured(ports, quick=quick))
    with (
        tempfile.TemporaryDirectory() as folder,
        federation(Path(folder), rows) as house,
        command_serving(house, None) as port,
    ):
        Client(port).until(2)
        asyncio.run(load_of(port, 1, 1, 20))
        page.table(f"Three processes over FLARE, {rows:,} rows", columns, measured({"now": port}, quick=quick))
    page.say(f"p50 and p99 are milliseconds of the requests with an answer, by {NOTE} ({os.getloadavg()[0]:.1f} at the "
             f"end, {os.cpu_count()} cores, on which the service, the parties and the clients run too). Each client "
             "sends its next request after the answer to the last one. A request has a budget of 200 ms, which "
             "includes the time in the queue: after that, the answer is the active party's alone, or the request is "
             "refused with status 503, and the client waits for a second. Each of two versions is measured three "
             "times, in alternation.")  # fmt: skip
    page.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve_here(sys.argv[2], int(sys.argv[3]))
    elif "--clients" in sys.argv:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--clients", action="store_true")
        parser.add_argument("--quick", action="store_true")
        parser.add_argument("--before", type=Path)
        words = parser.parse_args()
        many_clients(quick=words.quick, before=words.before)
    else:
        main(quick=quick_asked(__doc__))
