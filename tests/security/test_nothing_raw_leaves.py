"""Parties train and fail in many ways; no output of a party holds its ids, cells, labels or column names.

Each party runs its real part of a job in its own thread, over cells in memory.  The outputs of party P are: the
notes and bytes of its messages, its executor's replies to FLARE's server, every file in another party's folder, and
every log line and error of another party.  Each table holds values that occur nowhere else; the test searches for
them.
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from anyparty.config import Config
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.transport.reliable_session import Timeouts

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

from anyparty.deployment.flare import job
from anyparty.deployment.flare.job import AWAY, GracefulExit, JobOrder, JobOutcome, JobRun, PassiveJobParty
from anyparty.transport.reliable_endpoint import ReliableEndpoint
from tests.security.text_search import SHORTEST, in_folder, occurring, raw
from tests.slow_parameters import slow_but

pytestmark = pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
NAMES, ROWS, SHARED = ("bank", "shop", "clinic"), 90, 60
PATIENCE = Timeouts(join_s=60, silent_s=15, message_s=120, back_s=1, flush_s=5)  # a sign of life every 3 s


class Cells:
    """FLARE's cells in memory, each with an address and one callback; a thread delivers messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, bytes]] = []  # sender, address, and the note with the bytes
        self.heard: dict[str, Callable[[Any], object]] = {}
        self.on_note: Callable[[str, str], object] = lambda *_: None
        self.queue: queue.Queue[tuple[str, str, Any] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._bring, daemon=True)
        self.thread.start()

    def _bring(self) -> None:
        while (item := self.queue.get()) is not None:
            frm, to, message = item
            if to in self.heard:
                message.set_header(MessageHeaderKey.ORIGIN, frm)
                self.heard[to](message)

    def close(self) -> None:
        self.queue.put(None)
        self.thread.join()


@dataclass(frozen=True)
class Cell:
    """One party's cell."""

    cells: Cells
    party: str
    address: str

    def fire_and_forget(self, channel: str, topic: str, to: str, message: Any, *, optional: bool) -> None:
        note = str(message.get_header(job.HEADER))
        self.cells.sent.append((self.party, to, note.encode() + b"\n" + bytes(message.payload or b"")))
        self.cells.on_note(self.party, note)
        self.cells.queue.put((self.address, to, message))

    def register_request_cb(self, channel: str, topic: str, callback: Callable[[Any], object]) -> None:
        self.cells.heard[self.address] = callback


