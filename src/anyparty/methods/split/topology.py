"""The topology of a split method: the parties that encode, the hosts of heads, and the embeddings that hosts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from operator import index
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from anyparty.core.types import Capabilities, Roster
from anyparty.errors import ConfigError, some
from anyparty.methods.split.rule import HeadPlan

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
class Schedulable(Protocol):
    """A split method that a schedule may run.

    Attributes:
        schedule_conflict: the reason why no schedule can run the method, written as the end of a sentence that begins
            "schedule 'NAME' ..."; empty if a schedule can run the method.

    """

    schedule_conflict: ClassVar[str]


def resolve(can: Capabilities, roster: Roster, plan: HeadPlan, *, width: int, hosting: Hosting) -> Topology:
    """Return the topology that a rule's plan describes for these parties, and check it.

    With ``hosting="labelers"``, a head's owner hosts the head if the owner holds labels. The active party hosts all
    other heads.

    Args:
        can: the capabilities of the rule.
        roster: all parties.
        plan: the result of ``Rule.plan`` for this roster.
        width: H, the width of an embedding.
        hosting: "active" or "labelers", the parties that host heads.

    Raises:
        ConfigError: a value of the plan has a wrong type or size, the active party would host no head, no host reads an
            embedding, or a rule that needs all parties does not read the embeddings of one of them.
    """
    owners = None if plan.owners is None else _parties(can, "owners", plan.owners, roster)
    for name in ("heads", "inputs", "encoders"):
        value = getattr(plan, name)
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{can.title}: expected {name} of the plan to be a whole number of at least 1, got "
                              f"{value!r}")  # fmt: skip
    if plan.reads == "owner" and owners is None:
        raise ConfigError(f"{can.title}: reads = 'owner' needs heads with owners: name the owners in the plan")
    hosts = _hosts(roster, owners, hosting)
    every = (
        range(roster.K) if plan.reads is None or plan.reads == "owner" else _parties(can, "reads", plan.reads, roster)
    )
    read = {
        host: tuple(roster.blocks[k] for k in (ks if plan.reads == "owner" else every)) for host, ks in hosts.items()
    }
    all_read = set(chain.from_iterable(read.values()))
    unread = tuple(name for name in roster.blocks if name not in all_read)
    if unread and (can.needs == "all" or can.trains_with_all):
        raise ConfigError(f"{can.title} needs all parties, and its reads leaves out {some(unread)}: name them there, "
                          "or set needs='any' in can")  # fmt: skip
    return Topology(
        blocks=roster.blocks,
        active=roster.active,
        copies=plan.encoders,
        width=(width,) if plan.encoders == 1 else (plan.encoders, width),
        head_inputs=plan.inputs,
        owners=owners,
        hosts=hosts,
        heads={host: plan.heads if owners is None else len(ks) for host, ks in hosts.items()},
        reads=read,
        readers={name: tuple(host for host in hosts if name in read[host]) for name in roster.names},
        unread=unread,
    )


def _parties(can: Capabilities, name: str, given: object, roster: Roster) -> tuple[int, ...]:
    """Return party indices k of any integer type as a tuple of integers.

    Raises:
        ConfigError: the value is empty, or an element is not the index of a party.
    """
    try:
        places = tuple(index(k) for k in given)  # type: ignore[attr-defined]
    except TypeError:
        places = ()
    if not places or not all(0 <= k < roster.K for k in places):
        raise ConfigError(f"{can.title}: expected {name} of the plan to be None, or at least one party as a tuple of "
                          f"indices, whole numbers from 0 to {roster.K - 1}, got {given!r}")  # fmt: skip
    return places


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
