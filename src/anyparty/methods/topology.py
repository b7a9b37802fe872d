"""The topology of a split method: who encodes, who hosts which heads, and who reads whose embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from anyparty.terms import Roster


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Who does what among the parties of one run; ``own_rule.resolve`` makes it and checks it.

    Attributes:
        blocks: the K parties that hold columns, in the roster's order.
        active: the party that leads.
        copies: how many encoders each of the K parties has.
        width: the shape of a row's embedding: (H,), or (copies, H).
        head_inputs: the width of a head's input.
        owners: the parties k that have a head of their own; ``None`` if heads belong to nobody.
        hosts: the owners k of each host's heads, the active party first; no owners if heads belong to nobody.
        heads: the number of heads at each host.
        reads: the parties whose embeddings each host reads.
        readers: the hosts that read the embeddings of each party, for every party of the roster.
        unread: the parties whose embeddings no host reads. They send nothing, as if they had no row.

    """

    blocks: tuple[str, ...]
    active: str
    copies: int
    width: tuple[int, ...]
    head_inputs: int
    owners: tuple[int, ...] | None
    hosts: Mapping[str, tuple[int, ...]]
    heads: Mapping[str, int]
    reads: Mapping[str, tuple[str, ...]]
    readers: Mapping[str, tuple[str, ...]]
    unread: tuple[str, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that train an encoder, heads or both."""
        return tuple(dict.fromkeys((*self.blocks, *self.hosts)))

    def heard(self, observed: Tensor) -> Tensor:
        """Return which party has which row, without the parties that no host reads: [N, K] bool -> [N, K] bool."""
        if not self.unread:
            return observed
        observed = observed.clone()
        observed[:, [self.blocks.index(name) for name in self.unread]] = False
        return observed


@runtime_checkable
class HasTopology(Protocol):
    """A method whose heads stand at hosts: a split method, with or without a stage before it or a schedule."""

    def topology(self, roster: Roster) -> Topology:
        """Return the topology among the parties of a roster."""