@dataclass
class World:
    """Three parties' tables, their sites, and each site's settings of the job."""

    home: Path
    frames: dict[str, pl.DataFrame]
    own: dict[str, dict[str, Any]] = field(default_factory=lambda: {name: {} for name in NAMES})
    train: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    unlike: dict[str, dict[str, Any]] = field(default_factory=dict)  # by party, the differences of its job's settings
    new: set[str] = field(default_factory=set)  # parties that predict the rows in new.csv
    leaves: str = ""  # the party that is stopped during training

    @classmethod
    def of(cls, home: Path) -> World:
        draw = np.random.default_rng(5)
        frames = {}
        for name in NAMES:
            ids = [f"shared-person-{n:05d}" for n in range(SHARED)] + [
                f"{name}-person-{n:05d}" for n in range(ROWS - SHARED)
            ]
            columns = {
                "id": ids,
                f"{name}_amount": [f"{value:.7f}" for value in draw.normal(size=ROWS) * 1e5 + 7e5],
                f"{name}_colour": [f"{name}-colour-{n % 4}" for n in range(ROWS)],
            }
            if name == "bank":
                columns["bank_y"] = [f"bank-class-{n % 2}" for n in range(ROWS)]
            frames[name] = pl.DataFrame(columns)
        return cls(home, frames)

    def put(self, party: str, column: str, row: int, value: str) -> None:
        frame = self.frames[party]
        cells = frame[column].to_list()
        cells[row] = value
        self.frames[party] = frame.with_columns(pl.Series(column, cells))

    def folder(self, name: str) -> Path:
        return self.home / f"{name}-private-folder"

    def site(self, name: str) -> SiteConfig:
        return SiteConfig(
            party=name,
            active="bank",
            parties=NAMES,
            table=self.home / f"{name}-private.csv",
            folder=self.folder(name),
            new=self.home / f"{name}-new.csv" if name in self.new else None,
            patience=PATIENCE,
        )

    def config(self, name: str) -> str:
        values = {
            "federation": {"label": "bank_y", "active": "bank"}, "parties": self.own,
            "method": {"name": "laser", "embedding": 4}, "encoder": {"hidden": [4]},
            "train": {"epochs": 2, "batch_size": 16, "checkpoint_every": 1, **self.train}, **self.more,
        }  # fmt: skip
        for group, changed in self.unlike.get(name, {}).items():
            values[group] = {**values[group], **changed}
        return Config.of(values).to_toml()

    def canaries(self, name: str, other: str) -> dict[bytes, str]:
        """Return a party's values that another party must not learn: ids, cells, labels, columns not in settings.

        One exception is declared (message ``setup``): other label holders learn the classes of the active party.
        """
        frame, settings = self.frames[name], self.config("bank")
        texts = {str(value) for column in frame for value in column}
        texts |= {column for column in frame.columns if column not in settings} | {self.folder(name).name}
        texts -= {str(value) for column in self.frames[other] for value in column}
        if name == "bank" and "label" in self.own[other]:
            texts -= set(map(str, frame["bank_y"]))
        numbers = frame.get_columns()[1].cast(pl.Float64, strict=False).drop_nulls().to_list()
        found = raw(text for text in texts if len(text) >= SHORTEST)
        assert len(found) > ROWS
        return found | {np.float64(number).tobytes(): f"{number} as float64" for number in numbers}


@dataclass
class Left:
    """The outputs of each party, and the outcome of each part."""

    outcomes: dict[str, JobOutcome]
    sent: dict[tuple[str, str], bytes]  # by sender and receiver
    logs: dict[str, str]


