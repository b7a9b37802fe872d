"""Messages that carry the moment they belong to: one that comes too late for its round is passed over.

By the real clock a host goes on without a party that is late.  What the party sends of that round comes later, on the
lane on which the next round's is waited for; its moment tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from anyparty.errors import MessageError, PartyLost
from anyparty.terms import Channel, Expect, Tensors, check

MOMENT = "moment"
WHEN = Expect((2,), torch.int64)


@dataclass
class Dated:
    """A party's end of a channel in one round.

    Attributes:
        net: the channel.
        moment: (stage, epoch, step) of the round.
        within: seconds from the first wait in which all that is waited for must have come; ``None`` waits for it.
        late: the parties that were too late.

    """

    net: Channel
    moment: tuple[str | int, ...]
    within: float | None = None
    late: list[str] = field(default_factory=list)

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""
        return self.net.me

    @cached_property
    def _until(self) -> float | None:
        return None if self.within is None else asyncio.get_running_loop().time() + self.within

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send a message of this round."""
        await self.net.send(to, tag, {**tensors, MOMENT: torch.tensor(self.moment[1:], dtype=torch.int64)})

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        """Wait for a message of this round, and pass over those of rounds before.

        Raises:
            PartyLost: the sender left, or was too late.
            MessageError: what came is not what ``expect`` says, or of a round that has not begun.
        """
        try:
            async with asyncio.timeout_at(self._until):
                return await self._recv(frm, tag, expect)
        except TimeoutError:
            self.late.append(frm)
            raise PartyLost(frm, f"it was too late with {tag!r} for this round of {self.me!r}") from None

    async def _recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        any_rows = {name: Expect((-1, *each.shape[1:])[: len(each.shape)], each.dtype) for name, each in expect.items()}
        what = f"message {tag!r} from {frm!r} to {self.me!r}"
        while True:
            got = await self.net.recv(frm, tag, any_rows | {MOMENT: WHEN})
            when = tuple(got.pop(MOMENT).tolist())
            if when > self.moment[1:]:
                raise MessageError(f"{what}: it is of epoch and batch {when}, here it is {self.moment[1:]}")
            if when == self.moment[1:]:
                check(got, expect, what)
                return got

    async def close(self) -> None:
        """Close the channel beneath."""
        await self.net.close()
