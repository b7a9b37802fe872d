"""Messages that have come from another party: pieces become messages, and messages wait in order until they are read.

Each party has a byte budget for what it makes this one hold, over all lanes: messages that nobody has read yet, and
pieces of messages that are not complete.  A piece that does not fit is forgotten and not acknowledged, so its sender
waits and sends it again later.  A party that runs ahead thus only waits; one that goes on sending other messages does
not run this code, and is refused.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.errors import MessageError, PartyLost
from anyparty.wire.flare.note import PIECE_BYTES, Note
from anyparty.wire.flare.outgoing import MOST_ON_THE_WAY
from anyparty.wire.message import MOST_HEADER_BYTES

Item = dict[str, Tensor] | MessageError | PartyLost
Key = tuple[str, int]  # tag and number of a message
WINDOW = 1024  # messages of a lane that nobody has read
MOST_TAGS = 256
HELD_MESSAGES = 2  # the budget, in messages of the greatest size: one to read, one that arrives meanwhile
OVERHEAD_BYTES = 1024  # what a message, a tensor or a piece takes beside its own bytes


@dataclass
class Incoming:
    """Messages that have come, wholly or in part.

    Attributes:
        taken: by tag, the number of the next message to take.
        pieces: messages that have not wholly arrived, or are being read, by tag and number.
        here: how many pieces of such a message are here, from the first on.
        early: messages that came before their turn, by tag and number.
        inbox: messages to read, by tag.
        lanes: all tags that have come.
        held: bytes of all messages and pieces that are held, with their overhead.
        no_room: bytes of each message that had no room so far, by tag and number.
        turned_away: the sum of these bytes, with their overhead.

    """

    taken: Counter[str] = field(default_factory=Counter)
    pieces: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    here: dict[Key, int] = field(default_factory=dict)
    early: dict[Key, Item] = field(default_factory=dict)
    inbox: dict[str, deque[Item]] = field(default_factory=dict)
    lanes: set[str] = field(default_factory=set)
    held: int = 0
    no_room: dict[Key, int] = field(default_factory=dict)
    turned_away: int = 0

    def has(self, tag: str, number: int) -> bool:
        """Return whether a message has wholly come."""
        return number < self.taken[tag] or (tag, number) in self.early

    def gather(self, note: Note, data: bytes, most_bytes: int, source: str, *, awaited: bool = False) -> bytes | None:
        """Keep a piece of a message; return the whole message when no piece is missing.

        The message that is ``awaited`` now has room for itself beyond the budget: reading goes on, and frees the rest.

        Raises:
            MessageError: the sender does not wait for room; ``source`` says in the sentence who it is.
        """
        key = (note.tag, note.number)
        if note.pieces == 1 and len(data) > most_bytes + MOST_HEADER_BYTES:
            return data  # not kept: ``decode`` refuses it unread
        if note.piece in self.pieces.get(key, ()) or self._beyond(note):
            return None
        limit = most_bytes + MOST_HEADER_BYTES
        if self.held + len(data) + OVERHEAD_BYTES > (HELD_MESSAGES + awaited) * limit:
            self._turn_away(key, len(data) if note.pieces == 1 else note.pieces * PIECE_BYTES, limit, source)
            return None
        self.turned_away -= self.no_room.pop(key, 0)
        pieces, here = self.pieces.setdefault(key, {}), self.here.get(key, 0)
        pieces[note.piece] = bytes(data)
        self.lanes.add(note.tag)
        self.held += len(data) + OVERHEAD_BYTES
        while here in pieces:
            here += 1
        self.here[key] = here
        if len(pieces) < note.pieces:
            return None
        whole = b"".join(pieces.get(place, b"") for place in range(note.pieces))
        self.pieces[key] = dict.fromkeys(pieces, b"")  # until it is filed, an answer must not say that it was lost
        self.held -= sum(map(len, pieces.values()))
        return whole

    def _beyond(self, note: Note) -> bool:
        """Return whether a piece is of a message too far ahead, or of one lane too many: it is forgotten."""
        unread = note.number - self.taken[note.tag] + len(self.inbox.get(note.tag, ()))
        return unread >= WINDOW or (note.tag not in self.lanes and len(self.lanes) >= MOST_TAGS)

    def _turn_away(self, key: Key, size: int, limit: int, source: str) -> None:
        """Note a message without room.  A sender waits once ``MOST_ON_THE_WAY`` and one message are not acknowledged.

        Raises:
            MessageError: more than twice that had no room.
        """
        turned_away = self.turned_away + size + OVERHEAD_BYTES - self.no_room.get(key, 0)
        if turned_away > 2 * (MOST_ON_THE_WAY + limit):
            raise MessageError(
                f"{source} sent {turned_away} bytes more while {self.held} bytes of its messages wait to be read, the "
                f"limit is {HELD_MESSAGES * limit}: it does not wait for room"
            )
        self.turned_away, self.no_room[key] = turned_away, size + OVERHEAD_BYTES

    def file(self, tag: str, number: int, item: Item) -> bool:
        """Put a message in its place, unless it has come before; move those whose turn it is to the inbox."""
        self._forget((tag, number))
        if self.has(tag, number):
            return False
        self.early[tag, number] = item
        self.held += bytes_of(item)
        while (tag, self.taken[tag]) in self.early:
            self.inbox.setdefault(tag, deque()).append(self.early.pop((tag, self.taken[tag])))
            self.taken[tag] += 1
        return True

    def take(self, tag: str) -> Item | None:
        """Take the next message of a lane out of the inbox; ``None`` if there is none."""
        if not self.inbox.get(tag):
            return None
        item = self.inbox[tag].popleft()
        self.held -= bytes_of(item)
        return item

    def give_back(self, tag: str, items: Iterable[Item]) -> None:
        """Put messages that were taken, and not read, back to the front of their lane."""
        for item in items:
            self.inbox.setdefault(tag, deque()).appendleft(item)
            self.held += bytes_of(item)

    def forget_pieces(self) -> None:
        """Drop all messages that have not wholly arrived."""
        for key in list(self.pieces):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        pieces = self.pieces.pop(key, {})
        self.held -= sum(len(piece) + OVERHEAD_BYTES for piece in pieces.values())
        self.here.pop(key, None)

    def parts(self) -> dict[str, int]:
        """Return how many pieces of a lane's next message are here, from the first on, if there are any."""
        here = {tag: self.here.get((tag, self.taken[tag]), 0) for tag in self.lanes} if self.here else {}
        return {tag: pieces for tag, pieces in here.items() if pieces}


