"""The messages of split methods: a host of heads receives embeddings, and sends gradients and outputs.

If a party is lost during a batch, the host continues as if the party had none of the batch's rows.

Notation  B rows of the batch, B_k rows of the batch that party k has, K parties with columns, H width of an embedding,
          M heads, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from anyparty.core.predictions import NO_ANSWER, NO_NUMBER, Predictions
from anyparty.core.types import Channel, Roster, TensorSpec
from anyparty.errors import MessageError, PartyLost
from anyparty.methods.method import Batch, PartyContext
from anyparty.methods.split.rule import RuleAnswer
from anyparty.problem.rows import Rows

NOBODY = "no party that was asked and answered has this row"

ExchangePart = tuple[Tensor, Tensor]  # a party's rows: their indices in the batch [B_k], and their embeddings [B_k, H]


@dataclass
class Gathered:
    """The embeddings of one batch at a host.

    Attributes:
        parts: for each party, the indices [B_k] of its rows in the batch, and the embeddings [B_k, H] of these rows.
        observed: [B, K] bool, the rows that each party has; False for parties that were lost or may not take part.
        silent: the parties that were expected to send embeddings and were lost.

    """

    observed: Tensor
    parts: dict[str, ExchangePart] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def without(self, ks: Sequence[int], roster: Roster) -> Gathered:
        """Return a copy in which the parties with the indices ``ks`` have none of the rows."""
        observed, parts = self.observed.clone(), dict(self.parts)
        for k in ks:
            observed[:, k] = False
            parts.pop(roster.blocks[k], None)
        return replace(self, observed=observed, parts=parts)

    def scatter(self, roster: Roster) -> Tensor:
        """Return the embeddings h [B, K, H], with zeros for rows that a party does not have."""
        (B, K), blocks = self.observed.shape, roster.blocks
        if len(self.parts) == K and all(held.shape[0] == B for held, _ in self.parts.values()):
            return torch.stack([self.parts[name][1] for name in blocks], dim=1)
        rows = torch.cat([held for held, _ in self.parts.values()])
        party = torch.cat([held.new_full((len(held),), blocks.index(k)) for k, (held, _) in self.parts.items()])
        h = torch.cat([h for _, h in self.parts.values()])
        return h.new_zeros(B, K, *h.shape[1:]).index_put((rows, party), h)

    def collect(self, roster: Roster, whole: Tensor) -> dict[str, Tensor]:
        """Split ``whole`` [B, K, H] into a tensor [B_k, H] for each party: the inverse of ``scatter``.

        The returned tensors are contiguous, as received tensors are, because the rounding of a matrix product may
        depend on the memory layout.
        """
        columns = dict(zip(roster.blocks, whole.unbind(dim=1), strict=True))
        return {
            name: columns[name].contiguous() if held.shape[0] == whole.shape[0] else columns[name][held]
            for name, (held, _) in self.parts.items()
        }


async def share(net: Channel, readers: Sequence[str], mine: ExchangePart | None) -> None:
    """Send a party's embeddings of a batch (``mine``) to each host listed in ``readers``."""
    for host in readers:
        if mine and host != net.me:
            await net.send(host, "embedding", {"h": mine[1].detach()})


async def share_gradients(net: Channel, gradients: Mapping[str, Tensor]) -> None:
    """Send each party the gradient of the loss with respect to its embeddings."""
    for name, gradient in gradients.items():
        if name != net.me:
            await net.send(name, "gradient", {"g": gradient})


async def gradients_of(net: Channel, readers: Sequence[str], h: Tensor, *, or_none: bool = False) -> list[Tensor]:
    """Wait for the gradients of the loss with respect to ``h`` [B_k, H] from the hosts that read these embeddings.

    If ``or_none`` is true, a gradient may have 0 rows, which means that the host continued without these embeddings.

    Raises:
        MessageError: a gradient has a wrong shape.
    """
    expect = TensorSpec((-1, *h.shape[1:]) if or_none else tuple(h.shape))
    got: list[Tensor] = []
    for host in readers:
        if host != net.me:
            g = (await net.recv(host, "gradient", {"g": expect}))["g"].to(h.device)
            if len(g) not in {0, len(h)}:
                raise MessageError(f"message 'gradient' from {host!r} to {net.me!r}: expected {len(h)} rows, "
                                   f"got {len(g)}")  # fmt: skip
            got.append(g)
    return got


