"""From the HTTP service to the active party's seat in a job, two processes of one machine: a socket that only their own
user can open, and frames that are messages as they cross between parties.

    service ── Bridge: listens ──◀ connects ── relay: the seat's part ── the job's channel ── the other parties

The service writes where it listens into ``serve.json`` in the party's folder, and takes that away when it ends; it
holds ``.serve.lock`` there all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from anyparty.errors import ConfigError, MessageError, ModelError, PartyLost
from anyparty.run.door import door_of
from anyparty.run.files import About
from anyparty.serving.frames import Frames, text, words
from anyparty.serving.multiplexer import RENEW_S, lanes_to
from anyparty.serving.serving_protocol import MESSAGES
from anyparty.storage import read_json, take, write_json
from anyparty.terms import Channel, Expect, Tensors

WHERE, LOCK, PLACE = "serve.json", ".serve.lock", "anyparty-"
LOST, BACK, END, OPEN = "serve-lost", "serve-back", "serve-end", "serve-open"
MOST_UNREAD = 1024  # messages of a lane
OPEN_S = 10.0
DOOR_S = 0.5  # between two looks at who asks to be let in again


# ---- at the seat


async def relay(folder: Path, net: Channel, session: str, *, renew_s: float = RENEW_S) -> dict[str, Any]:
    """Hand messages on between the service and the parties, until the service ends it or is gone.

    Args:
        folder: where the service writes where it listens.
        net: the channel to the other parties.
        session: the word by which the service knows the job.
        renew_s: see ``lanes.RENEW_S``.

    Raises:
        ConfigError: no service listens beside this kit.
    """
    roster, me = (about := About.load(folder / "model.json")).roster, net.me
    frames = await _connect(folder, session)
    messages = (*about.make(folder).can.messages, *MESSAGES)
    lanes, readers, handed = lanes_to(me, roster, messages), dict[str, list[asyncio.Task[None]]](), 0

    def read(party: str) -> None:
        readers[party] = [asyncio.create_task(_up(net, frames, party, tag, renew_s)) for frm, tag in lanes
                          if frm == party]  # fmt: skip

    for name in roster.names:
        read(name)
    door = asyncio.create_task(_at_the_door(net, frames, readers, read))
    try:
        frames.put(me, me, OPEN, text(session))
        while (got := await frames.get()) is not None and got[0].tag != END:
            await net.send(got[0].to, got[0].tag, got[1])
            handed += 1
    finally:
        tasks = [door, *(task for each in readers.values() for task in each)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await frames.close()
    return {"handed_on": handed}


async def _at_the_door(
    net: Channel, frames: Frames, readers: dict[str, list[asyncio.Task[None]]], read: Callable[[str], None]
) -> None:
    """Let parties in again whose process was started anew, and tell the service."""
    door = door_of(net)
    while True:
        await asyncio.sleep(DOOR_S)
        for name in door.knocking():
            for task in readers.pop(name, []):
                task.cancel()
            door.admit(name)
            with contextlib.suppress(PartyLost):
                frames.put(name, net.me, BACK, text("it is there again"))
            read(name)


async def _connect(folder: Path, session: str) -> Frames:
    try:
        path = json.loads((folder / WHERE).read_text(encoding="utf-8"))["socket"]
        reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), OPEN_S)
    except (OSError, ValueError, KeyError, TimeoutError):
        raise ConfigError(f"no prediction service listens beside {folder}; start one: anyparty serve") from None
    return Frames(reader, writer, session)


def _sweep(folder: Path) -> None:
    """Take away where a service listened that was killed."""
    with contextlib.suppress(ModelError, KeyError, TypeError):
        left = Path(read_json(folder / WHERE)["socket"]).parent
        if left.name.startswith(PLACE) and left.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(left, ignore_errors=True)


async def _up(net: Channel, frames: Frames, frm: str, tag: str, renew_s: float) -> None:
    """Hand on what comes on one lane.  Anything that cannot be handed on is the sender's loss, nobody else's."""
    while True:
        try:
            async with asyncio.timeout(renew_s):
                tensors = await net.recv(frm, tag, {})
        except TimeoutError:
            continue
        except (PartyLost, MessageError) as error:
            with contextlib.suppress(PartyLost):
                frames.put(frm, net.me, LOST, text(str(error).removeprefix(f"party {frm!r} is gone: ")))
            return
        with contextlib.suppress(PartyLost):
            frames.put(frm, net.me, tag, tensors)


# ---- at the service


@dataclass
class Bridged:
    """The active party's channel to the others, by way of its seat in a job."""

    me: str
    frames: Frames
    returned: Callable[[str], None] = lambda party: None  # noqa: ARG005 - told of a party that is there again
    _queues: dict[tuple[str, str], asyncio.Queue[dict[str, Tensor] | None]] = field(
        default_factory=lambda: defaultdict(asyncio.Queue)
    )
    _lost: dict[str, str] = field(default_factory=dict)
    _ended: str = ""

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Hand over to the seat; what cannot be handed over is dropped, and its receiver will be silent."""
        try:
            self.frames.put(self.me, to, tag, tensors)
        except PartyLost:
            return False
        return True

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:  # noqa: ARG002
        """Wait for the next message of a lane."""
        queue = self._queues[frm, tag]
        lost = frm in self._lost or self._ended
        item = queue.get_nowait() if not queue.empty() else None if lost else await queue.get()
        if item is None:
            raise PartyLost(frm, self._lost.get(frm, self._ended))
        return item

    async def close(self) -> None:
        """End the job's part."""
        with contextlib.suppress(PartyLost):
            self.frames.put(self.me, self.me, END, text("the service ends"))
        await self.frames.close()

    async def read(self) -> None:
        """Read until the other end closes: then everybody is lost."""
        why = "the federation's job has ended"
        try:
            while (got := await self.frames.get()) is not None:
                (header, tensors), queue = got, self._queues[got[0].frm, got[0].tag]
                if header.tag in {LOST, BACK}:
                    self._lost[header.frm] = words(tensors)
                    self._wake(header.frm)
                    if header.tag == BACK:
                        self._again(header.frm)
                elif queue.qsize() < MOST_UNREAD:
                    queue.put_nowait(tensors)
        except MessageError as error:
            why = str(error)
        self._ended = why
        self._wake()

    def _again(self, party: str) -> None:
        """Begin anew with a party: who waited for its former process has been told."""
        for lane in [lane for lane in self._queues if lane[0] == party]:
            del self._queues[lane]
        self.returned(party)
        asyncio.get_running_loop().call_later(0, self._lost.pop, party, None)

    def _wake(self, party: str | None = None) -> None:
        for (frm, _), queue in self._queues.items():
            if party in {None, frm}:
                queue.put_nowait(None)


