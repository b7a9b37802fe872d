"""Local iterations: optimizer steps with a proximal term, and with momentum that is reset in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from anyparty.core.types import Channel, TensorSpec
from anyparty.errors import MessageError
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.methods.schedules.schedule import SNAPSHOT, LocalIterations
from anyparty.methods.split.exchange import ExchangePart, Gathered
from anyparty.methods.split.rule import RowWeights
from anyparty.methods.split.split_method import Split, labels_of
from anyparty.networks.optimizer import write_rate
from anyparty.problem.rows import Rows


@dataclass
class LocalSteps:
    """The optimizer steps of one party in one round.

    ``starts`` has the parameters at the start of the round, which the proximal term needs.
    """

    state: State
    local: LocalIterations
    starts: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, optimizer in self.state.optimizers.items():
            if self.local.momentum == "local" and isinstance(optimizer, torch.optim.SGD):
                optimizer.state.clear()
            if self.local.mu:
                self.starts[name] = [parameter.detach().clone() for parameter in _parameters(optimizer)]

    def step(self, name: str) -> None:
        """Add the proximal term to the gradients of one network, then make a step of this network's optimizer."""
        optimizer = self.state.optimizers.get(name)
        if optimizer is None:  # a user's network without parameters has no optimizer
            return
        for parameter, start in zip(_parameters(optimizer), self.starts.get(name, ()), strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - start, alpha=self.local.mu)
        optimizer.step()


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def set_rate(state: State, rate: float) -> None:
    """Set the learning rate of all of a party's optimizers."""
    for optimizer in state.optimizers.values():
        write_rate(optimizer, rate, constant=True)


@dataclass(frozen=True, kw_only=True)
class StaleRound:
    """A round's data that stays constant while the party's own embeddings change.

    Attributes:
        h: [B, K, H] embeddings at the start of the round; zero for rows that a party does not have.
        observed: [B, K] bool, True if party k has row b.
        y: [B] labels.
        weights: the rows that have a loss.
        own: two tensors: the indices of the party's rows among the B rows, and the party's index among the K parties.
            ``None`` if the party has none of the rows.
        copy: a copy of the active party's heads, at a passive party.

    """

    split: Split
    state: State
    batch: Batch
    h: Tensor
    observed: Tensor
    y: Tensor
    weights: RowWeights
    own: tuple[Tensor, Tensor] | None
    copy: nn.Module | None = None

    @classmethod
    def of(
        cls, split: Split, state: State, rows: Rows, batch: Batch, gathered: Gathered, copy: nn.Module | None = None
    ) -> StaleRound:
        """Prepare a round's data from embeddings (``gathered``).

        Only rows whose label this party knows have a weight. With a copy of the active party's heads, the other rows
        count in the loss's divisor, because the active party knows their labels.
        """
        seat = state.seat
        y, known = labels_of(rows, batch)
        use = split.plan(seat.roster).trains_on(gathered.observed)
        weights = RowWeights.of_mask(use & known, len(batch.rows))
        own = None
        if seat.me in gathered.parts:
            held = gathered.parts[seat.me][0]
            own = (held, held.new_tensor(seat.roster.blocks.index(seat.me)))
        return cls(
            split=split,
            state=state,
            batch=batch,
            h=gathered.scatter(seat.roster).detach(),
            observed=gathered.observed,
            y=y,
            weights=weights if copy is None else replace(weights, counted=use),
            own=own,
            copy=copy,
        )

    def derive(self, now: Tensor | None) -> Tensor | None:
        """Return the gradient of the loss with respect to ``now``, the party's present embeddings [B_k, H].

        The gradients of the heads' parameters are stored in ``grad`` of these parameters.

        Raises:
            Diverged: the loss is not a number.
        """
        h, leaf = self.h, None
        if now is not None and self.own is not None:
            leaf = now.detach().requires_grad_()
            h = h.index_put(self.own, leaf)
        self.split.descend(self.state, self.batch, h, self.observed, self.y, [(1.0, self.weights)], self.copy)
        if leaf is None:
            return None
        # ``contiguous`` gives the memory layout of a received gradient, because rounding may depend on the layout.
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()


