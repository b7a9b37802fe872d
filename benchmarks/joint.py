"""Time of a training step on one thread: joint execution beside a stacked graph written by hand, and the protocol.

    python -m benchmarks.joint [--quick]

The stacked graph is LASER-VFL's step as short as possible for known shapes: inputs padded to the widest block, two
batched products for all encoders, one for all heads, tasks drawn for every row, and one fused Adam. It has no masks for
parties without rows, no ledger, no checks and no draws that a party could repeat, so it is a lower bound for the same
mathematics. The four ways take turns in one process; a ratio is the median of the ratios of neighbouring rounds.

HAPT shapes: 561 features in K blocks, 12 classes, hidden 64, H = 64, batches of 128 rows (LASER-VFL's settings for
HAPT: SGD with momentum; here Adam everywhere). Table shapes: 23 columns, two classes. The authors' program of LASER-VFL
is not part of this project; with these shapes and settings, others can time it beside these numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import comb

import torch
from torch import Tensor, nn
from torch.nn import functional

from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, Party, Roster, Task
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.methods.method_registry import method
from anyparty.methods.split.split_method import Split
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Block, Rows
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger
from benchmarks.page import Page, quick_asked

N, B, HIDDEN, WIDTH = 4096, 128, 64, 64


@dataclass(frozen=True)
class Shape:
    """The shapes of one row of the table."""

    title: str
    columns: int
    classes: int
    K: int
    missing: float

    @property
    def widths(self) -> list[int]:
        """The number of columns of each party."""
        return [len(part) for part in torch.arange(self.columns).chunk(self.K)]


SHAPES = [
    Shape(title, columns, classes, K, missing)
    for title, columns, classes, Ks in (("HAPT", 561, 12, (4, 8)), ("table", 23, 2, (4,)))
    for K in Ks
    for missing in (0.0, 0.3)
]


@dataclass
class World:
    """Random data of a shape, and one network of each kind for every way to train."""

    shape: Shape
    x: list[Tensor] = field(init=False)
    y: Tensor = field(init=False)
    observed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        K = self.shape.K
        self.observed = torch.rand(N, K, generator=draw) >= self.shape.missing
        self.observed[:, 0] = True
        self.x = [torch.randn(N, width, generator=draw) for width in self.shape.widths]
        self.y = torch.randint(self.shape.classes, (N,), generator=draw)

    def batches(self, steps: int) -> list[Tensor]:
        """Return the rows of some batches."""
        draw = torch.Generator().manual_seed(1)
        return [torch.randint(N, (B,), generator=draw) for _ in range(steps)]

    def states(self, made: Split) -> tuple[dict[str, State], dict[str, Rows]]:
        """Return each party's networks and rows."""
        names = [f"p{k}" for k in range(self.shape.K)]
        roster = Roster(tuple(Party(name=name, labels=name == "p0") for name in names), "p0")
        classes = tuple(str(c) for c in range(self.shape.classes))
        states, rows, everyone = {}, {}, torch.ones(N, dtype=torch.bool)
        for k, name in enumerate(names):
            task = Task(kind="classification", classes=classes) if k == 0 else None
            seat = PartyContext(
                me=name, roster=roster, task=task, inputs=self.x[k].shape[1], encoder=MLP(hidden=(HIDDEN,)),
                optimizer=Optimizer(name="adam", lr=1e-3),
            )  # fmt: skip
            states[name] = made.begin(seat, Seeds(0))
            position = torch.where(self.observed[:, k], torch.arange(N), -1)
            rows[name] = Rows(
                n=N, block=Block(self.x[k], position), y=self.y if k == 0 else None,
                labeled=everyone if k == 0 else None, observed=self.observed if k == 0 else None,
                key=torch.arange(N) if k == 0 else None,
            )  # fmt: skip
        return states, rows


Way = Callable[[int], None]


def protocol(world: World) -> Way:
    """Return a function that makes steps by messages between coroutines."""
    made = method("laser", embedding=WIDTH)
    assert isinstance(made, Split)
    states, rows = world.states(made)
    roster = states["p0"].seat.roster

    def run(steps: int) -> None:
        batches = [Batch(each, Seeds(0), ("train", 0, n), number=n) for n, each in enumerate(world.batches(steps))]

        async def play(net: Channel) -> None:
            for batch in batches:
                await made.step(net, states[net.me], rows[net.me], batch)

        ledger = Ledger()
        memory.play(
            dict.fromkeys(roster.names, play),
            lambda channel: ContractChannel(channel, roster, made.can.messages, ledger=ledger),
        )

    return run


