"""Split models: each party encodes its own block, heads fuse the embeddings, and gradients are sent back.

Local, Standard VFL, Ensemble, Combinatorial, PlugVFL and LASER-VFL are one family. This file has the code that they
share: the encoders f_k, the exchange and the optimizers. A batch has one round trip: parties send embeddings to the
hosts of heads, and the hosts send gradients back. A ``Rule`` defines the topology, the loss and the answer. Each
paper's rule has its own file.

The weights of a host's heads are one tensor, which an optimizer step changes as a whole. A head that no row of a batch
trains has the gradient 0.
Momentum and weight decay still change this head, which would not happen if every head had its own optimizer. The
difference matters if batches often lack a party, as with ``batches="by-pattern"``.

By default all heads are at the active party, in one batched computation. With ``hosting="labelers"`` each party that
holds labels hosts its own head, and embeddings are sent to every host that reads them.

Prediction follows Algorithm 2 of LASER-VFL for every rule. The parties that may take part in the answer send their
embeddings to the hosts. Every host computes outputs for the rows that its heads can answer. The active party combines
the outputs of all hosts into one answer per row, and states which parties took part in each answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyparty.core import costs
from anyparty.core.declared_types import of_type
from anyparty.core.predictions import NO_NUMBER, Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Capabilities, Channel, Roster, Task, finite
from anyparty.errors import ConfigError, Diverged, PartyLost, remark, some
from anyparty.methods.method import Batch, Count, PartyContext, Stage, State, Step
from anyparty.methods.split import exchange
from anyparty.methods.split.exchange import ExchangePart, Gathered, HostOutputs
from anyparty.methods.split.first_batch import mistakes
from anyparty.methods.split.joint_steps import JointSteps
from anyparty.methods.split.rule import (
    HeadPlan,
    Host,
    RowWeights,
    Rule,
    answer_of,
    batch_loss,
    check_members,
    check_weights,
    is_built_in,
    outputs_of,
    trained_rows,
)
from anyparty.methods.split.topology import Hosting, Topology, resolve
from anyparty.networks.encoders import MLP, Factory, build
from anyparty.networks.heads import Heads, ModuleHeads, StackedMLP, TrainedParties
from anyparty.networks.modules import draw_by_row
from anyparty.problem.rows import Rows

PROTOCOL_PARTS = ("step", "encode", "check_embeddings", "gather", "fuse", "backward")  # not called in joint execution
UNREAD = "no head reads the embedding of a party that has this row"
UNREACHED = "training reached no labelled row of a party that has this row"


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split method: a rule, and the parameters that all rules share.

    Attributes:
        rule: defines the topology, the loss and the answer.
        embedding: H, the width of every party's embedding.
        hosting: the parties that host heads. "active": the active party hosts all heads. "labelers" (Local, Ensemble,
            LASER-VFL): a party with labels hosts its own head, and the active party hosts all other heads. A party
            trains its head with its own labels, also on rows without a label at the active party.
        head_hidden: widths of the heads' hidden layers; [] is the papers' single linear layer. The default depends on
            the rule: no hidden layer, but [64] for LASER-VFL in regression.
        make_head: a user's own head, (width of its input, C) -> module; it replaces ``head_hidden``.

    """

    rule: Rule
    embedding: int = 64
    hosting: Hosting = "active"
    head_hidden: tuple[int, ...] | None = None
    make_head: Factory | None = None

    schedule_conflict: ClassVar[str] = ""

    _topologies: dict[Roster, Topology] = field(default_factory=dict, init=False, repr=False, compare=False)
    _plans: dict[tuple[Roster, Task | None], HeadPlan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_members(self.rule)
        for name, hint in (("embedding", int), ("head_hidden", tuple[int, ...])):
            if (given := getattr(self, name)) is not None or name == "embedding":
                object.__setattr__(self, name, of_type(hint, given, f"method: {name}"))
        if self.embedding < 1 or any(width < 1 for width in self.head_hidden or ()):
            raise ConfigError(f"method: widths must be at least 1, got embedding {self.embedding}, "
                              f"head_hidden {list(self.head_hidden or ())}")  # fmt: skip
        if self.hosting not in {"active", "labelers"}:
            raise ConfigError(f"method: hosting is 'active' or 'labelers', not {self.hosting!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the plans, whose functions may be local to a user's rule and could not be pickled."""
        return {**vars(self), "_topologies": {}, "_plans": {}}

    @cached_property
    def can(self) -> Capabilities:
        """The capabilities of the rule."""
        return self.rule.can

    def published_costs(self, ran: costs.RunShape) -> list[costs.FormulaTraffic]:
        """Compute each passive party's traffic (embeddings, gradients) with equation (9) of the APC-VFL paper."""
        topology = self.topology(ran.roster)
        ran = replace(ran, observed=topology.without_unread(ran.observed))
        rows = ran.labelled & self.plan(ran.roster).trains_on(ran.observed)
        return costs.split_learning(ran, rows, self.embedding * topology.copies)

    # Functions that make the networks

    def begin(self, seat: PartyContext, seeds: Seeds) -> State:
        """Make a party's encoder, the heads that it hosts, and their optimizers."""
        topology = self.topology(seat.roster)
        state = State(seat)
        if seat.inputs:
            with seeds.own.drawing("encoder", seat.me):
                encoder = build(
                    seat.encoder, seat.inputs, self.embedding, topology.copies, party=seat.me, sample=seat.sample
                )  # fmt: skip
                state.modules["encoder"] = encoder
        if seat.me in topology.hosts:
            with seeds.own.drawing("heads", seat.me):
                state.modules["heads"] = self.heads(seat, seat.me)
                state.modules["taught"] = TrainedParties(seat.roster.K, self.plan(seat.roster).sets)
        for name, module in state.modules.items():
            module.to(seat.device)
            parameters = [p for p in module.parameters() if p.requires_grad]
            if parameters:
                state.optimizers[name] = seat.optimizer.build(parameters)
        return state

    def topology(self, roster: Roster) -> Topology:
        """Return the topology: the parties that encode, the host of each head, and the hosts that read each embedding.

        The topology of a roster is computed only once.

        Raises:
            ConfigError: the rule cannot serve these parties, or its description of its heads is not valid.
        """
        if roster in self._topologies:
            return self._topologies[roster]
        can = self.can
        if can.most_parties is not None and roster.K > can.most_parties:
            raise ConfigError(f"{can.title} with these settings supports at most {can.most_parties} parties, but "
                              f"there are {roster.K}; {self.rule.without_limit} has no such limit")  # fmt: skip
        if roster.K < 1:
            raise ConfigError("no party holds columns: there is nothing to learn from")
        plan = self.plan(roster)
        self._topologies[roster] = found = resolve(can, roster, plan, width=self.embedding, hosting=self.hosting)
        return found

    def hosts(self, roster: Roster) -> tuple[str, ...]:
        """Return the parties that host heads and train them with their own labels, the active party first."""
        return tuple(self.topology(roster).hosts)

    def label_users(self, roster: Roster) -> tuple[str, ...]:
        """Return the parties whose labels training uses: the hosts."""
        return self.hosts(roster)

    def remarks(self, state: State, rows: Rows, training: Tensor) -> Iterator[str]:
        """Yield remarks on networks that training did not reach; called at the active party.

        Another host may have trained its heads on the rows of parties whose rows the active party's heads missed.
        """
        roster, idle, reached = state.seat.roster, [], set()
        topology = self.topology(roster)
        for host, labeled in rows.labeled_at.items():
            assert rows.observed is not None
            present = rows.observed[labeled & training.to(labeled.device)].any(dim=0).tolist()
            reached |= {k for k, name in enumerate(roster.blocks) if present[k] and name in topology.reads[host]}
            if not any(present):
                idle.append(host)
        if topology.unread:
            yield (f"no head reads the embeddings of {some(topology.unread)}, which therefore sends nothing and is not "
                   "trained")  # fmt: skip
        mentioned, missed = {*idle, *topology.unread}, trained_parties(state).missed
        without = [roster.blocks[k] for k in missed if k not in reached and roster.blocks[k] not in mentioned]
        if without:
            yield f"training reached no labelled row of {some(without)}, so that predictions ignore it"
        if idle:
            yield f"no training row has a label of {some(idle)}, so that the predictor there is untrained"

    def plan(self, roster: Roster, task: Task | None = None) -> HeadPlan:
        """Return the rule's plan for these parties, which is computed only once.

        Raises:
            ConfigError: the rule returns another object.
        """
        if (roster, task) not in self._plans:
            plan: object = self.rule.plan(roster, task, self.embedding)
            if not isinstance(plan, HeadPlan):
                raise ConfigError(f"{self.can.title}: expected a HeadPlan from plan, got a {type(plan).__name__}")
            self._plans[roster, task] = plan
        return self._plans[roster, task]

    def heads(self, seat: PartyContext, host: str) -> Heads:
        """Return new, untrained heads of ``host``; ``seat`` is a party that knows the task."""
        assert seat.task is not None
        topology, plan = self.topology(seat.roster), self.plan(seat.roster, seat.task)
        count, width = topology.heads[host], topology.head_inputs
        if self.make_head is not None:
            return ModuleHeads.of(self.make_head, count, width, seat.task.outputs)
        hidden = plan.hidden if self.head_hidden is None else self.head_hidden
        return StackedMLP(count, (width, *hidden, seat.task.outputs))

    def host(self, seat: PartyContext, name: str | None = None) -> Host:
        """Return the description of a host of heads for the rule, by default of this party."""
        topology = self.topology(seat.roster)
        name = seat.me if name is None else name
        assert seat.task is not None
        everyone = sorted(chain.from_iterable(topology.hosts.values()))
        return Host(
            owners=torch.tensor(topology.hosts[name], dtype=torch.int64, device=seat.device),
            everyone=torch.tensor(everyone, dtype=torch.int64, device=seat.device),
            task=seat.task,
            k=topology.blocks.index(name) if name in topology.blocks else -1,
            loss_function=seat.loss,
        )

    # Functions for training

    def stages(self, seat: PartyContext) -> Sequence[Stage]:
        """Return the single stage of a split method's training."""

        def rows(at: Rows) -> Tensor:
            assert at.observed is not None
            read = self.topology(seat.roster).without_unread(at.observed)
            return at.teaching & trained_rows(self.rule, self.plan(seat.roster), read)

        return (Stage(name="train", step=self.step, rows=rows, joint=self.joint),)

    def joint(
        self, step: Step, states: Mapping[str, State], rows: Mapping[str, Rows], count: Count
    ) -> JointSteps | str:  # fmt: skip
        """Return the training steps for all parties in one process, or the reason why the protocol is needed.

        A user's subclass may change a part of the protocol that the joint execution does not call, for example to clip
        gradients. ``step`` is the step of the stage; ``count`` counts messages that the protocol would have sent.
        """
        roster = next(iter(states.values())).seat.roster
        if len(self.hosts(roster)) > 1:
            return "several parties host heads"
        changed = [name for name in PROTOCOL_PARTS if getattr(type(self), name) is not getattr(Split, name)]
        if changed or step != self.step:
            return f"{type(self).__name__} has its own {some(changed or ['step'])}"
        of = [{id(p) for module in state.modules.values() for p in module.parameters()} for state in states.values()]
        if len(set().union(*of)) < sum(map(len, of)):
            return "parties share parameters"
        return JointSteps(self, states, rows, count)

    @property
    def predicts_as_split(self) -> bool:
        """True if no subclass of a user changes how the method predicts."""
        return all(getattr(type(self), name) is getattr(Split, name) for name in ("predict", "own_outputs", "answer"))

    async def step(self, net: Channel, state: State, rows: Rows, batch: Batch) -> float | None:
        """Run one party's side of the training on a batch; at a host, return the loss.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: a party was lost, and the method cannot train without it.
        """
        me, topology = state.seat.me, self.topology(state.seat.roster)
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
            received = await exchange.gradients_of(net, readers, mine[1])
            if "encoder" in state.optimizers:
                self.backward(state, mine[1], gradients.get(me), received)
                state.optimizers["encoder"].step()
        return loss

    def encode(
        self, state: State, rows: Rows, batch: Batch, taken: ExchangePart | None = None, *, draws: bool = True
    ) -> ExchangePart | None:
        """Return the indices [B_k] of a party's rows in the batch, and these rows' embeddings [B_k, H].

        Return ``None`` if the party has none of the batch's rows.

        Args:
            state: the party's networks.
            rows: the party's rows.
            batch: the batch.
            taken: the result of ``rows.block.take`` for this batch, if the caller already has it.
            draws: whether modules may draw random numbers for dropout, as in training.

        Raises:
            Diverged: an embedding is not a number.
        """
        if rows.block is None:
            return None
        x, held = taken or rows.block.take(batch.rows)
        if not len(held):
            return None
        seat = state.seat
        encoder = state.modules["encoder"]
        with self._encoder_draws(seat, encoder, batch, held) if draws and seat.draws else nullcontext():
            h: Tensor = encoder(x)
        self.check_embeddings(h.detach(), seat.me, batch)
        return held, h

    @staticmethod
    def check_embeddings(h: Tensor, party: str, batch: Batch) -> None:
        """Raise ``Diverged`` if a party's embeddings of a batch are not numbers."""
        if not finite(h):
            raise Diverged(f"party {party!r}: its embeddings are no longer numbers at {batch}: lower its "
                           f"learning rate, or look for extreme values in its columns")  # fmt: skip

    @contextmanager
    def _encoder_draws(self, seat: PartyContext, encoder: nn.Module, batch: Batch, held: Tensor) -> Iterator[None]:
        """Let an encoder draw random numbers: dropout by row, everything else from a private stream of the party."""
        with ExitStack() as stack:
            stack.enter_context(draw_by_row(encoder, batch.own_key("encoder draws", seat.me), batch.rows[held]))
            if not isinstance(seat.encoder, MLP):
                stack.enter_context(batch.drawing("encoder draws", seat.me, device=seat.device))
            yield

    def embed(self, state: State, rows: Rows, places: Tensor) -> ExchangePart | None:
        """Return the party's rows among ``places``, as positions in ``places``, and the embeddings for a prediction."""
        with torch.no_grad():
            return self.encode(state, rows, Batch(places, Seeds(0)), draws=False)

    async def gather(
        self,
        net: Channel,
        state: State,
        rows: Rows,
        batch: Batch,
        mine: ExchangePart | None,
        asked: Sequence[str] | None = None,
    ) -> Gathered:
        """Wait at a host for the embeddings of a batch, by default from all parties whose embeddings the host reads."""
        topology = self.topology(state.seat.roster)
        asked = topology.blocks if asked is None else asked
        if topology.unread:
            asked = [name for name in asked if name not in topology.unread]
        read, width = topology.reads[state.seat.me], topology.width
        return await exchange.gather(net, state.seat, rows, batch, mine, asked=asked, read=read, width=width)

    def fuse(
        self, state: State, rows: Rows, batch: Batch, gathered: Gathered
    ) -> tuple[float | None, dict[str, Tensor]]:
        """Return the loss and, for each party, the loss's gradient with respect to the party's embeddings.

        The gradients of the heads' parameters are stored in ``grad`` of these parameters. The loss is ``None`` if the
        batch has no row to learn from.

        Raises:
            Diverged: the loss is not a number.
            PartyLost: the method cannot train without a party that was lost.
        """
        if gathered.silent and self.can.trains_with_all:
            raise PartyLost(gathered.silent[0], f"{self.can.title} cannot train without it")
        if "heads" in state.optimizers:  # heads without parameters have no optimizer
            state.optimizers["heads"].zero_grad()
        if not gathered.parts:
            return None, {}
        h = gathered.scatter(state.seat.roster).requires_grad_()
        loss = self.learn(state, rows, batch, gathered, h)
        # ``h.grad`` is missing if no row has a loss, or if the heads do not use h.
        gradient = torch.zeros_like(h) if h.grad is None else h.grad
        return loss, gathered.collect(state.seat.roster, gradient)

    def learn(self, state: State, rows: Rows, batch: Batch, gathered: Gathered, h: Tensor) -> float | None:
        """Return the loss of the rows with a known label, and compute its gradients; ``None`` if no label is known.

        The gradients are stored in ``grad`` of the embeddings ``h`` [B, K, H] and of the heads' parameters.

        Raises:
            Diverged: the loss is not a number.
        """
        y, known = labels_of(rows, batch)
        use = known & self.plan(state.seat.roster).trains_on(gathered.observed)
        weights = RowWeights.of_mask(use, len(batch.rows), h.dtype)
        return self.descend(state, batch, h, gathered.observed, y, [(1.0, weights)])

    def descend(
        self,
        state: State,
        batch: Batch,
        h: Tensor,
        observed: Tensor,
        y: Tensor,
        groups: Sequence[tuple[float, RowWeights]],
        copy: nn.Module | None = None,
    ) -> float | None:
        """Return the loss of a batch with embeddings h [B, K, H], and compute the loss's gradients.

        The loss is the sum over groups of rows of a factor times the group's loss. If no row has a weight, nothing is
        computed, and the result is ``None``.

        Args:
            state: the networks of a host.
            batch: the batch.
            h: [B, K, H], the embeddings.
            observed: [B, K], the parties that have each row.
            y: [B], labels; arbitrary for rows without a weight.
            groups: for each group of rows, its factor and the weights of its rows.
            copy: a copy of the active party's heads, at another party; by default, the host's own heads.

        Raises:
            Diverged: the loss is not a number.
            ConfigError: a user's rule returned losses that cannot be trained on (see ``rule.losses_of``).
        """
        seat, plan = state.seat, self.plan(state.seat.roster)
        use = torch.stack([weights.weight > 0 for _, weights in groups]).any(dim=0)
        if not bool(use.any()):
            return None
        host = self.host(seat) if copy is None else self.host(seat, seat.roster.active)
        heads = state.modules["heads"] if copy is None else copy
        assert isinstance(heads, StackedMLP | ModuleHeads)
        if copy is None:
            trained_parties(state).note(observed & use.unsqueeze(1))
        with ExitStack() as stack:
            if isinstance(heads, ModuleHeads):  # a user's heads may draw, and let rows depend on each other
                stack.enter_context(heads.only(use))
                stack.enter_context(batch.drawing("head draws", seat.me, device=seat.device))
            loss = batch_loss(self.rule, plan, host, heads, batch, h, observed, y, groups)
        if not batch.number and (isinstance(heads, ModuleHeads) or not is_built_in(self.rule)):
            check_weights(self.rule)
            for sentence in mistakes(self.rule, plan, host, heads, batch, h, observed, y, use, loss):
                remark(f"{sentence}; anyparty.testing.check_method has all checks")
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} at {batch}: lower the learning rate, or look for extreme "
                           f"values in the parties' columns")  # fmt: skip
        if loss.requires_grad:
            (loss if batch.share == 1.0 else batch.share * loss).backward()  # type: ignore[no-untyped-call]
        return value

    def backward(self, state: State, h: Tensor, own: Tensor | None, received: Sequence[Tensor]) -> None:
        """Compute the encoder's gradient from the sum of the hosts' gradients (LASER-VFL, Algorithm 1, line 8)."""
        total = own
        for gradient in received:
            total = gradient if total is None else total + gradient
        state.optimizers["encoder"].zero_grad()
        h.backward(total)  # type: ignore[no-untyped-call]

    # Functions for prediction

    async def predict(
        self, net: Channel, state: State, rows: Rows, batch: Batch, asked: Sequence[str]
    ) -> Predictions | None:
        """Run one party's side of the prediction of a batch; at the active party, return the answers.

        Raises:
            ConfigError: the outputs or the answer of a user's rule have a wrong type or shape.
        """
        seat, topology = state.seat, self.topology(state.seat.roster)
        # No await inside no_grad: it would also disable gradients for other parties' coroutines on this thread.
        with torch.no_grad():
            mine = self.encode(state, rows, batch, draws=False) if seat.me in asked else None
        await exchange.share(net, topology.readers[seat.me], mine)
        if seat.me not in topology.hosts:
            return None
        gathered = await self.gather(net, state, rows, batch, mine, asked)
        own = self.own_outputs(state, gathered)
        if seat.me != seat.roster.active:
            trained, blocks = trained_parties(state), enumerate(seat.roster.blocks)
            reached = bool(trained.parties[own.owners].any())
            used = [reached and name in gathered.parts and k not in trained.missed for k, name in blocks]
            await net.send(seat.roster.active, "outputs", {"outputs": own.outputs, "heard": torch.tensor(used)})
            return None
        assert seat.task is not None
        assert rows.observed is not None
        known, C = rows.observed[batch.rows], seat.task.outputs
        others = [
            (name, torch.tensor(ks, device=seat.device)) for name, ks in topology.hosts.items() if name != seat.me
        ]
        every = [own, *[await exchange.outputs_of(net, *each, C, gathered, known, seat.roster) for each in others]]
        return self.answer(state, rows, batch, asked, gathered, every)

    def own_outputs(self, state: State, gathered: Gathered) -> HostOutputs:
        """Return the outputs of a host's own heads, which ignore parties on whose rows they were not trained."""
        seat, host, trained, heads = state.seat, self.host(state.seat), trained_parties(state), state.modules["heads"]
        assert isinstance(heads, StackedMLP | ModuleHeads)
        near, plan = gathered.without(trained.missed, seat.roster), self.plan(seat.roster)
        with torch.no_grad():
            width = self.topology(seat.roster).width
            nobody = torch.zeros(*near.observed.shape, *width, device=seat.device)
            h = near.scatter(seat.roster) if near.parts else nobody
            outputs, valid = outputs_of(self.rule, plan, host, heads, h, near.observed, trained)
        return HostOutputs(host.owners, outputs, valid, near.observed)

    def answer(
        self, state: State, rows: Rows, batch: Batch, asked: Sequence[str], gathered: Gathered,
        every: Sequence[HostOutputs],
    ) -> Predictions:  # fmt: skip
        """Combine the outputs of all hosts' heads, the active party's first, into one answer per row."""
        seat, topology = state.seat, self.topology(state.seat.roster)
        assert rows.key is not None
        assert rows.observed is not None
        known = rows.observed[batch.rows]
        used = torch.stack([each.reached & each.valid.any(dim=1, keepdim=True) for each in every])
        given, answer = answer_of(
            self.rule, self.host(seat), torch.cat([each.outputs for each in every], 1),
            torch.cat([each.valid for each in every], 1), used.any(dim=0), rows.key[batch.rows],
            torch.cat([each.owners for each in every]),
        )  # fmt: skip
        made = exchange.predictions(answer, seat, asked, gathered, self.can.title)
        if not made.reasons:
            return made
        some = gathered.observed.any(dim=1)
        nan = some & (given.answers.isnan().any(dim=2) & given.valid).any(dim=1)
        unreached = some & ~torch.stack([each.reached for each in every]).any(dim=0).any(dim=1)
        unread = torch.tensor([name in asked and name in topology.unread for name in seat.roster.blocks])
        unread_rows = ~some & known[:, unread.to(known.device)].any(dim=1)
        reasons = dict(made.reasons)
        for why, where in ((NO_NUMBER, nan), (UNREACHED, unreached), (UNREAD, unread_rows)):
            reasons |= {n: why for n in where.nonzero().squeeze(1).tolist() if n in reasons}
        return replace(made, reasons=reasons)


def trained_parties(state: State) -> TrainedParties:
    """Return the record of the parties on whose rows a host's heads were trained."""
    trained = state.modules["taught"]
    assert isinstance(trained, TrainedParties)
    return trained


def labels_of(rows: Rows, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return a host's labels of a batch [B], and a mask of the labels that it knows [B]."""
    assert rows.y is not None
    assert rows.labeled is not None
    return rows.y[batch.rows], rows.labeled[batch.rows]