async def gather(
    net: Channel, seat: PartyContext, rows: Rows, batch: Batch, mine: ExchangePart | None, *,
    asked: Sequence[str], read: Sequence[str], width: tuple[int, ...],
) -> Gathered:  # fmt: skip
    """Wait at a host for the parties' embeddings of a batch, and return them.

    Args:
        net: the host's channel.
        seat: the host.
        rows: all rows of the run, as the host knows them.
        batch: the rows of the batch.
        mine: the indices of the host's own rows in the batch, and its own embeddings of them.
        asked: the parties that take part in the batch; the blocks of all other parties count as missing.
        read: the parties whose embeddings are inputs of this host's heads.
        width: the shape of a row's embedding, (H,) or (copies, H).
    """
    assert rows.observed is not None
    gathered = Gathered(observed=rows.observed[batch.rows])
    for k, name in enumerate(seat.roster.blocks):
        if name not in asked:
            gathered.observed[:, k] = False
    counts = gathered.observed.sum(dim=0).tolist()
    for k, name in enumerate(seat.roster.blocks):
        if not counts[k] or name not in read:
            continue
        if name == seat.me:
            assert mine is not None
            gathered.parts[name] = (mine[0], mine[1].detach())
            continue
        try:
            got = await net.recv(name, "embedding", {"h": TensorSpec((counts[k], *width))})
        except PartyLost:
            gathered.observed[:, k] = False
            gathered.silent.append(name)
            continue
        gathered.parts[name] = (gathered.observed[:, k].nonzero().squeeze(1), got["h"].to(seat.device))
    return gathered


class HostOutputs(NamedTuple):
    """The outputs of one host's heads for a batch.

    Attributes:
        owners: [M] int64, the position of the party that each head belongs to.
        outputs: [B, M, C].
        valid: [B, M] bool, the outputs that may enter an answer.
        reached: [B, K] bool, the blocks that the heads use, of the parties on whose rows these heads were trained.

    """

    owners: Tensor
    outputs: Tensor
    valid: Tensor
    reached: Tensor


async def outputs_of(
    net: Channel, host: str, owners: Tensor, C: int, gathered: Gathered, known: Tensor, roster: Roster
) -> HostOutputs:
    """Wait for another host's outputs, of C numbers for each row and each of the heads of ``owners`` [M].

    If the host was lost, it is added to the silent parties, and its outputs are valid for no row. A row's outputs are
    also invalid if the host used an embedding of a party whose embeddings the active party did not receive. The active
    party reports such a party as silent, and no answer may depend on a silent party. ``known`` [B, K] bool marks the
    rows that each party has.
    """
    shape = (len(known), len(owners), C)
    expect = {"outputs": TensorSpec(shape), "heard": TensorSpec((roster.K,), torch.bool)}
    try:
        got = await net.recv(host, "outputs", expect)
    except PartyLost:
        if host not in gathered.silent:
            gathered.silent.append(host)
        if host in roster.blocks and host not in gathered.parts:
            gathered.observed[:, roster.blocks.index(host)] = False
        nowhere = known.new_zeros(shape[:2])
        return HostOutputs(owners, torch.zeros(shape, device=known.device), nowhere, gathered.observed.clone())
    used = got["heard"].to(known.device)
    astray = used & torch.tensor([name in gathered.silent for name in roster.blocks], device=known.device)
    reached, stands = gathered.observed & used, ~(known & astray).any(dim=1, keepdim=True)
    return HostOutputs(owners, got["outputs"].to(known.device), stands & reached[:, owners], reached)


def predictions(
    answer: RuleAnswer, seat: PartyContext, asked: Sequence[str], gathered: Gathered, predictor: str
) -> Predictions:
    """Return a rule's answers, the parties that took part in them, and a reason for each row without an answer."""
    assert seat.task is not None
    answered = (answer.answered & ~answer.scores.isnan().any(dim=1)).unsqueeze(1)
    known, has_answer = gathered.observed.any(dim=1).tolist(), answer.answered.tolist()
    reasons = {
        n: NOBODY if not known[n] else NO_NUMBER if has_answer[n] else answer.reason or NO_ANSWER
        for n in (~answered).nonzero()[:, 0].tolist()
    }
    return Predictions(
        task=seat.task,
        blocks=seat.roster.blocks,
        scores=torch.where(answered, answer.scores, torch.nan).cpu(),
        took_part=(answer.took_part & answered).cpu(),
        asked=torch.tensor([name in asked for name in seat.roster.blocks]),
        by_party=None if answer.by_party is None else answer.by_party.cpu(),
        silent=tuple(gathered.silent),
        predictor=predictor,
        reasons=reasons,
    )
