"""Tiny worlds with known answers: a few rows, K parties, the presence of rows, and learnable labels.

Letters   N rows, K parties with columns, d columns per party, C outputs; as in ``anyparty.core.types``.
"""

from __future__ import annotations

import random
import types
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from anyparty.config import TrainSettings
from anyparty.core.predictions import Predictions
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, ChannelWrapper, MessageSpec, Party, Roster, Task
from anyparty.errors import Deadlock, PartyLost
from anyparty.methods.method import Batch, Method, PartyContext, Stage, State
from anyparty.methods.split.rule import RowWeights, batch_loss
from anyparty.methods.split.split_method import Split
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Block, Rows
from anyparty.training import control_messages
from anyparty.training.callbacks import Callback
from anyparty.training.checkpoint import Checkpoints
from anyparty.training.joint import JointExecution
from anyparty.training.loop import play as train_part
from anyparty.training.loop import predict_rows
from anyparty.training.party_run import Membership, PartyRun, RunHooks, StaticMembership, TrainedParty
from anyparty.transport import codec, memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel

SGD = Optimizer(name="sgd", lr=0.1)
SMALL = MLP(hidden=(7,))


def party_names(K: int) -> tuple[str, ...]:
    return tuple("abcdefgh"[k] if K <= 8 else f"p{k:02d}" for k in range(K))


def roster_of(K: int, *, labelers: Sequence[int] = (0,), server: bool = False) -> Roster:
    """Make a roster of K parties with columns.

    The first of ``labelers`` leads, or else a ``server`` that holds labels and no columns.
    """
    parties = [Party(name=name, labels=k in labelers and not server) for k, name in enumerate(party_names(K))]
    if server:
        return Roster((*parties, Party(name="server", columns=False, labels=True)), "server")
    return Roster(tuple(parties), parties[labelers[0]].name)


def all_patterns(N: int, K: int) -> Tensor:
    """Return every non-empty set of parties in turn: [N, K] bool."""
    numbers = torch.arange(N) % (2**K - 1) + 1
    return (numbers.unsqueeze(1) >> torch.arange(K)) & 1 == 1


@dataclass(frozen=True, kw_only=True)
class World:
    """Aligned rows of all parties, as seen from outside and by each party.

    ``x`` holds all cells [N, d] by party, including unobserved ones, so that tests can compare with them.
    ``gaps`` marks by party the cells that were empty [N, d], if there are any.
    """

    roster: Roster
    task: Task
    x: dict[str, Tensor]
    y: Tensor
    observed: Tensor
    labeled: Tensor
    rows: dict[str, Rows]
    gaps: dict[str, Tensor] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")

    def on(self, name: str) -> World:
        """Return the same world, with the parties' tensors on the device ``name``."""
        device = torch.device(name)
        return replace(self, device=device, rows={party: _on(device, rows) for party, rows in self.rows.items()})

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def usable(self) -> Tensor:
        """Return the mask [N] bool of labelled rows that at least one party has."""
        return self.labeled & self.observed.any(dim=1)

    def places(self) -> Tensor:
        return torch.arange(self.n)

    def seat(self, name: str, encoder: Any = SMALL, optimizer: Optimizer = SGD) -> PartyContext:
        held = name in self.x
        return PartyContext(
            me=name,
            roster=self.roster,
            task=self.task if name in self.roster.labelers else None,
            inputs=self.x[name].shape[1] if held else 0,
            encoder=encoder,
            optimizer=optimizer,
            device=self.device,
        )


def _on(device: torch.device, held: Any) -> Any:
    """Return a copy of a party's data with every tensor on the device."""
    parts = {part.name: getattr(held, part.name) for part in fields(held)}
    moved = {name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)}
    return replace(
        held, **moved, **{name: _on(device, part) for name, part in parts.items() if isinstance(part, Block)}
    )