class Bridge:
    """Where the service listens for seats of jobs that it asked for."""

    def __init__(self, folder: Path, me: str, joined: Callable[[str, Bridged], Awaitable[None]]) -> None:
        """Prepare.  ``joined`` is called with a session's name and its channel, and works until that has ended."""
        self.folder, self.me, self.joined = folder, me, joined
        self.sessions: set[str] = set()
        self._place: Path | None = None
        self._lock: FileLock | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[Any]] = set()

    async def check(self) -> None:
        """Refuse to be the second.

        Raises:
            ConfigError: another service listens for this kit.
            StorageError: its folder cannot be written to.
        """
        self._take().release()

    async def open(self) -> None:
        """Listen, and write where.

        Raises:
            ConfigError: another service listens for this kit.
            StorageError: its folder cannot be written to.
        """
        self._lock = self._take()
        _sweep(self.folder)
        self._place = Path(tempfile.mkdtemp(prefix=PLACE))  # mode 0700; a kit's own path may be too long
        self._server = await asyncio.start_unix_server(self._connected, self._place / "serve.sock")
        (self._place / "serve.sock").chmod(0o600)
        write_json(self.folder / WHERE, {"socket": str(self._place / "serve.sock")})

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._place is not None:  # else another one listens
            (self.folder / WHERE).unlink(missing_ok=True)
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None
        if self._lock is not None:
            self._lock.release()

    def _take(self) -> FileLock:
        """Be the one that listens for this kit, until the end of ``close``.

        Two that begin at once would sweep away where the other listens; one that ends, what the next one has written.
        """
        return take(self.folder / LOCK, f"a prediction service runs beside {self.folder} already; stop it first")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, task = Frames(reader, writer, ""), asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            async with asyncio.timeout(OPEN_S):
                got = await frames.get()
            if got is None or got[0].tag != OPEN or got[0].run not in self.sessions:
                return
            frames.session = got[0].run
            self.sessions.discard(frames.session)  # each is good for once
            await self.joined(frames.session, Bridged(self.me, frames))
        except (MessageError, TimeoutError, asyncio.CancelledError):
            return  # cancelled by ``close`` alone
        finally:
            await frames.close()
