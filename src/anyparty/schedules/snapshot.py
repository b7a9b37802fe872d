"""Shared labels: Phi, what a host sends so that a party can compute its own loss (Flex-VFL, Algorithm 1, lines 8, 9).

Only what bears on the party's own gradient crosses: the others' embeddings of the rows that it has itself, and the
heads.  Rows that it does not have enter its loss as rows of nobody: no derivative comes from them, but they count
where a loss is a mean over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from anyparty.blocks.blocks import Rows
from anyparty.errors import MessageError
from anyparty.methods.exchange import Gathered, Part
from anyparty.methods.method import Batch, Seat, State
from anyparty.methods.split import Split
from anyparty.schedules.schedule import SNAPSHOT
from anyparty.schedules.stale import Stale
from anyparty.terms import Channel, Expect

HEADS, PARTS, THERE = "heads/", "h/", "there"


async def send(
    net: Channel, seat: Seat, heads: nn.Module, there: Gathered, nothing: Tensor, late: Sequence[str]
) -> None:
    """Send Phi to every party that is there, before the heads move; to those that are ``late``, one of no rows.

    ``nothing`` are the embeddings of no rows, [0, H].
    """
    blocks = seat.roster.blocks
    weights = {f"{HEADS}{name}": tensor for name, tensor in heads.state_dict().items()}
    present = {THERE: torch.tensor([name in there.parts for name in blocks], dtype=torch.uint8)}
    for name, (held, _) in there.parts.items():
        if name == seat.me:
            continue
        own = torch.zeros(len(there.observed), dtype=torch.bool, device=held.device).index_fill(0, held, True)
        both = {other: h[own[at]] for other, (at, h) in there.parts.items()}
        parts = {f"{PARTS}{other}": both.get(other, nothing) for other in blocks if other != name}
        await net.send(name, SNAPSHOT.tag, weights | present | parts)
    for name in late:
        await net.send(name, SNAPSHOT.tag, weights | present | {f"{PARTS}{k}": nothing for k in blocks if k != name})


@dataclass
class Copy:
    """A party's copy of the heads, and its own loss with them."""

    split: Split
    made: list[nn.Module] = field(default_factory=list)

    def heads(self, state: State) -> nn.Module:
        """Return the network that weights of the heads are loaded into; its own first weights are never used."""
        if not self.made:
            seat, topology = state.seat, state.topology
            assert seat.task is not None
            assert topology is not None
            with torch.random.fork_rng(devices=[]):
                heads = self.split.heads(topology, topology.active, seat.task)
            self.made.append(heads.to(seat.device).requires_grad_(False))
        return self.made[0]

    async def receive(self, net: Channel, state: State, rows: Rows, batch: Batch, mine: Part) -> Gathered | None:
        """Take Phi: load the heads, and return what is there of the rows that the party has.

        ``None`` if the party itself is not there: the host has gone on without it.

        Raises:
            MessageError: embeddings of other rows than those that both have.
        """
        seat, roster, topology = state.seat, state.seat.roster, state.topology
        assert topology is not None
        assert rows.observed is not None
        heads, others = self.heads(state), [name for name in roster.blocks if name != seat.me]
        weights = heads.state_dict()
        expect = {f"{HEADS}{name}": Expect(tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}
        expect |= {THERE: Expect((roster.K,), torch.uint8)} | {
            f"{PARTS}{name}": Expect((-1, *topology.width)) for name in others
        }
        got = await net.recv(roster.active, SNAPSHOT.tag, expect)
        heads.load_state_dict({name: got[f"{HEADS}{name}"] for name in weights})
        if not got[THERE][roster.blocks.index(seat.me)]:
            return None
        observed = rows.observed[batch.rows]
        there = Gathered(observed=observed & got[THERE].bool().to(observed.device))
        there.late = not torch.equal(there.observed, observed)
        for k, name in enumerate(roster.blocks):
            if name == seat.me:
                there.parts[name] = (mine[0], mine[1].detach())
                continue
            at, h = mine[0][there.observed[mine[0], k]], got[f"{PARTS}{name}"].to(seat.device)
            if len(h) != len(at):
                raise MessageError(f"message {SNAPSHOT.tag!r} from {roster.active!r} to {seat.me!r}: expected {name!r} "
                                   f"to have {len(at)} of its rows, got embeddings of {len(h)}")  # fmt: skip
            if len(at):
                there.parts[name] = (at, h)
        return there

    def loss(self, state: State, rows: Rows, batch: Batch, there: Gathered) -> Callable[[Tensor], Tensor]:
        """Return what gives the derivative of the party's loss by its own embeddings [B_k, H], as they are now.

        It is zero where the party knows no label.
        """
        assert rows.y is not None
        assert rows.labeled is not None
        known, y = rows.labeled[batch.rows], rows.y[batch.rows]
        seat = state.seat
        fusion = self.split.fusion(state, self.heads(state), seat.roster.active)
        stale = Stale.of(self.split, fusion, seat, batch, there, torch.where(known, y, torch.zeros_like(y)),
                         torch.ones_like(known))  # fmt: skip
        unknown = (~known[there.parts[seat.me][0]]).nonzero().squeeze(1)

        def derive(now: Tensor) -> Tensor:
            gradient = stale.derive(now)
            assert gradient is not None
            return gradient.index_fill(0, unknown, 0.0) if len(unknown) else gradient

        return derive
