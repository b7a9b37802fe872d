"""What a party knows of one other: the messages on their way between the two, both directions.

Every message has a number in its lane (sender, receiver, tag).  The sender keeps it until the receiver has said that
it came; the receiver takes each number once, in order.  That receipt rides on the next message the other way, so that a
round of embeddings and gradients costs no third message.

A slow line may carry a large message for longer than anybody waits for a sign of life.  While it is partly there, its
receiver says now and then, unasked, how far it has come; its sender thus hears that the other is alive.  What is lost
is known by an answer and not by the time that passes: see ``outgoing``.

No thread, no lock, no clock here: see ``post``, which holds its lock around every call and passes ``now``, in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anyparty.errors import MessageError, PartyLost
from anyparty.wire.flare.incoming import Incoming, Item, check_cut
from anyparty.wire.flare.note import Note
from anyparty.wire.flare.outgoing import LONG_AGO, Outgoing

Parcel = tuple[str, Note, bytes]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds.

    Attributes:
        join_s: for a party to appear at all, from when it is first waited for.
        silent_s: for any sign of life, while one waits for a party that has appeared.
        message_s: for a message of a party that is alive.
        retry_s: before one asks what became of a message, twice as long each time that it was sent again.
        receipt_s: that a receipt waits for a message to ride on.
        flush_s: at the end, for more of the last messages to arrive.
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
class Waiting:
    """Somebody who waits for a message."""

    give: Callable[[Item], None]
    since: float


@dataclass
class Traffic:
    """What went to one party: messages and their bytes, headers included; how many of them were sent again.

    A message that was sent again counts once more, with the bytes that went again.
    """

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
        asks: how many times it was asked.
        its_asks: how many times it has asked, as far as is known here.
        said: when it was last told all that has arrived here.
        moved: when it last said that more has arrived.
        gone: why it is not listened to any more; empty while it is.
        held: it says that it does not listen yet.
        silent: it was given up since it gave no sign of life.
        refused: it has given this party up.
        former: its processes that are gone; what they sent and is still on its way is nothing.
        knocks: the process of that name which asks to be let in, since the one before is gone; empty if none does.
        bad: what it sent that cannot be read.
        answer: it is to hear what has arrived here.
        owed: by tag, since when a receipt is owed.
        out: messages that it has not acknowledged, by tag and number.
        sent: by tag, the number of the next message to send.
        come: what has come from it.
        waiting: who waits, by tag.
        pressing: since when parts of this party wait until more of what they have sent has arrived.
        traffic: what went there.

    """

    name: str
    patience: Patience
    life: str = ""
    heard: float | None = None
    asked: float = LONG_AGO
    asks: int = 0
    its_asks: int = 0
    said: float = LONG_AGO
    moved: float = LONG_AGO
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
    come: Incoming = field(default_factory=Incoming)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    pressing: list[float] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def next(self, tag: str) -> Item | None:
        """Take the next message of a lane, or the reason that none will come."""
        if (item := self.come.take(tag)) is not None:
            return item
        if self.bad is not None:
            return self.bad
        if self.gone:
            return PartyLost(self.name, f"{self.gone} (message {tag!r} no. {self.come.taken[tag]} did not come)")
        return None

    def serve(self) -> None:
        """Give those who wait what there is for them."""
        for tag in list(self.waiting):
            if (item := self.next(tag)) is not None:
                self.waiting.pop(tag).give(item)

    def refuse(self, error: MessageError) -> None:
        """Note that the party sent what cannot be read: whoever waits for it hears so."""
        self.bad = error
        self.serve()

    def lose(self, why: str) -> None:
        """Give the party up, for the rest of the run: it may have missed messages."""
        if not self.gone:
            self.gone = why
            self.out.clear()
            self.come.forget_pieces()
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
        self.answer |= note.ask > 0
        self.its_asks = max(self.its_asks, note.ask)
        self._learn(note, now)
        if note.gone:
            self.refused = True
            self.lose(f"it has given this party up: {note.gone}")
        elif note.bye:
            self.lose(f"it left: {note.bye}")

    def _learn(self, note: Note, now: float) -> None:
        """Learn what has arrived there, and what was lost: an ask that went after it has arrived without it."""
        for key in [key for key in self.out if key[1] < note.acks.get(key[0], 0)]:
            del self.out[key]
            self.moved = now
        for tag, here in note.parts.items():
            out = self.out.get((tag, note.acks[tag]))
            if out is not None and here > out.here:
                out.here = here
                out.wait(now, self.patience.retry_s)
                self.moved = now
        if 0 < note.answers <= self.asks:
            for out in self.out.values():
                out.answered(note.answers)

    def gather(self, note: Note, data: bytes, most_bytes: int) -> bytes | None:
        """Keep a piece of a message; return the whole message when no piece is missing."""
        if self.come.has(note.tag, note.number):
            self.owed[note.tag] = LONG_AGO  # it came before, so its receipt was lost: say so at once
            return None
        awaited = note.tag in self.waiting and note.number == self.come.taken[note.tag]
        try:
            check_cut(note, data, most_bytes, repr(self.name))
            return self.come.gather(note, data, most_bytes, repr(self.name), awaited=awaited)
        except MessageError as error:
            self.refuse(error)
            return None

    def file(self, tag: str, number: int, item: Item, now: float) -> None:
        """Put a message in its place, and give those who wait what there is for them."""
        if self.come.file(tag, number, item):
            self.owed.setdefault(tag, now)
            self.serve()

    # ---- what is sent

    def parcels(self, life: str, now: float) -> Iterator[Parcel]:
        """Yield what is to be sent now.  Messages wait until the party has been heard of and listens."""
        ready = [key for key, out in self.out.items() if out.ready] if self.listens else []
        ask = self._ask(now, instead=bool(ready))
        late = any(now - since >= self.patience.receipt_s for since in self.owed.values())
        often = min(self.patience.silent_s / 5, self.patience.retry_s)
        self.answer |= bool(self.come.pieces) and now - self.said >= often
        if self.answer:
            self.said = now
        if not ready and (ask or late or self.answer):
            yield self.name, Note(life=life, to=self.life, ask=ask, **self._news()), b""
        for key in ready:
            yield from self._pieces(*key, life, now)

    @property
    def listens(self) -> bool:
        """Whether it takes messages."""
        return self.heard is not None and not self.held

    def _ask(self, now: float, *, instead: bool) -> int:
        """Return which ask is to go now, 0 for none; where a message goes ``instead``, its receipt is an answer too."""
        every = self.patience.silent_s / 5 if self.heard is not None else min(0.5, self.patience.silent_s / 5)
        quiet = self.heard is None or now - self.heard >= every
        alive = bool(self.waiting or self.out) and quiet and now - self.asked >= every
        overdue = [out for out in self.out.values() if out.due <= now] if self.listens and not instead else []
        if not (alive or overdue):
            return 0
        self.asked = now
        if instead:
            return 0
        for out in overdue:
            out.wait(now, self.patience.retry_s)
        self.asks += 1
        return self.asks

    def _pieces(self, tag: str, number: int, life: str, now: float) -> Iterator[Parcel]:
        out = self.out[tag, number]
        self.traffic.messages += 1
        self.traffic.bytes_sent += out.left
        self.traffic.repeated += out.tries > 0
        out.sent(now, self.patience.retry_s, self.asks)
        for piece, data in out.cut():
            note = Note(life=life, to=self.life, tag=tag, number=number, piece=piece, pieces=out.pieces,
                        **self._news())  # fmt: skip
            yield self.name, note, data

    def _news(self) -> dict[str, Any]:
        """Return what has arrived, once: of the lanes that a receipt is owed for, or all of it in an answer."""
        if self.answer:
            parts = self.come.parts()
            acks = dict(self.come.taken) | {tag: self.come.taken[tag] for tag in parts}
            news: dict[str, Any] = {"acks": acks, "parts": parts, "answers": self.its_asks}
        else:
            news = {"acks": {tag: self.come.taken[tag] for tag in self.owed}}
        self.answer = False
        self.owed.clear()
        return news

    @property
    def backlog(self) -> int:
        """Bytes that are on their way."""
        return sum(len(out.data) for out in self.out.values())

    def flushes(self, since: float, now: float) -> bool:
        """Return whether to wait for what is on its way there, at the end, which began at ``since``."""
        return bool(self.out) and now - max(since, self.moved) < self.patience.flush_s

    def times(self) -> Iterator[float]:
        """Yield the moments at which there will be something to send."""
        yield from (since + self.patience.receipt_s for since in self.owed.values())
        if self.listens:
            yield from (LONG_AGO if out.ready else out.due for out in self.out.values())
