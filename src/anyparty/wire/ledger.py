"""Who sent what to whom: every message counted that its carrier took, whatever carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from anyparty.terms import Channel, Expect, Tensors


@dataclass(frozen=True, order=True)
class Flow:
    """One kind of message between two parties."""

    sender: str
    receiver: str
    tag: str


@dataclass
class Tally:
    """How often, and how many bytes of tensors."""

    messages: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True)
class Exchange:
    """What two parties sent each other under one tag.

    ``rounds`` counts as the papers do: each way on its own, so an embedding up and its gradient down are two of them,
    and a message of one tag that crosses in both directions at once is one.
    """

    one: str
    other: str
    tag: str
    rounds: int
    messages: int
    bytes_sent: int


@dataclass
class Ledger:
    """The sum over all messages, by sender, receiver and tag."""

    flows: dict[Flow, Tally] = field(default_factory=dict)

    def add(self, flow: Flow, size: int) -> None:
        """Count one message of ``size`` bytes."""
        tally = self.flows.setdefault(flow, Tally())
        tally.messages += 1
        tally.bytes_sent += size

    def merge(self, other: Ledger) -> None:
        """Add what stands in another."""
        for flow, more in other.flows.items():
            tally = self.flows.setdefault(flow, Tally())
            tally.messages += more.messages
            tally.bytes_sent += more.bytes_sent

    def rows(self) -> list[dict[str, str | int]]:
        """Return the ledger as plain rows, sorted, for records and reports."""
        return [
            {"sender": flow.sender, "receiver": flow.receiver, "tag": flow.tag}
            | {"messages": tally.messages, "bytes_sent": tally.bytes_sent}
            for flow, tally in sorted(self.flows.items())
        ]

    def exchanges(self) -> list[Exchange]:
        """Return the ledger by pair of parties and tag, sorted."""
        found = []
        for one, other, tag in sorted({(*sorted((flow.sender, flow.receiver)), flow.tag) for flow in self.flows}):
            ways = [self.flows.get(Flow(a, b, tag), Tally()) for a, b in ((one, other), (other, one))]
            found.append(Exchange(one, other, tag, max(way.messages for way in ways),
                                  sum(way.messages for way in ways), sum(way.bytes_sent for way in ways)))  # fmt: skip
        return found

    @classmethod
    def of(cls, rows: list[dict[str, str | int]]) -> Ledger:
        """Return the ledger that ``rows`` came from."""
        flows = {
            Flow(str(row["sender"]), str(row["receiver"]), str(row["tag"])): Tally(
                int(row["messages"]), int(row["bytes_sent"])
            )
            for row in rows
        }
        return cls(flows)


def size(tensors: Tensors) -> int:
    """Return the bytes of the tensors themselves."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@dataclass
class Counted:
    """A channel that enters what its party sends into a ledger."""

    channel: Channel
    ledger: Ledger

    @property
    def me(self) -> str:
        """The party whose end of the channel this is."""
        return self.channel.me

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Send, and count unless the carrier says that it was dropped: nobody is there any more."""
        flow, long = Flow(self.me, to, tag), size(tensors)
        try:
            taken = await self.channel.send(to, tag, tensors)
        except asyncio.CancelledError:  # it was handed over, and waits only for others to go
            self.ledger.add(flow, long)
            raise
        if taken is not False:
            self.ledger.add(flow, long)

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:
        """Receive; the sender counts."""
        return await self.channel.recv(frm, tag, expect)

    async def close(self) -> None:
        """Close the channel beneath."""
        await self.channel.close()
