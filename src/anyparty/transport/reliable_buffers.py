"""Packets and buffers of one pair of parties.

A packet is an envelope and a piece of a message.  The envelope also carries receipts, which acknowledge messages in the
opposite direction.  The buffers hold messages that wait for an acknowledgement, and messages that wait to be read.

Sending.  A message is cut into pieces.  Elapsed time alone never causes a repetition, because a message may still be on
its way on a slow line.  If the receipt of a message takes long, the sender sends a receipt request.  Receipt requests
are numbered and follow the message on the line.  The message was therefore lost if the answer to a later request does
not acknowledge the message.  The sender then repeats the message from its first missing piece.  A carrier that keeps
the order and loses nothing carries each piece once, however slow the carrier is.  Over any other carrier, a message is
sent twice if a receipt request overtakes the message.

Receiving.  Pieces are joined to messages, and messages wait in order until they are read.  Each sender has a budget of
bytes for the unread messages and the pieces of incomplete messages of all its tags.  A piece beyond the budget is
dropped and not acknowledged, and the sender repeats the piece later.  A sender that runs this code waits while many of
its bytes are not acknowledged.  If a sender continues to send large amounts, the receiver raises an error.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from anyparty.errors import MessageError, PartyLost
from anyparty.transport.codec import MOST_HEADER_BYTES

MOST_LETTERS = 100_000  # maximum length of an envelope, in characters
MOST_REASON = 2000  # maximum length, in characters, of the reason in the field ``bye`` or ``gone``
PIECE_BYTES = 1 << 20  # size of the pieces into which a message is cut


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The header of a packet.  The names of the fields are also used in the packet.

    Attributes:
        life: the incarnation of the sender: a random name of its process.  A restarted process has a new name.
        to: the receiver's incarnation; empty before the sender has heard from the receiver.
        acks: for each tag, the number of the next message that the sender of the envelope expects.  The sender has
            received all earlier messages of the tag.
        parts: for each tag, the number of arrived leading pieces of the message whose number is in ``acks``.
        ask: the number of this receipt request, from 1; 0 if the packet is not a request.  A receipt request asks for
            an immediate report of all messages and pieces that have arrived.
        answers: in a report of all messages and pieces that have arrived, the number of the receiver's latest receipt
            request; 0 in other packets.
        bye: the reason why the sender leaves; it will send nothing more.
        gone: the reason why the sender has given up on the receiver.
        wait: True if the sender does not accept messages yet, because the receiver still has to be readmitted.
        tag: the tag of the message to which the piece in the packet belongs; empty if the packet has no piece.
        number: the number of the message among the messages with its tag.
        piece: the index of the piece, from 0.
        pieces: the number of pieces of the message.

    """

    life: str
    to: str = ""
    acks: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    ask: int = 0
    answers: int = 0
    bye: str = ""
    gone: str = ""
    wait: bool = False
    tag: str = ""
    number: int = 0
    piece: int = 0
    pieces: int = 1

    def write(self) -> str:
        """Return the envelope as JSON, without fields at their defaults.

        >>> Envelope(life="a1", tag="embedding", number=7).write()
        '{"life":"a1","tag":"embedding","number":7}'
        """
        changed = {name: value for name, value in vars(self).items() if value != DEFAULTS.get(name)}
        return json.dumps(changed, separators=(",", ":"))

    def for_former_incarnation(self, *, wait: bool) -> Envelope:
        """Return an envelope with only the fields that stay valid if the packet was sent to a party's former process.

        These fields are ``life``, ``ask`` and ``bye``.
        """
        return Envelope(life=self.life, ask=self.ask, bye=self.bye, wait=wait)

    @classmethod
    def read(cls, text: object, source: str) -> Envelope:
        """Return an envelope that was parsed from JSON and validated.

        Raises:
            MessageError: ``text`` is not an envelope.
        """
        if not isinstance(text, str) or len(text) > MOST_LETTERS:
            raise MessageError(f"{source} sent a packet without an envelope of anyparty")
        try:
            values = json.loads(text)
            envelope = cls(**values)
            fits = all(type(value) is KINDS[name] for name, value in values.items())
            counts = [*envelope.acks.values(), *envelope.parts.values()]
            fits = fits and all(type(count) is int for count in counts)
            fits = fits and envelope.parts.keys() <= envelope.acks.keys()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise MessageError(f"{source} sent a packet with an envelope that cannot be read: {text[:80]!r}") from None
        numbers = (envelope.number, envelope.ask, envelope.answers)
        if not fits or min(numbers) < 0 or not 0 <= envelope.piece < envelope.pieces:
            raise MessageError(f"{source} sent a packet with a contradictory envelope: {text[:80]!r}")
        return replace(envelope, bye=printable(envelope.bye), gone=printable(envelope.gone))


