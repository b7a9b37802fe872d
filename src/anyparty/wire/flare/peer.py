"""What a party knows of one other: the messages on their way between the two, both directions.

Every message has a number in its lane (sender, receiver, tag).  The sender keeps it until the receiver has said that
it came, and sends it again otherwise; the receiver takes each number once, in order.  That receipt rides on the next
message the other way, so that a round of embeddings and gradients costs no third message.

No thread, no lock, no clock here: see ``post``, which holds its lock around every call and passes ``now``, in seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.errors import MessageError, PartyLost
from anyparty.wire.flare.note import PIECE_BYTES, Note
from anyparty.wire.message import MOST_HEADER_BYTES

Item = dict[str, Tensor] | MessageError | PartyLost
Parcel = tuple[str, Note, bytes]
LONG_AGO = float("-inf")
WINDOW = 1024  # messages of a lane that nobody has read
MOST_TAGS = 256
SLOWEST_LINE = 1e6  # bytes a second: what is still on its way on such a line is not sent again


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds.

    Attributes:
        join_s: for a party to appear at all, from when it is first waited for.
        silent_s: for any sign of life, while one waits for a party that has appeared.
        message_s: for a message of a party that is alive.
        retry_s: before an unacknowledged message is sent again, doubling each time.
        receipt_s: that a receipt waits for a message to ride on.
        flush_s: at the end, for the last messages to arrive.
        back_s: that a passive party which was cut off tries to reach the active one again.

    """

    join_s: float = 120.0
    silent_s: float = 10.0
    message_s: float = 3600.0
    retry_s: float = 2.0
    receipt_s: float = 0.25
    flush_s: float = 10.0
    back_s: float = 30.0


@dataclass
class Outgoing:
    """A message that the other side has not yet acknowledged."""

    data: bytes
    due: float = LONG_AGO
    tries: int = 0


@dataclass
class Waiting:
    """Somebody who waits for a message."""

    give: Callable[[Item], None]
    since: float


@dataclass
class Traffic:
    """What went to one party: messages and their bytes, headers included; how many were sent more than once."""

    messages: int = 0
    bytes_sent: int = 0
    repeated: int = 0


