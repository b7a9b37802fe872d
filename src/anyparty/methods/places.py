"""Where heads stand, and whose embeddings they read: data, from a rule and a roster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from anyparty.methods import own_rule
from anyparty.methods.fusion import Rule
from anyparty.terms import Capabilities, Roster


@dataclass(frozen=True, kw_only=True)
class Places:
    """Who holds what in a split model.

    Attributes:
        rule: who is fused with whom, and the loss.
        embedding: H, the width of every party's embedding.
        hosting: where heads stand: all at the active party, or each at its own party if that holds labels.

    """

    rule: Rule
    embedding: int = 64
    hosting: Literal["active", "labelers"] = "active"

    @property
    def can(self) -> Capabilities:
        """What the rule can do."""
        return self.rule.can

    def hosts(self, roster: Roster) -> dict[str, tuple[int, ...]]:
        """Return the owners k of the heads at each host, the active party first."""
        owners = own_rule.owners_of(self.rule, roster)
        if owners is None:
            return {roster.active: ()}
        if self.hosting == "active":
            return {roster.active: owners}
        at: dict[str, list[int]] = {roster.active: []}
        for k in owners:
            name = roster.blocks[k]
            at.setdefault(name if name in roster.labelers else roster.active, []).append(k)
        return {name: tuple(ks) for name, ks in at.items()}

    def readers(self, roster: Roster, party: str) -> list[str]:
        """Return the hosts that read a party's embeddings."""
        return [host for host in self.hosts(roster) if party in self.read_by(roster, host)]

    def read_by(self, roster: Roster, host: str) -> list[str]:
        """Return the parties whose embeddings a host reads."""
        blocks = roster.blocks
        return [blocks[k] for k in own_rule.reads_of(self.rule, roster, self.hosts(roster)[host])]

    def unread(self, roster: Roster) -> list[str]:
        """Return the parties whose embeddings no host reads: they send nothing, and count as if they had no row."""
        read = {k for owners in self.hosts(roster).values() for k in own_rule.reads_of(self.rule, roster, owners)}
        return [name for k, name in enumerate(roster.blocks) if k not in read]

    def heard(self, roster: Roster, observed: Tensor) -> Tensor:
        """Return who has which row of those that are read, [N, K] bool."""
        unread = self.unread(roster)
        if not unread:
            return observed
        observed = observed.clone()
        observed[:, [roster.blocks.index(name) for name in unread]] = False
        return observed

    def width(self, roster: Roster) -> tuple[int, ...]:
        """Return the shape of a row's embedding: (H,), or (copies, H)."""
        copies = self.rule.copies(roster)
        return (self.embedding,) if copies == 1 else (copies, self.embedding)