def world(
    K: int = 3, N: int = 24, d: int = 3, *,
    classes: int = 3, kind: str = "classification", labelers: Sequence[int] = (0,), server: bool = False,
    observed: Tensor | None = None, labeled: Tensor | None = None, signal: int | None = None, shuffled: bool = False,
    garbage: bool = False, echo: bool = False, scarce: bool = False, gaps: bool = False, seed: int = 0,
) -> World:  # fmt: skip
    """Draw a world.

    Args:
        observed: which party has which row; by default every non-empty set of parties in turn.
        labeled: by default all rows, or two thirds of them with ``scarce``.
        signal: the party whose first column alone decides the label; ``None``: the columns of all parties do.
        shuffled: labels do not depend on the columns.
        echo: a party's columns are correlated, like those of real tables; otherwise they are independent noise.
        gaps: a third of all cells were empty, and hold fill values.
        garbage: NaN in cells that no row refers to, and invalid values for unknown labels.
    """
    generator = torch.Generator().manual_seed(seed)
    roster = roster_of(K, labelers=labelers, server=server)
    observed = all_patterns(N, K) if observed is None else observed
    N = len(observed)
    x = {name: torch.randn(N, d, generator=generator) for name in roster.blocks}
    if echo:
        x = {name: block[:, :1] + 0.4 * block for name, block in x.items()}
    score = sum(x[name][:, 0] for name in roster.blocks) if signal is None else x[roster.blocks[signal]][:, 0]
    if shuffled:
        score = torch.randn(N, generator=generator)
    if kind == "regression":
        task, y = Task(kind="regression", mean=5.0, scale=2.0), score
    else:
        task = Task(kind="classification", classes=tuple(f"class {c}" for c in range(classes)))
        y = (score.argsort().argsort() * classes) // N  # equally frequent classes
    labeled = (torch.arange(N) % 3 != 1) | (not scarce) if labeled is None else labeled
    rows = {
        name: _rows(name, roster, x, y, observed, labeled, garbage=garbage, generator=generator)
        for name in roster.names
    }
    lots = torch.Generator().manual_seed(seed + 1)  # independent of the presence of rows
    empty = {name: torch.rand(N, d, generator=lots) < 1 / 3 for name in roster.blocks} if gaps else {}
    rows = {name: _with_gaps(own, empty[name]) if name in empty else own for name, own in rows.items()}
    return World(roster=roster, task=task, x=x, y=y, observed=observed, labeled=labeled, rows=rows, gaps=empty)


def _with_gaps(rows: Rows, empty: Tensor) -> Rows:
    """Mark the cells of a party's block that were empty: [N, d], in the order of the aligned rows."""
    assert rows.block is not None
    at = rows.block.position
    marked = torch.zeros(rows.block.x.shape, dtype=torch.bool)
    marked[at[at >= 0]] = empty[at >= 0]
    return replace(rows, block=replace(rows.block, gaps=marked))


def given(x: dict[str, Tensor], y: Tensor, observed: Tensor, labeled: Tensor | None = None) -> World:
    """Make a world with these classes ``y`` and cells; the first party has the labels."""
    roster, generator = roster_of(len(x)), torch.Generator().manual_seed(0)
    task = Task(kind="classification", classes=tuple(f"class {c}" for c in range(int(y.max()) + 1)))
    labeled = torch.ones(len(y), dtype=torch.bool) if labeled is None else labeled
    rows = {
        name: _rows(name, roster, x, y, observed, labeled, garbage=False, generator=generator) for name in roster.names
    }
    return World(roster=roster, task=task, x=x, y=y, observed=observed, labeled=labeled, rows=rows)


