"""Training steps of a split method with all parties in one process: one graph, no messages.

A step computes the loss and the gradients that the parties' coroutines compute, up to rounding. Encoders of equal shape
are computed together: in an epoch, the weights of a layer are one tensor, of which each party's parameter is a view.
Other encoders are called one after the other. In both cases, one backward pass computes all gradients, and built-in
optimizers with equal settings make one step together. A party without a row in the batch makes no step.

An unobserved block is zero before the encoder, and its embedding is replaced by zeros after it, with ``torch.where``.

Notation  B rows of the batch, K parties with columns, H width of an embedding, F_k columns of party k.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from anyparty.core.draws import uniform
from anyparty.core.predictions import Predictions
from anyparty.core.types import finite
from anyparty.methods.method import Batch, Count, Method, State
from anyparty.methods.split.exchange import Gathered
from anyparty.methods.split.rule import draw_noise
from anyparty.networks.encoders import MLP
from anyparty.networks.modules import RowDropout
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Rows

if TYPE_CHECKING:
    from anyparty.methods.split.split_method import Split

MOST_DRAWN = 2**20  # random numbers that are drawn at once

Layer = Callable[[Tensor, Sequence[int], Tensor], Tensor]
"""A layer of all encoders: numbers [K, B, D], each party's key of random numbers, rows [B] -> [K, B, D']."""


@dataclass
class JointSteps:
    """The steps of one stage.

    Attributes:
        method: the split method, whose heads are all at the active party.
        states: each party's networks and optimizers.
        rows: each party's data.
        count: counts a message that the protocol would have sent.

    """

    method: Split
    states: Mapping[str, State]
    rows: Mapping[str, Rows]
    count: Count

    def __post_init__(self) -> None:
        active = next(iter(self.states.values())).seat.roster.active
        self.lead, self.lead_rows = self.states[active], self.rows[active]
        roster = self.lead.seat.roster
        topology = self.method.topology(roster)
        assert self.lead_rows.observed is not None
        self.observed = topology.without_unread(self.lead_rows.observed)  # [N, K]
        self.blocks, self.width = roster.blocks, topology.width
        self.readers = [name for name in self.blocks if name not in topology.unread]
        self.stacked = StackedEncoders.of([self.states[name] for name in self.readers])
        self.x = {name: _whole(self.rows[name]) for name in self.readers} if self.stacked else {}
        self.optimizers = JointOptimizers({name: self.states[name] for name in self.readers}, self.lead)
        self.parameters = [p for _, _, made in self.optimizers.each for p in _parameters(made)]
        self.parameters += [whole for whole, _ in self.stacked.shared] if self.stacked is not None else []

    @property
    def predictor(self) -> Method | None:
        """The split method, unless a user's subclass predicts in its own way."""
        return self.method if self.method.predicts_as_split else None

    def batches(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch with the rule's random numbers, and hold the numbers of few batches at a time.

        Weights and the optimizers' state are shared while the epoch lasts, and then given back to each party, for
        checkpoints and for the trained model.
        """
        self.optimizers.merge()
        if self.stacked is not None:
            self.stacked.tie()
        seat = self.lead.seat
        plan, host, K = self.method.plan(seat.roster), self.method.host(seat), seat.roster.K
        for size, alike in groupby(batches, key=lambda batch: len(batch.rows)):
            each = list(alike)
            at_once = max(1, MOST_DRAWN // max(1, size * K * max(1, len(host.owners))))
            for some in (each[n : n + at_once] for n in range(0, len(each), at_once)):
                rows = torch.stack([batch.rows for batch in some]).to(seat.device)
                noises = draw_noise(plan, host, some, rows, K)
                for batch, noise in zip(some, noises, strict=True):
                    yield replace(batch, noise=noise)
        self.optimizers.part()
        if self.stacked is not None:
            self.stacked.untie()

    def step(self, batch: Batch) -> float | None:
        """Train on a batch; return the loss, or ``None`` if the batch has no row to learn from.

        Raises:
            Diverged: an embedding or the loss is not a number.
        """
        observed = self.observed[batch.rows]
        counts = observed.sum(dim=0).tolist()
        there = {name for name, count in zip(self.blocks, counts, strict=True) if count}
        for parameter in self.parameters:
            parameter.grad = None
        if not there:
            self.optimizers.step(there)
            return None
        h = self._encode(batch, observed, counts)
        if not finite(h.detach()):
            self._name_diverged(h.detach(), batch)
        if h.requires_grad:
            h.retain_grad()
        loss = self.method.learn(self.lead, self.lead_rows, batch, Gathered(observed=observed), h)
        if h.requires_grad and h.grad is None:  # as in the protocol, encoders make a step with a gradient of zero
            h.backward(torch.zeros_like(h))  # type: ignore[no-untyped-call]
        if self.stacked is not None:
            self.stacked.give_gradients([name in there for name in self.readers])
        self.optimizers.step(there)
        if self.stacked is not None and self.optimizers.own:
            self.stacked.tie()
        self._count(counts, "embedding")
        self._count(counts, "gradient")
        return loss

    def predict(self, batch: Batch) -> Predictions:
        """Return the answers for the rows of a batch from all parties."""
        observed, parts = self.observed[batch.rows], {}
        with torch.no_grad():
            for name in self.readers:
                self.states[name].train(False)
                part = self.method.encode(self.states[name], self.rows[name], batch, draws=False)
                if part is not None:
                    parts[name] = part
        self._count(observed.sum(dim=0).tolist(), "embedding")
        gathered = Gathered(observed=observed, parts=parts)
        own = self.method.own_outputs(self.lead, gathered)
        return self.method.answer(self.lead, self.lead_rows, batch, self.blocks, gathered, [own])

    def _encode(self, batch: Batch, observed: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the embeddings [B, K, H], zero where not observed."""
        draws = self.states[self.readers[0]].seat.draws
        keys = [batch.own_key("encoder draws", name) for name in self.readers] if draws else []
        if self.stacked is None:
            parts = {}
            for k, name in enumerate(self.blocks):
                if counts[k]:
                    part = self.method.encode(self.states[name], self.rows[name], batch)
                    assert part is not None
                    parts[name] = part
            return Gathered(observed=observed, parts=parts).scatter(self.lead.seat.roster)
        xs = [self.x[name][batch.rows] for name in self.readers]
        h = self.stacked(xs, keys, batch.rows).transpose(0, 1)  # [B, readers, H]
        if len(self.readers) < len(self.blocks):
            at = torch.tensor([self.blocks.index(name) for name in self.readers], device=h.device)
            h = h.new_zeros(len(h), len(self.blocks), h.shape[2]).index_copy(1, at, h)
        return torch.where(observed.unsqueeze(2), h, 0.0)

    def _name_diverged(self, h: Tensor, batch: Batch) -> None:
        for k, name in enumerate(self.blocks):
            self.method.check_embeddings(h[:, k], name, batch)

    def _count(self, counts: Sequence[int], tag: str) -> None:
        """Count the messages that the protocol would have sent: embeddings to the host, or gradients back."""
        size, active = 4 * torch.Size(self.width).numel(), self.lead.seat.me
        for name, count in zip(self.blocks, counts, strict=True):
            if count and name != active:
                ends = (name, active) if tag == "embedding" else (active, name)
                self.count(*ends, tag, count * size)


def _whole(rows: Rows) -> Tensor:
    """Return a party's block for all N rows: [N, F_k], with zeros for rows that the party does not have."""
    assert rows.block is not None
    x, held = rows.block.take(torch.arange(rows.n, device=rows.block.position.device))
    return x.new_zeros(rows.n, *x.shape[1:]).index_copy(0, held, x)


class StackedEncoders:
    """Multilayer perceptrons of equal shape, apart from the width of their inputs, computed together.

    The first layers are computed one after the other, because the parties have different numbers of columns.
    """

    def __init__(self, encoders: Sequence[nn.Sequential]) -> None:
        self.encoders, self.layers = encoders, list[Layer]()
        self.shared: list[tuple[nn.Parameter, list[nn.Parameter]]] = []
        for layers in list(zip(*encoders, strict=True))[1:]:
            self.layers.append(self._layer(layers))

    @classmethod
    def of(cls, states: Sequence[State]) -> StackedEncoders | None:
        """Stack the parties' encoders; ``None`` if they are not built-in perceptrons of equal shape."""
        kinds = {state.seat.encoder if type(state.seat.encoder) is MLP else None for state in states}
        encoders = [state.modules["encoder"] for state in states]
        if None in kinds or len(kinds) > 1:  # a subclass of MLP may make any layers
            return None
        if not all(isinstance(each, nn.Sequential) and len(each) > 1 for each in encoders):
            return None
        if any(not parameter.requires_grad for each in encoders for parameter in each.parameters()):
            return None
        return cls([each for each in encoders if isinstance(each, nn.Sequential)])

    def tie(self) -> None:
        """Copy the parties' weights into the shared tensors, and make each party's parameter a view of them.

        Nothing is copied if they are views already. An optimizer of a user may give a parameter new memory.
        """
        for whole, parameters in self.shared:
            for each, part in zip(parameters, whole.data.unbind(0), strict=True):
                if each.data_ptr() != part.data_ptr():
                    part.copy_(each.data)
                    each.data = part

    def untie(self) -> None:
        """Give each party's parameters memory of their own, so that no party's file holds the weights of others."""
        for _, parameters in self.shared:
            for each in parameters:
                each.data = each.data.clone()

    def _stack(self, parameters: Sequence[nn.Parameter]) -> nn.Parameter:
        """Return one tensor with a leading axis of parties, of which ``tie`` makes each party's parameter a view."""
        whole = nn.Parameter(torch.stack([each.detach() for each in parameters]))
        self.shared.append((whole, list(parameters)))
        return whole

    def _layer(self, layers: Sequence[nn.Module]) -> Layer:
        first: Any = layers[0]
        every: Any = layers
        if isinstance(first, nn.Linear):
            weight, bias = self._stack([each.weight for each in every]), self._stack([each.bias for each in every])
            return lambda x, keys, rows: torch.baddbmm(bias.unsqueeze(1), x, weight.mT)  # noqa: ARG005
        if isinstance(first, nn.LayerNorm):
            scale, shift = self._stack([each.weight for each in every]), self._stack([each.bias for each in every])
            shape, eps = first.normalized_shape, first.eps
            return lambda x, keys, rows: (  # noqa: ARG005
                functional.layer_norm(x, shape, eps=eps) * scale.unsqueeze(1) + shift.unsqueeze(1)
            )
        if isinstance(first, RowDropout):
            return lambda x, keys, rows: _drop(x, keys, rows, first)
        return lambda x, keys, rows: first(x)  # noqa: ARG005 - an activation has no parameters

    def __call__(self, xs: Sequence[Tensor], keys: Sequence[int], rows: Tensor) -> Tensor:
        """Encode each party's rows: K tensors [B, F_k], K keys, indices of the rows [B] -> [K, B, H]."""
        x = torch.stack([each[0](own) for each, own in zip(self.encoders, xs, strict=True)])
        for layer in self.layers:
            x = layer(x, keys, rows)
        return x

    def give_gradients(self, there: Sequence[bool]) -> None:
        """Give each party with rows in the batch its part of the gradients; all other parties get none."""
        for whole, parameters in self.shared:
            if whole.grad is None:
                continue
            for parameter, part, has_rows in zip(parameters, whole.grad.unbind(0), there, strict=True):
                parameter.grad = part if has_rows else None
        for each, has_rows in zip(self.encoders, there, strict=True):
            if not has_rows:
                for parameter in each[0].parameters():
                    parameter.grad = None


def _drop(x: Tensor, keys: Sequence[int], rows: Tensor, layer: RowDropout) -> Tensor:
    """Apply a dropout layer of all parties to x [K, B, D], with the numbers that each party draws in the protocol."""
    if not layer.training or not layer.p:
        return x
    number, call = torch.tensor([layer.number], device=x.device), torch.tensor([0], device=x.device)
    key = torch.tensor(keys, device=x.device)
    lots = uniform(key, number, call, rows.to(x.device), torch.arange(x.shape[2], device=x.device)).view(x.shape)
    return torch.where(lots >= layer.p, x / (1 - layer.p), 0.0)


class JointOptimizers:
    """The optimizers of the encoders and of the heads; those with equal settings make one step together.

    Args:
        encoders: the states of the parties whose encoders are trained.
        lead: the state of the active party, which hosts the heads.

    """

    def __init__(self, encoders: Mapping[str, State], lead: State) -> None:
        found = [(name, state, state.optimizers.get("encoder")) for name, state in encoders.items()]
        found.append(("", lead, lead.optimizers.get("heads")))
        self.each = [(name, state.seat.optimizer, made) for name, state, made in found if made is not None]
        self.merged: list[tuple[set[str], torch.optim.Optimizer]] = []
        self.own = any(type(settings) is not Optimizer for _, settings, _ in self.each)  # made by a user's function

    def merge(self) -> None:
        """Merge optimizers with equal settings; the merged ones share the state of the parties' optimizers.

        A user's optimizer may have any code and hooks, so it is never merged. Gradients are clipped by party.
        """
        self.merged, alike = [], defaultdict[Any, list[tuple[str, torch.optim.Optimizer]]](list)
        for name, settings, made in self.each:
            groups = [{k: v for k, v in group.items() if k != "params"} for group in made.param_groups]
            plain = type(settings) is Optimizer and settings.clip is None and len(groups) == 1
            alike[(type(made), repr(groups)) if plain else id(made)].append((name, made))
        for some in alike.values():
            names, optimizers = {name for name, _ in some}, [made for _, made in some]
            if len(optimizers) == 1:
                self.merged.append((names, optimizers[0]))
                continue
            group = dict(optimizers[0].param_groups[0])
            kind: Any = type(optimizers[0])
            merged = kind([p for each in optimizers for p in each.param_groups[0]["params"]])
            merged.param_groups[0].update({key: value for key, value in group.items() if key != "params"})
            merged._optimizer_step_pre_hooks.update(optimizers[0]._optimizer_step_pre_hooks)  # noqa: SLF001
            for each in optimizers:
                merged.state.update(each.state)
            self.merged.append((names, merged))

    def step(self, there: AbstractSet[str]) -> None:
        """Make a step of the heads and of the parties in ``there``; parameters without a gradient do not change."""
        for names, each in self.merged:
            if "" in names or names & there:
                each.step()

    def part(self) -> None:
        """Give the state back to each party's optimizer."""
        for _, merged in self.merged:
            for _, _, each in self.each:
                if each is not merged:
                    for parameter in _parameters(each):
                        if parameter in merged.state:
                            each.state[parameter] = merged.state[parameter]


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