class Logs(logging.Handler):
    """Collects log lines by the thread that wrote them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: dict[str, list[str]] = {}
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        name = (record.threadName or "").removeprefix("anyparty-endpoint-").removeprefix("seat-")
        self.lines.setdefault(name, []).append(self.format(record))


def play(world: World, monkeypatch: pytest.MonkeyPatch, work: str = "train", **asked: Any) -> Left:
    """Run every party's part to its end."""
    cells, logs, replies, outcomes, passives = (
        Cells(),
        Logs(),
        dict[str, str](),
        dict[str, JobOutcome](),
        dict[str, PassiveJobParty](),
    )
    for name, frame in world.frames.items():
        frame.write_csv(world.home / f"{name}-private.csv")
    seats = {
        name: JobRun(site=world.site(name), config=world.config(name), job="job-1",
                   core=Cell(cells, name, f"{'server' if name == 'bank' else name}.job-1"))
        for name in NAMES
    }  # fmt: skip
    monkeypatch.setattr(GracefulExit, "_at_once", staticmethod(lambda: None))  # otherwise it would end this process
    monkeypatch.setattr(job, "FLUSH_S", 0.0)
    monkeypatch.setattr(JobRun, "at", staticmethod(lambda context: seats[context]))
    whole = JobRun.play

    def kept(self: JobRun, order: JobOrder, news: Callable[[], str]) -> JobOutcome:
        outcomes[self.site.party] = whole(self, order, news)
        return outcomes[self.site.party]

    monkeypatch.setattr(JobRun, "play", kept)

    def part(name: str) -> None:
        if name == "bank":
            seats[name].play(JobOrder(work, asked), lambda: "")
        else:
            passives[name] = PassiveJobParty(work, asked)
            replies[name] = str(dict(passives[name].execute("take_part", Shareable(), name, Signal())))

    def leave(frm: str, note: str) -> None:
        if frm == world.leaves and '"tag":"embedding"' in note:
            passives[frm].graceful_exit.why = AWAY

    cells.on_note = leave
    ours = logging.getLogger("anyparty")
    ours.addHandler(logs)
    try:
        threads = [threading.Thread(target=part, args=(name,), name=f"seat-{name}", daemon=True) for name in NAMES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        ours.removeHandler(logs)
        cells.close()
    assert outcomes.keys() == set(NAMES)
    sent = {(frm, to): replies.get(frm, "").encode() if to == "bank" else b"" for frm in NAMES for to in NAMES}
    for frm, address, data in cells.sent:
        sent[frm, {"server.job-1": "bank"}.get(address, address.removesuffix(".job-1"))] += b"\n" + data
    assert replies.keys() == {"shop", "clinic"}
    return Left(outcomes, sent, {name: "\n".join(logs.lines.get(name, [])) for name in NAMES})


def leaks(world: World, left: Left) -> dict[str, Any]:
    """Return a party's values that another party received: by sender, receiver and place."""
    found: dict[str, Any] = {}
    for name, other in itertools.permutations(NAMES, 2):
        needles = world.canaries(name, other)
        said = f"{left.logs[other]}\n{left.outcomes[other]}"
        places: dict[str, Any] = {
            "messages": occurring(needles, left.sent[name, other]),
            "log and end": occurring(needles, said.encode()),
            "folder": in_folder(needles, world.folder(other)),
        }
        found |= {f"{name} to {other}: {place}": each for place, each in places.items() if each}
    return found


# ---- failures: each changes the world; the failing party, its error, and the value that its own error quotes


def nothing(world: World) -> None:
    """Change nothing."""


def bad_number(world: World) -> None:
    world.own["shop"] = {"types": {"shop_amount": "numeric"}}
    world.put("shop", "shop_amount", 3, "seven-hundred-17")


def duplicate_id(world: World) -> None:
    world.put("shop", "id", 70, "shop-person-00000")


def unseen_sign(world: World) -> None:
    world.put("clinic", "id", 70, "clinic-person\x07-odd")


def wrong_column(world: World) -> None:
    world.own["shop"] = {"id": "shop_number"}


def unknown_label(world: World) -> None:
    """Give a second label holder a class that the active party does not have."""
    world.frames["clinic"] = world.frames["clinic"].with_columns(
        clinic_y=pl.Series([f"bank-class-{n % 2}" for n in range(ROWS - 1)] + ["clinic-class-odd"])
    )
    world.own["clinic"] = {"label": "clinic_y"}
    world.more = {"method": {"name": "laser", "embedding": 4, "hosting": "labelers"}}


def misspelt_positive(world: World) -> None:
    world.more = {"federation": {"label": "bank_y", "active": "bank", "positive": "bank-klass-1"}}


def diverges(world: World) -> None:
    world.more = {"optimizer": {"name": "sgd", "lr": 1e30}}


def is_stopped(world: World) -> None:
    world.leaves = "shop"
    world.train = {"epochs": 500, "checkpoint_every": 100}  # still training when its site is stopped


def full_disk(world: World) -> None:
    world.folder("shop").mkdir(parents=True)
    (world.folder("shop") / "checkpoints").write_text("a file where a folder should be")


def long_cell(world: World) -> None:
    world.put("shop", "shop_colour", 5, "shop-colour-long" * 8192)


def other_settings(world: World) -> None:
    world.unlike = {"clinic": {"train": {"seed": 7}}}


def one_class(world: World) -> None:
    world.frames["bank"] = world.frames["bank"].with_columns(bank_y=pl.lit("bank-class-0"))


def infinite_cell(world: World) -> None:
    world.own["clinic"] = {"types": {"clinic_amount": "numeric"}}
    world.put("clinic", "clinic_amount", 61, "1e999999")


WAYS = [
    (nothing, None, "", ""),
    (bad_number, "shop", "TableError", "seven-hundred-17"),
    (duplicate_id, "shop", "TableError", "shop-person-00000"),
    (unseen_sign, "clinic", "TableError", "clinic-person"),
    (wrong_column, "shop", "TableError", "shop_number"),
    (unknown_label, "clinic", "TableError", "clinic-class-odd"),
    (misspelt_positive, "bank", "TableError", "bank-class-1"),
    (diverges, "bank|shop|clinic", "Diverged", ""),
    (is_stopped, "shop", "PartyLost", ""),
    (full_disk, "shop", "StorageError", "shop-private-folder"),
    (long_cell, None, "TableError|PartyLost", ""),
    (other_settings, "bank", "ConfigError", ""),
    (one_class, "bank", "TableError", "bank-class-0"),
    (infinite_cell, "clinic", "TableError", ""),
]


def ended_with(left: Left) -> dict[str, tuple[str, str]]:
    return {name: (outcome.error, outcome.sentence) for name, outcome in left.outcomes.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "who", "kind", "quotes"), WAYS, ids=[way[0].__name__ for way in WAYS])
