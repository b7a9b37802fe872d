"""Messages over a carrier that may lose, double, delay and reorder: each arrives once, in its lane's order, or its
receiver hears who is gone.

A party that waits for another asks it now and then whether it is alive; that is answered by threads that no training
step blocks.  Silence for longer than ``Patience`` says means that the party is gone: it may have missed messages.  A
process that comes under its name afterwards knocks, is told that somebody is there, and waits until ``admit`` lets it
in, with empty lanes on both sides.

No socket, no FLARE here: see ``seat``.  Arrivals come on the carrier's threads; small messages leave on the caller's;
one thread of its own sends the rest, asks, answers and repeats.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from anyparty.errors import MessageError
from anyparty.terms import Tensors
from anyparty.wire.flare.incoming import Item
from anyparty.wire.flare.note import PIECE_BYTES, Note
from anyparty.wire.flare.outgoing import LONG_AGO, Outgoing
from anyparty.wire.flare.peer import Parcel, Patience, Peer, Traffic, Waiting
from anyparty.wire.message import MOST_BYTES, Header, decode, encode

LONGEST_REST_S = 0.25


class Carrier(Protocol):
    """What a post needs of a network."""

    def put(self, to: str, note: str, data: bytes) -> None:
        """Send a parcel if that is possible now; whether it arrives is not known."""


class Post:
    """One party's end of all its lanes."""

    def __init__(
        self,
        me: str,
        names: Sequence[str],
        run: str,
        carrier: Carrier,
        patience: Patience | None = None,
        *,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        news: Callable[[], str] = str,
    ) -> None:
        """Prepare; ``start`` begins to send.  ``news`` says why the run was ended from outside, once it was."""
        self.me, self.run, self.carrier, self.most_bytes = me, run, carrier, most_bytes
        self.patience, self.clock, self.news = patience or Patience(), clock, news
        self.peers = {name: Peer(name, self.patience) for name in names if name != me}
        self.life = uuid.uuid4().hex[:8]
        self.refused: Counter[str] = Counter()
        self._lock = threading.Condition()
        self._bye = ""
        self._rest_s = min(LONGEST_REST_S, self.patience.receipt_s, self.patience.retry_s, self.patience.silent_s / 10)
        self._thread = threading.Thread(target=self._work, name=f"anyparty-post-{me}", daemon=True)

    # ---- what the party does

    def start(self, greet: Sequence[str] = ()) -> None:
        """Begin to send; let the parties ``greet`` know at once that this one is here."""
        for name in greet:
            self.peers[name].answer = True
        self._thread.start()

    def send(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Take a message to send; drop it, and return ``False``, where nobody is any more."""
        peer = self._peer(to)
        number = peer.sent[tag]
        header = Header(run=self.run, frm=self.me, to=to, tag=tag, number=number)
        data = encode(header, tensors, most_bytes=self.most_bytes)
        with self._lock:
            peer.sent[tag] += 1
            if peer.gone:
                return False
            peer.out[tag, number] = Outgoing(data)
            small = len(data) <= PIECE_BYTES  # what takes long is left to the post's own thread
            parcels = list(peer.parcels(self.life, self.clock())) if small else []
            if not small:
                self._lock.notify_all()
        for parcel in parcels:
            self._put(*parcel)
        return True

    def backlog(self, to: str) -> int:
        """Return the bytes on their way to a party."""
        with self._lock:
            return self._peer(to).backlog

    def collect(self, frm: str, tag: str, given: list[Item], wake: Callable[[], object]) -> Callable[[], None]:
        """Put the next message of a lane, or the reason that none will come, into ``given``: now, if it is there.

        Else another thread does so later, and calls ``wake``.

        Returns:
            What ends the wait; a message that was given in the meantime is the next one again.
        """

        def give(item: Item) -> None:
            given.append(item)  # under the lock: whoever leaves finds it here, not on its way through a loop
            wake()

        with self._lock:
            peer = self._peer(frm)
            item = peer.next(tag)
            if item is not None:
                given.append(item)
            else:
                assert tag not in peer.waiting, f"two parts of {self.me!r} wait for {tag!r} from {frm!r}"
                peer.waiting[tag] = Waiting(give, self.clock())

        def withdraw() -> None:
            with self._lock:  # of this process of the party: one that was let in since has lanes of its own
                peer.waiting.pop(tag, None)
                peer.come.give_back(tag, given)

        return withdraw

    @contextlib.contextmanager
    def waiting_for_room(self, to: str) -> Iterator[None]:
        """Meanwhile give a party up that is silent for too long, as while one waits for a message of it."""
        with self._lock:
            peer = self._peer(to)
            peer.pressing.append(since := self.clock())
        try:
            yield
        finally:
            with self._lock:
                peer.pressing.remove(since)

    def lose(self, name: str, why: str) -> None:
        """Give a party up."""
        with self._lock:
            self._peer(name).lose(why)
            self._lock.notify_all()

    def knocking(self) -> list[str]:
        """Return the parties that were lost and whose new process asks to be let in."""
        with self._lock:
            return [peer.name for peer in self.peers.values() if peer.knocks]

    def admit(self, name: str) -> None:
        """Begin anew with a party that was lost: no message of either side is on its way, all numbers are 0."""
        with self._lock:
            old = self._peer(name)
            old.lose("it is let in again, as another process")
            self.peers[name] = Peer(
                name, self.patience, life=old.knocks, heard=self.clock() if old.knocks else None, answer=True,
                former=old.former | {old.life}, traffic=old.traffic, asks=old.asks,
            )  # fmt: skip
            self._lock.notify_all()

    def lost_to(self, name: str) -> bool:
        """Return whether a party has given this one up, or is out of reach: it may let another process in."""
        with self._lock:
            peer = self._peer(name)
            return bool(peer.gone) and (peer.refused or peer.silent)

    def told(self) -> str:
        """Return why the run was ended from outside; empty while it was not."""
        return self.news()

    def gone(self) -> dict[str, str]:
        """Return who is gone, and why."""
        with self._lock:
            return {peer.name: peer.gone for peer in self.peers.values() if peer.gone}

    def traffic(self) -> dict[str, Traffic]:
        """Return what went to each party."""
        return {peer.name: peer.traffic for peer in self.peers.values()}

    def close(self, why: str = "its part is done") -> None:
        """Wait until all that was sent has arrived, or no more of it does; say goodbye and stop."""
        with self._lock:
            if self._bye:
                return
            for peer in self.peers.values():
                peer.owed |= dict.fromkeys(peer.owed, LONG_AGO)  # nothing more will go there for receipts to ride on
            self._lock.notify_all()
            begun = self.clock()
            while any(peer.flushes(begun, self.clock()) for peer in self.peers.values()):
                self._lock.wait(0.05)
            self._bye = why
            self._lock.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        for peer in self.peers.values():
            if peer.heard is not None:
                self._put(*self._farewell(peer, peer.knocks or peer.life))

    def _peer(self, name: str) -> Peer:
        if name not in self.peers:
            raise MessageError(f"{self.me!r} has no party {name!r} to talk to; there are {sorted(self.peers)}")
        return self.peers[name]

    # ---- what arrives, on the carrier's threads

    def arrived(self, frm: str, text: object, data: bytes) -> None:
        """Take a parcel that the carrier knows to be from ``frm``."""
        if frm not in self.peers:
            self.refused[frm] += 1
            return
        peer, whole, farewell = self.peers[frm], None, None
        try:
            note = Note.read(text, repr(frm))
        except MessageError as error:
            with self._lock:
                peer.refuse(error)
            return
        with self._lock:
            if note.life in peer.former:
                return
            if note.to not in {"", self.life}:  # for the process that this one came after, and late
                note = note.overheard(wait=peer.held or peer.heard is None)
            if peer.gone and not self._bye and note.life != peer.life:
                farewell = self._at_the_door(peer, note)
            elif self._bye or peer.gone:
                farewell = None if note.gone or note.bye else self._farewell(peer, note.life)
            else:
                if peer.heard is None or note.ask or note.answers:
                    self._lock.notify_all()
                peer.read(note, self.clock())
                whole = peer.gather(note, data, self.most_bytes) if note.tag and not peer.gone else None
        if farewell is not None:
            self._put(*farewell)
        if whole is not None:
            item = self._decoded(frm, note, whole)
            with self._lock:
                peer.file(note.tag, note.number, item, self.clock())

    def _decoded(self, frm: str, note: Note, data: bytes) -> Item:
        want = Header(run=self.run, frm=frm, to=self.me, tag=note.tag, number=note.number)
        try:
            message = decode(data, repr(frm), most_bytes=self.most_bytes)
            if message.header != want:
                raise MessageError(f"{frm!r} sent {message.header} of run {message.header.run!r}, "
                                   f"expected {want} of run {want.run!r}")  # fmt: skip
        except MessageError as error:
            return error
        return message.tensors

    def _at_the_door(self, peer: Peer, note: Note) -> Parcel | None:
        """Remember a new process of a party that is gone; let it know that somebody is here."""
        peer.knocks = "" if note.bye or note.gone else note.life
        said = Note(life=self.life, to=note.life, wait=True)
        return (peer.name, said, b"") if peer.knocks and note.ask else None

    def _farewell(self, peer: Peer, to: str) -> Parcel:
        """Tell a party that nothing more will come from here, or that it is not listened to any more."""
        gone = "" if self._bye else peer.gone
        return peer.name, Note(life=self.life, to=to, acks=dict(peer.come.taken), bye=self._bye, gone=gone), b""

    # ---- what is sent, on the post's own thread

    def _work(self) -> None:
        while parcels := self._next():
            for parcel in parcels:
                self._put(*parcel)

    def _next(self) -> list[Parcel]:
        """Wait for something to send; none at the end."""
        with self._lock:
            while True:
                now, parcels, ended = self.clock(), list[Parcel](), self.news()
                for peer in self.peers.values():
                    if ended:
                        peer.lose(ended)
                    peer.check(now)
                    if not peer.gone:
                        parcels += peer.parcels(self.life, now)
                if parcels or self._bye:
                    return parcels
                moments = [moment for peer in self.peers.values() if not peer.gone for moment in peer.times()]
                self._lock.wait(min(self._rest_s, max(0.001, min(moments, default=now + self._rest_s) - now)))

    def _put(self, to: str, note: Note, data: bytes) -> None:
        self.carrier.put(to, note.write(), data)