def _rows(
    name: str, roster: Roster, x: dict[str, Tensor], y: Tensor, observed: Tensor, labeled: Tensor, *,
    garbage: bool, generator: torch.Generator,
) -> Rows:  # fmt: skip
    N, block, ids, own = len(y), None, None, torch.ones(len(y), dtype=torch.bool)
    if name in roster.blocks:
        own = observed[:, roster.blocks.index(name)]
        held = own.nonzero().squeeze(1)
        place = torch.randperm(len(held), generator=generator)  # each party has its own order of rows
        position = torch.full((N,), -1)
        position[held] = place
        cells = torch.full((len(held) + (4 if garbage else 0), x[name].shape[1]), torch.nan)
        cells[place] = x[name][held]
        block = Block(cells, position)
        names = [f"unknown {n}" for n in range(len(cells))]
        for n, p in zip(held.tolist(), place.tolist(), strict=True):
            names[p] = f"row {n}"
        ids = pl.Series(names, dtype=pl.String)
    if name not in roster.labelers:
        return Rows(n=N, block=block)
    known = labeled if name == roster.active else labeled & own
    label = y
    if garbage:
        label = torch.where(known, y, torch.nan if y.is_floating_point() else 999)
    return Rows(n=N, block=block, y=label, labeled=known, observed=observed, key=torch.arange(N) * 7919 + 13,
                ids=ids if name == roster.active else None,
                names=pl.Series([f"row {n}" if here else None for n, here in enumerate(own.tolist())], dtype=pl.String)
                if name == roster.active else None)  # fmt: skip


# Run the parties' parts


Playing = Callable[[Channel], Awaitable[Any]]
Carrier = Callable[..., dict[str, Any]]


@dataclass
class Wiretap(ChannelWrapper):
    """A channel that records every message: (sender, receiver, tag, tensors)."""

    notes: list[tuple[str, str, str, dict[str, Tensor]]]

    async def send(self, to: str, tag: str, tensors: Mapping[str, Tensor]) -> bool | None:
        self.notes.append((self.me, to, tag, {name: tensor.detach().clone() for name, tensor in tensors.items()}))
        return await super().send(to, tag, tensors)


@dataclass
class Table:
    """A run's carrier and declared messages, with its recorded messages and ledger."""

    carrier: Carrier = memory.play
    ledger: Ledger = field(default_factory=Ledger)
    notes: list[tuple[str, str, str, dict[str, Tensor]]] = field(default_factory=list)
    declared: Sequence[MessageSpec] | None = None

    def play(self, roster: Roster, declared: Sequence[MessageSpec], parts: Mapping[str, Playing]) -> dict[str, Any]:
        allowed = declared if self.declared is None else self.declared

        def wrap(channel: Channel) -> Channel:
            return ContractChannel(Wiretap(MeteredChannel(channel, self.ledger), self.notes), roster, allowed)

        return self.carrier(parts, wrap)


def begin(
    method: Method, of: World, *, seed: int = 0, encoder: Any = SMALL, optimizer: Optimizer = SGD
) -> dict[str, State]:
    """Return every party's initial networks."""
    states = {name: method.begin(of.seat(name, encoder, optimizer), Seeds(seed)) for name in of.roster.names}
    for state in states.values():
        state.train(True)
    return states


def batch_of(rows: Tensor, step: int = 0, seed: int = 0, stage: str = "train", share: float = 1.0) -> Batch:
    return Batch(rows, Seeds(seed), (stage, 0, step), number=step, share=share)


def stage_of(method: Method, seat: PartyContext, name: str | None = None) -> Stage:
    """Return the stage of that name, or the only one."""
    stages = {stage.name: stage for stage in method.stages(seat)}
    if name is None:
        (name,) = stages
    return stages[name]


