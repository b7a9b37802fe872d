"""The topology of a split method: the parties that encode, the hosts of heads, and the embeddings that hosts read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import index
from typing import ClassVar, Literal, Protocol, TypeGuard, runtime_checkable

import numpy as np
from torch import Tensor

from anyparty.core.types import Capabilities, Roster
from anyparty.errors import ConfigError, some

Hosting = Literal["active", "labelers"]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The roles of the parties in one run; ``resolve`` makes and checks the topology.

    Attributes:
        blocks: the K parties that hold columns, in the roster's order.
        active: the name of the active party.
        copies: the number of encoders that each of the K parties has.
        width: the shape of a row's embedding: (H,), or (copies, H).
        head_inputs: the width of a head's input.
        owners: the parties k that have a head of their own; ``None`` if heads belong to no party.
        hosts: for each host, the owners k of its heads; the active party is first. A host's tuple is empty if heads
            belong to no party.
        heads: the number of heads at each host.
        reads: for each host, the parties whose embeddings it reads.
        readers: for every party of the roster, the hosts that read its embeddings.
        unread: the parties whose embeddings no host reads. These parties send no message, as if they had no row.

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
        """The parties that train an encoder, heads, or both."""
        return tuple(dict.fromkeys((*self.blocks, *self.hosts)))

    def without_unread(self, observed: Tensor) -> Tensor:
        """Return ``observed`` [N, K] bool, set to False for the parties whose embeddings no host reads."""
        if not self.unread:
            return observed
        observed = observed.clone()
        observed[:, [self.blocks.index(name) for name in self.unread]] = False
        return observed


@runtime_checkable
class HasTopology(Protocol):
    """A method with heads at hosts: a split method, also with pretraining or a schedule."""

    def topology(self, roster: Roster) -> Topology:
        """Return the topology among the parties of a roster."""


@runtime_checkable
class Schedulable(HasTopology, Protocol):
    """A split method that a schedule may run.

    Attributes:
        schedule_conflict: the reason why no schedule can run the method, written as the end of a sentence that begins
            "schedule 'NAME' ..."; empty if a schedule can run the method.

    """

    schedule_conflict: ClassVar[str]


def resolve(
    can: Capabilities, roster: Roster, *, copies: object, head: object, owners: object,
    reads: Callable[[tuple[int, ...]], object], width: int, hosting: Hosting,
) -> Topology:  # fmt: skip
    """Return the topology that a rule describes for these parties, and check it.

    With ``hosting="labelers"``, a head's owner hosts the head if the owner holds labels. The active party hosts all
    other heads. If heads have owners, there are as many heads as owners, and the number in ``head`` is ignored.

    Args:
        can: the capabilities of the rule.
        roster: all parties.
        copies: the result of ``Rule.copies`` for this roster.
        head: the result of ``Rule.head`` for this roster.
        owners: the result of ``Rule.owners`` for this roster.
        reads: ``Rule.reads`` for this roster, as a function of the owners of the heads at one host.
        width: H, the width of an embedding.
        hosting: "active" or "labelers", the parties that host heads.

    Raises:
        ConfigError: a value of the rule has a wrong type or size, the active party would host no head, no host reads an
            embedding, or a rule that needs all parties does not read the embeddings of one of them.
    """
    places = f"as a tuple of their indices, whole numbers from 0 to {roster.K - 1}"
    owned = None if owners is None else _parties(owners, roster)
    if owned is None and owners is not None:
        raise ConfigError(f"{can.title}: expected owners to be None (if heads belong to no party), or the parties "
                          f"that have a head, {places}, got {owners!r}")  # fmt: skip
    encoders, heads, inputs = _counts(can, copies, head, owned)
    hosts = _hosts(roster, owned, hosting)
    read: dict[str, tuple[str, ...]] = {}
    for host, ks in hosts.items():
        given = reads(ks)
        parties = _parties(given, roster)
        if parties is None:
            raise ConfigError(f"{can.title}: expected reads to be the parties whose embeddings a host reads, "
                              f"{places}, got {given!r}")  # fmt: skip
        read[host] = tuple(roster.blocks[k] for k in parties)
    all_read = set(chain.from_iterable(read.values()))
    unread = tuple(name for name in roster.blocks if name not in all_read)
    if not all_read:
        raise ConfigError(
            f"{can.title}: reads is empty, so that there is nothing to learn from; return the parties "
            "whose embeddings the heads read"
        )
    if unread and (can.needs == "all" or can.trains_with_all):
        raise ConfigError(f"{can.title} needs all parties, and its reads leaves out {some(unread)}: name them there, "
                          "or set needs='any' in can")  # fmt: skip
    return Topology(
        blocks=roster.blocks,
        active=roster.active,
        copies=encoders,
        width=(width,) if encoders == 1 else (encoders, width),
        head_inputs=inputs,
        owners=owned,
        hosts=hosts,
        heads={host: heads if owned is None else len(ks) for host, ks in hosts.items()},
        reads=read,
        readers={name: tuple(host for host in hosts if name in read[host]) for name in roster.names},
        unread=unread,
    )


def _hosts(roster: Roster, owners: tuple[int, ...] | None, hosting: Hosting) -> dict[str, tuple[int, ...]]:
    """Return, for each host, the owners k of its heads; the active party is first."""
    if owners is None or hosting == "active":
        return {roster.active: owners or ()}
    at: dict[str, list[int]] = {roster.active: []}
    for k in owners:
        name = roster.blocks[k]
        at.setdefault(name if name in roster.labelers else roster.active, []).append(k)
    if not at[roster.active]:
        raise ConfigError(f"the active party {roster.active!r} would host no head: use hosting='active'")
    return {name: tuple(ks) for name, ks in at.items()}


def _counts(can: Capabilities, copies: object, head: object, owners: tuple[int, ...] | None) -> tuple[int, int, int]:
    """Return the number of encoders per party, the number of heads at all hosts, and the width of a head's input."""
    if owners == ():
        raise ConfigError(f"{can.title}: expected owners to be at least one party, or None (if heads belong to no "
                          "party), got an empty tuple")  # fmt: skip
    if not _is_count(copies):
        raise ConfigError(f"{can.title}: expected copies, how many encoders a party has, to be a whole number of at "
                          f"least 1, got {copies!r}")  # fmt: skip
    match head:
        case (count, inputs) if _is_count(inputs) and owners is not None:
            return copies, len(owners), inputs
        case (count, inputs) if _is_count(inputs) and _is_count(count):
            return copies, count, inputs
    raise ConfigError(f"{can.title}: expected head to be the number of heads and the width of a head's input, two "
                      f"whole numbers of at least 1, got {head!r}")  # fmt: skip


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _parties(given: object, roster: Roster) -> tuple[int, ...] | None:
    """Convert integers of any type to a tuple of party indices k; return ``None`` if an integer is not an index."""
    try:
        return _among(tuple(given), roster.K)  # type: ignore[arg-type]
    except TypeError:
        return None


@lru_cache
def _among(given: tuple[object, ...], K: int) -> tuple[int, ...] | None:
    places = tuple(index(k) for k in given)  # type: ignore[arg-type]
    return places if all(0 <= k < K for k in places) else None
