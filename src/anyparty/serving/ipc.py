"""Connect the prediction service to the active party's process in a serving job, over a local socket.

    service: IpcServer listens ◀── connects ── process in the job: relay ── the job's channel ── the other parties

Only the user who runs the service can open the socket.  The service writes the socket's path to ``serve.json`` in the
party's folder, and removes that file when the service ends.  While the service runs, it holds the lock file
``.serve.lock``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import struct
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from anyparty.artifacts.model_files import ModelSummary
from anyparty.core.storage import read_json, take, write_json
from anyparty.core.types import Channel, Tensors, TensorSpec
from anyparty.errors import ConfigError, MessageError, ModelError, PartyLost
from anyparty.serving.serving_protocol import MESSAGES, RECEIVE_TIMEOUT_S, routes_to
from anyparty.training.party_run import membership_of
from anyparty.transport.codec import MOST_BYTES, MOST_HEADER_BYTES, Header, decode, encode

ADDRESS_FILE, LOCK_FILE, FOLDER_PREFIX = "serve.json", ".serve.lock", "anyparty-"
LOST, REJOINED, END, OPEN = "serve-lost", "serve-back", "serve-end", "serve-open"
MAX_UNSENT = 64 << 20  # maximum number of bytes that wait to be written; further messages are dropped
MAX_UNREAD = 1024  # maximum number of unread messages from one sender with one tag; further messages are dropped
CONNECT_TIMEOUT_S = 10.0
REJOIN_POLL_S = 0.5


# ---- messages over a stream


@dataclass
class FrameStream:
    """A stream of messages between two processes of one machine; eight bytes before each message give its length."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    session: str
    sent: int = 0

    def put(self, frm: str, to: str, tag: str, tensors: Tensors) -> None:
        """Write a message from one party to another, without waiting.

        Raises:
            PartyLost: the process at the other end of the stream does not read, or the stream is closed.
        """
        if self.writer.transport.get_write_buffer_size() > MAX_UNSENT or self.writer.is_closing():
            raise PartyLost(to, "the connection to it is blocked or closed")
        data = encode(Header(run=self.session, frm=frm, to=to, tag=tag, number=self.sent), tensors)
        self.sent += 1
        self.writer.write(struct.pack("<Q", len(data)) + data)

    async def get(self) -> tuple[Header, dict[str, Tensor]] | None:
        """Read the next message; return ``None`` if the process at the other end has closed the stream.

        Raises:
            MessageError: the data is not a message of this session.
        """
        try:
            (size,) = struct.unpack("<Q", await self.reader.readexactly(8))
            if size > MOST_BYTES + MOST_HEADER_BYTES:
                raise MessageError(f"a local message has {size} bytes; the limit is {MOST_BYTES}")
            message = decode(await self.reader.readexactly(size), "the other local process")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        if self.session and message.header.run != self.session:
            raise MessageError(f"a local message names session {message.header.run!r}, expected {self.session!r}")
        return message.header, message.tensors

    async def close(self) -> None:
        """Close the stream after sending pending data."""
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 1.0)


def encode_text(text: str) -> dict[str, Tensor]:
    """Convert text to the content of a message: a tensor called "text" with the UTF-8 bytes."""
    return {"text": torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)}


def decode_text(tensors: Tensors) -> str:
    """Convert the tensors of ``encode_text`` back to text."""
    return tensors["text"].numpy().tobytes().decode(errors="replace") if "text" in tensors else ""


# ---- functions that run in the active party's process in a job