def joint(world: World) -> Way:
    """Return a function that makes steps jointly."""
    made = method("laser", embedding=WIDTH)
    assert isinstance(made, Split)
    states, rows = world.states(made)
    steps_of = made.joint(made.step, states, rows, lambda *_: None)
    assert not isinstance(steps_of, str)

    def run(steps: int) -> None:
        batches = [Batch(each, Seeds(0), ("train", 0, n), number=n) for n, each in enumerate(world.batches(steps))]
        for batch in steps_of.batches(batches):
            steps_of.step(batch)

    return run


def stacked(world: World) -> Way:
    """Return a function that makes steps of one graph, written by hand."""
    K, C, most = world.shape.K, world.shape.classes, max(world.shape.widths)
    x = torch.stack([functional.pad(each, (0, most - each.shape[1])) for each in world.x])  # [K, N, F]
    x = torch.where(world.observed.T.unsqueeze(2), x, 0.0)
    shapes = [(K, most, HIDDEN), (K, 1, HIDDEN), (K, HIDDEN, WIDTH), (K, 1, WIDTH), (WIDTH, K * C), (K, 1, C)]
    weights = [nn.Parameter(torch.randn(shape) * 0.05) for shape in shapes]
    adam = torch.optim.Adam(weights, lr=1e-3, fused=True)
    sizes, arange = torch.arange(1.0, K + 1), torch.arange(K)
    table = torch.tensor([[comb(o - 1, i - 1) / i / (2**o - 1) if o else 0.0 for i in range(1, K + 1)]
                          for o in range(K + 1)])  # fmt: skip

    def run(steps: int) -> None:
        first, bias, second, other, head, last = weights
        for rows in world.batches(steps):
            adam.zero_grad()
            there = world.observed[rows]
            hidden = torch.baddbmm(bias, x[:, rows], first).relu()
            h = torch.baddbmm(other, hidden, second).transpose(0, 1)
            h = torch.where(there.unsqueeze(2), h, 0.0)  # [B, K, H]
            products = (h @ head).view(B, K, K, C).transpose(1, 2)  # [B, M, K, C]
            lots = torch.where(there.unsqueeze(1), torch.rand(B, K, K), 2.0)
            lots[:, arange, arange] = -1.0
            order = lots.argsort(dim=2).unsqueeze(3).expand(-1, -1, -1, C)
            means = products.gather(2, order).cumsum(dim=2) / sizes.view(K, 1) + last
            y = world.y[rows].view(B, 1, 1).expand(B, K, K).flatten()
            each = functional.cross_entropy(means.flatten(0, 2), y, reduction="none").view(B, K, K)
            weight = table[there.sum(dim=1)].unsqueeze(1) * there.unsqueeze(2)
            loss = (weight * each).sum() / B
            loss.item()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()

    return run


WAYS: dict[str, Callable[[World], Way]] = {"stacked by hand": stacked, "joint": joint, "protocol": protocol}


def measure(shape: Shape, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the milliseconds per step of each way, in each round; the ways take turns."""
    world = World(shape)
    ways = {name: make(world) for name, make in WAYS.items()}
    for way in ways.values():
        way(5)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way(steps)
            times[name].append((time.process_time() - began) / steps * 1e3)
    return times


def main(*, quick: bool) -> None:
    """Measure all shapes, print the table, and write the page unless ``quick``."""
    torch.set_num_threads(1)
    columns = ["shape", "K", "missing", *(f"{name}, ms a step" for name in WAYS), "joint / stacked", "protocol / joint"]
    page, rows = Page("joint", "Joint execution: time of a training step", quick), list[list[str]]()
    page.say("CPU time of one thread. A ratio is the median of the ratios of neighbouring rounds, with the least and "
             "the greatest.")  # fmt: skip
    for shape in SHAPES:
        times = measure(shape, 3 if quick else 15, 20 if quick else 60)
        middle = {name: statistics.median(each) for name, each in times.items()}

        def ratio(one: str, other: str, times: dict[str, list[float]] = times) -> str:
            each = [a / b for a, b in zip(times[one], times[other], strict=True)]
            return f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})"

        rows.append([shape.title, str(shape.K), f"{shape.missing:.0%}", *(f"{ms:.2f}" for ms in middle.values()),
                     ratio("joint", "stacked by hand"), ratio("protocol", "joint")])  # fmt: skip
    page.table("Milliseconds per training step", columns, rows)
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
