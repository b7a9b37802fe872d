"""Reliable delivery over a carrier that may lose, repeat, delay and reorder packets.

The messages of one sender, receiver and tag arrive once and in order, or the receiver gets ``PartyLost``.

A party that waits for another party regularly requests a sign of life.  A thread of the other party answers, so a long
training step is not mistaken for silence.  A party gives up on another party that is silent for longer than
``Timeouts`` allows.  Each process of a party is an *incarnation*.  If the
process of a lost party restarts, the new incarnation waits until ``admit`` readmits it, with empty buffers on both
sides.

This module does not use sockets or FLARE; the carrier is in ``deployment.flare.job``.  Packets arrive on the carrier's
threads.  The caller's thread sends small messages; a thread of the endpoint sends large messages, receipt requests,
answers and repetitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from anyparty.core.types import Channel, Tensors, TensorSpec
from anyparty.errors import MessageError
from anyparty.transport.codec import MOST_BYTES, Header, decode, encode
from anyparty.transport.reliable_buffers import LONG_AGO, MOST_ON_THE_WAY, PIECE_BYTES, Envelope, Item, Outgoing
from anyparty.transport.reliable_session import Packet, PendingReceive, Session, Timeouts, Traffic

LONGEST_REST_S = 0.25


class Carrier(Protocol):
    """An unreliable network."""

    def put(self, to: str, envelope: str, data: bytes) -> None:
        """Try to send a packet, which is an envelope and the bytes of a piece of a message; the packet may be lost."""


class ReliableEndpoint(Channel):
    """One party's channel to all others, over an unreliable carrier.

    Args:
        me: the party.
        names: all parties.
        run: the name of the run, which is written into every message.
        carrier: the network that sends packets.
        patience: the timeouts.
        most_bytes: the maximum size of a message.
        clock: a function that returns the time in seconds.
        stop_reason: a function that returns the reason why a user or another program stopped the run, or an empty
            string if the run was not stopped.

    """

    def __init__(
        self,
        me: str,
        names: Sequence[str],
        run: str,
        carrier: Carrier,
        patience: Timeouts | None = None,
        *,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        stop_reason: Callable[[], str] = str,
    ) -> None:
        self.me, self.run, self.carrier, self.most_bytes = me, run, carrier, most_bytes
        self.patience, self.clock, self._stop_reason = patience or Timeouts(), clock, stop_reason
        self.sessions = {name: Session(name, self.patience) for name in names if name != me}
        self.incarnation = uuid.uuid4().hex[:8]
        self.refused: Counter[str] = Counter()  # number of packets from each unknown sender; such packets are dropped
        self._lock = threading.Condition()
        self._bye = ""
        self._rest_s = min(LONGEST_REST_S, self.patience.receipt_s, self.patience.retry_s, self.patience.silent_s / 10)
        self._thread = threading.Thread(target=self._work, name=f"anyparty-endpoint-{me}", daemon=True)

    def start(self, greet: Sequence[str] = ()) -> None:
        """Start the endpoint's thread, which also announces this party to the parties in ``greet``."""
        for name in greet:
            self.sessions[name].report_due = True
        self._thread.start()

    # ---- the channel of the party's coroutine

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Send a message; wait while more than ``MOST_ON_THE_WAY`` bytes are unacknowledged.

        Return False if the receiver has left.
        """
        accepted = self.enqueue(to, tag, tensors)
        if self.backlog(to) > MOST_ON_THE_WAY:
            with self._blocked_by(to):
                while self.backlog(to) > MOST_ON_THE_WAY:
                    await asyncio.sleep(0.005)
        return accepted

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the next message with a tag from a party; wait until the message arrives.

        The tensors are not compared with ``expect`` here; ``ContractChannel`` checks their names, shapes and numbers.

        Raises:
            PartyLost: the sender left, gives no sign of life, or sends nothing for too long.
            MessageError: the bytes are not a message.
        """
        loop = asyncio.get_running_loop()
        given, arrived = list[Item](), asyncio.Event()
        withdraw = self.collect(frm, tag, given, lambda: loop.call_soon_threadsafe(arrived.set))
        if not given:
            try:
                await arrived.wait()
            except asyncio.CancelledError:
                withdraw()
                raise
        item = given[0]
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self) -> None:
        """Wait until the other parties have received all messages of this party, then leave the run."""
        await asyncio.to_thread(self.leave)

    # ---- sending and receiving without waiting, from any thread

    def enqueue(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Accept a message for sending; drop it and return ``False`` if the receiver has left."""
        session = self._session(to)
        number = session.next_number[tag]
        header = Header(run=self.run, frm=self.me, to=to, tag=tag, number=number)
        data = encode(header, tensors, most_bytes=self.most_bytes)
        with self._lock:
            session.next_number[tag] += 1
            if session.gone:
                return False
            session.outgoing[tag, number] = Outgoing(data)
            small = len(data) <= PIECE_BYTES  # larger messages are sent by the endpoint's own thread
            packets = list(session.packets(self.incarnation, self.clock())) if small else []
            if not small:
                self._lock.notify_all()
        for packet in packets:
            self._put(*packet)
        return True

    def backlog(self, to: str) -> int:
        """Return the number of unacknowledged bytes to a party."""
        with self._lock:
            return self._session(to).backlog

    def collect(self, frm: str, tag: str, given: list[Item], wake: Callable[[], object]) -> Callable[[], None]:
        """Append to ``given`` the next message of a sender and tag, or an error if no message will come.

        If neither a message nor an error is available yet, another thread appends it later and calls ``wake``.

        Returns:
            A function that ends the wait.  This function also puts all messages in ``given`` back into the inbox, so
            that a later receive gets them.
        """

        def give(item: Item) -> None:
            # Append before the lock is released, so that ``withdraw`` can put the message back.
            given.append(item)
            wake()

        with self._lock:
            session = self._session(frm)
            item = session.take(tag)
            if item is not None:
                given.append(item)
            else:
                assert tag not in session.waiting, f"two coroutines of {self.me!r} wait for {tag!r} from {frm!r}"
                session.waiting[tag] = PendingReceive(give, self.clock())

        def withdraw() -> None:
            with self._lock:  # ``session`` is the old one if ``frm`` was readmitted meanwhile
                session.waiting.pop(tag, None)
                session.incoming.put_back(tag, given)

        return withdraw

    @contextlib.contextmanager
    def _blocked_by(self, to: str) -> Iterator[None]:
        """Record during a ``with`` block that ``send`` waits for a party.

        The endpoint gives up on a silent party only while a coroutine waits for that party in ``send`` or ``recv``.
        """
        with self._lock:
            session = self._session(to)
            session.blocked_since.append(since := self.clock())
        try:
            yield
        finally:
            with self._lock:
                session.blocked_since.remove(since)

    def leave(self, why: str = "its part is done") -> None:
        """Wait until all sent messages have arrived or a timeout ends, send a farewell, and stop the endpoint's thread.

        ``why`` is the reason that the farewell gives to the other parties.
        """
        with self._lock:
            if self._bye:
                return
            for session in self.sessions.values():  # send the due receipts, because no later message can carry them
                session.receipts_due |= dict.fromkeys(session.receipts_due, LONG_AGO)
            self._lock.notify_all()
            begun = self.clock()
            while any(session.is_flushing(begun, self.clock()) for session in self.sessions.values()):
                self._lock.wait(0.05)
            self._bye = why
            self._lock.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        for session in self.sessions.values():
            if session.last_heard is not None:
                self._put(*self._farewell(session, session.applicant or session.incarnation))

    # ---- membership

    @property
    def membership(self) -> ReliableEndpoint:
        """The channel itself, which also lists the parties that left or wait to be readmitted, and readmits them."""
        return self

    def lose(self, name: str, why: str) -> None:
        """Give up on a party, and exchange no more messages with this party; ``why`` is the reason."""
        with self._lock:
            self._session(name).lose(why)
            self._lock.notify_all()

    def waiting_to_rejoin(self) -> list[str]:
        """Return the lost parties whose new incarnation waits to be readmitted."""
        with self._lock:
            return [session.name for session in self.sessions.values() if session.applicant]

    def admit(self, name: str) -> None:
        """Readmit a lost party, with empty buffers and all message numbers at 0."""
        with self._lock:
            old = self._session(name)
            old.lose("it is readmitted as another process")
            self.sessions[name] = Session(
                name, self.patience, incarnation=old.applicant, last_heard=self.clock() if old.applicant else None,
                report_due=True, former=old.former | {old.incarnation}, traffic=old.traffic, asks_sent=old.asks_sent,
            )  # fmt: skip
            self._lock.notify_all()

    def is_cut_off_from(self, name: str) -> bool:
        """Return True if the party called ``name`` has given up on this party or is out of reach.

        The other party may then readmit a new process of this party.
        """
        with self._lock:
            session = self._session(name)
            return bool(session.gone) and (session.gave_us_up or session.silent)

    def stop_reason(self) -> str:
        """Return the reason why a user or another program stopped the run; an empty string if it was not stopped."""
        return self._stop_reason()

    def gone(self) -> dict[str, str]:
        """Return the parties that left or that this party gave up on, each with the reason."""
        with self._lock:
            return {session.name: session.gone for session in self.sessions.values() if session.gone}

    def traffic(self) -> dict[str, Traffic]:
        """Return the counts of messages and bytes sent to each party."""
        return {session.name: session.traffic for session in self.sessions.values()}

    def _session(self, name: str) -> Session:
        if name not in self.sessions:
            raise MessageError(f"{self.me!r} has no party {name!r} to talk to; there are {sorted(self.sessions)}")
        return self.sessions[name]

    # ---- arriving packets, on the carrier's threads

    def arrived(self, frm: str, text: object, data: bytes) -> None:
        """Process a packet from the party ``frm``; the carrier guarantees that this party has sent the packet."""
        if frm not in self.sessions:
            self.refused[frm] += 1
            return
        session, whole, farewell = self.sessions[frm], None, None
        try:
            envelope = Envelope.read(text, repr(frm))
        except MessageError as error:
            with self._lock:
                session.fail(error)
            return
        with self._lock:
            if envelope.life in session.former:
                return
            if envelope.to not in {"", self.incarnation}:  # drop a late packet for an earlier process of this party
                envelope = envelope.for_former_incarnation(wait=session.paused or session.last_heard is None)
            if session.gone and not self._bye and envelope.life != session.incarnation:
                farewell = self._register_applicant(session, envelope)
            elif self._bye or session.gone:
                farewell = None if envelope.gone or envelope.bye else self._farewell(session, envelope.life)
            else:
                if session.last_heard is None or envelope.ask or envelope.answers:
                    self._lock.notify_all()
                session.read(envelope, self.clock())
                carries = envelope.tag and not session.gone
                whole = session.add_piece(envelope, data, self.most_bytes) if carries else None
        if farewell is not None:
            self._put(*farewell)
        if whole is not None:
            item = self._decoded(frm, envelope, whole)
            with self._lock:
                session.add_message(envelope.tag, envelope.number, item, self.clock())

    def _decoded(self, frm: str, envelope: Envelope, data: bytes) -> Item:
        want = Header(run=self.run, frm=frm, to=self.me, tag=envelope.tag, number=envelope.number)
        try:
            message = decode(data, repr(frm), most_bytes=self.most_bytes)
            if message.header != want:
                raise MessageError(f"{frm!r} sent {message.header} of run {message.header.run!r}, "
                                   f"expected {want} of run {want.run!r}")  # fmt: skip
        except MessageError as error:
            return error
        return message.tensors

    def _register_applicant(self, session: Session, envelope: Envelope) -> Packet | None:
        """Record a new incarnation of a lost party, which must wait until it is readmitted.

        If the new incarnation requested a receipt, return the packet that tells it to wait; otherwise ``None``.
        """
        session.applicant = "" if envelope.bye or envelope.gone else envelope.life
        answer = Envelope(life=self.incarnation, to=envelope.life, wait=True)
        return (session.name, answer, b"") if session.applicant and envelope.ask else None

    def _farewell(self, session: Session, to: str) -> Packet:
        """Return the packet that informs another party that this party leaves or has given up on the other party.

        ``to`` is the incarnation of the other party.
        """
        gone = "" if self._bye else session.gone
        acks = dict(session.incoming.expected)
        return session.name, Envelope(life=self.incarnation, to=to, acks=acks, bye=self._bye, gone=gone), b""

    # ---- sending, on the endpoint's own thread

    def _work(self) -> None:
        while packets := self._next():
            for packet in packets:
                self._put(*packet)

    def _next(self) -> list[Packet]:
        """Wait until packets are due, and return them; return an empty list when this party leaves."""
        with self._lock:
            while True:
                now, packets, stopped = self.clock(), list[Packet](), self.stop_reason()
                for session in self.sessions.values():
                    if stopped:
                        session.lose(stopped)
                    session.check_silence(now)
                    if not session.gone:
                        packets += session.packets(self.incarnation, now)
                if packets or self._bye:
                    return packets
                times = [time for session in self.sessions.values() if not session.gone for time in session.times()]
                self._lock.wait(min(self._rest_s, max(0.001, min(times, default=now + self._rest_s) - now)))

    def _put(self, to: str, envelope: Envelope, data: bytes) -> None:
        self.carrier.put(to, envelope.write(), data)
