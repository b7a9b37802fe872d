"""Four ways to take the same training steps: the package's own way, and three others to compare it with.

All ways use networks of the same shapes, the same rows and the same optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from anyparty.core.types import Channel
from anyparty.methods.method import Batch
from anyparty.methods.split.exchange import Gathered
from anyparty.methods.split.laser import size_weights
from anyparty.methods.split.rule import RowWeights, batch_loss
from anyparty.networks.heads import StackedMLP
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel
from benchmarks.timing import now
from benchmarks.worlds import TASK, Model


@dataclass
class Coroutines:
    """The steps of a run: every party is a coroutine, and every message is copied, counted and checked."""

    model: Model
    ledger: Ledger = field(default_factory=Ledger)

    def __call__(self, steps: int) -> float:
        """Take a number of steps; return the seconds between the first party's start and the last party's end."""
        batches, marks = self.model.batches(steps), []

        def part(name: str) -> Callable[[Channel], Awaitable[None]]:
            state, rows = self.model.states[name], self.model.world.rows[name]

            async def play(net: Channel) -> None:
                marks.append(now())
                for batch in batches:
                    await self.model.method.step(net, state, rows, batch)
                marks.append(now())

            return play

        roster, declared = self.model.world.roster, self.model.method.can.messages
        memory.play(
            {name: part(name) for name in roster.names},
            lambda channel: ContractChannel(MeteredChannel(channel, self.ledger), roster, declared),
        )
        return max(marks) - min(marks)


@dataclass
class OneGraph:
    """The same training step by one owner of all data: the same modules and loss, one backward pass, no messages."""

    model: Model

    def __call__(self, steps: int) -> float:
        """Take a number of steps; return their seconds."""
        model = self.model
        optimizers = [optimizer for state in model.states.values() for optimizer in state.optimizers.values()]
        batches, began = model.batches(steps), now()
        for batch in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            h, observed, y = embeddings(model, batch)
            loss = loss_of(model, batch, h, observed, y)
            assert math.isfinite(loss.item())
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
        return now() - began


@dataclass
class Cut:
    """One owner of all data, but a separate graph for every party: embeddings are copied up, gradients down.

    The time that ``Cut`` needs beyond ``OneGraph`` does not depend on the transport.  The time that ``Coroutines``
    needs beyond ``Cut`` is spent in the transport.
    """

    model: Model

    def __call__(self, steps: int) -> float:
        """Take a number of steps; return their seconds."""
        model, lead = self.model, self.model.lead.optimizers["heads"]
        batches, began = model.batches(steps), now()
        for batch in batches:
            there, own = _encoded(model, batch), {}
            for name, (held, h) in there.parts.items():
                own[name], there.parts[name] = h, (held, h.detach().clone())
            whole = there.scatter(model.world.roster).requires_grad_()
            lead.zero_grad()
            loss = loss_of(model, batch, whole, there.observed, _labels(model, batch))
            assert math.isfinite(loss.item())
            loss.backward()  # type: ignore[no-untyped-call]
            lead.step()
            assert whole.grad is not None
            for name, gradient in there.collect(model.world.roster, whole.grad).items():
                optimizer = model.states[name].optimizers["encoder"]
                optimizer.zero_grad()
                own[name].backward(gradient.clone())  # type: ignore[no-untyped-call]
                optimizer.step()
        return now() - began


@dataclass
class PlainLoop:
    """LASER-VFL in its simplest form: Algorithm 1, a loop over heads and one sampled subset of every size.

    If the same parties hold all rows of a batch, a subset is drawn once for the batch, as in the paper.  If not, a
    subset is drawn for each row, with a mask.  The step has a single autograd graph, without parties or messages.
    """

    model: Model

    def __call__(self, steps: int) -> float:
        """Take a number of steps; return their seconds."""
        model = self.model
        optimizers = [optimizer for state in model.states.values() for optimizer in state.optimizers.values()]
        batches, began = model.batches(steps), now()
        for batch in batches:
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.loss(batch).backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
        return now() - began

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over rows of the loss (7) of the LASER-VFL paper, normalised as in the package by default."""
        h, observed, y = embeddings(self.model, batch)  # [B, K, H]
        K, generator = observed.shape[1], batch.generator("tasks")
        total, weights, parts = h.new_zeros(()), size_weights(K, normalize=True), h.unbind(dim=1)
        held, full = observed.sum(dim=1), bool(observed.all())  # |O_n|, the number of parties that hold row n
        for m in range(K):
            for size in range(1, K + 1):
                if full:
                    others = [k for k in torch.randperm(K, generator=generator).tolist() if k != m]
                    mean = torch.stack([parts[k] for k in (m, *others[: size - 1])]).mean(dim=0)  # [B, H]
                    each = functional.cross_entropy(self.head(m, mean), y, reduction="none")
                    total = total + weights[K, size - 1] * each.sum()
                    continue
                rows = (observed[:, m] & (held >= size)).nonzero().squeeze(1)
                if not len(rows):
                    continue
                lots = torch.rand(len(rows), K, generator=generator).masked_fill(~observed[rows], 2.0)
                lots[:, m] = -1.0
                chosen = lots.argsort(dim=1)[:, :size]
                mean = h[rows.unsqueeze(1), chosen].mean(dim=1)
                each = functional.cross_entropy(self.head(m, mean), y[rows], reduction="none")
                total = total + (weights[held[rows], size - 1] * each).sum()
        return total / len(y)

    def head(self, m: int, mean: Tensor) -> Tensor:
        """Return the output of head m: [B, H] -> [B, C]."""
        heads = self.model.lead.modules["heads"]
        assert isinstance(heads, StackedMLP)
        return functional.linear(mean, heads.first.weight[m], heads.first.bias[m])


def embeddings(model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return h [B, K, H], observed [B, K] and y [B] of a batch, all in one graph."""
    there = _encoded(model, batch)
    return there.scatter(model.world.roster), there.observed, _labels(model, batch)


def _encoded(model: Model, batch: Batch) -> Gathered:
    assert model.world.lead.observed is not None
    there = Gathered(observed=model.world.lead.observed[batch.rows])
    for name in model.world.roster.blocks:
        block = model.world.rows[name].block
        assert block is not None
        x, held = block.take(batch.rows)
        if len(held):
            there.parts[name] = (held, model.states[name].modules["encoder"](x))
    return there


def _labels(model: Model, batch: Batch) -> Tensor:
    assert model.world.lead.y is not None
    return model.world.lead.y[batch.rows]


def loss_of(model: Model, batch: Batch, h: Tensor, observed: Tensor, y: Tensor) -> Tensor:
    """Return the active party's loss of a batch, all rows of which have a label."""
    lead, method = model.lead, model.method
    heads = lead.modules["heads"]
    assert isinstance(heads, StackedMLP)
    weights = RowWeights.of_mask(torch.ones(len(y), dtype=torch.bool), len(y))
    plan = method.plan(model.world.roster, TASK)
    return batch_loss(method.rule, plan, method.host(lead.seat), heads, batch, h, observed, y, [(1.0, weights)])
