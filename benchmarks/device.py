"""Training steps on a GPU and on all cores of the same machine: python -m benchmarks.device.

Without a GPU, nothing is measured.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import torch

from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel
from anyparty.methods.method import Batch, Method, PartyContext, State
from anyparty.methods.method_registry import method
from anyparty.networks.encoders import MLP, Factory, ResNet
from anyparty.networks.optimizer import Optimizer
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel
from anyparty.transport.ledger import Ledger, MeteredChannel
from benchmarks.page import Page, quick_asked
from benchmarks.timing import Contender, alternate, torch_threads
from benchmarks.worlds import HIDDEN, TASK, World

GPU, K, MISSING = "cuda", 8, 0.2
ADAM = Optimizer(name="adam", lr=1e-4)
SHAPES: tuple[tuple[str, int, int, Factory], ...] = (
    ("70 columns, MLP, batch 128", 560, 128, MLP(hidden=HIDDEN)),
    ("98 columns, MLP, batch 1,024", 784, 1024, MLP(hidden=HIDDEN)),
    ("images of 14 x 7, ResNet-18, batch 64", 784, 64, ResNet(shape=(1, 14, 7))),
)
METHODS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("laser", "train", {"embedding": 128}),
    ("false-vfl-1", "pretrain", {"embedding": 128, "top": 64, "samples": 5}),
)


@dataclass
class Steps:
    """Steps of one stage, as in a run, on a device.

    Attributes:
        name, stage, parameters: the method, and one of its stages.
        device: device of all parties.
        features, batch: columns of all parties, rows of a batch.
        encoder: the parties' networks.

    """

    name: str
    stage: str
    parameters: dict[str, object]
    device: str
    features: int
    batch: int
    encoder: Factory
    ledger: Ledger = field(default_factory=Ledger)

    @cached_property
    def world(self) -> World:
        """The random rows and the parties of the steps."""
        return World.of(K, MISSING, n=4 * self.batch, features=self.features, device=self.device)

    @cached_property
    def method(self) -> Method:
        """The method whose steps are timed."""
        return method(self.name, **self.parameters)

    @cached_property
    def states(self) -> dict[str, State]:
        """The newly initialised networks of all parties, by party."""
        roster = self.world.roster
        return {
            name: self.method.begin(
                PartyContext(
                    me=name,
                    roster=roster,
                    task=TASK if name == roster.active else None,
                    inputs=self.world.inputs,
                    encoder=self.encoder,
                    optimizer=ADAM,
                    device=torch.device(self.device),
                ),
                Seeds(0),
            )
            for name in roster.names
        }

    def __call__(self, steps: int) -> float:
        """Take a number of steps; return their seconds of wall-clock time."""
        states, lots = self.states, torch.Generator().manual_seed(1)
        batches = [
            Batch(torch.randint(4 * self.batch, (self.batch,), generator=lots).to(self.device), Seeds(0),
                  (self.stage, 0, step + 1), number=step + 1)
            for step in range(steps)
        ]  # fmt: skip

        def part(name: str) -> Callable[[Channel], Awaitable[None]]:
            async def play(net: Channel) -> None:
                stage = next(each for each in self.method.stages(states[name].seat) if each.name == self.stage)
                for batch in batches:
                    await stage.step(net, states[name], self.world.rows[name], batch)

            return play

        _wait(self.device)
        began = perf_counter()
        roster, declared = self.world.roster, self.method.can.messages
        memory.play(
            {name: part(name) for name in roster.names},
            lambda channel: ContractChannel(MeteredChannel(channel, self.ledger), roster, declared),
        )
        _wait(self.device)
        return perf_counter() - began


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main(*, quick: bool) -> None:
    page = Page("device", "Training steps on a GPU, against the CPU", quick)
    cores = os.cpu_count() or 1
    page.say(
        f"{torch.cuda.get_device_name()}. {K} parties in one process, each block absent from {MISSING:.0%} of the "
        f"rows; hidden {HIDDEN[0]}, {HIDDEN[1]}, embedding 128; LASER-VFL's steps, and those of FALSE-VFL-I's first "
        f"stage with 5 importance samples. Milliseconds of the clock on the wall, contenders in turns; medians over "
        f"rounds, quartiles in brackets."
    )
    rows = []
    for title, features, batch, encoder in SHAPES:
        for name, stage, parameters in METHODS:
            both: dict[str, Contender] = {
                device: Steps(name, stage, parameters, device, features, batch, encoder) for device in ("cpu", GPU)
            }
            with torch_threads(cores if cores > 1 else 2):  # with one thread, CPU time would be measured
                times = alternate(both, 3 if quick else 5, 0.1 if quick else 0.3)
            rows.append([f"{title}: {name}", str(times.milliseconds("cpu")), str(times.milliseconds(GPU)),
                         str(times.ratio("cpu", GPU))])  # fmt: skip
    page.table(f"A step, {cores} cores and the GPU", ("", "CPU, ms", "GPU, ms", "CPU over GPU"), rows)
    page.write()


if __name__ == "__main__":
    asked = quick_asked(__doc__)
    if torch.cuda.is_available():
        main(quick=asked)
    else:
        print("This machine has no GPU that torch can use: nothing is measured.")
