"""FALSE-VFL at the active party: draw samples, weight them by the parties' likelihoods, and train on them.

Notation as in ``distributions``. A sample is "followed" if its weight in the gradient is not 0. N of a batch's L x B
samples are followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyparty.core.types import Roster, TensorSpec
from anyparty.errors import PartyLost
from anyparty.methods.false_vfl.distributions import Gaussian, LabelNetworks
from anyparty.methods.false_vfl.passive_party import BatchTurn, PartyBatch
from anyparty.methods.split.exchange import Gathered, gather


@dataclass(frozen=True)
class WeightedBatch:
    """A batch at the active party, with its samples and their weights.

    Attributes:
        gathered: the parties that take part, and their embeddings.
        held: [B, K] bool, the parties that have each row, including parties whose blocks are ignored.
        views: [B, K, 2 D], the embeddings, as a leaf of the active party's autograd graph.
        posterior: q(z | x^O), with its autograd graph.
        noise: the noise of the samples: [L, B, D] for z and [L, B, T] for h.
        z: [L, B, D], the samples.
        log_w: [L, B], the logarithms of the samples' weights.

    """

    gathered: Gathered
    held: Tensor
    views: Tensor
    posterior: Gaussian
    noise: tuple[Tensor, Tensor]
    z: Tensor
    log_w: Tensor

    def known(self, roster: Roster) -> Tensor:
        """Return a mask [B, K] of the blocks on which the samples' weights depend.

        If a party was lost after it sent its embedding, the mask is False for its blocks.
        """
        lost = torch.tensor([name in self.gathered.silent for name in roster.blocks], device=self.z.device)
        return self.gathered.observed & ~lost


async def weigh(turn: BatchTurn, side: LabelNetworks, own_batch: PartyBatch | None) -> WeightedBatch:
    """Draw samples of z, send them to the parties, and weight them by the likelihoods that the parties return.

    The samples and their weights have no autograd graph. ``own_batch`` is the active party's own data of the batch;
    ``None`` if this party holds no columns.

    Raises:
        Diverged: the samples are not finite.
    """
    mine = (own_batch.held, own_batch.views) if own_batch is not None and len(own_batch.held) else None
    gathered = await gather(
        turn.net, turn.seat, turn.rows, turn.batch, mine,
        asked=turn.asked, read=turn.seat.roster.blocks, width=(2 * turn.D,),
    )  # fmt: skip
    B, K = gathered.observed.shape
    held = gathered.observed.clone()
    gathered.observed[:, [turn.seat.roster.blocks.index(name) for name in turn.missed]] = False
    nothing = torch.zeros(B, K, 2 * turn.D, device=turn.seat.device)
    views = (gathered.scatter(turn.seat.roster) if gathered.parts else nothing).requires_grad_(turn.follows)
    noise = turn.sampling(gathered.observed)
    with torch.set_grad_enabled(turn.follows):
        posterior = side.posterior(views, gathered.observed)
    with torch.no_grad():
        draws = side.draw(posterior, noise)
    turn.finite(draws.z, "the samples of z are")
    log_p = await _likelihoods(turn, gathered, draws.z, own_batch)
    return WeightedBatch(gathered, held, views, posterior, noise, draws.z, draws.log_ratio + log_p)


async def learn(
    turn: BatchTurn,
    side: LabelNetworks,
    own_batch: PartyBatch | None,
    weighed: WeightedBatch,
    u: Tensor,
    parameters: Sequence[nn.Parameter],
    labels: tuple[Tensor, Tensor] | None,
) -> None:
    """Compute the gradients of all networks from u [L, B], the gradient of the loss with respect to the log-weights.

    ``parameters`` are the parameters of the active party's label networks that learn in this stage. ``labels`` has the
    labels [B] and a mask [B] of the known labels; it is ``None`` in stage 1.

    In stage 2, u would reveal information about labels to the passive parties. The active party therefore sends one
    constant in place of u, and multiplies the gradients that the parties return by u / constant.

    Raises:
        Diverged: the gradients are not finite.
    """
    sent = u if labels is None else torch.full_like(u, -1 / u.numel())
    slope = await _slopes(turn, weighed, own_batch, sent) if turn.follows else None
    sample, row = sent.nonzero(as_tuple=True)
    seen = Gaussian(*(_of_rows(part, row) for part in (weighed.posterior.mean, weighed.posterior.std)))
    draws = side.draw(seen, (weighed.noise[0][sample, row], weighed.noise[1][sample, row]))
    log_w = draws.log_ratio
    if labels is not None:
        log_w = log_w + side.log_label(draws.z.unsqueeze(0), labels[0][row])[0]
    goal = (u[sample, row] * log_w).sum()
    if slope is not None:
        scale = u[sample, row] / sent[sample, row]
        goal = goal + (scale.unsqueeze(1) * draws.z * slope).sum()
    torch.autograd.backward(goal, inputs=[*([weighed.views] if turn.follows else []), *parameters])
    if not turn.follows:
        return
    assert weighed.views.grad is not None
    turn.finite(weighed.views.grad, "the gradients are")
    for name, back in weighed.gathered.collect(turn.seat.roster, weighed.views.grad).items():
        if name == turn.seat.me:
            assert own_batch is not None
            own_batch.backward(back)
        elif name not in weighed.gathered.silent:
            await turn.net.send(name, "gradient", {"g": back})


def _of_rows(part: Tensor, row: Tensor) -> Tensor:
    """Select rows of a tensor; the backward pass sums gradients in a fixed order, also on a GPU."""
    return part.index_select(0, row) if part.device.type == "cpu" else part[row]


async def _likelihoods(turn: BatchTurn, gathered: Gathered, z: Tensor, own_batch: PartyBatch | None) -> Tensor:
    """Send each party the samples of its rows; return the sum of all log-likelihoods: z [L, B, D] -> [L, B]."""
    places = _places(turn, gathered)
    of_party = {name: z.clone() if len(own) == z.shape[1] else z[:, own] for name, own in places.items()}
    for name in places:
        if name != turn.seat.me:
            await turn.net.send(name, "samples", {"z": of_party[name]})
    log_p = z.new_zeros(z.shape[:2])
    for name, own in places.items():
        if name == turn.seat.me:
            assert own_batch is not None
            got = turn.decode(own_batch, of_party[name])
        else:
            try:
                expect = {"log_p": TensorSpec((turn.L, len(own)), squares=True)}
                got = (await turn.net.recv(name, "likelihood", expect))["log_p"].to(z.device)
            except PartyLost:
                gathered.silent.append(name)
                continue
        if name not in turn.missed:
            log_p.index_add_(1, own, got)
    return log_p


async def _slopes(turn: BatchTurn, weighed: WeightedBatch, own_batch: PartyBatch | None, u: Tensor) -> Tensor:
    """Return the gradient of sum(u log p(x^k | z)) with respect to each followed sample: [N, D].

    The sum is over samples, rows and parties k. A sample is followed if its u is not 0. The shape of u is [L, B].
    """
    followed = u != 0
    number = followed.flatten().cumsum(0).view_as(u) - 1
    slope = u.new_zeros(int(followed.sum()), turn.D)
    places = _places(turn, weighed.gathered)
    for name, own in places.items():
        if name != turn.seat.me:
            await turn.net.send(name, "weight", {"u": u[:, own]})
    for name, own in places.items():
        at = number[:, own][followed[:, own]]
        if name == turn.seat.me:
            assert own_batch is not None
            got = turn.follow(own_batch, weighed.z[:, own], u[:, own])
        else:
            try:
                got = (await turn.net.recv(name, "slope", {"z": TensorSpec((len(at), turn.D))}))["z"].to(u.device)
            except PartyLost:
                weighed.gathered.silent.append(name)
                continue
        slope.index_add_(0, at, got)
    return slope


def _places(turn: BatchTurn, gathered: Gathered) -> dict[str, Tensor]:
    """Return, for each party, the rows for which it sends likelihoods, as indices in the batch."""
    if not turn.mnar:
        return {name: held for name, (held, _) in gathered.parts.items() if name not in gathered.silent}
    every = torch.arange(len(turn.batch.rows), device=turn.seat.device)
    return {name: every for name in turn.seat.roster.blocks if name in turn.asked and name not in gathered.silent}


def labels(turn: BatchTurn) -> tuple[Tensor, Tensor]:
    """Return the labels of the batch [B], with zeros for unknown labels, and a mask [B] of the known labels."""
    assert turn.rows.y is not None
    assert turn.rows.labeled is not None
    known = turn.rows.labeled[turn.batch.rows]
    return torch.where(known, turn.rows.y[turn.batch.rows], 0), known
