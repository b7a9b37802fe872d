"""The envelope of a packet: the piece of a message that it carries, and the receipts of its sender."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anyparty.errors import MessageError

MOST_LETTERS = 100_000  # maximum number of characters: enough for receipts of all tags of a party
MOST_REASON = 2000  # maximum number of characters of a reason in ``bye`` or ``gone``
PIECE_BYTES = 1 << 20  # messages are cut into pieces of this size, so that a slow line shows progress


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The header of a packet.  The names of the fields are also used in the packet.

    Attributes:
        life: the incarnation of the sender: a random name of its process.  A restarted process has another one.
        to: the receiver's incarnation; empty before the sender has heard from the receiver.
        acks: by tag, the number of the next message that the sender expects: it has received all earlier ones.
        parts: by tag, the number of leading pieces that have arrived of the message that ``acks`` names.
        ask: the number of this receipt request, from 1; 0 if the packet is not a request.  A receipt request asks for
            an immediate report of all messages and pieces that have arrived.
        answers: in such a report, the number of the receiver's latest receipt request; 0 in other packets.
        bye: the reason why the sender leaves; it will send nothing more.
        gone: the reason why the sender has given the receiver up.
        wait: True if the sender does not accept messages yet, because the receiver still has to be readmitted.
        tag: the tag of the message to which the piece in the packet belongs; empty if the packet has no piece.
        number: the number of the message among the messages with its tag.
        piece: the number of the piece, from 0.
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
        """Return the fields that stay valid in a packet to an earlier process: ``life``, ``ask`` and ``bye``."""
        return Envelope(life=self.life, ask=self.ask, bye=self.bye, wait=wait)

    @classmethod
    def read(cls, text: object, source: str) -> Envelope:
        """Parse and validate an envelope.

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
    """Make a remote party's sentence safe for a terminal: cut it, and replace control characters by blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in sentence[:MOST_REASON])


DEFAULTS = vars(Envelope(life=""))
KINDS = {name: type(value) for name, value in DEFAULTS.items()}
