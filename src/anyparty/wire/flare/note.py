"""What is written on a parcel: which piece of which message it carries, what its sender has received, and news."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anyparty.errors import MessageError

MOST_LETTERS = 100_000  # receipts for as many lanes as a party may have
MOST_SAID = 2000  # letters of why a peer leaves, or gives up
PIECE_BYTES = 1 << 20  # a message is cut into pieces of this size, so that a slow line shows that it moves


@dataclass(frozen=True, kw_only=True)
class Note:
    """The words on a parcel.

    Attributes:
        life: names the sender's process; another one under the same name is another life.
        to: the life that the parcel is for; empty while the sender has heard of none.
        acks: by tag, the number of the next message that the sender waits for: all before have arrived.
        parts: by tag, how many pieces have arrived of the message that ``acks`` names, from the first on.
        ask: the sender wants to hear at once what has arrived: its asks are counted from 1; 0 for none.
        answers: the last ask of the receiver's that has arrived, where all that has arrived is said; 0 otherwise.
        bye: the sender will send nothing more, and why.
        gone: the sender has given the receiver up, and why.
        wait: the sender is there and does not listen yet: the receiver knocks, and may be let in later.
        tag: the lane of the message that the parcel carries a piece of; empty for a parcel without.
        number: the message's number in its lane.
        piece: which piece of the message, from 0.
        pieces: how many pieces the message has.

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
        """Return the note as text, defaults left out.

        >>> Note(life="a1", tag="embedding", number=7).write()
        '{"life":"a1","tag":"embedding","number":7}'
        """
        said = {name: value for name, value in vars(self).items() if value != DEFAULTS.get(name)}
        return json.dumps(said, separators=(",", ":"))

    def overheard(self, *, wait: bool) -> Note:
        """Return what a note that is for another process says to this one: its sender is there, asks, or leaves."""
        return Note(life=self.life, ask=self.ask, bye=self.bye, wait=wait)

    @classmethod
    def read(cls, text: object, source: str) -> Note:
        """Read a note.

        Raises:
            MessageError: this is not a note of anyparty's.
        """
        if not isinstance(text, str) or len(text) > MOST_LETTERS:
            raise MessageError(f"{source} sent a parcel without a note of anyparty's")
        try:
            values = json.loads(text)
            note = cls(**values)
            fits = all(type(value) is KINDS[name] for name, value in values.items())
            fits = fits and all(type(number) is int for said in (note.acks, note.parts) for number in said.values())
            fits = fits and note.parts.keys() <= note.acks.keys()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise MessageError(f"{source} sent a parcel with a note that cannot be read: {text[:80]!r}") from None
        if not fits or min(note.number, note.ask, note.answers) < 0 or not 0 <= note.piece < note.pieces:
            raise MessageError(f"{source} sent a parcel with a note that makes no sense: {text[:80]!r}")
        return replace(note, bye=plain(note.bye), gone=plain(note.gone))


def plain(sentence: str) -> str:
    """Return what a peer says as a terminal may show it: short, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in sentence[:MOST_SAID])


DEFAULTS = vars(Note(life=""))
KINDS = {name: type(value) for name, value in DEFAULTS.items()}
