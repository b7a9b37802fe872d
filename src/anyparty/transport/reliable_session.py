"""The state of one party's connection to one other party: messages on their way, in both directions.

The messages of one sender, receiver and tag are numbered.  The sender keeps a message until the receiver has
acknowledged it.  The receiver accepts each number once, in order.  The receipt, which acknowledges a message, travels
with the next message in the opposite direction.  A round of embeddings and gradients therefore needs no third message.

On a slow line, a large message may need more time than a sender waits for a sign of life.  While the message arrives,
the receiver reports the progress from time to time, so the sender knows that the receiver is alive.  The sender infers
the loss of a message from an answer of the receiver, never from elapsed time (``reliable_buffers`` explains this).

This module has no thread, no lock and no clock: ``ReliableEndpoint`` holds its lock around every call and passes the
time ``now``, in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anyparty.errors import MessageError, PartyLost
from anyparty.transport.reliable_buffers import LONG_AGO, Envelope, Incoming, Item, Outgoing, check_piece

Packet = tuple[str, Envelope, bytes]  # (receiver, envelope, a piece of a message or no bytes)


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """The timeouts of a party, in seconds.

    Attributes:
        join_s: the longest wait for the first sign of life of another party.
        silent_s: the longest wait for a further sign of life of another party.
        message_s: the longest wait until a party that gives signs of life sends the next message, or accepts further
            messages.
        retry_s: the delay before a receipt request for a message; it doubles with each repetition of the message.
        receipt_s: the longest delay of a receipt, which waits for a message that can carry it.
        flush_s: the longest wait for an acknowledgement of the last messages, when a party leaves.
        back_s: the time during which a passive party that was cut off tries to reach the active party again.

    """

    join_s: float = 120.0
    silent_s: float = 10.0
    message_s: float = 3600.0
    retry_s: float = 2.0
    receipt_s: float = 0.25
    flush_s: float = 10.0
    back_s: float = 30.0


@dataclass
class PendingReceive:
    """A coroutine that has waited for a message since the time ``since``; ``give`` passes the message to it."""

    give: Callable[[Item], None]
    since: float


@dataclass
class Traffic:
    """The counts of messages, bytes (with headers) and repetitions that were sent to one party.

    A repetition is counted as one more message, with the bytes that were sent again.
    """

    messages: int = 0
    bytes_sent: int = 0
    repeated: int = 0


@dataclass
class Session:
    """The state of the connection to one other party, the *peer*.

    Times are in seconds, on the clock of the endpoint.

    Attributes:
        name: the peer.
        patience: the timeouts.
        incarnation: the incarnation of the peer; empty before its first packet.
        last_heard: the time of the last packet from the peer; ``None`` before its first packet.
        last_asked: the last time at which the peer was asked for a sign of life or a receipt.
        asks_sent: the number of receipt requests sent to the peer.
        asks_received: the number of the peer's latest receipt request that has arrived.
        last_report: the time of the last full report to the peer of all messages and pieces that have arrived.
        last_progress: the last time at which the peer acknowledged further messages or pieces.
        gone: the reason why this party gave up on the peer, or why the peer left; empty while the peer is connected.
        paused: True if the peer does not accept messages yet.
        silent: True if this party gave up on the peer because it gave no sign of life.
        gave_us_up: True if the peer has given up on this party.
        former: the peer's earlier incarnations, whose late packets are ignored.
        applicant: the peer's incarnation that waits to be readmitted; empty if no incarnation waits.
        error: the error of a packet from the peer that could not be read.
        report_due: whether a full report is to be sent to the peer.
        receipts_due: for each tag, the time since which a receipt is due.
        outgoing: the messages that the peer has not acknowledged, by tag and number.
        next_number: for each tag, the number of the next message to send.
        incoming: the messages and pieces that have arrived from the peer.
        waiting: the coroutines that wait for messages from the peer, by tag.
        blocked_since: the times at which coroutines began to wait for the peer to accept messages.
        traffic: the traffic to the peer.

    """

    name: str
    patience: Timeouts
    incarnation: str = ""
    last_heard: float | None = None
    last_asked: float = LONG_AGO
    asks_sent: int = 0
    asks_received: int = 0
    last_report: float = LONG_AGO
    last_progress: float = LONG_AGO
    gone: str = ""
    paused: bool = False
    silent: bool = False
    gave_us_up: bool = False
    former: frozenset[str] = frozenset()
    applicant: str = ""
    error: MessageError | None = None
    report_due: bool = False
    receipts_due: dict[str, float] = field(default_factory=dict)
    outgoing: dict[tuple[str, int], Outgoing] = field(default_factory=dict)
    next_number: Counter[str] = field(default_factory=Counter)
    incoming: Incoming = field(default_factory=Incoming)
    waiting: dict[str, PendingReceive] = field(default_factory=dict)
    blocked_since: list[float] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def take(self, tag: str) -> Item | None:
        """Remove and return the next message of a tag, or return the error that explains why no message will come."""
        if (item := self.incoming.take(tag)) is not None:
            return item
        if self.error is not None:
            return self.error
        if self.gone:
            number = self.incoming.expected[tag]
            return PartyLost(self.name, f"{self.gone} (message {tag!r} no. {number} did not come)")
        return None

    def deliver(self) -> None:
        """Give arrived messages, or errors, to the coroutines that wait for them."""
        for tag in list(self.waiting):
            if (item := self.take(tag)) is not None:
                self.waiting.pop(tag).give(item)

    def fail(self, error: MessageError) -> None:
        """Record that the peer sent an unreadable packet; coroutines that wait for the peer get the error."""
        self.error = error
        self.deliver()

    def lose(self, why: str) -> None:
        """Give up on the peer for the reason ``why``: drop messages on their way, and wake waiting coroutines."""
        if not self.gone:
            self.gone = why
            self.outgoing.clear()
            self.incoming.drop_pieces()
            self.deliver()

    def check_silence(self, now: float) -> None:
        """Give up on the peer if it has been silent, or has made no progress, for too long."""
        patience = self.patience
        waits = [(waiting.since, "sent nothing") for waiting in self.waiting.values()]
        waits += [(since, "did not take what was sent") for since in self.blocked_since]
        for since, idle in waits:
            if self.last_heard is None:
                limit, silent, what = patience.join_s, now - since, "did not appear"
            else:
                limit, silent, what = patience.silent_s, now - max(since, self.last_heard), "gave no sign of life"
            if silent > limit:
                self.silent = True
                self.lose(f"it {what} for {limit:g} s")
            elif now - since > patience.message_s:
                self.lose(f"it is alive but {idle} for {patience.message_s:g} s")

    # ---- receiving

    def read(self, envelope: Envelope, now: float) -> None:
        """Process the envelope of a packet from the peer."""
        if self.incarnation and self.incarnation != envelope.life:
            self.lose("its process was restarted during the run")
            self.applicant = envelope.life
            return
        self.incarnation, self.last_heard, self.paused = envelope.life, now, envelope.wait
        self.report_due |= envelope.ask > 0
        self.asks_received = max(self.asks_received, envelope.ask)
        self._read_receipts(envelope, now)
        if envelope.gone:
            self.gave_us_up = True
            self.lose(f"it has given this party up: {envelope.gone}")
        elif envelope.bye:
            self.lose(f"it left: {envelope.bye}")

    def _read_receipts(self, envelope: Envelope, now: float) -> None:
        """Record the messages and pieces that have arrived at the peer, and the messages that were lost."""
        for key in [key for key in self.outgoing if key[1] < envelope.acks.get(key[0], 0)]:
            del self.outgoing[key]
            self.last_progress = now
        for tag, arrived in envelope.parts.items():
            message = self.outgoing.get((tag, envelope.acks[tag]))
            if message is not None and arrived > message.acked:
                message.acked = arrived
                message.schedule_ask(now, self.patience.retry_s)
                self.last_progress = now
        if 0 < envelope.answers <= self.asks_sent:
            for message in self.outgoing.values():
                message.answered(envelope.answers)

    def add_piece(self, envelope: Envelope, data: bytes, most_bytes: int) -> bytes | None:
        """Store a piece of a message; return the whole message if no piece is missing."""
        tag, number = envelope.tag, envelope.number
        if self.incoming.has(tag, number):
            self.receipts_due[tag] = LONG_AGO  # due at once: a repeated message shows that the last receipt was lost
            return None
        awaited = tag in self.waiting and number == self.incoming.expected[tag]
        try:
            check_piece(envelope, data, most_bytes, repr(self.name))
            return self.incoming.add_piece(envelope, data, most_bytes, repr(self.name), awaited=awaited)
        except MessageError as error:
            self.fail(error)
            return None

    def add_message(self, tag: str, number: int, item: Item, now: float) -> None:
        """Store a decoded message, and give arrived messages to the coroutines that wait for them."""
        if self.incoming.add_message(tag, number, item):
            self.receipts_due.setdefault(tag, now)
            self.deliver()

    # ---- sending

    def packets(self, incarnation: str, now: float) -> Iterator[Packet]:
        """Yield the packets to send now.  Messages wait until the peer has appeared and accepts them."""
        ready = [key for key, message in self.outgoing.items() if message.ready] if self.accepts_messages else []
        ask = self._ask(now, instead=bool(ready))
        late = any(now - since >= self.patience.receipt_s for since in self.receipts_due.values())
        report_every = min(self.patience.silent_s / 5, self.patience.retry_s)
        self.report_due |= bool(self.incoming.pieces) and now - self.last_report >= report_every
        if self.report_due:
            self.last_report = now
        if not ready and (ask or late or self.report_due):
            yield self.name, Envelope(life=incarnation, to=self.incarnation, ask=ask, **self._receipts()), b""
        for key in ready:
            yield from self._pieces(*key, incarnation, now)

    @property
    def accepts_messages(self) -> bool:
        """True if the peer has appeared and is not paused."""
        return self.last_heard is not None and not self.paused

    def _ask(self, now: float, *, instead: bool) -> int:
        """Return the number of the receipt request to send now; 0 if no request is to be sent.

        If a message is sent now (``instead`` is true), no request is needed, because the message's receipt is also a
        sign of life.
        """
        patience = self.patience
        every = patience.silent_s / 5 if self.last_heard is not None else min(0.5, patience.silent_s / 5)
        quiet = self.last_heard is None or now - self.last_heard >= every
        alive = bool(self.waiting or self.outgoing) and quiet and now - self.last_asked >= every
        overdue = []
        if self.accepts_messages and not instead:
            overdue = [message for message in self.outgoing.values() if message.ask_at <= now]
        if not (alive or overdue):
            return 0
        self.last_asked = now
        if instead:
            return 0
        for message in overdue:
            message.schedule_ask(now, patience.retry_s)
        self.asks_sent += 1
        return self.asks_sent

    def _pieces(self, tag: str, number: int, incarnation: str, now: float) -> Iterator[Packet]:
        message = self.outgoing[tag, number]
        self.traffic.messages += 1
        self.traffic.bytes_sent += message.bytes_left
        self.traffic.repeated += message.attempts > 0
        message.mark_sent(now, self.patience.retry_s, self.asks_sent)
        for piece, data in message.unacked_pieces():
            envelope = Envelope(life=incarnation, to=self.incarnation, tag=tag, number=number, piece=piece,
                                pieces=message.pieces, **self._receipts())  # fmt: skip
            yield self.name, envelope, data

    def _receipts(self) -> dict[str, Any]:
        """Return the fields of an envelope for a full report or the due receipts; record that no receipt is due now."""
        expected = self.incoming.expected
        if self.report_due:
            parts = self.incoming.progress()
            acks = dict(expected) | {tag: expected[tag] for tag in parts}
            receipts: dict[str, Any] = {"acks": acks, "parts": parts, "answers": self.asks_received}
        else:
            receipts = {"acks": {tag: expected[tag] for tag in self.receipts_due}}
        self.report_due = False
        self.receipts_due.clear()
        return receipts

    @property
    def backlog(self) -> int:
        """The number of bytes in messages that are not acknowledged."""
        return sum(len(message.data) for message in self.outgoing.values())

    def is_flushing(self, since: float, now: float) -> bool:
        """Return True if a party that began to leave at ``since`` should still wait for its last messages to arrive."""
        return bool(self.outgoing) and now - max(since, self.last_progress) < self.patience.flush_s

    def times(self) -> Iterator[float]:
        """Yield the times at which a receipt, a message or a receipt request must be sent."""
        yield from (since + self.patience.receipt_s for since in self.receipts_due.values())
        if self.accepts_messages:
            yield from (LONG_AGO if message.ready else message.ask_at for message in self.outgoing.values())