def loss_of(
    method: Split, of: World, host: str, heads: nn.Module, h: Tensor, batch: Batch, observed: Tensor | None = None,
    y: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return a host's loss of a batch, all rows of which have labels, from embeddings h [B, K, H]."""
    observed, y = of.observed if observed is None else observed, of.y if y is None else y
    use, plan = torch.ones(len(h), dtype=torch.bool), method.plan(of.roster, of.task)
    groups = [(1.0, RowWeights.of_mask(use, len(h), h.dtype))]
    with torch.enable_grad():
        return batch_loss(method.rule, plan, method.host(of.seat(host)), heads, batch, h, observed, y, groups)


def step(
    method: Method, of: World, states: Mapping[str, State], rows: Tensor, *,
    at: Table | None = None, number: int = 0, seed: int = 0, leaves: Collection[str] = (), stage: str | None = None,
    share: float = 1.0,
) -> float:  # fmt: skip
    """Run one step of a stage at all parties except those that leave; return the active party's loss."""
    stages = {name: stage_of(method, of.seat(name), stage) for name in of.roster.names}
    batch = batch_of(rows.to(of.device), number, seed, stages[of.roster.active].name, share)
    parts = {
        name: partial(_step, stages[name], states[name], of.rows[name], batch)
        if name not in leaves and (name == of.roster.active or stages[name].parties == "all") else _leave
        for name in of.roster.names
    }  # fmt: skip
    return (at or Table()).play(of.roster, method.can.messages, parts)[of.roster.active]


async def _step(stage: Any, state: State, rows: Rows, batch: Batch, net: Channel) -> Any:
    return await stage.step(net, state, rows, batch)


async def _leave(net: Channel) -> None:
    """Take no part."""


def predict(
    method: Method, of: World, states: Mapping[str, State], rows: Tensor | None = None,
    asked: Sequence[str] | None = None, *, at: Table | None = None, leaves: Collection[str] = (),
) -> Predictions:  # fmt: skip
    """Run prediction at all parties except those that leave; return the active party's answer."""
    wanted = of.places() if rows is None else rows

    chosen = of.roster.blocks if asked is None else asked

    def part(name: str) -> Playing:
        if name in leaves:
            return _leave
        return lambda net: predict_rows(method, net, states[name], of.rows[name], wanted, chosen, Seeds(0))

    played = (at or Table()).play(of.roster, method.can.messages, {name: part(name) for name in of.roster.names})
    return played[of.roster.active]


def train(
    method: Method,
    of: World,
    *,
    encoder: Any = SMALL,
    optimizer: Optimizer = SGD,
    training: Tensor | None = None,
    validation: Tensor | None = None,
    folder: Path | None = None,
    resume: bool = False,
    watch: Callback | None = None,
    at: Table | None = None,
    agreed: Mapping[str, Mapping[str, str]] | None = None,
    membership: Membership | None = None,
    kept: Callable[[list[dict[str, Any]], int], None] | None = None,
    joint: JointExecution | None = None,
    **settings: Any,
) -> dict[str, TrainedParty]:
    """Train with all parties through ``run.train.play``; by messages, unless a joint execution is given."""
    chosen = TrainSettings(**{"epochs": 3, "batch_size": 8, "patience": None, "keep": "last"} | settings)
    parts = {}
    for name in of.roster.names:
        leads = name == of.roster.active
        part = PartyRun(
            seat=of.seat(name, encoder, optimizer),
            method=method,
            rows=of.rows[name],
            settings=chosen,
            agreed=(agreed or {}).get(name, {"settings": "the same"}),
            training=of.usable if training is None else training,
            validation=torch.arange(0) if validation is None else validation,
            checkpoints=None if folder is None else Checkpoints(folder / name),
            resume=resume,
            hooks=RunHooks(
                callback=(watch or Callback()) if leads else Callback(),
                membership=(leads and membership) or StaticMembership(),
                on_checkpoint=kept if leads else None,
                joint=joint,
            ),
        )
        parts[name] = partial(train_part, part)
    return (at or Table()).play(of.roster, (*method.can.messages, *control_messages.MESSAGES), parts)


class Ends(Callback):
    """Collects the reasons for the ends of stages."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def on_stage_end(self, stage: str, reason: str) -> None:
        self.reasons[stage] = reason


def states_of(trained: Mapping[str, TrainedParty]) -> dict[str, State]:
    return {name: party.state for name, party in trained.items()}


def weights(states: Mapping[str, State]) -> dict[str, Tensor]:
    """Return all parties' parameters and buffers by party, network and name, without the hosts' notes on training."""
    return {
        f"{party}/{module}/{name}": tensor.detach().clone()
        for party, state in states.items()
        for module, network in state.modules.items()
        if module != "taught"
        for name, tensor in network.state_dict().items()
    }


def gradients(states: Mapping[str, State]) -> dict[str, Tensor]:
    """Return all parties' gradients after a step, by party, network and name; zeros if a step left none."""
    return {
        f"{party}/{module}/{name}": torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for party, state in states.items()
        for module, network in state.modules.items()
        for name, p in network.named_parameters()
    }


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of tensors have the same bits; NaN equals NaN."""
    assert one.keys() == other.keys()
    return all(torch.equal(bits(one[name]), bits(other[name])) for name in one)


def bits(tensor: Tensor) -> Tensor:
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}.get(tensor.dtype)
    return tensor if whole is None else tensor.contiguous().view(whole)


def answers_of(predictions: Predictions) -> dict[str, Tensor]:
    held = {"scores": predictions.scores, "took_part": predictions.took_part, "asked": predictions.asked}
    return held if predictions.by_party is None else held | {"by_party": predictions.by_party}


# A second carrier without an event loop: messages are bytes, and parties are advanced in any order


@dataclass
class ByHand(Channel):
    """One party's end of a channel; sent messages become bytes, and a receive suspends the party."""

    me: str
    lanes: dict[tuple[str, str, str], deque[bytes]]
    gone: set[str]

    async def send(self, to: str, tag: str, tensors: Mapping[str, Tensor]) -> bool:
        if to in self.gone:
            return False
        header = codec.Header(run="by hand", frm=self.me, to=to, tag=tag, number=0)
        self.lanes[self.me, to, tag].append(codec.encode(header, tensors))
        return True

    async def recv(self, frm: str, tag: str, expect: Any) -> dict[str, Tensor]:
        lane = (frm, self.me, tag)
        await _until(lane)
        if not self.lanes[lane]:
            raise PartyLost(frm, f"it left while {self.me!r} waited for {tag!r}")
        return codec.decode(self.lanes[lane].popleft()).tensors

    async def close(self) -> None:
        self.gone.add(self.me)


@types.coroutine
def _until(lane: tuple[str, str, str]) -> Any:
    yield lane


async def _seated(channel: Channel, part: Playing) -> Any:
    try:
        return await part(channel)
    finally:
        await channel.close()


def by_hand(
    parts: Mapping[str, Playing], wrap: Callable[[Channel], Channel] = lambda c: c, *, seed: int = 0
) -> dict[str, Any]:
    """Advance one party at a time, in an order drawn by ``seed``, until all are done."""
    lots, lanes, gone = random.Random(seed), defaultdict(deque), set()  # noqa: S311 - the order is not a secret
    running = {name: _seated(wrap(ByHand(name, lanes, gone)), part) for name, part in parts.items()}
    waits: dict[str, tuple[str, str, str] | None] = dict.fromkeys(running)
    done: dict[str, Any] = {}
    while running:
        ready = [name for name in running if waits[name] is None or lanes[waits[name]] or waits[name][0] in gone]
        if not ready:
            stuck = "; ".join(
                f"{to} waits for {tag!r} from {frm}" for frm, to, tag in sorted(waits[n] for n in running)
            )
            _drop(running)
            raise Deadlock(f"no party can go on: {stuck}")
        name = lots.choice(ready)
        try:
            waits[name] = running[name].send(None)
        except StopIteration as end:
            done[name] = end.value
            del running[name]
        except BaseException:
            del running[name]
            _drop(running)
            raise
    return {name: done[name] for name in parts}


def _drop(running: dict[str, Any]) -> None:
    for coroutine in running.values():
        coroutine.close()