def printable(sentence: str) -> str:
    """Return a remote party's sentence safe for a terminal: cut, and with blanks in place of control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in sentence[:MOST_REASON])


DEFAULTS = vars(Envelope(life=""))
KINDS = {name: type(value) for name, value in DEFAULTS.items()}


Item = dict[str, Tensor] | MessageError | PartyLost
Key = tuple[str, int]  # (tag, number) of a message
LONG_AGO = float("-inf")
MOST_ON_THE_WAY = 64 << 20  # ``send`` waits while the number of unacknowledged bytes to a party exceeds this limit
WINDOW = 1024  # maximum number of unread messages of a tag
MOST_TAGS = 256
HELD_MESSAGES = 2  # number of messages of the maximum size that a receiver stores for one sender
OVERHEAD_BYTES = 1024  # the memory that a message, a tensor or a piece takes in addition to its own bytes


@dataclass
class Outgoing:
    """A message that the receiver has not acknowledged yet.

    Attributes:
        data: the encoded message.
        ready: whether to send the message now, because it is new or was lost.
        ask_at: the time of the next receipt request, in seconds.
        attempts: the number of times that the message was sent.
        asks_before: the number of receipt requests to the receiver before the message was last sent.
        acked: the number of leading pieces of the message that have arrived.

    """

    data: bytes
    ready: bool = True
    ask_at: float = LONG_AGO
    attempts: int = 0
    asks_before: int = 0
    acked: int = 0

    @property
    def pieces(self) -> int:
        """The number of pieces that the message is cut into."""
        return -(-len(self.data) // PIECE_BYTES)

    @property
    def bytes_left(self) -> int:
        """The number of bytes in the pieces that are not acknowledged."""
        return max(0, len(self.data) - self.acked * PIECE_BYTES)

    def mark_sent(self, now: float, retry_s: float, asks: int) -> None:
        """Record that the message is sent at the time ``now``, after ``asks`` receipt requests to the receiver."""
        self.ready, self.asks_before = False, asks
        self.attempts += 1
        self.schedule_ask(now, retry_s)

    def schedule_ask(self, now: float, retry_s: float) -> None:
        """Set the time of the next receipt request; the delay doubles with each repetition of the message."""
        self.ask_at = now + retry_s * 2 ** min(self.attempts - 1, 5)

    def answered(self, ask: int) -> None:
        """Mark the message to be sent again if the answer to the receipt request ``ask`` shows the loss of the message.

        The message was lost if it was sent before this request, and some of its pieces are still not acknowledged.
        """
        self.ready |= self.asks_before < ask and self.acked < self.pieces

    def unacked_pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the index and the bytes of each piece that is not acknowledged."""
        for piece in range(self.acked, self.pieces):
            whole = self.pieces == 1
            yield piece, self.data if whole else self.data[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]


