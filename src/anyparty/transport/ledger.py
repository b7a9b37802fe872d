"""The ledger: counts of messages and bytes by sender, receiver and tag.  All channels are counted in the same way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from anyparty.core.types import Channel, ChannelWrapper, Tensors


@dataclass(frozen=True, order=True)
class Flow:
    """All messages with one sender, one receiver and one tag."""

    sender: str
    receiver: str
    tag: str


@dataclass
class Tally:
    """The number of messages, and the number of bytes in their tensors, without headers."""

    messages: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True)
class Exchange:
    """The messages of one tag between two parties, both directions together.

    ``rounds`` follows the papers: an embedding and its gradient are two rounds, since their tags differ.  Two messages
    of one tag, one in each direction, are one round.
    """

    one: str
    other: str
    tag: str
    rounds: int
    messages: int
    bytes_sent: int


@dataclass
class Ledger:
    """Message and byte counts by sender, receiver and tag."""

    flows: dict[Flow, Tally] = field(default_factory=dict)

    def add(self, flow: Flow, size: int, messages: int = 1) -> None:
        """Count one message, or several, with ``size`` bytes together."""
        tally = self.flows.setdefault(flow, Tally())
        tally.messages += messages
        tally.bytes_sent += size

    async def send(self, channel: Channel, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send a message over ``channel`` and return the channel's result.

        The message is counted, unless the channel drops it because the receiver has left.
        """
        flow, size = Flow(channel.me, to, tag), sum(tensor.nbytes for tensor in tensors.values())
        try:
            accepted = await channel.send(to, tag, tensors)
        except asyncio.CancelledError:  # the channel had accepted the message, so it counts as sent
            self.add(flow, size)
            raise
        if accepted is not False:
            self.add(flow, size)
        return accepted

    def merge(self, other: Ledger) -> None:
        """Add the counts of another ledger to this ledger."""
        for flow, more in other.flows.items():
            tally = self.flows.setdefault(flow, Tally())
            tally.messages += more.messages
            tally.bytes_sent += more.bytes_sent

    def rows(self) -> list[dict[str, str | int]]:
        """Return the counts as sorted rows of plain values, for records and reports."""
        return [
            {"sender": flow.sender, "receiver": flow.receiver, "tag": flow.tag}
            | {"messages": tally.messages, "bytes_sent": tally.bytes_sent}
            for flow, tally in sorted(self.flows.items())
        ]

    def exchanges(self) -> list[Exchange]:
        """Return the counts by pair of parties and tag, sorted."""
        found = []
        for one, other, tag in sorted({(*sorted((flow.sender, flow.receiver)), flow.tag) for flow in self.flows}):
            ways = [self.flows.get(Flow(a, b, tag), Tally()) for a, b in ((one, other), (other, one))]
            found.append(Exchange(one, other, tag, max(way.messages for way in ways),
                                  sum(way.messages for way in ways), sum(way.bytes_sent for way in ways)))  # fmt: skip
        return found

    @classmethod
    def of(cls, rows: list[dict[str, str | int]]) -> Ledger:
        """Rebuild a ledger from the output of ``rows``."""
        flows = {
            Flow(str(row["sender"]), str(row["receiver"]), str(row["tag"])): Tally(
                int(row["messages"]), int(row["bytes_sent"])
            )
            for row in rows
        }
        return cls(flows)


@dataclass
class MeteredChannel(ChannelWrapper):
    """A channel that records in a ledger every message that its party sends.

    Received messages are not counted here, because the sender's ledger counts them.
    """

    ledger: Ledger

    async def send(self, to: str, tag: str, tensors: Tensors) -> bool | None:
        """Send and count a message."""
        return await self.ledger.send(self.channel, to, tag, tensors)
