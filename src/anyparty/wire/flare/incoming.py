"""What has come from another party: pieces become messages, and messages wait in their lane's order to be read."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.errors import MessageError, PartyLost
from anyparty.wire.flare.note import Note
from anyparty.wire.message import MOST_HEADER_BYTES

Item = dict[str, Tensor] | MessageError | PartyLost
WINDOW = 1024  # messages of a lane that nobody has read
MOST_TAGS = 256


@dataclass
class Incoming:
    """Messages that have come, wholly or in part.

    Attributes:
        taken: by tag, the number of the next message to take.
        pieces: messages that have not wholly arrived, or are being read, by tag and number.
        early: messages that came before their turn, by tag and number.
        inbox: messages to read, by tag.

    """

    taken: Counter[str] = field(default_factory=Counter)
    pieces: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    early: dict[tuple[str, int], Item] = field(default_factory=dict)
    inbox: dict[str, deque[Item]] = field(default_factory=dict)

    def has(self, tag: str, number: int) -> bool:
        """Return whether a message has wholly come."""
        return number < self.taken[tag] or (tag, number) in self.early

    def gather(self, note: Note, data: bytes, most_bytes: int) -> bytes | None:
        """Keep a piece of a message; return the whole message when no piece is missing."""
        key = (note.tag, note.number)
        if self._too_much(note, most_bytes) or note.piece in self.pieces.get(key, ()):
            return None
        pieces = self.pieces.setdefault(key, {})
        pieces[note.piece] = bytes(data)
        if len(pieces) < note.pieces:
            return None
        self.pieces[key] = dict.fromkeys(pieces, b"")  # until it is filed, an answer must not say that it was lost
        return b"".join(pieces.get(place, b"") for place in range(note.pieces))

    def _too_much(self, note: Note, most_bytes: int) -> bool:
        """Say whether there is no room for a piece: it is forgotten, and will come again."""
        unread = note.number - self.taken[note.tag] + len(self.inbox.get(note.tag, ()))
        held = sum(len(piece) for pieces in self.pieces.values() for piece in pieces.values()) if self.pieces else 0
        tags = self.taken.keys() | {note.tag}
        return unread >= WINDOW or held > most_bytes + MOST_HEADER_BYTES or len(tags) > MOST_TAGS

    def file(self, tag: str, number: int, item: Item) -> bool:
        """Put a message in its place, unless it has come before; move those whose turn it is to the inbox."""
        self.pieces.pop((tag, number), None)
        if self.has(tag, number):
            return False
        self.early[tag, number] = item
        while (tag, self.taken[tag]) in self.early:
            self.inbox.setdefault(tag, deque()).append(self.early.pop((tag, self.taken[tag])))
            self.taken[tag] += 1
        return True

    def parts(self) -> dict[str, int]:
        """Return how many pieces of a lane's next message are here, from the first on, where any are."""
        here = {
            tag: next(piece for piece in itertools.count() if piece not in pieces)
            for (tag, number), pieces in self.pieces.items()
            if number == self.taken[tag]
        }
        return {tag: pieces for tag, pieces in here.items() if pieces}
