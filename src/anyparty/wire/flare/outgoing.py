"""A message on its way to another party, until that one has said that it came.

Nothing is sent again because time has passed: on a slow line it may still be on its way, behind what was sent before.
After a while without a receipt the sender asks, and asks are counted.  An ask stands behind the message on the line, so
that an answer to it which does not know the message says that it was lost.  Then it is sent again, from the first piece
that is not there.  A carrier that keeps its order and loses nothing thus carries every piece once, however slow it is;
over one that does not, what an ask has overtaken goes twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from anyparty.wire.flare.note import PIECE_BYTES

LONG_AGO = float("-inf")
MOST_ON_THE_WAY = 64 << 20  # bytes to one party that have not arrived, before a channel's ``send`` waits


@dataclass
class Outgoing:
    """A message that the other side has not yet acknowledged.

    Attributes:
        data: the message.
        ready: it is to be sent: it is new, or was lost.
        due: when to ask what became of it.
        tries: how many times it was sent.
        asks: how many asks had gone there when it was sent last.
        here: how many of its pieces are there, from the first on.

    """

    data: bytes
    ready: bool = True
    due: float = LONG_AGO
    tries: int = 0
    asks: int = 0
    here: int = 0

    @property
    def pieces(self) -> int:
        """How many pieces it is cut into."""
        return -(-len(self.data) // PIECE_BYTES)

    @property
    def left(self) -> int:
        """Bytes of the pieces that are not known to be there."""
        return max(0, len(self.data) - self.here * PIECE_BYTES)

    def sent(self, now: float, retry_s: float, asks: int) -> None:
        """It is sent now, after so many asks."""
        self.ready, self.asks = False, asks
        self.tries += 1
        self.wait(now, retry_s)

    def wait(self, now: float, retry_s: float) -> None:
        """Ask in a while, which is twice as long each time that it was sent again."""
        self.due = now + retry_s * 2 ** min(self.tries - 1, 5)

    def answered(self, ask: int) -> None:
        """Send it again if it went before an ask that has arrived without it."""
        self.ready |= self.asks < ask and self.here < self.pieces

    def cut(self) -> Iterator[tuple[int, bytes]]:
        """Yield the pieces that are not known to be there, each with its place."""
        for piece in range(self.here, self.pieces):
            whole = self.pieces == 1
            yield piece, self.data if whole else self.data[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]
