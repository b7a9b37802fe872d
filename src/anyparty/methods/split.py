"""Split models: every party encodes its own block, heads fuse the embeddings, gradients go back.

Local, Standard VFL, Ensemble, Combinatorial, PlugVFL and LASER-VFL are one family.  They share the encoders f_k, the
exchange (embedding up, gradient down: one round trip a batch) and the optimisers, which are here; a ``Rule`` says who
is fused with whom and what the loss is, and that is each paper's own file.

A host's heads stand in one tensor and take one step together.  A head that no row of a batch trains has the derivative
0, so that momentum and weight decay move it all the same, where a head in an optimizer of its own would stay; that
matters where batches often lack a party, as with ``batches="by-pattern"``.

Who hosts which heads is data.  By default all heads stand at the active party, in one batched computation; with
``hosting="labelers"`` each party that holds labels hosts its own head, and embeddings go to every host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from anyparty import costs
from anyparty.blocks.blocks import Rows
from anyparty.errors import ConfigError, Diverged, PartyLost
from anyparty.methods import exchange, own_rule, split_prediction
from anyparty.methods.exchange import Gathered, Part, Wanted, moment
from anyparty.methods.fusion import Fusion, Rule
from anyparty.methods.method import Batch, Seat, Stage, State
from anyparty.methods.topology import Topology
from anyparty.methods.typed import of_type
from anyparty.nets.mlp import Factory, build
from anyparty.nets.stacked import Heads, ModuleHeads, StackedMLP
from anyparty.nets.taught import Taught
from anyparty.predictions import Predictions
from anyparty.seeds import Seeds
from anyparty.terms import Capabilities, Channel, Roster, Task, finite


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split method: a rule, and the shape of what all rules share.

    Attributes:
        rule: who is fused with whom, and the loss.
        embedding: H, the width of every party's embedding.
        hosting: where heads stand: all at the active party, or each at its own party if that holds labels.
        head_hidden: widths of the heads' hidden layers; [] is the papers' single linear layer. By default that, or what
            the rule asks for: LASER-VFL [64] where a number is predicted.
        make_head: a user's own head, (width of its input, C) -> module; instead of ``head_hidden``.

    """

    rule: Rule
    embedding: int = 64
    hosting: Literal["active", "labelers"] = "active"
    head_hidden: tuple[int, ...] | None = None
    make_head: Factory | None = None

    def __post_init__(self) -> None:
        own_rule.check_rule(self.rule)
        for name, hint in (("embedding", int), ("head_hidden", tuple[int, ...])):
            if (given := getattr(self, name)) is not None or name == "embedding":
                object.__setattr__(self, name, of_type(hint, given, f"method: {name}"))
        if self.embedding < 1 or any(width < 1 for width in self.head_hidden or ()):
            raise ConfigError(f"method: widths must be at least 1, got embedding {self.embedding}, "
                              f"head_hidden {list(self.head_hidden or ())}")  # fmt: skip
        if self.hosting not in {"active", "labelers"}:
            raise ConfigError(f"method: hosting is 'active' or 'labelers', not {self.hosting!r}")

    @property
    def can(self) -> Capabilities:
        """What the rule can do."""
        return self.rule.can

    def published_costs(self, ran: costs.Ran) -> list[costs.Counted]:
        """Return what equation (9) of the APC-VFL paper counts of each passive party's embeddings and gradients."""
        topology = self.topology(ran.roster)
        ran = replace(ran, observed=topology.heard(ran.observed))
        rows = ran.labelled & self.rule.trains_on(ran.roster, ran.observed)
        return costs.split_learning(ran, rows, self.embedding * topology.copies)

    def begin(self, seat: Seat, seeds: Seeds) -> State:
        """Resolve the topology; make a party's encoder, the heads that it hosts, and their optimizer."""
        topology = self.topology(seat.roster)
        state = State(seat, topology=topology)
        if seat.inputs:
            with seeds.own.drawing("encoder", seat.me):
                encoder = build(seat.encoder, seat.inputs, self.embedding, topology.copies, party=seat.me)
                state.modules["encoder"] = encoder
        if seat.me in topology.hosts:
            assert seat.task is not None
            with seeds.own.drawing("heads", seat.me):
                state.modules["heads"] = self.heads(topology, seat.me, seat.task)
                sets = getattr(self.rule, "sets", None)
                state.modules["taught"] = Taught(seat.roster.K, sets and sets(seat.roster))
        for name, module in state.modules.items():
            module.to(seat.device)
            parameters = [p for p in module.parameters() if p.requires_grad]
            if parameters:
                state.optimizers[name] = seat.optimizer.build(parameters)
        return state

    def topology(self, roster: Roster) -> Topology:
        """Resolve who encodes, who hosts which heads and who reads whom among the parties of a roster.

        Raises:
            ConfigError: the rule cannot serve these parties, or describes its heads in another form.
        """
        can = self.can
        if can.most_parties is not None and roster.K > can.most_parties:
            instead = "tasks = 'sample' has" if hasattr(self.rule, "tasks") else "LASER-VFL has"
            raise ConfigError(f"{can.title} as it is set serves at most {can.most_parties} parties, here are "
                              f"{roster.K}; {instead} no such limit")  # fmt: skip
        if roster.K < 1:
            raise ConfigError("no party holds columns: there is nothing to learn from")
        return own_rule.resolve(self.rule, roster, self.embedding, self.hosting)

    def heads(self, topology: Topology, host: str, task: Task) -> Heads:
        """Make the heads of a host."""
        count, width = topology.heads[host], topology.head_inputs
        if self.make_head is not None:
            return ModuleHeads.of(self.make_head, count, width, task.outputs)
        asked = getattr(self.rule, "hidden", None)
        hidden = self.head_hidden if self.head_hidden is not None else asked(task) if asked else ()
        return StackedMLP(count, (width, *hidden, task.outputs))

    def heads_of(self, state: State) -> Fusion:
        """Return what a host fuses with."""
        taught = state.modules["taught"]
        assert isinstance(taught, Taught)
        return self.fusion(state, state.modules["heads"], state.seat.me, taught)

    def fusion(self, state: State, heads: nn.Module, host: str, taught: Taught | None = None) -> Fusion:
        """Return what the ``heads`` of a host fuse with, at that host or at a party that has a copy of them."""
        seat, topology = state.seat, state.topology
        assert topology is not None
        assert isinstance(heads, StackedMLP | ModuleHeads)
        assert seat.task is not None
        everyone = tuple(chain.from_iterable(topology.hosts.values()))
        return Fusion(
            heads=heads,
            owners=torch.tensor(topology.hosts[host], dtype=torch.int64, device=seat.device),
            everyone=torch.tensor(everyone, dtype=torch.int64, device=seat.device),
            task=seat.task,
            k=topology.blocks.index(host) if host in topology.blocks else -1,
            taught=taught,
        )

    def _drawing(self, seat: Seat, batch: Batch, name: str) -> AbstractContextManager[None]:
        """Return where modules draw from; our own heads, and our encoders without dropout, never draw."""
        if self.make_head is None if name == "head draws" else not seat.draws:
            return nullcontext()
        return batch.drawing(name, seat.me, device=seat.device)

    # Training

    def stages(self, seat: Seat) -> Sequence[Stage]:
        """Return the one stage of a split method."""

        def rows(at: Rows) -> Tensor:
            assert at.observed is not None
            heard = self.topology(seat.roster).heard(at.observed)
            return at.teaching & own_rule.trained(self.rule, seat.roster, heard)

        return (Stage(name="train", step=self.step, rows=rows),)

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Play a party's part in one batch; one round trip for a party that is not a host.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: a party left that the method cannot do without.
        """
        me, topology = state.seat.me, state.topology
        assert topology is not None
        readers = topology.readers[me]
        mine = self.encode(state, rows, batch) if readers else None
        await exchange.share(net, readers, mine)
        loss: float | None = None
        gradients: dict[str, Tensor] = {}
        if me in topology.hosts:
            loss, gradients = self.fuse(state, rows, batch, await self.gather(net, state, rows, batch, mine))
            await exchange.share_gradients(net, gradients)
            if "heads" in state.optimizers:
                state.optimizers["heads"].step()
        if mine:
            await self._learn(net, state, readers, mine[1], gradients.get(me))
        return loss

    def encode(self, state: State, rows: Rows, batch: Batch, taken: Part | None = None) -> Part | None:
        """Return which rows of the batch a party has [B_k] and their embeddings [B_k, H]; ``None`` if it has none.

        ``taken`` is what ``rows.block.take`` gave for the batch, where a party encodes it again and again.

        Raises:
            Diverged: an embedding is not a number.
        """
        with self._drawing(state.seat, batch, "encoder draws"):
            return self.embed(state, rows, batch, taken)

    async def gather(
        self, net: Channel, state: State, rows: Rows, batch: Batch, mine: Part | None,
        asked: Sequence[str] | None = None,
    ) -> Gathered:  # fmt: skip
        """Wait at a host for the embeddings of a batch, of the parties ``asked`` alone where some are given."""
        topology = state.topology
        assert topology is not None
        asked = topology.blocks if asked is None else asked
        if topology.unread:
            asked = [name for name in asked if name not in topology.unread]
        wanted = Wanted(asked=asked, read=topology.reads[state.seat.me], width=topology.width)
        return await exchange.gather(net, state.seat, rows, batch, wanted, mine)

    def embed(self, state: State, rows: Rows, batch: Batch, taken: Part | None = None) -> Part | None:
        """Do what ``encode`` says, where no module draws (prediction)."""
        if rows.block is None:
            return None
        x, held = taken or rows.block.take(batch.rows)
        if not len(held):
            return None
        h: Tensor = state.modules["encoder"](x)
        if not finite(h.detach()):
            raise Diverged(f"party {state.seat.me!r}: its embeddings are no longer numbers at {moment(batch)}: lower "
                           f"its learning rate, or look for extreme values in its columns")  # fmt: skip
        return held, h

    def fuse(self, state: State, rows: Rows, batch: Batch, there: Gathered) -> tuple[float | None, dict[str, Tensor]]:
        """Return the loss and its gradient by every part's embeddings; leave the heads' gradients in place.

        A batch without a row to learn from has no loss.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: a party left that the method cannot do without.
        """
        if there.silent and self.can.trains_with_all:
            raise PartyLost(there.silent[0], f"{self.can.title} cannot train without it")
        if "heads" in state.optimizers:  # a user's own may have nothing to train
            state.optimizers["heads"].zero_grad()
        if not there.parts:
            return None, {}
        return self.derive(state, rows, batch, there)

    def derive(self, state: State, rows: Rows, batch: Batch, there: Gathered) -> tuple[float | None, dict[str, Tensor]]:
        """Return the loss of the batch's labels that are known, and its gradient by every part's embeddings.

        Raises:
            Diverged: the loss is not a number.
        """
        y, known = labels_of(rows, batch)
        seat, roster = state.seat, state.seat.roster
        embeddings = there.scatter(roster).requires_grad_()
        h, observed = embeddings, there.observed
        if there.silent or there.late or not known.all():
            left = (known & self.rule.trains_on(roster, observed)).nonzero().squeeze(1)
            h, observed, y = h[left], observed[left], y[left]
        value = self.descend(self.heads_of(state), seat, batch, h, observed, y) if len(y) else None
        gradient = embeddings.grad  # none where there is no row, or the heads do not look at any
        return value, there.collect(roster, torch.zeros_like(embeddings) if gradient is None else gradient)

    def descend(
        self, fusion: Fusion, seat: Seat, batch: Batch, h: Tensor, observed: Tensor, y: Tensor, weight: float = 1.0
    ) -> float:
        """Return the loss of rows [B] by their embeddings [B, K, H]; leave gradients where they are asked for.

        Raises:
            Diverged: the loss is not a number.
            ConfigError: the rule is a user's own, and its loss no scalar, or one without a gradient, or of weights
                that it holds.
        """
        if fusion.taught is not None:
            fusion.taught.note(observed)
        with self._drawing(seat, batch, "head draws"):
            loss = self.rule.loss(fusion, h, observed, y, batch)
        own_rule.check_loss(self.rule, loss, h)
        if not batch.number:
            own_rule.check_weights(self.rule)  # that it has made by now
        if weight != 1.0:
            loss = weight * loss
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} at {moment(batch)}: lower the learning rate, or look for extreme "
                           f"values in the parties' columns")  # fmt: skip
        if loss.requires_grad:
            (batch.share * loss).backward()  # type: ignore[no-untyped-call]
        return value

    async def _learn(self, net: Channel, state: State, readers: Sequence[str], h: Tensor, own: Tensor | None) -> None:
        theirs = await exchange.gradients_of(net, readers, h)
        if "encoder" in state.optimizers:
            self.backward(state, h, own, theirs)
            state.optimizers["encoder"].step()

    def backward(self, state: State, h: Tensor, own: Tensor | None, theirs: Sequence[Tensor]) -> None:
        """Sum the hosts' gradients (Algorithm 1 of LASER-VFL, line 8) and leave the encoder's own in place."""
        total = own
        for gradient in theirs:
            total = gradient if total is None else total + gradient
        state.optimizers["encoder"].zero_grad()
        h.backward(total)  # type: ignore[no-untyped-call]

    # Prediction

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Play a party's part in predicting a batch."""
        return await split_prediction.predict(self, net, state, rows, batch, asked)


def labels_of(rows: Rows, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return a host's labels of a batch [B], and which of them it knows [B]."""
    assert rows.y is not None
    assert rows.labeled is not None
    return rows.y[batch.rows], rows.labeled[batch.rows]
