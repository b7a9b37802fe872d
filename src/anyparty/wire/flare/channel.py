"""One party's end of a channel between processes: what a coroutine sees of a post."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from anyparty.terms import Expect, Tensors
from anyparty.wire.flare.incoming import Item
from anyparty.wire.flare.outgoing import MOST_ON_THE_WAY
from anyparty.wire.flare.post import Post


@dataclass
class Posted:
    """A channel over a post.

    ``send`` waits where much is on its way, and goes on once it has arrived or the receiver is given up.
    ``recv`` raises ``PartyLost`` when the sender left, gives no sign of life or sends nothing for too long, and
    ``MessageError`` when what came is not a message.  Names, shapes and numbers are ``wire.guard``'s to check.
    """

    post: Post

    @property
    def door(self) -> Post:
        """Who is gone, and who asks to be let in again."""
        return self.post

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""
        return self.post.me

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool:
        """Hand over; wait only where much is still on its way.  Return whether anybody is there."""
        taken = self.post.send(to, tag, tensors)
        if self.post.backlog(to) > MOST_ON_THE_WAY:
            with self.post.waiting_for_room(to):
                while self.post.backlog(to) > MOST_ON_THE_WAY:
                    await asyncio.sleep(0.005)
        return taken

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:  # noqa: ARG002
        """Wait for the next message of the lane."""
        loop = asyncio.get_running_loop()
        given, came = list[Item](), asyncio.Event()
        withdraw = self.post.collect(frm, tag, given, lambda: loop.call_soon_threadsafe(came.set))
        if not given:
            try:
                await came.wait()
            except asyncio.CancelledError:
                withdraw()
                raise
        item = given[0]
        if isinstance(item, Exception):
            raise item
        return item

    async def close(self) -> None:
        """Wait until what was sent has arrived, then leave."""
        await asyncio.to_thread(self.post.close)