@dataclass
class Incoming:
    """Messages of one sender that have arrived, wholly or in part.

    Attributes:
        expected: for each tag, the number of the next message in order.
        pieces: pieces of messages that are incomplete or being decoded, by tag and number.
        leading: the number of leading pieces that have arrived, for each message in ``pieces``.
        early: complete messages that arrived before their turn, by tag and number.
        inbox: messages to read, by tag.
        tags: the tags of all messages that have arrived wholly or in part.
        held_bytes: the number of bytes of all messages and pieces in memory, with their overhead.
        rejected: the number of bytes, with overhead, of each message for which there was no room, by tag and number.
        rejected_bytes: the sum of the numbers in ``rejected``.

    """

    expected: Counter[str] = field(default_factory=Counter)
    pieces: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    leading: dict[Key, int] = field(default_factory=dict)
    early: dict[Key, Item] = field(default_factory=dict)
    inbox: dict[str, deque[Item]] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    held_bytes: int = 0
    rejected: dict[Key, int] = field(default_factory=dict)
    rejected_bytes: int = 0

    def has(self, tag: str, number: int) -> bool:
        """Return True if a message has completely arrived."""
        return number < self.expected[tag] or (tag, number) in self.early

    def add_piece(
        self, envelope: Envelope, data: bytes, most_bytes: int, source: str, *, awaited: bool = False
    ) -> bytes | None:
        """Store a piece of a message; return the whole message if no piece is missing.

        If a coroutine waits for the message (``awaited``), the budget is one message larger, because the coroutine
        reads this message at once.

        Raises:
            MessageError: the sender continues to send although there is no room; ``source`` describes the sender in the
                error.
        """
        key = (envelope.tag, envelope.number)
        if envelope.pieces == 1 and len(data) > most_bytes + MOST_HEADER_BYTES:
            return data  # ``decode`` will reject this message, because it is too large
        if envelope.piece in self.pieces.get(key, ()) or self._is_beyond_window(envelope):
            return None
        limit = most_bytes + MOST_HEADER_BYTES
        if self.held_bytes + len(data) + OVERHEAD_BYTES > (HELD_MESSAGES + awaited) * limit:
            self._reject(key, len(data) if envelope.pieces == 1 else envelope.pieces * PIECE_BYTES, limit, source)
            return None
        self.rejected_bytes -= self.rejected.pop(key, 0)
        pieces, leading = self.pieces.setdefault(key, {}), self.leading.get(key, 0)
        pieces[envelope.piece] = bytes(data)
        self.tags.add(envelope.tag)
        self.held_bytes += len(data) + OVERHEAD_BYTES
        while leading in pieces:
            leading += 1
        self.leading[key] = leading
        if len(pieces) < envelope.pieces:
            return None
        whole = b"".join(pieces.get(place, b"") for place in range(envelope.pieces))
        # Empty bytes replace the pieces until the message is decoded, so that they do not count as missing.
        self.pieces[key] = dict.fromkeys(pieces, b"")
        self.held_bytes -= sum(map(len, pieces.values()))
        return whole

    def _is_beyond_window(self, envelope: Envelope) -> bool:
        """Return True if a piece must be dropped, because its message is too far ahead or there are too many tags."""
        unread = envelope.number - self.expected[envelope.tag] + len(self.inbox.get(envelope.tag, ()))
        return unread >= WINDOW or (envelope.tag not in self.tags and len(self.tags) >= MOST_TAGS)

    def _reject(self, key: Key, size: int, limit: int, source: str) -> None:
        """Record a message that was rejected, because there is no room for it.

        The sender must leave at most ``MOST_ON_THE_WAY`` bytes and one message unacknowledged, which bounds the number
        of rejected bytes.

        Raises:
            MessageError: the rejected messages have more than twice as many bytes.
        """
        rejected = self.rejected_bytes + size + OVERHEAD_BYTES - self.rejected.get(key, 0)
        if rejected > 2 * (MOST_ON_THE_WAY + limit):
            raise MessageError(
                f"{source} sent {rejected} bytes more while {self.held_bytes} bytes of its messages wait to be read, "
                f"the limit is {HELD_MESSAGES * limit}: it ignores flow control"
            )
        self.rejected_bytes, self.rejected[key] = rejected, size + OVERHEAD_BYTES

    def add_message(self, tag: str, number: int, item: Item) -> bool:
        """Store a message and return True, or return False if the message has arrived before.

        The stored messages that are now next in order are moved to the inbox.
        """
        self._drop_pieces_of((tag, number))
        if self.has(tag, number):
            return False
        self.early[tag, number] = item
        self.held_bytes += bytes_of(item)
        while (tag, self.expected[tag]) in self.early:
            self.inbox.setdefault(tag, deque()).append(self.early.pop((tag, self.expected[tag])))
            self.expected[tag] += 1
        return True

    def take(self, tag: str) -> Item | None:
        """Remove and return the next message of a tag in the inbox; return ``None`` if the inbox has none."""
        if not self.inbox.get(tag):
            return None
        item = self.inbox[tag].popleft()
        self.held_bytes -= bytes_of(item)
        return item

    def put_back(self, tag: str, items: Iterable[Item]) -> None:
        """Put back messages, which were taken but not used, at the front of the inbox."""
        for item in items:
            self.inbox.setdefault(tag, deque()).appendleft(item)
            self.held_bytes += bytes_of(item)

    def drop_pieces(self) -> None:
        """Drop all incomplete messages."""
        for key in list(self.pieces):
            self._drop_pieces_of(key)

    def _drop_pieces_of(self, key: Key) -> None:
        pieces = self.pieces.pop(key, {})
        self.held_bytes -= sum(len(piece) + OVERHEAD_BYTES for piece in pieces.values())
        self.leading.pop(key, None)

    def progress(self) -> dict[str, int]:
        """Return the number of arrived leading pieces of the next message, by tag; leave out zeros."""
        found = {tag: self.leading.get((tag, self.expected[tag]), 0) for tag in self.tags} if self.leading else {}
        return {tag: pieces for tag, pieces in found.items() if pieces}


def bytes_of(item: Item) -> int:
    """Return the number of bytes that an unread message takes, with its overhead."""
    if isinstance(item, Exception):
        return OVERHEAD_BYTES
    return OVERHEAD_BYTES + sum(tensor.nbytes + OVERHEAD_BYTES for tensor in item.values())


def check_piece(envelope: Envelope, data: bytes, most_bytes: int, source: str) -> None:
    """Check the size of a piece: all pieces but the last have ``PIECE_BYTES``, and the message is not too large.

    Raises:
        MessageError: the size is wrong; ``source`` describes the sender in the error.
    """
    if envelope.pieces == 1:
        return  # ``decode`` checks the size of a message that has one piece
    limit = most_bytes + MOST_HEADER_BYTES
    which = f"piece {envelope.piece + 1} of {envelope.pieces} of message {envelope.tag[:80]!r} no. {envelope.number}"
    if (envelope.pieces - 1) * PIECE_BYTES >= limit:
        raise MessageError(f"{source} sent {which}, which is too large: the limit is {limit} bytes")
    last = envelope.piece == envelope.pieces - 1
    if not (0 < len(data) <= PIECE_BYTES if last else len(data) == PIECE_BYTES):
        raise MessageError(f"{source} sent {which} with {len(data)} bytes, expected {'1 to ' if last else ''}"
                           f"{PIECE_BYTES}")  # fmt: skip