async def relay(
    folder: Path, net: Channel, session: str, *, receive_timeout_s: float = RECEIVE_TIMEOUT_S
) -> dict[str, Any]:
    """Relay messages between the service and the other parties until the service ends.

    Args:
        folder: the party's folder, in which the service has written its address.
        net: the channel to the other parties.
        session: identifies the job to the service.
        receive_timeout_s: time in seconds after which a receive is restarted.

    Returns:
        The number of messages that were relayed to the other parties.

    Raises:
        ConfigError: no service runs for this party's folder.

    """
    roster, me = (summary := ModelSummary.load(folder / "model.json")).roster, net.me
    frames = await _connect(folder, session)
    messages = (*summary.make(folder).can.messages, *MESSAGES)
    routes, readers, relayed = routes_to(me, roster, messages), dict[str, list[asyncio.Task[None]]](), 0

    def read(party: str) -> None:
        readers[party] = [asyncio.create_task(_relay_up(net, frames, party, tag, receive_timeout_s))
                          for sender, tag in routes if sender == party]  # fmt: skip

    for name in roster.names:
        read(name)
    rejoins = asyncio.create_task(_watch_rejoins(net, frames, readers, read))
    try:
        frames.put(me, me, OPEN, encode_text(session))
        while (got := await frames.get()) is not None and got[0].tag != END:
            await net.send(got[0].to, got[0].tag, got[1])
            relayed += 1
    finally:
        tasks = [rejoins, *(task for each in readers.values() for task in each)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await frames.close()
    return {"handed_on": relayed}


async def _watch_rejoins(
    net: Channel, frames: FrameStream, readers: dict[str, list[asyncio.Task[None]]], read: Callable[[str], None]
) -> None:
    """Until cancelled, readmit parties whose process was restarted, and notify the service.

    ``read(party)`` starts the tasks that relay messages of a party; ``readers`` holds these tasks by party.
    """
    membership = membership_of(net)
    while True:
        await asyncio.sleep(REJOIN_POLL_S)
        for name in membership.waiting_to_rejoin():
            for task in readers.pop(name, []):
                task.cancel()
            membership.admit(name)
            with contextlib.suppress(PartyLost):
                frames.put(name, net.me, REJOINED, encode_text("it has rejoined"))
            read(name)


async def _relay_up(net: Channel, frames: FrameStream, sender: str, tag: str, receive_timeout_s: float) -> None:
    """Relay the messages of one sender and tag to the service, until the sender is lost.

    A message that the service cannot receive is dropped.
    """
    while True:
        try:
            async with asyncio.timeout(receive_timeout_s):
                tensors = await net.recv(sender, tag, {})
        except TimeoutError:
            continue
        except (PartyLost, MessageError) as error:
            reason = error.why if isinstance(error, PartyLost) else str(error)
            with contextlib.suppress(PartyLost):
                frames.put(sender, net.me, LOST, encode_text(reason))
            return
        with contextlib.suppress(PartyLost):
            frames.put(sender, net.me, tag, tensors)


async def _connect(folder: Path, session: str) -> FrameStream:
    try:
        path = json.loads((folder / ADDRESS_FILE).read_text(encoding="utf-8"))["socket"]
        reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), CONNECT_TIMEOUT_S)
    except (OSError, ValueError, KeyError, TimeoutError):
        raise ConfigError(f"no prediction service runs for {folder}; start one: anyparty serve") from None
    return FrameStream(reader, writer, session)


# ---- classes for the prediction service


@dataclass
class IpcChannel(Channel):
    """The prediction service's channel to the other parties, through the active party's process in a job."""

    me: str
    frames: FrameStream
    on_rejoin: Callable[[str], None] = lambda party: None  # noqa: ARG005
    _queues: dict[tuple[str, str], asyncio.Queue[dict[str, Tensor] | None]] = field(
        default_factory=lambda: defaultdict(asyncio.Queue)
    )
    _lost: dict[str, str] = field(default_factory=dict)
    _ended: str = ""

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Send a message; return False if the message was dropped, in which case no answer will come."""
        try:
            self.frames.put(self.me, to, tag, tensors)
        except PartyLost:
            return False
        return True

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the next message with a tag from a party; raise ``PartyLost`` if the party is lost."""
        queue = self._queues[frm, tag]
        lost = frm in self._lost or self._ended
        item = queue.get_nowait() if not queue.empty() else None if lost else await queue.get()
        if item is None:
            raise PartyLost(frm, self._lost.get(frm, self._ended))
        return item

    async def close(self) -> None:
        """Notify the active party's process in the job that the service ends, and close the stream."""
        with contextlib.suppress(PartyLost):
            self.frames.put(self.me, self.me, END, encode_text("the service ends"))
        await self.frames.close()

    async def read(self) -> None:
        """Read messages until the job's process closes the stream; then mark all parties as lost."""
        reason = "the federation's job has ended"
        try:
            while (got := await self.frames.get()) is not None:
                (header, tensors), queue = got, self._queues[got[0].frm, got[0].tag]
                if header.tag in {LOST, REJOINED}:
                    self._lost[header.frm] = decode_text(tensors)
                    self._wake(header.frm)
                    if header.tag == REJOINED:
                        self._rejoin(header.frm)
                elif queue.qsize() < MAX_UNREAD:
                    queue.put_nowait(tensors)
        except MessageError as error:
            reason = str(error)
        self._ended = reason
        self._wake()

    def _rejoin(self, party: str) -> None:
        """Accept a party's new process; the caller has already ended the receives from the party's former process."""
        for route in [route for route in self._queues if route[0] == party]:
            del self._queues[route]
        self.on_rejoin(party)
        asyncio.get_running_loop().call_later(0, self._lost.pop, party, None)

    def _wake(self, party: str | None = None) -> None:
        for (sender, _), queue in self._queues.items():
            if party in {None, sender}:
                queue.put_nowait(None)