@dataclass
class Peer:
    """The other party, as seen from here.

    Attributes:
        name: the party.
        patience: how long to wait for it.
        life: its process.
        heard: when it last gave a sign of life.
        asked: when it was last asked for one.
        gone: why it is not listened to any more; empty while it is.
        held: it says that it does not listen yet.
        silent: it was given up since it gave no sign of life.
        refused: it has given this party up.
        former: its processes that are gone; what they sent and is still on its way is nothing.
        knocks: the process of that name which asks to be let in, since the one before is gone; empty if none does.
        bad: what it sent that cannot be read.
        answer: it waits for a sign of life from here.
        owed: by tag, since when a receipt is owed.
        out: messages that it has not acknowledged, by tag and number.
        sent, taken: by tag, the number of the next message to send, to take.
        pieces, early: messages that have not wholly arrived, that came before their turn, by tag and number.
        inbox: messages to read, by tag.
        waiting: who waits, by tag.
        pressing: since when parts of this party wait until more of what they have sent has arrived.
        traffic: what went there.

    """

    name: str
    patience: Patience
    life: str = ""
    heard: float | None = None
    asked: float = LONG_AGO
    gone: str = ""
    held: bool = False
    silent: bool = False
    refused: bool = False
    former: frozenset[str] = frozenset()
    knocks: str = ""
    bad: MessageError | None = None
    answer: bool = False
    owed: dict[str, float] = field(default_factory=dict)
    out: dict[tuple[str, int], Outgoing] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    pieces: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    early: dict[tuple[str, int], Item] = field(default_factory=dict)
    inbox: dict[str, deque[Item]] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    pressing: list[float] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def next(self, tag: str) -> Item | None:
        """Take the next message of a lane, or the reason that none will come."""
        if queue := self.inbox.get(tag):
            return queue.popleft()
        if self.bad is not None:
            return self.bad
        if self.gone:
            return PartyLost(self.name, f"{self.gone} (message {tag!r} no. {self.taken[tag]} did not come)")
        return None

    def serve(self) -> None:
        """Give those who wait what there is for them."""
        for tag in list(self.waiting):
            if (item := self.next(tag)) is not None:
                self.waiting.pop(tag).give(item)

    def lose(self, why: str) -> None:
        """Give the party up, for the rest of the run: it may have missed messages."""
        if not self.gone:
            self.gone = why
            self.out.clear()
            self.pieces.clear()
            self.serve()

    def check(self, now: float) -> None:
        """Give the party up if it has been silent for too long."""
        wait = self.patience
        waits = [(waiting.since, "sent nothing") for waiting in self.waiting.values()]
        waits += [(since, "did not take what was sent") for since in self.pressing]
        for since, idle in waits:
            if self.heard is None:
                limit, silent, what = wait.join_s, now - since, "did not appear"
            else:
                limit, silent, what = wait.silent_s, now - max(since, self.heard), "gave no sign of life"
            if silent > limit:
                self.silent = True
                self.lose(f"it {what} for {limit:g} s")
            elif now - since > wait.message_s:
                self.lose(f"it is alive but {idle} for {wait.message_s:g} s")

    # ---- what arrives

    def read(self, note: Note, now: float) -> None:
        """Take the news of a parcel."""
        if self.life and self.life != note.life:
            self.lose("its process was started anew in the middle of the run")
            self.knocks = note.life
            return
        self.life, self.heard, self.held = note.life, now, note.wait
        self.answer |= note.ask
        for tag, number in note.acks.items():
            for key in [key for key in self.out if key[0] == tag and key[1] < number]:
                del self.out[key]
        if note.gone:
            self.refused = True
            self.lose(f"it has given this party up: {note.gone}")
        elif note.bye:
            self.lose(f"it left: {note.bye}")

    def gather(self, note: Note, data: bytes, most_bytes: int) -> bytes | None:
        """Keep a piece of a message; return the whole message when no piece is missing."""
        key = (note.tag, note.number)
        if note.number < self.taken[note.tag] or key in self.early:
            self.owed[note.tag] = LONG_AGO  # it came before, so its receipt was lost: say so at once
            return None
        if self._too_much(note, most_bytes):
            return None
        if note.pieces == 1:
            return data
        pieces = self.pieces.setdefault(key, {})
        pieces[note.piece] = bytes(data)
        if len(pieces) < note.pieces:
            return None
        del self.pieces[key]
        return b"".join(pieces.get(place, b"") for place in range(note.pieces))

    def _too_much(self, note: Note, most_bytes: int) -> bool:
        """Say whether there is no room for a piece: it is forgotten, and will come again."""
        unread = note.number - self.taken[note.tag] + len(self.inbox.get(note.tag, ()))
        held = sum(len(piece) for pieces in self.pieces.values() for piece in pieces.values()) if self.pieces else 0
        tags = self.taken.keys() | {note.tag}
        return unread >= WINDOW or held > most_bytes + MOST_HEADER_BYTES or len(tags) > MOST_TAGS

    def file(self, tag: str, number: int, item: Item, now: float) -> None:
        """Put a message in its place; move those whose turn it is to the inbox."""
        self.pieces.pop((tag, number), None)
        if number < self.taken[tag] or (tag, number) in self.early:
            return
        self.early[tag, number] = item
        while (tag, self.taken[tag]) in self.early:
            self.inbox.setdefault(tag, deque()).append(self.early.pop((tag, self.taken[tag])))
            self.taken[tag] += 1
        self.owed.setdefault(tag, now)
        self.serve()

    # ---- what is sent

    def parcels(self, life: str, now: float) -> Iterator[Parcel]:
        """Yield what is to be sent now.  Messages wait until the party has been heard of and listens."""
        every = self.patience.silent_s / 5 if self.heard is not None else min(0.5, self.patience.silent_s / 5)
        quiet = self.heard is None or now - self.heard >= every
        ask = bool(self.waiting or self.out) and quiet and now - self.asked >= every
        if ask:
            self.asked = now
        listens = self.heard is not None and not self.held
        ready = [key for key, out in self.out.items() if out.due <= now] if listens else []
        late = any(now - since >= self.patience.receipt_s for since in self.owed.values())
        if not ready and (ask or late or self.answer):
            yield self.name, Note(life=life, acks=self.receipts(), ask=ask), b""
        self.answer = False
        for key in ready:
            yield from self._pieces(*key, life, now)

    def _pieces(self, tag: str, number: int, life: str, now: float) -> Iterator[Parcel]:
        out = self.out[tag, number]
        self.traffic.messages += 1
        self.traffic.bytes_sent += len(out.data)
        self.traffic.repeated += out.tries > 0
        out.due = now + self.patience.retry_s * 2 ** min(out.tries, 5) + self.backlog / SLOWEST_LINE
        out.tries += 1
        pieces = -(-len(out.data) // PIECE_BYTES)
        for piece in range(pieces):
            data = out.data if pieces == 1 else out.data[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]
            acks = self.receipts()
            yield self.name, Note(life=life, acks=acks, tag=tag, number=number, piece=piece, pieces=pieces), data

    def receipts(self) -> dict[str, int]:
        """Return what has arrived, of the lanes that a receipt is owed for."""
        owed = {tag: self.taken[tag] for tag in self.owed}
        self.owed.clear()
        return owed

    @property
    def backlog(self) -> int:
        """Bytes that are on their way."""
        return sum(len(out.data) for out in self.out.values())

    def times(self) -> Iterator[float]:
        """Yield the moments at which there will be something to send."""
        yield from (since + self.patience.receipt_s for since in self.owed.values())
        if self.heard is not None and not self.held:
            yield from (out.due for out in self.out.values())
