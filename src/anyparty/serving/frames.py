"""Messages over a stream between two processes of one machine, as they cross between parties."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.errors import MessageError, PartyLost
from anyparty.terms import Tensors
from anyparty.wire.message import MOST_BYTES, MOST_HEADER_BYTES, Header, decode, encode

MOST_UNSENT = 64 << 20  # bytes that the socket has not taken, before messages are dropped


@dataclass
class Frames:
    """Messages over a stream: eight bytes of length, then the message."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    session: str
    sent: int = 0

    def put(self, frm: str, to: str, tag: str, tensors: Tensors) -> None:
        """Write one; never waits.

        Raises:
            PartyLost: the other end does not read.
        """
        if self.writer.transport.get_write_buffer_size() > MOST_UNSENT or self.writer.is_closing():
            raise PartyLost(to, "the way to it is stopped up, or closed")
        data = encode(Header(run=self.session, frm=frm, to=to, tag=tag, number=self.sent), tensors)
        self.sent += 1
        self.writer.write(struct.pack("<Q", len(data)) + data)

    async def get(self) -> tuple[Header, dict[str, Tensor]] | None:
        """Read one; ``None`` where the other end has closed.

        Raises:
            MessageError: what came is no message of this session.
        """
        try:
            (long,) = struct.unpack("<Q", await self.reader.readexactly(8))
            if long > MOST_BYTES + MOST_HEADER_BYTES:
                raise MessageError(f"the other end of the bridge announces {long} bytes, the limit is {MOST_BYTES}")
            message = decode(await self.reader.readexactly(long), "the other end of the bridge")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        if self.session and message.header.run != self.session:
            raise MessageError(f"the other end of the bridge speaks of session {message.header.run!r}")
        return message.header, message.tensors

    async def close(self) -> None:
        """Close the stream, what was written going first."""
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 1.0)


def text(words: str) -> dict[str, Tensor]:
    """Return words as tensors."""
    return {"text": torch.frombuffer(bytearray(words.encode() or b" "), dtype=torch.uint8)}


def words(tensors: Tensors) -> str:
    """Return the words that ``text`` made tensors of."""
    return tensors["text"].numpy().tobytes().decode(errors="replace") if "text" in tensors else ""
