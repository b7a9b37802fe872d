"""A mini-batch's loss as a party takes it anew in its local iterations: its own embeddings as they are now, everybody
else's as they were at the start of the round (Flex-VFL, Algorithm 1, lines 10 to 16).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.methods.exchange import Gathered
from anyparty.methods.fusion import Fusion
from anyparty.methods.method import Batch, Seat
from anyparty.methods.split import Split


@dataclass(frozen=True, kw_only=True)
class Stale:
    """What stays as it is during a round, prepared once.

    Attributes:
        h: [B, K, H] embeddings at the start of the round, zero where there is none.
        observed: [B, K] bool.
        y: [B] labels.
        left: which of the B rows have a loss, int64; ``None``: all.
        own: which of the B rows the party has, and its place among the K; ``None`` if it has none.

    """

    split: Split
    fusion: Fusion
    seat: Seat
    batch: Batch
    h: Tensor
    observed: Tensor
    y: Tensor
    left: Tensor | None
    own: tuple[Tensor, Tensor] | None

    @classmethod
    def of(
        cls, split: Split, fusion: Fusion, seat: Seat, batch: Batch, there: Gathered, y: Tensor, known: Tensor
    ) -> Stale:
        """Prepare a round from what is there of its rows, their labels [B] and which of these are known [B]."""
        left = None
        if there.silent or there.late or not known.all():
            left = (known & split.rule.trains_on(seat.roster, there.observed)).nonzero().squeeze(1)
        own = None
        if seat.me in there.parts:
            held = there.parts[seat.me][0]
            own = (held, held.new_tensor(seat.roster.blocks.index(seat.me)))
        return cls(split=split, fusion=fusion, seat=seat, batch=batch, h=there.scatter(seat.roster).detach(),
                   observed=there.observed, y=y, left=left, own=own)  # fmt: skip

    def derive(self, now: Tensor | None) -> Tensor | None:
        """Return the derivative of the loss by the party's embeddings ``now`` [B_k, H]; leave the heads' in place.

        Raises:
            Diverged: the loss is not a number.
        """
        h, observed, y, leaf = self.h, self.observed, self.y, None
        if now is not None and self.own is not None:
            leaf = now.detach().requires_grad_()
            h = h.index_put(self.own, leaf)
        if self.left is not None:
            h, observed, y = h[self.left], observed[self.left], y[self.left]
        if len(y):
            self.split.descend(self.fusion, self.seat, self.batch, h, observed, y)
        if leaf is None:
            return None
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()  # as after a wire