def bytes_of(item: Item) -> int:
    """Return the bytes that a message takes while it waits to be read, with its overhead."""
    if isinstance(item, Exception):
        return OVERHEAD_BYTES
    return OVERHEAD_BYTES + sum(tensor.nbytes + OVERHEAD_BYTES for tensor in item.values())


def check_cut(note: Note, data: bytes, most_bytes: int, source: str) -> None:
    """Check that a piece is cut as senders cut: all of one size, but for the last, and not too many.

    Raises:
        MessageError: it is not; ``source`` says in the sentence who sent it.
    """
    if note.pieces == 1:
        return  # ``decode`` refuses one that is too large
    limit = most_bytes + MOST_HEADER_BYTES
    which = f"piece {note.piece + 1} of {note.pieces} of message {note.tag[:80]!r} no. {note.number}"
    if (note.pieces - 1) * PIECE_BYTES >= limit:
        raise MessageError(f"{source} sent {which}, which is too large: the limit is {limit} bytes")
    last = note.piece == note.pieces - 1
    if not (0 < len(data) <= PIECE_BYTES if last else len(data) == PIECE_BYTES):
        raise MessageError(f"{source} sent {which} with {len(data)} bytes, expected {'1 to ' if last else ''}"
                           f"{PIECE_BYTES}")  # fmt: skip