def test_a_training(tmp_path, monkeypatch, change, who, kind, quotes):
    world = World.of(tmp_path)
    change(world)
    left = play(world, monkeypatch, resume=False)
    ended = ended_with(left)
    if who is None:
        assert {error for error, _ in ended.values()} <= {"", *kind.split("|")}, ended
    else:
        failed = [name for name in who.split("|") if ended[name][0] == kind]
        assert failed, ended
        assert all(quotes in ended[name][1] for name in failed), "it stays at home whole, and helps"
    for name in NAMES:
        assert json.loads((world.folder(name) / "job-1.json").read_text())["sentence"] == ended[name][1]
    assert leaks(world, left) == {}


def new_category(world: World) -> None:
    world.put("shop", "shop_colour", 3, "shop-colour-unheard")


def missing_column(world: World) -> None:
    world.frames["shop"] = world.frames["shop"].rename({"shop_amount": "shop_amount_2"})


def words_for_numbers(world: World) -> None:
    world.put("clinic", "clinic_amount", 3, "clinic-amount-odd")


PREDICTIONS = [
    (new_category, "", ""),
    (missing_column, "shop", "shop_amount"),
    (words_for_numbers, "clinic", "clinic-amount-odd"),
]


@pytest.mark.parametrize(
    ("change", "who", "quotes"),
    slow_but(PREDICTIONS, lambda way: way[0] is missing_column),
    ids=[way[0].__name__ for way in PREDICTIONS],
)
def test_a_prediction(tmp_path, monkeypatch, change, who, quotes):
    world = World.of(tmp_path)
    with monkeypatch.context() as patch:
        assert {error for error, _ in ended_with(play(world, patch, resume=False)).values()} == {""}
    change(world)
    world.new = set(NAMES)
    for name, frame in world.frames.items():
        frame.write_csv(world.home / f"{name}-new.csv")
    left = play(world, monkeypatch, "predict", asked=None, there=list(NAMES))
    ended = ended_with(left)
    assert [name for name in NAMES if ended[name][0] == "TableError"] == [who] * bool(who), ended
    assert not who or quotes in ended[who][1]
    assert leaks(world, left) == {}


@pytest.mark.parametrize("where", slow_but(["farewell", "message", "record"], {"message"}))
def test_the_search_finds_what_leaks(tmp_path, monkeypatch, where):
    """Leaks are planted in the farewell, in a message, and in a file of another party."""
    world = World.of(tmp_path)
    if where == "farewell":
        bad_number(world)
        monkeypatch.setattr(job, "farewell", lambda error, reason="", *_: "seven-hundred-17" if error else reason)
        found = ["shop to bank: log and end", "shop to bank: messages", "shop to bank: folder"]
    elif where == "message":
        send = ReliableEndpoint.send

        async def leaky(self, to, tag, tensors):
            more = {"names": torch.frombuffer(bytearray(b"shop-colour-2"), dtype=torch.uint8)}
            return await send(self, to, tag, {**tensors, **more} if self.me == "shop" else tensors)

        monkeypatch.setattr(ReliableEndpoint, "send", leaky)
        found = ["shop to bank: messages"]
    else:
        world.folder("clinic").mkdir(parents=True)
        (world.folder("clinic") / "notes.json").write_text('{"y": "bank-class-1"}')
        found = ["bank to clinic: folder"]
    assert set(found) <= leaks(world, play(world, monkeypatch, resume=False)).keys()