HEADS, PARTS, THERE = "heads/", "h/", "there"


async def send(
    net: Channel, seat: PartyContext, heads: nn.Module, gathered: Gathered, nothing: Tensor, late: Sequence[str]
) -> None:
    """Send Phi (the heads and the other parties' embeddings) to every party that takes part in the round.

    The heads have not been updated yet in this round. Phi for a party in ``late`` contains no embeddings. ``nothing``
    is a tensor of 0 embeddings, [0, H].
    """
    blocks = seat.roster.blocks
    weights = {f"{HEADS}{name}": tensor for name, tensor in heads.state_dict().items()}
    present = {THERE: torch.tensor([name in gathered.parts for name in blocks], dtype=torch.uint8)}
    for name, (held, _) in gathered.parts.items():
        if name == seat.me:
            continue
        own = torch.zeros(len(gathered.observed), dtype=torch.bool, device=held.device).index_fill(0, held, True)
        both = {other: h[own[at]] for other, (at, h) in gathered.parts.items()}
        parts = {f"{PARTS}{other}": both.get(other, nothing) for other in blocks if other != name}
        await net.send(name, SNAPSHOT.tag, weights | present | parts)
    for name in late:
        await net.send(name, SNAPSHOT.tag, weights | present | {f"{PARTS}{k}": nothing for k in blocks if k != name})


@dataclass
class HeadCopy:
    """A party's copy of the heads, with which it computes its own loss."""

    split: Split
    made: list[nn.Module] = field(default_factory=list)

    def heads(self, state: State) -> nn.Module:
        """Return the network into which received head weights are loaded; its initial weights are never used."""
        if not self.made:
            seat = state.seat
            with torch.random.fork_rng(devices=[]):
                heads = self.split.heads(seat, seat.roster.active)
            self.made.append(heads.to(seat.device).requires_grad_(False))
        return self.made[0]

    async def receive(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: ExchangePart
    ) -> Gathered | None:
        """Receive Phi from the host: load the heads into this copy, and return all embeddings of the party's rows.

        Return ``None`` if the host continued without the party.

        Raises:
            MessageError: the number of another party's embeddings is not the number of rows that both parties have.
        """
        seat, roster, topology = state.seat, state.seat.roster, self.split.topology(state.seat.roster)
        assert rows.observed is not None
        heads, others = self.heads(state), [name for name in roster.blocks if name != seat.me]
        weights = heads.state_dict()
        expect = {f"{HEADS}{name}": TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}
        expect |= {THERE: TensorSpec((roster.K,), torch.uint8)} | {
            f"{PARTS}{name}": TensorSpec((-1, *topology.width)) for name in others
        }
        got = await net.recv(roster.active, SNAPSHOT.tag, expect)
        heads.load_state_dict({name: got[f"{HEADS}{name}"] for name in weights})
        if not got[THERE][roster.blocks.index(seat.me)]:
            return None
        observed = rows.observed[batch.rows]
        gathered = Gathered(observed=observed & got[THERE].bool().to(observed.device))
        for k, name in enumerate(roster.blocks):
            if name == seat.me:
                gathered.parts[name] = (mine[0], mine[1].detach())
                continue
            at, h = mine[0][gathered.observed[mine[0], k]], got[f"{PARTS}{name}"].to(seat.device)
            if len(h) != len(at):
                raise MessageError(
                    f"message {SNAPSHOT.tag!r} from {roster.active!r} to {seat.me!r}: expected {name!r} "
                    f"to have {len(at)} of its rows, got embeddings of {len(h)}"
                )
            if len(at):
                gathered.parts[name] = (at, h)
        return gathered

    def loss(self, state: State, rows: Rows, batch: Batch, gathered: Gathered) -> Callable[[Tensor], Tensor]:
        """Return a function from the party's current embeddings [B_k, H] to the gradient of the party's loss.

        The gradient is zero for rows whose label the party does not know.
        """
        stale = StaleRound.of(self.split, state, rows, batch, gathered, self.heads(state))

        def derive(now: Tensor) -> Tensor:
            gradient = stale.derive(now)
            assert gradient is not None
            return gradient

        return derive