class IpcServer:
    """The socket on which the service accepts the active party's processes in jobs that the service submitted.

    Attributes:
        sessions: the sessions of the jobs that may connect; each session may connect once.

    """

    def __init__(self, folder: Path, me: str, on_connect: Callable[[str, IpcChannel], Awaitable[None]]) -> None:
        """Store the arguments; ``open`` starts to listen.

        Args:
            folder: the active party's folder.
            me: the active party.
            on_connect: function that is called with a session and its channel, and returns when the session has ended.

        """
        self.folder, self.me, self.on_connect = folder, me, on_connect
        self.sessions: set[str] = set()
        self._socket_folder: Path | None = None
        self._lock: FileLock | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[Any]] = set()

    async def check(self) -> None:
        """Check that no other service runs for this folder.

        Raises:
            ConfigError: another service runs.
            StorageError: the folder is not writable.
        """
        self._acquire().release()

    async def open(self) -> None:
        """Listen, and write the socket's path to the address file.

        Raises:
            ConfigError: another service runs for this folder.
            StorageError: the folder is not writable.
        """
        self._lock = self._acquire()
        self._remove_stale_socket()
        # mkdtemp sets mode 0700. A socket in the party's folder could have a path that is too long for the system.
        self._socket_folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        self._server = await asyncio.start_unix_server(self._connected, self._socket_folder / "serve.sock")
        (self._socket_folder / "serve.sock").chmod(0o600)
        write_json(self.folder / ADDRESS_FILE, {"socket": str(self._socket_folder / "serve.sock")})

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._socket_folder is not None:  # only if this service wrote the address file
            (self.folder / ADDRESS_FILE).unlink(missing_ok=True)
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None
        if self._lock is not None:
            self._lock.release()

    def _acquire(self) -> FileLock:
        """Lock the folder, and return the lock, which ``close`` releases.

        Without the lock, two services that start at the same time would delete each other's sockets.  A service that
        ends would delete the address file of the service that has started after it.
        """
        return take(self.folder / LOCK_FILE, f"a prediction service already runs for {self.folder}; stop it first")

    def _remove_stale_socket(self) -> None:
        """Remove the socket of a service that was killed."""
        with contextlib.suppress(ModelError, KeyError, TypeError):
            stale = Path(read_json(self.folder / ADDRESS_FILE)["socket"]).parent
            if stale.name.startswith(FOLDER_PREFIX) and stale.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(stale, ignore_errors=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, task = FrameStream(reader, writer, ""), asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                got = await frames.get()
            if got is None or got[0].tag != OPEN or got[0].run not in self.sessions:
                return
            frames.session = got[0].run
            self.sessions.discard(frames.session)
            await self.on_connect(frames.session, IpcChannel(self.me, frames))
        except (MessageError, TimeoutError, asyncio.CancelledError):
            return  # only ``close`` cancels this task
        finally:
            await frames.close()
